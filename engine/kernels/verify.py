"""Checking whole batches: checksum, counts, codec, each record, the largest timestamp, and what a marker has in it.

A walk for readers ends at the first fault. This one gives a verdict for each batch, so that one walk finds all faults.
"""

from __future__ import annotations

import numpy as np

from topicfs.engine.format.batch_header import (
    CHECKED_FROM,
    CODEC_MASK,
    COMMIT,
    CONTROL,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    MARKER_VALUE,
    TRANSACTIONAL,
)
from topicfs.engine.kernels import decode
from topicfs.engine.kernels.compile import INT, LONGS, READ, TABLE, inline, kernel, results
from topicfs.engine.kernels.crc import crc32c_of
from topicfs.engine.kernels.decode import (
    BAD_LENGTH,
    BAD_OFFSET,
    GOOD,
    MIN_RECORD_SIZE,
    TOO_FEW,
    TOO_MANY,
    walk_record,
)
from topicfs.engine.kernels.scan import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    BASE_TIMESTAMP,
    COLUMNS,
    COUNT,
    LAST_OFFSET,
    MAX_TIMESTAMP,
    POSITION,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    SIZE,
    int16_at,
    int32_at,
)

COMPRESSED = 10
BAD_CHECKSUM = 11
BAD_CODEC = 12
BAD_COUNT = 13
BAD_MAX_TIMESTAMP = 14
BAD_MARKER = 15
BAD_PRODUCER = 16

PROBLEMS = {
    **decode.PROBLEMS,
    BAD_CHECKSUM: "the checksum does not fit the bytes",
    BAD_CODEC: "there is no codec of this number",
    BAD_COUNT: "more records than the offsets or bytes of the batch can hold",
    BAD_MAX_TIMESTAMP: "the header's largest timestamp is not that of the records",
    BAD_MARKER: "a control batch without a well-formed control record",
    BAD_PRODUCER: "a producer without an epoch, a transaction without a producer, or a negative sequence number",
}
"""What a verdict other than GOOD and COMPRESSED means, for messages."""

VERDICT = 0
RECORD = 1
PLACE = 2
EARLIEST = 3
VERDICT_COLUMNS = 4
"""The columns of a table of verdicts: what is wrong, the index of the record, its position in the bytes, and the
smallest timestamp of a good batch, NO_RECORD where it has none."""

NO_RECORD = 2**63 - 1

_LAST_CODEC = 4
_KEY_SIZE = 4
_VALUE_SIZE = MARKER_VALUE.size


@inline
def _is_marker(buffer, key, key_length, value, value_length):
    """Whether key and value of a control record have what readers of it need."""
    if key_length < _KEY_SIZE or int16_at(buffer, key) < 0:
        return False
    kind = int16_at(buffer, key + 2)
    if kind < 0 or kind > COMMIT:
        return True
    return value_length >= _VALUE_SIZE and int16_at(buffer, value) >= 0


@inline
def _records(buffer, start, end, table, row):
    """The verdict on the records of one batch, which lie in buffer[start:end], and their smallest timestamp."""
    smallest = np.int64(NO_RECORD)
    count = table[row, COUNT]
    attributes = table[row, ATTRIBUTES]
    last_delta = table[row, LAST_OFFSET] - table[row, BASE_OFFSET]
    if count < 0 or count > last_delta + 1 or count > (end - start) // MIN_RECORD_SIZE:
        return BAD_COUNT, 0, start, smallest
    is_control = attributes & CONTROL != 0
    if is_control and count > 1:
        return BAD_MARKER, 0, start, smallest
    largest = np.int64(-9223372036854775808)
    before = np.int64(-1)
    position = start
    for index in range(count):
        if position >= end:
            return TOO_FEW, index, position, smallest
        status, at, body, delta, place, key, key_length, value, value_length, _ = walk_record(
            buffer, position, end
        )
        if status != GOOD:
            return status, index, at, smallest
        if place <= before or place > last_delta:
            return BAD_OFFSET, index, position, smallest
        if is_control and not _is_marker(buffer, key, key_length, value, value_length):
            return BAD_MARKER, index, position, smallest
        before = place
        largest = max(largest, table[row, BASE_TIMESTAMP] + delta)
        smallest = min(smallest, table[row, BASE_TIMESTAMP] + delta)
        position = body
    if position != end:
        return TOO_MANY, count, position, smallest
    if attributes & LOG_APPEND_TIME:
        return GOOD, count, position, smallest if count == 0 else table[row, MAX_TIMESTAMP]
    if count > 0 and largest != table[row, MAX_TIMESTAMP]:
        return BAD_MAX_TIMESTAMP, 0, start, smallest
    return GOOD, count, position, smallest


@inline
def _header(table, row):
    """The verdict on what the header says of producer and codec."""
    attributes = table[row, ATTRIBUTES]
    if attributes & CODEC_MASK > _LAST_CODEC:
        return BAD_CODEC
    if attributes & CONTROL and attributes & CODEC_MASK:
        return BAD_MARKER
    if table[row, BASE_SEQUENCE] < -1:
        return BAD_PRODUCER
    if table[row, PRODUCER_ID] >= 0:
        return GOOD if table[row, PRODUCER_EPOCH] >= 0 else BAD_PRODUCER
    return BAD_PRODUCER if attributes & TRANSACTIONAL else GOOD


@kernel(INT, READ, INT, TABLE, TABLE)
def verify_batches(buffer, origin, table, verdicts):
    """Check the batches of `table`, which were scanned without their checksums, and fill a row of verdicts for each.

    COMPRESSED: all is well but for the records, which `verify_records` checks when they are decompressed. `origin` is
    the table's position of buffer[0]. Gives the number of batches that are neither good nor compressed; -1 where the
    tables do not fit together or a batch lies outside the buffer."""
    rows = table.shape[0]
    if (
        verdicts.shape[0] < rows
        or verdicts.shape[1] < VERDICT_COLUMNS
        or table.shape[1] < COLUMNS
        or origin < 0
    ):
        return -1
    bad = 0
    for row in range(rows):
        start = table[row, POSITION] - origin
        end = start + table[row, SIZE]
        if start < 0 or end > buffer.size or end - start < HEADER_SIZE:
            return -1
        index = 0
        place = start
        earliest = np.int64(NO_RECORD)
        if crc32c_of(buffer, start + CHECKED_FROM, end) != int32_at(buffer, start + 17) & 0xFFFFFFFF:
            verdict = BAD_CHECKSUM
        else:
            verdict = _header(table, row)
            if verdict == GOOD:
                if table[row, ATTRIBUTES] & CODEC_MASK:
                    verdict = COMPRESSED
                else:
                    verdict, index, place, earliest = _records(buffer, start + HEADER_SIZE, end, table, row)
        verdicts[row, VERDICT] = verdict
        verdicts[row, RECORD] = index
        verdicts[row, PLACE] = place + origin
        verdicts[row, EARLIEST] = earliest
        if verdict not in (GOOD, COMPRESSED):
            bad += 1
    return bad


@kernel(results(INT, INT, INT, INT), READ, LONGS)
def verify_records(data, row):
    """Check the decompressed records of one batch, of which `row` is the row of the table: verdict, record index,
    position in `data`, smallest timestamp."""
    if row.size < COLUMNS:
        return BAD_LENGTH, 0, 0, NO_RECORD
    return _records(data, 0, data.size, row.reshape(1, row.size), 0)
