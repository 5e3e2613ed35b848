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

from topicfs.engine.batch.table import Bytes, Longs
from topicfs.engine.errors import CorruptBatchError, CorruptError
from topicfs.engine.kernels.scan import LAST_OFFSET
from topicfs.engine.partition.offsets import Appended, Isolation, LogOffsets
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.reader import read_batches
from topicfs.engine.segment.segment import Segment
from topicfs.engine.segment.segments import Segments
from topicfs.fs.formats import Format
from topicfs.fs.views.size_map import SizeMap

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


@dataclass(frozen=True, slots=True)
class _Hole:
    """Damage as it was mapped: some offsets, which take DAMAGE bytes all together.

    start          where it is in the text
    first, behind  the offsets: [first, behind)
    """

    start: int
    first: int
    behind: int


class RenderedSegment:
    """A segment rendered in a format.

    partition, segment  what is shown
    segments            the list that the segment was found in: transactions that end in later ones matter too
    format              how
    map                 where batches begin, as far as looked at
    damaged             the map has batches that could not be read: it is not to be kept
    _holes              where they are, by rising offset; replaced as a whole
    _lock               held while the map grows or a block is rendered
    _blocks             the last blocks that were rendered, newest first; replaced as a whole
    """

    __slots__ = ("_blocks", "_holes", "_lock", "damaged", "format", "map", "partition", "segment")

    def __init__(self, partition: Partition, segment: Segment, fmt: Format, known: SizeMap | None) -> None:
        self.partition = partition
        self.segment = segment
        self.format = fmt
        self.map = SizeMap(segment.base_offset) if known is None else known
        self.damaged = False
        self._lock = threading.Lock()
        self._blocks: tuple[_Block, ...] = ()
        self._holes: tuple[_Hole, ...] = ()

    def size(self, segments: Segments, offsets: LogOffsets) -> int:
        """Bytes of the text, as of these offsets."""
        self._reach(segments, offsets)
        return self.map.rendered

    def is_complete(self, segments: Segments, offsets: LogOffsets) -> bool:
        """Whether the text can grow no more: the segment is sealed, and nothing in it is undecided."""
        following = segments.higher(self.segment.base_offset)
        return following is not None and offsets.stable >= following.base_offset

    def _limit(self, segments: Segments, offsets: LogOffsets) -> int:
        following = segments.higher(self.segment.base_offset)
        return offsets.stable if following is None else min(offsets.stable, following.base_offset)

    def _reach(self, segments: Segments, offsets: LogOffsets) -> None:
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

    def _map_next(self, segments: Segments, offsets: LogOffsets, limit: int) -> None:
        """Map one batch, since it, or one read together with it, cannot be read. What cannot is mapped as one byte,
        which cannot be read either: up to the batch's end, or to the next batch that can be told from damage."""
        first = self.map.next_offset
        behind = None
        with contextlib.suppress(CorruptError):
            found = self.segment.position_of(first)
            if found is not None:
                behind = max(first, found[3]) + 1
                size = self._size_between(first, min(behind, limit), segments, offsets)
                self.map.add_one(found[0], first, min(behind, limit) - 1, size)
                return
        position, sound = self.segment.damage_at(first)
        behind = min(limit, behind or sound or limit)
        self.damaged = True
        self._holes = (*self._holes, _Hole(self.map.rendered, first, behind))
        self.map.add_one(position, first, behind - 1, DAMAGE)

    def note(self, appended: Appended, size: int, offsets: LogOffsets) -> None:
        """Map a batch that was just appended, without reading it: where it follows what is mapped, and shows."""
        if self.map.next_offset != appended.first_offset or offsets.stable <= appended.last_offset:
            return
        with self._lock:
            if self.map.next_offset == appended.first_offset:
                self.map.add_one(appended.position, appended.first_offset, appended.last_offset, size)

    def _sizes(self, buffer: Bytes, table: Longs, origin: int) -> Longs:
        return self.format.sizes(buffer, table, origin, self.partition.topic, self.partition.number)

    def position_of(self, offset: int, segments: Segments, offsets: LogOffsets, is_end: bool = False) -> int:
        """Where in the text the first record at or above `offset` begins; the size where there is none. `is_end`: where
        the last one below it ends. Both are the same but in damage, which is to be met from either side."""
        self._reach(segments, offsets)
        if offset <= self.segment.base_offset:
            return 0
        following = segments.higher(self.segment.base_offset)
        # What lies behind the segment is not looked for in the next one.
        if offset >= self.map.next_offset or (following is not None and offset >= following.base_offset):
            return self.map.rendered
        for hole in self._holes:
            if hole.first < offset < hole.behind:
                return hole.start + (DAMAGE if is_end else 0)
        mark = self.map.before_offset(offset)
        if mark < 0:
            return 0
        (position, first), (stop, behind) = self._sound_around(
            offset, self._mark_at(mark), self._mark_at(mark + 1)
        )
        try:
            return position + self._size_between(first, offset, segments, offsets)
        except CorruptError:
            # It was damaged since it was mapped: measured from the other side, up to which all was sound then.
            return stop - self._size_between(offset, behind, segments, offsets)

    def _sound_around(
        self, offset: int, low: tuple[int, int], high: tuple[int, int]
    ) -> tuple[tuple[int, int], tuple[int, int]]:
        """The part between two places, positions with their offsets, that holds an offset and was mapped without a hole
        in it: between what is in a hole and its one byte no measure holds."""
        for hole in self._holes:
            if low[1] < hole.behind <= offset:
                low = hole.start + DAMAGE, hole.behind
            if offset <= hole.first < high[1]:
                return low, (hole.start, hole.first)
        return low, high

    def _size_between(self, start: int, end: int, segments: Segments, offsets: LogOffsets) -> int:
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

    def read(self, position: int, into: Bytes, segments: Segments, offsets: LogOffsets) -> int:
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

    def render_at(self, position: int, segments: Segments, offsets: LogOffsets) -> None:
        """Render the block with a position, if it is not there."""
        self._block_at(position, segments, offsets)

    def forget_blocks(self) -> None:
        """Let go of rendered bytes: nobody has the text open."""
        self._blocks = ()

    def _block_at(self, position: int, segments: Segments, offsets: LogOffsets) -> _Block | None:
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
                block = self._block_between(
                    *self._place_around(position, first, end), segments, offsets, sequential
                )
            except CorruptError as error:
                low, high = self._place_around(position, first, first + 1)
                block = self._beside_damage(low, high, position, segments, offsets, error)
            self._blocks = (block, *self._blocks[: _KEPT_BLOCKS - 1])
            return block

    def _place_around(self, position: int, first: int, end: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """From a mark to another, cut to what was mapped without a hole around a position; CorruptError where that lies
        in one."""
        low, high = self._mark_at(first), self._mark_at(end)
        for hole in self._holes:
            if hole.start <= position < hole.start + DAMAGE:
                raise CorruptBatchError(
                    f"{self.segment.path}: offsets {hole.first} to {hole.behind - 1} cannot be read, they are damaged"
                )
            if low[0] <= hole.start < position:
                low = hole.start + DAMAGE, hole.behind
            if position < hole.start < high[0]:
                return low, (hole.start, hole.first)
        return low, high

    def _block_between(
        self,
        low: tuple[int, int],
        high: tuple[int, int],
        segments: Segments,
        offsets: LogOffsets,
        in_turn: bool = False,
    ) -> _Block:
        """From a place to another."""
        size = high[0] - low[0]
        data = self._render(segments, offsets, low[1], high[1], size)
        if data.size != size and self._limit(segments, offsets) >= high[1]:
            raise CorruptBatchError(
                f"{self.segment.path}: expected {size} bytes of offsets {low[1]} to {high[1] - 1}, found {data.size}"
            )
        return _Block(low[0], data, in_turn)

    def _beside_damage(
        self,
        low: tuple[int, int],
        high: tuple[int, int],
        position: int,
        segments: Segments,
        offsets: LogOffsets,
        error: CorruptError,
    ) -> _Block:
        """What lies before damage that came since it was mapped, or behind it; the error where `position` is in it."""
        end, damage = low
        with contextlib.suppress(CorruptError):
            for buffer, table, origin in self._batches(segments, offsets, low[1], high[1]):
                topic, number = self.partition.topic, self.partition.number
                end += int(self.format.sizes(buffer, table, origin, topic, number, low[1], high[1]).sum())
                damage = min(high[1], int(table[-1, LAST_OFFSET]) + 1)
        if position < end:
            return self._block_between(low, (end, damage), segments, offsets)
        _, behind = self.segment.damage_at(damage)
        if behind is None or behind >= high[1]:
            raise error
        start = high[0] - self._size_between(behind, high[1], segments, offsets)
        if position < start:
            raise error
        return self._block_between((start, behind), high, segments, offsets)

    def _kept_block(self, position: int) -> _Block | None:
        for block in self._blocks:
            if block.start <= position < block.end:
                return block
        return None

    def _batches(
        self, segments: Segments, offsets: LogOffsets, start: int, end: int
    ) -> Iterator[tuple[Bytes, Longs, int]]:
        """The batches with records in [start, end) that show, of this segment: a map that was made when the next one
        was gone from the list may reach beyond its end."""
        limit = min(end, self._limit(segments, offsets))
        return read_batches(segments, offsets, start, limit, Isolation.COMMITTED)

    def _render(self, segments: Segments, offsets: LogOffsets, start: int, end: int, size: int) -> Bytes:
        """The records in [start, end), all of this segment, which are `size` bytes long."""
        out = np.empty(size, np.uint8)
        at = 0
        topic, number = self.partition.topic, self.partition.number
        for buffer, table, origin in self._batches(segments, offsets, start, end):
            at = self.format.render(buffer, table, origin, start, end, out, at, topic, number)
        return out[:at]
