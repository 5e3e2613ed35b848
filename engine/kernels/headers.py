"""The headers sections of records, as `topicfs.engine.kernels.encode` draws them, made of names and values that lie in
a buffer.

ends           one more than rows: where the headers of each row begin among all headers, and where the last ones end
name_start …   the spans of each header's name and value; length -1 is null
"""

from __future__ import annotations

from numba import types

from topicfs.engine.kernels.compile import INT, INTS, LONGS, READ, WRITE, kernel
from topicfs.engine.kernels.varint import copy, varint_size, write_varint

BAD = -1
"""A span goes beyond its buffer, or arrays do not fit together."""


@kernel(INT, LONGS, INTS, INTS, LONGS)
def measure(ends, name_length, value_length, lengths):
    """Fill `lengths` with the bytes of each row's section, 0 for a row without headers. Gives their sum, or BAD."""
    rows = ends.size - 1
    if rows < 0 or lengths.size < rows or value_length.size < name_length.size:
        return BAD
    total = 0
    for row in range(rows):
        first, end = ends[row], ends[row + 1]
        if first < 0 or end < first or end > name_length.size:
            return BAD
        size = varint_size(end - first) if end > first else 0
        for header in range(first, end):
            name = types.int64(name_length[header])
            value = types.int64(value_length[header])
            if name < 0:
                return BAD
            size += varint_size(name) + name + varint_size(max(value, -1)) + max(value, 0)
        lengths[row] = size
        total += size
    return total


@kernel(INT, READ, LONGS, INTS, INTS, INTS, INTS, WRITE)
def write(buffer, ends, name_start, name_length, value_start, value_length, out):
    """Write the sections, one behind the other, whose bytes `measure` has counted. Gives their bytes, or BAD."""
    headers = min(name_start.size, name_length.size, value_start.size, value_length.size)
    position = 0
    for row in range(ends.size - 1):
        first, end = ends[row], ends[row + 1]
        if first < 0 or end < first or end > headers:
            return BAD
        if end == first:
            continue
        if varint_size(end - first) > out.size - position:
            return BAD
        position = write_varint(out, position, end - first)
        for header in range(first, end):
            for part in range(2):
                start = types.int64(name_start[header] if part == 0 else value_start[header])
                length = max(types.int64(name_length[header] if part == 0 else value_length[header]), -1)
                if length > 0 and (start < 0 or length > buffer.size - start):
                    return BAD
                if varint_size(length) + max(length, 0) > out.size - position:
                    return BAD
                position = write_varint(out, position, length)
                if length > 0:
                    copy(out, position, buffer, start, length)
                    position += length
    return position
