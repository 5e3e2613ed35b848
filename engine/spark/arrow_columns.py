"""Rows as columns of records, ready to be built into batches: keys and values as in Arrow, in one buffer."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from topicfs.engine.batch.columns import Columns
from topicfs.engine.batch.table import Bytes, Ints, Longs
from topicfs.engine.errors import InvalidRecordError
from topicfs.engine.inbox.routing import NO_PARTITION
from topicfs.engine.record import MAX_INT32

_BYTES: Final = pa.large_binary()


def columns_of(rows: pa.RecordBatch, now: int) -> Columns:
    """Return the records of a batch whose columns are some of value, key, timestamp and headers. Records without a
    timestamp get `now`."""
    if rows.nbytes > MAX_INT32:
        raise InvalidRecordError(
            f"expected less than 2 GB in a batch of rows, found {rows.nbytes} bytes: make "
            "spark.sql.execution.arrow.maxRecordsPerBatch smaller"
        )
    count = rows.num_rows
    # The first byte is the headers section of all records that have no headers.
    key_start, key_length, keys = _spans(_column(rows, "key"), count, 1)
    value_start, value_length, values = _spans(_column(rows, "value"), count, 1 + keys.size)
    origin = 1 + keys.size + values.size
    headers_start, headers_length, headers = _headers(_column(rows, "headers"), count, origin)
    return Columns(
        np.concatenate([np.zeros(1, np.uint8), keys, values, headers]),
        np.arange(count, dtype=np.int64),
        _timestamps(_column(rows, "timestamp"), count, now),
        key_start,
        key_length,
        value_start,
        value_length,
        headers_start,
        headers_length,
    )


def partitions_of(rows: pa.RecordBatch) -> Ints:
    """Return the partition of each row, or NO_PARTITION if the row names none."""
    named = _column(rows, "partition")
    if named is None:
        return np.full(rows.num_rows, NO_PARTITION, np.int32)
    return np.asarray(named.cast(pa.int32()).fill_null(NO_PARTITION).to_numpy(zero_copy_only=False), np.int32)


def _column(rows: pa.RecordBatch, name: str) -> pa.Array | None:
    return rows.column(name) if name in rows.schema.names else None


def _spans(values: pa.Array | None, count: int, origin: int) -> tuple[Ints, Ints, Bytes]:
    """Return start, length (-1: null) and bytes of the values, which are placed at `origin`."""
    if values is None:
        return np.zeros(count, np.int32), np.full(count, -1, np.int32), np.empty(0, np.uint8)
    values = values.cast(pa.binary())
    _, places, data = values.buffers()
    every = np.frombuffer(places, np.int32)[values.offset : values.offset + count + 1]
    length = np.diff(every)
    if values.null_count:
        length = np.where(values.is_valid().to_numpy(zero_copy_only=False), length, np.int32(-1))
    first, end = (int(every[0]), int(every[-1])) if count else (0, 0)
    held = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)[first:end]
    return every[:-1] + np.int32(origin - first), length.astype(np.int32), held


def _timestamps(values: pa.Array | None, count: int, now: int) -> Longs:
    if values is None:
        return np.full(count, now, np.int64)
    micros = values.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    known = micros.is_valid().to_numpy(zero_copy_only=False)
    return np.where(known, micros.fill_null(0).to_numpy(zero_copy_only=False) // 1000, now)


def _headers(values: pa.Array | None, count: int, origin: int) -> tuple[Ints, Ints, Bytes]:
    """Return start, length and bytes of the headers in the record format. `topicfs.engine.kernels.encode` draws it."""
    start, length = np.zeros(count, np.int32), np.ones(count, np.int32)
    if values is None or values.null_count == count:
        return start, length, np.empty(0, np.uint8)
    counts = pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    headers = values.flatten()
    names = pc.struct_field(headers, 0).cast(_BYTES)
    if names.null_count:
        raise InvalidRecordError("expected a key in each header, found null")
    held = pc.struct_field(headers, 1).cast(_BYTES)
    each = _joined(_varints(_lengths(names)), names, _varints(_lengths(held)), held.fill_null(b""))
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    listed = pc.binary_join(pa.LargeListArray.from_arrays(pa.array(ends), each), pa.scalar(b"", _BYTES))
    some = counts > 0
    sections = _joined(_varints(counts), listed).filter(pa.array(some))
    _, places, data = sections.buffers()
    every = np.frombuffer(places, np.int64)[sections.offset : sections.offset + len(sections) + 1]
    start[some] = origin + every[:-1] - every[0]
    length[some] = np.diff(every)
    return start, length, np.frombuffer(data or b"", np.uint8)[every[0] : every[-1]]


def _joined(*parts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", _BYTES))


def _lengths(values: pa.Array) -> Longs:
    """Return the lengths of the values, -1 for null."""
    return np.asarray(pc.binary_length(values).fill_null(-1).to_numpy(zero_copy_only=False), np.int64)


def _varints(values: Longs) -> pa.Array:
    """Return each number as a varint. Only few different numbers occur."""
    different, places = np.unique(values, return_inverse=True)
    return pa.array([_varint(value) for value in different.tolist()], _BYTES).take(pa.array(places))


def _varint(value: int) -> bytes:
    zigzag = (value << 1) ^ (value >> 63)
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)
