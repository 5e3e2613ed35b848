"""What of a segment can be vouched for, where its log or its indexes are damaged.

After a clean stop nothing is scanned, so damage is met when somebody looks. A batch is *sound* where its checksum fits
and its offsets lie above those of the batch before it and below those behind it: the checksum covers neither a batch's
length nor its base offset. An index has no checksum at all, but each of its entries can be compared with the batch that
it names: an entry that fits says what is so, wherever it comes from.
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
"""Headers that are followed from damage on, before the index is asked where to go on."""

_LOOKED_AT: Final = 1024 * 1024
"""Bytes behind the last entry of a time index that are looked at wholly: a third of a millisecond."""

_SAMPLES: Final = 64
"""Batches behind those that are looked at: where all of them were, a log of records of one time would be read whole."""


def resume(segment: StoredSegment, position: int, before: int) -> int | None:
    """Where the next sound batch begins behind damage that begins at `position`; `before` is the last sound offset, or
    -1. None where none is found: without a length or an entry of the index, nobody knows where batches begin."""
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
    """The largest timestamp, where the time index says that up to a position it is `known`; and whether all batches
    behind that were looked at. If not, the first MiB of them was, some that the offset index names, and the last ones.
    """
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
        # What is damaged has no time that anybody could know. Who reads it gets the error.
        return largest, False
    return largest, False


def _latest_between(segment: StoredSegment, start: int, end: int, largest: Latest) -> Latest:
    for _, table in segment.batches(start, end, check=False, partial_ok=True, reuse=True):
        row = int(table[:, MAX_TIMESTAMP].argmax())
        if table[row, MAX_TIMESTAMP] > largest[0]:
            largest = int(table[row, MAX_TIMESTAMP]), int(table[row, LAST_OFFSET])
    return largest


def remade(segment: StoredSegment) -> tuple[Bytes, Bytes, Latest, Latest | None]:
    """The entries of both indexes, and the largest timestamp, made of the batches that are sound; and what `lost_end`
    gives."""
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
    """What the log had, where its end was cut off: the latest timestamp and an offset behind its last one, by the
    indexes as they were found. An entry that is damaged says so of one of its fields, or of offsets far off."""
    offsets, times = segment.offset_index, segment.time_index
    lost = []
    # Garbage says anything: what has an order, and another entry that fits, is believed.
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
    """Whether an entry of an index that is not its last fits the log; also where nothing of the log is left."""
    if segment.size == 0:
        return True
    for number in range(min(index.entries - 1, _STEPS)):
        first, second = index.entry(number)
        is_of_offsets = isinstance(index, OffsetIndex)
        if segment.ends_with(second, first) if is_of_offsets else segment.time_holds(number):
            return True
    return False


def _borne_out(segment: StoredSegment, holes: list[tuple[int, int]]) -> list[Bytes]:
    """The entries of the time index that there is which the log does not contradict. New ones would say that nothing is
    later than they are, and of what is damaged only the old ones know."""
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
"""Records that the cut off end of a segment may have had."""

_NOTHING: Final = np.empty(0, np.uint8)
