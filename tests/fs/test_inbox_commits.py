"""Commits when a mount goes away, and who changes what meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from topicfs.fs.errors import BusyError, GoingAwayError
from topicfs.fs.inbox import claims as claiming
from topicfs.fs.inbox import commits as committing
from topicfs.fs.inbox.claims import Claims
from topicfs.fs.inbox.commits import Commits


def begun(task: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=task, daemon=True)
    thread.start()
    return thread


def test_the_end_waits_for_commits_and_for_the_files_that_they_were_asked_for_by() -> None:
    commits, file = Commits(), object()
    with commits.one():
        ending = begun(commits.end)
        commits.opened(file)
        ending.join(0.05)
        assert ending.is_alive()
        while True:
            try:
                with commits.one():
                    pass
            except GoingAwayError:
                break
    ending.join(0.05)
    assert ending.is_alive(), "its file is open"
    commits.closed(object())
    commits.closed(file)
    ending.join(20)
    assert not ending.is_alive()


def test_nobody_waits_long_for_a_file_that_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committing, "CLOSING_S", 40.0)
    commits = Commits()
    with commits.one():
        commits.opened(object())
    assert commits._last is not None
    commits._last -= 40
    start = time.monotonic()
    commits.end()
    assert time.monotonic() - start < 20


def test_without_commits_the_end_is_there_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committing, "QUIET_S", 40.0)
    start = time.monotonic()
    Commits().end()
    assert time.monotonic() - start < 20


@pytest.mark.parametrize("place", [("b",), ("b", "x"), ("b", "p", "x")])
def test_what_is_taken_is_not_changed_nor_what_lies_above_or_below_it(place: tuple[str, ...]) -> None:
    claims = Claims()
    with claims.taken(("b", "p") if len(place) != 2 else ("b",)):
        with pytest.raises(BusyError), claims.changing(("other",), place):
            pass
        with claims.changing(("c",), ("bb", "x")):
            pass
    with claims.changing(place):
        pass


def test_a_commit_waits_for_changes_and_for_other_commits_of_the_same() -> None:
    claims, order = Claims(), list[str]()

    def commit(name: str) -> None:
        with claims.taken(("b",)):
            order.append(name)
            time.sleep(0.02)
            order.append(name)

    with claims.changing(("b", "x")):
        threads = [begun(lambda: commit("one")), begun(lambda: commit("two"))]
        time.sleep(0.05)
        assert order == []
    for thread in threads:
        thread.join(20)
    assert order in (["one", "one", "two", "two"], ["two", "two", "one", "one"])


def test_what_was_closed_is_waited_for_and_what_is_open_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claiming, "GRACE_S", 20)
    claims = Claims()
    writing = claims.begin_writing((1, 2))
    claims.await_closed((1, 2), writing, "own")
    claims.await_closed((1, 3), None, "another")
    with pytest.raises(BusyError, match="x is open for writing"):
        claims.await_closed((1, 2), None, "x")
    writing.is_closed = True
    waiting = begun(lambda: claims.await_closed((1, 2), None, "x"))
    waiting.join(0.05)
    assert waiting.is_alive()
    claims.end_writing(writing)
    waiting.join(10)
    assert not waiting.is_alive()
    monkeypatch.setattr(claiming, "GRACE_S", 0.05)
    claims.begin_writing((1, 2)).is_closed = True
    with pytest.raises(BusyError):
        claims.await_closed((1, 2), None, "x")
