"""Walks a leader's answer to a fetch, version 13, and fills a table with what it says of each partition.

    answer     throttle time (int32) · error (int16) · session (int32) · topics[] · tags
    topic      id (16 bytes) · partitions[] · tags
    partition  number (int32) · error (int16) · high watermark, stable offset, start offset (int64 each) ·
               aborted[] (producer id, first offset (int64 each) · tags) · preferred replica (int32) ·
               records · tags, of which tag 0 is: epoch (int32) · its end offset (int64) · tags
    x[]        unsigned: 1 + how many, 0 for none at all · each of them
    records    unsigned: 1 + bytes, 0 for none at all · batches
    tags       unsigned: how many · each: tag (unsigned) · size (unsigned) · so many bytes

The batches stay where they are: kafka-python's reader copies them, which took a third of the time of a mirror.
"""

from __future__ import annotations

from typing import Final

from topicfs.engine.kernels.compile import INT, READ, TABLE, inline, kernel, results
from topicfs.engine.kernels.scan import int16_at, int32_at, int64_at
from topicfs.engine.kernels.varint import MALFORMED, read_unsigned

TOPIC: Final = 0
NUMBER: Final = 1
ERROR: Final = 2
HIGH_WATERMARK: Final = 3
STABLE_OFFSET: Final = 4
EPOCH: Final = 5
EPOCH_END: Final = 6
RECORDS: Final = 7
RECORDS_END: Final = 8
COLUMNS: Final = 9
"""TOPIC is where the topic's id is, RECORDS and RECORDS_END are where batches begin and end. EPOCH is −1 where the
leader's log does not part from ours."""

BROKEN: Final = -1
"""In place of the number of rows: the answer breaks the format, or has more partitions than the table has rows."""

_ANSWER_HEAD: Final = 10
_ID: Final = 16
_PARTITION_HEAD: Final = 30
_ABORTED: Final = 16
_REPLICA: Final = 4
_DIVERGING: Final = 0
"""The tag."""

_DIVERGING_SIZE: Final = 12


@inline
def _count(buffer, at):
    """How many parts are told at a position, and the position behind that; or (0, MALFORMED)."""
    found, at = read_unsigned(buffer, at, buffer.size)
    return max(found - 1, 0), at


@inline
def _behind_tags(buffer, at):
    """The position behind tags, or MALFORMED."""
    left, at = read_unsigned(buffer, at, buffer.size)
    while left > 0 and at != MALFORMED:
        _, at = read_unsigned(buffer, at, buffer.size)
        if at == MALFORMED:
            return at
        size, at = read_unsigned(buffer, at, buffer.size)
        if at == MALFORMED or size > buffer.size - at:
            return MALFORMED
        at += size
        left -= 1
    return at


@inline
def _read_tags(buffer, at, row):
    """Put the tagged fields of a partition into its row. The position behind them, or MALFORMED."""
    row[EPOCH], row[EPOCH_END] = -1, -1
    left, at = read_unsigned(buffer, at, buffer.size)
    while left > 0 and at != MALFORMED:
        tag, at = read_unsigned(buffer, at, buffer.size)
        if at == MALFORMED:
            return at
        size, at = read_unsigned(buffer, at, buffer.size)
        if at == MALFORMED or size > buffer.size - at:
            return MALFORMED
        if tag == _DIVERGING:
            if size < _DIVERGING_SIZE:
                return MALFORMED
            row[EPOCH], row[EPOCH_END] = int32_at(buffer, at), int64_at(buffer, at + 4)
        at += size
        left -= 1
    return at


@inline
def _read_partition(buffer, at, row):
    """Put a partition into a row. The position behind it, or MALFORMED."""
    if buffer.size - at < _PARTITION_HEAD:
        return MALFORMED
    row[NUMBER], row[ERROR] = int32_at(buffer, at), int16_at(buffer, at + 4)
    row[HIGH_WATERMARK], row[STABLE_OFFSET] = int64_at(buffer, at + 6), int64_at(buffer, at + 14)
    aborted, at = _count(buffer, at + _PARTITION_HEAD)
    while aborted > 0 and at != MALFORMED:
        if buffer.size - at < _ABORTED:
            return MALFORMED
        at = _behind_tags(buffer, at + _ABORTED)
        aborted -= 1
    if at == MALFORMED or buffer.size - at < _REPLICA:
        return MALFORMED
    size, at = _count(buffer, at + _REPLICA)
    if at == MALFORMED or size > buffer.size - at:
        return MALFORMED
    row[RECORDS], row[RECORDS_END] = at, at + size
    return _read_tags(buffer, at + size, row)


@kernel(results(INT, INT), READ, TABLE)
def partitions(buffer, table):
    """Fill the table with a row for each partition of an answer: (rows, error of all of it), or (BROKEN, 0)."""
    if buffer.size < _ANSWER_HEAD or table.shape[1] < COLUMNS:
        return BROKEN, 0
    rows = 0
    topics, at = _count(buffer, _ANSWER_HEAD)
    while topics > 0 and at != MALFORMED:
        topic = at
        if buffer.size - at < _ID:
            return BROKEN, 0
        left, at = _count(buffer, at + _ID)
        while left > 0 and at != MALFORMED:
            if rows == table.shape[0]:
                return BROKEN, 0
            at = _read_partition(buffer, at, table[rows])
            table[rows, TOPIC] = topic
            rows += 1
            left -= 1
        if at == MALFORMED:
            return BROKEN, 0
        at = _behind_tags(buffer, at)
        topics -= 1
    if at == MALFORMED or _behind_tags(buffer, at) != buffer.size:
        return BROKEN, 0
    return rows, int16_at(buffer, 4)
