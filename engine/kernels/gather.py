"""Spans of a buffer gathered into the three buffers of an Arrow array of bytes.

validity   a bit for each row, the lowest first: 1 where there is a value
positions  int32, one more than rows: where each value begins in `data`, and where the last one ends
data       the values, one behind the other
"""

from __future__ import annotations

import numpy as np
from numba import types

from topicfs.engine.kernels.compile import INT, INTS, READ, WRITE, inline, kernel, results
from topicfs.engine.kernels.varint import MALFORMED, copy, read_varint

_MAX_INT32 = 2**31 - 1

BAD = -1
"""A span goes beyond its buffer, or the whole is more than 32 bits can place."""


@inline
def _set(bits, index):
    bits[index >> 3] |= types.uint8(1 << (index & 7))


@kernel(results(INT, INT), READ, INTS, INTS, INTS, WRITE)
def measure(buffer, start, length, positions, validity):
    """Fill `positions`, and `validity`, which is all zeros. Gives the bytes of all values, or BAD, and the number of
    nulls."""
    rows = start.size
    if length.size != rows or positions.size != rows + 1 or validity.size * 8 < rows:
        return BAD, 0
    total = np.int64(0)
    nulls = np.int64(0)
    for row in range(rows):
        positions[row] = total
        size = types.int64(length[row])
        if size < 0:
            nulls += 1
            continue
        if start[row] < 0 or size > buffer.size - start[row]:
            return BAD, nulls
        _set(validity, row)
        total += size
        if total > _MAX_INT32:
            return BAD, nulls
    positions[rows] = total
    return total, nulls


@kernel(INT, READ, INTS, INTS, INTS, WRITE)
def gather(buffer, start, length, positions, data):
    """Fill `data` with the spans that `measure` has checked. Gives the bytes written, or BAD where they do not fit."""
    rows = start.size
    if length.size != rows or positions.size != rows + 1 or positions[rows] > data.size:
        return BAD
    for row in range(rows):
        if length[row] > 0:
            copy(data, types.int64(positions[row]), buffer, types.int64(start[row]), types.int64(length[row]))
    return types.int64(positions[rows])


@kernel(INT, READ, INTS, INTS, INTS, WRITE)
def count_headers(buffer, start, length, positions, validity):
    """Where the headers of each row begin among all, as `positions`; a row without any has its bit in `validity`
    unset. Gives their number, or BAD."""
    rows = start.size
    if length.size != rows or positions.size != rows + 1 or validity.size * 8 < rows:
        return BAD
    total = np.int64(0)
    for row in range(rows):
        positions[row] = total
        begin = types.int64(start[row])
        end = begin + length[row]
        if begin < 0 or length[row] < 1 or end > buffer.size:
            return BAD
        count, behind = read_varint(buffer, begin, end)
        # A header has two lengths at the least.
        if behind == MALFORMED or count < 0 or count > (end - behind) // 2:
            return BAD
        if count > 0:
            _set(validity, row)
        total += count
        if total > _MAX_INT32:
            return BAD
    positions[rows] = total
    return total


@kernel(INT, READ, INTS, INTS, INTS, INTS, INTS, INTS)
def header_spans(buffer, start, length, name_start, name_length, value_start, value_length):
    """The spans of all headers' names and values, in order; the length of a null is -1. Gives their number, or
    BAD."""
    at = 0
    for row in range(start.size):
        begin = types.int64(start[row])
        end = begin + length[row]
        if begin < 0 or length[row] < 1 or end > buffer.size:
            return BAD
        count, position = read_varint(buffer, begin, end)
        if position == MALFORMED or count < 0 or count > name_start.size - at:
            return BAD
        for _ in range(count):
            size, position = read_varint(buffer, position, end)
            if position == MALFORMED or size < 0 or size > end - position:
                return BAD
            name_start[at] = position
            name_length[at] = size
            position += size
            size, position = read_varint(buffer, position, end)
            if position == MALFORMED or size > end - position:
                return BAD
            value_start[at] = position
            value_length[at] = max(size, -1)
            position += max(size, 0)
            at += 1
    return at
