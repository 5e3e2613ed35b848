"""A process that dies, or whose disk is full or broken, at each of the system calls of a fixed workload.

What the machine took over before the process died is there afterwards: nothing acknowledged may be missing, and an
append that was under way is there whole or not at all. Losing power is in tests/property: there, files are damaged.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
from directory_check import bases, check_directory, content, parse, path_of
from partition_opening import CLEAN, NOW, open_partition
from syscalls import Calls, Crash, sample

from topicfs.engine.errors import EngineError
from topicfs.engine.partition.loading import Known
from topicfs.engine.partition.offsets import Isolation
from topicfs.engine.partition.partition import Partition, Producer
from topicfs.engine.record import Record

SETTINGS = {"segment_bytes": 600, "index_interval_bytes": 100}
STRIDE = 7
"""A quick run stops at every seventh call."""


@dataclass
class Workload:
    """What was asked of a partition, and what it answered.

    acknowledged   values of the records whose append returned, by offset
    lowest         no truncation that began goes below this offset, as far as records up to now are concerned
    pending        values of the append that was under way
    closed         whether the stop came to its end
    """

    directory: Path
    acknowledged: dict[int, bytes] = field(default_factory=dict)
    lowest: int = 2**62
    pending: list[bytes] = field(default_factory=list)
    closed: bool = False
    point: int = 0
    partition: Partition | None = None

    def run(self, keep_on: bool = False) -> None:
        """The workload; with `keep_on`, what is refused is passed over."""
        refused = (OSError, EngineError) if keep_on else ()
        with contextlib.suppress(*refused):
            self.partition = open_partition(self.directory, Known(), **SETTINGS)
        if self.partition is None:
            return
        for step in self.steps(self.partition):
            try:
                step()
            except refused:
                pass
            finally:
                self.point = self.partition.recovery_point
            self.pending = []
        try:
            self.partition.close()
            self.closed = self.partition.log.failure is None
        except refused:
            pass

    def steps(self, partition: Partition) -> Iterator[Callable[[], object]]:
        for number in range(4):
            yield lambda number=number: self.append([b"plain %d" % number, b"too"])
        yield lambda: self.append([b"aborted"], Producer(7, 0, 0, True))
        yield partition.flush
        yield lambda: self.append([b"value " * 30])
        yield lambda: self.marker(commit=False)
        yield lambda: partition.log.become_leader(3)
        for number in range(6):
            yield lambda number=number: self.append([b"value %d " % number * 12])
        yield partition.roll
        yield lambda: self.append([b"behind the roll"] * 3)
        yield lambda: self.truncate(9)
        yield lambda: self.append([b"anew"] * 2, Producer(8, 0, 0))
        yield lambda: partition.log.remove_due(2**62)
        for number in range(4):
            yield lambda number=number: self.append([b"more %d " % number * 12])
        yield lambda: partition.flush(partition.end_offset - 2)
        yield lambda: self.append([b"open"], Producer(9, 0, 0, True))
        yield lambda: self.append([b"last"])

    def append(self, values: list[bytes], producer: Producer | None = None) -> None:
        assert self.partition is not None
        self.pending = values
        appended = self.partition.append([Record(value, timestamp=NOW) for value in values], producer)
        assert appended.last_offset - appended.first_offset == len(values) - 1
        self.acknowledged.update(enumerate(values, appended.first_offset))

    def marker(self, commit: bool) -> None:
        assert self.partition is not None
        self.partition.end_transaction(7, 0, commit)

    def truncate(self, offset: int) -> None:
        assert self.partition is not None
        self.lowest = offset
        self.kept = dict(self.acknowledged)
        self.acknowledged = {at: value for at, value in self.acknowledged.items() if at < offset}
        self.partition.truncate_to(offset)
        self.kept = {}

    kept: dict[int, bytes] = field(default_factory=dict)


def check_reopened(workload: Workload, known: Known) -> None:
    """Everything acknowledged is there; what is there beyond is the append, or the truncation, under way."""
    partition = open_partition(workload.directory, known, **SETTINGS)
    found = {r.offset: r.value for r in partition.records(isolation=Isolation.UNCOMMITTED)}
    missing = {at: value for at, value in workload.acknowledged.items() if found.get(at) != value}
    assert not missing, f"acknowledged, and gone: {missing}"
    more = {at: value for at, value in found.items() if at not in workload.acknowledged}
    expected = dict(workload.kept)
    for at, value in more.items():
        assert expected.get(at) == value or value in workload.pending, f"from nowhere: {at} {value!r}"
    if not workload.kept:
        assert list(more.values()) in ([], workload.pending)
    assert partition.start_offset <= partition.stable_offset <= partition.end_offset
    end = partition.end_offset
    partition.append(Record(b"after"))
    last = list(partition.records(end, isolation=Isolation.UNCOMMITTED))
    assert [r.value for r in last] == [b"after"]
    partition.log.remove_due(2**62)
    partition.close()
    check_directory(workload.directory)
    written = [
        (batch.base_offset, batch.last_offset)
        for base in bases(workload.directory)
        for batch in parse(path_of(workload.directory, base, ".log").read_bytes(), base)[0]
    ]
    assert all(a[1] + 1 == b[0] for a, b in pairwise(written)), "a hole"
    again = open_partition(workload.directory, CLEAN, **SETTINGS)
    assert again.end_offset == end + 1
    again.close()


def total_calls(root: Path) -> int:
    workload = Workload(root / "count-0")
    (root / "count-0").parent.mkdir(exist_ok=True)
    calls = Calls()
    with calls.patched():
        workload.run()
    assert workload.closed
    with Calls().patched():
        check_reopened(workload, CLEAN)
    shutil.rmtree(root / "count-0")
    return calls.count


@pytest.mark.parametrize("torn", [False, True])
def test_dying_at_any_call_loses_nothing_acknowledged(tmp_path: Path, torn: bool) -> None:
    total = total_calls(tmp_path)
    assert total > 100
    for stop in sample(total, STRIDE, 3 * torn):
        workload = Workload(tmp_path / f"t-{stop}")
        with Calls(stop, torn).patched(), contextlib.suppress(Crash):
            workload.run()
        assert not workload.closed
        # The dead process' descriptors, and nothing else of it.
        del workload.partition
        workload.partition = None
        gc.collect()
        for number, known in enumerate((Known(recovery_point=workload.point), Known())):
            copy = tmp_path / f"copy-{number}"
            shutil.copytree(workload.directory, copy) if workload.directory.exists() else copy.mkdir()
            with Calls().patched():
                check_reopened(
                    Workload(
                        copy,
                        workload.acknowledged,
                        workload.lowest,
                        workload.pending,
                        kept=workload.kept,
                    ),
                    known,
                )
            shutil.rmtree(copy)
        shutil.rmtree(workload.directory, ignore_errors=True)


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_an_error_at_any_call_is_reported_and_nothing_acknowledged_is_lost(
    tmp_path: Path, error: int, lasting: bool
) -> None:
    total = total_calls(tmp_path)
    for stop in sample(total, STRIDE, 2 * lasting + error):
        workload = Workload(tmp_path / f"t-{stop}")
        calls = Calls(stop, error == errno.ENOSPC, error, lasting)
        with calls.patched():
            workload.run(keep_on=True)
        workload.partition = None
        # What was refused may have been written all the same when it could not be taken back.
        workload.pending = []
        if not workload.directory.exists():
            continue
        with Calls().patched():
            check_after_errors(workload, CLEAN if workload.closed else Known(recovery_point=workload.point))
        shutil.rmtree(workload.directory)


def check_after_errors(workload: Workload, known: Known) -> None:
    partition = open_partition(workload.directory, known, **SETTINGS)
    found = {r.offset: r.value for r in partition.records(isolation=Isolation.UNCOMMITTED)}
    missing = {at: value for at, value in workload.acknowledged.items() if found.get(at) != value}
    assert not missing, f"acknowledged, and gone: {missing}"
    partition.append(Record(b"after"))
    partition.close()
    check_directory(workload.directory)


def kept(partition: Partition) -> tuple[list[bytes | None], list[bytes | None], tuple[tuple[int, int], ...]]:
    """What a recovery keeps: all values, those that readers see, and the leader epochs."""
    return (
        [record.value for record in partition.records(isolation=Isolation.UNCOMMITTED)],
        [record.value for record in partition.records()],
        partition.log.epochs.entries,
    )


def damaged(directory: Path, known: Known) -> object:
    """A directory in which recovery finds much to do. Gives what it keeps."""
    partition = open_partition(directory, **SETTINGS)
    for number in range(40):
        partition.append(Record(b"value %d" % number, timestamp=NOW), Producer(7, 0, number, True))
        if number % 5 == 4:
            partition.end_transaction(7, 0, commit=number % 2 == 0)
        if number % 8 == 3:
            partition.log.become_leader(number)
    partition.log.abandon()
    middle = bases(directory)[-3]
    path = path_of(directory, middle, ".log")
    keep = parse(path.read_bytes(), middle)[0][:-1]
    path.write_bytes(path.read_bytes()[:-3])
    first = bases(directory)[0]
    path_of(directory, first, ".index").unlink()
    (directory / "leader-epoch-checkpoint").write_bytes(b"garbage")
    for name in ("1.log.cleaned", "1.log.swap", "5.index.deleted"):
        base, _, suffix = name.partition(".")
        (directory / f"{int(base):020d}.{suffix}").write_bytes(b"left over")
    path_of(directory, 999, ".index").write_bytes(b"orphan")
    expected = open_partition(shutil.copytree(directory, directory.parent / "expected-0"), known, **SETTINGS)
    values = kept(expected)
    assert expected.end_offset == keep[-1].last_offset + 1
    expected.close()
    shutil.rmtree(directory.parent / "expected-0")
    return values


@pytest.mark.parametrize("point", [0, 10])
def test_dying_at_any_call_of_recovery_leaves_what_a_second_recovery_completes(
    tmp_path: Path, point: int
) -> None:
    known = Known(recovery_point=point)
    with Calls().patched():
        values = damaged(tmp_path / "t-0", known)
    shutil.copytree(tmp_path / "t-0", tmp_path / "counted-0")
    counted = Calls()
    with counted.patched():
        open_partition(tmp_path / "counted-0", known, **SETTINGS)
    assert counted.count > 30
    for stop in sample(counted.count, STRIDE):
        directory = shutil.copytree(tmp_path / "t-0", tmp_path / "copy-0")
        calls = Calls(stop)
        with calls.patched(), contextlib.suppress(Crash):
            open_partition(directory, known, **SETTINGS)
        assert calls.failed
        gc.collect()
        with Calls().patched():
            partition = open_partition(directory, known, **SETTINGS)
            assert kept(partition) == values
            partition.log.remove_due(2**62)
            partition.close()
        check_directory(directory)
        assert not [name for name in content(directory) if name.endswith(".deleted")]
        shutil.rmtree(directory)
