"""Choosing the partition of each record of a topic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from topicfs.engine.batch.columns import Columns
from topicfs.engine.batch.table import Ints
from topicfs.engine.errors import EngineError, InvalidRecordError
from topicfs.engine.inbox.rows import NO_PARTITION
from topicfs.engine.kernels.murmur import partitions_of_keys


def choose(
    columns: Columns, named: Ints, numbers: Sequence[int], keyless: int, count: int | None = None
) -> tuple[Ints, int, EngineError | None]:
    """Return the partition of each record: the one that it names, else the one that Kafka's default partitioner gives
    its key, else `keyless`. Also return the number of records before the first whose partition is not here, and the
    error for that one. `numbers` are the topic's partitions that are here, in order; `count` is how many a cluster
    has of which others have the rest, None where keys go to those that are here."""
    is_whole = _is_whole(numbers, count)
    chosen = by_key(columns, numbers, count)
    given = named != NO_PARTITION
    chosen[(columns.key_length < 0) & ~given] = keyless
    if is_whole and not given.any():
        return chosen, len(columns), None  # a fifth of a commit was spent on looking for others
    chosen[given] = named[given]
    unknown = np.flatnonzero(~np.isin(chosen, numbers))
    if not unknown.size:
        return chosen, len(columns), None
    first = int(unknown[0])
    words = f"partition {chosen[first]} is not one of {numbers[0]} to {numbers[-1]}"
    if not is_whole:
        why = "" if given[first] else "the key's "
        here = ", ".join(map(str, numbers))
        words = f"{why}partition {chosen[first]} of {count} is another daemon's: here are {here}"
    return chosen, first, InvalidRecordError(words, (first,))


def by_key(columns: Columns, numbers: Sequence[int], count: int | None) -> Ints:
    """Return the partition that Kafka's default partitioner gives each key; that of null keys is any. With a `count`
    it may be one that is not here, where another producer of the cluster would put the key."""
    chosen = np.empty(len(columns), np.int32)
    keys, sizes = np.ascontiguousarray(columns.key_start), np.ascontiguousarray(columns.key_length)
    if count is not None and not _is_whole(numbers, count):
        partitions_of_keys(columns.buffer, keys, sizes, count, chosen)
        return chosen
    partitions_of_keys(columns.buffer, keys, sizes, len(numbers), chosen)
    return np.array(numbers, np.int32)[chosen]


def _is_whole(numbers: Sequence[int], count: int | None) -> bool:
    return count is None or list(numbers) == [*range(count)]


def by_partition(columns: Columns, chosen: Ints) -> Iterator[tuple[int, Columns]]:
    """Give the records of each partition, in their order."""
    if len(columns) and (chosen == chosen[0]).all():
        yield int(chosen[0]), columns
        return
    for number in np.unique(chosen).tolist():
        yield number, columns.take(np.flatnonzero(chosen == number))
