"""Finding offsets and times in a segment, by indexes that are compared with the log whenever they are used."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

import numpy as np

from topicfs.engine.batch import first_record_at_or_after
from topicfs.engine.batch.table import Bytes, Longs
from topicfs.engine.errors import CorruptError, CorruptSegmentError, OldFormatError
from topicfs.engine.format.batch_header import HEADER_SIZE
from topicfs.engine.kernels.scan import BASE_OFFSET, LAST_OFFSET, LEADER_EPOCH, MAX_TIMESTAMP, POSITION, SIZE
from topicfs.engine.record import MAX_INT64, NO_OFFSET, NO_TIMESTAMP
from topicfs.engine.segment.batch_file import CHUNK, BatchFile, Found, Latest
from topicfs.engine.segment.dates import NO_DATES
from topicfs.engine.segment.index_repair import latest_behind, remade, resume
from topicfs.engine.segment.offset_index import OffsetIndex
from topicfs.engine.segment.time_index import TimeIndex

log = logging.getLogger(__name__)

_LONGEST_STEP: Final = 65536
"""The most bytes that a search for a header reads at once, whatever the index interval is."""

_CHECKED_CHUNK: Final = 64 * 1024
"""Bytes that are read at once by a search for a few batches."""

_STEPS_BACK: Final = 64
"""Earlier index entries that a look-up tries if one does not fit the log, before it begins at the file's start."""

_MOST_DATED: Final = 64
"""The most entries of a time index that are remembered as checked against the log."""

mending = threading.RLock()


class Finder:
    """Finds offsets and times in a log by its two indexes, and rebuilds indexes that do not fit the log.

    log           the batches
    offset_index  leads from an offset to a position
    time_index    leads from a time to an offset
    interval      bytes between index entries
    largest       (largest timestamp, last offset of the batch that holds it), None until needed
    dates         what is known of the times of records alone
    is_growing    whether an appender uses the indexes
    mended        whether the indexes were rebuilt from the log, because they did not fit it
    doubted       whether they must be rebuilt when the segment is sealed: until then an appender uses them
    _dated        numbers of the time index entries that were found to fit the log
    _lost         last offset that the log is known to have had, if its end was cut off; else -1
    _step         bytes that a search for a header reads at once
    """

    __slots__ = (
        "_dated",
        "_lost",
        "_step",
        "dates",
        "doubted",
        "interval",
        "is_growing",
        "largest",
        "log",
        "mended",
        "offset_index",
        "time_index",
    )

    def __init__(
        self, log: BatchFile, offset_index: OffsetIndex, time_index: TimeIndex, interval: int
    ) -> None:
        self.log = log
        self.offset_index = offset_index
        self.time_index = time_index
        self.interval = interval
        self.largest: Latest | None = None
        self.dates = NO_DATES
        self.is_growing = self.mended = self.doubted = False
        self._dated: frozenset[int] = frozenset()
        self._lost = NO_OFFSET
        self._step = min(max(interval, HEADER_SIZE), _LONGEST_STEP) + HEADER_SIZE

    @property
    def indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Return both indexes."""
        return self.offset_index, self.time_index

    # -- offsets --------------------------------------------------------------------------------------

    def position_of(self, offset: int, start_position: int | None = None) -> Found | None:
        """Return the first batch whose last offset is `offset` or above. The search begins at `start_position`.

        It reads headers, which a checksum covers only in their last part. So a batch is trusted to hold the offset
        only if its neighbours lie below and above it. That no batch holds it is believed only if every batch on the
        way is sound. CorruptError if there is doubt."""
        found = self.locate(offset, start_position)
        if found is None:
            self._check_not_cut()
        return found

    def locate(self, offset: int, start_position: int | None = None) -> Found | None:
        """Return the same as `position_of`, but None if the file's end was cut off."""
        position = self.search_start(offset)
        if start_position is not None:
            position = max(position, start_position)
        try:
            found, _ = self.log.search(position, offset, self._step)
        except CorruptError:
            return self._checked_position_of(offset, position, None)
        if found is None or found[2] > offset:
            return self._checked_position_of(offset, position, found)
        return found

    def _checked_position_of(self, offset: int, position: int, expected: Found | None) -> Found | None:
        """Return the same as `locate`, but read and check complete batches. Damage is passed over if the offset lies
        behind it."""
        end = self.log.size if expected is None else expected[0] + expected[1]
        before = NO_OFFSET
        problem: CorruptError | None = None
        while position < end:
            try:
                for _, table in self.log.batches(position, end, chunk=_CHECKED_CHUNK, reuse=True):
                    row = int(np.searchsorted(table[:, LAST_OFFSET], offset))
                    if row < len(table):
                        found = table[row].tolist()
                        if problem is not None and row == 0 and found[BASE_OFFSET] > offset:
                            break  # the offset lies in the damaged part
                        return found[POSITION], found[SIZE], found[BASE_OFFSET], found[LAST_OFFSET]
                    before = int(table[-1, LAST_OFFSET])
                    position = int(table[-1, POSITION] + table[-1, SIZE])
                    problem = None
                break
            except CorruptError as error:
                problem = error
                resumed = resume(self, position, before)
                if resumed is None:
                    break
                position = resumed
                end = self.log.size
        if problem is not None:
            raise problem
        return expected

    def search_start(self, offset: int) -> int:
        """Return the position where a search for an offset begins. It is never behind the offset's batch. An index
        entry is used only if a batch ends with its offset at its position. If none does, the index is rebuilt."""
        index = self.offset_index
        number, last, position = index.floor(offset)
        if index.doubt and self.mend(index.path, index.doubt):
            number, last, position = index.floor(offset)
        if number < 0 or self.log.ends_with(position, last):
            return position
        # A running append publishes its index entries before its size, and a truncation its size before its entries.
        if (position < self.log.size or not self.is_growing) and self.mend(
            index.path, f"entry {number}: offset {last} is not at {position}"
        ):
            number, last, position = index.floor(offset)
            if number < 0 or self.log.ends_with(position, last):
                return position
        for each in range(number - 1, max(-1, number - _STEPS_BACK), -1):
            found = index.entry_or_none(each)
            if found is not None and self.log.ends_with(found[1], found[0]):
                return found[1]
        return 0

    def damage_at(self, offset: int) -> tuple[int, int | None]:
        """Describe the damage around a batch that cannot be read: the position where it begins, and the base offset
        of the first readable batch behind it (None: there is none)."""
        position, before = self.search_start(offset), NO_OFFSET
        while True:
            try:
                for _, table in self.log.batches(position, chunk=_CHECKED_CHUNK, reuse=True):
                    before = int(table[-1, LAST_OFFSET])
                    position = int(table[-1, POSITION] + table[-1, SIZE])
            except CorruptError:
                resumed = resume(self, position, before)
                if resumed is None:
                    return position, None
                base_offset = self.log.header_at(resumed)[BASE_OFFSET]
                if base_offset > offset:
                    return position, base_offset
                position = resumed
            else:
                return position, None

    def sound_batches(self, offset: int) -> Iterator[tuple[Bytes, Longs]]:
        """Yield the batches from the one that holds an offset on, with their tables. What is damaged is passed over,
        and the log says so: who builds a state of what there is would have none at all without that."""
        behind: int | None = offset
        while behind is not None:
            offset, behind = behind, None
            try:
                found = self.position_of(offset)
                for buffer, table in () if found is None else self.log.batches(found[0]):
                    yield buffer, table
                    offset = int(table[-1, LAST_OFFSET]) + 1
            except OldFormatError:
                raise
            except CorruptError as error:
                _, behind = self.damage_at(offset)
                log.error(
                    f"{self.log.path}: offsets {offset} to {'its end' if behind is None else behind - 1} are passed "
                    f"over: {error}"
                )

    def next_offset(self) -> int:
        """Return the offset behind the last batch, or the base offset without a batch."""
        _, last_offset = self.log.search(self.search_start(MAX_INT64), MAX_INT64, self._step)
        return last_offset + 1 if last_offset >= 0 else self.log.base_offset

    # -- times, by the time index ----------------------------------------------------------------------

    def offset_by_timestamp(
        self, timestamp: int, start_offset: int, among: Callable[[Longs], Longs] | None = None
    ) -> tuple[int, int, int] | None:
        """Return the first record that is neither earlier than `timestamp` nor below `start_offset`: its timestamp,
        its offset, and its batch's leader epoch. `among` leaves out markers, and other batches that do not count."""
        found = self.position_of(max(self._timed(timestamp), start_offset))
        if found is None:
            return None
        for buffer, table in self._reaching(timestamp, found[0], among is not None):
            origin = int(table[0, POSITION])
            rows = table[table[:, MAX_TIMESTAMP] >= timestamp]
            for row in rows if among is None else among(rows):
                self.log.check_fitting(row.reshape(1, -1))
                record = first_record_at_or_after(buffer, row, timestamp, start_offset, origin)
                if record is not None:
                    return *record, int(row[LEADER_EPOCH])
        self._check_not_cut()
        return None

    def _reaching(
        self, timestamp: int, position: int, without_markers: bool
    ) -> Iterator[tuple[Bytes, Longs]]:
        """Yield batches from a position on. `without_markers` only the first chunk of those in which all records are
        earlier is among them: it holds the record, unless a marker has led there."""
        if without_markers:
            for buffer, table in self.log.batches(position, chunk=_CHECKED_CHUNK):
                yield buffer, table
                position = int(table[-1, POSITION] + table[-1, SIZE])
                break
            # Over damage nothing is left out: whoever comes to it below gets the error.
            with suppress(CorruptError):
                self.dates = dates = self.dates.extended(self.log)
                position = max(position, dates.position_at(timestamp))
        yield from self.log.batches(position, chunk=_CHECKED_CHUNK)

    def _timed(self, timestamp: int) -> int:
        """Return an offset up to which every record is earlier, by entries of the time index that fit the log."""
        index = self.time_index
        number, at, offset = index.floor(timestamp - 1)
        if index.doubt and self.mend(index.path, index.doubt):
            number, at, offset = index.floor(timestamp - 1)
        if number < 0 or self.time_holds(number):
            return offset
        if self.mend(index.path, f"entry {number}: {at} is not the latest time up to offset {offset}"):
            number, at, offset = index.floor(timestamp - 1)
        found = index.entry_or_none(self._last_time_that_holds(number))
        return self.log.base_offset if found is None else found[1]

    def _last_time_that_holds(self, number: int) -> int:
        """Return the last entry up to a number that fits the log, or -1 if none is found within a few steps."""
        steps = range(number, max(-1, number - _STEPS_BACK), -1)
        return next((each for each in steps if self.time_holds(each)), -1)

    def time_holds(self, number: int) -> bool:
        """Return whether an entry of the time index fits the log: a batch with its offset has its timestamp, and no
        batch from the entry before on is later. Of a long stretch without an entry only the first part is checked."""
        if number in self._dated:
            return True
        found, previous = self.time_index.entry_or_none(number), self.time_index.entry_or_none(number - 1)
        if found is None:
            return False
        timestamp, offset = found
        before = self.log.base_offset if previous is None else previous[1]
        if timestamp < 0 or offset < before:
            return False
        try:
            batch = self.batch_of_time(timestamp, offset)
            start = self.locate(before)
            if batch is None or start is None or start[0] > batch[0]:
                return False
            end = min(batch[0], start[0] + CHUNK)
            tables = self.log.batches(start[0], end, check=False, partial_ok=True, reuse=True)
            if not all(table[:, MAX_TIMESTAMP].max() <= timestamp for _, table in tables):
                return False
        except CorruptError:
            # Damaged data contradicts nothing. A reader of it gets the error.
            return True
        if not self.is_growing:
            if len(self._dated) >= _MOST_DATED:
                self._dated = frozenset()
            self._dated |= {number}
        return True

    def batch_of_time(self, timestamp: int, offset: int) -> Found | None:
        """Return the batch that holds an offset, if its largest timestamp is `timestamp`."""
        found = self.locate(offset)
        if found is None or found[2] > offset or self.log.header_at(found[0])[MAX_TIMESTAMP] != timestamp:
            return None
        return found

    def latest(self) -> Latest:
        """Return the largest timestamp of the batches, or -1 if there is none, and the last offset of the first batch
        that has it, or the base offset."""
        known = self.largest
        if known is None:
            known = self._find_largest()
            self.largest = known
        return known

    def _find_largest(self) -> Latest:
        """Return the largest timestamp, and the last offset of the batch that has it. The time index may end before
        that batch: a broker adds the last entry when it seals or closes a segment, and an index that was cut off
        looks the same."""
        index = self.time_index
        known = claimed = index.last_entry
        position = 0
        try:
            found = self.batch_of_time(*known) if known[0] >= 0 and not index.doubt else None
        except CorruptError:
            # The log is damaged at that offset: nothing shows that the index is wrong.
            return known
        if found is not None:
            position = found[0] + found[1]
        elif known[0] >= 0 or index.doubt:
            reason = index.doubt or f"{known[0]} is not the time of offset {known[1]}"
            # The look at the log may have had both indexes made anew already: what was read of them before is no more.
            if (self.mend(index.path, reason) or self.mended) and self.largest is not None:
                return self.largest
            known = NO_TIMESTAMP, self.log.base_offset
        if position == self.log.size:
            return known
        largest, is_all = latest_behind(self, known, position)
        if largest != known and not is_all:
            self.mend(index.path, f"its last time is {known[0]}, a batch behind it has {largest[0]}")
            claimed = max(claimed, index.last_entry)
        # A time that is too late costs a useless search. One that is too early would hide records.
        return max(largest, claimed)

    # -- mending --------------------------------------------------------------------------------------

    def mend(self, path: str, reason: str) -> bool:
        """Rebuild both indexes from the batches. Return False if that was done before, or has to wait until the
        segment is sealed because an appender uses them."""
        with mending:
            if self.is_growing:
                self.doubted = True
                return False
            if self.mended:
                return False
            log.warning(f"{path}: does not fit its log, both indexes are made anew from it: {reason}")
            self.mended = True
            self.remake()
            return True

    def remake(self) -> None:
        """Rebuild both indexes from the batches, also those that an appender uses: the caller is that appender."""
        offsets, times, largest, lost = remade(self)
        self.offset_index.replace(offsets)
        self.time_index.replace(times)
        self._dated = frozenset()
        self.largest = largest
        if lost is not None:
            self._lost = lost[1]
            log.error(
                f"{self.log.path}: was cut off at {self.log.size} bytes, it had records up to offset {lost[1]}"
            )

    def _check_not_cut(self) -> None:
        """Raise CorruptSegmentError if the file's end was cut off: a search that came to the end cannot know what
        was behind it."""
        if not self.is_growing:
            self.search_start(MAX_INT64)
            self.latest()
            if self._lost != NO_OFFSET:
                raise CorruptSegmentError(
                    f"{self.log.path}: expected records up to offset {self._lost}, found {self.log.size} bytes without"
                )
