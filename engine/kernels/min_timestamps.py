"""How early records are. Of each record only the head is looked at: its length, and its timestamp's delta."""

from __future__ import annotations

import numpy as np

from topicfs.engine.format.batch_header import CODEC_MASK, CONTROL, HEADER_SIZE, LOG_APPEND_TIME
from topicfs.engine.kernels.compile import INT, READ, TABLE, inline, kernel, results
from topicfs.engine.kernels.decode import BAD_LENGTH, BAD_NUMBER, GOOD, TOO_FEW, TOO_MANY
from topicfs.engine.kernels.scan import ATTRIBUTES, BASE_TIMESTAMP, COUNT, MAX_TIMESTAMP, POSITION, SIZE
from topicfs.engine.kernels.varint import MALFORMED, read_varint, read_varlong

NONE = 2**63 - 1
"""The least timestamp where there is no record."""


@inline
def _walk(buffer, start, end, count, base_timestamp):
    least = np.int64(NONE)
    position = start
    for index in range(count):
        if position >= end:
            return TOO_FEW, index, position, least
        length, at = read_varint(buffer, position, end)
        if at == MALFORMED:
            return BAD_NUMBER, index, position, least
        if length < 1 or length > end - at:
            return BAD_LENGTH, index, position, least
        delta, behind = read_varlong(buffer, at + 1, at + length)
        if behind == MALFORMED:
            return BAD_NUMBER, index, position, least
        least = min(least, base_timestamp + delta)
        position = at + length
    if position != end:
        return TOO_MANY, count, position, least
    return GOOD, count, position, least


@kernel(results(INT, INT, INT, INT), READ, INT, INT, INT, INT)
def min_timestamp_record(buffer, start, end, count, base_timestamp):
    """The least timestamp of the `count` records of buffer[start:end]. Gives status, record index, position, and it."""
    if start < 0 or end > buffer.size:
        return BAD_LENGTH, 0, start, NONE
    if count < 0:
        return TOO_MANY, 0, start, NONE
    return _walk(buffer, start, end, count, base_timestamp)


@kernel(results(INT, INT, INT, INT, INT), READ, INT, TABLE, INT)
def min_timestamps(buffer, origin, table, first):
    """The least timestamp of the batches that `table` names from row `first` on.

    Stops before a batch whose records are compressed and have timestamps of their own: those of a marker, and of
    records with the append's time, the header tells. `origin` is the table's position of buffer[0]. Gives status, the
    batch's row, record index, position in `buffer`, and the timestamp."""
    least = np.int64(NONE)
    for row in range(first, table.shape[0]):
        count = table[row, COUNT]
        start = table[row, POSITION] - origin
        end = start + table[row, SIZE]
        if start < 0 or end > buffer.size:
            return BAD_LENGTH, row, 0, start, least
        if count < 0:
            return TOO_MANY, row, 0, start, least
        if count == 0:
            continue
        attributes = table[row, ATTRIBUTES]
        if attributes & (CONTROL | LOG_APPEND_TIME):
            least = min(least, table[row, MAX_TIMESTAMP])
            continue
        if attributes & CODEC_MASK:
            return GOOD, row, 0, start, least
        status, index, at, found = _walk(buffer, start + HEADER_SIZE, end, count, table[row, BASE_TIMESTAMP])
        if status != GOOD:
            return status, row, index, at, least
        least = min(least, found)
    return GOOD, table.shape[0], 0, 0, least
