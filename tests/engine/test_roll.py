"""When a segment is sealed and the next one begins: KAFKA_FORMAT 4, KAFKA_CASES J.

Not here: splitting a segment whose offsets go too far (testSplitOnOffsetOverflow and its kin) is in test_split.
"""

from __future__ import annotations

import pytest
from partition_bench import NOW, Bench, bases_of, batch, topic_settings
from verify import verify

from topicfs.engine.errors import ClosedError, RollError
from topicfs.engine.partition.partition import Partition
from topicfs.engine.record import Record

MAX_INT32 = 2**31 - 1
MINUTE = 60_000


def append_at(partition: Partition, timestamp: int) -> int:
    """Append a record with this time; gives how many segments there are then."""
    partition.append(Record(b"v", timestamp=timestamp))
    return len(bases_of(partition))


# -- by size --------------------------------------------------------------------------------------------


def test_an_append_that_would_exceed_the_size_rolls_and_one_that_fits_exactly_does_not(bench: Bench) -> None:
    size = len(batch(1))
    partition = bench.open(segment_bytes=3 * size)
    for _ in range(7):
        partition.append_batch(batch(1))
    assert bases_of(partition) == [0, 3, 6]
    assert [segment.size for segment in partition.log.chain.segments] == [3 * size, 3 * size, size]


# -- by time --------------------------------------------------------------------------------------------


def test_without_timestamps_the_clock_since_creation_rolls(bench: Bench) -> None:
    partition = bench.open(segment_ms=MINUTE)
    bench.clock.advance(2 * MINUTE)
    assert append_at(partition, -1) == 1  # an empty segment never rolls by time
    bench.clock.advance(MINUTE + 1)
    assert append_at(partition, -1) == 2
    bench.clock.advance(MINUTE)
    assert append_at(partition, -1) == 2
    bench.clock.advance(1)
    assert append_at(partition, -1) == 3


def test_creation_time_restarts_when_the_partition_is_opened(bench: Bench) -> None:
    partition = bench.open(segment_ms=MINUTE)
    append_at(partition, -1)
    bench.clock.advance(MINUTE)
    partition = bench.reopen()
    bench.clock.advance(MINUTE)
    assert append_at(partition, -1) == 1
    bench.clock.advance(1)
    assert append_at(partition, -1) == 2


def test_with_timestamps_only_the_time_of_records_rolls(bench: Bench) -> None:
    partition = bench.open(segment_ms=MINUTE)
    assert append_at(partition, NOW) == 1
    bench.clock.advance(10 * MINUTE)
    assert append_at(partition, NOW) == 1
    assert append_at(partition, NOW + MINUTE) == 1
    assert append_at(partition, NOW + MINUTE + 1) == 2


def test_time_counts_from_the_first_batch_even_if_a_later_one_is_older(bench: Bench) -> None:
    partition = bench.open(segment_ms=MINUTE)
    append_at(partition, NOW)
    append_at(partition, NOW - MINUTE)
    assert append_at(partition, NOW + MINUTE) == 1
    assert append_at(partition, NOW + MINUTE + 1) == 2


def test_an_empty_append_never_rolls(bench: Bench) -> None:
    partition = bench.open(segment_ms=MINUTE)
    append_at(partition, -1)
    bench.clock.advance(2 * MINUTE)
    with pytest.raises(ValueError, match="at least one"):
        partition.append_raw(b"")
    assert bases_of(partition) == [0]


def test_a_compacted_topic_also_rolls_by_its_compaction_lag(bench: Bench) -> None:
    partition = bench.open(cleanup_policy="compact", segment_ms=10 * MINUTE, max_compaction_lag_ms=MINUTE)
    for time, segments in ((0, 1), (MINUTE, 1), (MINUTE + 1, 2)):
        partition.append(Record(b"v", b"k", NOW + time))
        assert len(bases_of(partition)) == segments


def test_a_topic_that_is_not_compacted_does_not_roll_by_the_compaction_lag(bench: Bench) -> None:
    partition = bench.open(max_compaction_lag_ms=MINUTE)
    append_at(partition, NOW)
    assert append_at(partition, NOW + 2 * MINUTE) == 1


def test_jitter_rolls_earlier_by_the_number_that_was_drawn(bench: Bench) -> None:
    partition = bench.open(segment_ms=10 * MINUTE, segment_jitter_ms=MINUTE)
    append_at(partition, NOW)
    jitter = partition.log.chain.active.jitter % MINUTE
    assert append_at(partition, NOW + 9 * MINUTE) == 1
    assert append_at(partition, NOW + 10 * MINUTE - jitter) == 1
    assert append_at(partition, NOW + 10 * MINUTE - jitter + 1) == 2


def test_jitter_is_never_longer_than_the_time_itself(bench: Bench) -> None:
    partition = bench.open(segment_ms=MINUTE, segment_jitter_ms=100 * MINUTE)
    append_at(partition, NOW)
    jitter = partition.log.chain.active.jitter % MINUTE
    assert append_at(partition, NOW + MINUTE - jitter) == 1
    assert append_at(partition, NOW + MINUTE - jitter + 1) == 2


# -- by indexes and offsets -----------------------------------------------------------------------------


def test_a_full_index_rolls(bench: Bench) -> None:
    partition = bench.open(index_interval_bytes=0, segment_index_bytes=48)
    for at in range(12):
        append_at(partition, NOW + at)
    # Each batch but a segment's first gets an entry; the time index has room for 4, one of them for sealing.
    assert bases_of(partition) == [0, 4, 8]


def test_a_follower_write_far_ahead_gets_a_segment_of_its_own(bench: Bench) -> None:
    partition = bench.open()
    far = MAX_INT32 + 2
    partition.append_raw(batch(1, base=0))
    partition.append_raw(batch(2, base=far))
    assert bases_of(partition) == [0, far]
    assert bench.names(".snapshot") == [f"{far}.snapshot"]
    partition = bench.reopen()
    assert [record.offset for record in partition.records()] == [0, far, far + 1]
    for segment in partition.log.chain.segments:
        segment.offset_index.sanity_check()
        segment.time_index.sanity_check()


def test_a_follower_write_far_ahead_of_an_empty_segment_leaves_it_empty(bench: Bench) -> None:
    partition = bench.open()
    far = MAX_INT32 + 2
    partition.append_raw(batch(1, base=far))
    assert bases_of(partition) == [0, far]
    assert [record.offset for record in partition.records()] == [far]


def test_an_offset_that_still_fits_does_not_roll(bench: Bench) -> None:
    partition = bench.open()
    partition.append_raw(batch(1, base=0) + batch(1, base=MAX_INT32))
    assert bases_of(partition) == [0]


# -- by hand --------------------------------------------------------------------------------------------


def test_a_roll_seals_the_segment_and_trims_its_files(bench: Bench) -> None:
    partition = bench.open(index_interval_bytes=0, segment_bytes=10_000, preallocate=True)
    for at in range(3):
        append_at(partition, NOW + at)
    first = partition.log.chain.active
    assert first.path.stat().st_size == 10_000
    partition.roll()
    assert first.path.stat().st_size == first.size
    assert (bench.directory / f"{0:020d}.index").stat().st_size == 2 * 8
    assert (bench.directory / f"{0:020d}.timeindex").stat().st_size == 2 * 12
    verify(partition, exact=True)


def test_the_last_time_entry_is_written_by_the_roll(bench: Bench) -> None:
    partition = bench.open()
    append_at(partition, NOW + 7)
    append_at(partition, NOW + 3)
    partition.roll()
    assert partition.log.chain.segments.first.time_index.last_entry == (NOW + 7, 0)


def test_a_roll_of_an_empty_active_segment_leaves_as_many_segments_and_appends_go_on(bench: Bench) -> None:
    """Kafka makes the empty segment anew, which shows nowhere there. Here views may be open on it: it stays."""
    partition = bench.open()
    partition.roll()
    partition.roll()
    assert (bases_of(partition), len(bench.names(".log"))) == ([0], 1)
    partition.append_batch(batch(3))
    partition.roll()
    before = partition.log.chain.active
    partition.roll()
    assert partition.log.chain.active is before
    assert bases_of(partition) == [0, 3]
    partition.append_batch(batch(2))
    assert [record.offset for record in partition.records()] == [0, 1, 2, 3, 4]


def test_an_index_without_room_rolls_each_time_and_appends_go_on(bench: Bench) -> None:
    partition = bench.open(segment_index_bytes=12, index_interval_bytes=0)
    for at in range(4):
        append_at(partition, NOW + at)
    assert bases_of(partition) == [0, 1, 2, 3]


def test_a_roll_below_the_active_base_is_refused(bench: Bench) -> None:
    partition = bench.open()
    partition.append_batch(batch(3))
    with pytest.raises(RollError), partition.log.lock:
        partition.log._roll(0)
    with pytest.raises(RollError), partition.log.lock:
        partition.log._roll(-1)
    assert bases_of(partition) == [0]


def test_a_roll_after_the_close_is_refused(bench: Bench) -> None:
    partition = bench.open()
    partition.append_batch(batch(3))
    partition.close()
    with pytest.raises(ClosedError):
        partition.roll()
    bench.partition = None


def test_files_left_over_with_the_new_base_are_removed(bench: Bench) -> None:
    partition = bench.open()
    bench.warnings = True
    partition.append_batch(batch(3))
    for suffix in (".log", ".index", ".timeindex"):
        (bench.directory / f"{3:020d}{suffix}").write_bytes(b"left over")
    partition.roll()
    partition.append_batch(batch(3))
    assert [record.offset for record in partition.records()] == list(range(6))


def test_the_position_of_the_end_follows_a_roll(bench: Bench) -> None:
    partition = bench.open()
    partition.append_batch(batch(3))
    assert (partition.offsets.active_base, partition.offsets.end_position) == (0, len(batch(3)))
    partition.roll()
    assert (partition.offsets.active_base, partition.offsets.end_position) == (3, 0)
    assert (partition.high_watermark, partition.end_offset) == (3, 3)


def test_new_settings_hold_from_the_next_segment_on(bench: Bench) -> None:
    size = len(batch(1))
    partition = bench.open(segment_bytes=2 * size)
    for _ in range(3):
        partition.append_batch(batch(1))
    partition.log.reconfigure(topic_settings(segment_bytes=10 * size))
    for _ in range(8):
        partition.append_batch(batch(1))
    assert bases_of(partition) == [0, 2]


def test_sealed_segments_rise_in_their_files_times_by_the_millisecond(bench: Bench) -> None:
    partition = bench.open()
    for value in range(5):
        partition.append(Record(b"%d" % value))
        partition.roll()
    sealed = partition.log.chain.segments.non_active
    times = [segment.path.stat().st_mtime_ns // 1_000_000 for segment in sealed]
    assert times == sorted(set(times))


# -- by time, without an append ---------------------------------------------------------------------------


def test_a_segment_whose_first_batch_is_older_than_segment_ms_is_sealed_without_an_append(
    bench: Bench,
) -> None:
    partition = bench.open(segment_ms=MINUTE)
    bench.clock.advance(10 * MINUTE)
    assert not partition.log.roll_if_waited(bench.clock()), "an empty segment is never sealed"
    # Records of long ago are as new as their append: else each of them would make a segment of its own.
    append_at(partition, NOW - 1_000_000_000)
    bench.clock.advance(MINUTE)
    assert not partition.log.roll_if_waited(bench.clock())
    bench.clock.advance(1)
    assert partition.log.roll_if_waited(bench.clock())
    assert bases_of(partition) == [0, 1]
    assert not partition.log.roll_if_waited(bench.clock() + 10 * MINUTE)
    verify(partition)


def test_where_a_log_is_compacted_max_compaction_lag_seals_it_too(bench: Bench) -> None:
    partition = bench.open(cleanup_policy="compact", max_compaction_lag_ms=MINUTE)
    partition.append(Record(b"v", key=b"k"))
    bench.clock.advance(MINUTE + 1)
    assert partition.log.roll_if_waited(bench.clock())
