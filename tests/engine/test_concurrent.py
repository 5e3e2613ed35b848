"""Readers beside an appender, flushes and truncation, in threads that switch as often as possible.

KAFKA_CASES K: concurrent changes of the high watermark never let undecided data show
(testReadCommittedWithConcurrentHighWatermarkUpdates).
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
from partition_bench import NOW, Bench, batch
from patience import PATIENCE_S, ended
from plain_batches import HEADER, crc_is_right

from topicfs.engine.errors import ClosedError, OffsetOutOfRangeError
from topicfs.engine.partition.offsets import Isolation
from topicfs.engine.record import Record

COMMITTED, UNCOMMITTED = Isolation.COMMITTED, Isolation.UNCOMMITTED


@pytest.fixture(autouse=True)
def _switching() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def beside(work: Callable[[], None], *others: Callable[[], None]) -> None:
    """Run `others` again and again, each in a thread, until `work` is done once. Raises what any of them raised."""
    done = threading.Event()
    errors: list[BaseException] = []

    def repeat(other: Callable[[], None]) -> None:
        try:
            while not done.is_set():
                other()
            other()
        except BaseException as error:  # noqa: BLE001 - it is raised again below, in the test's thread
            errors.append(error)

    threads = [threading.Thread(target=repeat, args=(other,)) for other in others]
    for thread in threads:
        thread.start()
    try:
        work()
    finally:
        done.set()
        for thread in threads:
            thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    if errors:
        raise errors[0]


def whole_batches(data: bytes) -> list[tuple[int, int]]:
    """Base and last offset of each batch; a checksum that is wrong fails the test."""
    found, at = [], 0
    while at < len(data):
        base, size, _, _, _, _, delta, *_ = HEADER.unpack_from(data, at)
        part = data[at : at + 12 + size]
        assert len(part) == 12 + size, "a torn read"
        assert crc_is_right(part), "a torn read"
        found.append((base, base + delta))
        at += 12 + size
    return found


def test_readers_see_whole_batches_in_order_and_nothing_beyond_the_end(bench: Bench) -> None:
    partition = bench.open(segment_bytes=3000, index_interval_bytes=100)

    def append() -> None:
        for number in range(400):
            partition.append_batch(batch(number % 3 + 1, timestamp=NOW + number))

    def fetch() -> None:
        offset = 0
        end = partition.end_offset
        while offset < end:
            # 100 000 bytes hold any segment: a batch that is cut off would have been published too early.
            parts = whole_batches(partition.read(offset, 100_000, UNCOMMITTED).data)
            assert parts[0][0] == offset
            assert all(last + 1 == base for (_, last), (base, _) in itertools.pairwise(parts))
            offset = parts[-1][1] + 1
        assert offset >= end

    def walk() -> None:
        end = partition.end_offset
        offsets = [record.offset for record in partition.records()]
        assert offsets == list(range(len(offsets)))
        assert len(offsets) >= end

    def look_up() -> None:
        end = partition.end_offset
        found = partition.offset_for_timestamp(NOW + 200)
        assert found is None or found.timestamp == NOW + 200
        latest = partition.offset_for_timestamp(-1)
        assert latest is not None
        assert latest.offset >= end

    beside(append, fetch, walk, look_up)
    assert [record.offset for record in partition.records()] == list(range(partition.end_offset))


def test_a_reader_at_the_end_is_never_out_of_range_while_segments_roll(bench: Bench) -> None:
    partition = bench.open()

    def roll() -> None:
        for number in range(150):
            partition.roll()
            if number % 2:
                partition.append_batch(batch(1))

    def tail() -> None:
        end = partition.end_offset
        assert partition.read(end, 1000).offset == end
        assert partition.read(0, 1000).segment_base == 0

    beside(roll, tail, tail)


def test_undecided_and_aborted_records_never_show(bench: Bench) -> None:
    partition = bench.open(lone=False, segment_bytes=2000, index_interval_bytes=100)
    aborted: set[int] = set()
    decided: set[int] = set()  # offsets whose transaction has its marker in the log

    def append() -> None:
        for number in range(120):
            producer, commit = number % 3, number % 2 == 0
            first = partition.end_offset
            partition.append_batch(batch(2, producer=producer, sequence=number // 3 * 2, transactional=True))
            if not commit:
                aborted.update((first, first + 1))
            decided.update((first, first + 1))
            partition.end_transaction(producer, 0, commit)

    def raise_mark() -> None:
        partition.log.raise_high_watermark(partition.end_offset)

    def read() -> None:
        for record in partition.records():
            assert record.offset not in aborted
            assert record.offset in decided

    def fetch() -> None:
        offset = 0
        while True:
            fetched = partition.read(offset, 1000, COMMITTED)
            stable = partition.stable_offset
            parts = whole_batches(fetched.data[: _whole(fetched.data)])
            if not parts:
                return
            assert parts[-1][1] < stable
            named = {(entry.first_offset, entry.last_offset) for entry in fetched.aborted}
            for base, last in parts:
                if base in aborted:
                    assert any(first <= base and last <= end for first, end in named)
            offset = parts[-1][1] + 1

    beside(append, raise_mark, read, fetch)
    partition.log.raise_high_watermark(partition.end_offset)
    assert [record.offset for record in partition.records()] == sorted(decided - aborted)


def _whole(data: bytes) -> int:
    """How many bytes of a slice are whole batches."""
    at = 0
    while at + HEADER.size <= len(data):
        end = at + 12 + HEADER.unpack_from(data, at)[1]
        if end > len(data):
            break
        at = end
    return at


def test_offsets_are_in_order_at_every_moment(bench: Bench) -> None:
    partition = bench.open(segment_bytes=1000)

    def append() -> None:
        for number in range(300):
            partition.append_batch(batch(2))
            if number % 20 == 19:
                partition.delete_records(partition.end_offset - 5)

    def look() -> None:
        for _ in range(20):
            offsets = partition.offsets
            assert offsets.start <= offsets.stable <= offsets.high_watermark <= offsets.end
            assert offsets.active_base <= offsets.end

    beside(append, look, look)


def test_flushes_beside_appends_and_rolls_keep_the_partition_online_and_its_indexes_right(
    bench: Bench,
) -> None:
    partition = bench.open(segment_bytes=400, index_interval_bytes=0)

    def append() -> None:
        for number in range(500):
            partition.append_batch(batch(1, timestamp=NOW + number))

    def flush() -> None:
        end = partition.end_offset
        partition.flush()
        assert partition.recovery_point >= end

    beside(append, flush, partition.log.flush_sealed)
    assert partition.log.failure is None  # the check of each test looks at every index entry


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex"])
@pytest.mark.parametrize("then_rolls", [False, True])
def test_an_append_while_a_flush_opens_a_file_loses_no_index_entry(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, suffix: str, then_rolls: bool
) -> None:
    partition = bench.open(index_interval_bytes=0)
    partition.append_batch(batch(1))
    partition.roll()  # the new segment has no index files yet
    partition.append_batch(batch(1))
    if suffix == ".log":
        # Its descriptor was given up meanwhile: a flush goes by the one that an appender has.
        log = partition.log.chain.active.log.file
        log._descriptors.forget(log)
    flushing = threading.get_ident()
    real = os.open
    waiting = [True]
    appending: list[threading.Thread] = []

    def append_meanwhile() -> None:
        partition.append_batch(batch(1, timestamp=NOW + 1))
        if then_rolls:
            partition.roll()
            partition.append_batch(batch(1))

    def opened(path: object, flags: int, *mode: object, **named: object) -> int:
        if waiting and str(path).endswith(f"1{suffix}") and threading.get_ident() == flushing:
            waiting.clear()
            thread = threading.Thread(target=append_meanwhile, daemon=True)
            thread.start()
            # An append that waits for the lock until the file is open is as good.
            thread.join(0.2)
            appending.append(thread)
        return real(path, flags, *mode, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", opened)
        partition.flush()
    ended(*appending)
    assert not waiting, "the flush did not open the file"
    assert partition.log.failure is None
    partition.append_batch(batch(1, timestamp=NOW + 2))


def test_a_batch_appended_behind_a_gap_while_the_gap_is_read_is_not_an_error(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = bench.open()
    partition.append_batch(batch(3))
    partition.append_batch(batch(5))
    bench.truncate(5)  # cuts the second batch: offsets 3 and 4 are a gap
    log = partition.log.chain.active.log
    real = type(log).read
    pending = [batch(2)]

    def read(self: object, position: int, length: int) -> bytes:
        if pending:
            partition.append_batch(pending.pop())
        return real(log, position, length)

    with monkeypatch.context() as patch:
        patch.setattr(type(log), "read", read)
        assert partition.read(4, 1000).data == b""
    assert whole_batches(partition.read(4, 1000).data) == [(5, 6)]


def test_readers_beside_truncation_and_new_appends_see_no_torn_batch(bench: Bench) -> None:
    partition = bench.open(segment_bytes=1500, index_interval_bytes=100, file_delete_delay_ms=0)
    bench.exact = False

    def cut_and_append() -> None:
        for number in range(150):
            partition.append([Record(b"%d" % number, timestamp=NOW)] * (number % 4 + 1))
            if number % 5 == 4:
                partition.truncate_to(partition.end_offset * 2 // 3)
                partition.log.remove_due(bench.clock.advance(1))

    def fetch() -> None:
        offset = 0
        while True:
            try:
                data = partition.read(offset, 100_000, UNCOMMITTED).data
            except OffsetOutOfRangeError:
                return
            parts = whole_batches(data[: _whole(data)])
            if not parts:
                return
            offset = parts[-1][1] + 1

    beside(cut_and_append, fetch, fetch)


def test_readers_beside_removal_get_their_records_or_are_out_of_range(bench: Bench) -> None:
    partition = bench.open(file_delete_delay_ms=0)

    def restart() -> None:
        for number in range(60):
            partition.append_batch(batch(3))
            partition.roll()
            partition.append_batch(batch(3))
            partition.restart_at(number * 10)
            partition.log.remove_due(bench.clock.advance(1))
        partition.append_batch(batch(3))

    def read() -> None:
        start = partition.start_offset
        try:
            offsets = [record.offset for record in partition.records(start)]
        except OffsetOutOfRangeError:
            return
        assert offsets == list(range(start, start + len(offsets)))

    def fetch() -> None:
        try:
            whole_batches(partition.read(partition.start_offset, 100_000).data)
            partition.offset_for_timestamp(NOW)
        except OffsetOutOfRangeError:
            return

    beside(restart, read, fetch)


@pytest.mark.parametrize("_round", range(5))
def test_a_close_beside_flushes_does_not_hang(bench: Bench, _round: int) -> None:
    partition = bench.open()
    started = threading.Event()
    refused: list[ClosedError] = []

    def flush() -> None:
        try:
            for _ in range(1000):
                partition.append_batch(batch(1))
                partition.flush()
                started.set()
        except ClosedError as error:
            refused.append(error)

    thread = threading.Thread(target=flush)
    thread.start()
    started.wait(PATIENCE_S)
    partition.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "close and flush wait for each other"
    assert refused
    bench.reopen_closed(partition.end_offset)
