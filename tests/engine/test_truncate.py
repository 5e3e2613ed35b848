"""Cutting a log at either end: KAFKA_FORMAT 5.6, 8.2, and the truncation, start-offset, delete-records and
async-delete lines of KAFKA_CASES M.

Not here:
* Retention by size, time and start offset, and what it does to compacted topics: a later issue.
* Indexes back at their full size (testIndexResizingAtTruncation): ours are never preallocated; that they are not full
  after a truncation is here.
* A background error that takes the directory offline (testBackgroundDeletionWithIOException): the store's matter; that
  the error comes out of `remove_due` is in test_failures.
"""

from __future__ import annotations

import pytest
from partition_bench import NOW, Bench, bases_of, batch, values

from topicfs.engine.errors import ClosedError, OffsetOutOfRangeError, PolicyViolationError
from topicfs.engine.partition import cutting
from topicfs.engine.partition.epochs import LeaderEpochs
from topicfs.engine.partition.log import Log
from topicfs.engine.partition.partition import Partition, Producer
from topicfs.engine.record import Record
from topicfs.engine.segment.segment import Segment


def filled(bench: Bench, **settings: object) -> Partition:
    """20 records in batches of 2, in several segments."""
    partition = bench.open(segment_bytes=250, index_interval_bytes=100, **settings)
    fill(partition)
    assert len(bases_of(partition)) > 2
    return partition


def fill(partition: Partition) -> None:
    for at in range(partition.end_offset, 20, 2):
        partition.append([Record(b"%d" % each, timestamp=NOW + each) for each in (at, at + 1)])


def offsets(partition: Partition) -> list[int]:
    return [record.offset for record in partition.records()]


# -- at the end -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [20, 21, 2**40])
def test_truncation_at_or_behind_the_end_changes_no_record(bench: Bench, offset: int) -> None:
    partition = filled(bench)
    assert not bench.truncate(offset)
    assert (partition.end_offset, offsets(partition)) == (20, list(range(20)))


def test_truncation_at_the_end_removes_epochs_that_begin_there(bench: Bench) -> None:
    partition = filled(bench)
    partition.log.become_leader(7)
    assert partition.log.epochs.entries == ((0, 0), (7, 20))
    bench.truncate(20)
    assert partition.log.epochs.entries == ((0, 0),)
    assert partition.log.epochs.path.read_text() == "0\n1\n0 0\n"


@pytest.mark.parametrize("offset", [*range(0, 20, 2)])
def test_truncation_keeps_what_is_below_and_a_refill_gives_the_same(bench: Bench, offset: int) -> None:
    partition = filled(bench)
    before = list(partition.records())
    size, bases = partition.size, bases_of(partition)
    assert bench.truncate(offset)
    assert list(partition.records()) == before[:offset]
    assert (partition.end_offset, partition.high_watermark) == (offset, offset)
    assert partition.read(offset, 1000).data == b""
    with pytest.raises(OffsetOutOfRangeError):
        partition.read(offset + 1, 1000)
    fill(partition)
    assert list(partition.records()) == before
    assert (partition.size, bases_of(partition)) == (size, bases)


@pytest.mark.parametrize("start", [0, 17])
def test_the_end_of_a_log_that_was_cut_within_a_batch_stays_over_a_clean_stop(
    bench: Bench, start: int
) -> None:
    """regression: the log ended at the batch before, its offsets were given again, and records below a start offset
    behind that batch were shown again"""
    partition = filled(bench)
    bench.truncate(17)
    if start:
        partition.delete_records(start)
    kept = offsets(partition)
    partition = bench.reopen()
    assert (partition.start_offset, partition.end_offset, offsets(partition)) == (start, 17, kept)


def test_truncation_within_a_batch_cuts_the_whole_batch_and_ends_at_the_offset(bench: Bench) -> None:
    partition = filled(bench)
    bench.truncate(7)
    assert (partition.end_offset, offsets(partition)) == (7, list(range(6)))
    partition.append(Record(b"next"))
    assert offsets(partition) == [*range(6), 7]


def test_truncation_removes_later_segments_and_grows_the_one_that_is_cut(bench: Bench) -> None:
    partition = filled(bench)
    bases = bases_of(partition)
    bench.truncate(bases[1] + 2)
    assert bases_of(partition) == bases[:2]
    active = partition.log.chain.active
    assert not active.offset_index.is_full
    assert not active.time_index.is_full
    partition.append(values(2))
    assert bases_of(partition) == bases[:2]


def test_truncation_at_a_base_keeps_the_segment_empty(bench: Bench) -> None:
    partition = filled(bench)
    bases = bases_of(partition)
    bench.truncate(bases[1])
    assert bases_of(partition) == bases[:2]
    assert partition.log.chain.active.size == 0


def test_truncation_after_a_stop_works_too(bench: Bench) -> None:
    filled(bench)
    partition = bench.reopen()
    bench.truncate(3)
    assert (bases_of(partition), partition.end_offset) == ([0], 3)
    partition = bench.crash()
    assert offsets(partition) == [0, 1]


def test_truncation_to_a_negative_offset_is_an_error(bench: Bench) -> None:
    partition = filled(bench)
    with pytest.raises(ValueError, match="-1"):
        partition.truncate_to(-1)


def test_truncation_lowers_the_recovery_point(bench: Bench) -> None:
    partition = filled(bench)
    partition.flush()
    assert partition.recovery_point == 20
    bench.truncate(8)
    assert partition.recovery_point == 8


def test_truncation_below_the_start_lowers_the_start(bench: Bench) -> None:
    partition = filled(bench)
    partition.delete_records(5)
    bench.truncate(4)
    assert (partition.start_offset, partition.high_watermark, partition.end_offset) == (4, 4, 4)


def test_truncation_below_the_first_segment_empties_the_log_and_begins_there(bench: Bench) -> None:
    partition = bench.open()
    partition.restart_at(100)
    partition.append(values(5))
    bench.truncate(40)
    assert bases_of(partition) == [40]
    assert (partition.start_offset, partition.stable_offset, partition.end_offset) == (40, 40, 40)
    assert partition.append(Record(b"v")).first_offset == 40


def test_epochs_follow_a_truncation(bench: Bench) -> None:
    partition = bench.open()
    for base, epoch in ((0, 1), (10, 2), (16, 3)):
        partition.append_raw(batch(2, base=base, leader_epoch=epoch))
    bench.truncate(17)
    assert partition.log.epochs.entries == ((1, 0), (2, 10), (3, 16))
    bench.truncate(16)
    assert partition.log.epochs.entries == ((1, 0), (2, 10))
    bench.truncate(10)
    assert partition.log.epochs.entries == ((1, 0),)
    bench.truncate(0)
    assert partition.log.epochs.entries == ()


def test_where_an_epoch_ends_is_told_from_the_log(bench: Bench) -> None:
    partition = bench.open()
    partition.append(values(3))
    partition.log.become_leader(2)
    partition.append(values(2))
    epochs = partition.log.epochs
    assert epochs.end_offset_for(0, partition.end_offset) == (0, 3)
    assert epochs.end_offset_for(2, partition.end_offset) == (2, 5)
    bench.truncate(3)
    assert epochs.end_offset_for(0, partition.end_offset) == (0, 3)


# -- everything -----------------------------------------------------------------------------------------


def test_a_restart_leaves_one_empty_segment_at_the_offset(bench: Bench) -> None:
    partition = filled(bench)
    partition.restart_at(500)
    assert (bases_of(partition), partition.size) == ([500], 0)
    o = partition.offsets
    assert (o.start, o.stable, o.high_watermark, o.end) == (500, 500, 500, 500)
    assert partition.log.epochs.entries == ()
    assert bench.names(".snapshot") == []
    assert partition.append(Record(b"v")).first_offset == 500


@pytest.mark.parametrize("offset", [0, 4, 20])
def test_a_restart_at_a_base_that_was_there_begins_with_new_files(bench: Bench, offset: int) -> None:
    partition = filled(bench)
    partition.restart_at(offset)
    partition.append(Record(b"new"))
    assert [(record.offset, record.value) for record in partition.records()] == [(offset, b"new")]


# -- at the start ---------------------------------------------------------------------------------------


def test_deleted_records_cannot_be_read(bench: Bench) -> None:
    partition = filled(bench)
    assert partition.delete_records(7) == 7
    assert offsets(partition) == list(range(7, 20))
    with pytest.raises(OffsetOutOfRangeError):
        partition.read(6, 1000)
    with pytest.raises(OffsetOutOfRangeError):
        list(partition.records(6))
    assert partition.size > 0
    assert bases_of(partition)[0] == 0


def test_deleting_up_to_minus_one_deletes_up_to_the_high_watermark(bench: Bench) -> None:
    partition = filled(bench)
    partition.log.set_high_watermark(11)
    assert partition.delete_records(-1) == 11
    assert partition.start_offset == 11


@pytest.mark.parametrize("before", [0, 3, 5])
def test_deleting_at_or_below_the_start_changes_nothing(bench: Bench, before: int) -> None:
    partition = filled(bench)
    partition.delete_records(5)
    assert partition.delete_records(before) == 5


@pytest.mark.parametrize("before", [-2, 12, 20, 21])
def test_deleting_outside_of_zero_to_the_high_watermark_is_refused(bench: Bench, before: int) -> None:
    partition = filled(bench)
    partition.log.set_high_watermark(11)
    with pytest.raises(OffsetOutOfRangeError):
        partition.delete_records(before)
    assert partition.start_offset == 0


@pytest.mark.parametrize("policy", ["compact", ""])
def test_deleting_needs_the_delete_policy(bench: Bench, policy: str) -> None:
    partition = bench.open(cleanup_policy=policy)
    partition.append(Record(b"v", b"k"))
    with pytest.raises(PolicyViolationError):
        partition.delete_records(1)
    assert partition.start_offset == 0


def test_deleting_is_allowed_where_a_topic_is_compacted_and_deleted(bench: Bench) -> None:
    partition = bench.open(cleanup_policy="compact,delete")
    partition.append(Record(b"v", b"k"))
    assert partition.delete_records(1) == 1


def test_the_start_cannot_be_raised_above_the_high_watermark(bench: Bench) -> None:
    partition = filled(bench)
    partition.log.set_high_watermark(11)
    with pytest.raises(OffsetOutOfRangeError):
        partition.log.raise_start_offset(12)
    assert partition.log.raise_start_offset(11)
    assert not partition.log.raise_start_offset(11)
    assert partition.start_offset == 11


def test_epochs_follow_the_start(bench: Bench) -> None:
    partition = bench.open()
    for base, epoch in ((0, 1), (10, 2), (16, 3)):
        partition.append_raw(batch(2, base=base, leader_epoch=epoch))
    partition.delete_records(5)
    assert partition.log.epochs.entries == ((1, 5), (2, 10), (3, 16))
    partition.delete_records(10)
    assert partition.log.epochs.entries == ((2, 10), (3, 16))
    partition.delete_records(18)
    assert partition.log.epochs.entries == ((3, 18),)


def test_the_recovery_point_is_no_lower_than_the_start_once_reopened(bench: Bench) -> None:
    partition = filled(bench)
    partition.delete_records(9)
    partition = bench.crash()
    assert (partition.start_offset, partition.recovery_point) == (9, 9)


# -- files ----------------------------------------------------------------------------------------------


def test_removed_segments_are_renamed_at_once_and_gone_after_the_delay(bench: Bench) -> None:
    partition = filled(bench, file_delete_delay_ms=1000)
    partition.log.chain.segments.last.flush()
    last = bases_of(partition)[-1]
    bench.truncate(2)
    names = bench.names(".deleted")
    assert f"{last}.log.deleted" in names
    assert f"{last}.index.deleted" in names
    assert f"{last}.timeindex.deleted" in names
    assert f"{last}.snapshot.deleted" in names or f"{last}.snapshot" not in bench.names(".snapshot")
    assert partition.log.remove_due(bench.clock.advance(999)) == 0
    assert bench.names(".deleted") == names
    assert partition.log.remove_due(bench.clock.advance(1)) > 0
    assert bench.names(".deleted") == []
    assert partition.log.remove_due(bench.clock()) == 0


def test_with_no_delay_the_next_run_removes_them(bench: Bench) -> None:
    partition = filled(bench, file_delete_delay_ms=0)
    bench.truncate(2)
    assert bench.names(".deleted") != []
    partition.log.remove_due(bench.clock())
    assert bench.names(".deleted") == []


def test_the_same_base_can_be_removed_again_before_the_delay_is_over(bench: Bench) -> None:
    partition = filled(bench)
    for _ in range(3):
        partition.restart_at(0)
        partition.append(values(2))
    partition.log.remove_due(bench.clock.advance(60_000))
    assert bench.names(".deleted") == []
    assert offsets(partition) == [0, 1]


def test_cutting_a_closed_partition_is_refused(bench: Bench) -> None:
    partition = filled(bench)
    partition.close()
    for cut in (
        lambda: partition.truncate_to(2),
        lambda: partition.restart_at(2),
        lambda: partition.delete_records(2),
        partition.flush,
    ):
        with pytest.raises(ClosedError):
            cut()
    bench.partition = None


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_whose_end_is_cut_off_is_undecided_as_soon_as_the_cut_shows(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, commit: bool
) -> None:
    """Also while the truncation still goes on: what was aborted never shows."""
    partition = bench.open()
    partition.append_batch(batch(1))
    partition.append(Record(b"undecided", timestamp=NOW), Producer(7, 0, 0, transactional=True))
    partition.end_transaction(7, 0, commit)
    whole = [record.offset for record in partition.records()]
    seen: list[tuple[int, list[int]]] = []

    def look_before(owner: object, name: str) -> None:
        plain = getattr(owner, name)

        def looking(*arguments: object, **named: object) -> object:
            seen.append((partition.end_offset, [record.offset for record in partition.records()]))
            return plain(*arguments, **named)

        monkeypatch.setattr(owner, name, looking)

    look_before(cutting, "rebuild")
    look_before(Segment, "truncate_to")
    look_before(LeaderEpochs, "truncate_from_end")
    look_before(Log, "renew_promises")
    partition.truncate_to(2)
    monkeypatch.undo()
    assert seen == [(3, whole), (2, [0]), (2, [0]), (2, [0])]
    assert [record.offset for record in partition.records()] == [0]
