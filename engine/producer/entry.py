"""The state of one producer in a partition: its epoch, its last batches, its open transaction.

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

LOCAL_PRODUCERS: Final = range(1 << 52, 1 << 52 | 1 << 51)
"""The producer ids of transactions that a coordinator here gives out: far above those of a broker's, which count from
0, and small enough for readers of JSON, whose numbers may have 53 bits."""

NAMED_PRODUCERS: Final = range(LOCAL_PRODUCERS.stop, 1 << 53)
"""The producer ids of named producers. They are remembered however long they are idle: a sequence that came again after
a day would else be appended twice."""


class Origin(Enum):
    """The source of an append. It decides what is checked.

    CLIENT       a producer: epoch and sequence must fit, and a repeated batch is recognised
    COORDINATOR  markers and a coordinator's own records: the epoch must fit
    REPLICATION  a copy of batches that were accepted before, or the replay of a log: accepted as it is
    """

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"


class BatchInfo(NamedTuple):
    """The fields of a batch that the producer state needs. It is a named tuple, as a replay makes one for each batch.

    producer_id          the producer's id, −1 none
    producer_epoch       the producer's epoch, −1 none
    base_sequence        the sequence number of the first record, −1 none
    last_sequence        the sequence number of the last record, −1 none
    base_offset          the offset of the first record
    last_offset          the offset of the last record; for a marker its base offset
    max_timestamp        the largest timestamp, milliseconds; for a marker its record's timestamp
    is_transactional     attribute bit 4
    is_control           attribute bit 5
    marker               the marker of the batch; None for data, for a control batch that compaction
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
        """Make one from a row of the batch table, given as plain ints, as `tolist` returns it."""
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
    """One of a producer's last batches, with the fields that the answer to a duplicate needs.

    last_sequence  the sequence number of its last record, −1 none
    last_offset    the offset of its last record
    offset_delta   last offset − first offset
    timestamp      the largest timestamp of the batch, milliseconds
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
    """The state of one producer. A change makes a new entry, so that nobody sees half of a change.

    producer_id                       the producer's id
    epoch                             the producer's epoch, −1 until the first batch or marker
    coordinator_epoch                 the coordinator's epoch in the last marker, −1 none
    last_timestamp                    timestamp of the last batch or marker, milliseconds; idle time counts from it
    current_transaction_first_offset  first offset of the open transaction, −1 while none is open
    batches                           the last batches of this epoch, oldest first, at most KEPT_BATCHES
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
        """Return the kept batch that `batch` repeats; None if there is none."""
        if batch.producer_epoch != self.epoch:
            return None
        for kept in self.batches:
            if kept.last_sequence == batch.last_sequence and kept.first_sequence == batch.base_sequence:
                return kept
        return None

    def with_batch(self, batch: BatchInfo) -> ProducerEntry:
        """Return the entry after a data batch. A transactional one opens a transaction unless one is open."""
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
        """Return the entry after the end of a transaction. A new epoch forgets the batches of the old one."""
        kept = self.batches if epoch == self.epoch else ()
        return ProducerEntry(self.producer_id, epoch, coordinator_epoch, timestamp, NO_OFFSET, kept)

    def is_expired(self, now: int, expiration_ms: int) -> bool:
        """Whether the producer is idle for `expiration_ms` or longer and has no open transaction. A named one is never
        forgotten for that."""
        return (
            self.current_transaction_first_offset == NO_OFFSET
            and now - self.last_timestamp >= expiration_ms
            and self.producer_id not in NAMED_PRODUCERS
        )


def increment(sequence: int, by: int) -> int:
    """Return the sequence number `by` records later."""
    if sequence > MAX_INT32 - by:
        return by - (MAX_INT32 - sequence) - 1
    return sequence + by


def decrement(sequence: int, by: int) -> int:
    """Return the sequence number `by` records earlier."""
    if sequence < by:
        return MAX_INT32 - (by - sequence) + 1
    return sequence - by


def last_sequence_of(base_sequence: int, last_offset_delta: int) -> int:
    """Return the sequence number of a batch's last record, −1 if the batch has none."""
    if base_sequence == NO_SEQUENCE:
        return NO_SEQUENCE
    return increment(base_sequence, last_offset_delta)
