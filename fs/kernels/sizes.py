"""How many bytes a batch takes in a format: what `render` writes, without writing it.

txt    value newline
tsv    key TAB value newline; null is \\N
jsonl  {"topic":"orders","partition":0,"offset":5,"timestamp":1700000000000,"key":"k1","value":"v1",
       "headers":[{"key":"h","value":"x"}]} newline, without blanks; null is null. Where bytes are not UTF-8, the
       member's name ends in _base64. In a topic of Kafka's own, a key or value that is a message of Kafka's is shown as
       `topicfs.engine.kernels.messages` draws it. Such a format is JSONL and the number of the topic
"""

from __future__ import annotations

import numpy as np

from topicfs.engine.format.batch_header import CONTROL, HEADER_SIZE, LOG_APPEND_TIME
from topicfs.engine.kernels.compile import INT, LONGS, READ, TABLE, inline, kernel, results
from topicfs.engine.kernels.decode import BAD_LENGTH, BAD_OFFSET, GOOD, TOO_FEW, TOO_MANY, walk_record
from topicfs.engine.kernels.escapes import count_tsv, json_size
from topicfs.engine.kernels.members import BASE64, NULL, TEXT, piece
from topicfs.engine.kernels.messages import measure
from topicfs.engine.kernels.numbers import base64_size, decimal_size
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
from topicfs.engine.kernels.varint import read_varint

TXT = 0
TSV = 1
JSONL = 2


TIMESTAMP = piece(b',"timestamp":')
KEY = piece(b',"key')
VALUE = piece(b',"value')
HEADERS = piece(b',"headers":[')
HEADER = piece(b'{"key')
LINE_END = piece(b"]}\n")

OBJECT = piece(b'":')

_FRAME = TIMESTAMP.size + KEY.size + VALUE.size + HEADERS.size + LINE_END.size
_HEADER_FRAME = HEADER.size + VALUE.size + 1  # and the closing brace


@inline
def _member_size(source, start, length):
    """Bytes of what follows `,"key` and its like: the end of the name, and the value."""
    if length < 0:
        return NULL.size
    size = json_size(source, start, start + length)
    if size < 0:
        return BASE64.size + base64_size(length) + 1
    return TEXT.size + size + 1


@inline
def _headers_size(buffer, at, body):
    """Bytes of the headers, whose section at buffer[at:body] has been walked, with the commas between them."""
    count, at = read_varint(buffer, at, body)
    size = max(count - 1, 0)
    for _ in range(count):
        length, at = read_varint(buffer, at, body)
        size += _HEADER_FRAME + _member_size(buffer, at, length)
        at += length
        length, at = read_varint(buffer, at, body)
        size += _member_size(buffer, at, length)
        at += max(length, 0)
    return size


@inline
def record_size(form, buffer, offset, timestamp, key, key_length, value, value_length, headers, body, prefix):
    """Bytes of one record's line. `prefix` is the size of what a jsonl line has before its offset."""
    if form == TXT:
        return max(value_length, 0) + 1
    if form == TSV:
        size = key_length + count_tsv(buffer, key, key + key_length) if key_length >= 0 else 2
        size += value_length + count_tsv(buffer, value, value + value_length) if value_length >= 0 else 2
        return size + 2
    size = prefix + decimal_size(offset) + decimal_size(timestamp) + _FRAME
    key_size = value_size = np.int64(-1)
    if form > JSONL:
        key_size, value_size = measure(form - JSONL, buffer, key, key_length, value, value_length)
    size += OBJECT.size + key_size if key_size >= 0 else _member_size(buffer, key, key_length)
    size += OBJECT.size + value_size if value_size >= 0 else _member_size(buffer, value, value_length)
    if body - headers > 1:
        size += _headers_size(buffer, headers, body)
    return size


@inline
def is_shown(table, batch, first_offset, end_offset):
    """Whether a batch can have records for readers in [first_offset, end_offset)."""
    return (
        table[batch, ATTRIBUTES] & CONTROL == 0
        and table[batch, LAST_OFFSET] >= first_offset
        and table[batch, BASE_OFFSET] < end_offset
    )


@kernel(results(INT, INT, INT, INT), INT, READ, INT, TABLE, INT, INT, INT, LONGS)
def sizes(form, buffer, origin, table, first_offset, end_offset, prefix, out):
    """Set out[i] to the bytes that batch i of `table` takes; only records whose offsets are in [first_offset,
    end_offset) count. The batches must be plain. `origin` is the table's position of buffer[0].

    Gives status, the batch's row, record index, position in `buffer`."""
    if out.size < table.shape[0]:
        return BAD_LENGTH, 0, 0, 0
    for batch in range(table.shape[0]):
        out[batch] = 0
        if not is_shown(table, batch, first_offset, end_offset):
            continue
        position = table[batch, POSITION] - origin + HEADER_SIZE
        end = position + table[batch, SIZE] - HEADER_SIZE
        if position < 0 or end > buffer.size:
            return BAD_LENGTH, batch, 0, position
        has_append_time = table[batch, ATTRIBUTES] & LOG_APPEND_TIME != 0
        last = table[batch, LAST_OFFSET] - table[batch, BASE_OFFSET]
        before = np.int64(-1)
        size = 0
        ended = False
        for index in range(table[batch, COUNT]):
            if position >= end:
                return TOO_FEW, batch, index, position
            status, at, body, delta, place, key, key_length, value, value_length, headers = walk_record(
                buffer, position, end
            )
            if status != GOOD:
                return status, batch, index, at
            if place <= before or place > last:
                return BAD_OFFSET, batch, index, position
            before = place
            position = body
            offset = table[batch, BASE_OFFSET] + place
            if offset >= end_offset:
                ended = True
                break
            if offset < first_offset:
                continue
            timestamp = (
                table[batch, MAX_TIMESTAMP] if has_append_time else table[batch, BASE_TIMESTAMP] + delta
            )
            size += record_size(
                form, buffer, offset, timestamp, key, key_length, value, value_length, headers, body, prefix
            )
        if not ended and position != end:
            return TOO_MANY, batch, table[batch, COUNT], position
        out[batch] = size
    return GOOD, table.shape[0], 0, 0
