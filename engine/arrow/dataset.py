"""The records of a topic as a dataset: of each query it reads only the columns, and only what a filter leaves over.

DuckDB and others hand their filters to a dataset as Arrow's expressions. What a piece of a segment surely has, its
partition, offsets and times, is told to Arrow in its own terms, as the guarantee of a fragment, and Arrow says which
fragments a filter may match. First that is done with whole segments, then with the pieces of those that are left. So
every filter that Arrow understands will do, and none is taken apart here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from topicfs.engine.arrow.reader import Shaped, record_batches
from topicfs.engine.parquet.schema import TABLE_SCHEMA, microseconds
from topicfs.engine.unlocked.offset_range import OffsetRange
from topicfs.engine.unlocked.partitions import TopicPartition
from topicfs.engine.unlocked.pieces import Piece, by_segment, cut
from topicfs.engine.unlocked.planning import range_of

Span = tuple[TopicPartition, int, int]
"""A partition, and the offsets [start, end) of it."""

_FORMAT: Final = ds.ParquetFileFormat()
_FILES: Final = LocalFileSystem()
"""A fragment needs both. No file of it is ever looked at."""


class TopicDataset(ds.Dataset):  # type: ignore[misc] # pyarrow has no types
    """Spans of a topic's partitions.

    It is a dataset of pyarrow by its type only, because that is how DuckDB knows one: it has what a query uses of it,
    the schema and `scanner`.
    """

    def __init__(self, spans: Sequence[Span], views: Path) -> None:
        """`views` is the directory of all partitions' views."""
        self._spans = spans
        self._views = views

    @property
    def schema(self) -> pa.Schema:
        """Return the schema of all columns."""
        return TABLE_SCHEMA

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: Any) -> TopicScanner:
        """Return a scanner of some columns, and of the rows that a filter takes."""
        names = TABLE_SCHEMA.names if columns is None else list(columns)
        schema = pa.schema([TABLE_SCHEMA.field(name) for name in names])
        parts = self._ranges(filter)
        if filter is None:
            return TopicScanner(schema, self.read(parts, schema))
        # A name that the filter's text merely happens to have is a column that is read for nothing.
        read = [field for field in TABLE_SCHEMA if field.name in names or field.name in str(filter)]

        def shaped(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
            found: list[pa.RecordBatch] = (
                pa.Table.from_batches([batch]).filter(filter).select(names).to_batches()
            )
            return found

        return TopicScanner(schema, self.read(parts, pa.schema(read), shaped))

    def read(
        self, parts: Iterator[OffsetRange], schema: pa.Schema, shaped: Shaped | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of a scan."""
        yield from record_batches(parts, schema, shaped)

    def _ranges(self, wanted: Any) -> Iterator[OffsetRange]:
        """Yield what is to be read for a filter."""
        if wanted is None:
            for partition, start, end in self._spans:
                yield range_of(partition, start, end)
            return
        segments = [
            piece
            for partition, start, end in self._spans
            for piece in by_segment(partition, self._views, start, end)
        ]
        pieces = (part for piece in _matching(segments, wanted) for part in cut(piece, self._views))
        for partition, start, end in _joined(_matching(list(pieces), wanted)):
            yield range_of(partition, start, end)


class TopicScanner(ds.Scanner):  # type: ignore[misc] # pyarrow has no types
    """One scan of a dataset."""

    def __init__(self, schema: pa.Schema, found: Iterator[pa.RecordBatch]) -> None:
        self._schema = schema
        self._found = found

    @property
    def projected_schema(self) -> pa.Schema:
        """Return the columns that it gives."""
        return self._schema

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the record batches. They can be read once."""
        return pa.RecordBatchReader.from_batches(self._schema, self._found)


def _matching(pieces: Sequence[Piece], wanted: Any) -> list[Piece]:
    """Return the pieces that may have a record that a filter takes."""
    fragments = [
        _FORMAT.make_fragment(str(place), _FILES, partition_expression=_guarantee(piece))
        for place, piece in enumerate(pieces)
    ]
    dataset = ds.FileSystemDataset(fragments, TABLE_SCHEMA, _FORMAT, _FILES)
    return [pieces[place] for place in sorted(int(each.path) for each in dataset.get_fragments(wanted))]


def _guarantee(piece: Piece) -> Any:
    """Return what is true of each record of a piece."""
    offset, time = ds.field("offset"), ds.field("timestamp")
    known = [
        ds.field("topic") == pa.scalar(piece.partition.topic),
        ds.field("partition") == pa.scalar(piece.partition.number, pa.int32()),
        offset >= piece.start,
        offset < piece.end,
    ]
    if piece.times.first is not None:
        known.append(time >= _moment(piece.times.first))
    if piece.times.last is not None:
        known.append(time <= _moment(piece.times.last))
    return reduce(and_, known)


def _moment(ms: int) -> pa.Scalar:
    return pa.scalar(microseconds(ms), TABLE_SCHEMA.field("timestamp").type)


def _joined(pieces: Iterable[Piece]) -> Iterator[Span]:
    """Yield the spans of pieces. Those that are adjacent become one."""
    waiting: Span | None = None
    for piece in pieces:
        if waiting is not None and waiting[0] is piece.partition and waiting[2] == piece.start:
            waiting = waiting[0], waiting[1], piece.end
            continue
        if waiting is not None:
            yield waiting
        waiting = piece.partition, piece.start, piece.end
    if waiting is not None:
        yield waiting
