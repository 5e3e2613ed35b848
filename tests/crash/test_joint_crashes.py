"""A process that dies, or whose disk is full or broken, at each of the system calls of a commit of several topics.

Whatever call is the last one: after the next start all of the batch is there, in both topics, or nothing; and when it
is committed again, it is there once.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

import pytest
from directory_check import check_directory
from syscalls import Attempts, Calls, Crash, sample
from test_inbox_crashes import column

from topicfs import Store
from topicfs.engine.errors import EngineError
from topicfs.engine.inbox.inbox import Batch, Committed

STRIDE = 9
TOPICS = ("t", "u")
SOURCE = ("b", "x.txt")
COUNTS = {("t", 0): 3, ("t", 1): 2, ("u", 0): 1}
"""How many records a batch has for each partition."""


def batch(name: str, topic: str) -> Batch:
    chunks = [(number, column(count)) for (of, number), count in COUNTS.items() if of == topic]
    return Batch(name, chunks, (SOURCE[:1],) if name == "b" else ())


def commit(store: Store, name: str = "b") -> Committed:
    return store.inboxes.commit({topic: batch(name, topic) for topic in TOPICS})


def prepared(root: Path) -> Path:
    """A store with a batch that was committed, and one that is to be."""
    with Store.open(root, create=True) as store:
        store.create_topic("t", 2)
        store.create_topic("u", 1)
        commit(store, "before")
        for topic in TOPICS:
            staging = store.inboxes.of(topic).staging
            staging.make_directory(SOURCE[:1])
            staging.open(SOURCE, os.O_WRONLY | os.O_CREAT).close()
    return root


def seen(store: Store) -> list[int]:
    """How many batches each partition shows."""
    return [len(list(store.partition(*key).records())) // count for key, count in COUNTS.items()]


def check(root: Path, told: Committed | None) -> None:
    """All or nothing after a start; once after a second attempt, also where that is of one topic alone."""
    with Store.open(root, create=True) as store:
        found = seen(store)
        assert found in ([1, 1, 1], [2, 2, 2])
        assert told is None or found == [2, 2, 2], "it was told that it is committed"
        there = found == [2, 2, 2]
        assert not (root / "transactions/inboxes/journal").exists()
        for topic in TOPICS:
            box = store.inboxes.of(topic)
            assert box.knows("b") == there
            # Nothing that is not committed may be lost either.
            assert (box.staging.names(("b",)) == []) == there
        alone = batch("b", "u")
        assert store.inboxes.of("u").commit("b", alone.chunks, alone.sources).known == there
        assert commit(store).known == there
        assert commit(store).known
        assert seen(store) == [2, 2, 2]
        for key in COUNTS:
            partition = store.partition(*key)
            assert not partition.log.producers.ongoing
            assert partition.stable_offset == partition.end_offset
    for topic, number in COUNTS:
        check_directory(root / f"logs/{topic}-{number}")


def attempt(root: Path, calls: Calls) -> Committed | None:
    """A commit that fails, in a store that ends as a crash ends it."""
    store = Store.open(root, create=True)
    told = None
    try:
        with calls.patched(), contextlib.suppress(Crash, EngineError, OSError):
            told = commit(store)
    finally:
        store.abandon()
    return told


def attempts(place: Path) -> Attempts[Committed | None]:
    return Attempts(prepared(place / "prepared"), place, attempt, check)


@pytest.mark.parametrize("torn", [False, True])
def test_a_crash_at_any_call_leaves_all_topics_or_none(tmp_path: Path, torn: bool) -> None:
    work = attempts(tmp_path)
    work.each(Calls(stop, torn) for stop in sample(work.count() + 1, STRIDE, torn))


@pytest.mark.parametrize(
    ("number", "lasting"), [(errno.EIO, False), (errno.ENOSPC, False), (errno.ENOSPC, True)]
)
def test_an_error_at_any_call_leaves_all_topics_or_none(tmp_path: Path, number: int, lasting: bool) -> None:
    work = attempts(tmp_path)
    work.each(Calls(stop, error=number, lasting=lasting) for stop in sample(work.count(), STRIDE, lasting))


def test_a_crash_while_a_crash_is_made_good_leaves_all_topics_or_none(tmp_path: Path) -> None:
    work = attempts(tmp_path)
    calls = work.count()
    for stop in [calls // 2 + number for number in sample(calls - calls // 2, 4 * STRIDE)]:
        work.twice(stop, sample(60, 20), lambda copy: Store.open(copy, create=True).abandon())
