"""Choosing the partition of each record of a topic, and finding the first record that the topic refuses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from topicfs.engine import batch as batches
from topicfs.engine.batch.columns import Columns
from topicfs.engine.batch.table import Ints
from topicfs.engine.errors import EngineError, InvalidRecordError, RecordTooLargeError
from topicfs.engine.format.batch_header import HEADER_SIZE
from topicfs.engine.inbox.rows import NO_PARTITION
from topicfs.engine.kernels.encode import RECORD_OVERHEAD
from topicfs.engine.kernels.murmur import partitions_of_keys
from topicfs.engine.partition.validate import batch_limit, check_records
from topicfs.engine.settings.topic import TopicSettings


def choose(
    columns: Columns, named: Ints, numbers: Sequence[int], keyless: int
) -> tuple[Ints, int, EngineError | None]:
    """Return the partition of each record: the one that it names, else the one that Kafka's default partitioner gives
    its key, else `keyless`. Also return the number of records before the first that names a partition that does not
    exist, and the error for that one. `numbers` are the topic's partitions, in order."""
    chosen = np.empty(len(columns), np.int32)
    keys, sizes = np.ascontiguousarray(columns.key_start), np.ascontiguousarray(columns.key_length)
    partitions_of_keys(columns.buffer, keys, sizes, len(numbers), chosen)
    chosen = np.array(numbers, np.int32)[chosen]
    given = named != NO_PARTITION
    chosen[(columns.key_length < 0) & ~given] = keyless
    if not given.any():
        return chosen, len(columns), None  # a fifth of a commit was spent on looking for others
    chosen[given] = named[given]
    unknown = np.flatnonzero(given & ~np.isin(chosen, numbers))
    if not unknown.size:
        return chosen, len(columns), None
    first = int(unknown[0])
    return (
        chosen,
        first,
        InvalidRecordError(
            f"partition {chosen[first]} is not one of {numbers[0]} to {numbers[-1]}",
            (first,),
        ),
    )


def by_partition(columns: Columns, chosen: Ints) -> Iterator[tuple[int, Columns]]:
    """Give the records of each partition, in their order."""
    if len(columns) and (chosen == chosen[0]).all():
        yield int(chosen[0]), columns
        return
    for number in np.unique(chosen).tolist():
        yield number, columns.take(np.flatnonzero(chosen == number))


def first_refused(columns: Columns, settings: TopicSettings, now: int) -> tuple[int, EngineError | None]:
    """Return the number of records before the first one that the topic refuses, and the error for that one."""
    wanted, refusal = len(columns), None
    try:
        check_records(columns.timestamps, columns.key_length < 0, settings, now)
    except InvalidRecordError as error:
        wanted, refusal = min(error.indexes), error
    limit = batch_limit(settings)
    spans = np.maximum(columns.key_length, 0) + np.maximum(columns.value_length, 0) + columns.headers_length
    for row in np.flatnonzero(spans[:wanted] > limit - HEADER_SIZE - RECORD_OVERHEAD).tolist():
        try:
            batches.BatchBuilder(limit).add_columns(columns.rows(row, row + 1))
        except RecordTooLargeError as error:
            return row, error
    return wanted, refusal
