"""Producers of a partition: KAFKA_FORMAT 5.4, 5.5, 7.8, 7.9, KAFKA_CASES G, and the lines of I and L that the
producer state decides alone.

Not here:
* I: the end offset after a duplicate, snapshots on roll and flush, segments that go with their snapshots, and
  the making of missing snapshots are what the partition and its loader do with this state.
* L: the failing transaction index, aborted transactions across segments and the start offset as lower bound
  of the stable offset need a log; testTransactionIndexUpdated is here as far as the entries' numbers go.
* G testReadWriteSnapshot is in test_producer_snapshot.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
import pytest

from topicfs.engine.batch.marker import Marker
from topicfs.engine.errors import (
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from topicfs.engine.format.batch_header import ABORT, COMMIT
from topicfs.engine.format.transaction_index import AbortedTransaction
from topicfs.engine.producer.entry import (
    BatchInfo,
    BatchMetadata,
    Origin,
    ProducerEntry,
    decrement,
    last_sequence_of,
)
from topicfs.engine.producer.manager import CompletedTransaction, OpenTransaction, ProducerStates

MAXI = 2**31 - 1
PRODUCER = 1
NOW = 1_000_000
EXPIRATION = 86_400_000


@pytest.fixture
def states(tmp_path: Path) -> ProducerStates:
    return ProducerStates.open(tmp_path, EXPIRATION)


def data(
    sequence: int,
    offset: int,
    *,
    producer: int = PRODUCER,
    epoch: int = 0,
    count: int = 1,
    timestamp: int = NOW,
    transactional: bool = False,
) -> BatchInfo:
    return BatchInfo(
        producer,
        epoch,
        sequence,
        last_sequence_of(sequence, count - 1),
        offset,
        offset + count - 1,
        timestamp,
        transactional,
    )


def end(
    kind: int,
    offset: int,
    *,
    producer: int = PRODUCER,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    timestamp: int = NOW,
) -> BatchInfo:
    marker = Marker(kind, coordinator_epoch)
    return BatchInfo(producer, epoch, -1, -1, offset, offset, timestamp, True, True, marker)


def append(
    states: ProducerStates, *batches: BatchInfo, origin: Origin = Origin.CLIENT
) -> list[CompletedTransaction]:
    """What a partition does, without a log: prepare, commit, and complete what was ended."""
    update = states.prepare(origin)
    for batch in batches:
        assert update.add(batch) is None
    states.commit(update)
    for completed in update.completed:
        states.complete_transaction(completed)
    return update.completed


def mark(states: ProducerStates, batch: BatchInfo) -> list[CompletedTransaction]:
    return append(states, batch, origin=Origin.COORDINATOR)


def reloaded(states: ProducerStates, *, now: int = NOW, expiration: int = EXPIRATION) -> ProducerStates:
    """As after a restart: from the newest snapshot up to the map end offset."""
    again = ProducerStates.open(states.directory, expiration)
    again.truncate_and_reload(0, states.map_end_offset, now)
    return again


def snapshot_files(directory: Path) -> list[int]:
    return sorted(int(path.name[:20]) for path in directory.glob("*.snapshot"))


def snapshots_at(states: ProducerStates, *offsets: int) -> None:
    for offset in offsets:
        states.advance(offset)
        assert states.take_snapshot(fsync=False) is not None


# -- sequences and epochs ---------------------------------------------------------------------------


def test_sequences_follow_each_other_and_epochs_fence(states: ProducerStates) -> None:
    append(states, data(0, 0))
    append(states, data(1, 1))
    for sequence in (1, 5):
        # The repeated one spans two records: an exact repetition would be a duplicate.
        with pytest.raises(OutOfOrderSequenceError, match=f"expected sequence 2 .*found {sequence}"):
            append(states, data(sequence, 2, count=2))
    append(states, data(0, 2, epoch=1))
    with pytest.raises(InvalidProducerEpochError, match="expected producer epoch 1 or above, found 0"):
        append(states, data(2, 3))
    assert states.producers[PRODUCER].epoch == 1


def test_new_epoch_begins_at_sequence_zero(states: ProducerStates) -> None:
    append(states, data(0, 0))
    with pytest.raises(OutOfOrderSequenceError, match="expected sequence 0 of epoch 1"):
        append(states, data(1, 1, epoch=1))


def test_unknown_producer_may_begin_at_any_sequence(states: ProducerStates) -> None:
    append(states, data(16, 0, epoch=5))
    append(states, data(17, 1, epoch=5))
    assert states.producers[PRODUCER].last_sequence == 17


def test_first_entry_while_loading_may_have_any_sequence(states: ProducerStates) -> None:
    append(states, data(16, 0), origin=Origin.REPLICATION)
    append(states, data(17, 1))
    with pytest.raises(OutOfOrderSequenceError):
        append(states, data(19, 2))


def test_producer_known_by_a_marker_only_is_fenced_and_begins_at_zero(states: ProducerStates) -> None:
    mark(states, end(ABORT, 99, epoch=2))
    with pytest.raises(InvalidProducerEpochError):
        append(states, data(0, 100, epoch=1))
    with pytest.raises(OutOfOrderSequenceError, match="expected sequence 0"):
        append(states, data(17, 100, epoch=2))
    append(states, data(0, 100, epoch=2))


def test_marker_of_a_higher_epoch_clears_transaction_and_sequence(states: ProducerStates) -> None:
    append(states, data(0, 100, transactional=True))
    mark(states, end(ABORT, 101, epoch=1))
    entry = states.producers[PRODUCER]
    assert entry == ProducerEntry(PRODUCER, 1, 0, NOW)
    assert entry.last_sequence == -1
    with pytest.raises(InvalidProducerEpochError):
        append(states, data(1, 102))
    with pytest.raises(OutOfOrderSequenceError):
        append(states, data(1, 102, epoch=1))
    append(states, data(0, 102, epoch=1))


def test_marker_of_the_same_epoch_keeps_the_sequence(states: ProducerStates) -> None:
    append(states, data(0, 100, transactional=True))
    mark(states, end(COMMIT, 101))
    append(states, data(1, 102, transactional=True))
    assert states.producers[PRODUCER].current_transaction_first_offset == 102


def test_zero_follows_the_largest_sequence(states: ProducerStates) -> None:
    append(states, data(MAXI, 0))
    with pytest.raises(OutOfOrderSequenceError, match="expected sequence 0"):
        append(states, data(1, 1))
    append(states, data(0, 1))


def test_batch_may_itself_pass_the_largest_sequence(states: ProducerStates) -> None:
    batch = data(MAXI - 9, 0, count=20)
    append(states, batch)
    assert states.producers[PRODUCER].last_sequence == 9
    assert states.prepare(Origin.CLIENT).add(batch) == BatchMetadata(9, 19, 19, NOW)
    append(states, data(10, 20))


def test_replicated_batches_are_not_asked_for_sequences(states: ProducerStates) -> None:
    append(states, data(5, 0), origin=Origin.REPLICATION)
    append(states, data(9, 1), origin=Origin.REPLICATION)
    append(states, data(9, 2), origin=Origin.REPLICATION)
    assert states.producers[PRODUCER].last_sequence == 9
    assert states.producers[PRODUCER].last_data_offset == 2


def test_replicated_batch_of_an_old_epoch_is_taken_with_a_warning(
    states: ProducerStates, caplog: pytest.LogCaptureFixture
) -> None:
    append(states, data(0, 0, epoch=3))
    append(states, data(0, 1, epoch=2), origin=Origin.REPLICATION)
    assert "expected producer epoch 3 or above, found 2" in caplog.text
    assert states.producers[PRODUCER].epoch == 2


def test_coordinators_records_are_not_asked_for_sequences_but_for_the_epoch(states: ProducerStates) -> None:
    append(states, data(-1, 99, transactional=True), origin=Origin.COORDINATOR)
    append(states, data(-1, 100, transactional=True), origin=Origin.COORDINATOR)
    with pytest.raises(InvalidProducerEpochError):
        append(states, data(-1, 101, epoch=-1, transactional=True), origin=Origin.COORDINATOR)


def test_batches_without_a_producer_only_move_the_map_end(states: ProducerStates) -> None:
    append(states, data(-1, 0, producer=-1, epoch=-1, count=5))
    assert (len(states), states.map_end_offset) == (0, 5)
    states.advance(9)
    assert (len(states), states.map_end_offset) == (0, 9)


# -- duplicates -------------------------------------------------------------------------------------


def test_repetition_of_any_of_the_last_five_batches_is_a_duplicate(states: ProducerStates) -> None:
    batches = [data(2 * n, 10 * n, count=2, timestamp=NOW + n) for n in range(6)]
    for batch in batches:
        append(states, batch)
    before = states.producers[PRODUCER]
    assert len(before.batches) == 5
    for n in range(1, 6):
        update = states.prepare(Origin.CLIENT)
        repeated = batches[n]._replace(base_offset=60, last_offset=61, max_timestamp=NOW + 99)
        original = update.add(repeated)
        assert original == BatchMetadata(2 * n + 1, 10 * n + 1, 1, NOW + n)
        assert original.first_offset == 10 * n
        assert (update.entries, update.end_offset) == ({}, -1)
    with pytest.raises(OutOfOrderSequenceError):
        append(states, batches[0])
    assert states.producers[PRODUCER] is before


@pytest.mark.parametrize(("sequence", "count"), [(2, 1), (3, 1), (2, 3), (1, 2), (0, 4)])
def test_partial_duplicate_is_out_of_order(states: ProducerStates, sequence: int, count: int) -> None:
    append(states, data(0, 0, count=2))
    append(states, data(2, 2, count=2))
    with pytest.raises(OutOfOrderSequenceError):
        append(states, data(sequence, 4, count=count))


def test_same_sequences_in_another_epoch_are_no_duplicate(states: ProducerStates) -> None:
    append(states, data(0, 0))
    append(states, data(0, 1, epoch=1))
    assert states.producers[PRODUCER].batches == (BatchMetadata(0, 1, 0, NOW),)
    with pytest.raises(InvalidProducerEpochError):
        append(states, data(0, 2))


def test_duplicates_are_accepted_from_replication(states: ProducerStates) -> None:
    batches = [data(n % 3, n, producer=n % 2) for n in range(12)]
    append(states, *batches, origin=Origin.REPLICATION)
    assert {key: entry.last_data_offset for key, entry in states.producers.items()} == {0: 10, 1: 11}
    assert states.map_end_offset == 12


def test_duplicate_of_the_last_batch_is_known_after_reload(states: ProducerStates) -> None:
    for n in range(3):
        append(states, data(n, n))
    states.take_snapshot(fsync=True)
    again = reloaded(states)
    assert again.prepare(Origin.CLIENT).add(data(2, 3)) == BatchMetadata(2, 2, 0, NOW)
    with pytest.raises(OutOfOrderSequenceError):
        append(again, data(1, 3))


# -- preparing --------------------------------------------------------------------------------------


def test_preparing_changes_nothing_until_commit(states: ProducerStates) -> None:
    append(states, data(0, 0, transactional=True))
    before = dict(states.producers)
    update = states.prepare(Origin.REPLICATION)
    update.add(data(1, 1, count=5, transactional=True))
    update.add(end(COMMIT, 6))
    update.add(data(6, 7, transactional=True))
    update.add(data(0, 8, producer=2, transactional=True))
    assert states.producers == before
    assert list(states.ongoing) == [OpenTransaction(PRODUCER, 0)]
    assert states.map_end_offset == 1

    states.commit(update)
    assert states.producers[PRODUCER].current_transaction_first_offset == 7
    assert states.ongoing == (
        OpenTransaction(PRODUCER, 0),
        OpenTransaction(PRODUCER, 7),
        OpenTransaction(2, 8),
    )
    assert states.map_end_offset == 9
    assert update.completed == [CompletedTransaction(PRODUCER, 0, 6, False)]


def test_failure_in_the_middle_of_an_append_changes_nothing(states: ProducerStates) -> None:
    append(states, data(0, 0))
    update = states.prepare(Origin.REPLICATION)
    update.add(data(1, 1, transactional=True))
    with pytest.raises(InvalidTransactionStateError):
        update.add(data(2, 2))
    assert update.end_offset == 2
    assert len(update.started) == 1
    assert states.producers[PRODUCER].last_sequence == 0
    assert states.first_unstable_offset is None


def test_several_producers_in_one_append_are_each_tracked(states: ProducerStates) -> None:
    append(states, *(data(n, n, producer=n) for n in range(4)), origin=Origin.REPLICATION)
    assert {key: entry.last_sequence for key, entry in states.producers.items()} == {0: 0, 1: 1, 2: 2, 3: 3}


def test_batch_with_holes_counts_by_its_header(states: ProducerStates) -> None:
    row = np.array([0, 61, 40, 49, 3, 0x10, -1, NOW, PRODUCER, 2, 7, 0, 2], np.int64)
    batch = BatchInfo.of_row(row.tolist())
    assert batch == data(7, 40, epoch=2, count=10, transactional=True)
    append(states, batch, origin=Origin.REPLICATION)
    assert states.producers[PRODUCER].last_sequence == 16
    assert states.map_end_offset == 50


def test_row_of_a_control_batch_carries_its_marker() -> None:
    row = np.array([0, 78, 8, 8, 9, 0x30, NOW, NOW, PRODUCER, 3, -1, 1, 2], np.int64)
    marker = Marker(COMMIT, 15)
    assert BatchInfo.of_row(row.tolist(), marker) == end(COMMIT, 8, epoch=3, coordinator_epoch=15)


def test_producers_are_a_read_only_view(states: ProducerStates) -> None:
    append(states, data(0, 0))
    with pytest.raises(TypeError):
        states.producers[2] = ProducerEntry(2)  # type: ignore[index]
    assert len(states) == 1


# -- transactions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("origin", list(Origin))
def test_plain_append_during_an_open_transaction_is_refused(states: ProducerStates, origin: Origin) -> None:
    append(states, data(0, 0, transactional=True))
    with pytest.raises(InvalidTransactionStateError, match="open since offset 0"):
        append(states, data(1, 1), origin=origin)


def test_transaction_begins_at_its_first_batch(states: ProducerStates) -> None:
    append(states, data(0, 10, transactional=True))
    append(states, data(1, 11, transactional=True))
    assert states.producers[PRODUCER].current_transaction_first_offset == 10
    assert states.ongoing == (OpenTransaction(PRODUCER, 10),)


def test_first_unstable_offset_waits_for_markers_and_high_watermark(states: ProducerStates) -> None:
    assert states.first_unstable_offset is None
    append(states, data(0, 99, producer=1, transactional=True))
    assert states.first_unstable_offset == 99
    append(states, data(0, 105, producer=2, transactional=True))
    assert states.first_unstable_offset == 99
    mark(states, end(COMMIT, 109, producer=1))
    assert states.first_unstable_offset == 99
    states.on_high_watermark(100)
    assert states.first_unstable_offset == 99
    states.on_high_watermark(109)
    assert states.first_unstable_offset == 99
    states.on_high_watermark(110)
    assert states.first_unstable_offset == 105
    mark(states, end(ABORT, 112, producer=2))
    assert states.first_unstable_offset == 105
    assert states.unreplicated == (CompletedTransaction(2, 105, 112, True),)
    states.on_high_watermark(112)
    assert states.first_unstable_offset == 105
    states.on_high_watermark(113)
    assert states.first_unstable_offset is None


def test_transaction_that_ends_late_keeps_those_inside_it_waiting(states: ProducerStates) -> None:
    append(states, data(0, 10, producer=1, transactional=True))
    append(states, data(0, 20, producer=2, transactional=True))
    mark(states, end(COMMIT, 21, producer=2))
    mark(states, end(COMMIT, 30, producer=1))
    assert [each.first_offset for each in states.unreplicated] == [10, 20]
    states.on_high_watermark(25)
    assert [each.first_offset for each in states.unreplicated] == [10]
    assert states.first_unstable_offset == 10


def test_first_unstable_offset_after_truncation(states: ProducerStates) -> None:
    append(states, data(0, 99, producer=1, transactional=True))
    states.take_snapshot(fsync=False)
    append(states, data(0, 105, producer=2, transactional=True))
    mark(states, end(COMMIT, 106, producer=2))
    states.take_snapshot(fsync=False)
    assert list(states.ongoing) == [OpenTransaction(1, 99)]
    states.truncate_and_reload(0, 106, NOW)
    assert states.first_unstable_offset == 99
    assert states.map_end_offset == 100
    states.truncate_and_reload(0, 99, NOW)
    assert states.first_unstable_offset is None
    assert states.ongoing == states.unreplicated == ()
    append(states, data(0, 99, producer=3, transactional=True))
    states.truncate_fully_and_start_at(0)
    assert states.first_unstable_offset is None


def test_rising_start_offset_forgets_unreplicated_transactions_below_it(states: ProducerStates) -> None:
    append(states, data(0, 5, transactional=True))
    mark(states, end(COMMIT, 8))
    states.on_start_offset(8)
    assert states.first_unstable_offset == 5
    states.on_start_offset(9)
    assert states.first_unstable_offset is None
    assert len(states) == 1


def test_rising_start_offset_moves_the_map_end(states: ProducerStates) -> None:
    append(states, data(0, 5))
    states.on_start_offset(4)
    assert states.map_end_offset == 6
    states.on_start_offset(40)
    assert states.map_end_offset == 40
    # Nothing else tells of the producer, whose records are gone.
    path = states.take_snapshot(fsync=False)
    assert path is not None
    assert path.name == "00000000000000000040.snapshot"
    assert states.take_snapshot(fsync=False) is None


def test_stable_offset_of_a_completed_transaction_is_the_next_open_one_or_behind_the_marker(
    states: ProducerStates,
) -> None:
    for producer, offset in ((1, 992), (2, 993), (3, 994)):
        append(states, data(0, offset, producer=producer, transactional=True))
    first = CompletedTransaction(1, 992, 995, False)
    assert states.last_stable_offset_for(first) == 993
    states.complete_transaction(first)
    third = CompletedTransaction(3, 994, 996, False)
    assert states.last_stable_offset_for(third) == 993
    states.complete_transaction(third)
    second = CompletedTransaction(2, 993, 997, False)
    assert states.last_stable_offset_for(second) == 998
    states.complete_transaction(second)


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "as one update"])
@pytest.mark.parametrize("origin", [Origin.COORDINATOR, Origin.REPLICATION])
def test_mixed_workload_gives_the_same_aborted_transactions_however_it_is_applied(
    states: ProducerStates, together: bool, origin: Origin
) -> None:
    one, two = 1, 2
    log = [
        data(0, 0, producer=one, count=5, transactional=True),
        data(-1, 5, producer=-1, epoch=-1, count=3),
        data(0, 8, producer=two, count=20, transactional=True),
        data(5, 28, producer=one, transactional=True),
        end(ABORT, 29, producer=one),
        data(0, 30, producer=3, count=5, transactional=True),
        end(COMMIT, 35, producer=3),
        data(0, 36, producer=4, count=30, transactional=True),
        data(20, 66, producer=two, count=8, transactional=True),
        end(ABORT, 74, producer=two),
        data(6, 75, producer=one, count=3, transactional=True),
        end(COMMIT, 90, producer=4),
    ]
    index = []
    for batches in [log] if together else [[batch] for batch in log]:
        update = states.prepare(origin)
        for batch in batches:
            update.add(batch)
        states.commit(update)
        for done in update.completed:
            stable = states.last_stable_offset_for(done)
            if done.is_aborted:
                index.append(
                    AbortedTransaction(done.producer_id, done.first_offset, done.last_offset, stable)
                )
            states.complete_transaction(done)
    assert index == [AbortedTransaction(one, 0, 29, 8), AbortedTransaction(two, 8, 74, 36)]
    assert states.ongoing == (OpenTransaction(one, 75),)


def test_transaction_that_begins_behind_the_marker_does_not_move_its_stable_offset(
    states: ProducerStates,
) -> None:
    update = states.prepare(Origin.REPLICATION)
    for batch in (
        data(0, 0, transactional=True),
        end(ABORT, 10),
        data(0, 20, producer=2, transactional=True),
    ):
        update.add(batch)
    states.commit(update)
    assert states.last_stable_offset_for(update.completed[0]) == 11


def test_completing_a_transaction_that_is_not_open_is_refused(states: ProducerStates) -> None:
    append(states, data(0, 99, transactional=True))
    for wrong in (CompletedTransaction(1, 98, 101, True), CompletedTransaction(2, 99, 101, True)):
        with pytest.raises(InvalidTransactionStateError, match="expected an open transaction"):
            states.complete_transaction(wrong)
    assert states.first_unstable_offset == 99


def test_transaction_whose_index_entry_failed_stays_open(states: ProducerStates) -> None:
    append(states, data(0, 5, transactional=True))
    update = states.prepare(Origin.COORDINATOR)
    update.add(end(ABORT, 9))
    states.commit(update)
    states.on_high_watermark(10)
    assert states.first_unstable_offset == 5


def test_markers_of_empty_transactions_complete_nothing(states: ProducerStates) -> None:
    append(states, data(0, 0, transactional=True))
    assert len(mark(states, end(COMMIT, 1))) == 1
    assert mark(states, end(ABORT, 2)) == []
    assert mark(states, end(COMMIT, 3, producer=2)) == []
    assert states.producers[2] == ProducerEntry(2, 0, 0, NOW)
    assert states.ongoing == ()


def test_empty_control_batch_leaves_the_state_as_it_is(states: ProducerStates) -> None:
    append(states, data(0, 14, transactional=True))
    before = dict(states.producers)
    emptied = BatchInfo(PRODUCER, 0, -1, -1, 15, 15, -1, True, True, None)
    assert append(states, emptied, origin=Origin.REPLICATION) == []
    assert states.producers == before
    assert states.producers[PRODUCER].current_transaction_first_offset == 14
    assert states.map_end_offset == 16
    append(states, emptied._replace(producer_id=99), origin=Origin.REPLICATION)
    assert 99 not in states.producers


def test_marker_of_an_old_producer_epoch_is_fenced(
    states: ProducerStates, caplog: pytest.LogCaptureFixture
) -> None:
    append(states, data(0, 99, epoch=5, transactional=True))
    with pytest.raises(InvalidProducerEpochError):
        mark(states, end(COMMIT, 100, epoch=4))
    assert states.ongoing == (OpenTransaction(PRODUCER, 99),)
    append(states, end(COMMIT, 100, epoch=4), origin=Origin.REPLICATION)
    assert "expected producer epoch 5 or above, found 4" in caplog.text
    assert not states.ongoing


@pytest.mark.parametrize("empty", [False, True], ids=["with data", "empty"])
@pytest.mark.parametrize("after_reload", [False, True])
def test_old_coordinator_epoch_is_fenced(states: ProducerStates, empty: bool, after_reload: bool) -> None:
    append(states, data(0, 99, transactional=True))
    mark(states, end(COMMIT, 100, coordinator_epoch=1))
    if not empty:
        append(states, data(1, 101, transactional=True))
    if after_reload:
        states.take_snapshot(fsync=False)
        states = reloaded(states)
    with pytest.raises(TransactionCoordinatorFencedError, match="coordinator epoch 1 or above, found 0"):
        mark(states, end(COMMIT, 102, coordinator_epoch=0))
    mark(states, end(COMMIT, 102, coordinator_epoch=1))
    mark(states, end(COMMIT, 103, coordinator_epoch=2))
    assert states.producers[PRODUCER].coordinator_epoch == 2


def test_old_coordinator_epoch_is_only_noted_on_replay(
    states: ProducerStates, caplog: pytest.LogCaptureFixture
) -> None:
    append(states, data(0, 99, transactional=True))
    append(states, end(COMMIT, 100, coordinator_epoch=1), origin=Origin.REPLICATION)
    with caplog.at_level(logging.INFO):
        append(states, end(COMMIT, 101, coordinator_epoch=0), origin=Origin.REPLICATION)
    assert "coordinator epoch 1 or above, found 0" in caplog.text
    assert states.producers[PRODUCER].coordinator_epoch == 0


# -- expiry -----------------------------------------------------------------------------------------


def test_idle_producer_is_forgotten_after_the_time_out(states: ProducerStates) -> None:
    append(states, data(5, 0))
    append(states, data(5, 1, producer=2, timestamp=NOW + 1))
    assert states.remove_expired(NOW + EXPIRATION - 1) == 0
    assert states.remove_expired(NOW + EXPIRATION) == 1
    assert list(states.producers) == [2]
    append(states, data(77, 2))


def test_producer_with_an_open_transaction_never_expires(states: ProducerStates) -> None:
    append(states, data(0, 0, transactional=True))
    assert states.remove_expired(NOW + 10 * EXPIRATION) == 0
    mark(states, end(COMMIT, 1, timestamp=NOW + 10 * EXPIRATION))
    assert states.remove_expired(NOW + 10 * EXPIRATION) == 0
    assert states.remove_expired(NOW + 11 * EXPIRATION) == 1


def test_idle_producer_is_dropped_on_reload(states: ProducerStates) -> None:
    append(states, data(0, 0))
    append(states, data(0, 1, producer=2, timestamp=NOW + 1))
    append(states, data(0, 2, producer=3, transactional=True))
    states.take_snapshot(fsync=False)
    again = reloaded(states, now=NOW + EXPIRATION)
    assert list(again.producers) == [2, 3]
    append(again, data(5, 3))


def test_producer_that_is_not_idle_is_kept_on_reload(states: ProducerStates) -> None:
    append(states, data(0, 0))
    append(states, data(1, 1))
    states.take_snapshot(fsync=False)
    again = reloaded(states, now=NOW + EXPIRATION - 1)
    append(again, data(2, 2))
    with pytest.raises(OutOfOrderSequenceError):
        append(again, data(4, 3))


def test_fencing_abort_marker_alone_is_not_expired_early(states: ProducerStates) -> None:
    append(states, data(0, 0, timestamp=NOW))
    mark(states, end(ABORT, 1, epoch=1, timestamp=NOW + 5))
    assert states.producers[PRODUCER].last_timestamp == NOW + 5
    states.take_snapshot(fsync=False)
    assert states.remove_expired(NOW + 4 + EXPIRATION) == 0
    again = reloaded(states, now=NOW + 4 + EXPIRATION)
    entry = again.producers[PRODUCER]
    assert (entry.epoch, entry.last_timestamp, entry.batches) == (1, NOW + 5, ())
    assert again.remove_expired(NOW + 5 + EXPIRATION) == 1


# -- snapshots and reload ---------------------------------------------------------------------------


def test_snapshot_is_named_after_the_map_end_and_not_empty(states: ProducerStates, tmp_path: Path) -> None:
    append(states, data(0, 0))
    append(states, data(1, 1))
    path = states.take_snapshot(fsync=True)
    assert path == tmp_path / "00000000000000000002.snapshot"
    assert path.stat().st_size == 56
    assert states._snapshots == [2]
    assert os.listdir(tmp_path) == [path.name]


def test_snapshot_at_the_same_offset_is_not_taken_again(states: ProducerStates, tmp_path: Path) -> None:
    append(states, data(0, 0))
    assert states.take_snapshot(fsync=False) is not None
    assert states.take_snapshot(fsync=False) is None
    append(states, data(1, 1))
    assert states.take_snapshot(fsync=False) is not None
    assert snapshot_files(tmp_path) == [1, 2]


def test_no_snapshot_at_offset_zero(states: ProducerStates, tmp_path: Path) -> None:
    assert states.take_snapshot(fsync=False) is None
    assert os.listdir(tmp_path) == []


def test_plain_data_also_moves_the_snapshot_offset(states: ProducerStates, tmp_path: Path) -> None:
    append(states, data(0, 0))
    states.take_snapshot(fsync=False)
    states.advance(2)
    states.take_snapshot(fsync=False)
    assert snapshot_files(tmp_path) == [1, 2]


def test_reload_keeps_the_last_batch_and_the_open_transaction(states: ProducerStates) -> None:
    append(states, data(0, 0, transactional=True))
    append(states, data(1, 1, transactional=True))
    states.take_snapshot(fsync=False)
    again = reloaded(states)
    assert again.producers[PRODUCER] == ProducerEntry(PRODUCER, 0, -1, NOW, 0, (BatchMetadata(1, 1, 0, NOW),))
    assert again.ongoing == (OpenTransaction(PRODUCER, 0),)
    assert again.first_unstable_offset == 0
    append(again, data(2, 2, transactional=True))
    assert mark(again, end(COMMIT, 3)) == [CompletedTransaction(PRODUCER, 0, 3, False)]


def test_reload_orders_open_transactions_by_first_offset(states: ProducerStates) -> None:
    append(states, data(0, 0, producer=1))
    append(states, data(0, 1, producer=2, transactional=True))
    append(states, data(1, 2, producer=1, transactional=True))
    states.take_snapshot(fsync=False)
    assert reloaded(states).ongoing == (OpenTransaction(2, 1), OpenTransaction(1, 2))


def test_reload_after_an_aborted_transaction_has_none_open(states: ProducerStates) -> None:
    append(states, data(0, 0, transactional=True))
    append(states, data(1, 1, transactional=True))
    mark(states, end(ABORT, 2, timestamp=NOW + 1))
    states.take_snapshot(fsync=False)
    again = reloaded(states)
    assert again.first_unstable_offset is None
    entry = again.producers[PRODUCER]
    assert (entry.last_data_offset, entry.last_sequence, entry.epoch) == (1, 1, 0)
    assert entry.current_transaction_first_offset == -1
    assert entry.last_timestamp == NOW + 1


def test_reload_keeps_the_time_of_an_empty_transaction(states: ProducerStates) -> None:
    mark(states, end(ABORT, 5, timestamp=NOW - 77))
    states.take_snapshot(fsync=False)
    assert reloaded(states).producers[PRODUCER] == ProducerEntry(PRODUCER, 0, 0, NOW - 77)


def test_truncation_deletes_snapshots_behind_the_end_and_loads_the_newest_before_it(
    states: ProducerStates, tmp_path: Path
) -> None:
    for offset in range(5):
        append(states, data(offset, offset))
        states.take_snapshot(fsync=False)
    states.truncate_and_reload(1, 3, NOW)
    assert snapshot_files(tmp_path) == [1, 2, 3]
    assert states._snapshots == [1, 2, 3]
    assert states.map_end_offset == 3
    assert states.producers[PRODUCER].last_sequence == 2
    append(states, data(3, 3))


def test_truncation_between_snapshots_tells_where_replay_begins(states: ProducerStates) -> None:
    append(states, data(0, 0, count=3))
    states.take_snapshot(fsync=False)
    append(states, data(3, 3, count=4))
    states.truncate_and_reload(0, 5, NOW)
    assert states.map_end_offset == 3
    assert states.producers[PRODUCER].last_sequence == 2


def test_truncation_without_snapshots_replays_from_the_start_offset(states: ProducerStates) -> None:
    append(states, data(0, 4, transactional=True))
    append(states, data(0, 9, producer=2))
    states.truncate_and_reload(2, 8, NOW)
    assert (len(states), states.map_end_offset, states.first_unstable_offset) == (0, 2, None)
    assert states.take_snapshot(fsync=False) is None
    states.advance(8)
    assert states.take_snapshot(fsync=False) is not None


def test_reload_at_the_map_end_keeps_the_state(states: ProducerStates, tmp_path: Path) -> None:
    for offset in range(3):
        append(states, data(offset, offset))
        states.take_snapshot(fsync=False)
    before = dict(states.producers)
    states.truncate_and_reload(1, 3, NOW)
    assert states.producers == before
    assert snapshot_files(tmp_path) == [1, 2, 3]


def test_full_truncation_deletes_all_snapshots(states: ProducerStates, tmp_path: Path) -> None:
    for offset in range(2):
        append(states, data(offset, offset))
        states.take_snapshot(fsync=False)
    states.truncate_fully_and_start_at(29)
    assert os.listdir(tmp_path) == []
    assert (len(states), states.map_end_offset, states.latest_snapshot_offset) == (0, 29, None)
    append(states, data(5, 29))
    assert states.take_snapshot(fsync=False) == tmp_path / "00000000000000000030.snapshot"


def test_snapshot_is_taken_below_those_that_a_full_truncation_deleted(
    states: ProducerStates, tmp_path: Path
) -> None:
    snapshots_at(states, 40)
    states.truncate_fully_and_start_at(29)
    assert states.take_snapshot(fsync=False) is not None
    assert snapshot_files(tmp_path) == [29]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(None, id="truncated"),
        pytest.param(bytes(56), id="corrupt"),
    ],
)
def test_bad_newest_snapshot_is_deleted_and_the_one_before_used(
    states: ProducerStates, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    append(states, data(0, 0))
    states.take_snapshot(fsync=False)
    append(states, data(1, 1))
    newest = states.take_snapshot(fsync=False)
    assert newest is not None
    newest.write_bytes(newest.read_bytes()[:-1] if content is None else content)
    again = reloaded(states)
    assert not newest.exists()
    assert newest.name in caplog.text
    assert again.map_end_offset == 1
    assert again.producers[PRODUCER].last_sequence == 0
    assert again.latest_snapshot_offset == 1


def test_all_snapshots_bad_leaves_replay_from_the_start(states: ProducerStates, tmp_path: Path) -> None:
    snapshots_at(states, 3, 7)
    for path in tmp_path.iterdir():
        path.write_bytes(b"")
    again = ProducerStates.open(tmp_path, EXPIRATION)
    again.truncate_and_reload(1, 9, NOW)
    assert (again.map_end_offset, again.latest_snapshot_offset) == (1, None)
    assert os.listdir(tmp_path) == []


def test_snapshot_that_vanished_is_passed_over(states: ProducerStates, tmp_path: Path) -> None:
    snapshots_at(states, 3, 7)
    again = ProducerStates.open(tmp_path, EXPIRATION)
    (tmp_path / "00000000000000000007.snapshot").unlink()
    again.truncate_and_reload(0, 9, NOW)
    assert (again.map_end_offset, again.latest_snapshot_offset) == (3, 3)


@pytest.mark.parametrize(
    ("bases", "kept"),
    [
        pytest.param([5], [5, 42], id="clean shutdown snapshot behind the last base"),
        pytest.param([42], [42], id="only at a base"),
        pytest.param([41], [42], id="one behind the last base"),
        pytest.param([2, 5], [2, 5, 42], id="all but the newest at bases"),
        pytest.param([43], [], id="none at a base, none behind the last"),
        pytest.param([], [42], id="no segments"),
    ],
)
def test_stray_snapshots_are_removed(
    states: ProducerStates, tmp_path: Path, bases: list[int], kept: list[int]
) -> None:
    snapshots_at(states, 2, 5, 42)
    states.remove_stray_snapshots(bases)
    assert snapshot_files(tmp_path) == kept
    assert states.latest_snapshot_offset == max(kept, default=None)


def test_removal_of_strays_sees_what_others_wrote_and_deleted(tmp_path: Path) -> None:
    states = ProducerStates.open(tmp_path, EXPIRATION)
    snapshots_at(ProducerStates.open(tmp_path, EXPIRATION), 1, 2, 3, 4)
    states.remove_stray_snapshots([1, 2, 4])
    assert snapshot_files(tmp_path) == [1, 2, 4]
    assert states._snapshots == [1, 2, 4]


def test_snapshot_is_renamed_for_deletion(states: ProducerStates, tmp_path: Path) -> None:
    snapshots_at(states, 2, 5)
    assert states.mark_snapshot_for_deletion(3) is None
    renamed = states.mark_snapshot_for_deletion(2)
    assert renamed == tmp_path / "00000000000000000002.snapshot.deleted"
    assert renamed.exists()
    assert snapshot_files(tmp_path) == [5]
    assert states._snapshots == [5]
    assert states.mark_snapshot_for_deletion(2) is None


def test_marking_a_snapshot_that_is_gone_is_no_error(states: ProducerStates, tmp_path: Path) -> None:
    snapshots_at(states, 2)
    (tmp_path / "00000000000000000002.snapshot").unlink()
    assert states.mark_snapshot_for_deletion(2) is None
    assert states.latest_snapshot_offset is None


def test_open_knows_snapshot_files_by_their_names_alone(tmp_path: Path) -> None:
    names = [
        "00000000000000000007.snapshot",
        "00000000000000000003.snapshot",
        "00000000000000000005.snapshot.deleted",
        "5.snapshot",
        "99999999999999999999.snapshot",
        "00000000000000000005.log",
        "leader-epoch-checkpoint.tmp",
    ]
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / "00000000000000000008.snapshot.tmp").write_bytes(b"half")
    states = ProducerStates.open(tmp_path, EXPIRATION)
    assert states._snapshots == [3, 7]
    assert sorted(os.listdir(tmp_path)) == sorted(names)


def test_producers_whose_segments_are_deleted_are_in_the_next_snapshot(
    states: ProducerStates, tmp_path: Path
) -> None:
    append(states, data(0, 0))
    states.take_snapshot(fsync=False)
    append(states, data(0, 1, producer=2))
    assert states.mark_snapshot_for_deletion(1) is not None
    states.on_start_offset(2)
    assert sorted(states.producers) == [1, 2]
    assert states.take_snapshot(fsync=False) is not None


def test_wrapped_sequences_are_counted_backwards() -> None:
    assert decrement(2, 5) == MAXI - 2
