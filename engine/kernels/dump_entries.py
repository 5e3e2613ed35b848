"""Entries of indexes and snapshots → the lines of a dump, and whether indexes fit their log.

Text
    offset: 5 position: 0                      names and numbers; `OptionalLong[5]` or `OptionalLong.empty` where a
                                               number may be missing
JSON
    {"type":"entry","offset":5,"position":0}
"""

from __future__ import annotations

from numba import types

from topicfs.engine.format.batch_header import HEADER_SIZE, SIZE_OVERHEAD
from topicfs.engine.kernels.compile import BOOL, INT, LONGS, READ, TABLE, WRITE, inline, kernel, results
from topicfs.engine.kernels.members import put_literal
from topicfs.engine.kernels.numbers import put_decimal
from topicfs.engine.kernels.scan import DONE, int32_at, int64_at, status_of_head
from topicfs.engine.kernels.varint import copy

_MOST_OF_A_COLUMN = 48
"""Bytes that a number and what is around it take, without its name."""

NOT_FOUND = -1

_pread = types.ExternalFunction("pread", types.intp(types.int32, types.uintp, types.uintp, types.int64))


@kernel(results(INT, INT), TABLE, LONGS, READ, LONGS, LONGS, BOOL, INT, WRITE, INT)
def entries(table, widths, names, ends, optional, as_json, row, out, position):
    """Write a line for each row of `table` from `row` on, at out[position:], with the first `widths[row]` columns.

    names[ends[i-1]:ends[i]] is a column's name; a negative number is missing where optional[i] is not 0.
    Gives the next row, where there was no more room, and the position behind the last line."""
    columns = min(table.shape[1], ends.size, optional.size)
    if columns == 0 or names.size < ends[columns - 1] or widths.size < table.shape[0]:
        return row, position
    to = types.uintp(out.ctypes.data)
    while row < table.shape[0] and out.size - position >= names.size + _MOST_OF_A_COLUMN * (columns + 1):
        position = put_literal(to, position, '{"type":"entry"') if as_json else position
        start = 0
        for column in range(min(columns, widths[row])):
            number = table[row, column]
            if as_json:
                position = put_literal(to, position, ',"')
            elif column > 0:
                position = put_literal(to, position, " ")
            copy(out, position, names, start, ends[column] - start)
            position += ends[column] - start
            start = ends[column]
            position = put_literal(to, position, '":') if as_json else put_literal(to, position, ": ")
            if optional[column] == 0:
                position = put_decimal(out, position, number)
            elif number < 0:
                if as_json:
                    position = put_literal(to, position, "null")
                else:
                    position = put_literal(to, position, "OptionalLong.empty")
            elif as_json:
                position = put_decimal(out, position, number)
            else:
                position = put_decimal(out, put_literal(to, position, "OptionalLong["), number)
                position = put_literal(to, position, "]")
        position = put_literal(to, position, "}\n") if as_json else put_literal(to, position, "\n")
        row += 1
    return row, position


@inline
def _read_header(descriptor, position, header):
    """Whether a batch begins at a position of a log; its header is read."""
    read = _pread(
        types.int32(descriptor),
        types.uintp(header.ctypes.data),
        types.uintp(HEADER_SIZE),
        types.int64(position),
    )
    return read == HEADER_SIZE and status_of_head(header, 0, HEADER_SIZE) == DONE


@kernel(results(INT, INT), TABLE, INT, INT, WRITE)
def check_positions(table, row, descriptor, header):
    """Compare an offset index, columns offset and position, with its log from `row` on. `header` has room for the
    header of a batch.

    Gives the first row that does not fit, and the last offset of the batch at its position, or NOT_FOUND where none
    begins there."""
    if table.shape[1] < 2 or header.size < HEADER_SIZE:
        return table.shape[0], NOT_FOUND
    while row < table.shape[0]:
        if table[row, 1] < 0 or not _read_header(descriptor, table[row, 1], header):
            return row, NOT_FOUND
        last = int64_at(header, 0) + int32_at(header, 23)
        if last != table[row, 0]:
            return row, last
        row += 1
    return row, NOT_FOUND


@kernel(results(INT, INT, INT, INT), TABLE, LONGS, INT, INT, INT, WRITE)
def check_times(table, positions, row, position, descriptor, header):
    """Compare a time index, columns timestamp and offset, with its log from `row` on: each offset is the last one of a
    batch whose largest timestamp is the entry's. The batch is not before positions[row], nor before `position`, where
    the row before was found; so offsets must not fall.

    Gives the first row that does not fit, the position of the last batch that was looked at, and its last offset and
    largest timestamp, or NOT_FOUND where there is none."""
    if table.shape[1] < 2 or positions.size < table.shape[0] or header.size < HEADER_SIZE:
        return table.shape[0], position, NOT_FOUND, 0
    while row < table.shape[0]:
        position = max(position, positions[row])
        while True:
            if position < 0 or not _read_header(descriptor, position, header):
                return row, position, NOT_FOUND, 0
            last = int64_at(header, 0) + int32_at(header, 23)
            if last >= table[row, 1]:
                break
            position += int32_at(header, 8) + SIZE_OVERHEAD
        if last != table[row, 1] or int64_at(header, 35) != table[row, 0]:
            return row, position, last, int64_at(header, 35)
        row += 1
    return row, position, NOT_FOUND, 0
