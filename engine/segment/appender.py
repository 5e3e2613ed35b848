"""Appending to a segment: one `.log` and the entries of its indexes."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from typing import Final, Self

from topicfs.engine.batch.table import Bytes, Longs
from topicfs.engine.errors import CorruptSegmentError, RecordBatchTooLargeError, lacks_room
from topicfs.engine.kernels.scan import MAX_TIMESTAMP
from topicfs.engine.record import MAX_INT32, MAX_INT64
from topicfs.engine.segment.allocation import allocate, release_behind
from topicfs.engine.segment.dates import NO_DATES
from topicfs.engine.segment.descriptors import Buffer, cut_file, write_exactly
from topicfs.engine.segment.finder import Finder, mending
from topicfs.engine.segment.indexer import Entries, Indexer

log = logging.getLogger(__name__)

_SMALL_ROOM: Final = 16 * 1024
_LARGE_ROOM: Final = 1024 * 1024
_ROOM_FOR_MORE: Final = 4 * _LARGE_ROOM
"""Blocks are allocated in steps of these sizes: a call for each append would cost more than the append. The last one is
for appends of which not three would fit into the one before: with it a write of 1 MiB takes two thirds of the time."""


class Appender:
    """Appends batches to a log, and entries to its indexes. A segment is active while it has an appender.

    finder      leads to the indexes; it leaves them as they are while there is an appender
    log         the batches; its file is open for writing
    _indexer    makes the entries
    _allocated  the file has blocks up to this position, though it may be shorter; 0 if nothing was allocated
    """

    __slots__ = ("_allocated", "_indexer", "finder", "log")

    def __init__(self, finder: Finder) -> None:
        self.finder = finder
        self.log = finder.log
        self._indexer = Indexer(finder)
        self._allocated = 0
        finder.is_growing = True

    @classmethod
    def begin(cls, finder: Finder) -> Self:
        """Open what an append needs. Only the file's first `size` bytes count."""
        size = finder.log.size
        # Both check the last entries, and rebuild indexes that do not fit: an append relies on them.
        finder.latest()
        finder.search_start(MAX_INT64)
        with mending:
            for index in finder.indexes:
                index.activate()
            opened = finder.log.file.begin_writing()
            found = os.fstat(opened.fd).st_size
            if found < size:
                finder.log.file.end_writing()
                raise CorruptSegmentError(f"{finder.log.path}: expected {size} bytes, found {found}")
            return cls(finder)

    def append(self, data: Buffer | Bytes, table: Longs, promised: bool = False, keep: int = 0) -> None:
        """Append complete batches, with one row of `table` for each. After an error none of them is appended.

        promised  whether the `.log` has room for them: then a lack of room for an index must not refuse them
        keep      bytes behind them that are promised to others, and must have room afterwards as well"""
        view = memoryview(data).cast("B")
        batches, finder, indexer = self.log, self.finder, self._indexer
        size = batches.size
        length = len(view)
        if size + length > MAX_INT32:
            raise RecordBatchTooLargeError(
                f"{batches.path}: expected at most {MAX_INT32 - size} bytes more, found {length}"
            )
        if keep:
            self.make_room(length + keep)
        entries = indexer.entries_for(table, size, length)
        counts = finder.offset_index.entries, finder.time_index.entries
        since = entries.since
        try:
            opened = batches.file.written()
            write_exactly(opened.fd, size, view)
            # Set after the write: a running flush may have cleared it before, without these bytes.
            opened.is_dirty = True
            if not promised:
                indexer.add(entries)
            elif not self._try_to_index(entries, counts):
                since = indexer.since + length
        except OSError:
            self._undo(size, counts)
            raise
        if size == 0 and length:
            batches.first = int(table[0, MAX_TIMESTAMP])
        indexer.since, finder.largest = since, entries.largest
        batches.size = size + length

    def _try_to_index(self, entries: Entries, counts: tuple[int, int]) -> bool:
        """Add entries to the indexes if there is room. Return whether they were added. Entries only say where to
        begin a search: without one, look-ups read more of the log, and the next append adds an entry."""
        try:
            self._indexer.add(entries)
        except OSError as error:
            log.warning(f"{self.log.path}: an index entry has to wait: {error}")
            # Memory must not have entries that the file lacks. Bytes that cannot be cut off are overwritten later.
            for index, count in zip(self.finder.indexes, counts, strict=True):
                with contextlib.suppress(OSError):
                    index.keep(count)
            return False
        return True

    def _undo(self, size: int, counts: tuple[int, int]) -> None:
        """Cut off what a failed append left behind. Bytes that cannot be cut are overwritten by the next append. In
        memory the indexes have no entry for them, whatever is on disk."""
        self._allocated = 0
        cuts: tuple[Callable[[], object], ...] = (
            lambda: cut_file(self.log.file.written().fd, size),
            lambda: self.finder.offset_index.keep(counts[0]),
            lambda: self.finder.time_index.keep(counts[1]),
        )
        for cut in cuts:
            try:
                cut()
            except OSError as error:
                log.warning(
                    f"{self.log.path}: cannot be cut back to {size} bytes after a failed append: {error}"
                )

    # -- room -----------------------------------------------------------------------------------------

    def make_room(self, length: int) -> bool:
        """Allocate blocks for this many bytes behind the end, so that they can be appended even if the disk becomes
        full. Return False if the file system cannot do that. OSError if there is no room."""
        size = self.log.size
        end = size + length
        if end <= self._allocated:
            return True
        opened = self.log.file.written()
        step = _SMALL_ROOM if length <= _SMALL_ROOM else _LARGE_ROOM
        if length > _LARGE_ROOM // 3:
            step = _ROOM_FOR_MORE
        for wanted in (-(-end // step) * step, end):
            try:
                if not allocate(opened.fd, size, wanted - size):
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
        if self._allocated > self.log.size + least:
            release_behind(self.log.file.written().fd, self.log.size)
            self._allocated = 0

    def release_large_room(self) -> None:
        """Free the blocks behind the end, unless they are few. Few blocks are kept for the next appends: to allocate
        and free them costs more than an append."""
        self.release_room(2 * _SMALL_ROOM)

    # -- cutting and sealing --------------------------------------------------------------------------

    def cut(self, position: int, offset: int) -> None:
        """Remove the batches from a position on, and the index entries from `offset` on."""
        size = self.log.size
        self.log.size = position
        self._allocated = 0
        for index in self.finder.indexes:
            index.truncate_to(offset)
        if position < size:
            opened = self.log.file.written()
            os.ftruncate(opened.fd, position)
            opened.is_dirty = True
        self._indexer.since = 0
        self.finder.dates = NO_DATES
        if position == 0:
            self.log.first = None
        known = self.finder.time_index.last_entry
        start = self.finder.search_start(known[1])
        self.finder.largest = self.log.latest_between(start, position, known, partial_ok=False)

    def trim_indexes(self) -> None:
        """Make the index files exist, with the length of their entries. A file without room for it has to wait:
        until it exists, a start recovers the segment."""
        for index in self.finder.indexes:
            try:
                index.trim()
            except OSError as error:
                if not lacks_room(error):
                    raise
                log.warning(f"{index.path} has to wait: {error}")

    def seal(self) -> None:
        """Write the last time entry, cut the files to their content, and close them for writing."""
        finder = self.finder
        if finder.doubted:
            log.warning(f"{self.log.path}: its indexes, which did not fit it, are made anew from it")
            finder.remake()
            finder.doubted = False
        finder.time_index.maybe_append(*finder.latest(), skip_full=True)
        for index in finder.indexes:
            index.seal()
        cut_file(self.log.file.written().fd, self.log.size)
        self.release_room()
        self.end()

    def end(self) -> None:
        """Leave the log and the indexes to readers. No file is changed."""
        self.log.file.end_writing()
        self.finder.is_growing = False
