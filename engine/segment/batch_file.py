"""The `.log` file of a segment: batches, one behind the other; offsets rise, gaps are allowed.

Readers take no lock. Everything before `size` is in the file: `size` is published last by an append and
first by a truncation.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from typing import Final

import numpy as np

from topicfs.engine.batch.table import Bytes, Longs
from topicfs.engine.errors import (
    CorruptBatchError,
    CorruptSegmentError,
    OffsetOutOfRangeError,
    OldFormatError,
)
from topicfs.engine.format.batch_header import HEADER_SIZE, SIZE_OVERHEAD, BatchHeader
from topicfs.engine.format.old_message import CHECKED_FROM, OLD_FORMATS, OLD_MESSAGE, SMALLEST
from topicfs.engine.kernels.scan import (
    BAD_MAGIC,
    BAD_OFFSETS,
    BASE_OFFSET,
    COLUMNS,
    DONE,
    LAST_OFFSET,
    MAX_TIMESTAMP,
    PARTIAL,
    POSITION,
    PROBLEMS,
    SIZE,
    scan,
)
from topicfs.engine.kernels.search import BY_OFFSET, FOUND, find_batch
from topicfs.engine.record import MAX_INT32, NO_OFFSET
from topicfs.engine.segment.descriptors import PinnedFile, identity_of, read_exactly, read_exactly_into
from topicfs.engine.segment.walk import NOTHING, Room, room, walk

Found = tuple[int, int, int, int]
"""A batch: position, size, base offset, last offset."""

Latest = tuple[int, int]
"""A timestamp, and the last offset of the batch that has it."""

CHUNK: Final = 1024 * 1024

_HEADERS_CHUNK: Final = 64 * 1024
"""Bytes that a walk along headers reads at once: many small batches, or the header of a large one."""


class BatchFile:
    """The `.log` of a segment, which finds and checks batches by their positions.

    file         the open file, for readers and for the appender
    base_offset  base offset of the segment
    size         published bytes; read from the file system when first needed
    first        max timestamp of the first batch, None until needed, or while there is no batch
    """

    __slots__ = ("_size", "base_offset", "file", "first")

    def __init__(self, file: PinnedFile, base_offset: int, size: int | None = None) -> None:
        self.file = file
        self.base_offset = base_offset
        self.first: int | None = None
        self._size = -1
        if size is not None:
            self.size = size

    @property
    def path(self) -> str:
        """Return the present path of the file."""
        return self.file.path

    @property
    def size(self) -> int:
        size = self._size
        if size < 0:
            self.size = size = os.stat(self.path).st_size
        return size

    @size.setter
    def size(self, size: int) -> None:
        if size > MAX_INT32:
            raise CorruptSegmentError(f"{self.path}: expected at most {MAX_INT32} bytes, found {size}")
        self._size = size

    def freeze(self) -> None:
        """Fix the file as it is now. Later appends of another process are seen when somebody raises `size`. A file that
        takes its name later is refused, because the known sizes and indexes do not belong to that file."""
        status = os.stat(self.path)
        self.size = status.st_size
        self.file.identity = identity_of(status)

    # -- bytes ----------------------------------------------------------------------------------------

    def _clip(self, position: int, length: int) -> int:
        """Return how many bytes of a range are published."""
        size = self.size
        if position < 0 or length < 0:
            raise ValueError(f"{self.path}: expected no negative position and length: {position}, {length}")
        if position > size:
            raise OffsetOutOfRangeError(f"{self.path}: expected a position up to {size}, found {position}")
        return min(length, size - position)

    def read(self, position: int, length: int) -> bytes:
        """Return `length` bytes from `position` on, or fewer if the segment ends before."""
        clipped = self._clip(position, length)
        descriptor = self.file.descriptor()
        try:
            return read_exactly(descriptor.fd, position, clipped, self.path)
        except CorruptSegmentError:
            if self.size >= position + clipped:
                raise
        return self.read(position, length)  # truncated by this process in the meantime

    def read_into(self, position: int, into: memoryview) -> int:
        """Fill the buffer from `position` on. Return how many bytes there were before the segment's end."""
        clipped = self._clip(position, len(into))
        descriptor = self.file.descriptor()
        try:
            read_exactly_into(descriptor.fd, position, into[:clipped], self.path)
        except CorruptSegmentError:
            if self.size >= position + clipped:
                raise
            return self.read_into(position, into)
        return clipped

    def fill(self, position: int, into: memoryview) -> None:
        """Fill the buffer from `position` on, for who looks for batches. OffsetOutOfRangeError if the segment ends
        before. If somebody else has cut the file short, zeros stand for what is missing: they are no batch, so the
        batches before them are found, and the first one that is not whole is damaged."""
        try:
            filled = self.read_into(position, into)
        except CorruptSegmentError:
            filled = self._fill_with_rest(position, into)
        if filled < len(into):
            raise OffsetOutOfRangeError(f"{self.path}: truncated to {self.size} bytes while it was read")

    def _fill_with_rest(self, position: int, into: memoryview) -> int:
        clipped = self._clip(position, len(into))
        into[:clipped] = bytes(clipped)
        descriptor, done = self.file.descriptor(), 0
        while done < clipped and (count := os.preadv(descriptor.fd, [into[done:clipped]], position + done)):
            done += count
        return clipped

    def _look(self, position: int, length: int) -> bytes:
        """Return the same as `read`, for who looks for batches: see `fill`."""
        try:
            return self.read(position, length)
        except CorruptSegmentError:
            data = bytearray(length)
            return bytes(data[: self._fill_with_rest(position, memoryview(data))])

    # -- batches --------------------------------------------------------------------------------------

    def batch_at(self, position: int, size: int) -> tuple[Bytes, Longs]:
        """Return one checked batch, and its row of a batch table, in which it begins at position 0."""
        buffer = np.empty(size, np.uint8)
        self.fill(position, memoryview(buffer))
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
        room: Room = room,
    ) -> Iterator[tuple[Bytes, Longs]]:
        """Yield complete batches in chunks, each with its table: POSITION is the position in the file, and the first
        row has that of buffer[0].

        A batch beyond the end is corrupt, unless `partial_ok`. Offsets that do not rise are corrupt, unless not
        `ordered`. With `reuse` the next chunk overwrites the present one. `room` gives the buffers of chunks."""
        size = self.size
        last = size if end is None else min(end, size)
        position = start
        before = self.base_offset - 1 if start == 0 else NO_OFFSET
        for buffer, table, status in walk(self.fill, start, last, check, chunk, reuse, room):
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

    def headers(self, start: int, end: int, growing: bool = False) -> Iterator[Longs]:
        """Yield tables of the batches between two positions. Of large batches only the beginning is read, and no
        checksum is compared. With `growing` it ends before what is no whole batch: an append may be under way."""
        position, before = start, NO_OFFSET
        while position < end:
            data = self._look(position, min(_HEADERS_CHUNK, end - position))
            table = np.empty((len(data) // HEADER_SIZE + 1, COLUMNS), np.int64)
            rows, used, status = scan(np.frombuffer(data, np.uint8), 0, len(data), position, 0, table)
            if status == PARTIAL and used + HEADER_SIZE <= len(data):
                head = BatchHeader.read(data, used)
                if head.last_offset_delta >= 0 and position + used + head.size <= end:
                    table[rows] = head.row(position + used)
                    rows, used = rows + 1, used + head.size
            found = table[:rows]
            if not rows:
                if growing:
                    if status == BAD_MAGIC:
                        self.check_format(position)
                    return
                raise self._bad_batch(position, status)
            falling = (found[1:, BASE_OFFSET] <= found[:-1, LAST_OFFSET]).any()
            if not growing and (falling or found[0, BASE_OFFSET] <= before):
                raise self._bad_batch(position, BAD_OFFSETS)
            yield found
            position, before = position + used, int(found[-1, LAST_OFFSET])

    def latest_between(self, start: int, end: int, known: Latest, partial_ok: bool) -> Latest:
        """Return the largest timestamp of the batches between two positions, or what is known if none is later."""
        largest = known
        for _, table in self.batches(start, end, check=False, partial_ok=partial_ok, reuse=True):
            row = int(table[:, MAX_TIMESTAMP].argmax())
            if table[row, MAX_TIMESTAMP] > largest[0]:
                largest = int(table[row, MAX_TIMESTAMP]), int(table[row, LAST_OFFSET])
        return largest

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
        """Return how many rows come before the first whose offsets are further above the base than an index says.
        In a segment that nobody has to split, such a base offset is damaged: a checksum does not cover it."""
        fitting = table[:, LAST_OFFSET] - self.base_offset <= MAX_INT32
        return len(table) if fitting.all() else int(fitting.argmin())

    def check_fitting(self, table: Longs) -> None:
        """Raise CorruptBatchError where not all of the batches fit."""
        fitting = self.count_of_fitting(table)
        if fitting < len(table):
            raise self._bad_batch(int(table[fitting, POSITION]), BAD_OFFSETS)

    # -- headers --------------------------------------------------------------------------------------

    def header_at(self, position: int) -> list[int]:
        """Return the batch table row of the batch at a position. Only its header is read. CorruptBatchError if there
        is none."""
        header = self._look(position, HEADER_SIZE)
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

    def ends_with(self, position: int, last_offset: int) -> bool:
        """Return whether a batch begins at a position and ends with an offset, by its header."""
        size = self.size
        if not 0 <= position <= size - HEADER_SIZE:
            return False
        header = np.frombuffer(self._look(position, HEADER_SIZE), np.uint8)
        status, *_, found = find_batch(header, BY_OFFSET, NO_OFFSET, NO_OFFSET)
        return bool(status == FOUND and found == last_offset)

    def search(self, position: int, offset: int, step: int) -> tuple[Found | None, int]:
        """Return the first batch from `position` on that reaches `offset`, and the last offset of the last batch
        looked at (-1: none). Little but headers is read, `step` bytes at once. Their offsets have to rise, also to the
        batch behind the one found."""
        end = self.size
        seen = self.base_offset - 1 if position == 0 else NO_OFFSET
        while position < end:
            # Not beyond `end`: later appends are not searched, and may lie where a gap was.
            data = np.frombuffer(self._look(position, min(step, end - position)), np.uint8)
            status, at, size, base_offset, last_offset = find_batch(data, BY_OFFSET, offset, seen)
            if status == FOUND and position + at + size <= end:
                following = self._base_at(position + at + size, data[at + size :], end)
                if following is None or following > last_offset:
                    return (position + at, size, base_offset, last_offset), last_offset
                status = BAD_OFFSETS
            if status != PARTIAL or not 0 < at <= end - position:
                if self.size < end:
                    return self.search(min(position, self.size), offset, step)  # truncated in the meantime
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
            header = np.frombuffer(self._look(position, HEADER_SIZE), np.uint8)
        status, _, _, base_offset, _ = find_batch(header, BY_OFFSET, NO_OFFSET, NO_OFFSET)
        return int(base_offset) if status == FOUND else None

    def first_batch_timestamp(self) -> int | None:
        """Return the max timestamp of the first batch, or None if there is no batch."""
        if self.first is None and self.size > 0:
            header = self._look(0, HEADER_SIZE)
            status, *_ = find_batch(np.frombuffer(header, np.uint8), BY_OFFSET, 0, NO_OFFSET)
            if status != FOUND:
                raise self._bad_batch(0, status)
            self.first = BatchHeader.read(header).max_timestamp
        return self.first

    def check_format(self, position: int = 0) -> None:
        """Raise OldFormatError if a message of an old format is at a position. Its checksum tells it from damage, so
        that nobody takes it for damage, and cuts it off."""
        head = self.read(position, OLD_MESSAGE.size)
        if len(head) < OLD_MESSAGE.size:
            return
        _, size, checksum, magic = OLD_MESSAGE.struct.unpack(head)
        at, end = position + CHECKED_FROM, position + SIZE_OVERHEAD + size
        if magic not in OLD_FORMATS or size < SMALLEST or end > self.size:
            return
        found = 0
        while at < end:
            data = self.read(at, min(CHUNK, end - at))
            found = zlib.crc32(data, found)
            at += len(data)
        if found == checksum:
            raise OldFormatError(
                f"{self.path}: expected record batches, found a message of format {magic}, which Kafka before 0.11 "
                f"wrote, at position {position}: Kafka's brokers, up to 4.3, serve such a topic, so have one copy it "
                "into a new topic"
            )

    def _bad_batch(self, position: int, status: int) -> CorruptBatchError:
        if status == BAD_MAGIC:
            self.check_format(position)
        found = self.read(position, SIZE_OVERHEAD + 5).hex(" ")
        return CorruptBatchError(
            f"{self.path}: batch at position {position} of {self.size}: {PROBLEMS[status]}, found {found}"
        )
