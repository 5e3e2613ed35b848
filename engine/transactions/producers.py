"""Named producers: each appends with a sequence of its own to each partition, and repeats nothing.

The coordinator gives a name a producer id and an epoch. The log of a partition then says what the name has appended to
it: the sequence numbers in its batches count the records from 0 on, also over epochs. So nothing else is written down,
a batch and its number are on disk together or not at all, and the snapshots of producers keep the number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from topicfs.engine import batch as batches
from topicfs.engine.batch.columns import Columns
from topicfs.engine.errors import (
    DuplicateSequenceError,
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
    UnknownProducerError,
)
from topicfs.engine.partition.offsets import Appended
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.validate import batch_limit, first_refused, shape_for
from topicfs.engine.producer.entry import Origin, increment
from topicfs.engine.record import MAX_INT32, TimestampType
from topicfs.engine.staging.staging import Staging
from topicfs.engine.transactions.coordinator import NAMED, Coordinator
from topicfs.engine.transactions.states import Transaction

_TIMEOUT_MS: Final = 60_000
"""The transaction timeout that is written down for a named producer, which has no transactions: Kafka's default."""

_HALF: Final = 1 << 30
"""Sequence numbers begin at 0 again behind 2^31-1: those less than half of that behind the next one were appended."""


class Producers:
    """The named producers of a store.

    staged        their files that are not appended yet: a directory for each name, and in it one for each partition
    _coordinator  gives out their ids and epochs
    _partition    returns a partition by topic and number
    """

    def __init__(
        self, coordinator: Coordinator, partition: Callable[[str, int], Partition], staged: Staging
    ) -> None:
        self.staged = staged
        self._coordinator = coordinator
        self._partition = partition

    def names(self) -> list[str]:
        """Return the names, in order."""
        return [
            each.transactional_id.removeprefix(NAMED)
            for each in self._coordinator.transactions()
            if each.transactional_id.startswith(NAMED)
        ]

    def knows(self, name: str) -> bool:
        """Return whether there is a producer of this name."""
        return self._coordinator.transaction(NAMED + name) is not None

    def holder(self, name: str) -> Transaction:
        """Return the present producer id and epoch of a name."""
        found = self._coordinator.transaction(NAMED + name)
        if found is None:
            raise UnknownProducerError(f"there is no producer {name}")
        return found

    def init(self, name: str) -> Transaction:
        """Give a name to a new holder, and return its producer id and epoch. An earlier holder is fenced."""
        return self._coordinator.init_producer(NAMED + name, _TIMEOUT_MS)

    def take_over(self, name: str, epoch: int) -> Transaction:
        """Give a name to a new holder as its next epoch; InvalidProducerEpochError if that is another one."""
        before = self.holder(name)
        with self._coordinator.writing(before):
            if epoch != before.epoch + 1:
                raise InvalidProducerEpochError(
                    f"producer {name}: expected {before.epoch + 1} as its next epoch, found {epoch}"
                )
            return self.init(name)

    def forget(self, name: str) -> None:
        """Forget a name. It begins anew, with another producer id, if it is made again."""
        self.holder(name)
        self._coordinator.forget(NAMED + name)

    def next_sequence(self, name: str, topic: str, number: int) -> int:
        """Return the sequence number of the next record of a name in a partition: how many it has appended there."""
        return _next(self._partition(topic, number), self.holder(name))

    def append(
        self, holder: Transaction, topic: str, number: int, sequence: int, chunks: Iterable[Columns]
    ) -> Appended:
        """Append records whose first one has this sequence number, durably, as one batch.

        DuplicateSequenceError where they were appended before, OutOfOrderSequenceError where others come before them,
        InvalidProducerEpochError where another holder has the name by now."""
        with self._coordinator.writing(holder):
            partition = self._partition(topic, number)
            partition.log.check_leads()
            name = holder.transactional_id.removeprefix(NAMED)
            _check_sequence(name, partition, sequence, _next(partition, holder))
            appended = partition.append_built(
                _batch(partition, holder, sequence, chunks),
                # A client's epoch would begin at 0 again. These numbers go on, and were checked above.
                Origin.COORDINATOR,
            )
            partition.flush()
            return appended


def _next(partition: Partition, holder: Transaction) -> int:
    entry = partition.log.producers.producers.get(holder.producer_id)
    return 0 if entry is None else increment(entry.last_sequence, 1)


def _check_sequence(name: str, partition: Partition, sequence: int, expected: int) -> None:
    if sequence == expected:
        return
    words = f"producer {name} in {partition.name}: expected {expected} as its next sequence, found {sequence}"
    if (expected - sequence) & MAX_INT32 < _HALF:
        raise DuplicateSequenceError(f"{words}, which was appended before")
    raise OutOfOrderSequenceError(f"{words}: others come before it")


def _batch(
    partition: Partition, holder: Transaction, sequence: int, chunks: Iterable[Columns]
) -> batches.Batch:
    settings, now = partition.settings, partition.log.clock()
    limit = batch_limit(settings)
    builder = batches.BatchBuilder(limit)
    for columns in chunks:
        _, refusal = first_refused(columns, settings, now)
        if refusal is not None:
            raise refusal
        if builder.add_columns(columns) < len(columns):
            raise RecordTooLargeError(
                f"{partition.name}: records of one file are one batch, expected at most {limit} bytes of them: "
                "write them as several files"
            )
    shape = replace(
        shape_for(settings),
        producer_id=holder.producer_id,
        producer_epoch=holder.epoch,
        base_sequence=sequence,
    )
    stamped = settings.message_timestamp_type == TimestampType.LOG_APPEND_TIME
    return builder.finish(shape, now if stamped else None)
