"""A process that dies, or whose disk fails, at each of the system calls of retention: what stays is a whole end of
the log, with everything that was not due."""

from __future__ import annotations

import contextlib
import errno
import gc
import shutil
from pathlib import Path

import pytest
from directory_check import check_directory, content
from partition_opening import CLEAN, NOW, Clock, open_partition
from syscalls import Calls, Crash, sample

from topicfs.engine.errors import EngineError
from topicfs.engine.partition.loading import Known
from topicfs.engine.partition.partition import Partition, Producer
from topicfs.engine.record import Record
from topicfs.engine.retention.removal import apply

SMALL = {"segment_bytes": 600, "index_interval_bytes": 100, "retention_ms": -1}
COUNT = 30
CASES = {"some": {"retention_bytes": 1300}, "all": {"retention_bytes": 0}}

STRIDE = 4


def filled(directory: Path) -> None:
    """Some records of a producer, in several segments, under two leader epochs; stopped cleanly."""
    partition = open_partition(directory, **SMALL)
    for number in range(COUNT):
        if number == COUNT // 2:
            partition.log.become_leader(3)
        partition.append(Record(b"value %d " % number * 8, timestamp=NOW), Producer(7, 0, number))
    partition.close()


def retained(directory: Path, settings: dict[str, int]) -> Partition:
    partition = open_partition(directory, CLEAN, Clock(), **{**SMALL, **settings})
    apply(partition.log, NOW)
    partition.log.remove_due(2**62)
    return partition


def found(partition: Partition) -> list[int]:
    records = list(partition.records())
    assert all(record.value == b"value %d " % record.offset * 8 for record in records)
    return [record.offset for record in records]


@pytest.fixture
def original(tmp_path: Path) -> Path:
    with Calls().patched():
        filled(tmp_path / "original")
    return tmp_path / "original"


def check(directory: Path, settings: dict[str, int], kept: list[int]) -> None:
    """After the next opening nothing that was not due is missing, and retention can do the rest."""
    partition = open_partition(directory, Known(recovery_point=COUNT), **SMALL)
    left = found(partition)
    assert left == list(range(left[0] if left else COUNT, COUNT))
    assert left[len(left) - len(kept) :] == kept
    assert partition.end_offset == COUNT
    assert not [name for name in content(directory) if name.endswith(".deleted")]
    partition.close()
    check_directory(directory)
    again = retained(directory, settings)
    assert found(again) == kept
    assert again.append(Record(b"next"), Producer(7, 0, COUNT)).first_offset == COUNT
    again.close()
    check_directory(directory)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("failure", [None, errno.EIO])
def test_at_any_call_of_retention(tmp_path: Path, original: Path, case: str, failure: int | None) -> None:
    settings = CASES[case]
    shutil.copytree(original, tmp_path / "whole")
    counted = Calls(error=failure)
    with counted.patched():
        whole = retained(tmp_path / "whole", settings)
    with Calls().patched():
        kept = found(whole)
        assert len(kept) < COUNT
        whole.close()
    assert counted.count > 20
    for stop in sample(counted.count, STRIDE, failure is None):
        directory = shutil.copytree(original, tmp_path / "t")
        calls = Calls(stop) if failure is None else Calls(stop, False, failure, False)
        partition = None
        with calls.patched(), contextlib.suppress(Crash, OSError, EngineError):
            partition = retained(directory, settings)
        if failure is not None and partition is not None:
            partition.log.abandon()
        del partition
        gc.collect()
        with Calls().patched():
            check(directory, settings, kept)
        assert calls.failed
        shutil.rmtree(directory)
