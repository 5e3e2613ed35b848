"""A process that dies, or whose disk fails, at each of the system calls that keep an index of keys: the next index goes
on from the checkpoint that is there."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

import pytest
from partition_opening import CLEAN, open_partition
from syscalls import Calls, Crash, sample

from topicfs.engine.format.paths import KEYS_CHECKPOINT
from topicfs.engine.keys.index import KeyIndex
from topicfs.engine.record import Record
from topicfs.mountd.view_cache import DirectoryViewCache

COUNT = 30


def filled(place: Path) -> None:
    """A log, and a checkpoint of its first half."""
    with Calls().patched():
        partition = open_partition(place / "logs/t-0", cleanup_policy="compact")
        index = KeyIndex(partition, DirectoryViewCache(place / "views"))
        for first in (0, COUNT // 2):
            partition.append([Record(b"v", b"k%d" % number) for number in range(first, first + COUNT // 2)])
            if not first:
                index.catch_up()
                assert index.save()
        partition.close()


def saved(place: Path, calls: Calls) -> int:
    """Save the index of all keys, with these calls. How many records were read for it."""
    partition = open_partition(place / "logs/t-0", CLEAN, cleanup_policy="compact")
    try:
        index = KeyIndex(partition, DirectoryViewCache(place / "views"))
        index.catch_up()
        assert index.table.live == COUNT
        with calls.patched(), contextlib.suppress(Crash, OSError):
            index.save()
        return index.read
    finally:
        partition.log.abandon()


@pytest.mark.parametrize("error", [None, errno.ENOSPC, errno.EIO], ids=["death", "full", "broken"])
def test_wherever_a_save_is_stopped_the_checkpoint_is_the_one_before_or_the_new_one(
    tmp_path: Path, error: int | None
) -> None:
    filled(tmp_path / "counted")
    counted = Calls()
    saved(tmp_path / "counted", counted)
    for stop in sample(counted.count, 1):
        place = tmp_path / str(stop)
        filled(place)
        saved(place, Calls(stop, torn=True, error=error))
        assert saved(place, Calls()) in (0, COUNT // 2), "no more than the tail is read"
        assert saved(place, Calls()) == 0


def test_a_checkpoint_stays_as_long_as_its_partition(tmp_path: Path) -> None:
    cache = DirectoryViewCache(tmp_path / "views")
    (tmp_path / "logs/t-0").mkdir(parents=True)
    cache.save("t-0", KEYS_CHECKPOINT, b"x")
    assert cache.sweep(tmp_path / "logs") == 0
    assert cache.load("t-0", KEYS_CHECKPOINT) == b"x"
    (tmp_path / "logs/t-0").rmdir()
    assert cache.sweep(tmp_path / "logs") == 1
