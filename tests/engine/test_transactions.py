"""Transactions in a log: KAFKA_FORMAT 5.5, 5.6 and the transaction index of 3.5, KAFKA_CASES L.

What one partition's producer state decides alone is in test_producer_manager; a transaction index that cannot
be written is in test_failures.
"""

from __future__ import annotations

import itertools

import pytest
from partition_bench import Bench, bases_of, batch, marker

from topicfs.engine.errors import InvalidProducerEpochError, TransactionCoordinatorFencedError
from topicfs.engine.format.transaction_index import AbortedTransaction
from topicfs.engine.partition.offsets import Isolation
from topicfs.engine.partition.partition import Partition, Producer
from topicfs.engine.producer.entry import Origin
from topicfs.engine.record import Record


class Writer:
    """A transactional producer that counts its sequence."""

    def __init__(self, partition: Partition, producer: int) -> None:
        self.partition = partition
        self.producer = producer
        self.sequence = 0

    def write(self, count: int) -> None:
        self.partition.append_batch(
            batch(count, producer=self.producer, sequence=self.sequence, transactional=True)
        )
        self.sequence += count

    def end(self, commit: bool) -> None:
        self.partition.end_transaction(self.producer, 0, commit)


def aborted_in(partition: Partition) -> list[AbortedTransaction]:
    return [entry for segment in partition.log.chain.segments for entry in segment.transactions.all()]


def committed(partition: Partition, start: int | None = None) -> list[int]:
    return [record.offset for record in partition.records(start)]


# -- the stable offset ----------------------------------------------------------------------------------


def test_without_transactions_the_stable_offset_is_the_high_watermark(bench: Bench) -> None:
    partition = bench.open(lone=False)
    partition.append_batch(batch(3))
    partition.append_batch(batch(2, producer=1))
    partition.log.set_high_watermark(4)
    assert partition.stable_offset == 4


def test_an_open_transaction_holds_the_stable_offset_at_its_first_record(bench: Bench) -> None:
    partition = bench.open()
    partition.append_batch(batch(3))
    writer = Writer(partition, 1)
    writer.write(2)
    partition.append_batch(batch(1))
    writer.write(1)
    assert (partition.stable_offset, partition.high_watermark) == (3, 7)
    writer.end(commit=True)
    assert (partition.stable_offset, partition.high_watermark) == (8, 8)


def test_a_completed_transaction_holds_it_until_the_high_watermark_passes_the_marker(bench: Bench) -> None:
    partition = bench.open(lone=False)
    partition.append_batch(batch(3))
    partition.log.set_high_watermark(3)
    writer = Writer(partition, 1)
    writer.write(2)
    assert partition.stable_offset == 3
    writer.end(commit=True)
    assert partition.stable_offset == 3
    partition.log.set_high_watermark(5)  # the marker's own offset
    assert partition.stable_offset == 3
    partition.log.set_high_watermark(6)
    assert partition.stable_offset == 6


def test_with_two_producers_it_moves_to_the_second_ones_first_record(bench: Bench) -> None:
    partition = bench.open()
    one, two = Writer(partition, 1), Writer(partition, 2)
    one.write(2)
    two.write(2)
    one.write(1)
    assert partition.stable_offset == 0
    one.end(commit=False)
    assert partition.stable_offset == 2
    two.end(commit=True)
    assert partition.stable_offset == 7


def test_an_open_transaction_still_holds_it_after_a_stop(bench: Bench) -> None:
    partition = bench.open()
    partition.append_batch(batch(3))
    Writer(partition, 1).write(2)
    for restart in (bench.reopen, bench.crash):
        assert restart().stable_offset == 3
    assert bench.partition is not None
    bench.partition.end_transaction(1, 0, commit=True)
    assert bench.partition.stable_offset == 6


def test_the_stable_offset_is_never_below_the_start(bench: Bench) -> None:
    partition = bench.open()
    partition.append_batch(batch(1))
    Writer(partition, 1).write(7)
    assert partition.stable_offset == 1
    partition.delete_records(5)
    assert partition.stable_offset == 5
    partition.roll()
    partition.append_batch(batch(3))
    partition.delete_records(8)
    assert partition.stable_offset == 8


def test_truncation_below_an_open_transaction_forgets_it(bench: Bench) -> None:
    partition = bench.open()
    partition.append_batch(batch(3))
    Writer(partition, 1).write(2)
    bench.truncate(3)
    assert (partition.stable_offset, len(partition.log.producers)) == (3, 0)
    partition.append_batch(batch(1))
    assert partition.stable_offset == 4


def test_truncation_of_a_marker_opens_its_transaction_again(bench: Bench) -> None:
    partition = bench.open()
    writer = Writer(partition, 1)
    writer.write(2)
    writer.end(commit=False)
    assert (partition.stable_offset, len(aborted_in(partition))) == (3, 1)
    bench.truncate(2)
    assert (partition.stable_offset, aborted_in(partition)) == (0, [])
    writer.end(commit=True)
    assert committed(partition) == [0, 1]


# -- markers --------------------------------------------------------------------------------------------


def test_a_marker_takes_an_offset_and_is_shown_to_nobody(bench: Bench) -> None:
    partition = bench.open()
    writer = Writer(partition, 1)
    writer.write(2)
    appended = partition.end_transaction(1, 0, commit=True)
    assert (appended.first_offset, appended.last_offset, partition.end_offset) == (2, 2, 3)
    for isolation in Isolation:
        assert [record.offset for record in partition.records(isolation=isolation)] == [0, 1]


@pytest.mark.parametrize("with_data", [True, False])
def test_a_marker_of_an_older_coordinator_is_refused(bench: Bench, with_data: bool) -> None:
    partition = bench.open()
    if with_data:
        Writer(partition, 1).write(1)
    partition.end_transaction(1, 0, commit=True, coordinator_epoch=1)
    end = partition.end_offset
    if with_data:
        partition.append_batch(batch(1, producer=1, sequence=1, transactional=True))
        end += 1
    with pytest.raises(TransactionCoordinatorFencedError):
        partition.end_transaction(1, 0, commit=True, coordinator_epoch=0)
    assert partition.end_offset == end
    partition.end_transaction(1, 0, commit=True, coordinator_epoch=2)


def test_a_marker_of_a_fenced_producer_is_refused(bench: Bench) -> None:
    partition = bench.open()
    partition.append_batch(batch(1, producer=1, epoch=5, transactional=True))
    with pytest.raises(InvalidProducerEpochError):
        partition.end_transaction(1, 4, commit=True)
    assert partition.end_offset == 1
    assert partition.stable_offset == 0


def test_a_follower_takes_a_marker_of_an_older_coordinator(bench: Bench) -> None:
    partition = bench.open()
    for base, epoch in enumerate((3, 1, 2)):
        partition.append_raw(marker(1, commit=True, coordinator_epoch=epoch, base=base))
    partition = bench.crash()
    assert partition.log.producers.producers[1].coordinator_epoch == 2


def test_a_marker_without_data_ends_nothing(bench: Bench) -> None:
    partition = bench.open()
    partition.end_transaction(1, 3, commit=False)
    assert (aborted_in(partition), partition.stable_offset) == ([], 1)
    assert partition.log.producers.producers[1].epoch == 3


def test_a_committed_transaction_has_no_index_entry(bench: Bench) -> None:
    partition = bench.open()
    writer = Writer(partition, 1)
    writer.write(2)
    writer.end(commit=True)
    assert bench.names(".txnindex") == []


# -- the index of aborted transactions ------------------------------------------------------------------

MIXED = [
    AbortedTransaction(1, 0, 29, 8),
    AbortedTransaction(2, 8, 74, 36),
]


def mixed(partition: Partition) -> None:
    """Four producers whose transactions overlap: those of 1 and 2 are aborted, those of 3 and 4 committed."""
    one, two, three, four = (Writer(partition, producer) for producer in (1, 2, 3, 4))
    one.write(5)  # 0
    partition.append_batch(batch(3))  # 5
    two.write(2)  # 8
    one.write(4)  # 10
    three.write(15)  # 14
    one.end(commit=False)  # 29
    three.end(commit=True)  # 30
    partition.append_batch(batch(5))  # 31
    four.write(6)  # 36
    two.write(12)  # 42
    four.write(10)  # 54
    two.write(10)  # 64
    two.end(commit=False)  # 74
    four.end(commit=True)  # 75
    assert partition.end_offset == 76


def test_overlapping_transactions_give_the_entries_of_those_that_were_aborted(bench: Bench) -> None:
    partition = bench.open()
    mixed(partition)
    assert aborted_in(partition) == MIXED


def test_a_follower_writes_the_same_entries(bench: Bench) -> None:
    partition = bench.open()
    mixed(partition)
    raw = partition.read(0, 1_000_000).data
    partition.restart_at(0)
    partition.append_raw(raw)
    assert aborted_in(partition) == MIXED


@pytest.mark.parametrize("rolls", [False, True])
def test_recovery_writes_the_same_entries(bench: Bench, rolls: bool) -> None:
    partition = bench.open(**({"segment_bytes": 700} if rolls else {}))
    mixed(partition)
    assert (len(bases_of(partition)) > 1) == rolls
    partition = bench.crash(recovery_point=0)
    assert aborted_in(partition) == MIXED


def test_recovery_of_the_last_segment_only_writes_its_entries(bench: Bench) -> None:
    partition = bench.open(segment_bytes=700)
    mixed(partition)
    last = partition.log.chain.active.base_offset
    partition.flush(last)
    partition = bench.crash(recovery_point=last)
    assert aborted_in(partition) == MIXED


def test_recovery_of_the_last_segment_without_snapshots_writes_its_entries(bench: Bench) -> None:
    partition = bench.open(segment_bytes=700)
    mixed(partition)
    last = partition.log.chain.active.base_offset
    partition.log.abandon()
    for path in bench.directory.glob("*.snapshot"):
        path.unlink()
    partition = bench.crash(recovery_point=last)
    assert aborted_in(partition) == MIXED


def test_only_committed_records_are_read(bench: Bench) -> None:
    partition = bench.open(segment_bytes=700)
    mixed(partition)
    visible = [*range(5, 8), *range(14, 29), *range(31, 42), *range(54, 64)]
    assert committed(partition) == visible
    for start in (0, 6, 20, 40, 60, 75):
        assert committed(partition, start) == [offset for offset in visible if offset >= start]
    everything = [record.offset for record in partition.records(isolation=Isolation.UNCOMMITTED)]
    assert everything == [offset for offset in range(76) if offset not in (29, 30, 74, 75)]


def test_a_fetch_of_committed_data_names_the_aborted_transactions_that_overlap_it(bench: Bench) -> None:
    partition = bench.open()
    mixed(partition)
    assert list(partition.read(0, 1_000_000).aborted) == MIXED
    assert list(partition.read(30, 1_000_000).aborted) == MIXED[1:]
    assert list(partition.read(75, 1_000_000).aborted) == []
    assert partition.read(0, 1_000_000, Isolation.UNCOMMITTED).aborted == ()
    assert partition.read(0, 1_000_000, Isolation.LOG_END).aborted == ()


def test_an_aborted_transaction_across_segments_is_named_by_a_fetch_from_the_first(bench: Bench) -> None:
    partition = bench.open()
    one, two = Writer(partition, 1), Writer(partition, 2)
    one.write(5)
    partition.roll()
    two.write(3)
    partition.roll()
    one.write(2)
    one.end(commit=False)
    two.end(commit=True)
    entry = AbortedTransaction(1, 0, 10, 5)
    assert partition.read(0, 100_000).aborted == (entry,)
    assert partition.read(8, 100_000).aborted == (entry,)
    assert committed(partition) == [5, 6, 7]


@pytest.mark.parametrize("commit", list(itertools.product([True, False], repeat=2)))
def test_transactions_of_one_producer_are_decided_one_by_one(bench: Bench, commit: tuple[bool, bool]) -> None:
    partition = bench.open()
    writer = Writer(partition, 1)
    expected = []
    for each in commit:
        first = partition.end_offset
        writer.write(2)
        writer.end(each)
        if each:
            expected += [first, first + 1]
    assert committed(partition) == expected


def test_records_outside_transactions_of_an_aborting_producers_neighbours_stay(bench: Bench) -> None:
    partition = bench.open()
    writer = Writer(partition, 1)
    writer.write(1)
    partition.append(Record(b"plain"))
    partition.append_batch(batch(1, producer=2))
    writer.end(commit=False)
    assert committed(partition) == [1, 2]


def test_records_appended_in_a_transaction_belong_to_it(bench: Bench) -> None:
    partition = bench.open(max_message_bytes=300)
    records = [Record(b"x" * 100) for _ in range(4)]
    partition.append(records, Producer(9, 2, 0, transactional=True))
    assert (partition.stable_offset, partition.end_offset) == (0, 4)
    partition.end_transaction(9, 2, commit=False)
    assert committed(partition) == []


def test_several_transactions_in_one_follower_append_give_the_same_entries_as_one_by_one(
    bench: Bench,
) -> None:
    partition = bench.open()
    parts = []
    for base in range(0, 12, 4):
        parts += [
            batch(2, producer=1, sequence=base, transactional=True, base=base),
            batch(1, producer=2, sequence=base, transactional=True, base=base + 2),
            marker(1, commit=False, base=base + 3),
        ]
    partition.append_raw(b"".join(parts))
    assert [(e.first_offset, e.last_offset, e.last_stable_offset) for e in aborted_in(partition)] == [
        (0, 3, 2),
        (4, 7, 2),
        (8, 11, 2),
    ]
    assert partition.stable_offset == 2


def test_a_coordinators_own_records_need_no_sequence(bench: Bench) -> None:
    partition = bench.open()
    partition.append_batch(batch(2, producer=1, sequence=5), Origin.COORDINATOR)
    partition.append_batch(batch(2, producer=1, sequence=1), Origin.COORDINATOR)
    assert partition.end_offset == 4
