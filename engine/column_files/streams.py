"""Streams of Arrow that are made for an inbox: of rows in other formats, and of rows without their partitions."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Final, cast

import numpy as np
import pyarrow as pa

from topicfs.engine.batch.columns import Columns
from topicfs.engine.batch.table import Bytes
from topicfs.engine.column_files import files
from topicfs.engine.inbox.rows import UNDATED, Rows
from topicfs.engine.parquet.schema import SCHEMA, batches

_COLUMNS: Final = pa.schema([SCHEMA.field(name) for name in ("key", "value", "headers")])


def stream_of(rows: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Yield the bytes of a stream of Arrow with these rows."""
    taken = _Taken()
    batches = iter(rows)
    first = next(batches, None) or pa.record_batch({"value": pa.array([], pa.binary())})
    with pa.ipc.new_stream(taken, first.schema) as writer:
        for batch in itertools.chain((first,), batches):
            writer.write_batch(batch)
            yield taken.given()
    yield taken.given()


class _Taken:
    """A file that keeps what is written until it is asked for."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: pa.Buffer | bytes) -> int:
        """Keep bytes."""
        self._parts.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Do nothing."""

    def given(self) -> bytes:
        """Return what was written since the last time."""
        given, self._parts = b"".join(self._parts), []
        return given


def without_partitions(rows: Iterable[Rows]) -> Iterator[pa.RecordBatch]:
    """Yield the records with the columns that an inbox takes, but for the partitions that they name."""
    for each in rows:
        times = each.columns.timestamps
        undated = times == UNDATED
        batch = batches(_with_headers(each.columns), "", 0, _COLUMNS)
        yield batch.append_column("timestamp", pa.array(times, pa.int64(), mask=undated))


def _with_headers(columns: Columns) -> Columns:
    """Return records all of which have an encoding of their headers, as stored records do: that of none is a zero."""
    missing = columns.headers_length == 0
    if not missing.any():
        return columns
    return replace(
        columns,
        buffer=np.append(columns.buffer, np.uint8(0)),
        headers_start=np.where(missing, np.int32(columns.buffer.size), columns.headers_start),
        headers_length=np.where(missing, np.int32(1), columns.headers_length),
    )


def rows_of_file(kind: str, path: Path) -> Iterator[Rows]:
    """Yield the rows of a file of Parquet or Arrow, as an inbox reads them. `kind` is the suffix of its name."""
    with path.open("rb", buffering=0) as file:
        yield from files.rows_in(kind, _Opened(file.fileno()), path.stat().st_size)


class _Opened:
    """A file that is open, by its descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, position: int, into: Bytes) -> int:
        """Read into `into` from a position on, and return the number of bytes."""
        done = 0
        while done < into.size and (more := os.preadv(self._descriptor, [into[done:]], position + done)):
            done += more
        return done


def unzipped(file: BinaryIO) -> BinaryIO:
    """Return what a file has that is compressed by Zstandard."""
    return cast(BinaryIO, pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd"))
