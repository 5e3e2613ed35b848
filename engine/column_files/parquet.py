"""Files of Parquet, in batches of rows that are small whatever the file holds.

A small file may unpack to any size: pages are compressed, a dictionary stands for long values by short numbers, and the
encoding DELTA_BYTE_ARRAY for values by what they have in common. So pages are looked at before they are read. Their
headers tell how many rows may be read at once; values of a dictionary are left there, and records point to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from topicfs.engine.column_files.pages import DELTA_BYTE_ARRAY, MAGIC, Page, RowGroup, row_groups
from topicfs.engine.column_files.rows import LARGEST
from topicfs.engine.column_files.source import CUT_SHORT, File, Source
from topicfs.engine.errors import InvalidRecordError

_MOST_ROWS: Final = 32 * 1024
_BYTES: Final = 64 << 20
"""Bytes of a batch of rows, about."""

_AT_ONCE: Final = 1 << 20
"""Bytes of a column that are read at once. A column as a whole may be much larger than a page of it."""

_INDEX: Final = 8
"""Bytes of a value that is in a dictionary, or is null."""

_HEADERS: Final = "headers."
"""The path of a column of which a row has several values."""


def is_whole(file: File, size: int) -> bool:
    """Tell whether a file ends as one that was written to its end."""
    return Source(file, 0, size).at(size - len(MAGIC), len(MAGIC)).tobytes() == MAGIC


def batches(
    file: File, size: int, names: frozenset[str], check: Callable[[pa.Schema], None]
) -> Iterator[pa.RecordBatch]:
    """Give the batches of rows of a file, each with all columns that have one of these names. `check` gets the schema
    before. InvalidRecordError, ArrowException or OSError for what is damaged."""
    source = Source(file, 0, size)
    plain = _opened(source, ())
    schema = plain.schema_arrow
    check(schema)
    groups = row_groups(source, [column.path for column in plain.schema], names)
    dictionaries = {
        path
        for group in groups
        for path, found in group.columns.items()
        if any(page.refers for page in found)
    }
    wanted = [name for name in schema.names if name in names]
    widths = [field.type.byte_width for field in schema if pa.types.is_fixed_size_binary(field.type)]
    opened = _opened(source, sorted(dictionaries))
    for number, group in enumerate(groups):
        rows = 0
        at_once = _rows_at_once(group, max(widths, default=_INDEX))
        for batch in opened.iter_batches(at_once, [number], wanted, use_threads=False):
            rows += batch.num_rows
            yield batch
        if rows != group.rows:
            raise InvalidRecordError(
                f"expected {group.rows} rows in row group {number}, found {rows}: {CUT_SHORT}"
            )


def _opened(source: Source, dictionaries: Sequence[str]) -> pq.ParquetFile:
    return pq.ParquetFile(
        pa.PythonFile(source, mode="r"),
        read_dictionary=dictionaries,
        buffer_size=_AT_ONCE,
        pre_buffer=False,
        # Spark writes timestamps as INT96, whose nanoseconds do not reach beyond the year 2262.
        coerce_int96_timestamp_unit="us",
    )


def _rows_at_once(group: RowGroup, width: int) -> int:
    """Return how many rows of a group are read at once. `width` is the bytes of values that all have the same size."""
    # A row may have any number of headers, so those of a group are counted together.
    headers = [page for path, found in group.columns.items() if path.startswith(_HEADERS) for page in found]
    size = sum(page.size + _INDEX * page.values for page in headers)
    if size > LARGEST:
        raise InvalidRecordError(
            f"expected up to {LARGEST} bytes of headers in a row group, found {size}: write smaller ones"
        )
    others = [
        page for path, found in group.columns.items() if not path.startswith(_HEADERS) for page in found
    ]
    most = max((_bytes_of_a_row(page) for page in others if not page.is_dictionary), default=0)
    return max(1, min(_MOST_ROWS, _BYTES // max(most, width)))


def _bytes_of_a_row(page: Page) -> int:
    """Return how many bytes a row takes, in the average of a page. Of DELTA_BYTE_ARRAY each value may be as long as all
    that is stored."""
    if page.refers:
        return _INDEX
    return page.size if page.encoding == DELTA_BYTE_ARRAY else page.size // max(page.values, 1) + 1
