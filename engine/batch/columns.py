"""Reading batches: columns of their records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from topicfs.engine.batch.compression import DECOMPRESSED_LIMIT, decompress
from topicfs.engine.batch.table import Bytes, Ints, Longs
from topicfs.engine.errors import CorruptBatchError
from topicfs.engine.format.batch_header import CODEC_MASK, CONTROL, HEADER_SIZE, LOG_APPEND_TIME
from topicfs.engine.kernels import decode as decoding
from topicfs.engine.kernels.decode import MIN_RECORD_SIZE, NO_APPEND_TIME
from topicfs.engine.kernels.scan import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    COUNT,
    LAST_OFFSET,
    MAX_TIMESTAMP,
    POSITION,
    SIZE,
)
from topicfs.engine.record import NO_TIMESTAMP, Codec, Header, Record


@dataclass(frozen=True, slots=True)
class Columns:
    """The records of one or more batches, as arrays with one element per record.

    buffer                          the bytes that the spans point into: the batch, or its decompressed records
    offsets, timestamps             absolute values
    key_start, key_length           span of the key; length -1 is null
    value_start, value_length       span of the value; length -1 is null
    headers_start, headers_length   span of the encoded headers; length 1 is "no headers"
    """

    buffer: Bytes
    offsets: Longs
    timestamps: Longs
    key_start: Ints
    key_length: Ints
    value_start: Ints
    value_length: Ints
    headers_start: Ints
    headers_length: Ints

    @classmethod
    def empty(cls, buffer: Bytes, rows: int) -> Columns:
        offsets, timestamps = np.empty((2, rows), np.int64)
        return cls(buffer, offsets, timestamps, *np.empty((6, rows), np.int32))

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def arrays(self) -> tuple[Longs, Longs, Ints, Ints, Ints, Ints, Ints, Ints]:
        return (
            self.offsets,
            self.timestamps,
            self.key_start,
            self.key_length,
            self.value_start,
            self.value_length,
            self.headers_start,
            self.headers_length,
        )

    def rows(self, first: int, end: int) -> Columns:
        """Return the records from row `first` up to, but not including, row `end`."""
        offsets, timestamps, *spans = self.arrays
        return Columns(
            self.buffer, offsets[first:end], timestamps[first:end], *(span[first:end] for span in spans)
        )

    def take(self, rows: npt.NDArray[np.intp]) -> Columns:
        """Return the records of these rows, in their order."""
        offsets, timestamps, *spans = self.arrays
        return Columns(self.buffer, offsets[rows], timestamps[rows], *(span[rows] for span in spans))

    def between(self, start_offset: int, end_offset: int) -> Columns:
        """Return the records whose offsets are at least `start_offset` and below `end_offset`."""
        first, end = np.searchsorted(self.offsets, (start_offset, end_offset))
        return self if first == 0 and end == len(self) else self.rows(int(first), int(end))

    def records(self) -> Iterator[Record]:
        """Yield one object per record. This is slow compared with the arrays."""
        data = memoryview(self.buffer)
        for offset, timestamp, key, key_size, value, value_size, headers, headers_size in zip(
            *(array.tolist() for array in self.arrays), strict=True
        ):
            yield Record(
                value=None if value_size < 0 else bytes(data[value : value + value_size]),
                key=None if key_size < 0 else bytes(data[key : key + key_size]),
                timestamp=timestamp,
                headers=_headers(self.buffer, headers, headers_size) if headers_size > 1 else (),
                offset=offset,
            )


def _headers(buffer: Bytes, start: int, size: int) -> tuple[Header, ...]:
    spans = np.empty(2 * size, np.int32)
    count = decoding.decode_headers(buffer, start, start + size, spans)
    if count < 0:
        raise CorruptBatchError(f"malformed record headers of {size} bytes at byte {start}")
    data = memoryview(buffer)
    return tuple(
        (
            bytes(data[name : name + name_size]).decode("utf-8", "surrogateescape"),
            None if value_size < 0 else bytes(data[value : value + value_size]),
        )
        for name, name_size, value, value_size in spans[: 4 * count].reshape(-1, 4).tolist()
    )


def records_of(buffer: Bytes, row: Longs, origin: int = 0, limit: int = DECOMPRESSED_LIMIT) -> Bytes:
    """Return the record bytes of one batch, decompressed. `origin` is the table's position of buffer[0]."""
    start = int(row[POSITION]) - origin
    stream = buffer[start + HEADER_SIZE : start + int(row[SIZE])]
    return decompress(codec_of(row), stream, limit)


def codec_of(row: Longs) -> Codec:
    """Return the codec in the attributes."""
    try:
        return Codec(int(row[ATTRIBUTES]) & CODEC_MASK)
    except ValueError as error:
        raise CorruptBatchError(
            f"batch at offset {row[BASE_OFFSET]} has codec {row[ATTRIBUTES] & CODEC_MASK}, expected 0 to 4"
        ) from error


def _check_counts(table: Longs, sizes: Longs | int) -> None:
    """Refuse a batch that declares more records than its bytes or its offsets can hold."""
    count = table[:, COUNT]
    bad = (
        (count < 0)
        | (count * MIN_RECORD_SIZE > sizes)
        | (count > table[:, LAST_OFFSET] - table[:, BASE_OFFSET] + 1)
    )
    if bad.any():
        row = table[int(bad.argmax())]
        raise CorruptBatchError(
            f"batch at offset {row[BASE_OFFSET]} declares {row[COUNT]} records: too many for its bytes, "
            f"or for offsets up to {row[LAST_OFFSET]}"
        )


def columns(buffer: Bytes, table: Longs, origin: int = 0) -> Iterator[Columns]:
    """Yield the records of the data batches in `table`, in order: one `Columns` for each run of plain batches, one
    for each compressed batch. Control batches are skipped."""
    first = 0
    while first < len(table):
        if int(table[first, ATTRIBUTES]) & CODEC_MASK and not int(table[first, ATTRIBUTES]) & CONTROL:
            part = _compressed_columns(buffer, table[first : first + 1], origin)
            first += 1
        else:
            part, first = _plain_columns(buffer, table, first, origin)
        if len(part):
            yield part


def _plain_columns(buffer: Bytes, table: Longs, first: int, origin: int) -> tuple[Columns, int]:
    run = table[first:]
    if len(run) > 1:
        squeezed = (run[:, ATTRIBUTES] & CODEC_MASK != 0) & (run[:, ATTRIBUTES] & CONTROL == 0)
        if squeezed.any():
            run = run[: int(squeezed.argmax())]
    _check_counts(run, run[:, SIZE] - HEADER_SIZE)
    found = Columns.empty(buffer, int(run[:, COUNT].sum()))
    status, batch, index, at, rows = decoding.decode_batches(
        buffer, origin, np.ascontiguousarray(run), 0, *found.arrays, 0
    )
    _raise_if_bad(status, run[min(batch, len(run) - 1)], index, at)
    return found.rows(0, rows), first + len(run)


def _compressed_columns(buffer: Bytes, table: Longs, origin: int) -> Columns:
    row = table[0]
    return _single(records_of(buffer, row, origin), row, int(row[LAST_OFFSET] - row[BASE_OFFSET]))


def unordered_columns(buffer: Bytes, row: Longs) -> Columns:
    """Return the records of one batch whose offsets may have any order, for a leader that assigns new ones."""
    return _single(records_of(buffer, row), row, -1)


def _single(data: Bytes, row: Longs, last_offset_delta: int) -> Columns:
    _check_counts(row.reshape(1, -1), data.size)
    found = Columns.empty(data, int(row[COUNT]))
    status, index, at = decoding.decode(
        data,
        0,
        data.size,
        len(found),
        row[BASE_OFFSET],
        last_offset_delta,
        row[BASE_TIMESTAMP],
        row[MAX_TIMESTAMP] if int(row[ATTRIBUTES]) & LOG_APPEND_TIME else NO_APPEND_TIME,
        *found.arrays,
        0,
    )
    _raise_if_bad(status, row, index, at)
    return found


def _raise_if_bad(status: int, row: Longs, index: int, at: int) -> None:
    if status != decoding.GOOD:
        raise CorruptBatchError(
            f"batch at offset {row[BASE_OFFSET]}, record {index} of {row[COUNT]}, byte {at}: "
            f"{decoding.PROBLEMS[status]}"
        )


def record_at(buffer: Bytes, row: Longs, offset: int, origin: int = 0) -> Record | None:
    """Return the record with an offset in one batch, or None. The other records are not decoded."""
    data = records_of(buffer, row, origin)
    base = int(row[BASE_OFFSET])
    start, end = decoding.find_record(data, 0, data.size, row[COUNT], offset - base)
    if start < 0:
        return None
    status, at, body, delta, key, key_size, value, value_size, headers = decoding.one_record(data, start, end)
    _raise_if_bad(status, row, offset - base, at)
    stamped = int(row[ATTRIBUTES]) & LOG_APPEND_TIME
    content = memoryview(data)
    return Record(
        value=None if value_size < 0 else bytes(content[value : value + value_size]),
        key=None if key_size < 0 else bytes(content[key : key + key_size]),
        timestamp=int(row[MAX_TIMESTAMP]) if stamped else _sum(int(row[BASE_TIMESTAMP]), delta),
        headers=_headers(data, headers, body - headers) if body - headers > 1 else (),
        offset=offset,
    )


def _sum(timestamp: int, delta: int) -> int:
    """Add as 64-bit integers do, here and in every consumer: the delta from -1 (none) to the largest timestamp
    overflows."""
    return (timestamp + delta + (1 << 63)) % (1 << 64) - (1 << 63)


@dataclass(frozen=True, slots=True)
class Inspection:
    """The result of a check of a batch's records.

    smallest_timestamp, largest_timestamp   over all records; NO_TIMESTAMP in an empty batch
    null_keys                               number of records without a key
    sequential                              whether the offset deltas are 0, 1, 2 …
    """

    smallest_timestamp: int
    largest_timestamp: int
    null_keys: int
    sequential: bool


def inspect(buffer: Bytes, row: Longs, origin: int = 0) -> Inspection:
    """Check every record of one batch against the format, without keeping the records."""
    data = records_of(buffer, row, origin)
    _check_counts(row.reshape(1, -1), data.size)
    status, index, at, smallest, largest, nulls, sequential = decoding.inspect(
        data, 0, data.size, row[COUNT], row[BASE_TIMESTAMP]
    )
    _raise_if_bad(status, row, index, at)
    if not row[COUNT]:
        smallest = largest = NO_TIMESTAMP
    return Inspection(smallest, largest, nulls, bool(sequential))


def first_record_at_or_after(
    buffer: Bytes, row: Longs, timestamp: int, offset: int, origin: int = 0
) -> tuple[int, int] | None:
    """Return timestamp and offset of the batch's first record that is neither earlier nor lower, or None. A marker
    counts too, as in Kafka: a reader that begins there misses nothing."""
    if int(row[ATTRIBUTES]) & CONTROL:
        latest, last = int(row[MAX_TIMESTAMP]), int(row[LAST_OFFSET])
        return (latest, last) if row[COUNT] and latest >= timestamp and last >= offset else None
    for part in columns(buffer, row.reshape(1, -1), origin):
        found = (part.timestamps >= timestamp) & (part.offsets >= offset)
        if found.any():
            at = int(found.argmax())
            return int(part.timestamps[at]), int(part.offsets[at])
    return None
