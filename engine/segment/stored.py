"""A segment: one `.log` file of batches, and the indexes that say where to search in it.

    <base offset, 20 digits>.log        batches, one behind the other; offsets rise, gaps are allowed
    <base offset, 20 digits>.index      engine.segment.offset_index
    <base offset, 20 digits>.timeindex  engine.segment.time_index
    <base offset, 20 digits>.txnindex   engine.segment.transaction_index, which the partition fills

A suffix behind the complete name shows the state of the files: `.cleaned`, `.swap`, `.deleted`.

Readers take no lock. Everything before `size` is in the file: `size` is published last by an append and
first by a truncation.

This module has the methods of every segment. `topicfs.engine.segment.segment` adds those of a growing one.
"""

from __future__ import annotations

import logging
import os
import random
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np

from topicfs.engine.batch import first_record_at_or_after
from topicfs.engine.batch.table import Bytes, Longs
from topicfs.engine.errors import (
    CorruptBatchError,
    CorruptError,
    CorruptSegmentError,
    OffsetOutOfRangeError,
)
from topicfs.engine.format.batch_header import HEADER_SIZE, SIZE_OVERHEAD, BatchHeader
from topicfs.engine.format.paths import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    file_of,
)
from topicfs.engine.format.transaction_index import AbortedTransaction
from topicfs.engine.kernels.scan import (
    BAD_OFFSETS,
    BASE_OFFSET,
    COLUMNS,
    DONE,
    LAST_OFFSET,
    LEADER_EPOCH,
    MAX_TIMESTAMP,
    PARTIAL,
    POSITION,
    PROBLEMS,
    SIZE,
    scan,
)
from topicfs.engine.kernels.search import (
    BY_OFFSET,
    FOUND,
    find_batch,
)
from topicfs.engine.record import MAX_INT32, MAX_INT64, NO_OFFSET, NO_TIMESTAMP, Clock
from topicfs.engine.segment.descriptors import (
    Descriptors,
    PinnedFile,
    read_exactly,
    read_exactly_into,
)
from topicfs.engine.segment.offset_index import OffsetIndex
from topicfs.engine.segment.time_index import TimeIndex
from topicfs.engine.segment.transaction_index import TransactionIndex
from topicfs.engine.segment.trust import latest_behind, remade, resume
from topicfs.engine.segment.walk import NOTHING, walk

log = logging.getLogger(__name__)

Found = tuple[int, int, int, int]
"""A batch: position, size, base offset, last offset."""


CHUNK: Final = 1024 * 1024
_LONGEST_STEP: Final = 65536
"""The most bytes that a search for a header reads at once, whatever the index interval is."""

_CHECKED_CHUNK: Final = 64 * 1024
"""Bytes that are read at once by a search for a few batches."""

_STEPS_BACK: Final = 64
"""Earlier index entries that a look-up tries if one does not fit the log, before it begins at the file's start."""

_MOST_DATED: Final = 64
"""The most entries of a time index that are remembered as checked against the log."""

_building = threading.Lock()
mending = threading.RLock()


@dataclass(frozen=True, slots=True)
class SegmentSettings:
    """The part of a topic's settings that a segment needs.

    index_interval_bytes  bytes between index entries
    max_index_bytes       size at which an index is full
    segment_bytes         length that a preallocated `.log` gets
    preallocate           whether a new `.log` gets that length at once
    jitter_ms             a segment is rolled at most this much before its time
    read_only             whether its files must not be changed, or opened for writing
    """

    index_interval_bytes: int = 4096
    max_index_bytes: int = 10 * 1024 * 1024
    segment_bytes: int = 1024 * 1024 * 1024
    preallocate: bool = False
    jitter_ms: int = 0
    read_only: bool = False


class StoredSegment:
    """One `.log` file with its indexes, for any number of readers.

    directory, base_offset, suffix  make up the files' names
    settings     the settings of the segment
    created_ms   time when it was created, reopened or emptied: without timestamps its age counts from here
    filled_ms    time when its first batch was appended, or it was reopened: without appends its age counts from here
    size         published bytes of the `.log`; read from the file system when first needed
    log          the `.log`, for readers
    _largest     (largest timestamp, last offset of the batch that holds it), None until needed
    _first       max timestamp of the first batch, None until needed, or while there is no batch
    _since       bytes appended since the last index entry
    is_active    whether it is open for appends
    mended       whether its indexes were rebuilt from the log, because they did not fit it
    doubted      whether they must be rebuilt when it is sealed: until then an appender uses them
    _dated       numbers of the time index entries that were found to fit the log
    _lost        last offset that it is known to have had, if its end was cut off; else -1
    _allocated   the file has blocks up to this position, though it may be shorter; 0 if nothing was allocated
    _jitter      a number drawn at opening; modulo the setting it says how much earlier to roll
    """

    __slots__ = (
        "_allocated",
        "_clock",
        "_dated",
        "_descriptors",
        "_first",
        "_jitter",
        "_largest",
        "_lost",
        "_offset_index",
        "_since",
        "_size",
        "_time_index",
        "_transactions",
        "base_offset",
        "created_ms",
        "directory",
        "doubted",
        "filled_ms",
        "is_active",
        "log",
        "mended",
        "settings",
        "suffix",
    )

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        settings: SegmentSettings,
        clock: Clock,
        descriptors: Descriptors,
        suffix: str,
    ) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.settings = settings
        self.suffix = suffix
        self.created_ms = self.filled_ms = clock()
        self.log = PinnedFile(f"{directory}/{file_of(base_offset, LOG_SUFFIX)}{suffix}", descriptors)
        self._clock = clock
        self._size = -1
        self._largest: tuple[int, int] | None = None
        self._first: int | None = None
        self._since = 0
        self.is_active = False
        self._descriptors = descriptors
        self.mended = self.doubted = False
        self._lost = NO_OFFSET
        self._dated: frozenset[int] = frozenset()
        self._allocated = 0
        self._jitter = random.getrandbits(31)
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._transactions: TransactionIndex | None = None

    @classmethod
    def load(
        cls,
        directory: Path,
        base_offset: int,
        settings: SegmentSettings,
        clock: Clock,
        descriptors: Descriptors,
        size: int | None = None,
        suffix: str = "",
    ) -> Self:
        """Return the segment of existing files. No file is opened, or its size read, before that is needed."""
        segment = cls(directory, base_offset, settings, clock, descriptors, suffix)
        if size is not None:
            segment._check_size(size)
            segment._size = size
        return segment

    def __repr__(self) -> str:
        return f"Segment({self.log.path})"

    # -- what it is ---------------------------------------------------------------------------------

    def _name(self, extension: str) -> str:
        return f"{self.directory}/{file_of(self.base_offset, extension)}{self.suffix}"

    @property
    def path(self) -> Path:
        """Return the path of the `.log` file."""
        return Path(self.log.path)

    @property
    def size(self) -> int:
        size = self._size
        if size < 0:
            size = os.stat(self.log.path).st_size
            self._check_size(size)
            self._size = size
        return size

    def _check_size(self, size: int) -> None:
        if size > MAX_INT32:
            raise CorruptSegmentError(f"{self.log.path}: expected at most {MAX_INT32} bytes, found {size}")

    def freeze(self) -> None:
        """Fix the `.log` as it is now. Later appends of another process are not seen. A file that takes its name
        later is refused, because the known sizes and indexes do not belong to that file."""
        status = os.stat(self.log.path)
        self._check_size(status.st_size)
        self._size = status.st_size
        self.log.identity = status.st_dev, status.st_ino

    @property
    def offset_index(self) -> OffsetIndex:
        index = self._offset_index
        if index is None:
            with _building:
                if self._offset_index is None:
                    most = self.settings.max_index_bytes
                    self._offset_index = OffsetIndex.load(
                        self._name(INDEX_SUFFIX), self.base_offset, most, descriptors=self._descriptors
                    )
                index = self._offset_index
        return index

    @property
    def time_index(self) -> TimeIndex:
        index = self._time_index
        if index is None:
            with _building:
                if self._time_index is None:
                    most = self.settings.max_index_bytes
                    self._time_index = TimeIndex.load(
                        self._name(TIME_INDEX_SUFFIX), self.base_offset, most, descriptors=self._descriptors
                    )
                index = self._time_index
        return index

    @property
    def transactions(self) -> TransactionIndex:
        """Return the index of transactions that were aborted by a marker in this segment."""
        index = self._transactions
        if index is None:
            with _building:
                if self._transactions is None:
                    self._transactions = TransactionIndex.open(
                        Path(self._name(TRANSACTION_INDEX_SUFFIX)), self.base_offset
                    )
                index = self._transactions
        return index

    def has_offset_index(self) -> bool:
        """Return whether there is an `.index` file. Without one, look-ups begin at position 0."""
        return self.offset_index.exists()

    def _largest_known(self) -> tuple[int, int]:
        known = self._largest
        if known is None:
            known = self._find_largest()
            self._largest = known
        return known

    @property
    def max_timestamp(self) -> int:
        """Return the largest timestamp of its batches, or -1 if there is none."""
        return self._largest_known()[0]

    @property
    def offset_of_max_timestamp(self) -> int:
        """Return the last offset of the first batch that has the largest timestamp, or the base offset if there is
        none."""
        return self._largest_known()[1]

    @property
    def largest_timestamp(self) -> int:
        """Return the largest timestamp. If its batches have none, return the time when the `.log` was last written."""
        largest = self.max_timestamp
        return largest if largest >= 0 else os.stat(self.log.path).st_mtime_ns // 1_000_000

    def first_batch_timestamp(self) -> int | None:
        """Return the max timestamp of the first batch, or None if there is no batch."""
        if self._first is None and self.size > 0:
            header = self.read(0, HEADER_SIZE)
            status, *_ = find_batch(np.frombuffer(header, np.uint8), BY_OFFSET, 0, NO_OFFSET)
            if status != FOUND:
                raise self._bad_batch(0, status)
            self._first = BatchHeader.read(header).max_timestamp
        return self._first

    # -- reading ------------------------------------------------------------------------------------

    def _clip(self, position: int, length: int) -> int:
        """Return how many bytes of a range are published."""
        size = self.size
        if position < 0 or length < 0:
            raise ValueError(
                f"{self.log.path}: expected no negative position and length: {position}, {length}"
            )
        if position > size:
            raise OffsetOutOfRangeError(
                f"{self.log.path}: expected a position up to {size}, found {position}"
            )
        return min(length, size - position)

    def read(self, position: int, length: int) -> bytes:
        """Return `length` bytes from `position` on, or fewer if the segment ends before."""
        clipped = self._clip(position, length)
        descriptor = self.log.descriptor()
        try:
            return read_exactly(descriptor.fd, position, clipped, self.log.path)
        except CorruptSegmentError:
            if self.size >= position + clipped:
                raise
        return self.read(position, length)  # truncated by this process in the meantime

    def read_into(self, position: int, into: memoryview) -> int:
        """Fill the buffer from `position` on. Return how many bytes there were before the segment's end."""
        clipped = self._clip(position, len(into))
        descriptor = self.log.descriptor()
        try:
            read_exactly_into(descriptor.fd, position, into[:clipped], self.log.path)
        except CorruptSegmentError:
            if self.size >= position + clipped:
                raise
            return self.read_into(position, into)
        return clipped

    def _bad_batch(self, position: int, status: int) -> CorruptBatchError:
        found = self.read(position, SIZE_OVERHEAD + 5).hex(" ")
        return CorruptBatchError(
            f"{self.log.path}: batch at position {position} of {self.size}: {PROBLEMS[status]}, found {found}"
        )

    def _search(self, position: int, offset: int) -> tuple[Found | None, int]:
        """Return the first batch from `position` on that reaches `offset`, and the last offset of the last batch
        looked at (-1: none). Little but headers is read. Their offsets have to rise, also to the batch behind the
        one found."""
        end = self.size
        seen = self.base_offset - 1 if position == 0 else NO_OFFSET
        step = min(max(self.settings.index_interval_bytes, HEADER_SIZE), _LONGEST_STEP) + HEADER_SIZE
        while position < end:
            # Not beyond `end`: later appends are not searched, and may lie where a gap was.
            data = np.frombuffer(self.read(position, min(step, end - position)), np.uint8)
            status, at, size, base_offset, last_offset = find_batch(data, BY_OFFSET, offset, seen)
            if status == FOUND and position + at + size <= end:
                following = self._base_at(position + at + size, data[at + size :], end)
                if following is None or following > last_offset:
                    return (position + at, size, base_offset, last_offset), last_offset
                status = BAD_OFFSETS
            if status != PARTIAL or not 0 < at <= end - position:
                if self.size < end:
                    return self._search(min(position, self.size), offset)  # truncated in the meantime
                raise self._bad_batch(min(position + at, end), PARTIAL if status == FOUND else status)
            seen = last_offset
            position += at
        return None, seen if seen >= self.base_offset else NO_OFFSET

    def _base_at(self, position: int, data: Bytes, end: int) -> int | None:
        """Return the base offset of the batch at a position, or None if nothing there looks like a batch. `data` is
        the part of the batch that was read already."""
        header = data[:HEADER_SIZE]
        if header.size < HEADER_SIZE:
            if position + HEADER_SIZE > end:
                return None
            header = np.frombuffer(self.read(position, HEADER_SIZE), np.uint8)
        status, _, _, base_offset, _ = find_batch(header, BY_OFFSET, NO_OFFSET, NO_OFFSET)
        return int(base_offset) if status == FOUND else None

    def _indexed(self, offset: int) -> int:
        """Return the position where a search for an offset begins. It is never behind the offset's batch. An index
        entry is used only if a batch ends with its offset at its position. If none does, the index is rebuilt."""
        index = self.offset_index
        number, last, position = index.floor(offset)
        if index.doubt and self._mend(index.path, index.doubt):
            number, last, position = index.floor(offset)
        if number < 0 or self.ends_with(position, last):
            return position
        # A running append publishes its index entries before its size, and a truncation its size before its entries.
        if (position < self.size or not self.is_active) and self._mend(
            index.path, f"entry {number}: offset {last} is not at {position}"
        ):
            number, last, position = index.floor(offset)
            if number < 0 or self.ends_with(position, last):
                return position
        for each in range(number - 1, max(-1, number - _STEPS_BACK), -1):
            found = index.entry_or_none(each)
            if found is not None and self.ends_with(found[1], found[0]):
                return found[1]
        return 0

    def ends_with(self, position: int, last_offset: int) -> bool:
        """Return whether a batch begins at a position and ends with an offset, by its header."""
        size = self.size
        if not 0 <= position <= size - HEADER_SIZE:
            return False
        header = np.frombuffer(self.read(position, HEADER_SIZE), np.uint8)
        status, *_, found = find_batch(header, BY_OFFSET, NO_OFFSET, NO_OFFSET)
        return bool(status == FOUND and found == last_offset)

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
        position = self._indexed(offset)
        if start_position is not None:
            position = max(position, start_position)
        try:
            found, _ = self._search(position, offset)
        except CorruptError:
            return self._checked_position_of(offset, position, None)
        if found is None or found[2] > offset:
            return self._checked_position_of(offset, position, found)
        return found

    def _checked_position_of(self, offset: int, position: int, expected: Found | None) -> Found | None:
        """Return the same as `locate`, but read and check complete batches. Damage is passed over if the offset lies
        behind it."""
        end = self.size if expected is None else expected[0] + expected[1]
        before = NO_OFFSET
        problem: CorruptError | None = None
        while position < end:
            try:
                for _, table in self.batches(position, end, chunk=_CHECKED_CHUNK, reuse=True):
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
                end = self.size
        if problem is not None:
            raise problem
        return expected

    def damage_at(self, offset: int) -> tuple[int, int | None]:
        """Describe the damage around a batch that cannot be read: the position where it begins, and the base offset
        of the first readable batch behind it (None: there is none)."""
        position, before = self._indexed(offset), NO_OFFSET
        while True:
            try:
                for _, table in self.batches(position, chunk=_CHECKED_CHUNK, reuse=True):
                    before = int(table[-1, LAST_OFFSET])
                    position = int(table[-1, POSITION] + table[-1, SIZE])
            except CorruptError:
                resumed = resume(self, position, before)
                if resumed is None:
                    return position, None
                base_offset = self.header_at(resumed)[BASE_OFFSET]
                if base_offset > offset:
                    return position, base_offset
                position = resumed
            else:
                return position, None

    def header_at(self, position: int) -> list[int]:
        """Return the batch table row of the batch at a position. Only its header is read. CorruptBatchError if there
        is none."""
        header = self.read(position, HEADER_SIZE)
        status, at, size, base_offset, last_offset = find_batch(
            np.frombuffer(header, np.uint8), BY_OFFSET, NO_OFFSET, NO_OFFSET
        )
        if status != FOUND or at or position + size > self.size:
            raise self._bad_batch(position, PARTIAL if status in {FOUND, DONE} else status)
        row = [0] * COLUMNS
        row[POSITION], row[SIZE], row[BASE_OFFSET], row[LAST_OFFSET] = (
            position,
            size,
            base_offset,
            last_offset,
        )
        row[MAX_TIMESTAMP] = BatchHeader.read(header).max_timestamp
        return row

    def next_offset(self) -> int:
        """Return the offset behind the last batch, or the base offset without a batch."""
        _, last_offset = self._search(self._indexed(MAX_INT64), MAX_INT64)
        return last_offset + 1 if last_offset >= 0 else self.base_offset

    def offset_by_timestamp(self, timestamp: int, start_offset: int) -> tuple[int, int, int] | None:
        """Return the first record that is neither earlier than `timestamp` nor below `start_offset`: its timestamp,
        its offset, and its batch's leader epoch."""
        found = self.position_of(max(self._timed(timestamp), start_offset))
        if found is None:
            return None
        for buffer, table in self.batches(found[0], chunk=_CHECKED_CHUNK):
            for row in np.flatnonzero(table[:, MAX_TIMESTAMP] >= timestamp).tolist():
                self.check_fitting(table[row : row + 1])
                origin = int(table[0, POSITION])
                record = first_record_at_or_after(buffer, table[row], timestamp, start_offset, origin)
                if record is not None:
                    return *record, int(table[row, LEADER_EPOCH])
        self._check_not_cut()
        return None

    # -- the time index against the log ---------------------------------------------------------------

    def _timed(self, timestamp: int) -> int:
        """Return an offset up to which every record is earlier, by entries of the time index that fit the log."""
        index = self.time_index
        number, at, offset = index.floor(timestamp - 1)
        if index.doubt and self._mend(index.path, index.doubt):
            number, at, offset = index.floor(timestamp - 1)
        if number < 0 or self.time_holds(number):
            return offset
        if self._mend(index.path, f"entry {number}: {at} is not the latest time up to offset {offset}"):
            number, at, offset = index.floor(timestamp - 1)
        found = index.entry_or_none(self._last_time_that_holds(number))
        return self.base_offset if found is None else found[1]

    def _last_time_that_holds(self, number: int) -> int:
        """Return the last entry up to a number that fits the log, or -1 if none is found within a few steps."""
        for each in range(number, max(-1, number - _STEPS_BACK), -1):
            if self.time_holds(each):
                return each
        return -1

    def time_holds(self, number: int) -> bool:
        """Return whether an entry of the time index fits the log: a batch with its offset has its timestamp, and no
        batch from the entry before on is later. Of a long stretch without an entry only the first part is checked."""
        if number in self._dated:
            return True
        found, previous = self.time_index.entry_or_none(number), self.time_index.entry_or_none(number - 1)
        if found is None:
            return False
        timestamp, offset = found
        before = self.base_offset if previous is None else previous[1]
        if timestamp < 0 or offset < before:
            return False
        try:
            batch = self._batch_of_time(timestamp, offset)
            start = self.locate(before)
            if batch is None or start is None or start[0] > batch[0]:
                return False
            end = min(batch[0], start[0] + CHUNK)
            tables = self.batches(start[0], end, check=False, partial_ok=True, reuse=True)
            if not all(table[:, MAX_TIMESTAMP].max() <= timestamp for _, table in tables):
                return False
        except CorruptError:
            # Damaged data contradicts nothing. A reader of it gets the error.
            return True
        if not self.is_active:
            if len(self._dated) >= _MOST_DATED:
                self._dated = frozenset()
            self._dated |= {number}
        return True

    def _batch_of_time(self, timestamp: int, offset: int) -> Found | None:
        """Return the batch that holds an offset, if its largest timestamp is `timestamp`."""
        found = self.locate(offset)
        if found is None or found[2] > offset or self.header_at(found[0])[MAX_TIMESTAMP] != timestamp:
            return None
        return found

    def _find_largest(self) -> tuple[int, int]:
        """Return the largest timestamp, and the last offset of the batch that has it. The time index may end before
        that batch: a broker adds the last entry when it seals or closes a segment, and an index that was cut off
        looks the same."""
        index = self.time_index
        known = claimed = index.last_entry
        position = 0
        try:
            found = self._batch_of_time(*known) if known[0] >= 0 and not index.doubt else None
        except CorruptError:
            # The log is damaged at that offset: nothing shows that the index is wrong.
            return known
        if found is not None:
            position = found[0] + found[1]
        elif known[0] >= 0 or index.doubt:
            reason = index.doubt or f"{known[0]} is not the time of offset {known[1]}"
            # The look at the log may have had both indexes made anew already: what was read of them before is no more.
            if (self._mend(index.path, reason) or self.mended) and self._largest is not None:
                return self._largest
            known = NO_TIMESTAMP, self.base_offset
        if position == self.size:
            return known
        largest, is_all = latest_behind(self, known, position)
        if largest != known and not is_all:
            self._mend(index.path, f"its last time is {known[0]}, a batch behind it has {largest[0]}")
            claimed = max(claimed, index.last_entry)
        # A time that is too late costs a useless search. One that is too early would hide records.
        return max(largest, claimed)

    def _mend(self, path: str, reason: str) -> bool:
        """Rebuild both indexes from the batches. Return False if that was done before, or has to wait until the
        segment is sealed because an appender uses them."""
        with mending:
            if self.is_active:
                self.doubted = True
                return False
            if self.mended:
                return False
            log.warning(f"{path}: does not fit its log, both indexes are made anew from it: {reason}")
            self.mended = True
            self._remake_indexes()
            return True

    def _remake_indexes(self) -> None:
        offsets, times, largest, lost = remade(self)
        self.offset_index.replace(offsets)
        self.time_index.replace(times)
        self._dated = frozenset()
        self._largest = largest
        if lost is not None:
            self._lost = lost[1]
            log.error(
                f"{self.log.path}: was cut off at {self.size} bytes, it had records up to offset {lost[1]}"
            )

    def _check_not_cut(self) -> None:
        """Raise CorruptSegmentError if the file's end was cut off: a search that came to the end cannot know what
        was behind it."""
        if not self.is_active:
            self._indexed(MAX_INT64)
            self._largest_known()
            if self._lost != NO_OFFSET:
                raise CorruptSegmentError(
                    f"{self.log.path}: expected records up to offset {self._lost}, found {self.size} bytes without"
                )

    def batch_at(self, position: int, size: int) -> tuple[Bytes, Longs]:
        """Return one checked batch, and its row of a batch table, in which it begins at position 0."""
        buffer = np.empty(size, np.uint8)
        self._fill(position, memoryview(buffer))
        table = np.empty((1, COLUMNS), np.int64)
        _, _, status = scan(buffer, 0, size, 0, 1, table)
        if status != DONE:
            raise self._bad_batch(position, status)
        return buffer, table[0]

    def batches(
        self,
        start: int = 0,
        end: int | None = None,
        check: bool = True,
        chunk: int = CHUNK,
        partial_ok: bool = False,
        reuse: bool = False,
        ordered: bool = True,
    ) -> Iterator[tuple[Bytes, Longs]]:
        """Yield complete batches in chunks, each with its table: POSITION is the position in the file, and the first
        row has that of buffer[0].

        A batch beyond the end is corrupt, unless `partial_ok`. Offsets that do not rise are corrupt, unless not
        `ordered`. With `reuse` the next chunk overwrites the present one."""
        size = self.size
        last = size if end is None else min(end, size)
        position = start
        before = self.base_offset - 1 if start == 0 else NO_OFFSET
        for buffer, table, status in walk(self._fill, start, last, check, chunk, reuse):
            if len(table):
                rising = self._rising(table, before, position + buffer.size, size) if ordered else len(table)
                if rising < len(table):
                    if rising:
                        yield buffer[: int(table[:rising, SIZE].sum())], table[:rising]
                    raise self._bad_batch(int(table[rising, POSITION]), BAD_OFFSETS)
                yield buffer, table
                before = int(table[-1, LAST_OFFSET])
                position += buffer.size
            elif status != DONE and not (status == PARTIAL and partial_ok):
                raise self._bad_batch(position, status)

    def _rising(self, table: Longs, before: int, end: int, size: int) -> int:
        """Return how many rows have offsets above the batches before and below the batches behind. The rows' batches
        end at `end`. Of two batches that do not rise either may be damaged: a checksum does not cover the base
        offset."""
        bases, lasts = table[:, BASE_OFFSET], table[:, LAST_OFFSET]
        if bases[0] <= before:
            return 0
        falling = np.flatnonzero(bases[1:] <= lasts[:-1])
        if falling.size:
            return int(falling[0])
        following = None if end >= size else self._base_at(end, NOTHING, size)
        return len(table) - (following is not None and following <= lasts[-1])

    def count_of_fitting(self, table: Longs) -> int:
        """How many rows of batches come before the first whose offsets are further above the base than an index says.
        In a segment that nobody has to split, such a base offset is damaged: a checksum does not cover it."""
        fitting = table[:, LAST_OFFSET] - self.base_offset <= MAX_INT32
        return len(table) if fitting.all() else int(fitting.argmin())

    def check_fitting(self, table: Longs) -> None:
        """CorruptBatchError where not all of the batches fit."""
        fitting = self.count_of_fitting(table)
        if fitting < len(table):
            raise self._bad_batch(int(table[fitting, POSITION]), BAD_OFFSETS)

    def _fill(self, position: int, into: memoryview) -> None:
        filled = self.read_into(position, into)
        if filled < len(into):
            raise OffsetOutOfRangeError(f"{self.log.path}: truncated to {self.size} bytes while it was read")

    def _stop_writing(self) -> None:
        if self.is_active:
            self.log.end_writing()
            self.is_active = False
            self._allocated = 0

    def hold_transactions(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Use these aborted transactions instead of those in the file. The file is not changed."""
        self._transactions = TransactionIndex.in_memory(self.base_offset, aborted)

    # -- files --------------------------------------------------------------------------------------

    def keep_mended(self) -> None:
        """Write the rebuilt indexes to disk. The caller must be the only one that changes the segment's files."""
        if self.mended and not self.settings.read_only:
            self.offset_index.keep_mended()
            self.time_index.keep_mended()

    def flush(self) -> None:
        """fsync the `.log` and both indexes."""
        self.log.sync()
        self.offset_index.flush()
        self.time_index.flush()

    def abandon(self) -> None:
        """Close everything, and leave the files as they are. Reads raise ClosedError from here on."""
        self._stop_writing()
        self.log.close()
        self._abandon_indexes()

    def _abandon_indexes(self) -> None:
        if self._offset_index is not None:
            self._offset_index.abandon()
        if self._time_index is not None:
            self._time_index.abandon()
        if self._transactions is not None:
            self._transactions.close()

    def change_suffix(self, old: str, new: str) -> None:
        """Rename the files that exist. Reads go on in the meantime."""
        if self.suffix != old:
            raise ValueError(f"{self.log.path}: expected the suffix {old!r}, found {self.suffix!r}")
        self.offset_index.hold()
        self.time_index.hold()
        self._rename(new)
        self.offset_index.release()
        self.time_index.release()

    def _rename(self, suffix: str) -> None:
        # All index objects exist from here on, so that none is created for a name that is about to disappear.
        offset_index, time_index, transactions = self.offset_index, self.time_index, self.transactions
        self.suffix = suffix
        self.log.rename(self._name(LOG_SUFFIX))
        offset_index.rename(self._name(INDEX_SUFFIX))
        time_index.rename(self._name(TIME_INDEX_SUFFIX))
        transactions.rename(Path(self._name(TRANSACTION_INDEX_SUFFIX)))

    @property
    def pins(self) -> int:
        """Return how many readers hold the segment."""
        return self.log.pins

    def pin(self) -> None:
        """Keep the segment readable until `unpin`. ClosedError if it was deleted or closed before."""
        self.log.pin()

    def unpin(self) -> None:
        """Release one pin."""
        self.log.unpin()
        if self.log.gone and not self.log.pins:
            self._abandon_indexes()

    def mark_deleted(self) -> None:
        """Rename the files to `.deleted`. Only readers that pinned the segment can still read it, even when a later
        segment's files take its names. Others get ClosedError."""
        if self.log.gone:
            return
        self._stop_writing()
        self.log.condemn()
        self._abandon_indexes()
        if self.pins:
            self.offset_index.hold()
            self.time_index.hold()
        self._rename(self.suffix + DELETED_SUFFIX)
        if not self.pins:
            self.transactions.close()

    def delete(self) -> bool:
        """Remove the files. Return False, and do nothing, while the segment is pinned."""
        if self.pins:
            return False
        self._stop_writing()
        self.log.close()
        for index in (self.offset_index, self.time_index):
            index.delete()
        self.transactions.delete_if_exists()
        if os.path.exists(self.log.path):
            os.unlink(self.log.path)
        return True
