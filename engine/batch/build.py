"""Building batches from lines, from records, or from columns that were read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from topicfs.engine.batch.columns import Columns, codec_of, columns
from topicfs.engine.batch.compression import compress
from topicfs.engine.batch.table import Batch, Batches, Bytes, Longs
from topicfs.engine.errors import (
    CorruptBatchError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
)
from topicfs.engine.format.batch_header import CONTROL, HEADER_SIZE, LOG_APPEND_TIME, TRANSACTIONAL
from topicfs.engine.kernels import encode as encoding
from topicfs.engine.kernels.encode import RECORD_OVERHEAD
from topicfs.engine.kernels.scan import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    COLUMNS,
    LAST_OFFSET,
    LEADER_EPOCH,
    MAX_TIMESTAMP,
    POSITION,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    SIZE,
)
from topicfs.engine.record import (
    MAX_INT32,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    Codec,
    Record,
    TimestampType,
)


@dataclass(frozen=True, slots=True)
class Shape:
    """The properties of a new batch, besides its records.

    codec, level     compression; level None is the codec's default
    timestamp_type   LOG_APPEND_TIME makes the append time every record's timestamp
    producer_id …    for idempotence; without it NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE
    transactional    whether the records belong to the producer's open transaction
    """

    codec: Codec = Codec.NONE
    level: int | None = None
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE
    transactional: bool = False

    def __post_init__(self) -> None:
        if self.producer_id == NO_PRODUCER_ID:
            if self.transactional:
                raise InvalidRecordError("a transactional batch needs a producer id, found none")
        elif self.producer_epoch < 0:
            raise InvalidRecordError(
                f"producer {self.producer_id} needs an epoch, found {self.producer_epoch}"
            )
        elif self.base_sequence < 0:
            raise InvalidRecordError(
                f"producer {self.producer_id} needs a sequence, found {self.base_sequence}"
            )

    @property
    def attributes(self) -> int:
        return (
            int(self.codec)
            | (LOG_APPEND_TIME if self.timestamp_type == TimestampType.LOG_APPEND_TIME else 0)
            | (TRANSACTIONAL if self.transactional else 0)
        )


PLAIN: Final = Shape()

_ROOM: Final = 4096
_SAMPLE: Final = 4096
"""Bytes by which the length of lines is judged: to count them in all of the text would cost a tenth of an append."""

_NOTHING: Final = Batch(np.empty(0, np.uint8), np.empty(0, np.int64))


def from_lines(
    lines: Bytes, timestamp: int, shape: Shape = PLAIN, limit: int = MAX_INT32, start: int = 0
) -> tuple[Batch, int]:
    """Return one batch of the lines of lines[start:], each as a record, and the position of the first line that did
    not fit.

    `limit` is the largest batch in bytes, before compression. RecordTooLargeError if the first line alone exceeds
    it. Without lines the batch has no bytes."""
    if start >= lines.size:
        return _NOTHING, start
    size = lines.size - start
    # The first is enough for lines of 76 bytes. An empty line, one byte, becomes a record of at most 11 bytes.
    for room in (size + size // 4 + 4096, 12 * size + RECORD_OVERHEAD):
        out = np.empty(min(limit, HEADER_SIZE + room), np.uint8)
        count, used, end = encoding.encode_lines(lines, start, lines.size, 0, out, HEADER_SIZE, out.size)
        if used == lines.size or out.size == limit:
            break
    if not count:
        raise RecordTooLargeError(
            f"a line of up to {lines.size - start} bytes exceeds a batch of {limit} bytes"
        )
    return finish(out, end, count, timestamp, timestamp, shape), used


def several_from_lines(
    head: Bytes,
    lines: Bytes,
    start: int,
    timestamp: int,
    latest: int,
    shape: Shape,
    size: int,
    limit: int,
    most: int,
) -> tuple[Batches | None, Longs, int]:
    """Return batches of the lines of `head` and `lines`, which count as one text, from a position in it on: as many of
    them as fit into one buffer; the bytes of text in each; and the position of the first line that is not in them.

    A batch is full with `size` bytes, before compression. A line that alone is longer has a batch for itself, which may
    take `limit`; None if the first line exceeds that. All together take at most `most` bytes, or there is one only.
    `timestamp` is that of all records, and `latest` the batches' largest one."""
    room = _room_for(head.size + lines.size - start, lines)
    out = np.empty(max(min(room, most), min(room, limit)), np.uint8)
    rows = max(1, room // size + 1)
    if room > most:
        rows = max(1, min(rows, most // max(size, 1)))
    table, texts = np.empty((rows, COLUMNS), np.int64), np.empty(rows, np.int64)
    made, used, end = encoding.encode_batches(
        head, lines, start, timestamp, latest, shape.attributes, size, limit, out, table, texts
    )
    if not made:
        return None, texts[:0], start
    table, texts = table[:made], texts[:made]
    if shape.codec == Codec.NONE:
        return Batches(out[:end], table), texts, used
    parts = []
    for at, length, first, last in table[:, [POSITION, SIZE, BASE_OFFSET, LAST_OFFSET]].tolist():
        parts.append(finish(out[at : at + length], length, last - first + 1, timestamp, latest, shape))
    return Batches.joined(parts), texts, used


def _room_for(text: int, lines: Bytes) -> int:
    """Return the bytes that so much text becomes as records, by the length of its first lines. It need not be enough:
    the rest is for another batch."""
    if text <= _SAMPLE:
        # An empty line, one byte, becomes a record of at most 11 bytes.
        return _ROOM + 12 * text
    first = lines[:_SAMPLE]
    return (
        _ROOM
        + text
        + text // 8
        + 12 * text * int(np.count_nonzero(first == encoding.NEWLINE)) // (first.size + 1)
    )


def from_records(records: Sequence[Record], now: int, shape: Shape = PLAIN) -> Batch:
    """Return one batch of these records. Records without a timestamp get `now`. Without records the batch has no
    bytes."""
    if not len(records):
        return _NOTHING
    timestamps = np.fromiter(
        (now if record.timestamp is None else record.timestamp for record in records), np.int64, len(records)
    )
    bad = np.flatnonzero(timestamps < NO_TIMESTAMP)
    if bad.size:
        raise InvalidTimestampError(
            f"record {bad[0]} has timestamp {timestamps[bad[0]]}, expected -1 (none) or more",
            tuple(bad.tolist()),
        )
    fields: list[bytes] = []
    lengths: list[int] = []
    headers = 0
    for record in records:
        headers += len(record.headers)
        lengths += (_add(fields, record.key), _add(fields, record.value), len(record.headers))
        for name, value in record.headers:
            lengths += (_add(fields, _name(name)), _add(fields, value))
    source = np.frombuffer(b"".join(fields), np.uint8)
    out = np.empty(HEADER_SIZE + source.size + RECORD_OVERHEAD * len(records) + 10 * headers, np.uint8)
    base_timestamp = int(timestamps[0])
    end = encoding.encode_records(
        source, timestamps, np.array(lengths, np.int64), base_timestamp, out, HEADER_SIZE
    )
    largest = int(timestamps.max())
    if shape.timestamp_type == TimestampType.LOG_APPEND_TIME:
        largest = now
    return finish(out, end, len(records), base_timestamp, largest, shape)


def _name(name: str) -> bytes:
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise InvalidRecordError(f"header name {name!r} holds surrogates that escape no byte") from error


def _add(fields: list[bytes], field: bytes | None) -> int:
    if field is None:
        return -1
    fields.append(field)
    return len(field)


def from_columns(source: Columns, shape: Shape, max_timestamp: int | None = None) -> Batch:
    """Return one batch of these records, with offsets 0, 1, 2 …. `max_timestamp` is the append time, if that is
    every record's timestamp."""
    count = len(source)
    base_timestamp = int(source.timestamps[0]) if count else NO_TIMESTAMP
    spans = np.maximum(source.key_length, 0) + np.maximum(source.value_length, 0) + source.headers_length
    out = np.empty(HEADER_SIZE + int(spans.sum(dtype=np.int64)) + RECORD_OVERHEAD * count, np.uint8)
    arrays = tuple(np.ascontiguousarray(array) for array in source.arrays[1:])
    made, end = encoding.encode_columns(
        source.buffer, np.arange(count, dtype=np.int64), *arrays, 0, base_timestamp, out, HEADER_SIZE
    )
    if made != count:
        raise CorruptBatchError(
            f"record {made} of {count} has a span outside its buffer of {source.buffer.size} bytes"
        )
    if max_timestamp is None:
        max_timestamp = int(source.timestamps.max()) if count else NO_TIMESTAMP
    return finish(out, end, count, base_timestamp, max_timestamp, shape)


def finish(out: Bytes, end: int, count: int, base_timestamp: int, max_timestamp: int, shape: Shape) -> Batch:
    """Compress the records of out[HEADER_SIZE:end] if the shape says so, and write the header."""
    if shape.codec != Codec.NONE:
        stream = compress(shape.codec, out[HEADER_SIZE:end], shape.level)
        end = HEADER_SIZE + stream.size
        if end > out.size:
            out = np.empty(end, np.uint8)
        out[HEADER_SIZE:end] = stream
    if end > MAX_INT32:
        raise RecordTooLargeError(f"a batch of {end} bytes exceeds the format's {MAX_INT32}")
    return write_header(
        out[:end],
        attributes=shape.attributes,
        last_offset_delta=max(count - 1, 0),
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=shape.producer_id,
        producer_epoch=shape.producer_epoch,
        base_sequence=shape.base_sequence,
        count=count,
    )


def write_header(
    batch: Bytes,
    *,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    count: int,
) -> Batch:
    """Write the header of a batch whose records are in place, with its checksum. Return the batch."""
    encoding.write_header(
        batch,
        0,
        batch.size,
        base_offset,
        leader_epoch,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    # In the order of the columns of `topicfs.engine.kernels.scan`.
    row = [0, batch.size, base_offset, base_offset + last_offset_delta, leader_epoch, attributes, base_timestamp,
           max_timestamp, producer_id, producer_epoch, base_sequence, count, 2]  # fmt: skip
    return Batch(batch, np.array(row, np.int64))


def emptied(row: Longs) -> Bytes:
    """Return the batch that remains of `row` without its records: only a header, with the same offsets, sequence,
    producer and max timestamp."""
    return write_header(
        np.empty(HEADER_SIZE, np.uint8),
        base_offset=int(row[BASE_OFFSET]),
        leader_epoch=int(row[LEADER_EPOCH]),
        attributes=int(row[ATTRIBUTES]) & (LOG_APPEND_TIME | TRANSACTIONAL | CONTROL),
        last_offset_delta=int(row[LAST_OFFSET] - row[BASE_OFFSET]),
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=int(row[MAX_TIMESTAMP]),
        producer_id=int(row[PRODUCER_ID]),
        producer_epoch=int(row[PRODUCER_EPOCH]),
        base_sequence=int(row[BASE_SEQUENCE]),
        count=0,
    ).data


def shape_of(row: Longs) -> Shape:
    """Return the shape of an existing batch, at its codec's default level."""
    attributes = int(row[ATTRIBUTES])
    return Shape(
        codec=codec_of(row),
        timestamp_type=TimestampType(bool(attributes & LOG_APPEND_TIME)),
        producer_id=int(row[PRODUCER_ID]),
        producer_epoch=int(row[PRODUCER_EPOCH]),
        base_sequence=int(row[BASE_SEQUENCE]),
        transactional=bool(attributes & TRANSACTIONAL),
    )


def columns_of_records(records: Sequence[Record], now: int) -> Columns:
    """Return records as arrays, those without a timestamp with `now`."""
    batch = from_records(records, now)
    (found,) = columns(batch.data, batch.row.reshape(1, -1))
    return found
