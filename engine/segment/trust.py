"""Deciding which parts of a segment can be trusted, if its log or its indexes are damaged.

After a clean stop nothing is scanned, so damage is found when somebody reads it. A batch is *sound* if its checksum
fits and its offsets lie above those of the batch before it and below those behind it: the checksum covers neither a
batch's length nor its base offset. An index has no checksum at all, but each of its entries can be compared with the
batch that it names: an entry that fits is true, wherever it comes from.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import numpy as np

from topicfs.engine.batch.table import Bytes
from topicfs.engine.errors import CorruptError
from topicfs.engine.format.index import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE
from topicfs.engine.kernels.scan import BASE_OFFSET, LAST_OFFSET, MAX_TIMESTAMP, SIZE
from topicfs.engine.kernels.search import index_entries
from topicfs.engine.record import MAX_INT64, NO_OFFSET, NO_TIMESTAMP
from topicfs.engine.segment.offset_index import OffsetIndex
from topicfs.engine.segment.time_index import TimeIndex

if TYPE_CHECKING:
    from topicfs.engine.segment.stored import StoredSegment

log = logging.getLogger(__name__)

Latest = tuple[int, int]
"""A timestamp, and the last offset of the batch that has it."""

_STEPS: Final = 64
"""Headers that are followed from the damage on, before the index is used to go on."""

_LOOKED_AT: Final = 1024 * 1024
"""Bytes behind the last entry of a time index that are read completely: a third of a millisecond."""

_SAMPLES: Final = 64
"""Later batches that are sampled. With all of them, a log whose records have one timestamp would be read completely."""


def resume(segment: StoredSegment, position: int, before: int) -> int | None:
    """Return the position of the next sound batch behind damage that begins at `position`, or None. `before` is the
    last sound offset, or -1. Without a batch length or an index entry, nobody knows where batches begin."""
    at, last = position, NO_OFFSET
    for step in range(_STEPS):
        try:
            row = segment.header_at(at)
        except CorruptError:
            break
        if step and row[BASE_OFFSET] > max(before, last) and _is_sound(segment, at, row[SIZE]):
            return at
        last = row[LAST_OFFSET]
        at += row[SIZE]
        if at >= segment.size:
            break
    index = segment.offset_index
    for number in range(_first_behind(segment, position), index.entries):
        offset, at = index.entry(number)
        if offset <= before or not segment.ends_with(at, offset):
            continue
        row = segment.header_at(at)
        if row[BASE_OFFSET] > before and _is_sound(segment, at, row[SIZE]):
            return at
    return None


def _first_behind(segment: StoredSegment, position: int) -> int:
    found = segment.offset_index.upper_bound(position, 1)
    return segment.offset_index.entries if found is None else segment.offset_index.floor(found[0])[0]


def _is_sound(segment: StoredSegment, position: int, size: int) -> bool:
    try:
        for _ in segment.batches(position, position + size):
            pass
    except CorruptError:
        return False
    return True


def latest_behind(segment: StoredSegment, known: Latest, position: int) -> tuple[Latest, bool]:
    """Return the largest timestamp, and whether all batches behind `position` were looked at. By the time index,
    `known` is the largest up to that position. If not all were looked at, these were: the first MiB, some batches
    that the offset index names, and the last ones."""
    largest = known
    try:
        end = segment.size
        limit = min(end, position + _LOOKED_AT)
        largest = _latest_between(segment, position, limit, largest)
        if limit == end:
            return largest, True
        index = segment.offset_index
        first = _first_behind(segment, limit)
        for number in np.unique(np.linspace(first, index.entries - 1, _SAMPLES, dtype=np.int64)).tolist():
            if 0 <= number < index.entries:
                row = segment.header_at(index.entry(number)[1])
                if row[MAX_TIMESTAMP] > largest[0]:
                    largest = row[MAX_TIMESTAMP], row[LAST_OFFSET]
        if index.entries:
            last = max(limit, index.entry(index.entries - 1)[1])
            largest = _latest_between(segment, last, min(end, last + _LOOKED_AT), largest)
    except CorruptError:
        # Nobody can know the time of damaged data. A reader of it gets the error.
        return largest, False
    return largest, False


def _latest_between(segment: StoredSegment, start: int, end: int, largest: Latest) -> Latest:
    for _, table in segment.batches(start, end, check=False, partial_ok=True, reuse=True):
        row = int(table[:, MAX_TIMESTAMP].argmax())
        if table[row, MAX_TIMESTAMP] > largest[0]:
            largest = int(table[row, MAX_TIMESTAMP]), int(table[row, LAST_OFFSET])
    return largest


def remade(segment: StoredSegment) -> tuple[Bytes, Bytes, Latest, Latest | None]:
    """Return new entries of both indexes and the largest timestamp, all from the sound batches, and the result of
    `lost_end`."""
    offsets: list[Bytes] = []
    times: list[Bytes] = []
    position, before, since = 0, NO_OFFSET, 0
    largest: Latest = (NO_TIMESTAMP, segment.base_offset)
    last_indexed = NO_TIMESTAMP
    holes: list[tuple[int, int]] = []
    while True:
        try:
            for _, found in segment.batches(position, reuse=True):
                table = found[: segment.count_of_fitting(found)]
                room = len(table)
                into = (
                    np.empty(room * OFFSET_ENTRY_SIZE, np.uint8),
                    np.empty(room * TIME_ENTRY_SIZE, np.uint8),
                )
                _, total, offset_count, time_count, since, *latest = index_entries(
                    table,
                    segment.base_offset,
                    position,
                    segment.settings.index_interval_bytes,
                    since,
                    *largest,
                    last_indexed,
                    *into,
                )
                largest = latest[0], latest[1]
                if time_count:
                    last_indexed = segment.time_index.entry_in(into[1], time_count - 1)[0]
                offsets.append(into[0][: offset_count * OFFSET_ENTRY_SIZE])
                times.append(into[1][: time_count * TIME_ENTRY_SIZE])
                before = int(table[-1, LAST_OFFSET]) if room else before
                position += total
                segment.check_fitting(found)
            break
        except CorruptError:
            resumed = resume(segment, position, before)
            if resumed is None:
                holes.append((before, MAX_INT64))
                break
            holes.append((before, segment.header_at(resumed)[BASE_OFFSET]))
            position = resumed
    ends_damaged = bool(holes) and holes[-1][1] == MAX_INT64
    lost = None if ends_damaged else lost_end(segment, largest, before)
    if holes:
        times = _borne_out(segment, holes)
        if times:
            largest = max(largest, segment.time_index.entry_in(times[-1], 0))
    elif largest[0] > last_indexed:
        times.append(segment.time_index.entry_of(*largest))
    if lost is not None:
        largest = max(largest, lost)
    return np.concatenate([*offsets, _NOTHING]), np.concatenate([*times, _NOTHING]), largest, lost


def lost_end(segment: StoredSegment, largest: Latest, last_offset: int) -> Latest | None:
    """Return the latest timestamp and a last offset that the log had before its end was cut off, or None. Both come
    from the indexes as they were found. A damaged entry may give a wrong value for one of its fields, or offsets far
    away."""
    offsets, times = segment.offset_index, segment.time_index
    lost = []
    # Garbage can say anything: an index is believed if its entries are in order and another one of them fits.
    if offsets.entries and not offsets.doubt and _some_fits(segment, offsets):
        offset, position = offsets.entry(offsets.entries - 1)
        if 0 < offset - last_offset <= _AHEAD and position >= segment.size:
            lost.append((largest[0], offset))
    if times.entries and not times.doubt and _some_fits(segment, times):
        timestamp, offset = times.last_entry
        if 0 < offset - last_offset <= _AHEAD and timestamp > largest[0]:
            lost.append((timestamp, offset))
    return max(lost) if lost else None


def _some_fits(segment: StoredSegment, index: OffsetIndex | TimeIndex) -> bool:
    """Return whether an index entry other than the last fits the log. If nothing of the log is left, return True."""
    if segment.size == 0:
        return True
    for number in range(min(index.entries - 1, _STEPS)):
        first, second = index.entry(number)
        is_of_offsets = isinstance(index, OffsetIndex)
        if segment.ends_with(second, first) if is_of_offsets else segment.time_holds(number):
            return True
    return False


def _borne_out(segment: StoredSegment, holes: list[tuple[int, int]]) -> list[Bytes]:
    """Return the entries of the present time index that the log does not contradict. New entries would say that no
    record is later than the sound ones, and only the old entries know the damaged ones."""
    kept: list[Bytes] = []
    last = NO_TIMESTAMP, segment.base_offset
    for number in range(segment.time_index.entries):
        timestamp, offset = segment.time_index.entry(number)
        if timestamp <= last[0] or offset < last[1]:
            continue
        if not any(first < offset < behind for first, behind in holes):
            try:
                found = segment.locate(offset)
            except CorruptError:
                found = None
            if found is None or found[2] > offset or segment.header_at(found[0])[MAX_TIMESTAMP] != timestamp:
                continue
        last = timestamp, offset
        kept.append(segment.time_index.entry_of(timestamp, offset))
    return kept


_AHEAD: Final = 1 << 24
"""The most records that the cut off end of a segment may have had."""

_NOTHING: Final = np.empty(0, np.uint8)
