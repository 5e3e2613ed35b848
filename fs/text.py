"""One segment in one format: bytes whose positions are final once shown.

Every view of a partition is made of spans of such texts. Only records below the stable offset are in it, and
none of an aborted transaction: what is below the stable offset has been decided for good.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from engine.batch.table import Bytes, Longs
from engine.errors import CorruptError
from engine.kernels.scan import LAST_OFFSET
from engine.partition.offsets import Appended, Isolation, Offsets
from engine.partition.partition import Partition
from engine.partition.reader import read_batches
from engine.segment.segment import Segment
from engine.segment.segments import Segments
from fs.formats import Format
from fs.sizemap import SizeMap

BLOCK: Final = 1 << 20
"""Rendered at once for a reader that goes on where it stopped; marks are some 64 KiB apart."""

_KEPT_BLOCKS: Final = 4

DAMAGE: Final = 1
"""Bytes that a batch which cannot be read takes in a text: enough that no reader comes past it unawares."""


@dataclass(frozen=True, slots=True)
class _Block:
    """Rendered bytes, from a mark to another.

    start    their position in the text
    in_turn  whoever asked for it reads in order, and will want the next one
    """

    start: int
    data: Bytes
    in_turn: bool = False

    @property
    def end(self) -> int:
        return self.start + self.data.size


class SegmentText:
    """A segment rendered in a format.

    partition, segment  what is shown
    segments            the list that the segment was found in: transactions that end in later ones matter too
    format              how
    map                 where batches begin, as far as looked at
    damaged             the map has batches that could not be read: it is not to be kept
    _lock               held while the map grows or a block is rendered
    _blocks             the last blocks that were rendered, newest first; replaced as a whole
    """

    __slots__ = ("_blocks", "_lock", "damaged", "format", "map", "partition", "segment")

    def __init__(self, partition: Partition, segment: Segment, fmt: Format, known: SizeMap | None) -> None:
        self.partition = partition
        self.segment = segment
        self.format = fmt
        self.map = SizeMap(segment.base_offset) if known is None else known
        self.damaged = False
        self._lock = threading.Lock()
        self._blocks: tuple[_Block, ...] = ()

    def size(self, segments: Segments, offsets: Offsets) -> int:
        """Bytes of the text, as of these offsets."""
        self._reach(segments, offsets)
        return self.map.rendered

    def is_complete(self, segments: Segments, offsets: Offsets) -> bool:
        """Whether the text can grow no more: the segment is sealed, and nothing in it is undecided."""
        following = segments.higher(self.segment.base_offset)
        return following is not None and offsets.stable >= following.base_offset

    def _limit(self, segments: Segments, offsets: Offsets) -> int:
        following = segments.higher(self.segment.base_offset)
        return offsets.stable if following is None else min(offsets.stable, following.base_offset)

    def _reach(self, segments: Segments, offsets: Offsets) -> None:
        """Map what has become visible."""
        limit = self._limit(segments, offsets)
        if self.map.next_offset >= limit:
            return
        if segments.at(self.segment.base_offset) is not self.segment:
            # Another one has its place in a newer list: its records are none of this text.
            return
        with self._lock:
            start = self.map.next_offset
            if start >= limit:
                return
            while start < limit:
                try:
                    for buffer, table, origin in self._batches(segments, offsets, start, limit):
                        new = table[table[:, LAST_OFFSET] >= start]
                        self.map.add(new, self._sizes(buffer, new, origin))
                except CorruptError:
                    self._map_next(segments, offsets, limit)
                else:
                    self.map.skip_to(limit)
                start = self.map.next_offset

    def _map_next(self, segments: Segments, offsets: Offsets, limit: int) -> None:
        """Map one batch, since there is damage further on, or here. A batch that cannot be read is mapped as one byte,
        which cannot be read either: what is behind it can. Where its length is in doubt, that is so up to `limit`."""
        first = self.map.next_offset
        position, behind, size = self.segment.size, limit, DAMAGE
        with contextlib.suppress(CorruptError):
            position, behind = self._batch_at(first, limit)
            size = self._size_between(first, behind, segments, offsets)
            self.map.add_one(position, first, behind - 1, size)
            return
        self.damaged = True
        self.map.add_one(position, first, behind - 1, size)

    def _batch_at(self, offset: int, limit: int) -> tuple[int, int]:
        """Where in the file the batch lies that holds an offset, and the offset behind it, `limit` at most;
        CorruptError where that is in doubt."""
        found = self.segment.position_of(offset)
        if found is None:
            return self.segment.size, limit
        position, size, _, last = found
        if last < offset or position + size > self.segment.size:
            raise CorruptError(
                f"{self.segment.path}: the batch at position {position} of {self.segment.size} is damaged"
            )
        return position, min(limit, last + 1)

    def note(self, appended: Appended, size: int, offsets: Offsets) -> None:
        """Map a batch that was just appended, without reading it: where it follows what is mapped, and shows."""
        if self.map.next_offset != appended.first_offset or offsets.stable <= appended.last_offset:
            return
        with self._lock:
            if self.map.next_offset == appended.first_offset:
                self.map.add_one(appended.position, appended.first_offset, appended.last_offset, size)

    def _sizes(self, buffer: Bytes, table: Longs, origin: int) -> Longs:
        return self.format.sizes(buffer, table, origin, self.partition.topic, self.partition.number)

    def position_of(self, offset: int, segments: Segments, offsets: Offsets) -> int:
        """Where in the text the first record at or above `offset` begins; the size where there is none."""
        self._reach(segments, offsets)
        if offset <= self.segment.base_offset:
            return 0
        following = segments.higher(self.segment.base_offset)
        # What lies behind the segment is not looked for in the next one.
        if offset >= self.map.next_offset or (following is not None and offset >= following.base_offset):
            return self.map.rendered
        mark = self.map.before_offset(offset)
        if mark < 0:
            return 0
        _, position, first = self.map.marks[mark].tolist()
        try:
            return int(position) + self._size_between(first, offset, segments, offsets)
        except CorruptError:
            # There is damage on the way: measured from the other side.
            stop, behind = self._mark_at(mark + 1)
            return stop - self._size_between(offset, behind, segments, offsets)

    def _size_between(self, start: int, end: int, segments: Segments, offsets: Offsets) -> int:
        """Bytes of the records in [start, end), which are read for it."""
        size = 0
        topic, number = self.partition.topic, self.partition.number
        for buffer, table, origin in self._batches(segments, offsets, start, end):
            size += int(self.format.sizes(buffer, table, origin, topic, number, start, end).sum())
        return size

    def _mark_at(self, number: int) -> tuple[int, int]:
        """Position and offset at a mark, or at the end of what is mapped."""
        marks = self.map.marks
        if number < len(marks):
            return int(marks[number, 1]), int(marks[number, 2])
        return self.map.rendered, self.map.next_offset

    def read(self, position: int, into: Bytes, segments: Segments, offsets: Offsets) -> int:
        """Fill `into` with the text from `position` on. Gives how many bytes there were."""
        done = 0
        while done < into.size:
            block = self._block_at(position + done, segments, offsets)
            if block is None:
                break
            start = position + done - block.start
            length = min(block.data.size - start, into.size - done)
            if length <= 0:
                # Others have mapped more meanwhile than these offsets show.
                break
            into[done : done + length] = block.data[start : start + length]
            done += length
        return done

    def next_wanted(self, position: int) -> int | None:
        """Where the block begins that somebody who reads in order, and is at `position`, needs next; None where it
        is rendered, or nobody reads so."""
        blocks = self._blocks
        if not blocks or not blocks[0].in_turn or not blocks[0].start <= position < blocks[0].end:
            return None
        return blocks[0].end if blocks[0].end < self.map.rendered else None

    def render_at(self, position: int, segments: Segments, offsets: Offsets) -> None:
        """Render the block with a position, if it is not there."""
        self._block_at(position, segments, offsets)

    def forget_blocks(self) -> None:
        """Let go of rendered bytes: nobody has the text open."""
        self._blocks = ()

    def _block_at(self, position: int, segments: Segments, offsets: Offsets) -> _Block | None:
        found = self._kept_block(position)
        if found is not None:
            return found
        self._reach(segments, offsets)
        if position >= self.map.rendered:
            return None
        with self._lock:
            found = self._kept_block(position)
            if found is not None:
                return found
            marks = self.map.marks
            first = self.map.before_rendered(position)
            # The kernel reads ahead with several requests at once, which arrive in any order.
            sequential = any(0 <= position - block.end < BLOCK for block in self._blocks)
            end = self.map.before_rendered(int(marks[first, 1]) + BLOCK) if sequential else first + 1
            end = max(end, first + 1)
            try:
                block = self._block_between(first, end, segments, offsets, sequential)
            except CorruptError:
                block = self._beside_damage(first, position, segments, offsets)
            self._blocks = (block, *self._blocks[: _KEPT_BLOCKS - 1])
            return block

    def _block_between(
        self, first: int, end: int, segments: Segments, offsets: Offsets, in_turn: bool
    ) -> _Block:
        """From a mark to another."""
        start, start_offset = self._mark_at(first)
        stop, end_offset = self._mark_at(end)
        return _Block(start, self._render(segments, offsets, start_offset, end_offset, stop - start), in_turn)

    def _beside_damage(self, mark: int, position: int, segments: Segments, offsets: Offsets) -> _Block:
        """What lies before damage, or behind it, up to the next mark; CorruptError where `position` lies in it."""
        start, offset = self._mark_at(mark)
        stop, limit = self._mark_at(mark + 1)
        end, damage = start, offset
        try:
            while damage < limit:
                _, behind = self._batch_at(damage, limit)
                end += self._size_between(damage, behind, segments, offsets)
                damage = behind
        except CorruptError:
            if position >= end:
                _, behind = self._batch_at(damage, limit)
                size = self._size_between(behind, limit, segments, offsets)
                if position < stop - size:
                    raise
                return _Block(stop - size, self._render(segments, offsets, behind, limit, size))
        return _Block(start, self._render(segments, offsets, offset, damage, end - start))

    def _kept_block(self, position: int) -> _Block | None:
        for block in self._blocks:
            if block.start <= position < block.end:
                return block
        return None

    def _batches(
        self, segments: Segments, offsets: Offsets, start: int, end: int
    ) -> Iterator[tuple[Bytes, Longs, int]]:
        """The batches with records in [start, end) that show, of this segment: a map that was made when the next one
        was gone from the list may reach beyond its end."""
        limit = min(end, self._limit(segments, offsets))
        return read_batches(segments, offsets, start, limit, Isolation.COMMITTED)

    def _render(self, segments: Segments, offsets: Offsets, start: int, end: int, size: int) -> Bytes:
        """The records in [start, end), all of this segment, which are `size` bytes long."""
        out = np.empty(size, np.uint8)
        at = 0
        topic, number = self.partition.topic, self.partition.number
        for buffer, table, origin in self._batches(segments, offsets, start, end):
            at = self.format.render(buffer, table, origin, start, end, out, at, topic, number)
        return out[:at]
