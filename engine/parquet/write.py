"""Writing one sealed segment as a Parquet file.

Row groups are small, so that a filter on offset or timestamp skips most of a file: each row group, and each page,
stores the range of both. Offsets rise through the file. Both are stored as differences: a byte or two per record.
One row group at a time is in memory.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from topicfs.engine.batch.columns import Columns
from topicfs.engine.files.atomic import replacing
from topicfs.engine.parquet.schema import FILE_SCHEMA, batches
from topicfs.engine.parquet.table import TableFile
from topicfs.engine.record import NO_TIMESTAMP

ROW_GROUP_ROWS: Final = 128 * 1024
ROW_GROUP_BYTES: Final = 16 * 1024 * 1024
"""A row group ends with the chunk of records that reaches one of these limits."""

_DIFFERENCES: Final = "DELTA_BINARY_PACKED"


class Stopped(Exception):  # noqa: N818 - it is no error: a caller asked for it
    """The writing was stopped."""


def write_file(
    path: Path,
    records: Iterator[Columns],
    topic: str,
    partition: int,
    like: TableFile,
    stop: Callable[[], bool],
) -> TableFile:
    """Write the records, and return `like` completed with their numbers. When this returns, the complete file is on
    disk under its name. After an error there is no file. Without records there is none either."""
    count, latest = 0, NO_TIMESTAMP
    try:
        groups: Iterator[pa.Table] = _groups(records, topic, partition, stop)
        first = next(groups, None)
        if first is None:
            return replace(like, records=0, size=0, max_timestamp=NO_TIMESTAMP)
        groups = itertools.chain((first,), groups)
        del first  # one row group at a time is in memory
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as descriptor:
            with os.fdopen(descriptor, "wb", closefd=False) as file, _writer(file) as writer:
                for group in groups:
                    writer.write_table(group, row_group_size=group.num_rows)
                    count += group.num_rows
                    latest = max(latest, _latest_ms(group))
                    del group  # before the next one is made
            size = os.fstat(descriptor).st_size
    finally:
        pa.default_memory_pool().release_unused()
    return replace(like, records=count, size=size, max_timestamp=latest)


def _groups(
    records: Iterator[Columns], topic: str, partition: int, stop: Callable[[], bool]
) -> Iterator[pa.Table]:
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for part in records:
        if stop():
            raise Stopped
        for first in range(0, len(part), ROW_GROUP_ROWS):
            batch = batches(part.rows(first, first + ROW_GROUP_ROWS), topic, partition, FILE_SCHEMA)
            pending.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= ROW_GROUP_ROWS or size >= ROW_GROUP_BYTES:
                yield pa.Table.from_batches(pending, FILE_SCHEMA)
                pending, rows, size = [], 0, 0
    if pending:
        yield pa.Table.from_batches(pending, FILE_SCHEMA)


def _writer(file: BinaryIO) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        file,
        FILE_SCHEMA,
        compression="zstd",
        use_dictionary=["topic", "key", "headers.list.element.key"],
        column_encoding={"offset": _DIFFERENCES, "timestamp": _DIFFERENCES},
        # Statistics of keys and values would be large, and useless if these come in any order.
        write_statistics=["topic", "offset", "timestamp"],
        write_page_index=True,
        sorting_columns=[pq.SortingColumn(FILE_SCHEMA.get_field_index("offset"))],
    )


def _latest_ms(group: pa.Table) -> int:
    column = group.column("timestamp")
    return max(int(chunk.cast(pa.int64()).to_numpy().max()) for chunk in column.chunks) // 1000
