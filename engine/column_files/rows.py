"""Rows in Arrow as columns of records, ready to be built into batches: keys and values in one buffer, as they are.

    value       text or bytes; null is a tombstone
    key         text or bytes, or null
    timestamp   a timestamp, in UTC if it names no zone, or a whole number of milliseconds; null is none
    partition   a whole number; null is none
    headers     a list of structs, or a map, of key and value: text or bytes, of which a value may be null

Text is taken as its bytes, which need not be UTF-8. Bytes of a dictionary are not repeated: records point to them.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from topicfs.engine.batch.columns import Columns
from topicfs.engine.batch.table import Bytes, Ints, Longs
from topicfs.engine.errors import InvalidRecordError
from topicfs.engine.inbox.rows import NO_PARTITION, UNDATED, Rows
from topicfs.engine.kernels import headers as sections
from topicfs.engine.record import MAX_INT32, MAX_INT64, NO_TIMESTAMP

Spans = tuple[Ints, Ints, Bytes]
"""Start, length (-1: null) and bytes of some values."""

LARGEST: Final = 256 << 20
"""Bytes of a batch of rows of a file, or of a page of Parquet, at most. It is in memory as a whole."""

_NOTHING: Final = np.empty(0, np.uint8)
_VIEW: Final = 16
"""Bytes of a view of text or bytes."""

_INLINE: Final = 12
"""Bytes of text that a view has in itself, at most."""

_MS: Final = {"s": 1000, "ms": 1}
"""Milliseconds of a unit."""

_IN_MS: Final = {"us": 1000, "ns": 1_000_000}
"""Units in a millisecond."""


def rows_of(batch: pa.RecordBatch) -> Rows:
    """Return the records of a batch whose columns are some of those above, of which others are passed over.
    InvalidRecordError names the first row that is none."""
    count = batch.num_rows
    key = _spans(_column(batch, "key"), count)
    value = _spans(_column(batch, "value"), count)
    headers = _headers(_column(batch, "headers"), count)
    total = sum(data.size for _, _, data in (key, value, headers))
    if total > MAX_INT32:
        raise InvalidRecordError(
            f"expected less than 2 GB in a batch of rows, found {total} bytes: make "
            "spark.sql.execution.arrow.maxRecordsPerBatch smaller"
        )
    spans, parts, origin = list[Ints](), list[Bytes](), 0
    for start, length, data in (key, value, headers):
        spans += [start + np.int32(origin), length]
        parts += [data] if data.size else []
        origin += data.size
    columns = Columns(
        parts[0] if len(parts) == 1 else np.concatenate([_NOTHING, *parts]),
        np.arange(count, dtype=np.int64),
        _timestamps(_column(batch, "timestamp"), count),
        *spans,
    )
    return Rows(columns, _partitions(_column(batch, "partition"), count))


def _column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    return batch.column(name) if name in batch.schema.names else None


def plain(values: pa.Array) -> pa.Array:
    """Return text as bytes, also inside of lists and dictionaries, without a copy where Arrow needs none."""
    kind = values.type
    if pa.types.is_string(kind):
        return values.view(pa.binary())
    if pa.types.is_large_string(kind):
        return values.view(pa.large_binary())
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(values.indices, plain(values.dictionary), safe=False)
    return values


# -- keys and values ----------------------------------------------------------------------------------


def _spans(values: pa.Array | None, count: int) -> Spans:
    if values is None or not count:
        return np.zeros(count, np.int32), np.full(count, -1, np.int32), _NOTHING
    values = plain(values)
    if pa.types.is_dictionary(values.type):
        start, length, data = _spans(values.dictionary, len(values.dictionary))
        if not len(values.dictionary):
            return _spans(None, count)
        places = values.indices.fill_null(0).to_numpy(zero_copy_only=False)
        return start[places], _null(values.indices, length[places]), data
    if pa.types.is_string_view(values.type) or pa.types.is_binary_view(values.type):
        return _view_spans(values)
    if not (pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)):
        values = values.cast(pa.large_binary())
    _, places, data = values.buffers()
    kind = np.int32 if pa.types.is_binary(values.type) else np.int64
    size = places.size // np.dtype(kind).itemsize  # a file may have bytes behind them
    every = np.frombuffer(places, kind, size)[values.offset : values.offset + count + 1]
    first, end = int(every[0]), int(every[-1])
    if end - first > MAX_INT32:
        raise InvalidRecordError(f"expected less than 2 GB in a column, found {end - first} bytes")
    held = _NOTHING if data is None else np.frombuffer(data, np.uint8)[first:end]
    start = (every[:-1] - first).astype(np.int32, copy=False)
    return start, _null(values, np.diff(every).astype(np.int32, copy=False)), held


def _view_spans(values: pa.Array) -> Spans:
    """Return the spans of views, without a copy for each: many may look at the same bytes. A view is int32 length, and
    up to 12 bytes; or 4 bytes, int32 number of a buffer, and int32 position there."""
    _, views, *buffers = values.buffers()
    length, _, number, position = (
        np.frombuffer(views, np.int32, 4 * (values.offset + len(values)))
        .reshape(-1, 4)[values.offset :]
        .astype(np.int64)
        .T
    )
    parts = [np.frombuffer(buffer, np.uint8) for buffer in (views, *buffers)]
    sizes = np.array([part.size for part in parts], np.int64)
    inside = (length >= 0) & (length <= _INLINE)
    place = np.where(inside, 0, number + 1)
    at = np.where(inside, np.arange(values.offset, values.offset + len(values)) * _VIEW + 4, position)
    valid = _valid(values)
    good = (length >= 0) & (place >= 0) & (place < sizes.size) & (at >= 0)
    good &= at + length <= sizes[np.where(good, place, 0)]
    if not good[valid].all():
        row = int(np.argmax(valid & ~good))
        raise InvalidRecordError("a view goes beyond the bytes that it looks at", (row,))
    if sizes.sum() > MAX_INT32:
        raise InvalidRecordError(f"expected less than 2 GB in a column, found {sizes.sum()} bytes")
    start = np.where(valid, (np.cumsum(sizes) - sizes)[np.where(good, place, 0)] + at, 0)
    return start.astype(np.int32), np.where(valid, length, -1).astype(np.int32), np.concatenate(parts)


def _null(values: pa.Array, length: Ints) -> Ints:
    """Return the lengths, -1 for null."""
    return np.where(_valid(values), length, np.int32(-1)) if values.null_count else length


def _valid(values: pa.Array) -> npt.NDArray[np.bool_]:
    return np.asarray(values.is_valid().to_numpy(zero_copy_only=False), np.bool_)


# -- numbers ------------------------------------------------------------------------------------------


def _timestamps(values: pa.Array | None, count: int) -> Longs:
    """Return milliseconds, rounded down, and UNDATED for null."""
    if values is None:
        return np.full(count, UNDATED, np.int64)
    unit = values.type.unit if pa.types.is_timestamp(values.type) else "ms"
    found = _longs(values.view(pa.int64()) if pa.types.is_timestamp(values.type) else values, "timestamp")
    valid = _valid(values)
    wrong = valid & ((found > MAX_INT64 // _MS[unit]) if unit in _MS else np.zeros(count, np.bool_))
    times = found // _IN_MS[unit] if unit in _IN_MS else np.where(wrong, 0, found) * _MS[unit]
    wrong |= valid & (times < NO_TIMESTAMP)
    if wrong.any():
        row = int(wrong.argmax())
        raise InvalidRecordError(
            f"expected a timestamp in milliseconds of at least -1 (none), found {found[row]} {unit}", (row,)
        )
    return np.where(valid, times, UNDATED)


def _partitions(values: pa.Array | None, count: int) -> Ints:
    if values is None:
        return np.full(count, NO_PARTITION, np.int32)
    valid, found = _valid(values), _longs(values, "partition")
    wrong = valid & ((found < 0) | (found > MAX_INT32))
    if wrong.any():
        row = int(wrong.argmax())
        raise InvalidRecordError(
            f"expected a partition of at least 0 and below 2147483648, found {found[row]}", (row,)
        )
    return np.where(valid, found, NO_PARTITION).astype(np.int32)


def _longs(values: pa.Array, name: str) -> Longs:
    """Return whole numbers, 0 for null."""
    try:
        return np.asarray(values.fill_null(0).cast(pa.int64()).to_numpy(zero_copy_only=False), np.int64)
    except pa.ArrowInvalid as error:
        raise InvalidRecordError(f"{name}: {error}") from None


# -- headers ------------------------------------------------------------------------------------------


def _headers(values: pa.Array | None, count: int) -> Spans:
    """Return the spans of the sections of headers, and their bytes; length 0 is "no headers"."""
    start, lengths = np.zeros(count, np.int32), np.zeros(count, np.int64)
    if values is None or values.null_count == count:
        return start, lengths.astype(np.int32), _NOTHING
    if pa.types.is_map(values.type):
        pair = pa.struct([("key", values.type.key_type), ("value", values.type.item_type)])
        values = values.cast(pa.list_(pair))
    counts = pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False)
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
    pairs = values.flatten()
    names, held = (pc.struct_field(pairs, [name]) for name in ("key", "value"))
    if names.null_count:
        row = int(np.searchsorted(ends, np.argmin(_valid(names)), "right")) - 1
        raise InvalidRecordError("expected a key in each header, found null", (row,))
    name_start, name_length, name_data = _spans(names, len(names))
    value_start, value_length, value_data = _spans(held, len(held))
    total = sections.measure(ends, name_length, value_length, lengths)
    if not 0 <= total <= LARGEST:
        raise InvalidRecordError(
            f"expected up to {LARGEST} bytes of headers in a batch of rows, found {total}"
        )
    out = np.empty(total, np.uint8)
    start = (np.cumsum(lengths) - lengths).astype(np.int32)
    buffer = np.concatenate([name_data, value_data])
    value_start = value_start + np.int32(name_data.size)
    if sections.write(buffer, ends, name_start, name_length, value_start, value_length, out) != total:
        raise InvalidRecordError(f"a header goes beyond the {buffer.size} bytes of all names and values")
    return start, lengths.astype(np.int32), out
