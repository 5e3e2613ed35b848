"""Reading records: batch → columns, batch → check. The format is drawn in `encode`.

Both walk every byte of every record and check each length before it is used. What is wrong is given as
one of the codes below, with the record's index and the position where it was found.
"""

from __future__ import annotations

import numpy as np

from topicfs.engine.format.batch_header import CODEC_MASK, CONTROL, HEADER_SIZE, LOG_APPEND_TIME
from topicfs.engine.kernels.compile import INT, INTS, LONGS, READ, TABLE, inline, kernel, results
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
from topicfs.engine.kernels.varint import MALFORMED, read_varint, read_varlong

GOOD = 0
BAD_LENGTH = 1
BAD_NUMBER = 2
BAD_KEY = 3
BAD_VALUE = 4
BAD_HEADERS = 5
BAD_BODY = 6
BAD_OFFSET = 7
TOO_FEW = 8
TOO_MANY = 9

PROBLEMS = {
    BAD_LENGTH: "a record's length goes beyond the batch",
    BAD_NUMBER: "a number is cut short or too long",
    BAD_KEY: "a key's length goes beyond its record",
    BAD_VALUE: "a value's length goes beyond its record",
    BAD_HEADERS: "a header count or length goes beyond its record",
    BAD_BODY: "a record's length differs from its fields'",
    BAD_OFFSET: "offsets do not rise within the batch's range",
    TOO_FEW: "fewer records than the header declares",
    TOO_MANY: "bytes remain behind the declared number of records",
}

NO_APPEND_TIME = -(2**63)
"""In place of an append time: each record has its own timestamp. An append time may be -1."""

_MAX_INT32 = 2**31 - 1

MIN_RECORD_SIZE = 7
"""Length, attributes, two deltas, key length, value length, header count: a byte each at the least."""


@inline
def _headers_end(buffer, position, end):
    """Position behind a record's headers section, or MALFORMED."""
    count, position = read_varint(buffer, position, end)
    if position == MALFORMED or count < 0 or count > end - position:
        return np.int64(MALFORMED)
    for _ in range(count):
        length, position = read_varint(buffer, position, end)
        if position == MALFORMED or length < 0 or length > end - position:
            return np.int64(MALFORMED)
        position += length
        length, position = read_varint(buffer, position, end)
        if position == MALFORMED or length > end - position:
            return np.int64(MALFORMED)
        position += max(length, 0)
    return position


@inline
def walk_record(buffer, position, end):
    """The fields of the record at `position`: status, where it was found, body end, timestamp delta,
    offset delta, and start and length of key and value, and start of the headers."""
    length, at = read_varint(buffer, position, end)
    if at == MALFORMED:
        return BAD_NUMBER, position, position, 0, 0, 0, -1, 0, -1, 0
    if length < 0 or length > end - at:
        return BAD_LENGTH, position, position, 0, 0, 0, -1, 0, -1, 0
    body = at + length
    at += 1
    timestamp, at2 = read_varlong(buffer, at, body)
    if at2 == MALFORMED:
        return BAD_NUMBER, at, body, 0, 0, 0, -1, 0, -1, 0
    place, at3 = read_varint(buffer, at2, body)
    if at3 == MALFORMED:
        return BAD_NUMBER, at2, body, 0, 0, 0, -1, 0, -1, 0
    key_length, key = read_varint(buffer, at3, body)
    if key == MALFORMED:
        return BAD_NUMBER, at3, body, 0, 0, 0, -1, 0, -1, 0
    if key_length > body - key:
        return BAD_KEY, at3, body, 0, 0, 0, -1, 0, -1, 0
    at4 = key + max(key_length, 0)
    value_length, value = read_varint(buffer, at4, body)
    if value == MALFORMED:
        return BAD_NUMBER, at4, body, 0, 0, 0, -1, 0, -1, 0
    if value_length > body - value:
        return BAD_VALUE, at4, body, 0, 0, 0, -1, 0, -1, 0
    headers = value + max(value_length, 0)
    if headers < body and buffer[headers] == 0:
        headers_end = headers + 1
    else:
        headers_end = _headers_end(buffer, headers, body)
        if headers_end == MALFORMED:
            return BAD_HEADERS, headers, body, 0, 0, 0, -1, 0, -1, 0
    if headers_end != body:
        return BAD_BODY, headers_end, body, 0, 0, 0, -1, 0, -1, 0
    return GOOD, position, body, timestamp, place, key, key_length, value, value_length, headers


@kernel(
    results(INT, INT, INT),
    READ, INT, INT, INT, INT, INT, INT, INT,
    LONGS, LONGS, INTS, INTS, INTS, INTS, INTS, INTS, INT,
)  # fmt: skip
def decode(
    buffer,
    start,
    end,
    count,
    base_offset,
    last_offset_delta,
    base_timestamp,
    append_time,
    offsets,
    timestamps,
    key_start,
    key_length,
    value_start,
    value_length,
    headers_start,
    headers_length,
    row,
):
    """Read the `count` records of buffer[start:end] into rows `row`… of the columns.

    `append_time` is the timestamp of every record (LogAppendTime), unless it is NO_APPEND_TIME. Null keys
    and values have length -1; a headers length of 1 means "no headers". A negative `last_offset_delta` lets
    offsets go as they will. Gives status, record index, position."""
    # Spans are 32 bits wide: what lies further behind has none.
    if start < 0 or end > min(buffer.size, _MAX_INT32):
        return BAD_LENGTH, 0, start
    if row < 0 or count < 0 or count > offsets.size - row:
        return TOO_MANY, 0, start
    position = start
    before = np.int64(-1)
    for index in range(count):
        if position >= end:
            return TOO_FEW, index, position
        status, at, body, delta, place, key, key_size, value, value_size, headers = walk_record(
            buffer, position, end
        )
        if status != GOOD:
            return status, index, at
        if last_offset_delta >= 0 and (place <= before or place > last_offset_delta):
            return BAD_OFFSET, index, position
        before = place
        offsets[row] = base_offset + place
        timestamps[row] = append_time if append_time != NO_APPEND_TIME else base_timestamp + delta
        key_start[row] = key
        key_length[row] = max(key_size, -1)
        value_start[row] = value
        value_length[row] = max(value_size, -1)
        headers_start[row] = headers
        headers_length[row] = body - headers
        row += 1
        position = body
    if position != end:
        return TOO_MANY, count, position
    return GOOD, count, position


@kernel(results(INT, INT, INT, INT, INT, INT, INT), READ, INT, INT, INT, INT)
def inspect(buffer, start, end, count, base_timestamp):
    """Check the `count` records of buffer[start:end] without keeping them.

    Gives status, record index, position, then: the smallest and largest timestamp, how many keys are
    null, and 1 where the offset deltas are 0, 1, 2 …"""
    smallest = np.int64(9223372036854775807)
    largest = np.int64(-9223372036854775808)
    nulls = 0
    sequential = 1
    if start < 0 or end > buffer.size:
        return BAD_LENGTH, 0, start, smallest, largest, nulls, sequential
    position = start
    for index in range(count):
        if position >= end:
            return TOO_FEW, index, position, smallest, largest, nulls, sequential
        status, at, body, delta, place, _, key_size, _, _, _ = walk_record(buffer, position, end)
        if status != GOOD:
            return status, index, at, smallest, largest, nulls, sequential
        if place != index:
            sequential = 0
        if key_size < 0:
            nulls += 1
        smallest = min(smallest, base_timestamp + delta)
        largest = max(largest, base_timestamp + delta)
        position = body
    if position != end:
        return TOO_MANY, count, position, smallest, largest, nulls, sequential
    return GOOD, count, position, smallest, largest, nulls, sequential


@kernel(results(INT, INT), READ, INT, INT, INT, INT)
def find_record(buffer, start, end, count, place):
    """Where the record with an offset delta begins and ends, among the `count` records of buffer[start:end].

    The others are passed over by their lengths: some 5 ns each. Gives -1 and where it stopped where there is no
    such record, or where bytes are malformed: who must know which reads the batch as a whole."""
    if start < 0 or end > buffer.size:
        return -1, start
    position = start
    for _ in range(count):
        length, at = read_varint(buffer, position, end)
        if at == MALFORMED or length < 1 or length > end - at:
            return -1, position
        _, after = read_varlong(buffer, at + 1, at + length)
        if after == MALFORMED:
            return -1, position
        found, after = read_varint(buffer, after, at + length)
        if after == MALFORMED or found > place:
            return -1, position
        if found == place:
            return position, at + length
        position = at + length
    return -1, position


@kernel(results(INT, INT, INT, INT, INT, INT, INT, INT, INT), READ, INT, INT)
def one_record(buffer, start, end):
    """The fields of the record in buffer[start:end]: status and where it was found, body end, timestamp delta,
    start and length of key and value, and start of the headers."""
    if start < 0 or end > buffer.size:
        return BAD_LENGTH, start, start, 0, 0, -1, 0, -1, 0
    status, at, body, delta, _, key, key_size, value, value_size, headers = walk_record(buffer, start, end)
    return status, at, body, delta, key, key_size, value, value_size, headers


@kernel(INT, READ, INT, INT, INTS)
def decode_headers(buffer, start, end, spans):
    """Spans of one record's headers: name start, name length, value start, value length (-1 = null).

    Gives the number of headers; -1 where the section is malformed or `spans` is too small."""
    if start < 0 or end > buffer.size or start > end:
        return -1
    count, position = read_varint(buffer, start, end)
    if position == MALFORMED or count < 0 or count > (end - position) // 2 or 4 * count > spans.size:
        return -1
    for index in range(count):
        length, position = read_varint(buffer, position, end)
        if position == MALFORMED or length < 0 or length > end - position:
            return -1
        spans[4 * index] = position
        spans[4 * index + 1] = length
        position += length
        length, position = read_varint(buffer, position, end)
        if position == MALFORMED or length > end - position:
            return -1
        spans[4 * index + 2] = position
        spans[4 * index + 3] = max(length, -1)
        position += max(length, 0)
    return count if position == end else -1


@kernel(
    results(INT, INT, INT, INT, INT),
    READ, INT, TABLE, INT,
    LONGS, LONGS, INTS, INTS, INTS, INTS, INTS, INTS, INT,
)  # fmt: skip
def decode_batches(
    buffer,
    origin,
    table,
    first,
    offsets,
    timestamps,
    key_start,
    key_length,
    value_start,
    value_length,
    headers_start,
    headers_length,
    row,
):
    """Read the records of the uncompressed batches that `table` names from row `first` on.

    Control batches are passed over. Stops before a compressed batch. `origin` is the table's position of
    buffer[0]. Gives status, the batch's row, record index, position in `buffer`, next row of the columns."""
    batch = first
    while batch < table.shape[0]:
        attributes = table[batch, ATTRIBUTES]
        if attributes & CONTROL:
            batch += 1
            continue
        if attributes & CODEC_MASK:
            break
        count = table[batch, COUNT]
        start = table[batch, POSITION] - origin
        status, index, at = decode(
            buffer,
            start + HEADER_SIZE,
            start + table[batch, SIZE],
            count,
            table[batch, BASE_OFFSET],
            table[batch, LAST_OFFSET] - table[batch, BASE_OFFSET],
            table[batch, BASE_TIMESTAMP],
            table[batch, MAX_TIMESTAMP] if attributes & LOG_APPEND_TIME else NO_APPEND_TIME,
            offsets,
            timestamps,
            key_start,
            key_length,
            value_start,
            value_length,
            headers_start,
            headers_length,
            row,
        )
        if status != GOOD:
            return status, batch, index, at, row
        row += count
        batch += 1
    return GOOD, batch, 0, 0, row
