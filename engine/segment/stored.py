"""A segment: one `.log` file of batches, and the indexes that say where to look in it.

    <base offset, 20 digits>.log        batches, one behind the other; offsets rise, gaps are allowed
    <base offset, 20 digits>.index      engine.segment.offset_index
    <base offset, 20 digits>.timeindex  engine.segment.time_index
    <base offset, 20 digits>.txnindex   engine.segment.transaction_index, which the partition fills

A suffix behind the whole name says what becomes of the files: `.cleaned`, `.swap`, `.deleted`.

Readers take no lock. Everything before `size` is in the file; `size` is published last by an append and
first by a truncation.

Here is what every segment can do; `engine.segment.segment` adds what only a growing one can.
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

from engine.batch import first_record_at_or_after
from engine.batch.table import Bytes, Longs
from engine.errors import (
    CorruptBatchError,
    CorruptSegmentError,
    OffsetOutOfRangeError,
)
from engine.kernels.scan import (
    COLUMNS,
    DONE,
    HEADER_SIZE,
    LEADER_EPOCH,
    PARTIAL,
    PROBLEMS,
    SIZE_OVERHEAD,
    scan,
)
from engine.kernels.search import (
    BY_OFFSET,
    BY_TIMESTAMP,
    FOUND,
    find_batch,
)
from engine.record import MAX_INT32, MAX_INT64, Clock
from engine.segment.descriptors import (
    Descriptors,
    PinnedFile,
    read_exactly,
    read_exactly_into,
    sync_file,
)
from engine.segment.offset_index import OffsetIndex
from engine.segment.time_index import TimeIndex
from engine.segment.transaction_index import AbortedTransaction, TransactionIndex
from engine.segment.walk import walk

log = logging.getLogger(__name__)

Found = tuple[int, int, int, int]
"""A batch: position, size, base offset, last offset."""

DELETED: Final = ".deleted"
TRANSACTION_INDEX: Final = ".txnindex"

CHUNK: Final = 1024 * 1024
_LONGEST_STEP: Final = 65536
"""Bytes that a search for a header reads at once, at most, whatever the index interval is."""

_building = threading.Lock()


@dataclass(frozen=True, slots=True)
class SegmentSettings:
    """What a segment needs to know of its topic's settings.

    index_interval_bytes  bytes between index entries
    max_index_bytes       size at which an index is full
    segment_bytes         length that a preallocated `.log` gets
    preallocate           give a new `.log` that length at once
    jitter_ms             a segment is rolled up to this much before its time
    read_only             no file of it is changed, or opened for writing
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
    settings     SegmentSettings
    created_ms   when the segment was created, reopened or emptied: it rolls by this clock without timestamps
    filled_ms    when its first batch was appended, or it was reopened: it rolls by this clock without appends
    size         published bytes of the `.log`; read from the file system when first asked for
    log          the `.log`, for readers
    _largest     (largest timestamp, last offset of the batch that holds it), None until asked for
    _first       max timestamp of the first batch, None until asked for, or while there is no batch
    _since       bytes appended since the last index entry
    _writer      descriptor for writing, -1 while the segment is not active
    _jitter      a number drawn at opening; modulo the setting it says how much earlier to roll
    """

    __slots__ = (
        "_clock",
        "_first",
        "_jitter",
        "_largest",
        "_offset_index",
        "_since",
        "_size",
        "_time_index",
        "_transactions",
        "_writer",
        "base_offset",
        "created_ms",
        "directory",
        "filled_ms",
        "log",
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
        self.log = PinnedFile(f"{directory}/{base_offset:020d}.log{suffix}", descriptors)
        self._clock = clock
        self._size = -1
        self._largest: tuple[int, int] | None = None
        self._first: int | None = None
        self._since = 0
        self._writer = -1
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
        """The segment in its files, none of which is opened, or asked for its size, before it is needed."""
        segment = cls(directory, base_offset, settings, clock, descriptors, suffix)
        if size is not None:
            segment._check_size(size)
            segment._size = size
        return segment

    def __repr__(self) -> str:
        return f"Segment({self.log.path})"

    # -- what it is ---------------------------------------------------------------------------------

    def _name(self, extension: str) -> str:
        return f"{self.directory}/{self.base_offset:020d}{extension}{self.suffix}"

    @property
    def path(self) -> Path:
        """Of the `.log` file."""
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
        """Show the `.log` as it is now. What another process appends later is not seen, and a file that takes its
        name later is refused: the sizes and indexes that are known are not those of that file."""
        status = os.stat(self.log.path)
        self._check_size(status.st_size)
        self._size = status.st_size
        self.log.identity = status.st_dev, status.st_ino

    @property
    def is_active(self) -> bool:
        """Open for appends."""
        return self._writer >= 0

    @property
    def offset_index(self) -> OffsetIndex:
        index = self._offset_index
        if index is None:
            with _building:
                if self._offset_index is None:
                    most = self.settings.max_index_bytes
                    self._offset_index = OffsetIndex.load(self._name(".index"), self.base_offset, most)
                index = self._offset_index
        return index

    @property
    def time_index(self) -> TimeIndex:
        index = self._time_index
        if index is None:
            with _building:
                if self._time_index is None:
                    most = self.settings.max_index_bytes
                    self._time_index = TimeIndex.load(self._name(".timeindex"), self.base_offset, most)
                index = self._time_index
        return index

    @property
    def transactions(self) -> TransactionIndex:
        """The transactions that were aborted by a marker in this segment."""
        index = self._transactions
        if index is None:
            with _building:
                if self._transactions is None:
                    self._transactions = TransactionIndex.open(
                        Path(self._name(TRANSACTION_INDEX)), self.base_offset
                    )
                index = self._transactions
        return index

    def has_offset_index(self) -> bool:
        """Whether there is an `.index` file. Without one, look-ups begin at position 0."""
        return self.offset_index.exists()

    def has_time_index(self) -> bool:
        """Whether there is a `.timeindex` file. Without one, it has no entries."""
        return self.time_index.exists()

    def _largest_known(self) -> tuple[int, int]:
        known = self._largest
        if known is None:
            self._largest = known = self.time_index.last_entry
        return known

    @property
    def max_timestamp(self) -> int:
        """Largest timestamp of its batches; -1 when there is none."""
        return self._largest_known()[0]

    @property
    def offset_of_max_timestamp(self) -> int:
        """Last offset of the first batch that has it; the base offset when there is none."""
        return self._largest_known()[1]

    @property
    def largest_timestamp(self) -> int:
        """Largest timestamp, or when the `.log` was last written if its batches have none."""
        largest = self.max_timestamp
        return largest if largest >= 0 else os.stat(self.log.path).st_mtime_ns // 1_000_000

    def first_batch_timestamp(self) -> int | None:
        """Max timestamp of the first batch; None while there is no batch."""
        if self._first is None and self.size > 0:
            header = self.read(0, HEADER_SIZE)
            status, *_ = find_batch(np.frombuffer(header, np.uint8), BY_OFFSET, 0)
            if status != FOUND:
                raise self._bad_batch(0, status)
            self._first = int.from_bytes(header[35:43], "big", signed=True)
        return self._first

    # -- reading ------------------------------------------------------------------------------------

    def _clip(self, position: int, length: int) -> int:
        """How many bytes of a range are published."""
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
        """The bytes at `position`: `length` of them, or fewer where the segment ends."""
        clipped = self._clip(position, length)
        descriptor = self.log.descriptor()
        try:
            return read_exactly(descriptor.fd, position, clipped, self.log.path)
        except CorruptSegmentError:
            if self.size >= position + clipped:
                raise
        return self.read(position, length)  # truncated by us meanwhile

    def read_into(self, position: int, into: memoryview) -> int:
        """Fill the buffer from `position` on; gives how many bytes there were before the segment's end."""
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

    def _find(self, position: int, by: int, target: int) -> Found | None:
        """The first batch from `position` on that reaches `target`."""
        return self._search(position, by, target)[0]

    def _search(self, position: int, by: int, target: int) -> tuple[Found | None, int]:
        """The same, and the last offset of the last batch looked at (-1: none). Reads little but headers."""
        end = self.size
        seen = -1
        step = min(max(self.settings.index_interval_bytes, HEADER_SIZE), _LONGEST_STEP) + HEADER_SIZE
        while position < end:
            # Not beyond `end`: what is appended meanwhile is not looked for, and may be where a gap was.
            data = np.frombuffer(self.read(position, min(step, end - position)), np.uint8)
            status, at, size, base_offset, last_offset = find_batch(data, by, target)
            if status == FOUND and position + at + size <= end:
                return (position + at, size, base_offset, last_offset), last_offset
            if status != PARTIAL or not 0 < at <= end - position:
                if self.size < end:
                    return self._search(min(position, self.size), by, target)  # truncated meanwhile
                raise self._bad_batch(min(position + at, end), PARTIAL if status == FOUND else status)
            seen = last_offset
            position += at
        return None, seen

    def _indexed(self, offset: int) -> int:
        """Where to begin looking for an offset: never behind its batch."""
        _, position = self.offset_index.lookup(offset)
        # An entry may be ahead of `size`, by an append under way or because the file is not this segment's.
        return position if 0 <= position < self.size else 0

    def position_of(self, offset: int, start_position: int | None = None) -> Found | None:
        """The first batch whose last offset is `offset` or above, looked for from `start_position` on."""
        position = self._indexed(offset)
        if start_position is not None:
            position = max(position, start_position)
        return self._find(position, BY_OFFSET, offset)

    def next_offset(self) -> int:
        """The offset behind the last batch; the base offset without one."""
        _, last_offset = self._search(self._indexed(MAX_INT64), BY_OFFSET, MAX_INT64)
        return last_offset + 1 if last_offset >= 0 else self.base_offset

    def offset_by_timestamp(self, timestamp: int, start_offset: int) -> tuple[int, int, int] | None:
        """The first record neither earlier than `timestamp` nor below `start_offset`: its timestamp, its
        offset, and its batch's leader epoch."""
        _, indexed = self.time_index.lookup(timestamp)
        position = self._indexed(max(indexed, start_offset))
        while (found := self._find(position, BY_TIMESTAMP, timestamp)) is not None:
            position, size, *_ = found
            buffer, row = self.batch_at(position, size)
            record = first_record_at_or_after(buffer, row, timestamp, start_offset)
            if record is not None:
                return *record, int(row[LEADER_EPOCH])
            position += size
        return None

    def batch_at(self, position: int, size: int) -> tuple[Bytes, Longs]:
        """One batch, checked, and its row of a batch table, in which it begins at position 0."""
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
    ) -> Iterator[tuple[Bytes, Longs]]:
        """Whole batches in chunks, and their table: POSITION is the place in the file, and the first row's is that
        of buffer[0]. A batch beyond the end is corrupt, unless `partial_ok`. `reuse`: the next chunk overwrites it."""
        size = self.size
        last = size if end is None else min(end, size)
        position = start
        for buffer, table, status in walk(self._fill, start, last, check, chunk, reuse):
            if len(table):
                yield buffer, table
                position += buffer.size
            elif status != DONE and not (status == PARTIAL and partial_ok):
                raise self._bad_batch(position, status)

    def _fill(self, position: int, into: memoryview) -> None:
        filled = self.read_into(position, into)
        if filled < len(into):
            raise OffsetOutOfRangeError(f"{self.log.path}: truncated to {self.size} bytes while it was read")

    def _stop_writing(self) -> None:
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1

    def hold_transactions(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Use these aborted transactions in place of those in the file, which is not changed."""
        self._transactions = TransactionIndex.in_memory(self.base_offset, aborted)

    # -- files --------------------------------------------------------------------------------------

    def flush(self) -> None:
        """fsync the `.log` and both indexes."""
        if self._writer >= 0:
            os.fsync(self._writer)
        else:
            sync_file(self.log.path)
        self.offset_index.flush()
        self.time_index.flush()

    def abandon(self) -> None:
        """Let go of everything and leave the files as they are. Reads raise ClosedError from here on."""
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
        """Rename the files that exist; reads go on meanwhile."""
        if self.suffix != old:
            raise ValueError(f"{self.log.path}: expected the suffix {old!r}, found {self.suffix!r}")
        self.offset_index.hold()
        self.time_index.hold()
        self._rename(new)
        self.offset_index.release()
        self.time_index.release()

    def _rename(self, suffix: str) -> None:
        # All index objects exist from here on, so that none is made for a name that is going.
        offset_index, time_index, transactions = self.offset_index, self.time_index, self.transactions
        self.suffix = suffix
        self.log.rename(self._name(".log"))
        offset_index.rename(self._name(".index"))
        time_index.rename(self._name(".timeindex"))
        transactions.rename(Path(self._name(TRANSACTION_INDEX)))

    @property
    def pins(self) -> int:
        """Readers that hold the segment."""
        return self.log.pins

    def pin(self) -> None:
        """Keep the segment readable until unpin. ClosedError when it was deleted or closed before."""
        self.log.pin()

    def unpin(self) -> None:
        """Take one pin back."""
        self.log.unpin()
        if self.log.gone and not self.log.pins:
            self._abandon_indexes()

    def mark_deleted(self) -> None:
        """Rename the files to `.deleted`. Only readers that pinned the segment go on reading it, even when
        a later segment's files take those names; others get ClosedError."""
        if self.log.gone:
            return
        self._stop_writing()
        self.log.condemn()
        self._abandon_indexes()
        if self.pins:
            self.offset_index.hold()
            self.time_index.hold()
        self._rename(self.suffix + DELETED)
        if not self.pins:
            self.transactions.close()

    def delete(self) -> bool:
        """Remove the files; False, and nothing done, while the segment is pinned."""
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
