"""Walks the batches of a buffer, and fills a table with what their headers say.

A header is drawn in `topicfs.engine.format.batch_header`. The size is judged before the magic, and the magic before the
batch's end: who fetches more bytes because a batch is cut off knows that they are a batch's.
"""

from __future__ import annotations

from typing import Final

from numba import types

from topicfs.engine.format.batch_header import HEAD_TO_MAGIC, HEADER_SIZE, MIN_SIZE_FIELD, SIZE_OVERHEAD
from topicfs.engine.kernels.compile import INT, READ, TABLE, inline, kernel, results
from topicfs.engine.kernels.crc import crc32c_of

POSITION: Final = 0
SIZE: Final = 1
BASE_OFFSET: Final = 2
LAST_OFFSET: Final = 3
LEADER_EPOCH: Final = 4
ATTRIBUTES: Final = 5
BASE_TIMESTAMP: Final = 6
MAX_TIMESTAMP: Final = 7
PRODUCER_ID: Final = 8
PRODUCER_EPOCH: Final = 9
BASE_SEQUENCE: Final = 10
COUNT: Final = 11
MAGIC: Final = 12
COLUMNS: Final = 13

DONE: Final = 0
PARTIAL: Final = 1
FULL: Final = 2
BAD_SIZE: Final = 3
BAD_MAGIC: Final = 4
BAD_CRC: Final = 5
BAD_OFFSETS: Final = 6

PROBLEMS: Final = {
    PARTIAL: "the bytes end inside a batch",
    BAD_SIZE: "the size field is impossible",
    BAD_MAGIC: "the magic is not 2 (message formats 0 and 1 are not supported)",
    BAD_CRC: "the checksum does not fit the bytes",
    BAD_OFFSETS: "an offset is negative, beyond 63 bits, or not above those before it",
}
"""What a status other than DONE and FULL means, for messages."""

_MAX_INT32: Final = 2**31 - 1
_MAX_INT64: Final = 2**63 - 1


@inline
def int16_at(buffer, at):
    """Signed big-endian 16 bits at buffer[at:]; the caller has checked the bounds."""
    value = (types.int64(buffer[at]) << 8) | types.int64(buffer[at + 1])
    return value - 0x10000 if value >= 0x8000 else value


@inline
def int32_at(buffer, at):
    """Signed big-endian 32 bits at buffer[at:]; the caller has checked the bounds."""
    value = types.int64(0)
    for i in range(4):
        value = (value << 8) | types.int64(buffer[at + i])
    return value - 0x100000000 if value >= 0x80000000 else value


@inline
def int64_at(buffer, at):
    """Signed big-endian 64 bits at buffer[at:]; the caller has checked the bounds."""
    value = types.int64(0)
    for i in range(8):
        value = (value << 8) | types.int64(buffer[at + i])
    return value


@inline
def status_of_head(buffer, at, end):
    """DONE when buffer[at:end] begins with a batch of a possible size and magic, else what is wrong."""
    if end - at <= HEAD_TO_MAGIC:
        return PARTIAL
    size = int32_at(buffer, at + 8)
    if size < MIN_SIZE_FIELD or size > _MAX_INT32 - SIZE_OVERHEAD:
        return BAD_SIZE
    if buffer[at + 16] != 2:
        return BAD_MAGIC
    if size + SIZE_OVERHEAD < HEADER_SIZE:
        return BAD_SIZE
    return DONE


@inline
def offsets_are_possible(base_offset, last_delta):
    """Neither offset of the batch is negative or beyond 63 bits."""
    return base_offset >= 0 and last_delta >= 0 and base_offset <= _MAX_INT64 - last_delta


@kernel(results(INT, INT, INT), READ, INT, INT, INT, INT, TABLE)
def scan(buffer, start, end, position, check, table):
    """Fill the table with the whole, good batches of buffer[start:end]: (rows, consumed, status).

    `position` is added to the place in the buffer, to give the column POSITION. `check` 1 verifies
    checksums. `consumed` counts the bytes of the rows. A range outside the buffer is PARTIAL at once.
    """
    if start < 0 or end < start or end > buffer.size or table.shape[1] < COLUMNS:
        return 0, 0, PARTIAL
    at = start
    rows = 0
    while at < end:
        status = status_of_head(buffer, at, end)
        if status != DONE:
            return rows, at - start, status
        total = int32_at(buffer, at + 8) + SIZE_OVERHEAD
        if total > end - at:
            return rows, at - start, PARTIAL
        if rows == table.shape[0]:
            return rows, at - start, FULL
        if check != 0 and crc32c_of(buffer, at + 21, at + total) != int32_at(buffer, at + 17) & 0xFFFFFFFF:
            return rows, at - start, BAD_CRC
        base_offset = int64_at(buffer, at)
        last_delta = int32_at(buffer, at + 23)
        if not offsets_are_possible(base_offset, last_delta):
            return rows, at - start, BAD_OFFSETS
        table[rows, POSITION] = at + position
        table[rows, SIZE] = total
        table[rows, BASE_OFFSET] = base_offset
        table[rows, LAST_OFFSET] = base_offset + last_delta
        table[rows, LEADER_EPOCH] = int32_at(buffer, at + 12)
        table[rows, ATTRIBUTES] = int16_at(buffer, at + 21) & 0xFFFF
        table[rows, BASE_TIMESTAMP] = int64_at(buffer, at + 27)
        table[rows, MAX_TIMESTAMP] = int64_at(buffer, at + 35)
        table[rows, PRODUCER_ID] = int64_at(buffer, at + 43)
        table[rows, PRODUCER_EPOCH] = int16_at(buffer, at + 51)
        table[rows, BASE_SEQUENCE] = int32_at(buffer, at + 53)
        table[rows, COUNT] = int32_at(buffer, at + 57)
        table[rows, MAGIC] = 2
        rows += 1
        at += total
    return rows, at - start, DONE
