"""Writing one sealed segment as a Parquet file.

Row groups are small, so that a filter on offset or timestamp skips most of a file: each row group, and each page,
stores the range of both. Offsets rise through the file. Both are stored as differences: a byte or two per record.
One row group at a time is in memory.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from topicfs.engine.batch.columns import Columns
from topicfs.engine.files.atomic import sync_directory
from topicfs.engine.files.regular import open_regular
from topicfs.engine.format.paths import TEMPORARY_SUFFIX
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
    beside = path.with_name(path.name + TEMPORARY_SUFFIX)
    count, latest = 0, NO_TIMESTAMP
    try:
        with contextlib.ExitStack() as stack:
            writer: pq.ParquetWriter | None = None
            for group in _groups(records, topic, partition, stop):
                if writer is None:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    writer = stack.enter_context(_writer(beside))
                writer.write_table(group, row_group_size=group.num_rows)
                count += group.num_rows
                latest = max(latest, _latest_ms(group))
        if not count:
            return _described(like, 0, 0, NO_TIMESTAMP)
        size = _sync(beside)
        os.replace(beside, path)
        sync_directory(path.parent)
    except BaseException:
        # A full disk stays full as long as the unfinished file exists.
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
    finally:
        pa.default_memory_pool().release_unused()
    return _described(like, count, size, latest)


def _described(like: TableFile, records: int, size: int, max_timestamp: int) -> TableFile:
    return TableFile(
        like.name, like.base_offset, like.next_offset, records, size, max_timestamp, like.mtime_ns
    )


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


def _writer(path: Path) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        path,
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


def _sync(path: Path) -> int:
    """fsync the file. Return its size."""
    descriptor = open_regular(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
