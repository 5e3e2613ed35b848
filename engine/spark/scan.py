"""A task's records as Arrow batches, of the size that Spark takes best."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from topicfs.engine.errors import OffsetOutOfRangeError
from topicfs.engine.parquet.schema import batches, timestamp_types_of
from topicfs.engine.unlocked.offset_range import OffsetRange
from topicfs.engine.unlocked.scan import Chunk, chunks

ROWS: Final = 20_000
"""Records of an Arrow batch: fewer cost more calls, more no longer help (measured, see SPARK.md §4)."""

_FEW: Final = 5_000


def record_batches(part: OffsetRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range, in order, with the columns of the schema."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for made in _batches(part, schema):
        waiting.append(made)
        rows += len(made)
        # A large compressed batch becomes an Arrow batch of its own, which may be small.
        if rows >= _FEW:
            yield _joined(waiting)
            waiting, rows = [], 0
    if waiting:
        yield _joined(waiting)


def _batches(part: OffsetRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    with_types = "timestampType" in schema.names
    for chunk in _chunks(part):
        for columns in chunk.columns(part):
            for first in range(0, len(columns), ROWS):
                some = columns.rows(first, first + ROWS)
                types = timestamp_types_of(some, chunk.table) if with_types else 0
                yield batches(some, part.topic, part.number, schema, types)


def _chunks(part: OffsetRange) -> Iterator[Chunk]:
    try:
        yield from chunks(part, reuse=True)
    except OffsetOutOfRangeError as error:
        raise OffsetOutOfRangeError(f"{error}. failOnDataLoss=false reads what is left") from None


def _joined(waiting: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(waiting) == 1:
        return waiting[0]
    return pa.Table.from_batches(waiting).combine_chunks().to_batches()[0]
