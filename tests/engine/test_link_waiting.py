"""Who waits for a cluster may give up, whatever the brokers do."""

from __future__ import annotations

import threading

import pytest

from topicfs.engine.errors import ClusterAwayError, LinkRefusedError
from topicfs.engine.link import waiting
from topicfs.engine.link.waiting import answer_of, in_turn


def test_an_answer_and_an_error_are_those_of_the_question() -> None:
    def refused() -> int:
        raise LinkRefusedError("no")

    assert answer_of(lambda: 7, lambda: False) == 7
    assert answer_of(lambda: 7, lambda: True) == 7
    with pytest.raises(LinkRefusedError, match="no"):
        answer_of(refused, lambda: False)


@pytest.mark.parametrize("from_the_beginning", [False, True])
def test_who_gives_up_waits_no_longer(monkeypatch: pytest.MonkeyPatch, from_the_beginning: bool) -> None:
    monkeypatch.setattr(waiting, "_LAST_S", 0.1)
    answer, asked = threading.Event(), threading.Event()

    def question() -> None:
        asked.set()
        answer.wait(60)

    try:
        with pytest.raises(ClusterAwayError, match="have not answered yet"):
            answer_of(question, lambda: from_the_beginning or asked.is_set())
    finally:
        answer.set()


def test_who_waits_for_another_who_waits_may_give_up_too() -> None:
    lock = threading.Lock()
    with in_turn(lock, lambda: False):
        looks = iter([False, False, True])
        with pytest.raises(ClusterAwayError, match="who asked before"), in_turn(lock, lambda: next(looks)):
            pass
    assert not lock.locked()
