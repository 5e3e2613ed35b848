"""The records of one transaction for one partition: they gather in batches, which are appended when they are full."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Final

from topicfs.engine import batch as batches
from topicfs.engine.batch.columns import Columns
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.validate import batch_limit, first_refused, shape_for
from topicfs.engine.producer.entry import increment
from topicfs.engine.record import NO_OFFSET, TimestampType
from topicfs.engine.threads import run_all

_SHORT_S: Final = 0.0003
"""A flush that takes less does not wait for a disk."""


def gather(
    partition: Partition, builder: batches.BatchBuilder, columns: Columns, send: Callable[[], object]
) -> None:
    """Add records for a partition to a builder, and have each batch sent that is full while more records come. If the
    topic refuses one of them, none is added."""
    _, refusal = first_refused(columns, partition.settings, partition.log.clock())
    if refusal is not None:
        raise refusal
    at = 0
    while at < len(columns):
        at += builder.add_columns(columns.rows(at, len(columns)))
        if at < len(columns):
            send()


class TransactionalWriter:
    """The appends of one transaction to one partition.

    partition     the partition
    records       the number of records that were appended
    _producer_id  the producer, and its epoch
    _builder      the record batch that is being filled
    _sequence     the sequence number of the next record
    """

    def __init__(self, partition: Partition, producer_id: int, epoch: int, sequence: int) -> None:
        self.records = 0
        self.partition = partition
        self._producer_id = producer_id
        self._epoch = epoch
        self._builder = batches.BatchBuilder(batch_limit(partition.settings))
        self._sequence = sequence

    @classmethod
    def into(cls, partition: Partition, producer_id: int, epoch: int) -> TransactionalWriter:
        """Make a writer whose sequence numbers continue where the epoch's last batch ended."""
        entry = partition.log.producers.producers.get(producer_id)
        is_known = entry is not None and entry.epoch == epoch
        return cls(
            partition, producer_id, epoch, increment(entry.last_sequence, 1) if entry and is_known else 0
        )

    def add(self, columns: Columns) -> None:
        """Add records. If the topic refuses one of them, none is added."""
        gather(self.partition, self._builder, columns, self.send)

    def send(self) -> None:
        """Append the records that have gathered."""
        settings, count = self.partition.settings, self._builder.count
        if not count:
            return
        stamped = settings.message_timestamp_type == TimestampType.LOG_APPEND_TIME
        shape = replace(
            shape_for(settings),
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=self._sequence,
            transactional=True,
        )
        batch = self._builder.finish(shape, self.partition.log.clock() if stamped else None)
        self.partition.append_built(batch)
        self._sequence = increment(self._sequence, count)
        self.records += count


def end_open(partition: Partition, producer_id: int, commit: bool) -> bool:
    """End a producer's open transaction in a partition, durably. Return False where there is none."""
    if partition.log.producers.producers.get(producer_id) is None:
        return False
    was_open = append_end(partition, producer_id, commit)
    # Flush even if the marker exists already: the last flush may have failed.
    partition.flush()
    return was_open


def append_end(partition: Partition, producer_id: int, commit: bool) -> bool:
    """Append the marker that ends a producer's open transaction in a partition. Return False where there is none."""
    entry = partition.log.producers.producers.get(producer_id)
    if entry is None or entry.current_transaction_first_offset == NO_OFFSET:
        return False
    partition.end_transaction(producer_id, entry.epoch, commit)
    return True


class Flushes:
    """The flushes of partitions that are written together. Where each waits for a disk several are done at a time: ten
    would take ten times as long. Where none waits they are done in turn: to hand one to a thread takes longer.

    _threads    the threads that flush
    _longest_s  how long the longest took when they were last flushed
    """

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._longest_s = math.inf

    def flush(self, partitions: Iterable[Partition]) -> None:
        """Flush partitions. Where one fails the others are done, and the error is raised."""
        taken: list[float] = []

        def flush(partition: Partition) -> None:
            began = time.monotonic()
            partition.flush()
            taken.append(time.monotonic() - began)

        tasks = [partial(flush, partition) for partition in partitions]
        if len(tasks) <= 1 or self._longest_s < _SHORT_S:
            with contextlib.ExitStack() as rest:
                for task in tasks:
                    rest.callback(task)
        else:
            run_all(self._threads, tasks)
        self._longest_s = max(taken, default=self._longest_s)
