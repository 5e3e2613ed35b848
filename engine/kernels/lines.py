"""Finding lines in bytes."""

from __future__ import annotations

from topicfs.engine.kernels.compile import INT, READ, kernel
from topicfs.engine.kernels.varint import find_byte

NEWLINE = 10


@kernel(INT, READ, INT, INT)
def first_newline(buffer, start, end):
    """Position of the first newline in buffer[start:end]; -1 where there is none."""
    if start < 0 or end > buffer.size or start >= end:
        return -1
    found = find_byte(buffer, start, end, NEWLINE)
    return -1 if found == end else found


@kernel(INT, READ, INT, INT)
def last_newline(buffer, start, end):
    """Position of the last newline in buffer[start:end]; -1 where there is none."""
    if start < 0 or end > buffer.size:
        return -1
    position = end - 1
    while position >= start:
        if buffer[position] == NEWLINE:
            return position
        position -= 1
    return -1
