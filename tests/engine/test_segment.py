"""A segment: appending, reading, rolling and sealing, its files and its pins. What cuts it is in test_segment_cut.

Cases that do not apply here: an unknown max position and positions at the end offset
(testReadWhenNoMaxPosition), leader epochs and transaction indexes in recovery
(testRecoveryRebuildsEpochCache, testRecoverTransactionIndex) are the partition's, which gets every recovered
batch through `visit`. Copying from another file (testAppendFromFile) has no counterpart: an append takes
bytes. Indexes are never preallocated, so none is re-extended. Truncation takes an offset, not a size: none
can be larger than the file (testTruncate*).
"""

from __future__ import annotations

import os
import random
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from patience import ended
from segment_bench import MAX_INT32, SegmentBench, add, bases, check_lookups, segment_bench
from test_scan import batch, table_of

from topicfs.engine.errors import (
    ClosedError,
    CorruptBatchError,
    CorruptSegmentError,
    InvalidOffsetError,
    OffsetOutOfRangeError,
    OffsetOverflowError,
    RecordBatchTooLargeError,
)
from topicfs.engine.kernels.scan import BASE_OFFSET, POSITION, SIZE
from topicfs.engine.segment.segment import Segment
from topicfs.engine.segment.settings import SegmentSettings


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[SegmentBench]:
    yield from segment_bench(tmp_path)


# -- appending ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "last"),
    [(0, -(2**31)), (0, 2**31), (1, 0), (100, 10), (2**31, 0), (-(2**31), 0), (2**31, 2**32)],
)
def test_append_refuses_a_last_offset_that_does_not_fit_the_base(
    bench: SegmentBench, base: int, last: int
) -> None:
    segment = bench.create(base)
    data = batch(0)
    table = table_of(data)
    table[0, 2] = table[0, 3] = last
    with pytest.raises(OffsetOverflowError):
        segment.append(data, table)
    assert (segment.size, segment.path.stat().st_size) == (0, 0)


def test_append_takes_the_largest_offset_that_fits(bench: SegmentBench) -> None:
    segment = bench.create(7)
    add(segment, batch(7), batch(7 + MAX_INT32))
    assert segment.next_offset() == 8 + MAX_INT32


def test_one_bad_batch_refuses_the_whole_append(bench: SegmentBench) -> None:
    segment = bench.create(0)
    with pytest.raises(OffsetOverflowError):
        add(segment, batch(0), batch(2**31))
    assert (segment.size, bases(segment)) == (0, [])


def test_append_that_exceeds_31_bits_of_size_is_refused(
    bench: SegmentBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = bench.create()
    data = batch(0)
    segment.log.size = MAX_INT32 - len(data) + 1
    with pytest.raises(RecordBatchTooLargeError):
        segment.append(data, table_of(data))
    segment.log.size = 0


def test_a_table_for_other_bytes_is_refused(bench: SegmentBench) -> None:
    segment = bench.create()
    with pytest.raises(ValueError, match="batch table"):
        segment.append(batch(0) + b"?", table_of(batch(0)))
    assert segment.size == 0


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)])
def test_append_takes_any_buffer(bench: SegmentBench, kind) -> None:  # type: ignore[no-untyped-def]
    segment = bench.create()
    data = batch(0)
    segment.append(kind(data), table_of(data))
    assert segment.log.read(0, len(data)) == data


def test_a_failed_write_changes_nothing(bench: SegmentBench, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = bench.create(index_interval_bytes=0)
    add(segment, batch(0, [5]))
    add(segment, batch(1, [6]))
    size, pwrite = segment.size, os.pwrite
    calls: list[int] = []

    def failing_at(call: int) -> Callable[[int, memoryview, int], int]:
        def fail(fd: int, data: memoryview, at: int) -> int:
            calls.append(at)
            if len(calls) == call:
                raise OSError(28, "no space left")
            return pwrite(fd, data, at)

        return fail

    for call in (1, 2, 3):
        calls.clear()
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", failing_at(call))
            with pytest.raises(OSError, match="no space"):
                add(segment, batch(2, [9]), batch(3, [10]))
        assert (segment.size, segment.path.stat().st_size, bases(segment)) == (size, size, [0, 1])
        assert (segment.offset_index.entries, segment.time_index.entries) == (1, 1)
        assert segment.max_timestamp == 6
    add(segment, batch(2, [7]))
    assert bases(segment) == [0, 1, 2]
    check_lookups(segment)


def test_a_short_write_is_cut_off_again(bench: SegmentBench, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = bench.create()
    add(segment, batch(0))
    size, pwrite = segment.size, os.pwrite
    done = []

    def short(fd: int, data: memoryview, at: int) -> int:
        if done:
            raise OSError(28, "no space left")
        done.append(at)
        return pwrite(fd, data[:10], at)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", short)
        with pytest.raises(OSError, match="no space"):
            add(segment, batch(1))
    assert segment.path.stat().st_size == size


def test_an_entry_names_a_batchs_last_offset_and_its_start(bench: SegmentBench) -> None:
    segment = bench.create(10, index_interval_bytes=0)
    first, second = batch(10, [5, 9, 7]), batch(13, [6, 8])
    add(segment, first)
    assert segment.offset_index.entries == 0
    add(segment, second)
    assert segment.offset_index.entry(0) == (14, len(first))
    assert segment.time_index.entry(0) == (9, 12)


def test_several_batches_of_one_append_get_an_entry_each(bench: SegmentBench) -> None:
    segment = bench.create(0, index_interval_bytes=100)
    data = [batch(number, [1000 + number], value=bytes(200)) for number in range(4)]
    add(segment, *data)
    size = len(data[0])
    assert [segment.offset_index.entry(n) for n in range(3)] == [(1, size), (2, 2 * size), (3, 3 * size)]
    assert [segment.time_index.entry(n) for n in range(3)] == [(1001, 1), (1002, 2), (1003, 3)]


def test_an_entry_comes_only_when_more_than_the_interval_lies_before_the_batch(bench: SegmentBench) -> None:
    size = len(batch(0))
    exact = bench.create(0, index_interval_bytes=2 * size)
    for number in range(4):
        add(exact, batch(number))
    assert exact.offset_index.entries == 1
    assert exact.offset_index.entry(0) == (3, 3 * size)


def test_an_index_entry_that_would_not_rise_refuses_the_append(bench: SegmentBench) -> None:
    segment = bench.create(0, index_interval_bytes=0)
    add(segment, batch(0), batch(7))
    size = segment.size
    with pytest.raises(InvalidOffsetError):
        add(segment, batch(7))
    assert (segment.size, segment.path.stat().st_size) == (size, size)


def test_a_full_index_gets_no_more_entries_and_lookups_stay_right(bench: SegmentBench) -> None:
    segment = bench.create(0, index_interval_bytes=0, max_index_bytes=36)
    add(segment, *(batch(number, [number]) for number in range(20)))
    assert (segment.offset_index.entries, segment.time_index.entries) == (4, 2)
    assert segment.should_roll(1, 1, 20, 0, 10**6, 10**9)
    check_lookups(segment)


# -- reading --------------------------------------------------------------------------------------------


def test_nothing_is_found_in_an_empty_segment(bench: SegmentBench) -> None:
    segment = bench.create(40)
    assert segment.position_of(40) is None
    assert segment.next_offset() == 40
    assert list(segment.log.batches()) == []
    assert segment.first_batch_timestamp() is None
    assert segment.finder.offset_by_timestamp(0, 40) is None
    assert segment.log.read(0, 100) == b""
    assert (segment.max_timestamp, segment.offset_of_max_timestamp) == (-1, 40)


def test_an_offset_leads_to_the_first_batch_that_reaches_it(bench: SegmentBench) -> None:
    segment = bench.create(40)
    before, behind = batch(50, [1, 1, 1]), batch(60, [1, 1])
    add(segment, before, behind)
    first = (0, len(before), 50, 52)
    second = (len(before), len(behind), 60, 61)
    assert segment.position_of(41) == segment.position_of(50) == segment.position_of(52) == first
    assert segment.position_of(53) == segment.position_of(61) == second
    assert segment.position_of(50, len(before)) == second
    assert segment.position_of(62) is None


def test_lookups_are_right_in_long_segments_with_gaps_and_batches_beyond_the_interval(
    bench: SegmentBench,
) -> None:
    chosen = random.Random(3)
    segment = bench.create(100, index_interval_bytes=256, max_index_bytes=100_000)
    offset, timestamp = 100, 1000
    for _ in range(300):
        timestamp += chosen.randrange(5)
        count = chosen.randrange(1, 4)
        add(segment, batch(offset, [timestamp] * count, value=bytes(chosen.choice((1, 50, 3000)))))
        offset += count + chosen.choice((0, 0, 7))
    check_lookups(segment)
    check_lookups(bench.reopen(segment))


def test_reads_end_where_the_segment_ends(bench: SegmentBench) -> None:
    segment = bench.create()
    data = batch(0)
    add(segment, data)
    assert segment.log.read(0, 10**9) == data
    assert segment.log.read(10, 5) == data[10:15]
    assert segment.log.read(len(data), 5) == b""
    into = bytearray(len(data) + 3)
    assert segment.log.read_into(2, memoryview(into)) == len(data) - 2
    assert into[: len(data) - 2] == data[2:]
    with pytest.raises(OffsetOutOfRangeError):
        segment.log.read(len(data) + 1, 1)
    with pytest.raises(ValueError, match="negative"):
        segment.log.read(-1, 5)


def test_a_file_cut_short_behind_our_back_is_an_error(bench: SegmentBench) -> None:
    segment = bench.create()
    add(segment, batch(0), batch(1))
    os.truncate(segment.path, segment.size - 5)
    with pytest.raises(CorruptSegmentError, match="cut short"):
        segment.log.read(0, segment.size)


def test_the_batches_before_a_cut_that_somebody_else_made_can_be_read(bench: SegmentBench) -> None:
    """regression: whatever was read together with what is missing was missing too, up to a MiB"""
    segment = bench.create(index_interval_bytes=10**6)
    add(segment, *(batch(number) for number in range(10)))
    one = segment.size // 10
    os.truncate(segment.path, 6 * one + 20)
    read: list[int] = []

    def walk() -> None:
        for _, table in segment.log.batches():
            read.extend(table[:, BASE_OFFSET].tolist())

    with pytest.raises(CorruptBatchError, match=f"position {6 * one} "):
        walk()
    assert read == list(range(6))
    assert segment.position_of(5) == (5 * one, one, 5, 5)
    with pytest.raises(CorruptBatchError, match="position"):
        segment.position_of(8)


def test_a_file_above_31_bits_cannot_be_opened(bench: SegmentBench) -> None:
    segment = bench.create()
    segment.close()
    os.truncate(segment.path, 2**31)
    with pytest.raises(CorruptSegmentError, match="at most 2147483647"):
        _ = bench.load(segment).size
    with pytest.raises(CorruptSegmentError):
        bench.load(segment).recover(lambda *_: None)


def test_batches_come_whole_whatever_the_chunk(bench: SegmentBench) -> None:
    segment = bench.create()
    data = [batch(number, value=bytes(length)) for number, length in enumerate((1, 5000, 3, 3, 90, 700))]
    add(segment, *data)
    for chunk in (1, 20, 64, 200, 1000, 10**6):
        pieces = [
            buffer[row[POSITION] - table[0, POSITION] :][: row[SIZE]].tobytes()
            for buffer, table in segment.log.batches(chunk=chunk)
            for row in table.tolist()
        ]
        assert pieces == data
    assert [len(table) for _, table in segment.log.batches(len(data[0]), len(data[0]) + len(data[1]))] == [1]


def test_more_batches_than_a_table_holds_come_in_several_tables(bench: SegmentBench) -> None:
    segment = bench.create(index_interval_bytes=10**6)
    one = bytearray(batch(0, [1], value=b""))
    data = b"".join(struct.pack(">q", number) + bytes(one[8:]) for number in range(20_000))
    segment.append(data, table_of(data, 20_000))
    seen = [int(base) for _, table in segment.log.batches(chunk=1 << 22) for base in table[:, BASE_OFFSET]]
    assert seen == list(range(20_000))


def test_a_flipped_byte_is_an_error_that_names_file_and_position(bench: SegmentBench) -> None:
    segment = bench.create()
    first, second = batch(0), batch(1)
    add(segment, first, second)
    with open(segment.path, "r+b") as file:
        file.seek(len(first) + 65)
        file.write(b"\xff")
    with pytest.raises(CorruptBatchError, match=rf"00\.log: batch at position {len(first)} of"):
        list(segment.log.batches())
    assert len(list(segment.log.batches(check=False))) == 1


def test_a_partial_batch_at_the_end_is_corrupt_unless_it_is_expected(bench: SegmentBench) -> None:
    segment = bench.create()
    add(segment, batch(0), batch(1))
    segment.close()
    for tail in (batch(2)[:-1], batch(2)[:30], b"abc"):
        with open(segment.path, "ab") as file:
            file.truncate(2 * len(batch(0)))
            file.write(tail)
        again = bench.load(segment)
        assert [len(table) for _, table in again.log.batches(partial_ok=True)] == [2]
        with pytest.raises(CorruptBatchError):
            list(again.log.batches())
        with pytest.raises(CorruptBatchError):
            again.position_of(2)


def test_a_huge_size_field_does_not_make_a_huge_buffer(bench: SegmentBench) -> None:
    segment = bench.create()
    segment.close()
    data = bytearray(batch(0))
    data[8:12] = struct.pack(">i", 2**31 - 20)
    segment.path.write_bytes(data)
    with pytest.raises(CorruptBatchError):
        list(bench.load(segment).log.batches())


def test_garbage_in_the_middle_is_an_error_for_lookups(bench: SegmentBench) -> None:
    segment = bench.create()
    segment.close()
    segment.path.write_bytes(batch(0) + bytes(200))
    with pytest.raises(CorruptBatchError, match="size"):
        bench.load(segment).position_of(5)


@pytest.mark.parametrize("position", [-5, 10**6])
def test_an_index_entry_outside_the_file_makes_a_lookup_longer_not_wrong(
    bench: SegmentBench, position: int
) -> None:
    segment = bench.create()
    data = batch(0)
    add(segment, data, batch(1))
    segment.close()
    Path(segment.offset_index.path).write_bytes(struct.pack(">ii", 0, position))
    assert bench.load(segment).position_of(1) == (len(data), len(batch(1)), 1, 1)


def test_what_the_index_led_to_behind_damage_is_found_when_it_was_made_anew(bench: SegmentBench) -> None:
    """regression: the new index had its next entry later, and nothing led over damage to what lay before that"""
    segment = bench.create(index_interval_bytes=200)
    data = [batch(2 * number, [1, 1]) for number in range(20)]
    for each in data:
        add(segment, each)
    size = len(data[0])
    index = segment.finder.offset_index
    named = [index.entry(at)[1] // size for at in range(index.entries)]
    segment.close()
    damaged = bytearray(b"".join(data))
    # The batch that the third entry names, and the one before it: from there on nobody knows where batches begin.
    damaged[size * (named[2] - 1) + 20 : size * named[2] + 30] = bytes(size + 10)
    segment.path.write_bytes(damaged)
    again = bench.load(segment)
    for _ in range(2):
        assert again.position_of(2 * named[3]) == (size * named[3], size, 2 * named[3], 2 * named[3] + 1)
    assert again.finder.mended


def test_the_record_at_or_after_a_time_is_found(bench: SegmentBench) -> None:
    segment = bench.create(40)
    for offset in range(40, 50):
        add(segment, batch(offset, [10 * offset], leader_epoch=offset))
    expected = {420: 42, 421: 43, 430: 43, 431: 44, 491: None, 401: 41, 399: 40}
    for timestamp, offset in expected.items():
        found = segment.finder.offset_by_timestamp(timestamp, 40)
        assert found == (None if offset is None else (10 * offset, offset, offset))


def test_the_search_by_time_looks_into_batches_and_respects_the_start(bench: SegmentBench) -> None:
    segment = bench.create(0)
    add(segment, batch(0, [100, 300, 200]), batch(3, [150, 250]))
    assert segment.finder.offset_by_timestamp(101, 0) == (300, 1, 0)
    assert segment.finder.offset_by_timestamp(101, 2) == (200, 2, 0)
    assert segment.finder.offset_by_timestamp(201, 2) == (250, 4, 0)
    assert segment.finder.offset_by_timestamp(301, 0) is None


def test_next_offset_is_behind_the_last_batch(bench: SegmentBench) -> None:
    segment = bench.create(50)
    assert segment.next_offset() == 50
    add(segment, batch(50, [1, 1, 1]))
    assert segment.next_offset() == bench.reopen(segment).next_offset() == 53


def test_next_offset_is_right_behind_index_entries(bench: SegmentBench) -> None:
    segment = bench.create(50, index_interval_bytes=0)
    for offset in range(50, 60):
        add(segment, batch(offset))
    assert bench.reopen(segment).next_offset() == 60


def test_the_first_batchs_timestamp_is_its_largest(bench: SegmentBench) -> None:
    segment = bench.create()
    assert segment.first_batch_timestamp() is None
    add(segment, batch(0, [1000, 1007, 1003]), batch(3, [2000]))
    assert segment.first_batch_timestamp() == bench.reopen(segment).first_batch_timestamp() == 1007


def test_the_largest_timestamp_is_the_files_time_when_batches_have_none(bench: SegmentBench) -> None:
    segment = bench.create()
    add(segment, batch(0, [-1]))
    os.utime(segment.path, ns=(0, 5_000_000_000))
    assert (segment.max_timestamp, segment.largest_timestamp) == (-1, 5000)
    add(segment, batch(1, [77]))
    assert segment.largest_timestamp == 77


# -- rolling and sealing --------------------------------------------------------------------------------


def test_a_segment_rolls_when_the_append_would_exceed_its_size(bench: SegmentBench) -> None:
    segment = bench.create(0)
    add(segment, batch(0))
    assert not segment.should_roll(100, 1000, 1, 0, segment.size + 100, 10**9)
    assert segment.should_roll(101, 1000, 1, 0, segment.size + 100, 10**9)


def test_a_segment_rolls_by_the_timestamps_of_its_batches(bench: SegmentBench) -> None:
    segment = bench.create(0)
    add(segment, batch(0, [1000]))
    late = bench.clock.ms + 10**9
    assert not segment.should_roll(1, 1500, 1, late, 10**6, 500)
    assert segment.should_roll(1, 1501, 1, late, 10**6, 500)


def test_a_segment_without_timestamps_rolls_by_the_clock(bench: SegmentBench) -> None:
    segment = bench.create(0)
    add(segment, batch(0, [-1]))
    assert not segment.should_roll(1, -1, 1, bench.clock.ms + 500, 10**6, 500)
    assert segment.should_roll(1, -1, 1, bench.clock.ms + 501, 10**6, 500)


def test_an_empty_segment_does_not_roll_by_time(bench: SegmentBench) -> None:
    segment = bench.create(0)
    assert not segment.should_roll(1, 10**12, 1, bench.clock.ms + 10**9, 10**6, 500)


def test_jitter_rolls_earlier_by_less_than_its_maximum(bench: SegmentBench) -> None:
    segment = bench.create(0, jitter_ms=100)
    add(segment, batch(0, [1000]))
    segment.jitter = 250  # modulo 100 is 50
    assert not segment.should_roll(1, 1450, 1, 0, 10**6, 500)
    assert segment.should_roll(1, 1451, 1, 0, 10**6, 500)
    segment.jitter = 9  # the jitter is at most segment.ms
    assert not segment.should_roll(1, 1001, 1, 0, 10**6, 4)
    assert segment.should_roll(1, 1004, 1, 0, 10**6, 4)


@pytest.mark.parametrize(
    ("offset", "rolls"), [(99, True), (100, False), (100 + MAX_INT32, False), (101 + MAX_INT32, True)]
)
def test_a_segment_rolls_for_offsets_that_do_not_fit(bench: SegmentBench, offset: int, rolls: bool) -> None:
    assert bench.create(100).should_roll(1, 0, offset, 0, 10**6, 500) is rolls


def test_a_segment_rolls_when_an_index_is_full(bench: SegmentBench) -> None:
    segment = bench.create(0, index_interval_bytes=0, max_index_bytes=16)
    add(segment, batch(0, [-1]), batch(1, [-1]))
    segment.time_index.max_bytes = 10**6
    assert not segment.should_roll(1, 0, 3, 0, 10**6, 500)
    add(segment, batch(2, [-1]))
    assert segment.offset_index.is_full
    assert segment.should_roll(1, 0, 3, 0, 10**6, 500)


def test_sealing_adds_the_final_time_entry_and_trims(bench: SegmentBench) -> None:
    segment = bench.create(0, index_interval_bytes=10**6, preallocate=True, segment_bytes=10_000)
    add(segment, batch(0, [10, 30, 20]))
    assert segment.path.stat().st_size == 10_000
    segment.seal()
    assert segment.appender is None
    assert segment.time_index.last_entry == (30, 2)
    assert segment.path.stat().st_size == segment.size
    assert (Path(segment.offset_index.path).stat().st_size, bases(segment)) == (0, [0])
    again = bench.load(segment)
    assert (again.max_timestamp, again.offset_of_max_timestamp) == (30, 2)


def test_the_final_time_entry_has_room_in_a_full_index(bench: SegmentBench) -> None:
    segment = bench.create(0, index_interval_bytes=0, max_index_bytes=36)
    add(segment, *(batch(number, [number + 1]) for number in range(6)))
    assert segment.time_index.is_full
    segment.seal()
    assert (segment.time_index.entries, segment.time_index.last_entry) == (3, (6, 5))


def test_an_append_after_sealing_makes_the_segment_active_again(bench: SegmentBench) -> None:
    segment = bench.create(0, index_interval_bytes=0)
    add(segment, batch(0, [1]), batch(1, [2]))
    segment.seal()
    add(segment, batch(2, [3]), batch(3, [4]))
    check_lookups(segment)
    assert bases(bench.reopen(segment)) == [0, 1, 2, 3]


# -- files ----------------------------------------------------------------------------------------------


def test_a_preallocated_segment_is_trimmed_by_close_and_continues(bench: SegmentBench) -> None:
    size = 512 * 1024 * 1024
    segment = bench.create(0, preallocate=True, segment_bytes=size)
    assert (segment.path.stat().st_size, segment.size) == (size, 0)
    add(segment, batch(0), batch(1))
    again = bench.reopen(segment)
    assert again.path.stat().st_size == again.size == len(batch(0)) * 2
    add(again, batch(2))
    assert bases(again) == [0, 1, 2]


def test_without_preallocation_the_file_begins_empty(bench: SegmentBench) -> None:
    assert bench.create(0).path.stat().st_size == 0


def test_recovery_cuts_the_tail_of_a_preallocated_segment(bench: SegmentBench) -> None:
    segment = bench.create(0, preallocate=True, segment_bytes=10_000)
    add(segment, batch(0))
    size = segment.size
    crashed = bench.load(segment)
    assert crashed.recover(lambda *_: None) == 10_000 - size
    assert crashed.path.stat().st_size == size
    segment.log.file.close()


def test_a_new_segment_never_overwrites_a_log(bench: SegmentBench) -> None:
    bench.create(5)
    with pytest.raises(FileExistsError):
        bench.create(5)


def test_loading_opens_nothing(bench: SegmentBench) -> None:
    segment = Segment(Path("/nowhere"), 5, SegmentSettings(), bench.clock, bench.descriptors)
    assert segment.base_offset == 5
    with pytest.raises(FileNotFoundError):
        _ = segment.size


def test_close_leaves_log_and_both_indexes_on_disk(bench: SegmentBench) -> None:
    segment = bench.create(7)
    assert bench.names() == ["7.log"]
    segment.close()
    assert bench.names() == ["7.index", "7.log", "7.timeindex"]


def test_flush_of_an_empty_active_segment_creates_its_indexes(bench: SegmentBench) -> None:
    bench.create(7).flush()
    assert bench.names() == ["7.index", "7.log", "7.timeindex"]


def test_a_sealed_segment_can_be_flushed(bench: SegmentBench, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = bench.create(7)
    add(segment, batch(7))
    segment.seal()
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    segment.flush()
    assert [name.rpartition(".")[2] for name in synced] == ["log", "index", "timeindex"]


def test_missing_indexes_are_told_and_not_created_by_reading(bench: SegmentBench) -> None:
    segment = bench.create(0)
    add(segment, batch(0), batch(1))
    segment.close()
    for extension in (".index", ".timeindex"):
        Path(segment.path_of(extension)).unlink()
    again = bench.load(segment)
    assert not again.offset_index.exists()
    assert not again.time_index.exists()
    assert again.position_of(1) is not None
    assert again.max_timestamp == 1000
    assert bench.names() == [".log"]


def test_changing_the_suffix_before_indexes_exist_creates_none(bench: SegmentBench) -> None:
    segment = bench.create(40)
    segment.change_suffix("", ".deleted")
    assert bench.names() == ["40.log.deleted"]
    assert segment.path.name.endswith("40.log.deleted")


def test_changing_the_suffix_renames_all_files_and_reads_go_on(bench: SegmentBench) -> None:
    segment = bench.create(40, suffix=".cleaned", index_interval_bytes=0)
    add(segment, batch(40), batch(41))
    Path(segment.path_of(".txnindex")).write_bytes(b"")
    segment.seal()
    segment.change_suffix(".cleaned", ".swap")
    assert bench.names() == [f"40.{name}.swap" for name in ("index", "log", "timeindex", "txnindex")]
    assert bases(segment) == [40, 41]
    segment.change_suffix(".swap", "")
    check_lookups(segment)
    with pytest.raises(ValueError, match="expected the suffix"):
        segment.change_suffix(".swap", "")
    add(segment, batch(42))
    assert bases(bench.reopen(segment)) == [40, 41, 42]


def test_delete_removes_every_file_and_may_find_none(bench: SegmentBench) -> None:
    segment = bench.create(40)
    add(segment, batch(40))
    Path(segment.path_of(".txnindex")).write_bytes(b"")
    segment.seal()
    assert segment.delete()
    assert segment.delete()
    assert bench.names() == []


def test_a_closed_segment_refuses_reads_and_appends(bench: SegmentBench) -> None:
    segment = bench.create(0)
    add(segment, batch(0))
    segment.close()
    with pytest.raises(ClosedError):
        segment.log.read(0, 10)
    with pytest.raises(ClosedError):
        add(segment, batch(1))


# -- pins -----------------------------------------------------------------------------------------------


def test_a_pinned_segment_is_read_to_its_end_though_a_later_one_takes_its_names(bench: SegmentBench) -> None:
    old = bench.create(0, index_interval_bytes=0)
    add(old, *(batch(number, [number], value=b"old") for number in range(5)))
    size = old.size
    old.pin()
    old.mark_deleted()
    later = bench.create(0, index_interval_bytes=0)
    add(later, batch(0, value=b"a later one, which is longer"))
    later.mark_deleted()
    assert old.log.read(0, size) == b"".join(batch(number, [number], value=b"old") for number in range(5))
    check_lookups(old)
    assert (old.pins, old.delete()) == (1, False)
    old.unpin()
    with pytest.raises(ClosedError):
        old.log.read(0, 1)
    assert old.delete()
    assert later.delete()
    assert bench.names() == []


def test_mark_deleted_renames_every_file(bench: SegmentBench) -> None:
    segment = bench.create(3)
    add(segment, batch(3))
    segment.seal()
    segment.mark_deleted()
    segment.mark_deleted()
    assert bench.names() == ["3.index.deleted", "3.log.deleted", "3.timeindex.deleted"]


def test_a_reader_without_a_pin_gets_closed_error_once_a_segment_is_deleted(bench: SegmentBench) -> None:
    segment = bench.create(3)
    add(segment, batch(3))
    assert segment.log.read(0, 4)
    segment.mark_deleted()
    with pytest.raises(ClosedError):
        segment.log.read(0, 4)
    with pytest.raises(ClosedError):
        segment.pin()
    assert segment.pins == 0


def test_two_pins_need_two_unpins(bench: SegmentBench) -> None:
    segment = bench.create(3)
    add(segment, batch(3))
    segment.pin()
    segment.pin()
    segment.mark_deleted()
    segment.unpin()
    assert segment.log.read(0, 4)
    segment.unpin()
    with pytest.raises(ClosedError):
        segment.log.read(0, 4)


def test_readers_beside_an_appender_see_whole_batches(bench: SegmentBench) -> None:
    segment = bench.create(0, index_interval_bytes=0, max_index_bytes=10**6)
    wrong: list[BaseException] = []
    stop = threading.Event()

    def read() -> None:
        try:
            while not stop.is_set():
                size = segment.size
                assert sum(buffer.size for buffer, _ in segment.log.batches(0, size)) == size
                found = segment.position_of(10)
                assert found is None or found[2] == 10
        except Exception as error:  # noqa: BLE001  a thread's failure must reach the test
            wrong.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    for number in range(600):
        add(segment, batch(number, [number]))
    stop.set()
    ended(thread)
    assert wrong == []
