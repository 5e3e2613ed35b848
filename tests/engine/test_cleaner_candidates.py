"""Whether a log is to be compacted, and which part of it: KAFKA_FORMAT 8.3, KAFKA_CASES Q."""

from __future__ import annotations

import pytest
from partition_bench import NOW, Bench, batch, marker

from topicfs.engine.cleaner.candidates import Candidate, look
from topicfs.engine.partition.partition import Partition
from topicfs.engine.record import Record

HOUR = 3_600_000
SIZE = len(batch([Record(b"v", b"k", NOW)]))
COMPACT = {"cleanup_policy": "compact", "segment_bytes": 5 * SIZE}


def append(partition: Partition, count: int, timestamp: int = NOW) -> None:
    for _ in range(count):
        partition.append_batch(batch([Record(b"v", b"k", timestamp)]))


def filled(bench: Bench, count: int = 15, lone: bool = True, **settings: object) -> Partition:
    """Five records in a segment."""
    partition = bench.open(lone=lone, **{**COMPACT, **settings})
    append(partition, count)
    return partition


def seen(partition: Partition, checkpointed: int | None = None, now: int = NOW) -> Candidate:
    return look(partition.log, checkpointed, now)


def bounds(candidate: Candidate) -> tuple[int, int]:
    return candidate.first_dirty, candidate.first_uncleanable


# -- where it begins --------------------------------------------------------------------------------------


def test_a_log_that_was_never_compacted_is_dirty_from_its_start_to_its_active_segment(bench: Bench) -> None:
    candidate = seen(filled(bench))
    assert bounds(candidate) == (0, 10)
    assert (candidate.clean_bytes, candidate.cleanable_bytes, candidate.ratio) == (0, 10 * SIZE, 1.0)
    assert candidate.eligible
    assert candidate.why_not == ""


def test_compaction_goes_on_where_it_ended(bench: Bench) -> None:
    candidate = seen(filled(bench, 20), 5)
    assert bounds(candidate) == (5, 15)
    assert (candidate.clean_bytes, candidate.cleanable_bytes) == (5 * SIZE, 10 * SIZE)


def test_a_segment_that_is_partly_clean_counts_in_both(bench: Bench) -> None:
    candidate = seen(filled(bench, 20), 7)
    assert (candidate.clean_bytes, candidate.cleanable_bytes) == (10 * SIZE, 10 * SIZE)


@pytest.mark.parametrize("checkpointed", [0, 5, 21, 1000])
def test_a_checkpoint_outside_the_log_begins_anew_at_its_start(bench: Bench, checkpointed: int) -> None:
    partition = filled(bench, 20)
    partition.log.raise_start_offset(6)
    candidate = seen(partition, checkpointed)
    assert candidate.checkpoint_is_off
    assert candidate.first_dirty == 6


@pytest.mark.parametrize("checkpointed", [6, 20])
def test_a_checkpoint_at_either_end_of_the_log_is_inside(bench: Bench, checkpointed: int) -> None:
    partition = filled(bench, 20)
    partition.log.raise_start_offset(6)
    assert not seen(partition, checkpointed).checkpoint_is_off


def test_a_start_or_a_checkpoint_in_the_active_segment_leaves_nothing_to_do(bench: Bench) -> None:
    partition = filled(bench)
    candidate = seen(partition, 12)
    assert (candidate.cleanable_bytes, candidate.eligible) == (0, False)
    partition.log.raise_start_offset(12)
    candidate = seen(partition)
    assert (candidate.cleanable_bytes, candidate.eligible) == (0, False)
    assert candidate.first_dirty == 12


# -- where it ends ----------------------------------------------------------------------------------------


def test_the_segment_of_the_high_watermark_is_not_touched(bench: Bench) -> None:
    partition = filled(bench, lone=False)
    for mark, end in ((0, 0), (4, 0), (5, 5), (9, 5), (10, 10), (15, 10)):
        partition.log.set_high_watermark(mark)
        assert seen(partition).first_uncleanable == end
    assert not seen(partition, 10).eligible


def test_an_undecided_transaction_is_not_touched_and_what_it_became_is(bench: Bench) -> None:
    partition = bench.open(lone=False, **COMPACT)
    data = [Record(b"v", b"k", NOW)]
    for _ in range(3):
        partition.append_batch(batch(data))
    partition.roll()
    partition.append_batch(batch(data, producer=7, sequence=0, transactional=True))
    partition.roll()
    partition.log.set_high_watermark(4)
    assert seen(partition).first_uncleanable == 3
    assert seen(partition, 3).eligible is False
    partition.end_transaction(7, 0, commit=False)
    partition.roll()
    partition.log.set_high_watermark(4)
    assert seen(partition).first_uncleanable == 3
    partition.log.set_high_watermark(5)
    assert seen(partition).first_uncleanable == 5


def test_the_first_segment_with_a_young_record_is_not_touched(bench: Bench) -> None:
    partition = filled(bench, 10, min_compaction_lag_ms=HOUR)
    append(partition, 10, NOW + 10)
    bench.clock.advance(1)
    assert seen(partition, now=NOW + HOUR - 1).first_uncleanable == 0
    assert seen(partition, now=NOW + HOUR).first_uncleanable == 10
    assert seen(partition, now=NOW + HOUR + 9).first_uncleanable == 10
    assert seen(partition, now=NOW + HOUR + 10).first_uncleanable == 15


def test_when_a_young_log_becomes_eligible_is_told(bench: Bench) -> None:
    partition = filled(bench, min_compaction_lag_ms=HOUR)
    candidate = seen(partition)
    assert (candidate.eligible, candidate.next_eligible_ms) == (False, NOW + HOUR)
    assert not seen(partition, now=NOW + HOUR - 1).eligible
    assert seen(partition, now=NOW + HOUR).eligible
    assert "younger than 3600000 ms" in candidate.why_not


# -- whether ----------------------------------------------------------------------------------------------


def test_the_ratio_must_be_exceeded(bench: Bench) -> None:
    partition = filled(bench, 25, min_cleanable_dirty_ratio=0.5)
    assert seen(partition, 10).ratio == 0.5
    assert not seen(partition, 10).eligible
    assert seen(partition, 5).eligible


def test_only_a_compacted_topic_is_eligible(bench: Bench) -> None:
    partition = bench.open(segment_bytes=5 * SIZE)
    append(partition, 15)
    candidate = seen(partition)
    assert not candidate.eligible
    assert "cleanup.policy" in candidate.why_not


def test_an_empty_log_is_not_eligible(bench: Bench) -> None:
    candidate = seen(bench.open(**COMPACT, min_cleanable_dirty_ratio=0))
    assert (candidate.total_bytes, candidate.ratio, candidate.eligible) == (0, 0.0, False)


def test_the_longest_lag_forces_a_clean_despite_the_ratio(bench: Bench) -> None:
    partition = filled(bench, 25, min_cleanable_dirty_ratio=1, max_compaction_lag_ms=HOUR)
    candidate = seen(partition, 15)
    assert (candidate.must_compact, candidate.eligible) == (False, False)
    assert candidate.next_eligible_ms == NOW + HOUR + 1
    assert not seen(partition, 15, NOW + HOUR).eligible
    forced = seen(partition, 15, NOW + HOUR + 1)
    assert (forced.must_compact, forced.eligible) == (True, True)


def test_the_longest_lag_forces_nothing_that_is_not_stable(bench: Bench) -> None:
    partition = filled(bench, 15, lone=False, min_cleanable_dirty_ratio=1, max_compaction_lag_ms=HOUR)
    late = NOW + 2 * HOUR
    assert not seen(partition, now=late).must_compact
    partition.log.set_high_watermark(15)
    assert seen(partition, now=late).must_compact


def test_records_without_timestamps_force_nothing(bench: Bench) -> None:
    partition = bench.open(**COMPACT, min_cleanable_dirty_ratio=1, max_compaction_lag_ms=HOUR)
    append(partition, 15, -1)
    assert not seen(partition, 5, NOW + 2 * HOUR).must_compact


def test_a_marker_of_a_transaction_is_no_hindrance(bench: Bench) -> None:
    partition = bench.open(**COMPACT)
    partition.append_batch(batch([Record(b"v", b"k", NOW)], producer=7, sequence=0, transactional=True))
    assert seen(partition).first_uncleanable == 0
    partition.append_raw(marker(7, True, base=1))
    partition.roll()
    assert bounds(seen(partition)) == (0, 2)
