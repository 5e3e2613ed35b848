"""Deciding which parts of a segment can be trusted, if its log or its indexes are damaged.

After a clean stop nothing is scanned, so damage is found when somebody reads it. A batch is *sound* if its checksum
fits and its offsets lie above those of the batch before it and below those behind it: the checksum covers neither a
batch's length nor its base offset. An index has no checksum at all, but each of its entries can be compared with the
batch that it names: an entry that fits is true, wherever it comes from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

from topicfs.engine.batch.table import Bytes
from topicfs.engine.errors import CorruptError
from topicfs.engine.format.index import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE
from topicfs.engine.kernels.scan import BASE_OFFSET, LAST_OFFSET, MAX_TIMESTAMP, SIZE
from topicfs.engine.kernels.search import index_entries
from topicfs.engine.record import MAX_INT64, NO_OFFSET, NO_TIMESTAMP
from topicfs.engine.segment.batch_file import Latest
from topicfs.engine.segment.offset_index import IndexFile
from topicfs.engine.segment.walk import NOTHING

if TYPE_CHECKING:
    from topicfs.engine.segment.finder import Finder

_STEPS: Final = 64
"""Headers that are followed from the damage on, before the index is used to go on."""

_LOOKED_AT: Final = 1024 * 1024
"""Bytes behind the last entry of a time index that are read completely: a third of a millisecond."""

_SAMPLES: Final = 64
"""Later batches that are sampled. With all of them, a log whose records have one timestamp would be read completely."""


def resume(finder: Finder, position: int, before: int) -> int | None:
    """Return the position of the next sound batch behind damage that begins at `position`, or None. `before` is the
    last sound offset, or -1. Without a batch length or an index entry, nobody knows where batches begin."""
    at, last = position, NO_OFFSET
    for step in range(_STEPS):
        try:
            row = finder.log.header_at(at)
        except CorruptError:
            break
        if step and row[BASE_OFFSET] > max(before, last) and _is_sound(finder, at, row[SIZE]):
            return at
        last = row[LAST_OFFSET]
        at += row[SIZE]
        if at >= finder.log.size:
            break
    index = finder.offset_index
    # By positions alone: in a damaged index the offsets of its entries need not rise with them.
    for number in range(index.entries_before(position + 1), index.entries):
        offset, at = index.entry(number)
        if offset <= before or not finder.log.ends_with(at, offset):
            continue
        row = finder.log.header_at(at)
        if row[BASE_OFFSET] > before and _is_sound(finder, at, row[SIZE]):
            return at
    return None


def _is_sound(finder: Finder, position: int, size: int) -> bool:
    try:
        for _ in finder.log.batches(position, position + size):
            pass
    except CorruptError:
        return False
    return True


def latest_behind(finder: Finder, known: Latest, position: int) -> tuple[Latest, bool]:
    """Return the largest timestamp, and whether all batches behind `position` were looked at. By the time index,
    `known` is the largest up to that position. If not all were looked at, these were: the first MiB, some batches
    that the offset index names, and the last ones."""
    largest = known
    try:
        end = finder.log.size
        limit = min(end, position + _LOOKED_AT)
        largest = finder.log.latest_between(position, limit, largest, partial_ok=True)
        if limit == end:
            return largest, True
        index = finder.offset_index
        first = index.entries_before(limit + 1)
        for number in np.unique(np.linspace(first, index.entries - 1, _SAMPLES, dtype=np.int64)).tolist():
            if 0 <= number < index.entries:
                row = finder.log.header_at(index.entry(number)[1])
                if row[MAX_TIMESTAMP] > largest[0]:
                    largest = row[MAX_TIMESTAMP], row[LAST_OFFSET]
        if index.entries:
            last = max(limit, index.entry(index.entries - 1)[1])
            largest = finder.log.latest_between(last, min(end, last + _LOOKED_AT), largest, partial_ok=True)
    except CorruptError:
        # Nobody can know the time of damaged data. A reader of it gets the error.
        return largest, False
    return largest, False


def remade(finder: Finder) -> tuple[Bytes, Bytes, Latest, Latest | None]:
    """Return new entries of both indexes and the largest timestamp, all from the sound batches, and the result of
    `lost_end`."""
    offsets: list[Bytes] = []
    times: list[Bytes] = []
    position, before, since = 0, NO_OFFSET, 0
    largest: Latest = (NO_TIMESTAMP, finder.log.base_offset)
    last_indexed = NO_TIMESTAMP
    holes: list[tuple[int, int]] = []
    while True:
        try:
            for _, found in finder.log.batches(position, reuse=True):
                table = found[: finder.log.count_of_fitting(found)]
                room = len(table)
                into = (
                    np.empty(room * OFFSET_ENTRY_SIZE, np.uint8),
                    np.empty(room * TIME_ENTRY_SIZE, np.uint8),
                )
                _, total, offset_count, time_count, since, *latest = index_entries(
                    table,
                    finder.log.base_offset,
                    position,
                    finder.interval,
                    since,
                    *largest,
                    last_indexed,
                    *into,
                )
                largest = latest[0], latest[1]
                if time_count:
                    last_indexed = finder.time_index.entry_in(into[1], time_count - 1)[0]
                offsets.append(into[0][: offset_count * OFFSET_ENTRY_SIZE])
                times.append(into[1][: time_count * TIME_ENTRY_SIZE])
                before = int(table[-1, LAST_OFFSET]) if room else before
                position += total
                finder.log.check_fitting(found)
            break
        except CorruptError:
            resumed = resume(finder, position, before)
            if resumed is None:
                holes.append((before, MAX_INT64))
                break
            holes.append((before, finder.log.header_at(resumed)[BASE_OFFSET]))
            position = resumed
            # The next batch gets an entry: nothing else leads over the damage.
            since = finder.interval + 1
    ends_damaged = bool(holes) and holes[-1][1] == MAX_INT64
    lost = None if ends_damaged else lost_end(finder, largest, before)
    if holes:
        times = _borne_out(finder, holes)
        if times:
            largest = max(largest, finder.time_index.entry_in(times[-1], 0))
    elif largest[0] > last_indexed:
        times.append(finder.time_index.entry_of(*largest))
    if lost is not None:
        largest = max(largest, lost)
    return np.concatenate([*offsets, NOTHING]), np.concatenate([*times, NOTHING]), largest, lost


def lost_end(finder: Finder, largest: Latest, last_offset: int) -> Latest | None:
    """Return the latest timestamp and a last offset that the log had before its end was cut off, or None. Both come
    from the indexes as they were found. A damaged entry may give a wrong value for one of its fields, or offsets far
    away."""
    offsets, times = finder.offset_index, finder.time_index
    lost = []
    # Garbage can say anything: an index is believed if its entries are in order and another one of them fits.
    if (
        offsets.entries
        and not offsets.doubt
        and _some_fits(finder, offsets, lambda number: finder.log.ends_with(*offsets.entry(number)[::-1]))
    ):
        offset, position = offsets.entry(offsets.entries - 1)
        if 0 < offset - last_offset <= _AHEAD and position >= finder.log.size:
            lost.append((largest[0], offset))
    if times.entries and not times.doubt and _some_fits(finder, times, finder.time_holds):
        timestamp, offset = times.last_entry
        if 0 < offset - last_offset <= _AHEAD and timestamp > largest[0]:
            lost.append((timestamp, offset))
    return max(lost) if lost else None


def _some_fits(finder: Finder, index: IndexFile, fits: Callable[[int], bool]) -> bool:
    """Return whether an index entry other than the last fits the log. If nothing of the log is left, return True."""
    return finder.log.size == 0 or any(fits(number) for number in range(min(index.entries - 1, _STEPS)))


def _borne_out(finder: Finder, holes: list[tuple[int, int]]) -> list[Bytes]:
    """Return the entries of the present time index that the log does not contradict. New entries would say that no
    record is later than the sound ones, and only the old entries know the damaged ones."""
    kept: list[Bytes] = []
    last = NO_TIMESTAMP, finder.log.base_offset
    for number in range(finder.time_index.entries):
        timestamp, offset = finder.time_index.entry(number)
        if timestamp <= last[0] or offset < last[1]:
            continue
        if not any(first < offset < behind for first, behind in holes):
            try:
                if finder.batch_of_time(timestamp, offset) is None:
                    continue
            except CorruptError:
                continue
        last = timestamp, offset
        kept.append(finder.time_index.entry_of(timestamp, offset))
    return kept


_AHEAD: Final = 1 << 24
"""The most records that the cut off end of a segment may have had."""
