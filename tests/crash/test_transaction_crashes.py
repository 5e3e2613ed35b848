"""A process that dies, or whose disk is full or broken, at each of the system calls of a transaction.

Whatever call is the last one: after the next start all of it is there, in both partitions and as the position of a
group, or nothing; its staged files are there where it is not, so that it can be committed again, and then it is there
once.
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
from topicfs.engine.groups.groups import Groups, PositionCommit
from topicfs.engine.transactions.coordinator import Chunk
from topicfs.engine.transactions.states import PREPARED, UNDECIDED

STRIDE = 3
TIMEOUT_MS = 60_000
KEYS = [("t", 0), ("u", 0)]
CHUNKS: list[Chunk] = [(KEYS[0], column(3)), (KEYS[1], column(2))]
POSITION = PositionCommit("g", {KEYS[0]: 3}, {KEYS[0]: None})


def prepared(root: Path) -> Path:
    """A store with a transaction that was committed, and one whose files are staged."""
    with Store.open(root, create=True) as store:
        store.create_topic("t", 1)
        store.create_topic("u", 1)
        Groups.of(store).create("g")
        holder = store.transactions.init_producer("a", TIMEOUT_MS)
        store.transactions.run(holder, KEYS, CHUNKS)
        store.transactions.staged.make_directory(("a",))
        store.transactions.staged.open(("a", "x"), os.O_WRONLY | os.O_CREAT).close()
    return root


def commit(store: Store) -> int:
    holder = store.transactions.transaction("a")
    assert holder is not None
    with store.transactions.writing(holder), Groups.of(store).in_transaction([POSITION]) as positions:
        keys = [*KEYS, *(key for key, _ in positions)]
        return store.transactions.run(holder, keys, [*CHUNKS, *positions]) - 1


def seen(store: Store) -> tuple[int, int]:
    first, second = (len(list(store.partition(*key).records())) for key in KEYS)
    return first, second


def attempt(root: Path, calls: Calls) -> int | None:
    """A transaction that fails, in a store that ends as a crash ends it."""
    store = Store.open(root)
    told = None
    try:
        with calls.patched(), contextlib.suppress(Crash, EngineError, OSError):
            told = commit(store)
    finally:
        store.abandon()
    return told


def check(root: Path, told: int | None) -> None:
    """All or nothing after a start; once after a second attempt of what is still staged."""
    with Store.open(root) as store:
        found = seen(store)
        assert found in ((3, 2), (6, 4))
        position = Groups.of(store).position("g", KEYS[0])
        assert (position is not None) == (found == (6, 4))
        assert told is None or found == (6, 4), "it was told that it is committed"
        staged = store.transactions.staged.names(())
        assert staged == ([] if found == (6, 4) else ["a"])
        if staged:
            assert commit(store) == 5
        assert seen(store) == (6, 4)
        for key in KEYS:
            partition = store.partition(*key)
            assert not partition.log.producers.ongoing
            assert partition.stable_offset == partition.end_offset
        (state,) = store.transactions.transactions()
        assert state.state not in PREPARED | UNDECIDED
    for topic, number in KEYS:
        check_directory(root / f"logs/{topic}-{number}")


def attempts(place: Path) -> Attempts[int | None]:
    return Attempts(prepared(place / "prepared"), place, attempt, check)


@pytest.mark.parametrize("torn", [False, True])
def test_a_crash_at_any_call_leaves_all_of_a_transaction_or_nothing(tmp_path: Path, torn: bool) -> None:
    work = attempts(tmp_path)
    work.each(Calls(stop, torn) for stop in sample(work.count() + 1, STRIDE, torn))


@pytest.mark.parametrize(
    ("number", "lasting"), [(errno.EIO, False), (errno.ENOSPC, False), (errno.ENOSPC, True)]
)
def test_an_error_at_any_call_leaves_all_of_a_transaction_or_nothing(
    tmp_path: Path, number: int, lasting: bool
) -> None:
    work = attempts(tmp_path)
    work.each(Calls(stop, error=number, lasting=lasting) for stop in sample(work.count(), STRIDE, lasting))


def test_a_crash_while_a_transaction_is_made_good_leaves_all_of_it_or_nothing(tmp_path: Path) -> None:
    work = attempts(tmp_path)
    for stop in sample(work.count(), 3 * STRIDE):
        work.twice(stop, sample(60, 20), lambda copy: Store.open(copy).abandon())
