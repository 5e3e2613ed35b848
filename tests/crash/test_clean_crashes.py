"""A process that dies, or whose disk is full or broken, at each of the system calls of a clean.

A group of segments is swapped for what it became. Up to the last name `.cleaned` the old segments count, from then on
the new one, and those of the old ones that begin behind its last record until they are deleted: they hold nothing then
but records that newer ones have made old. So whatever step is the last one: nothing that a clean keeps is missing,
nothing is there that was not there before, at another offset or in another order.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import shutil
from pathlib import Path

import pytest
from compacted import Cleaning, cleaner
from directory_check import check_directory
from partition_opening import CLEAN, NEVER, open_partition
from syscalls import Calls, Crash, sample

from topicfs.engine.errors import EngineError
from topicfs.engine.partition.loading import Known
from topicfs.engine.partition.partition import Partition
from topicfs.engine.record import Record

STRIDE = 5
RETENTION = 1000


def prepared(root: Path) -> Cleaning:
    """A partition with tombstones that are over, others that are not, transactions, and small segments, which was
    cleaned once and written to since. A clean makes fewer segments of them, in several groups."""
    topic = Cleaning(root / "t-0", segment_bytes=300, delete_retention_ms=RETENTION)
    for number in range(10):
        topic.put((number, number), (number + 1, "x" * 20))
    topic.put((3, None), (4, None))
    topic.produce(7, ("a", 1), transactional=True)
    topic.end(7, commit=False)
    topic.clean()
    topic.clock.ms += RETENTION
    for number in range(5, 12):
        topic.put((number, "new"), (100 + number, number))
    topic.produce(7, ("b", 2), (5, 9), transactional=True)
    topic.end(7, commit=True)
    topic.produce(8, ("c", 3), transactional=True)
    topic.put((6, None))
    topic.partition.roll()
    topic.end(8, commit=False)
    topic.partition.log.remove_due(NEVER)
    topic.partition.close()
    topic.settings["segment_bytes"] = 700
    return topic


def opened(topic: Cleaning, directory: Path, known: Known) -> Partition:
    return open_partition(directory, known, topic.clock, **topic.settings)


def clean(topic: Cleaning, partition: Partition) -> None:
    log = partition.log
    cleaner(io_buffer=8192).clean(
        log, topic.dirty, log.chain.active.base_offset, topic.clock.ms, lambda: None
    )


def all_records(partition: Partition) -> list[Record]:
    return list(partition.records())


class Expected:
    """What is there before and after the clean.

    before, after  what a reader sees
    end            the end offset
    calls          system calls of the clean
    """

    def __init__(self, topic: Cleaning, root: Path) -> None:
        directory = shutil.copytree(topic.directory, root / "expected-0")
        partition = opened(topic, directory, CLEAN)
        self.before = all_records(partition)
        self.end = partition.end_offset
        segments = len(partition.log.chain.segments)
        calls = Calls()
        with calls.patched():
            clean(topic, partition)
        self.calls = calls.count
        self.after = all_records(partition)
        assert 2 < len(partition.log.chain.segments) < segments
        assert len(self.after) < len(self.before)
        partition.log.abandon()
        shutil.rmtree(directory)

    def check(self, partition: Partition) -> None:
        found = all_records(partition)
        assert [record for record in self.before if record in found] == found, "from nowhere, or out of order"
        missing = [record for record in self.after if record not in found]
        assert not missing, f"kept by the clean, and gone: {missing}"
        assert partition.end_offset == partition.stable_offset == self.end

    def check_reopened(self, topic: Cleaning, directory: Path, known: Known) -> None:
        partition = opened(topic, directory, known)
        self.check(partition)
        clean(topic, partition)
        assert all_records(partition) == self.after, "a second clean comes to the same"
        partition.log.remove_due(NEVER)
        partition.close()
        check_directory(directory)
        assert not list(directory.glob("*.deleted"))
        again = opened(topic, directory, Known())
        assert all_records(again) == self.after
        assert again.end_offset == again.stable_offset == self.end
        again.close()


@pytest.mark.parametrize("torn", [False, True])
def test_dying_at_any_call_of_a_clean_leaves_what_was_or_what_it_makes(tmp_path: Path, torn: bool) -> None:
    with Calls().patched():
        topic = prepared(tmp_path)
        expected = Expected(topic, tmp_path)
    assert expected.calls > 60
    for stop in sample(expected.calls, STRIDE, 2 * torn):
        directory = shutil.copytree(topic.directory, tmp_path / "run-0")
        partition = opened(topic, directory, CLEAN)
        calls = Calls(stop, torn)
        with calls.patched(), contextlib.suppress(Crash):
            clean(topic, partition)
        assert calls.failed
        del partition
        gc.collect()
        for known in (Known(), Known(recovery_point=expected.end), CLEAN):
            copy = shutil.copytree(directory, tmp_path / "copy-0")
            with Calls().patched():
                expected.check_reopened(topic, copy, known)
            shutil.rmtree(copy)
        shutil.rmtree(directory)


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_an_error_at_any_call_of_a_clean_is_reported_and_loses_nothing(
    tmp_path: Path, error: int, lasting: bool
) -> None:
    with Calls().patched():
        topic = prepared(tmp_path)
        expected = Expected(topic, tmp_path)
    for stop in sample(expected.calls, STRIDE, error + 2 * lasting):
        directory = shutil.copytree(topic.directory, tmp_path / "run-0")
        partition = opened(topic, directory, CLEAN)
        calls = Calls(stop, error == errno.ENOSPC, error, lasting)
        with calls.patched(), contextlib.suppress(OSError, EngineError):
            clean(topic, partition)
        if partition.log.failure is None:
            expected.check(partition)
        partition.log.abandon()
        with Calls().patched():
            expected.check_reopened(topic, directory, Known())
        shutil.rmtree(directory)
