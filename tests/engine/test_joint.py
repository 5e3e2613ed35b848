"""Batches of several topics: all of them are appended, or none, once each."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Event

import pytest
from store_bench import StoreBench, checked_store_bench, values
from test_inbox import column

from topicfs.engine.errors import (
    BatchExistsError,
    CorruptCheckpointError,
    InvalidRecordError,
    PolicyViolationError,
    UnknownPartitionError,
)
from topicfs.engine.inbox.committed_names import CommittedNames
from topicfs.engine.inbox.content import Content
from topicfs.engine.inbox.inbox import Batch, Chunk, Committed
from topicfs.engine.inbox.joint_journal import JointJournal, JointNote, Part
from topicfs.engine.inbox.rows import NO_PARTITION, Rows
from topicfs.engine.messages.topics import TRANSACTIONS
from topicfs.engine.transactions.coordinator import ALL_INBOXES
from topicfs.engine.transactions.states import TransactionState

TOPICS = ("t", "u")


@pytest.fixture
def store_bench(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[StoreBench]:
    with checked_store_bench(tmp_path / "backing", caplog) as made:
        made.open()
        for topic in (*TOPICS, "v"):
            made.store.create_topic(topic, 1)
        yield made


def batch(name: str, value: bytes) -> Batch:
    content, columns = Content(), column(value)
    content.add(Rows(columns, columns.offsets.astype("i4") * 0 + NO_PARTITION))
    return Batch(name, [(0, columns)], (), content)


def commit(bench: StoreBench, name: str, *topics: str, value: bytes | None = None) -> Committed:
    given = name.encode() if value is None else value
    return bench.store.inboxes.commit({topic: batch(name, given) for topic in topics or TOPICS})


def alone(bench: StoreBench, topic: str, name: str) -> Committed:
    given = batch(name, name.encode())
    return bench.store.inboxes.of(topic).commit(name, given.chunks, (), given.content)


def shown(bench: StoreBench) -> list[list[bytes | None]]:
    return [values(bench.store.partition(topic, 0)) for topic in TOPICS]


def journal(bench: StoreBench) -> JointJournal:
    return JointJournal(bench.root / "transactions/inboxes/journal")


def test_batches_of_several_topics_are_one_transaction_and_are_there_once(store_bench: StoreBench) -> None:
    assert commit(store_bench, "a") == Committed(2)
    assert commit(store_bench, "a") == Committed(0, known=True)
    assert alone(store_bench, "u", "a").known
    assert shown(store_bench) == [[b"a"], [b"a"]]
    commit(store_bench, "b", "u", "v")
    commit(store_bench, "c")
    coordinator = store_bench.store.transactions
    assert len([each for each in coordinator.transactions() if each.transactional_id == ALL_INBOXES]) == 1
    found = coordinator.transaction(ALL_INBOXES)
    assert found is not None
    assert found.state is TransactionState.COMPLETE_COMMIT
    for topic in TOPICS:
        assert found.producer_id in store_bench.store.partition(topic, 0).log.producers.producers
    store_bench.crash()
    assert commit(store_bench, "c").known
    assert shown(store_bench) == [[b"a", b"c"], [b"a", b"b", b"c"]]


def test_what_one_topic_has_already_is_added_to_the_others(store_bench: StoreBench) -> None:
    alone(store_bench, "u", "a")
    assert commit(store_bench, "a") == Committed(1)
    assert shown(store_bench) == [[b"a"], [b"a"]]


def test_other_records_in_one_topic_are_refused_before_anything_is_appended(store_bench: StoreBench) -> None:
    alone(store_bench, "u", "a")
    with pytest.raises(BatchExistsError, match="expected 1:1:"):
        commit(store_bench, "a", value=b"other")
    assert shown(store_bench) == [[], [b"a"]]
    assert commit(store_bench, "a").records == 1


def test_an_error_in_one_topic_leaves_none_and_every_name_free(store_bench: StoreBench) -> None:
    def broken() -> Iterator[Chunk]:
        yield 0, column(b"lost")
        raise InvalidRecordError("as asked for")

    with pytest.raises(InvalidRecordError, match="as asked for"):
        store_bench.store.inboxes.commit({"t": batch("a", b"a"), "u": Batch("a", broken())})
    assert shown(store_bench) == [[], []]
    assert journal(store_bench).read() is None
    assert commit(store_bench, "a").records == 2
    with pytest.raises(UnknownPartitionError, match="no topic none"):
        commit(store_bench, "b", "t", "none")
    with pytest.raises(PolicyViolationError, match="only coordinators write it"):
        commit(store_bench, "b", "t", TRANSACTIONS)
    assert shown(store_bench) == [[b"a"], [b"a"]]


def test_commits_of_the_same_topics_in_any_order_wait_for_each_other(store_bench: StoreBench) -> None:
    together = Barrier(4)

    def run(number: int) -> int:
        together.wait()
        topics = TOPICS if number % 2 else TOPICS[::-1]
        return sum(commit(store_bench, f"{turn}", *topics).records for turn in range(10))

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(run, range(4))) == 20
    expected = [b"%d" % turn for turn in range(10)]
    assert [sorted(found) for found in shown(store_bench)] == [expected, expected]


def test_a_commit_in_another_topic_does_not_wait_for_one_of_several(store_bench: StoreBench) -> None:
    begun, released = Event(), Event()

    def slow() -> Iterator[Chunk]:
        begun.set()
        assert released.wait(60)
        yield 0, column(b"slow")

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(
            store_bench.store.inboxes.commit, {topic: Batch("a", slow()) for topic in TOPICS}
        )
        assert begun.wait(60)
        assert alone(store_bench, "v", "v").records == 1
        released.set()
        assert running.result().records == 2


def test_whoever_commits_next_in_one_of_the_topics_finishes_what_has_stopped_half_way(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_bench.warnings = True
    with monkeypatch.context() as broken:
        broken.setattr(JointJournal, "remove", refuse)
        commit(store_bench, "a")
    assert store_bench.store.inboxes.joint is not None
    assert store_bench.store.inboxes.joint.is_unsettled
    assert alone(store_bench, "u", "a").known
    assert not store_bench.store.inboxes.joint.is_unsettled
    assert journal(store_bench).read() is None
    with monkeypatch.context() as broken:
        broken.setattr(JointJournal, "remove", refuse)
        commit(store_bench, "b")
        with pytest.raises(OSError, match="as asked for"):
            alone(store_bench, "u", "b")
        assert alone(store_bench, "v", "b").records == 1
    store_bench.store.inboxes.settle()
    assert not store_bench.store.inboxes.joint.is_unsettled
    assert commit(store_bench, "b").known
    assert shown(store_bench) == [[b"a", b"b"], [b"a", b"b"]]


def refuse(*_: object) -> None:
    raise OSError("as asked for")


def test_a_topic_that_is_deleted_and_taken_back_knows_what_was_stopped_half_way(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_bench.warnings = True
    with monkeypatch.context() as broken:
        broken.setattr(CommittedNames, "add", refuse)
        commit(store_bench, "a")
    store_bench.store.delete_topic("u")
    store_bench.store.inboxes.settle()
    store_bench.store.undelete("u")
    assert alone(store_bench, "u", "a").known
    assert commit(store_bench, "a").known
    assert shown(store_bench) == [[b"a"], [b"a"]]


@pytest.mark.parametrize("between", ["nothing", "a crash"])
def test_a_topic_that_is_made_again_does_not_know_what_was_stopped_half_way_before_it(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch, between: str
) -> None:
    store_bench.warnings = True
    with monkeypatch.context() as broken:
        broken.setattr(CommittedNames, "add", refuse)
        of_u = replace(batch("a", b"a"), sources=(("a",),))
        store_bench.store.inboxes.commit({"t": batch("a", b"a"), "u": of_u})
        store_bench.store.delete_topic("u")
        store_bench.store.create_topic("u", 1)
    store_bench.store.inboxes.of("u").staging.open(("a",), os.O_CREAT | os.O_WRONLY).close()
    if between == "a crash":
        store_bench.crash()
    store_bench.store.inboxes.settle()
    assert store_bench.store.inboxes.of("u").staging.names(()) == ["a"]
    assert alone(store_bench, "u", "a").records == 1
    assert alone(store_bench, "t", "a").known
    assert shown(store_bench) == [[b"a"], [b"a"]]


@pytest.mark.parametrize(
    "text", ["", "{}", "[" * 5000, '{"producer_id": 1e999, "parts": []}', '{"producer_id": 1, "parts": [{}]}']
)
def test_a_note_that_somebody_made_up_is_refused(store_bench: StoreBench, text: str) -> None:
    store_bench.warnings = True
    path = store_bench.file("transactions/inboxes/journal", text)
    store_bench.crash()
    with pytest.raises(CorruptCheckpointError, match="expected a commit under way"):
        alone(store_bench, "t", "a")
    path.unlink()
    assert alone(store_bench, "t", "a").records == 1


def test_a_note_whose_transaction_nobody_knows_is_an_error_to_its_topics(store_bench: StoreBench) -> None:
    store_bench.warnings = True
    note = JointNote((Part("t", "a", (("a",),), None), Part("u", "a", (), "1:1:0")), 7)
    journal(store_bench).write(note)
    assert journal(store_bench).read() == note
    assert json.loads(journal(store_bench).path.read_text())["parts"][0]["sources"] == [["a"]]
    store_bench.crash()
    with pytest.raises(CorruptCheckpointError, match="nobody can tell whether its batches were committed"):
        alone(store_bench, "t", "a")
    assert alone(store_bench, "v", "a").records == 1
    journal(store_bench).remove()
    assert commit(store_bench, "a").records == 2
