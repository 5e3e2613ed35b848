"""From a time to an offset: KAFKA_FORMAT 6 (ListOffsets), and of KAFKA_CASES K the lines on look-ups by time.

Not here: -6, which is about tiered storage; an unknown negative number is an error.
"""

from __future__ import annotations

import os
from unittest import mock

import pytest
from partition_bench import NOW, Bench, batch

from topicfs.engine.partition import timestamps
from topicfs.engine.partition.offsets import Isolation
from topicfs.engine.partition.partition import Partition, Producer
from topicfs.engine.partition.timestamps import Found
from topicfs.engine.record import Record

LOG_END, UNCOMMITTED, COMMITTED = Isolation.LOG_END, Isolation.UNCOMMITTED, Isolation.COMMITTED


def at_times(partition: Partition, *times: int) -> None:
    """A batch of one record for each time."""
    for time in times:
        partition.append(Record(b"v", timestamp=time))


def offset_at(partition: Partition, timestamp: int, isolation: Isolation = COMMITTED) -> int | None:
    found = partition.offset_for_timestamp(timestamp, isolation)
    return None if found is None else found.offset


# -- a time ---------------------------------------------------------------------------------------------


def test_an_empty_log_has_no_record_at_any_time(bench: Bench) -> None:
    partition = bench.open()
    assert partition.offset_for_timestamp(0) is None
    assert partition.offset_for_timestamp(timestamps.MAX) is None


def test_the_first_record_that_is_not_earlier_is_found_with_its_epoch(bench: Bench) -> None:
    partition = bench.open()
    at_times(partition, NOW)
    partition.log.become_leader(3)
    at_times(partition, NOW + 10)
    assert partition.offset_for_timestamp(NOW - 5) == Found(NOW, 0, 0)
    assert partition.offset_for_timestamp(NOW) == Found(NOW, 0, 0)
    assert partition.offset_for_timestamp(NOW + 1) == Found(NOW + 10, 1, 3)
    assert partition.offset_for_timestamp(NOW + 10) == Found(NOW + 10, 1, 3)
    assert partition.offset_for_timestamp(NOW + 11) is None


@pytest.mark.parametrize("interval", [0, 100, 4096])
@pytest.mark.parametrize("codec", ["uncompressed", "gzip"])
def test_every_time_finds_what_a_walk_over_the_records_finds(bench: Bench, interval: int, codec: str) -> None:
    partition = bench.open(segment_bytes=400, index_interval_bytes=interval, compression_type=codec)
    steps = [0, 30, 10, 40, 40, 5, 60, 55, 70, 20, 90, 80]
    for at in range(0, len(steps), 2):
        partition.append([Record(b"v", timestamp=NOW + step) for step in steps[at : at + 2]])
    for reopened in (False, True):
        current = bench.reopen() if reopened else partition
        for time in range(-1, 95):
            wanted = next((at for at, step in enumerate(steps) if step >= time), None)
            assert offset_at(current, NOW + time) == wanted


def test_a_marker_is_found_like_a_record(bench: Bench) -> None:
    """Behind it may be records with earlier times, which a reader from that time on is to see."""
    partition = bench.open()
    partition.append(Record(b"never", timestamp=NOW - 500), Producer(7, 0, 0, True))
    partition.end_transaction(7, 0, commit=False)
    at_times(partition, NOW - 300)
    assert offset_at(partition, NOW - 400) == 1
    assert offset_at(partition, NOW + 1) is None


def test_records_below_the_start_are_not_found(bench: Bench) -> None:
    partition = bench.open()
    partition.append([Record(b"v", timestamp=NOW + at) for at in range(5)])
    partition.delete_records(3)
    assert partition.offset_for_timestamp(NOW) == Found(NOW + 3, 3, 0)


def test_records_behind_what_a_reader_sees_are_not_found(bench: Bench) -> None:
    partition = bench.open(lone=False)
    at_times(partition, *range(NOW, NOW + 4))
    partition.append_batch(batch(1, producer=1, transactional=True, timestamp=NOW + 4))
    partition.log.set_high_watermark(3)
    assert [offset_at(partition, NOW + 2, isolation) for isolation in Isolation] == [2, 2, 2]
    assert [offset_at(partition, NOW + 3, isolation) for isolation in Isolation] == [3, None, None]
    partition.log.set_high_watermark(5)
    assert [offset_at(partition, NOW + 4, isolation) for isolation in Isolation] == [4, 4, None]


def test_what_readers_see_at_a_time_is_no_marker_and_no_aborted_record(bench: Bench) -> None:
    """regression: of records of years ago, in transactions, a range of time ended at the first marker"""
    partition = bench.open()
    for producer, time, commit in ((1, NOW - 900, True), (2, NOW - 100, False), (3, NOW - 800, True)):
        partition.append_batch(batch(2, producer=producer, transactional=True, timestamp=time))
        partition.end_transaction(producer, 0, commit)
        partition.roll()
    at_times(partition, NOW - 700, NOW + 5)
    assert [offset_at(partition, NOW - at) for at in (900, 850, 800)] == [0, 2, 2]
    expected = {900: 0, 850: 6, 750: 9, 650: 10}
    assert {at: partition.first_offset_at(NOW - at) for at in expected} == expected
    shown = partition.first_shown_at(NOW - 850)
    assert shown == Found(NOW - 800, 6, 0)
    assert partition.first_shown_at(NOW + 6) is None
    assert partition.first_offset_at(NOW + 6) == partition.stable_offset == 11


def test_records_that_are_older_than_markers_are_found_without_a_scan(bench: Bench) -> None:
    """regression: a marker's time is later than that of each record, so the index told nothing of them"""
    partition = bench.open()

    def import_old(first: int, count: int) -> None:
        for at in range(first, first + count):
            records = [Record(bytes(90_000), timestamp=NOW - 10_000 + at)] * 2
            partition.append(records, Producer(1, 0, 2 * at, True))
            partition.end_transaction(1, 0, True)

    def first_at(at: int) -> int:
        return partition.first_offset_at(NOW - 10_000 + at)

    import_old(0, 30)
    assert [first_at(at) for at in (0, 3, 15, 29)] == [0, 9, 45, 87]
    assert first_at(30) == partition.stable_offset == 90
    import_old(30, 5)
    assert [first_at(at) for at in (3, 29, 30, 34)] == [9, 87, 90, 102]
    read: list[int] = []
    log = partition.log.chain.active.log
    fill = log.fill

    def counted(position: int, into: memoryview) -> None:
        read.append(len(into))
        fill(position, into)

    with mock.patch.object(type(log), "fill", lambda _, *rest: counted(*rest)):
        assert first_at(33) == 99
    assert sum(read) < 2_500_000 < log.size
    # Of other records behind a cut nothing is remembered.
    partition.truncate_to(60)
    assert first_at(21) == partition.stable_offset == 60
    at_times(partition, *[NOW - 10_000 + at for at in (15, 40, 16)])
    assert [first_at(at) for at in (15, 20, 21, 41)] == [45, 61, 61, 63]


def test_without_timestamps_the_time_of_the_file_decides_and_no_record_matches(bench: Bench) -> None:
    partition = bench.open()
    at_times(partition, -1, -1)
    os.utime(partition.log.chain.active.path, (NOW / 1000, NOW / 1000))
    assert partition.offset_for_timestamp(NOW + 1) is None
    assert partition.offset_for_timestamp(NOW - 1) is None


def test_only_the_first_segment_that_reaches_the_time_is_searched(bench: Bench) -> None:
    partition = bench.open()
    at_times(partition, NOW + 50)
    partition.roll()
    at_times(partition, NOW + 10, NOW + 60)
    assert offset_at(partition, NOW + 20) == 0
    partition.delete_records(1)
    # The first segment reaches the time, but the record that does lies below the start.
    assert offset_at(partition, NOW + 20) is None
    assert offset_at(partition, NOW + 55) == 2


def test_the_first_offset_at_a_time_is_looked_for_in_all_segments(bench: Bench) -> None:
    partition = bench.open(lone=False)
    at_times(partition, NOW + 50)
    partition.roll()
    at_times(partition, NOW + 10, NOW + 60, NOW + 70)
    partition.log.set_high_watermark(3)
    assert partition.first_offset_at(NOW + 20) == 0
    partition.delete_records(1)
    for time, offset in ((0, 1), (NOW + 20, 2), (NOW + 65, 3), (NOW + 71, 3), (2**63, 3)):
        assert partition.first_offset_at(time) == offset


@pytest.mark.parametrize("timestamp", [-6, -7, -(2**63)])
def test_an_unknown_special_time_is_an_error(bench: Bench, timestamp: int) -> None:
    partition = bench.open()
    with pytest.raises(ValueError, match="timestamp"):
        partition.offset_for_timestamp(timestamp)


# -- special times --------------------------------------------------------------------------------------


def test_latest_is_the_bound_of_the_reader_with_the_latest_epoch(bench: Bench) -> None:
    partition = bench.open(lone=False)
    at_times(partition, NOW, NOW + 1)
    partition.log.become_leader(5)
    partition.append_batch(batch(1, producer=1, transactional=True))
    at_times(partition, NOW)
    partition.log.set_high_watermark(3)
    assert partition.offset_for_timestamp(timestamps.LATEST, LOG_END) == Found(-1, 4, 5)
    assert partition.offset_for_timestamp(timestamps.LATEST, UNCOMMITTED) == Found(-1, 3, 5)
    assert partition.offset_for_timestamp(timestamps.LATEST, COMMITTED) == Found(-1, 2, 5)


def test_latest_of_an_empty_log_has_no_epoch(bench: Bench) -> None:
    partition = bench.open()
    assert partition.offset_for_timestamp(timestamps.LATEST) == Found(-1, 0, -1)


@pytest.mark.parametrize("timestamp", [timestamps.EARLIEST, timestamps.EARLIEST_LOCAL])
def test_earliest_is_the_start_with_its_epoch(bench: Bench, timestamp: int) -> None:
    partition = bench.open()
    assert partition.offset_for_timestamp(timestamp) == Found(-1, 0, -1)
    at_times(partition, NOW, NOW)
    partition.log.become_leader(4)
    at_times(partition, NOW, NOW)
    assert partition.offset_for_timestamp(timestamp) == Found(-1, 0, 0)
    partition.delete_records(3)
    assert partition.offset_for_timestamp(timestamp) == Found(-1, 3, 4)


def test_nothing_is_stored_elsewhere(bench: Bench) -> None:
    partition = bench.open()
    at_times(partition, NOW)
    assert partition.offset_for_timestamp(timestamps.LATEST_TIERED) == Found(-1, -1, -1)


def test_max_is_the_first_record_with_the_largest_timestamp(bench: Bench) -> None:
    partition = bench.open()
    at_times(partition, NOW)
    partition.log.become_leader(2)
    partition.append([Record(b"v", timestamp=NOW + step) for step in (3, 9, 9, 1)])
    at_times(partition, NOW + 9, NOW + 8)
    partition.roll()
    at_times(partition, NOW + 9)
    assert partition.offset_for_timestamp(timestamps.MAX) == Found(NOW + 9, 2, 2)
    assert bench.reopen().offset_for_timestamp(timestamps.MAX) == Found(NOW + 9, 2, 2)


def test_max_of_records_without_timestamps_is_none(bench: Bench) -> None:
    partition = bench.open()
    at_times(partition, -1, -1)
    assert partition.offset_for_timestamp(timestamps.MAX) is None


def test_max_behind_what_a_reader_sees_is_none(bench: Bench) -> None:
    partition = bench.open(lone=False)
    at_times(partition, NOW, NOW + 5)
    partition.log.set_high_watermark(1)
    assert [offset_at(partition, timestamps.MAX, isolation) for isolation in Isolation] == [1, None, None]


def test_max_with_log_append_time_is_the_first_record_of_its_batch(bench: Bench) -> None:
    partition = bench.open(message_timestamp_type="LogAppendTime")
    partition.append([Record(b"a"), Record(b"b")])
    now = bench.clock.advance(10)
    partition.append([Record(b"c"), Record(b"d")])
    assert partition.offset_for_timestamp(timestamps.MAX) == Found(now, 2, 0)


# -- the time index -------------------------------------------------------------------------------------


def test_a_follower_builds_the_time_index_too(bench: Bench) -> None:
    partition = bench.open(index_interval_bytes=1)
    for base in range(100):
        partition.append_raw(batch(1, base=base, timestamp=NOW + base))
    index = partition.log.chain.active.time_index
    assert index.entries == 99
    assert index.last_entry == (NOW + 99, 99)
