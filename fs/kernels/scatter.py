"""Lines of a buffer, each copied to a place of its own."""

from __future__ import annotations

from numba import types

from topicfs.engine.kernels.compile import INT, LONGS, READ, WRITE, kernel
from topicfs.engine.kernels.varint import copy

BAD = -1
"""A line lies outside the buffer, or its place outside the output."""


@kernel(INT, READ, LONGS, LONGS, LONGS, WRITE)
def scatter(buffer, start, length, place, out):
    """Copy buffer[start:start+length] of each line to out[place:]. Gives the number of lines, or BAD."""
    rows = start.size
    if length.size < rows or place.size < rows:
        return BAD
    for row in range(rows):
        size = length[row]
        if size < 0 or start[row] < 0 or size > buffer.size - start[row]:
            return BAD
        if place[row] < 0 or size > out.size - place[row]:
            return BAD
        copy(out, place[row], buffer, start[row], size)
    return types.int64(rows)
