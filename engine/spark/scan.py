"""A task's records as Arrow batches, of the size that Spark takes best."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from topicfs.engine.batch.columns import Columns
from topicfs.engine.batch.table import Longs
from topicfs.engine.errors import OffsetOutOfRangeError
from topicfs.engine.parquet.schema import batches, timestamp_types_of
from topicfs.engine.spark.columns import RECORDS
from topicfs.engine.unlocked.headers import IN_HEADERS, columns_of_headers
from topicfs.engine.unlocked.offset_range import EVERYTHING, OffsetRange
from topicfs.engine.unlocked.scan import chunks

ROWS: Final = 20_000
"""Records of an Arrow batch: fewer cost more calls, more no longer help (measured, see SPARK.md §4)."""

_FEW: Final = 5_000


def record_batches(part: OffsetRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range, in order, with the columns of the schema."""
    if RECORDS.name in schema.names:
        yield _count(part, schema)
        return
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
    for columns, table in _columns(part, set(schema.names)):
        for first in range(0, len(columns), ROWS):
            some = columns.rows(first, first + ROWS)
            types = timestamp_types_of(some, table) if with_types else 0
            yield batches(some, part.topic, part.number, schema, types)


def _count(part: OffsetRange, schema: pa.Schema) -> pa.RecordBatch:
    """Return one row with the number of the records."""
    records = sum(len(columns) for columns, _ in _columns(part, set()))
    known = {"topic": part.topic, "partition": part.number, RECORDS.name: records}
    return pa.RecordBatch.from_pylist([known], schema)


def _columns(part: OffsetRange, wanted: set[str]) -> Iterator[tuple[Columns, Longs]]:
    """Yield the records of a range, with at least the wanted columns, and the batches that hold them."""
    try:
        if wanted <= IN_HEADERS and part.times == EVERYTHING:
            yield from columns_of_headers(part, "offset" in wanted)
        else:
            for chunk in chunks(part, reuse=True):
                for columns in chunk.columns(part):
                    yield columns, chunk.table
    except OffsetOutOfRangeError as error:
        raise OffsetOutOfRangeError(f"{error}. failOnDataLoss=false reads what is left") from None


def _joined(waiting: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(waiting) == 1:
        return waiting[0]
    return pa.Table.from_batches(waiting).combine_chunks().to_batches()[0]
