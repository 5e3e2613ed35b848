"""What a partition knows of one producer: its epoch, its last batches, its open transaction.

Sequence numbers count a producer's records from 0 to 2^31-1 and then begin at 0 again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from topicfs.engine.batch.marker import Marker
from topicfs.engine.format.batch_header import CONTROL, TRANSACTIONAL
from topicfs.engine.kernels import scan
from topicfs.engine.record import MAX_INT32, NO_OFFSET, NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP

KEPT_BATCHES: Final = 5  # a client has at most this many requests in flight, so it repeats no older batch
NO_COORDINATOR_EPOCH: Final = -1


class Origin(Enum):
    """Where an append comes from, which decides what is asked of it.

    CLIENT       a producer: epoch and sequence must fit, a repeated batch is recognised
    COORDINATOR  markers and a coordinator's own records: the epoch must fit
    REPLICATION  a copy of what was accepted before, also when a log is replayed: taken as it is
    """

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"


class BatchInfo(NamedTuple):
    """What producer state needs of a batch. A named tuple: replay makes one for each batch of a log.

    producer_id          −1 none
    producer_epoch       −1 none
    base_sequence        of the first record, −1 none
    last_sequence        of the last record, −1 none
    base_offset          of the first record
    last_offset          of the last record; a marker's is its base offset
    max_timestamp        milliseconds; of a marker its record's timestamp
    is_transactional     attribute bit 4
    is_control           attribute bit 5
    marker               the transaction's end; None for data, for a control batch that compaction
                         emptied, and for control records of other kinds
    """

    producer_id: int
    producer_epoch: int
    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    is_transactional: bool = False
    is_control: bool = False
    marker: Marker | None = None

    @classmethod
    def of_row(cls, row: Sequence[int], marker: Marker | None = None) -> BatchInfo:
        """From a row of the batch table, as `tolist` gives it: plain ints."""
        base_offset, last_offset = row[scan.BASE_OFFSET], row[scan.LAST_OFFSET]
        base_sequence, attributes = row[scan.BASE_SEQUENCE], row[scan.ATTRIBUTES]
        return cls(
            row[scan.PRODUCER_ID],
            row[scan.PRODUCER_EPOCH],
            base_sequence,
            last_sequence_of(base_sequence, last_offset - base_offset),
            base_offset,
            last_offset,
            row[scan.MAX_TIMESTAMP],
            bool(attributes & TRANSACTIONAL),
            bool(attributes & CONTROL),
            marker,
        )


@dataclass(frozen=True, slots=True)
class BatchMetadata:
    """One of a producer's last batches, as a duplicate of it is answered.

    last_sequence  of its last record, −1 none
    last_offset    of its last record
    offset_delta   last offset − first offset
    timestamp      the batch's maximum, milliseconds
    """

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        """The sequence number of the batch's first record."""
        return decrement(self.last_sequence, self.offset_delta)

    @property
    def first_offset(self) -> int:
        """The offset of the batch's first record."""
        return self.last_offset - self.offset_delta


@dataclass(frozen=True, slots=True)
class ProducerEntry:
    """One producer. A change makes a new entry, so no reader and no update in preparation sees half of it.

    producer_id
    epoch                             −1 until the first batch or marker
    coordinator_epoch                 of the last marker, −1 none
    last_timestamp                    of the last batch or marker, milliseconds; idle time counts from it
    current_transaction_first_offset  −1 while no transaction is open
    batches                           the last ones of this epoch, oldest first, at most KEPT_BATCHES
    """

    producer_id: int
    epoch: int = NO_PRODUCER_EPOCH
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    last_timestamp: int = NO_TIMESTAMP
    current_transaction_first_offset: int = NO_OFFSET
    batches: tuple[BatchMetadata, ...] = ()

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record, −1 when no batch of this epoch is known."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_data_offset(self) -> int:
        """The offset of the last record that is no marker, −1 when no batch of this epoch is known."""
        return self.batches[-1].last_offset if self.batches else NO_OFFSET

    @property
    def last_offset_delta(self) -> int:
        """Last offset − first offset of the last batch, 0 when none is known."""
        return self.batches[-1].offset_delta if self.batches else 0

    def duplicate_of(self, batch: BatchInfo) -> BatchMetadata | None:
        """The kept batch that `batch` repeats, None when there is none."""
        if batch.producer_epoch != self.epoch:
            return None
        for kept in self.batches:
            if kept.last_sequence == batch.last_sequence and kept.first_sequence == batch.base_sequence:
                return kept
        return None

    def with_batch(self, batch: BatchInfo) -> ProducerEntry:
        """The entry after a batch of data; a transactional one opens a transaction unless one is open."""
        kept = self.batches[1 - KEPT_BATCHES :] if batch.producer_epoch == self.epoch else ()
        added = BatchMetadata(
            batch.last_sequence, batch.last_offset, batch.last_offset - batch.base_offset, batch.max_timestamp
        )
        first_offset = self.current_transaction_first_offset
        if batch.is_transactional and first_offset == NO_OFFSET:
            first_offset = batch.base_offset
        return ProducerEntry(
            self.producer_id,
            batch.producer_epoch,
            self.coordinator_epoch,
            batch.max_timestamp,
            first_offset,
            (*kept, added),
        )

    def with_marker(self, epoch: int, coordinator_epoch: int, timestamp: int) -> ProducerEntry:
        """The entry after the end of a transaction. A new epoch forgets the batches of the old one."""
        kept = self.batches if epoch == self.epoch else ()
        return ProducerEntry(self.producer_id, epoch, coordinator_epoch, timestamp, NO_OFFSET, kept)

    def is_expired(self, now: int, expiration_ms: int) -> bool:
        """Idle for `expiration_ms` or longer, with no transaction open."""
        return (
            self.current_transaction_first_offset == NO_OFFSET and now - self.last_timestamp >= expiration_ms
        )


def increment(sequence: int, by: int) -> int:
    """The sequence number `by` records later."""
    if sequence > MAX_INT32 - by:
        return by - (MAX_INT32 - sequence) - 1
    return sequence + by


def decrement(sequence: int, by: int) -> int:
    """The sequence number `by` records earlier."""
    if sequence < by:
        return MAX_INT32 - (by - sequence) + 1
    return sequence - by


def last_sequence_of(base_sequence: int, last_offset_delta: int) -> int:
    """The sequence number of a batch's last record, −1 when the batch has none."""
    if base_sequence == NO_SEQUENCE:
        return NO_SEQUENCE
    return increment(base_sequence, last_offset_delta)
