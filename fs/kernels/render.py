"""Records → lines of a format. The formats are drawn in `sizes`, which tells how long the lines become.

A line is written only where the whole of it has room. Its exact size is computed only near the end of `out`,
where the most that it could take would not fit, and for messages of Kafka's own, of which that is not known.
"""

from __future__ import annotations

import numpy as np

from topicfs.engine.format.batch_header import HEADER_SIZE, LOG_APPEND_TIME
from topicfs.engine.kernels.compile import INT, READ, TABLE, WRITE, inline, kernel, results
from topicfs.engine.kernels.decode import BAD_LENGTH, BAD_OFFSET, GOOD, TOO_FEW, TOO_MANY, walk_record
from topicfs.engine.kernels.escapes import BACKSLASH, put_tsv
from topicfs.engine.kernels.members import MOST_OF_A_BYTE, put, put_member
from topicfs.engine.kernels.messages import measure, write_key, write_value
from topicfs.engine.kernels.numbers import put_decimal
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
from topicfs.engine.kernels.varint import copy, read_varint
from topicfs.fs.kernels.sizes import (
    HEADER,
    HEADERS,
    JSONL,
    KEY,
    LINE_END,
    OBJECT,
    TIMESTAMP,
    TSV,
    TXT,
    VALUE,
    is_shown,
    record_size,
)

NO_ROOM = 20
"""Status, behind those of `decode`: the next line does not fit into `out`."""

_NEWLINE = 10
_TAB = 9
_COMMA = 44
_CLOSING_BRACE = 125
_CAPITAL_N = 78

_MOST_BESIDE_TEXT = 102  # two numbers, and the frame of a line with base64 in key and value
_MOST_OF_A_HEADERS_BYTE = 18  # no name, null: {"key":"","value":null} and a comma, 24 bytes of 2


@inline
def _most(form, key_length, value_length, headers_length, prefix):
    """Bytes that a line cannot exceed."""
    text = max(key_length, 0) + max(value_length, 0)
    if form == TXT:
        return text + 1
    if form == TSV:
        return 2 * text + 6
    return prefix + _MOST_BESIDE_TEXT + MOST_OF_A_BYTE * text + _MOST_OF_A_HEADERS_BYTE * headers_length


@inline
def _put_field(out, position, source, start, length):
    """A field of tsv."""
    if length < 0:
        out[position] = BACKSLASH
        out[position + 1] = _CAPITAL_N
        return position + 2
    return put_tsv(out, position, source, start, start + length)


@inline
def _put_headers(out, position, buffer, at, body):
    """The headers, whose section at buffer[at:body] has been walked, with commas between them."""
    count, at = read_varint(buffer, at, body)
    for index in range(count):
        if index > 0:
            out[position] = _COMMA
            position += 1
        position = put(out, position, HEADER)
        length, at = read_varint(buffer, at, body)
        position = put_member(out, position, buffer, at, length)
        at += length
        position = put(out, position, VALUE)
        length, at = read_varint(buffer, at, body)
        position = put_member(out, position, buffer, at, length)
        at += max(length, 0)
        out[position] = _CLOSING_BRACE
        position += 1
    return position


@inline
def _put_json_line(
    form, out, position, buffer, offset, timestamp,
    key, key_length, value, value_length, headers, body, prefix,
):  # fmt: skip
    key_size = value_size = np.int64(-1)
    if form > JSONL:
        key_size, value_size = measure(form - JSONL, buffer, key, key_length, value, value_length)
    position = put_decimal(out, put(out, position, prefix), offset)
    position = put_decimal(out, put(out, position, TIMESTAMP), timestamp)
    position = put(out, position, KEY)
    if key_size >= 0:
        position = write_key(form - JSONL, buffer, key, key_length, out, put(out, position, OBJECT))
    else:
        position = put_member(out, position, buffer, key, key_length)
    position = put(out, position, VALUE)
    if value_size >= 0:
        position = write_value(
            form - JSONL, buffer, key, value, value_length, out, put(out, position, OBJECT)
        )
    else:
        position = put_member(out, position, buffer, value, value_length)
    position = put(out, position, HEADERS)
    if body - headers > 1:
        position = _put_headers(out, position, buffer, headers, body)
    return put(out, position, LINE_END)


@kernel(
    results(INT, INT, INT, INT, INT),
    INT, READ, INT, TABLE, INT, INT, READ, WRITE, INT,
)  # fmt: skip
def render(form, buffer, origin, table, first_offset, end_offset, prefix, out, position):
    """Write the lines of the batches of `table` at out[position:]; only records whose offsets are in
    [first_offset, end_offset). The batches must be plain. `origin` is
    the table's position of buffer[0]; `prefix` is what a jsonl line has before its offset.

    Gives status, the batch's row, record index, position in `buffer`, and
    position in `out` behind the last line."""
    if position < 0 or position > out.size:
        return NO_ROOM, 0, 0, 0, position
    for batch in range(table.shape[0]):
        if not is_shown(table, batch, first_offset, end_offset):
            continue
        start = table[batch, POSITION] - origin + HEADER_SIZE
        end = start + table[batch, SIZE] - HEADER_SIZE
        if start < 0 or end > buffer.size:
            return BAD_LENGTH, batch, 0, start, position
        has_append_time = table[batch, ATTRIBUTES] & LOG_APPEND_TIME != 0
        last = table[batch, LAST_OFFSET] - table[batch, BASE_OFFSET]
        before = np.int64(-1)
        ended = False
        for index in range(table[batch, COUNT]):
            if start >= end:
                return TOO_FEW, batch, index, start, position
            status, at, body, delta, place, key, key_length, value, value_length, headers = walk_record(
                buffer, start, end
            )
            if status != GOOD:
                return status, batch, index, at, position
            if place <= before or place > last:
                return BAD_OFFSET, batch, index, start, position
            before = place
            start = body
            offset = table[batch, BASE_OFFSET] + place
            if offset >= end_offset:
                ended = True
                break
            if offset < first_offset:
                continue
            timestamp = (
                table[batch, MAX_TIMESTAMP] if has_append_time else table[batch, BASE_TIMESTAMP] + delta
            )
            room = out.size - position
            if (
                form > JSONL or room < _most(form, key_length, value_length, body - headers, prefix.size)
            ) and room < record_size(
                form,
                buffer,
                offset,
                timestamp,
                key,
                key_length,
                value,
                value_length,
                headers,
                body,
                prefix.size,
            ):
                return NO_ROOM, batch, index, at, position
            if form >= JSONL:
                position = _put_json_line(
                    form, out, position, buffer, offset, timestamp,
                    key, key_length, value, value_length, headers, body, prefix,
                )  # fmt: skip
                continue
            if form == TSV:
                position = _put_field(out, position, buffer, key, key_length)
                out[position] = _TAB
                position = _put_field(out, position + 1, buffer, value, value_length)
            elif value_length > 0:
                copy(out, position, buffer, value, value_length)
                position += value_length
            out[position] = _NEWLINE
            position += 1
        if not ended and start != end:
            return TOO_MANY, batch, table[batch, COUNT], start, position
    return GOOD, table.shape[0], 0, 0, position
