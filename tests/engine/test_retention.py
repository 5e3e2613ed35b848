"""Retention of one partition: KAFKA_FORMAT 8.1, KAFKA_CASES M."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from partition_bench import NOW, Bench, bases_of, batch

from topicfs.engine.errors import ClosedError, OffsetOutOfRangeError
from topicfs.engine.partition.hold import Hold
from topicfs.engine.partition.partition import Partition
from topicfs.engine.record import Record
from topicfs.engine.retention.removal import Removed, apply, next_due
from topicfs.engine.retention.rules import Reason, due
from topicfs.engine.segment.segment import Segment

HOUR = 3_600_000
SIZE = len(batch(1))
OLD = {"retention_ms": HOUR}


def filled(
    bench: Bench, count: int = 15, timestamp: int = NOW, lone: bool = True, **settings: object
) -> Partition:
    """A partition of so many records, five in a segment."""
    chosen = {"segment_bytes": 5 * SIZE, "retention_ms": -1, "file_delete_delay_ms": 1000, **settings}
    partition = bench.open(lone=lone, **chosen)
    # A compacted topic wants keys. Each batch has SIZE bytes.
    record = Record(b"v", b"k", timestamp) if partition.settings.compact else Record(b"v0", None, timestamp)
    for _ in range(count):
        partition.append_batch(batch([record]))
    return partition


def retain(partition: Partition, now: int = NOW) -> int:
    """Gives how many segments went."""
    return apply(partition.log, now).segments


# -- the high watermark ---------------------------------------------------------------------------------


def test_nothing_at_or_above_the_high_watermark_is_removed(bench: Bench) -> None:
    partition = filled(bench, lone=False, **OLD)
    late = NOW + 2 * HOUR
    assert partition.high_watermark == 0
    assert retain(partition, late) == 0
    for mark, bases in ((4, [0, 5, 10]), (5, [5, 10]), (9, [5, 10]), (14, [10])):
        partition.log.set_high_watermark(mark)
        retain(partition, late)
        assert bases_of(partition) == bases
        assert partition.start_offset == bases[0]


def test_a_high_watermark_known_from_the_last_run_guards_too(bench: Bench) -> None:
    partition = filled(bench, lone=False, **OLD)
    partition.log.set_high_watermark(7)
    partition = bench.reopen()
    assert retain(partition, NOW + 2 * HOUR) == 1
    assert bases_of(partition) == [5, 10]


def test_a_log_of_which_everything_is_due_becomes_one_empty_segment_at_its_end(bench: Bench) -> None:
    partition = filled(bench, **OLD)
    partition.log.become_leader(7)
    bench.exact = False
    assert retain(partition, NOW + 2 * HOUR) == 3
    assert bases_of(partition) == [15]
    assert partition.size == 0
    assert (partition.start_offset, partition.end_offset) == (15, 15)
    assert [(entry.epoch, entry.start_offset) for entry in partition.log.epochs.entries] == [(7, 15)]
    assert retain(partition, NOW + 4 * HOUR) == 0
    assert partition.append(Record(b"next", timestamp=NOW)).first_offset == 15


# -- size -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "left"), [(15, 3), (14, 3), (11, 3), (10, 2), (9, 2), (6, 2), (5, 1), (1, 1), (0, 1), (-1, 3)]
)
def test_size_goes_down_to_the_limit_and_never_below(bench: Bench, limit: int, left: int) -> None:
    partition = filled(bench, retention_bytes=limit * SIZE if limit >= 0 else -1)
    bench.exact = False
    apply(partition.log, NOW)
    assert len(bases_of(partition)) == left
    assert partition.size >= max(0, min(limit, 15)) * SIZE
    assert partition.size == (0 if limit == 0 else left * 5 * SIZE)


def test_size_counts_log_files_only(bench: Bench) -> None:
    partition = filled(bench, retention_bytes=10 * SIZE + 1, index_interval_bytes=0)
    assert sum(path.stat().st_size for path in bench.directory.iterdir()) > 15 * SIZE
    assert retain(partition) == 0


# -- time -----------------------------------------------------------------------------------------------


def test_time_counts_from_the_largest_timestamp_and_must_be_exceeded(bench: Bench) -> None:
    partition = filled(bench, **OLD)
    assert retain(partition, NOW + HOUR) == 0
    assert retain(partition, NOW + HOUR + 1) == 3


def test_a_timestamp_in_the_future_keeps_its_segment_and_all_behind_it(bench: Bench) -> None:
    partition = filled(bench, 7, **OLD)
    partition.append(Record(b"v0", timestamp=NOW + HOUR // 2))
    for _ in range(7):
        partition.append_batch(batch(1))
    assert bases_of(partition) == [0, 5, 10]
    assert retain(partition, NOW + HOUR + 1) == 1
    assert bases_of(partition) == [5, 10]


def test_a_segment_without_timestamps_is_as_old_as_its_file(bench: Bench) -> None:
    partition = filled(bench, timestamp=-1, **OLD)
    first, second, _ = partition.log.chain.segments
    os.utime(first.path, ns=(0, (NOW - 2 * HOUR) * 1_000_000))
    os.utime(second.path, ns=(0, (NOW - HOUR) * 1_000_000))
    assert retain(partition, NOW) == 1
    assert bases_of(partition) == [5, 10]


@pytest.mark.parametrize(("policy", "left"), [("delete", 1), ("compact", 3), ("compact,delete", 1), ("", 3)])
def test_time_and_size_hold_only_with_the_policy_delete(bench: Bench, policy: str, left: int) -> None:
    partition = filled(bench, cleanup_policy=policy, retention_bytes=0, **OLD)
    bench.exact = False
    apply(partition.log, NOW + 2 * HOUR)
    assert len(bases_of(partition)) == left


# -- the start offset -----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["delete", "compact", ""])
@pytest.mark.parametrize(("start", "left"), [(1, 3), (5, 2), (6, 2), (10, 1), (15, 1)])
def test_segments_below_the_start_offset_go_whatever_the_policy_is(
    bench: Bench, policy: str, start: int, left: int
) -> None:
    partition = filled(bench, cleanup_policy=policy)
    partition.log.raise_start_offset(start)
    removed = apply(partition.log, NOW)
    assert len(bases_of(partition)) == left
    assert partition.start_offset == start
    if left < 3:
        assert dict(removed.by_reason) == {Reason.START_OFFSET: (3 - left, (3 - left) * 5 * SIZE)}


def test_the_start_offset_unblocks_time_in_the_same_run_and_a_second_run_finds_nothing(bench: Bench) -> None:
    partition = filled(bench, 5, timestamp=NOW + 10 * HOUR, message_timestamp_after_max_ms=20 * HOUR, **OLD)
    for _ in range(10):
        partition.append_batch(batch(1))
    assert retain(partition, NOW + 2 * HOUR) == 0
    partition.delete_records(5)
    removed = apply(partition.log, NOW + 2 * HOUR)
    assert {reason: count for reason, (count, _) in removed.by_reason.items()} == {
        Reason.START_OFFSET: 1,
        Reason.TIME: 2,
    }
    assert retain(partition, NOW + 2 * HOUR) == 0


def test_a_start_offset_above_the_high_watermark_is_refused(bench: Bench) -> None:
    partition = filled(bench, lone=False)
    partition.log.set_high_watermark(6)
    with pytest.raises(OffsetOutOfRangeError):
        partition.log.raise_start_offset(7)


def test_the_three_rules_are_applied_in_order(bench: Bench) -> None:
    partition = filled(bench, 25, retention_bytes=15 * SIZE, **OLD)
    partition.log.raise_start_offset(5)
    found = due(partition.log.chain.segments, partition.offsets, partition.settings, NOW + 2 * HOUR)
    assert [(each.segment.base_offset, each.reason) for each in found] == [
        (0, Reason.START_OFFSET),
        (5, Reason.SIZE),
        (10, Reason.TIME),
        (15, Reason.TIME),
        (20, Reason.TIME),
    ]


# -- what a removal leaves ------------------------------------------------------------------------------


def test_the_end_offset_never_changes(bench: Bench) -> None:
    partition = filled(bench, retention_bytes=1, **OLD)
    for now in (NOW, NOW + HOUR, NOW + 2 * HOUR):
        apply(partition.log, now)
        assert partition.end_offset == 15
    assert bench.reopen().end_offset == 15


def test_files_are_renamed_at_once_and_gone_after_the_delay(bench: Bench) -> None:
    partition = filled(bench, retention_bytes=5 * SIZE)
    apply(partition.log, NOW)
    assert bench.names(".log") == ["10.log"]
    assert bench.names(".log.deleted") == [".log.deleted", "5.log.deleted"]
    assert bench.names(".snapshot.deleted") == ["5.snapshot.deleted"]
    assert partition.log.remove_due(bench.clock() + 999) == 0
    assert partition.log.remove_due(bench.clock() + 1000) == 3
    assert bench.names(".deleted") == []


def test_the_start_offset_is_raised_before_anything_is_removed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = filled(bench, retention_bytes=5 * SIZE)
    real, seen = partition.log.chain.doom, []

    def doom(self: object, segments: Sequence[Segment], delay_ms: int) -> None:
        seen.append(partition.start_offset)
        real(segments, delay_ms)

    monkeypatch.setattr(type(partition.log.chain), "doom", doom)
    apply(partition.log, NOW)
    assert seen == [10]


def test_a_file_that_cannot_be_renamed_takes_the_partition_offline(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.warnings = True
    partition = filled(bench, retention_bytes=5 * SIZE)

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("topicfs.engine.segment.descriptors.os.rename", fail)
    with pytest.raises(OSError, match="Input/output"):
        apply(partition.log, NOW)
    monkeypatch.undo()
    with pytest.raises(ClosedError, match="offline"):
        apply(partition.log, NOW)
    partition.log.abandon()


def test_after_a_crash_what_was_removed_stays_removed(bench: Bench) -> None:
    partition = filled(bench, retention_bytes=5 * SIZE)
    apply(partition.log, NOW)
    partition = bench.crash()
    assert bases_of(partition) == [10]
    assert partition.start_offset == 10


def test_leader_epochs_below_the_new_start_go(bench: Bench) -> None:
    partition = bench.open(segment_bytes=5 * SIZE, retention_bytes=5 * SIZE, retention_ms=-1)
    for epoch in range(3):
        partition.log.become_leader(epoch)
        for _ in range(5):
            partition.append_batch(batch(1))
    apply(partition.log, NOW)
    assert [(entry.epoch, entry.start_offset) for entry in partition.log.epochs.entries] == [(2, 10)]


def test_a_reader_that_holds_a_segment_reads_it_to_its_end(bench: Bench) -> None:
    partition = filled(bench, retention_bytes=5 * SIZE)
    with Hold.take(partition.log, 0, 15) as hold:
        apply(partition.log, NOW)
        partition.log.remove_due(bench.clock() + 10_000)
        assert [len(segment.log.read(0, 10_000)) for segment in hold.snapshot.segments] == [5 * SIZE] * 3
    assert partition.log.remove_due(bench.clock() + 10_000) > 0
    assert bench.names(".deleted") == []


def test_who_promised_segments_is_told_before_they_leave_the_list(bench: Bench) -> None:
    partition = filled(bench, retention_bytes=0)
    bench.exact = False
    told: list[list[int]] = []

    def hook(segments: Sequence[Segment]) -> None:
        assert all(segment in partition.log.chain.segments for segment in segments)
        told.append([segment.base_offset for segment in segments])

    partition.log.register_reader(hook)
    apply(partition.log, NOW)
    assert told[0] == [0, 5, 10]
    apply(partition.log, NOW)
    assert told[-1] == [0, 5, 10]


def test_many_segments_go_in_steps_between_which_others_have_the_lock(bench: Bench) -> None:
    partition = filled(bench, 5 * 150, retention_bytes=0, file_delete_delay_ms=0)
    bench.exact = False
    removed = apply(partition.log, NOW)
    assert removed.segments == 150
    assert bases_of(partition) == [750]


def test_without_something_due_no_index_behind_the_first_is_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(bench, 100, retention_bytes=1000 * SIZE, **OLD)
    partition = bench.reopen()
    opened: list[str] = []
    real = os.open

    def spy(path: Path | str, *rest: Any, **named: Any) -> int:
        opened.append(Path(path).name)
        return real(path, *rest, **named)

    monkeypatch.setattr(os, "open", spy)
    assert retain(partition) == 0
    assert [name for name in opened if name.endswith("timeindex")] == ["00000000000000000000.timeindex"]


def test_what_went_is_logged_with_its_reason(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    partition = filled(bench, retention_bytes=5 * SIZE)
    with caplog.at_level(logging.INFO):
        apply(partition.log, NOW)
    assert f"2 segments of {10 * SIZE} bytes removed for their size" in caplog.text


def test_counts_add_up() -> None:
    a = Removed({Reason.SIZE: (1, 10)})
    b = Removed({Reason.SIZE: (2, 5), Reason.TIME: (1, 1)})
    assert (a + b).by_reason == {Reason.SIZE: (3, 15), Reason.TIME: (1, 1)}
    assert ((a + b).segments, (a + b).bytes) == (4, 16)


# -- what is next ---------------------------------------------------------------------------------------


def test_the_next_segment_and_its_time_are_told(bench: Bench) -> None:
    partition = filled(bench, **OLD)
    said = next_due(partition.log, NOW)
    assert said is not None
    assert (said.segment.base_offset, said.reason, said.at_ms, said.more_bytes) == (
        0,
        None,
        NOW + HOUR + 1,
        None,
    )
    assert said.at_ms is not None
    assert retain(partition, said.at_ms - 1) == 0
    assert retain(partition, said.at_ms) == 3


def test_the_bytes_until_the_next_segment_goes_are_told(bench: Bench) -> None:
    partition = filled(bench, retention_bytes=12 * SIZE)
    said = next_due(partition.log, NOW)
    assert said is not None
    assert (said.segment.base_offset, said.at_ms, said.more_bytes) == (0, None, 2 * SIZE)
    partition.append_batch(batch(1))
    assert retain(partition) == 0
    partition.append_batch(batch(1))
    assert retain(partition) == 1


def test_what_is_due_now_is_told_with_its_reason(bench: Bench) -> None:
    partition = filled(bench, retention_bytes=5 * SIZE)
    said = next_due(partition.log, NOW)
    assert said is not None
    assert said.reason is Reason.SIZE


@pytest.mark.parametrize("settings", [{}, {"cleanup_policy": "compact", "retention_bytes": 0, **OLD}])
def test_where_nothing_ever_goes_nothing_is_told(bench: Bench, settings: dict[str, object]) -> None:
    partition = filled(bench, **settings)
    assert next_due(partition.log, NOW) is None
