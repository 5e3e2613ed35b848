"""A reader's hold: what it holds stays readable whatever is removed; what it does not hold goes.

The contract's reading path knows no holds; that what a reader has begun is delivered is ours (DESIGN, section 2 and 5).
"""

from __future__ import annotations

import pytest
from partition_bench import Bench, bases_of, batch

from topicfs.engine.errors import ClosedError, OffsetOutOfRangeError
from topicfs.engine.partition import reader
from topicfs.engine.partition.hold import Hold
from topicfs.engine.partition.log import Log
from topicfs.engine.partition.offsets import Isolation
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.snapshot import Snapshot
from topicfs.engine.segment.segment import Segment
from topicfs.engine.segment.segments import Segments


def filled(bench: Bench, **settings: object) -> Partition:
    """Segments at 0, 3, 6 and 9, the last one with a record too."""
    partition = bench.open(file_delete_delay_ms=0, **settings)
    for _ in range(3):
        partition.append_batch(batch(3))
        partition.roll()
    partition.append_batch(batch(3))
    assert bases_of(partition) == [0, 3, 6, 9]
    return partition


def drop_all(bench: Bench, partition: Partition) -> None:
    """Throw every segment away, and run what removes the files."""
    partition.restart_at(100)
    partition.log.remove_due(bench.clock.advance(1))


def test_what_is_held_stays_readable_after_its_removal(bench: Bench) -> None:
    partition = filled(bench)
    with partition.hold() as hold:
        drop_all(bench, partition)
        read = [
            row for segment in hold.held for _, table in segment.log.batches() for row in table[:, 2].tolist()
        ]
        assert read == [0, 3, 6, 9]
        assert bench.names(".log.deleted") == [
            ".log.deleted",
            "3.log.deleted",
            "6.log.deleted",
            "9.log.deleted",
        ]
    partition.log.remove_due(bench.clock())
    assert bench.names(".deleted") == []


def test_only_the_segments_of_the_range_are_held(bench: Bench) -> None:
    partition = filled(bench)
    with partition.hold(4, 7) as hold:
        assert [segment.base_offset for segment in hold.held] == [3, 6]
    with partition.hold(3, 6) as hold:
        assert [segment.base_offset for segment in hold.held] == [3]
    with partition.hold(5, 5) as hold:
        assert hold.held == []
    assert all(segment.pins == 0 for segment in partition.log.chain.segments)


def test_what_lies_below_an_offset_can_be_let_go_early(bench: Bench) -> None:
    partition = filled(bench)
    hold = partition.hold()
    hold.release(6)
    assert [segment.base_offset for segment in hold.held] == [6, 9]
    hold.release(7)
    assert [segment.base_offset for segment in hold.held] == [6, 9]
    hold.release(1000)
    assert [segment.base_offset for segment in hold.held] == [9]
    hold.release()
    hold.release()
    assert all(segment.pins == 0 for segment in partition.log.chain.segments)


def test_two_holds_are_let_go_one_by_one(bench: Bench) -> None:
    partition = filled(bench)
    one, two = partition.hold(), partition.hold()
    drop_all(bench, partition)
    one.release()
    assert len(bench.names(".log.deleted")) == 4
    partition.log.remove_due(bench.clock())
    assert len(bench.names(".log.deleted")) == 4
    two.release()
    partition.log.remove_due(bench.clock())
    assert bench.names(".deleted") == []


def test_records_that_a_reader_has_begun_are_all_delivered(bench: Bench) -> None:
    partition = filled(bench)
    records = partition.records()
    assert next(records).offset == 0
    drop_all(bench, partition)
    partition.append_batch(batch(2))
    assert [record.offset for record in records] == list(range(1, 12))
    assert [record.offset for record in partition.records()] == [100, 101]


def test_a_held_segment_keeps_its_content_when_its_name_is_used_again(bench: Bench) -> None:
    partition = filled(bench)
    before = list(partition.records())
    records = partition.records()
    first = next(records)
    partition.restart_at(0)
    partition.append_batch(batch(before[:1] * 7))
    assert [first, *records] == before


def test_aborted_records_stay_hidden_from_a_reader_whose_segments_were_removed(bench: Bench) -> None:
    partition = bench.open(file_delete_delay_ms=0)
    partition.append_batch(batch(1))
    partition.roll()
    partition.append_batch(batch(2, producer=1, transactional=True))
    partition.end_transaction(1, 0, commit=False)
    partition.append_batch(batch(1))
    for restarted_at in (100, 0):
        expected = [record.offset for record in partition.records()]
        records = partition.records()
        first = next(records).offset
        partition.restart_at(restarted_at)
        partition.log.remove_due(bench.clock.advance(1))
        assert [first, *(record.offset for record in records)] == expected
        partition.append_batch(batch(1))
        partition.roll()
        partition.append_batch(batch(2, producer=1, transactional=True))
        partition.end_transaction(1, 0, commit=False)
        partition.append_batch(batch(1))


def test_look_ups_in_held_segments_go_on_after_their_removal(bench: Bench) -> None:
    partition = filled(bench, index_interval_bytes=0)
    with partition.hold() as hold:
        places = [segment.position_of(segment.base_offset + 1) for segment in hold.held]
        drop_all(bench, partition)
        assert [segment.position_of(segment.base_offset + 1) for segment in hold.held] == places


def test_a_reader_that_stops_early_lets_go(bench: Bench) -> None:
    partition = filled(bench)
    records = partition.records()
    next(records)
    assert any(segment.pins for segment in partition.log.chain.segments)
    records.close()
    assert all(segment.pins == 0 for segment in partition.log.chain.segments)


def test_a_hold_takes_the_list_that_is_published_when_a_segment_goes_meanwhile(bench: Bench) -> None:
    partition = filled(bench)
    log = partition.log
    before = log.snapshot
    stale = before.segments
    partition.restart_at(100)
    partition.append_batch(batch(1))

    class Racing:
        """A log that publishes its new snapshot only after the old one was taken."""

        taken = 0
        with_snapshot = Log.with_snapshot
        check_open = staticmethod(log.check_open)
        _is_restarting = False

        @property
        def snapshot(self) -> Snapshot:
            self.taken += 1
            return before if self.taken == 1 else log.snapshot

    with Hold.take(Racing(), 0, 101) as hold:  # type: ignore[arg-type]
        assert [segment.base_offset for segment in hold.held] == [100]
    assert all(segment.pins == 0 for segment in stale)


def test_a_truncation_between_the_pins_and_the_look_at_the_log_leaves_none_of_these_pins(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = filled(bench)
    stale = partition.log.snapshot.segments
    pin = Segment.pin
    cuts = [10]

    def pinned(segment: Segment) -> None:
        pin(segment)
        if segment.base_offset == 9 and cuts:
            partition.truncate_to(cuts.pop())

    monkeypatch.setattr(Segment, "pin", pinned)
    with partition.hold() as hold:
        assert [segment.base_offset for segment in hold.held] == [0, 3, 6, 9]
        assert hold.snapshot.end == 10
        assert [segment.pins for segment in hold.held] == [1, 1, 1, 1]
    assert all(segment.pins == 0 for segment in stale)


def test_a_range_whose_beginning_was_removed_is_out_of_range_not_empty(bench: Bench) -> None:
    partition = filled(bench)
    left = Segments.of(tuple(partition.log.chain.segments)[2:])
    with pytest.raises(OffsetOutOfRangeError):
        list(reader.read_columns(partition.log.snapshot.of(left), 0, 12, Isolation.COMMITTED))


def test_a_closed_partition_cannot_be_held(bench: Bench) -> None:
    partition = filled(bench)
    partition.close()
    with pytest.raises(ClosedError):
        partition.hold()
    bench.reopen_closed(12)
