"""A disk that is full or broken: an append that fails leaves the partition as it was; what cannot be undone takes
it offline, with its data kept (KAFKA_CASES L, testAppendToTransactionIndexFailure).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from partition_bench import NOW, Bench, bases_of, batch, values
from verify import verify

from topicfs.engine.errors import ClosedError
from topicfs.engine.format.transaction_index import NOT_KNOWN, AbortedTransaction
from topicfs.engine.partition.partition import Partition
from topicfs.engine.record import Record
from topicfs.engine.segment import appender, transaction_index


class Disk:
    """os.pwrite that fails when it is told to.

    room      bytes that may still be written to files that end in `suffix`; None for no limit
    at_most   bytes that one call writes, None for all: a short write is no error
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room: int | None = None
        self.suffix = ".log"
        self.at_most: int | None = None
        self.real = os.pwrite
        monkeypatch.setattr(os, "pwrite", self.pwrite)

    def pwrite(self, fd: int, data: bytes, position: int) -> int:
        view = memoryview(data).cast("B")
        if self.at_most is not None:
            view = view[: self.at_most]
        if self.room is not None and os.readlink(f"/proc/self/fd/{fd}").endswith(self.suffix):
            if self.room == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            view = view[: self.room]
            self.room -= len(view)
        return self.real(fd, view, position)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def state(partition: Partition) -> tuple[object, ...]:
    """All that an append may change."""
    producers = partition.log.producers
    files = {path.name: path.stat().st_size for path in partition.directory.iterdir()}
    return (
        partition.offsets,
        partition.size,
        dict(producers.producers),
        producers.map_end_offset,
        producers.ongoing,
        producers.unreplicated,
        partition.log.epochs.entries,
        bases_of(partition),
        {name: size for name, size in files.items() if size},
        list(partition.records()),
    )


APPENDS: dict[str, Callable[[Partition], object]] = {
    "batch": lambda partition: partition.append_batch(batch(4, timestamp=NOW + 50)),
    "records": lambda partition: partition.append(values(4)),
    "lines": lambda partition: partition.append_lines(b"a\nb\nc\n"),
    "producer": lambda partition: partition.append_batch(batch(2, producer=5)),
    "transaction": lambda partition: partition.append_batch(batch(2, producer=6, transactional=True)),
    "marker": lambda partition: partition.end_transaction(1, 0, commit=False),
    "raw": lambda partition: partition.append_raw(
        batch(2, base=partition.end_offset) + batch(2, base=partition.end_offset + 5)
    ),
}


def prepared(bench: Bench) -> Partition:
    partition = bench.open(index_interval_bytes=0)
    partition.append_batch(batch(2))
    partition.append_batch(batch(2, producer=1, transactional=True))
    return partition


@pytest.mark.parametrize("room", [0, 1, 30, 75])
@pytest.mark.parametrize("kind", list(APPENDS))
def test_an_append_that_does_not_fit_the_disk_changes_nothing(
    bench: Bench, disk: Disk, kind: str, room: int
) -> None:
    partition = prepared(bench)
    before = state(partition)
    disk.room = room
    with pytest.raises(OSError, match="No space"):
        APPENDS[kind](partition)
    assert state(partition) == before
    verify(partition)
    disk.room = None
    end = partition.end_offset
    APPENDS[kind](partition)
    assert partition.end_offset > end


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_that_does_not_fit_the_disk_changes_nothing(bench: Bench, disk: Disk, suffix: str) -> None:
    partition = prepared(bench)
    before = state(partition)
    for room in (0, 3):
        disk.room, disk.suffix = room, suffix
        with pytest.raises(OSError, match="No space"):
            partition.append_batch(batch(2, timestamp=NOW + 50))
        assert state(partition) == before
    disk.room = None
    partition.append_batch(batch(2, timestamp=NOW + 50))
    assert partition.end_offset == 6


def test_what_cannot_be_cut_off_after_a_failed_append_is_overwritten_by_the_next(
    bench: Bench, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = bench.open(index_interval_bytes=0)
    partition.append_batch(batch(4))
    bench.warnings = True
    records = list(partition.records())
    disk.room, disk.suffix = 0, ".timeindex"
    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", broken_cut)
        for _ in range(2):
            # The log and the offset index have it, and keep it.
            with pytest.raises(OSError, match="No space"):
                partition.append_batch(batch(3, timestamp=NOW + 50))
        assert list(partition.records()) == records
        disk.room = None
        partition.append_batch(batch(2, timestamp=NOW + 50))
    assert [record.offset for record in partition.records()] == list(range(6))
    partition.append_batch(batch(1, timestamp=NOW + 51))
    verify(partition)


def broken_cut(fd: int, size: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("at_most", [1, 7, 64])
def test_writes_that_are_cut_short_are_carried_on(bench: Bench, disk: Disk, at_most: int) -> None:
    partition = bench.open(index_interval_bytes=0)
    disk.at_most = at_most
    for at in range(4):
        partition.append_batch(batch(3, timestamp=NOW + at))
    partition.append_batch(batch(1, producer=1, transactional=True, timestamp=NOW + 9))
    partition.end_transaction(1, 0, commit=False)
    assert [record.offset for record in partition.records()] == list(range(12))


def test_an_append_that_does_not_fit_a_second_time_still_changes_nothing(bench: Bench, disk: Disk) -> None:
    partition = prepared(bench)
    before = state(partition)
    for room in (10, 0, 20):
        disk.room = room
        with pytest.raises(OSError, match="No space"):
            partition.append_batch(batch(3))
    assert state(partition) == before


def test_a_refused_producer_may_try_again_after_the_disk_has_room(bench: Bench, disk: Disk) -> None:
    partition = bench.open()
    disk.room = 10
    with pytest.raises(OSError, match="No space"):
        partition.append_batch(batch(2, producer=1))
    disk.room = None
    assert not partition.append_batch(batch(2, producer=1)).duplicate
    assert partition.append_batch(batch(2, producer=1)).duplicate


# -- a roll ---------------------------------------------------------------------------------------------


def failing(monkeypatch: pytest.MonkeyPatch, target: str, suffix: str, mark: int = 0) -> None:
    """Let a function of os fail for paths with a suffix (and, for open, with these flags)."""
    real = getattr(os, target)

    def broken(path: object, *arguments: object, **named: object) -> object:
        flags = arguments[0] if arguments else 0
        if str(path).endswith(suffix) and (not mark or int(flags) & mark):  # type: ignore[call-overload]
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, *arguments, **named)

    monkeypatch.setattr(os, target, broken)


def test_a_roll_that_cannot_create_its_segment_leaves_the_log_usable(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = bench.open()
    partition.append_batch(batch(3))
    offsets = partition.offsets
    with monkeypatch.context() as patch:
        failing(patch, "open", ".log", os.O_CREAT)
        with pytest.raises(OSError, match="No space"):
            partition.roll()
    bench.exact = False
    assert (partition.offsets, bases_of(partition)) == (offsets, [0])
    partition.append_batch(batch(3))
    partition.roll()
    assert (partition.end_offset, bases_of(partition)) == (6, [0, 6])


def test_an_append_whose_roll_fails_writes_nothing_and_works_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = bench.open(segment_bytes=200)
    partition.append_batch(batch(8))
    with monkeypatch.context() as patch:
        failing(patch, "open", ".log", os.O_CREAT)
        with pytest.raises(OSError, match="No space"):
            partition.append_batch(batch(8))
    bench.exact = False
    assert partition.end_offset == 8
    assert partition.append_batch(batch(8)).first_offset == 8


def test_a_snapshot_that_cannot_be_written_refuses_the_append_of_its_roll_only(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = bench.open(segment_bytes=200)
    partition.append_batch(batch(8, producer=1))
    with monkeypatch.context() as patch:
        patch.setattr(
            Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left"))
        )
        with pytest.raises(OSError, match="No space"):
            partition.append_batch(batch(8, producer=1, sequence=8))
    assert partition.end_offset == 8
    assert [record.offset for record in partition.records()] == list(range(8))
    assert partition.read(8, 100).data == b""
    assert partition.append_batch(batch(8, producer=1, sequence=8)).first_offset == 8


def test_an_empty_segment_that_cannot_be_created_anew_takes_the_partition_offline(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = bench.open(segment_index_bytes=12)  # its time index has no room from the start
    with monkeypatch.context() as patch:
        failing(patch, "open", ".log", os.O_CREAT)
        with pytest.raises(OSError, match="No space"):
            partition.roll()
    with pytest.raises(ClosedError, match="No space"):
        partition.append_batch(batch(1))
    bench.warnings = True
    partition = bench.crash()
    partition.append_batch(batch(1))


# -- the transaction index ------------------------------------------------------------------------------


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("before", [0, 1])
def test_a_transaction_is_aborted_without_room_for_its_entry(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, before: int, crashes: bool
) -> None:
    partition = bench.open()
    bench.warnings = True
    for number in range(before):
        partition.append_batch(batch(2, producer=8, transactional=True, sequence=2 * number))
        partition.end_transaction(8, 0, commit=False)
    first = partition.end_offset
    partition.append_batch(batch(10, producer=1, transactional=True))
    partition.append(Record(b"behind"))
    active = partition.log.chain.active
    expected = [*active.transactions.all(), AbortedTransaction(1, first, first + 11, first + 12)]

    def full(*_: object) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(transaction_index, "allocate", full)
        patched.setattr(transaction_index, "write_atomically", full)
        partition.end_transaction(1, 0, commit=False)
        partition.append(Record(b"behind"))
        assert [record.value for record in partition.records()] == [b"behind"] * 2
        assert active.transactions.all() == expected
        assert bench.names(".index") == []
        assert [each.stat().st_size for each in bench.directory.glob("*.txnindex")] == [NOT_KNOWN]
    if crashes:
        partition = bench.crash()
    else:
        partition.append(Record(b"with room"))
        partition.close()
        bench.exact = False
        partition = bench.open()
    assert partition.log.chain.segments.first.transactions.all() == expected
    assert [record.value for record in partition.records()][:2] == [b"behind"] * 2


def test_without_room_for_its_marker_a_transaction_is_not_aborted_and_the_partition_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = bench.open()
    partition.append_batch(batch(10, producer=1, transactional=True))
    before = state(partition)

    def full(*_: object) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(transaction_index, "allocate", full)
        patched.setattr(appender, "allocate", full)
        with pytest.raises(OSError, match="No space"):
            partition.end_transaction(1, 0, commit=False)
        assert state(partition) == before
        partition.append_batch(batch(1))
    assert (partition.end_offset, partition.stable_offset) == (11, 0)
    partition.end_transaction(1, 0, commit=False)
    assert [record.offset for record in partition.records()] == [10]
    assert partition.log.chain.active.transactions.all() == [AbortedTransaction(1, 0, 11, 12)]


@pytest.mark.parametrize("room", [0, 20])
def test_a_transaction_index_that_cannot_be_written_takes_the_partition_offline_and_keeps_the_data(
    bench: Bench, disk: Disk, room: int
) -> None:
    partition = bench.open()
    bench.warnings = True
    partition.append_batch(batch(10, producer=1, transactional=True))
    disk.room, disk.suffix = room, ".txnindex"
    with pytest.raises(OSError, match="No space"):
        partition.end_transaction(1, 0, commit=False)
    assert (partition.end_offset, partition.stable_offset) == (11, 0)
    for refused in (
        lambda: partition.append_batch(batch(1)),
        lambda: partition.read(0, 100),
        partition.roll,
        lambda: partition.truncate_to(3),
        lambda: partition.delete_records(0),
        lambda: list(partition.records()),
    ):
        with pytest.raises(ClosedError, match="No space"):
            refused()
    disk.room = None
    partition = bench.crash()
    assert (partition.end_offset, partition.stable_offset) == (11, 11)
    assert partition.log.chain.active.transactions.all() == [AbortedTransaction(1, 0, 10, 11)]
    assert list(partition.records()) == []


def test_an_offline_partition_can_be_closed_and_is_recovered_then(bench: Bench, disk: Disk) -> None:
    partition = bench.open()
    bench.warnings = True
    partition.append_batch(batch(10, producer=1, transactional=True))
    disk.room, disk.suffix = 0, ".txnindex"
    with pytest.raises(OSError, match="No space"):
        partition.end_transaction(1, 0, commit=False)
    disk.room = None
    partition.close()
    assert bench.names(".snapshot") == []  # a stop that was not clean must not look like one
    partition = bench.crash()
    assert partition.log.chain.active.transactions.all() == [AbortedTransaction(1, 0, 10, 11)]


# -- removal --------------------------------------------------------------------------------------------


def test_an_error_while_files_are_removed_comes_out_and_the_next_run_tries_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = bench.open(file_delete_delay_ms=0)
    partition.append(Record(b"v"))
    partition.roll()
    partition.append(Record(b"v"))
    partition.restart_at(10)
    with monkeypatch.context() as patch:
        failing(patch, "unlink", ".log.deleted")
        with pytest.raises(OSError, match="No space"):
            partition.log.remove_due(bench.clock())
    assert bench.names(".log.deleted") != []
    partition.log.remove_due(bench.clock())
    assert bench.names(".deleted") == []
