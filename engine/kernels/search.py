"""Searching index files and batch headers, and choosing which batches get an index entry.

Entries are drawn in `topicfs.engine.format.index`, headers in `topicfs.engine.format.batch_header`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import types

from topicfs.engine.format.batch_header import HEADER_SIZE, SIZE_OVERHEAD
from topicfs.engine.format.index import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE
from topicfs.engine.kernels.compile import INT, READ, TABLE, WRITE, inline, kernel, results
from topicfs.engine.kernels.scan import (
    BAD_OFFSETS,
    BASE_OFFSET,
    DONE,
    LAST_OFFSET,
    MAX_TIMESTAMP,
    PARTIAL,
    SIZE,
    int32_at,
    int64_at,
    offsets_are_possible,
    status_of_head,
)

FOUND: Final = 7
"""Beside the statuses of `topicfs.engine.kernels.scan`: the batch that was looked for."""

BY_OFFSET: Final = 0
BY_TIMESTAMP: Final = 1

_MAX_INT32: Final = 2**31 - 1


@inline
def _fit(buffer, entries, stride):
    """Entries that may be read: never more than the buffer holds."""
    return max(0, min(entries, buffer.size // stride))


@kernel(INT, READ, INT, INT, INT, INT)
def floor_slot(buffer, entries, stride, field, target):
    """Number of the last entry whose int32 at byte `field` is at most `target`; -1 where there is none."""
    if stride < 4 or field < 0 or field > stride - 4:
        return -1
    low = types.int64(0)
    high = _fit(buffer, entries, stride)
    while low < high:
        middle = (low + high) // 2
        if int32_at(buffer, middle * stride + field) <= target:
            low = middle + 1
        else:
            high = middle
    return low - 1


@kernel(results(INT, INT, INT), READ, INT, INT)
def lookup_offset(buffer, entries, relative):
    """The last entry of an offset index at or below: its number (-1: none), relative offset, position."""
    low = types.int64(0)
    high = _fit(buffer, entries, OFFSET_ENTRY_SIZE)
    while low < high:
        middle = (low + high) // 2
        if int32_at(buffer, middle * OFFSET_ENTRY_SIZE) <= relative:
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return -1, 0, 0
    at = (low - 1) * OFFSET_ENTRY_SIZE
    return low - 1, int32_at(buffer, at), int32_at(buffer, at + 4)


@kernel(results(INT, INT, INT), READ, INT, INT)
def lookup_time(buffer, entries, timestamp):
    """The last entry of a time index at or before: its number (-1: none), timestamp, relative offset."""
    low = types.int64(0)
    high = _fit(buffer, entries, TIME_ENTRY_SIZE)
    while low < high:
        middle = (low + high) // 2
        if int64_at(buffer, middle * TIME_ENTRY_SIZE) <= timestamp:
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return -1, -1, 0
    at = (low - 1) * TIME_ENTRY_SIZE
    return low - 1, int64_at(buffer, at), int32_at(buffer, at + 8)


@kernel(results(INT, INT, INT, INT, INT), READ, INT, INT, INT)
def find_batch(buffer, by, target, before):
    """The first batch whose last offset, or max timestamp, reaches `target`, by headers alone. Offsets rise, the first
    above `before`: the checksum does not cover a batch's base offset, its neighbours do.

    Gives status, place, size, base offset, last offset. FOUND: of that batch, whose end may lie outside
    the buffer. PARTIAL: place of the next header to fetch, perhaps outside the buffer, and the offsets of
    the batch before it (-1: none). Otherwise: what is wrong with the header at that place."""
    at = types.int64(0)
    base_offset = types.int64(-1)
    last_offset = types.int64(-1)
    while at + HEADER_SIZE <= buffer.size:
        status = status_of_head(buffer, at, buffer.size)
        if status != DONE:
            return status, at, 0, base_offset, last_offset
        last_delta = int32_at(buffer, at + 23)
        if not offsets_are_possible(int64_at(buffer, at), last_delta) or int64_at(buffer, at) <= before:
            return BAD_OFFSETS, at, 0, base_offset, last_offset
        base_offset = int64_at(buffer, at)
        last_offset = base_offset + last_delta
        before = last_offset
        size = int32_at(buffer, at + 8) + SIZE_OVERHEAD
        reached = last_offset if by == BY_OFFSET else int64_at(buffer, at + 35)
        if reached >= target:
            return FOUND, at, size, base_offset, last_offset
        at += size
    return PARTIAL, at, 0, base_offset, last_offset


@kernel(INT, TABLE, INT, INT)
def rising_rows(table, base_offset, before):
    """How many rows from the first on lie in the segment and rise in offset, the first above `before`."""
    for row in range(table.shape[0]):
        last_offset = table[row, LAST_OFFSET]
        if table[row, BASE_OFFSET] <= before or last_offset - base_offset > _MAX_INT32:
            return row
        before = last_offset
    return table.shape[0]


@inline
def _put_int32(out, at, value):
    for i in range(4):
        out[at + i] = np.uint8((value >> (24 - 8 * i)) & 0xFF)


@kernel(
    results(INT, INT, INT, INT, INT, INT, INT),
    TABLE, INT, INT, INT, INT, INT, INT, INT, WRITE, WRITE,
)  # fmt: skip
def index_entries(
    table,
    base_offset,
    position,
    interval,
    since,
    largest,
    largest_at,
    last_indexed,
    offset_entries,
    time_entries,
):
    """Build the index entries of batches that lie one behind the other from `position` on.

    `since` bytes lie behind the last entry; `largest` is the largest timestamp so far, in the batch that
    ends with offset `largest_at`; `last_indexed` is the last timestamp of the time index. A batch gets an
    entry when more than `interval` bytes lie before it since the last one. The outputs' sizes are the room
    in the indexes: an entry without room is left out, which makes a look-up longer and never wrong.

    Gives: the first row whose last offset does not fit the segment (-1: none; nothing else counts
    otherwise), bytes of all rows, offset entries, time entries, and the new since, largest, largest_at."""
    for row in range(table.shape[0]):
        relative = table[row, LAST_OFFSET] - base_offset
        if relative < 0 or relative > _MAX_INT32:
            return row, 0, 0, 0, since, largest, largest_at
    total = types.int64(0)
    offsets = types.int64(0)
    times = types.int64(0)
    for row in range(table.shape[0]):
        last_offset = table[row, LAST_OFFSET]
        if table[row, MAX_TIMESTAMP] > largest:
            largest = table[row, MAX_TIMESTAMP]
            largest_at = last_offset
        if since > interval:
            since = types.int64(0)
            if (offsets + 1) * OFFSET_ENTRY_SIZE <= offset_entries.size:
                _put_int32(offset_entries, offsets * OFFSET_ENTRY_SIZE, last_offset - base_offset)
                _put_int32(offset_entries, offsets * OFFSET_ENTRY_SIZE + 4, position + total)
                offsets += 1
            if largest > last_indexed and (times + 1) * TIME_ENTRY_SIZE <= time_entries.size:
                at = times * TIME_ENTRY_SIZE
                _put_int32(time_entries, at, largest >> 32)
                _put_int32(time_entries, at + 4, largest)
                _put_int32(time_entries, at + 8, largest_at - base_offset)
                last_indexed = largest
                times += 1
        since += table[row, SIZE]
        total += table[row, SIZE]
    return -1, total, offsets, times, since, largest, largest_at
