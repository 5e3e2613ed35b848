"""A process that dies, or whose disk is full or broken, at each of the system calls of a commit.

Whatever call is the last one: after the next start all of the batch is there, in both partitions, or nothing; and when
it is committed again, it is there once.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

import numpy as np
import pytest
from directory_check import check_directory
from syscalls import Attempts, Calls, Crash, sample

from topicfs import Store
from topicfs.engine.batch.columns import Columns
from topicfs.engine.errors import EngineError
from topicfs.engine.inbox.inbox import Chunk, Committed

STRIDE = 2
SOURCE = ("b", "x.txt")


def column(count: int) -> Columns:
    """Records of one byte."""
    none = np.zeros(count, np.int32)
    starts = np.arange(count, dtype=np.int32)
    times = np.full(count, 1_700_000_000_000)
    letters = np.full(count, ord("x"), np.uint8)
    return Columns(letters, np.arange(count), times, none, none - 1, starts, none + 1, none, none)


CHUNKS: list[Chunk] = [(0, column(3)), (1, column(2))]


def prepared(root: Path) -> Path:
    """A store with a batch that was committed, and one that is to be."""
    with Store.open(root, create=True) as store:
        store.create_topic("t", 2)
        store.inboxes.of("t").commit("before", CHUNKS)
        staging = store.inboxes.of("t").staging
        staging.make_directory(SOURCE[:1])
        staging.open(SOURCE, os.O_WRONLY | os.O_CREAT).close()
    return root


def commit(store: Store) -> Committed:
    return store.inboxes.of("t").commit("b", CHUNKS, [SOURCE[:1]])


def seen(store: Store) -> tuple[int, int]:
    first, second = (len(list(store.partition("t", number).records())) for number in (0, 1))
    return first, second


def check(root: Path, told: Committed | None) -> None:
    """All or nothing after a start; once after a second attempt."""
    with Store.open(root, create=True) as store:
        found = seen(store)
        assert found in ((3, 2), (6, 4))
        assert told is None or found == (6, 4), "it was told that it is committed"
        box = store.inboxes.of("t")
        assert not box.is_unsettled or not (root / "staging/t/journal").exists()
        assert box.knows("b") == (found == (6, 4))
        # Nothing that is not committed may be lost either.
        assert (box.staging.names(("b",)) == []) == (found == (6, 4))
        assert commit(store).known == (found == (6, 4))
        assert seen(store) == (6, 4)
        for number in (0, 1):
            partition = store.partition("t", number)
            assert not partition.log.producers.ongoing
            assert partition.stable_offset == partition.end_offset
    for number in (0, 1):
        check_directory(root / f"logs/t-{number}")


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
def test_a_crash_at_any_call_leaves_all_or_nothing(tmp_path: Path, torn: bool) -> None:
    work = attempts(tmp_path)
    work.each(Calls(stop, torn) for stop in sample(work.count() + 1, STRIDE, torn))


@pytest.mark.parametrize(
    ("number", "lasting"), [(errno.EIO, False), (errno.ENOSPC, False), (errno.ENOSPC, True)]
)
def test_an_error_at_any_call_leaves_all_or_nothing(tmp_path: Path, number: int, lasting: bool) -> None:
    work = attempts(tmp_path)
    work.each(Calls(stop, error=number, lasting=lasting) for stop in sample(work.count(), STRIDE, lasting))


def test_a_crash_while_a_crash_is_made_good_leaves_all_or_nothing(tmp_path: Path) -> None:
    work = attempts(tmp_path)
    calls = work.count()
    for stop in [calls // 2 + number for number in sample(calls - calls // 2, 2 * STRIDE)]:
        work.twice(stop, sample(60, 3), lambda copy: Store.open(copy, create=True).abandon())
