"""The records of a topic as Arrow record batches.

Chunks of segments are read one behind the other. Meanwhile other threads turn those that were read into record
batches: kernels do that without the GIL. The batches come in the order of partitions and offsets. No more than a few
chunks are in memory, however large a topic is.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import pyarrow as pa

from topicfs.engine.errors import InvalidSettingError
from topicfs.engine.parquet.schema import SCHEMA, TABLE_SCHEMA, batches, room, timestamp_types_of
from topicfs.engine.unlocked.limits import Limit
from topicfs.engine.unlocked.offset_range import OffsetRange
from topicfs.engine.unlocked.place import place_of
from topicfs.engine.unlocked.planning import ranges
from topicfs.engine.unlocked.scan import Chunk, chunks

_THREADS: Final = min(4, os.cpu_count() or 1)

_FEW: Final = 5_000
"""A compressed batch becomes a record batch of its own. Those of a chunk that are smaller than this are joined."""

_MOST_BYTES: Final = 64 * 1024 * 1024
"""Bytes of record batches that a chunk may become at once. Only what is compressed well becomes more."""

Shaped = Callable[[pa.RecordBatch], list[pa.RecordBatch]]


def arrow(
    where: str | os.PathLike[str],
    topic: str,
    start: Limit = None,
    end: Limit = None,
    columns: Sequence[str] | None = None,
) -> pa.RecordBatchReader:
    """Return the committed records that a topic has now, by partition and offset, from `start` up to but not including
    `end`.

    `where` is a mount, a backing directory, or a broker's log directory. Each of the two limits is an offset for all
    partitions, a mapping from every partition to its offset, or a time: a datetime with a zone, or ISO 8601 text such
    as "2026-05-01" or "2026-05-02T06:30+02:00", which is UTC if it names no zone. A time selects by the records' own
    timestamps, wherever they are in the log.

    `columns` are some of topic, partition, offset, timestamp, timestampType, key, value and headers, in the order in
    which they are wanted; without it, all but timestampType. Their types are those of a topic's Parquet table. Columns
    that are left out are not made.

    Iterate the reader once. What is appended later is not in it. If retention removes a segment before it was read, or
    somebody deletes the topic, the iteration raises OffsetOutOfRangeError."""
    schema = schema_of(columns)
    planned = ranges(place_of(os.fspath(where), or_logs=True), topic, start, end)
    return pa.RecordBatchReader.from_batches(schema, _at_least_one(record_batches(planned, schema), schema))


def _at_least_one(found: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the batches, or an empty one if there is none: Polars takes no reader without a batch."""
    first = next(found, None)
    yield pa.RecordBatch.from_pylist([], schema) if first is None else first
    yield from found


def schema_of(columns: Sequence[str] | None) -> pa.Schema:
    """Return the schema with these columns. InvalidSettingError for a name that is none."""
    if columns is None:
        return TABLE_SCHEMA
    if isinstance(columns, str):
        raise InvalidSettingError(f"columns: expected a list of names, found the text {columns!r}")
    known = ", ".join(SCHEMA.names)
    for name in columns:
        if name not in SCHEMA.names:
            raise InvalidSettingError(f"columns: expected some of {known}, found {name!r}")
    if not columns or len(set(columns)) < len(columns):
        raise InvalidSettingError(
            f"columns: expected some of {known}, each once, found {', '.join(columns) or 'none'}"
        )
    return pa.schema([SCHEMA.field(name) for name in columns])


def record_batches(
    parts: Iterable[OffsetRange], schema: pa.Schema, shaped: Shaped | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the records of ranges, in order, with the columns of a schema; or what `shaped` makes of each batch, which
    several threads call."""
    works = (_Work(part, chunk, schema, shaped) for part in parts for chunk in chunks(part, room=room))
    for work, made in _ahead(works):
        yield from made
        while not work.is_done:
            yield from work.some()


class _Work:
    """The record batches of one chunk, made in turns of bounded size.

    is_done  whether all were made
    _left    those that were not made yet
    _shaped  what is made of each; None for nothing else
    """

    def __init__(self, part: OffsetRange, chunk: Chunk, schema: pa.Schema, shaped: Shaped | None) -> None:
        self.is_done = False
        self._left = _batches(part, chunk, schema)
        self._shaped = shaped

    def some(self) -> list[pa.RecordBatch]:
        """Return the next ones. There may be none left of them after they were shaped."""
        made: list[pa.RecordBatch] = []
        size = 0
        for each in self._left:
            made.append(each)
            size += each.nbytes
            if size >= _MOST_BYTES:
                break
        else:
            self.is_done = True
        made = _joined(made)
        return made if self._shaped is None else [part for each in made for part in self._shaped(each)]


def _batches(part: OffsetRange, chunk: Chunk, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    with_types = "timestampType" in schema.names
    for columns in chunk.columns(part):
        types = timestamp_types_of(columns, chunk.table) if with_types else 0
        yield batches(columns, part.topic, part.number, schema, types)


def _joined(made: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(made) < 2 or sum(map(len, made)) >= _FEW * len(made):
        return made
    joined: list[pa.RecordBatch] = pa.Table.from_batches(made).combine_chunks().to_batches()
    return joined


def _ahead(works: Iterator[_Work]) -> Iterator[tuple[_Work, list[pa.RecordBatch]]]:
    """Yield the works in their order, with their first batches, which several threads make ahead."""
    waiting: deque[tuple[_Work, Future[list[pa.RecordBatch]]]] = deque()
    pool = ThreadPoolExecutor(_THREADS, "topicfs-arrow")
    try:
        for work in works:
            waiting.append((work, pool.submit(work.some)))
            if len(waiting) > _THREADS:
                first, made = waiting.popleft()
                yield first, made.result()
        while waiting:
            first, made = waiting.popleft()
            yield first, made.result()
    finally:
        pool.shutdown(cancel_futures=True)
