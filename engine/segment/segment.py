"""A segment that grows: appends, rolling, truncation and recovery of one `.log` and its indexes."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from topicfs.engine.batch.table import Bytes, Longs
from topicfs.engine.errors import (
    ClosedError,
    CorruptSegmentError,
    InvalidOffsetError,
    OffsetOverflowError,
    ReadOnlyError,
    RecordBatchTooLargeError,
    lacks_room,
)
from topicfs.engine.format.index import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE
from topicfs.engine.format.paths import INDEX_SUFFIX, TIME_INDEX_SUFFIX
from topicfs.engine.kernels.scan import (
    BASE_OFFSET,
    FULL,
    LAST_OFFSET,
    MAX_TIMESTAMP,
    PROBLEMS,
    SIZE,
)
from topicfs.engine.kernels.search import index_entries, rising_rows
from topicfs.engine.record import MAX_INT32, MAX_INT64, NO_TIMESTAMP, Clock
from topicfs.engine.segment.allocation import allocate, is_allocated_behind, release_behind
from topicfs.engine.segment.descriptors import (
    Descriptors,
    PinnedFile,
    cut_file,
    write_exactly,
)
from topicfs.engine.segment.offset_index import OffsetIndex
from topicfs.engine.segment.stored import SegmentSettings, StoredSegment, mending
from topicfs.engine.segment.time_index import TimeIndex
from topicfs.engine.segment.walk import NOTHING, walk

log = logging.getLogger(__name__)

RECOVERY_CHUNK: Final = 4 * 1024 * 1024

_SMALL_ROOM: Final = 16 * 1024
_LARGE_ROOM: Final = 1024 * 1024
"""Blocks are allocated in steps of these sizes: a call for each append would cost more than the append."""


@dataclass(frozen=True, slots=True)
class _Entries:
    """The entries that an append adds to the indexes.

    offsets, times  entries as they are stored
    since, largest  `_since` and `_largest` of the segment after the append
    """

    offsets: memoryview
    times: memoryview
    since: int
    largest: tuple[int, int]


class Segment(StoredSegment):
    """One `.log` file with its indexes. It has one appender at a time and any number of readers. See StoredSegment."""

    __slots__ = ()

    @classmethod
    def create(
        cls,
        directory: Path,
        base_offset: int,
        settings: SegmentSettings,
        clock: Clock,
        descriptors: Descriptors,
        suffix: str = "",
    ) -> Segment:
        """Return a new, empty, active segment. FileExistsError if its `.log` exists."""
        segment = cls(directory, base_offset, settings, clock, descriptors, suffix)
        opened = segment.log.begin_writing(create=True)
        segment.is_active = True
        if settings.preallocate:
            os.ftruncate(opened.fd, settings.segment_bytes)
        segment._size = 0
        segment._largest = (NO_TIMESTAMP, base_offset)
        most = settings.max_index_bytes
        segment._offset_index = OffsetIndex.create(
            segment._name(INDEX_SUFFIX), base_offset, most, descriptors=descriptors
        )
        segment._time_index = TimeIndex.create(
            segment._name(TIME_INDEX_SUFFIX), base_offset, most, descriptors=descriptors
        )
        return segment

    @classmethod
    def empty(
        cls,
        directory: Path,
        base_offset: int,
        settings: SegmentSettings,
        clock: Clock,
        descriptors: Descriptors,
    ) -> Segment:
        """Return an empty segment without files. A read-only partition shows it instead of creating one."""
        segment = cls(directory, base_offset, settings, clock, descriptors, "")
        segment.log = PinnedFile.anonymous(descriptors)
        segment._size = 0
        segment._largest = (NO_TIMESTAMP, base_offset)
        segment.offset_index.begin_in_memory()
        segment.time_index.begin_in_memory()
        return segment

    # -- appending ----------------------------------------------------------------------------------

    def _activate(self) -> None:
        """Open what an append needs. Only the file's first `size` bytes count."""
        if self.is_active:
            return
        if self.settings.read_only:
            raise ReadOnlyError(f"{self.log.path}: opened read-only")
        if self.log.gone:
            raise ClosedError(f"{self.log.path} was deleted or closed")
        size = self.size
        # Both check the last entries, and rebuild indexes that do not fit: an append relies on them.
        self._largest_known()
        self._indexed(MAX_INT64)
        with mending:
            self.offset_index.activate()
            self.time_index.activate()
            opened = self.log.begin_writing()
            found = os.fstat(opened.fd).st_size
            if found < size:
                self.log.end_writing()
                raise CorruptSegmentError(f"{self.log.path}: expected {size} bytes, found {found}")
            self.is_active = True
        self._since = 0

    def append(
        self,
        data: bytes | bytearray | memoryview | Bytes,
        table: Longs,
        promised: bool = False,
        keep: int = 0,
    ) -> None:
        """Append complete batches, with one row of `table` for each. After an error none of them is appended.

        promised  whether the `.log` has room for them: then a lack of room for an index must not refuse them
        keep      bytes behind them that are promised to others, and must have room afterwards as well"""
        self._activate()
        view = memoryview(data).cast("B")
        size = self.size
        length = len(view)
        if size + length > MAX_INT32:
            raise RecordBatchTooLargeError(
                f"{self.log.path}: expected at most {MAX_INT32 - size} bytes more, found {length}"
            )
        if keep:
            self.make_room(length + keep)
        entries = self._entries_for(table, size, length)
        counts = self.offset_index.entries, self.time_index.entries
        since = entries.since
        try:
            opened = self.log.written()
            write_exactly(opened.fd, size, view)
            # Set after the write: a running flush may have cleared it before, without these bytes.
            opened.is_dirty = True
            if not promised:
                self._index(entries)
            elif not self._try_to_index(entries, *counts):
                since = self._since + length
        except OSError:
            self._undo(size, *counts)
            raise
        if size == 0 and length:
            self._first = int(table[0, MAX_TIMESTAMP])
            self.filled_ms = self._clock()
        self._since, self._largest = since, entries.largest
        self._size = size + length

    def make_room(self, length: int) -> bool:
        """Allocate blocks for this many bytes behind the end, so that they can be appended even if the disk becomes
        full. Return False if the file system cannot do that. OSError if there is no room."""
        self._activate()
        end = self.size + length
        if end <= self._allocated:
            return True
        opened = self.log.written()
        step = _SMALL_ROOM if length <= _SMALL_ROOM else _LARGE_ROOM
        for wanted in (-(-end // step) * step, end):
            try:
                if not allocate(opened.fd, self.size, wanted - self.size):
                    return False
            except OSError:
                # If there is no room for a full step, there may still be enough for the bytes that are needed.
                if wanted == end:
                    raise
            else:
                self._allocated = wanted
                break
        return True

    def release_room(self, least: int = 0) -> None:
        """Free the blocks behind the end, if they are more than `least` bytes."""
        if self._allocated > self.size + least and self.is_active:
            opened = self.log.written()
            release_behind(opened.fd, self.size)
            self._allocated = 0

    def release_large_room(self) -> None:
        """Free the blocks behind the end, unless they are few. Few blocks are kept for the next appends: to allocate
        and free them costs more than an append."""
        self.release_room(2 * _SMALL_ROOM)

    def _entries_for(self, table: Longs, position: int, length: int) -> _Entries:
        """Return the index entries for batches that begin at `position`. Nothing is changed."""
        offsets = times = NOTHING
        last_indexed = NO_TIMESTAMP
        if self._since + length > self.settings.index_interval_bytes:
            offsets = np.empty(min(len(table), self.offset_index.room) * OFFSET_ENTRY_SIZE, np.uint8)
            times = np.empty(min(len(table), self.time_index.room) * TIME_ENTRY_SIZE, np.uint8)
            last_indexed = self.time_index.last_entry[0]
        bad, total, offset_count, time_count, since, largest, largest_at = index_entries(
            table,
            self.base_offset,
            position,
            self.settings.index_interval_bytes,
            self._since,
            *self._largest_known(),
            last_indexed,
            offsets,
            times,
        )
        if bad >= 0:
            raise OffsetOverflowError(
                f"{self.log.path}: expected last offsets from {self.base_offset} to "
                f"{self.base_offset + MAX_INT32}, found {table[bad, LAST_OFFSET]}"
            )
        if total != length:
            raise ValueError(f"{self.log.path}: {length} bytes to append, but a batch table for {total}")
        if offset_count and self.offset_index.entries:
            first = self.base_offset + int.from_bytes(offsets[:4].tobytes(), "big")
            last = self.offset_index.last_offset
            if first <= last:
                raise InvalidOffsetError(f"{self.log.path}: expected an offset above {last}, found {first}")
        return _Entries(
            memoryview(offsets)[: offset_count * OFFSET_ENTRY_SIZE],
            memoryview(times)[: time_count * TIME_ENTRY_SIZE],
            since,
            (largest, largest_at),
        )

    def _index(self, entries: _Entries) -> None:
        if entries.offsets:
            self.offset_index.append_bytes(entries.offsets)
        if entries.times:
            self.time_index.append_bytes(entries.times)

    def _try_to_index(self, entries: _Entries, offset_entries: int, time_entries: int) -> bool:
        """Add entries to the indexes if there is room. Return whether they were added. Entries only say where to
        begin a search: without one, look-ups read more of the log, and the next append adds an entry."""
        try:
            self._index(entries)
        except OSError as error:
            log.warning(f"{self.log.path}: an index entry has to wait: {error}")
            # Memory must not have entries that the file lacks. Bytes that cannot be cut off are overwritten later.
            with contextlib.suppress(OSError):
                self.offset_index.keep(offset_entries)
            with contextlib.suppress(OSError):
                self.time_index.keep(time_entries)
            return False
        return True

    def trim_indexes(self) -> None:
        """Make the index files exist, with the length of their entries. A file without room for it has to wait:
        until it exists, a start recovers the segment."""
        for index in (self.offset_index, self.time_index):
            try:
                index.trim()
            except OSError as error:
                if not lacks_room(error):
                    raise
                log.warning(f"{index.path} has to wait: {error}")

    def _undo(self, size: int, offset_entries: int, time_entries: int) -> None:
        """Cut off what a failed append left behind. Bytes that cannot be cut are overwritten by the next append. In
        memory the indexes have no entry for them, whatever is on disk."""
        self._allocated = 0
        cuts: tuple[Callable[[], None], ...] = (
            lambda: cut_file(self.log.written().fd, size),
            lambda: self.offset_index.keep(offset_entries),
            lambda: self.time_index.keep(time_entries),
        )
        for cut in cuts:
            try:
                cut()
            except OSError as error:
                log.warning(
                    f"{self.log.path}: cannot be cut back to {size} bytes after a failed append: {error}"
                )

    # -- recovery and truncation --------------------------------------------------------------------

    def recover(
        self, visit: Callable[[Bytes, Longs], None], before_cut: Callable[[int], None] | None = None
    ) -> int:
        """Keep the good batches and rebuild the indexes. Return how many bytes were cut off. `before_cut` is called
        with their number while they still exist, to remove what must not outlive them.

        `visit` gets every chunk of good batches, valid during the call only. Its errors are passed on. So is
        OffsetOverflowError for a good batch too far above the base: the segment can then be truncated, or read and
        split. Nothing else may read it during the recovery."""
        found = os.stat(self.log.path).st_size
        self._check_size(found)
        if not self.is_active:
            self.log.begin_writing()
            self.is_active = True
        self._size = found
        opened = self.log.written()
        if is_allocated_behind(opened.fd, found):
            # They were reserved for lines that a crash lost.
            release_behind(opened.fd, found)
        self.offset_index.truncate()
        self.time_index.truncate()
        self._largest = (NO_TIMESTAMP, self.base_offset)
        self._first = None
        self._since = 0
        valid, problem = self._rebuild(found, visit)
        if valid < found:
            if before_cut is not None:
                before_cut(found - valid)
            log.warning(
                f"{self.log.path}: {found - valid} of {found} bytes cut off at position {valid}: {problem}"
            )
        self._size = valid
        self._seal_recovered()
        return found - valid

    def recover_in_memory(self, visit: Callable[[Bytes, Longs], None]) -> int:
        """Recover as `recover` does, but change no file: rebuild the indexes in memory, and hide everything behind
        the last good batch. Return how many bytes are hidden."""
        found = self.size
        self.offset_index.begin_in_memory()
        self.time_index.begin_in_memory()
        self._largest = (NO_TIMESTAMP, self.base_offset)
        self._first = None
        self._since = 0
        valid, problem = self._rebuild(found, visit)
        if valid < found:
            log.warning(
                f"{self.log.path}: {found - valid} of {found} bytes are hidden, from position {valid} on: {problem}"
            )
        self._size = valid
        self.time_index.maybe_append(*self._largest_known(), skip_full=True)
        return found - valid

    def hide(self) -> None:
        """Hide all of its batches. No file is changed."""
        self.offset_index.begin_in_memory()
        self.time_index.begin_in_memory()
        self._largest = (NO_TIMESTAMP, self.base_offset)
        self._first = None
        self._size = 0

    def _index_where_there_is_room(self, entries: _Entries) -> None:
        """Add entries to the indexes that are being rebuilt. If there is no room, the indexes are made in memory at
        the end."""
        if not self.doubted:
            try:
                self._index(entries)
            except OSError as error:
                if not lacks_room(error):
                    raise
                self.doubted = True

    def _seal_recovered(self) -> None:
        """Seal the segment. If there is no room for its indexes, they stay in memory: a full disk hides no record."""
        try:
            self.seal()
        except OSError as error:
            if not lacks_room(error):
                raise
            log.warning(f"{self.log.path}: no room for its indexes, they are in memory: {error}")
            cut_file(self.log.written().fd, self.size)
            self._stop_writing()
            self.offset_index.abandon()
            self.time_index.abandon()
            self.doubted = False
            self.mended = True
            self._remake_indexes()

    def _rebuild(self, end: int, visit: Callable[[Bytes, Longs], None]) -> tuple[int, str]:
        valid = 0
        before = self.base_offset - 1
        for buffer, table, status in walk(self._fill, 0, end, True, RECOVERY_CHUNK, reuse=True):
            if status != FULL:
                return valid, PROBLEMS.get(status, "")
            good = rising_rows(table, self.base_offset, before)
            if good:
                size = int(table[:good, SIZE].sum())
                visit(buffer[:size], table[:good])
                entries = self._entries_for(table[:good], valid, size)
                self._index_where_there_is_room(entries)
                self._since, self._largest = entries.since, entries.largest
                valid += size
                before = int(table[good - 1, LAST_OFFSET])
            if good < len(table) and table[good, BASE_OFFSET] > before:
                raise OffsetOverflowError(
                    f"{self.log.path}: expected offsets up to {self.base_offset + MAX_INT32}, found "
                    f"{table[good, LAST_OFFSET]}"
                )
            if good < len(table):
                return valid, (f"expected an offset above {before}, found {table[good, BASE_OFFSET]}")
        return valid, ""

    def truncate_to(self, offset: int) -> int:
        """Remove the batches that reach `offset`, and make the segment active. Return how many bytes were removed."""
        found = None if offset <= self.base_offset else self.position_of(offset)
        size = self.size
        cut = 0 if offset <= self.base_offset else size if found is None else found[0]
        self._activate()
        self._size = cut
        self._allocated = 0
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        if cut < size:
            opened = self.log.written()
            os.ftruncate(opened.fd, cut)
            opened.is_dirty = True
        self._since = 0
        if cut == 0:
            self.created_ms = self._clock()
            self._first = None
        self._largest = self._largest_from_index_and_rest()
        return size - cut

    def _largest_from_index_and_rest(self) -> tuple[int, int]:
        largest, offset = self.time_index.last_entry
        for _, table in self.batches(self._indexed(offset), check=False):
            row = int(table[:, MAX_TIMESTAMP].argmax())
            if table[row, MAX_TIMESTAMP] > largest:
                largest, offset = int(table[row, MAX_TIMESTAMP]), int(table[row, LAST_OFFSET])
        return largest, offset

    # -- rolling ------------------------------------------------------------------------------------

    def time_waited(self, now: int, incoming_timestamp: int) -> int:
        """Return the milliseconds between the first batch and an incoming one, or by the clock if there are no
        timestamps."""
        first = self.first_batch_timestamp()
        return now - self.created_ms if first is None or first < 0 else incoming_timestamp - first

    def should_roll(
        self,
        incoming_size: int,
        incoming_max_timestamp: int,
        incoming_last_offset: int,
        now: int,
        segment_bytes: int,
        segment_ms: int,
    ) -> bool:
        """Return whether an append has to go into a new segment."""
        if self.size > segment_bytes - incoming_size:
            return True
        if not 0 <= incoming_last_offset - self.base_offset <= MAX_INT32:
            return True
        if self.offset_index.is_full or self.time_index.is_full:
            return True
        if self.size == 0:
            return False
        return self.time_waited(now, incoming_max_timestamp) > self._patience(segment_ms)

    def has_waited(self, now: int, segment_ms: int) -> bool:
        """Return whether its first batch is so old that the segment must be sealed even without a new append."""
        return self.size > 0 and now - self.filled_ms > self._patience(segment_ms)

    def _patience(self, segment_ms: int) -> int:
        most = min(self.settings.jitter_ms, segment_ms)
        return segment_ms - (self._jitter % most if most > 0 else 0)

    def seal(self) -> None:
        """End an active segment: write the last time entry, cut the files to their content, and close them for
        writing."""
        if not self.is_active:
            return
        if self.doubted:
            log.warning(f"{self.log.path}: its indexes, which did not fit it, are made anew from it")
            self._remake_indexes()
            self.doubted = False
        self.time_index.maybe_append(*self._largest_known(), skip_full=True)
        self.offset_index.seal()
        self.time_index.seal()
        opened = self.log.written()
        cut_file(opened.fd, self.size)
        self.release_room()
        self._stop_writing()

    def date_behind(self, before: StoredSegment) -> None:
        """Make the `.log` at least a millisecond younger than the one before. A reader that takes segments in the
        order of their times, as Spark's file streams do, then reads them in the order of their offsets."""
        earlier = os.stat(before.log.path).st_mtime_ns // 1_000_000
        mine = os.stat(self.log.path)
        if mine.st_mtime_ns // 1_000_000 <= earlier:
            os.utime(self.log.path, ns=(mine.st_atime_ns, (earlier + 1) * 1_000_000))

    def close(self) -> None:
        """Seal it if it is active, and close everything. Reads raise ClosedError from here on."""
        self.seal()
        self.log.close()
        self._abandon_indexes()
