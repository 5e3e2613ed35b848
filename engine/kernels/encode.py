"""Building record batches: lines → batch, records → batch, columns → batch.

    record
      varint   length of what follows
      int8     attributes, 0
      varlong  timestamp - base timestamp
      varint   offset - base offset
      varint   key length, -1 = null; key
      varint   value length, -1 = null; value
      varint   number of headers, each:
        varint   name length; name (UTF-8)
        varint   value length, -1 = null; value

The header before the records is drawn in `topicfs.engine.format.batch_header`. Base offset, size, leader epoch and
magic lie outside its checksum, so that a leader sets offset and epoch without computing it again.
"""

from __future__ import annotations

import numpy as np

from topicfs.engine.format.batch_header import CHECKED_FROM, HEADER_SIZE
from topicfs.engine.kernels.compile import INT, INTS, LONGS, READ, TABLE, WRITE, inline, kernel, results
from topicfs.engine.kernels.crc import crc32c_of
from topicfs.engine.kernels.scan import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    BASE_TIMESTAMP,
    COUNT,
    LAST_OFFSET,
    LEADER_EPOCH,
    MAGIC,
    MAX_TIMESTAMP,
    POSITION,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    SIZE,
)
from topicfs.engine.kernels.varint import copy, find_byte, varint_size, write_varint

RECORD_OVERHEAD = 36
"""No record is larger than this plus its key, value and headers section: 5 varints, a varlong, a byte."""

NEWLINE = 10


@inline
def _put(out, position, value, size):
    """Write the low `size` bytes of a number, highest first."""
    for i in range(size):
        out[position + i] = np.uint8((value >> (8 * (size - 1 - i))) & 0xFF)


@kernel(INT, WRITE, INT, INT, INT, INT, INT, INT, INT, INT, INT, INT, INT, INT)
def write_header(
    out,
    start,
    end,
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
):
    """Write the header of the batch out[start:end], whose records are in place, and seal it with its
    checksum. Gives the checksum, or -1 where the range does not hold a header."""
    if start < 0 or end > out.size or end - start < HEADER_SIZE:
        return -1
    _put(out, start, base_offset, 8)
    _put(out, start + 8, end - start - 12, 4)
    _put(out, start + 12, leader_epoch, 4)
    out[start + 16] = 2
    _put(out, start + 21, attributes, 2)
    _put(out, start + 23, last_offset_delta, 4)
    _put(out, start + 27, base_timestamp, 8)
    _put(out, start + 35, max_timestamp, 8)
    _put(out, start + 43, producer_id, 8)
    _put(out, start + 51, producer_epoch, 2)
    _put(out, start + 53, base_sequence, 4)
    _put(out, start + 57, count, 4)
    crc = np.int64(crc32c_of(out, start + CHECKED_FROM, end))
    _put(out, start + 17, crc, 4)
    return crc


@kernel(INT, WRITE, INT, INT, INT)
def stamp(out, start, base_offset, leader_epoch):
    """Set base offset and leader epoch of a finished batch; the checksum does not cover them."""
    if start < 0 or out.size - start < HEADER_SIZE:
        return -1
    _put(out, start, base_offset, 8)
    _put(out, start + 12, leader_epoch, 4)
    return 0


@kernel(INT, WRITE, TABLE, INT, INT)
def stamp_batches(out, table, base_offset, leader_epoch):
    """Set offsets and leader epoch of finished batches, in `out` and in their rows of `table`: the first one begins at
    `base_offset`, and the others keep their distance from it. Gives the last offset, or -1 where a row's batch is not
    in `out`."""
    first = table[0, BASE_OFFSET]
    last = np.int64(-1)
    for row in range(table.shape[0]):
        at = table[row, POSITION] - table[0, POSITION]
        if at < 0 or out.size - at < HEADER_SIZE:
            return -1
        table[row, LAST_OFFSET] += base_offset - first
        table[row, BASE_OFFSET] += base_offset - first
        table[row, LEADER_EPOCH] = leader_epoch
        _put(out, at, table[row, BASE_OFFSET], 8)
        _put(out, at + 12, leader_epoch, 4)
        last = table[row, LAST_OFFSET]
    return last


@kernel(INT, WRITE, INT, INT, INT, INT)
def restamp(out, start, end, attributes, max_timestamp):
    """Set attributes and max timestamp of a finished batch, and its checksum anew."""
    if start < 0 or end > out.size or end - start < HEADER_SIZE:
        return -1
    _put(out, start + 21, attributes, 2)
    _put(out, start + 35, max_timestamp, 8)
    crc = np.int64(crc32c_of(out, start + CHECKED_FROM, end))
    _put(out, start + 17, crc, 4)
    return crc


@kernel(results(INT, INT, INT), READ, INT, INT, INT, WRITE, INT, INT)
def encode_lines(source, start, end, first, out, position, limit):
    """Make a record of each line of source[start:end]: value = the line without its newline, key null,
    timestamp = the batch's base timestamp. A last line without a newline counts as a line. `first` is the
    number of records that the batch has already.

    Stops before the line whose record would end behind out[limit]. Gives the number of records, the
    position in `source` of the first byte not used, and the position behind the last record."""
    limit = min(limit, out.size)
    count = 0
    if start < 0 or end > source.size or position < 0:
        return count, start, position
    while start < end:
        newline = find_byte(source, start, end, NEWLINE)
        length = newline - start
        # attributes, timestamp delta 0, null key and no headers take one byte each
        body = 4 + varint_size(first + count) + varint_size(length) + length
        if position + varint_size(body) + body > limit:
            break
        position = write_varint(out, position, body)
        out[position] = 0
        out[position + 1] = 0
        position = write_varint(out, position + 2, first + count)
        out[position] = 1
        position = write_varint(out, position + 1, length)
        copy(out, position, source, start, length)
        out[position + length] = 0
        position += length + 1
        count += 1
        start = min(newline + 1, end)
    return count, start, position


@kernel(results(INT, INT, INT), READ, READ, INT, INT, INT, INT, INT, INT, WRITE, TABLE, LONGS)
def encode_batches(head, lines, start, timestamp, max_timestamp, attributes, size, limit, out, table, texts):
    """Make batches of lines, one behind the other in `out`. `head` and `lines` are whole lines and count as one text,
    which is taken from `start` on. A batch is full with `size` bytes. A line that alone is longer has a batch for
    itself, of up to `limit` bytes.

    Gives for each batch a row of `table`, in which offsets begin at 0, and in `texts` the bytes of its lines. Stops
    where `out`, `table` or the text ends, and before a line that is too long. Gives the number of batches, the position
    in the text of the first byte not used, and the position behind the last batch."""
    limit = min(limit, out.size)
    total = head.size + lines.size
    position = 0
    rows = 0
    offset = np.int64(0)
    if start < 0 or table.shape[1] <= MAGIC:
        return rows, start, position
    while start < total and rows < min(table.shape[0], texts.size):
        at = start
        count = np.int64(0)
        behind = position + HEADER_SIZE
        if at < head.size:
            count, at, behind = encode_lines(head, at, head.size, 0, out, behind, position + size)
        if at >= head.size:
            added, used, behind = encode_lines(
                lines, at - head.size, lines.size, count, out, behind, position + size
            )
            count += added
            at = head.size + used
        if count == 0 and at < head.size:
            line_end = min(find_byte(head, at, head.size, NEWLINE) + 1, head.size)
            count, at, behind = encode_lines(head, at, line_end, 0, out, behind, position + limit)
        elif count == 0:
            at -= head.size
            line_end = min(find_byte(lines, at, lines.size, NEWLINE) + 1, lines.size)
            count, at, behind = encode_lines(lines, at, line_end, 0, out, behind, position + limit)
            at += head.size
        if count == 0:
            break
        write_header(
            out, position, behind, 0, -1, attributes, count - 1, timestamp, max_timestamp, -1, -1, -1, count
        )
        table[rows, POSITION] = position
        table[rows, SIZE] = behind - position
        table[rows, BASE_OFFSET] = offset
        table[rows, LAST_OFFSET] = offset + count - 1
        table[rows, LEADER_EPOCH] = -1
        table[rows, ATTRIBUTES] = attributes
        table[rows, BASE_TIMESTAMP] = timestamp
        table[rows, MAX_TIMESTAMP] = max_timestamp
        table[rows, PRODUCER_ID] = -1
        table[rows, PRODUCER_EPOCH] = -1
        table[rows, BASE_SEQUENCE] = -1
        table[rows, COUNT] = count
        table[rows, MAGIC] = 2
        texts[rows] = at - start
        offset += count
        start = at
        position = behind
        rows += 1
    return rows, start, position


@kernel(INT, READ, LONGS, LONGS, INT, WRITE, INT)
def encode_records(source, timestamps, lengths, base_timestamp, out, position):
    """Make records of fields that lie one behind the other in `source`.

    `lengths` holds for each record: key length, value length, number of headers, and for each header
    name length and value length; -1 is null and takes no bytes. `out` must have room for all fields,
    RECORD_OVERHEAD a record and 10 bytes a header. Gives the position behind the last record, or -1
    where `lengths` and `source` do not fit together."""
    at = 0
    start = 0
    for index in range(timestamps.size):
        if at + 3 > lengths.size:
            return -1
        key = lengths[at]
        value = lengths[at + 1]
        headers = lengths[at + 2]
        if headers < 0 or headers > (lengths.size - at - 3) // 2:
            return -1
        delta = timestamps[index] - base_timestamp
        body = 1 + varint_size(delta) + varint_size(index) + varint_size(headers)
        needed = 0
        for field in range(2 + 2 * headers):
            length = lengths[at + field] if field < 2 else lengths[at + 1 + field]
            if length < -1 or length > source.size:
                return -1
            body += varint_size(length) + max(length, 0)
            needed += max(length, 0)
        if start + needed > source.size or position + varint_size(body) + body > out.size:
            return -1
        position = write_varint(out, position, body)
        out[position] = 0
        position = write_varint(out, position + 1, delta)
        position = write_varint(out, position, index)
        for length in (key, value):
            position = write_varint(out, position, length)
            if length > 0:
                copy(out, position, source, start, length)
                position += length
                start += length
        position = write_varint(out, position, headers)
        for field in range(at + 3, at + 3 + 2 * headers):
            length = lengths[field]
            position = write_varint(out, position, length)
            if length > 0:
                copy(out, position, source, start, length)
                position += length
                start += length
        at += 3 + 2 * headers
    return position


@kernel(
    results(INT, INT),
    READ, LONGS, LONGS, INTS, INTS, INTS, INTS, INTS, INTS, INT, INT, WRITE, INT,
)  # fmt: skip
def encode_columns(
    source,
    offsets,
    timestamps,
    key_start,
    key_length,
    value_start,
    value_length,
    headers_start,
    headers_length,
    base_offset,
    base_timestamp,
    out,
    position,
):
    """Make records of columns whose spans lie in `source`; headers are copied as they are encoded.

    A headers length of 0 means "no headers". Gives the number of records made and the position behind
    the last; fewer than all were made where a span lies outside `source` or `out` has no room."""
    for index in range(offsets.size):
        delta = timestamps[index] - base_timestamp
        place = offsets[index] - base_offset
        key = np.int64(key_length[index])
        value = np.int64(value_length[index])
        headers = np.int64(headers_length[index])
        if (
            (key > 0 and (key_start[index] < 0 or key_start[index] + key > source.size))
            or (value > 0 and (value_start[index] < 0 or value_start[index] + value > source.size))
            or (headers > 0 and (headers_start[index] < 0 or headers_start[index] + headers > source.size))
        ):
            return index, position
        key = max(key, -1)
        value = max(value, -1)
        body = 1 + varint_size(delta) + varint_size(place) + max(headers, 1)
        body += varint_size(key) + max(key, 0) + varint_size(value) + max(value, 0)
        if position + varint_size(body) + body > out.size:
            return index, position
        position = write_varint(out, position, body)
        out[position] = 0
        position = write_varint(out, position + 1, delta)
        position = write_varint(out, position, place)
        position = write_varint(out, position, key)
        if key > 0:
            copy(out, position, source, key_start[index], key)
            position += key
        position = write_varint(out, position, value)
        if value > 0:
            copy(out, position, source, value_start[index], value)
            position += value
        if headers > 0:
            copy(out, position, source, headers_start[index], headers)
            position += headers
        else:
            out[position] = 0
            position += 1
    return offsets.size, position
