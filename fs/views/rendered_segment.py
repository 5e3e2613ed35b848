"""A rendered segment: one segment in one format, as bytes whose positions never change once a reader has seen them.

Every view of a partition consists of spans of rendered segments. They contain only records below the stable offset,
and none of an aborted transaction: below the stable offset, the outcome of every transaction is final.
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
from topicfs.engine.partition.offsets import Appended, Isolation
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.reader import read_batches
from topicfs.engine.partition.snapshot import Snapshot
from topicfs.engine.segment.segment import Segment
from topicfs.fs.formats import Format, Labels, labels_of
from topicfs.fs.views.size_map import SizeMap

BLOCK: Final = 1 << 20
"""Bytes that are rendered at once for a sequential reader. Marks are some 64 KiB apart."""

_KEPT_BLOCKS: Final = 4

DAMAGE: Final = 1
"""Bytes that an unreadable batch takes in a rendered segment: enough that no reader passes it without an error."""


@dataclass(frozen=True, slots=True)
class Block:
    """Rendered bytes, from one mark to another.

    start    the position of the first byte in the rendered segment
    in_turn  whether a sequential reader asked for it, which will need the next block too
    """

    start: int
    data: Bytes
    in_turn: bool = False

    @property
    def end(self) -> int:
        """Return the position behind the last byte."""
        return self.start + self.data.size


@dataclass(frozen=True, slots=True)
class _Hole:
    """A damaged range, as it was mapped: all its offsets together take DAMAGE bytes.

    start          its position in the rendered segment
    first, behind  its offsets: [first, behind)
    problem        what is wrong with it
    """

    start: int
    first: int
    behind: int
    problem: str


class RenderedSegment:
    """One segment, rendered in one format. Methods take a snapshot of the log: transactions may end in later segments.

    partition, segment  the segment that is rendered, and its partition
    format              the format in which it is rendered
    map                 where batches begin, up to the offset that was mapped so far
    damaged             whether the map has batches that could not be read; such a map is not saved
    _holes              the damaged ranges in the map, by rising offset; the tuple is replaced, never changed
    _lock               held while the map grows or a block is rendered
    _blocks             the blocks that were rendered last, newest first; the tuple is replaced, never changed
    """

    __slots__ = ("_blocks", "_holes", "_lock", "damaged", "format", "map", "partition", "segment")

    def __init__(self, partition: Partition, segment: Segment, fmt: Format, known: SizeMap | None) -> None:
        self.partition = partition
        self.segment = segment
        self.format = fmt
        self.map = SizeMap(segment.base_offset) if known is None else known
        self.damaged = False
        self._lock = threading.Lock()
        self._blocks: tuple[Block, ...] = ()
        self._holes: tuple[_Hole, ...] = ()

    def size(self, snapshot: Snapshot) -> int:
        """Return the size in bytes of the rendered segment, as of a snapshot."""
        self._reach(snapshot)
        return self.map.rendered

    def is_complete(self, snapshot: Snapshot) -> bool:
        """Tell whether it can no longer grow: the segment is sealed, and all its transactions are decided."""
        following = snapshot.segments.higher(self.segment.base_offset)
        return following is not None and snapshot.stable >= following.base_offset

    def _limit(self, snapshot: Snapshot) -> int:
        following = snapshot.segments.higher(self.segment.base_offset)
        return snapshot.stable if following is None else min(snapshot.stable, following.base_offset)

    def _reach(self, snapshot: Snapshot) -> None:
        """Map the records that have become visible."""
        limit = self._limit(snapshot)
        if self.map.next_offset >= limit:
            return
        if snapshot.segments.at(self.segment.base_offset) is not self.segment:
            # In a newer list another segment has this place. Its records do not belong to this rendered segment.
            return
        with self._lock:
            start = self.map.next_offset
            if start >= limit:
                return
            while start < limit:
                try:
                    for buffer, table, origin in self._batches(snapshot, start, limit):
                        new = table[table[:, LAST_OFFSET] >= start]
                        self.map.add(new, self.format.sizes(buffer, new, origin, self._labels))
                except CorruptError:
                    self._map_next(snapshot, limit)
                else:
                    self.map.skip_to(limit)
                start = self.map.next_offset

    def _map_next(self, snapshot: Snapshot, limit: int) -> None:
        """Map one batch, because this batch, or one read together with it, cannot be read. An unreadable batch is
        mapped as one unreadable byte: up to the end of the batch, or to the next batch that is recognised."""
        first = self.map.next_offset
        behind = None
        problem = "no batch of the segment holds them"
        try:
            found = self.segment.position_of(first)
            if found is not None:
                behind = max(first, found[3]) + 1
                size = self._size_between(first, min(behind, limit), snapshot)
                self.map.add_one(found[0], first, min(behind, limit) - 1, size)
                return
        except CorruptError as error:
            problem = str(error)
        position, sound = self.segment.finder.damage_at(first)
        behind = min(limit, behind or sound or limit)
        self.damaged = True
        self._holes = (*self._holes, _Hole(self.map.rendered, first, behind, problem))
        self.map.add_one(position, first, behind - 1, DAMAGE)

    def note(self, appended: Appended, size: int, stable: int) -> None:
        """Map a batch that was just appended, without reading it, if it follows what is mapped and is visible."""
        if self.map.next_offset != appended.first_offset or stable <= appended.last_offset:
            return
        with self._lock:
            if self.map.next_offset == appended.first_offset:
                self.map.add_one(appended.position, appended.first_offset, appended.last_offset, size)

    @property
    def _labels(self) -> Labels:
        return labels_of(self.partition.topic, self.partition.number)

    def position_of(self, offset: int, snapshot: Snapshot, is_end: bool = False) -> int:
        """Return the position of the first record at or above `offset`, or the size if there is none. With `is_end`,
        return where the last record below it ends. They differ only in damage, met by readers from both sides."""
        self._reach(snapshot)
        if offset <= self.segment.base_offset:
            return 0
        following = snapshot.segments.higher(self.segment.base_offset)
        # An offset behind the segment is not looked for in the next segment.
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
            return position + self._size_between(first, offset, snapshot)
        except CorruptError:
            # The segment was damaged after it was mapped. Measure from the other end: up to there all was sound then.
            return stop - self._size_between(offset, behind, snapshot)

    def _sound_around(
        self, offset: int, low: tuple[int, int], high: tuple[int, int]
    ) -> tuple[tuple[int, int], tuple[int, int]]:
        """Narrow the range between two places (position, offset) to the part around `offset` that has no mapped hole.
        Sizes cannot be measured across a hole, as its records take just one byte."""
        for hole in self._holes:
            if low[1] < hole.behind <= offset:
                low = hole.start + DAMAGE, hole.behind
            if offset <= hole.first < high[1]:
                return low, (hole.start, hole.first)
        return low, high

    def _size_between(self, start: int, end: int, snapshot: Snapshot) -> int:
        """Return the bytes of the records in [start, end). The records are read for this."""
        size = 0
        for buffer, table, origin in self._batches(snapshot, start, end):
            size += int(self.format.sizes(buffer, table, origin, self._labels, start, end).sum())
        return size

    def _mark_at(self, number: int) -> tuple[int, int]:
        """Return the position and the offset of a mark, or of the end of the map."""
        marks = self.map.marks
        if number < len(marks):
            return int(marks[number, 1]), int(marks[number, 2])
        return self.map.rendered, self.map.next_offset

    def read(self, position: int, into: Bytes, snapshot: Snapshot) -> int:
        """Fill `into` with the rendered bytes from `position` on. Return how many bytes there were."""
        done = 0
        while done < into.size:
            block = self._block_at(position + done, snapshot)
            if block is None:
                break
            start = position + done - block.start
            length = min(block.data.size - start, into.size - done)
            if length <= 0:
                # Other threads have mapped more in the meantime than this snapshot makes visible.
                break
            into[done : done + length] = block.data[start : start + length]
            done += length
        return done

    def next_wanted(self, first: int, last: int) -> int | None:
        """Return where the block begins that a sequential reader needs next, who has just read from one position to
        another. None at the end of the map, or if the newest block does not hold the last position, or if one of the
        blocks was not read in sequence."""
        blocks = self._blocks
        if not blocks or not blocks[0].in_turn or not blocks[0].start <= last < blocks[0].end:
            return None
        # A large read here and there may lie in two blocks as well. The first of them is not in turn.
        begun = self.kept_block(first)
        if begun is None or not begun.in_turn:
            return None
        return blocks[0].end if blocks[0].end < self.map.rendered else None

    def render_at(self, position: int, snapshot: Snapshot) -> None:
        """Render the block that contains a position, unless it is rendered already."""
        self._block_at(position, snapshot)

    def forget_blocks(self) -> None:
        """Drop the rendered blocks: a view of the segment was closed, or other segments are read now."""
        self._blocks = ()

    def _block_at(self, position: int, snapshot: Snapshot) -> Block | None:
        found = self.kept_block(position)
        if found is not None:
            return found
        self._reach(snapshot)
        if position >= self.map.rendered:
            return None
        with self._lock:
            found = self.kept_block(position)
            if found is not None:
                return found
            marks = self.map.marks
            first = self.map.before_rendered(position)
            # The kernel reads ahead with several requests at once, which arrive in any order.
            sequential = any(0 <= position - block.end < BLOCK for block in self._blocks)
            end = self.map.before_rendered(int(marks[first, 1]) + BLOCK) if sequential else first + 1
            end = max(end, first + 1)
            try:
                block = self._block_between(*self._place_around(position, first, end), snapshot, sequential)
            except CorruptError as error:
                low, high = self._place_around(position, first, first + 1)
                block = self._beside_damage(low, high, position, snapshot, error)
            self._blocks = (block, *self._blocks[: _KEPT_BLOCKS - 1])
            return block

    def _place_around(self, position: int, first: int, end: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the places of two marks, narrowed to the part around a position that has no mapped hole. CorruptError
        if the position lies in a hole."""
        low, high = self._mark_at(first), self._mark_at(end)
        for hole in self._holes:
            if hole.start <= position < hole.start + DAMAGE:
                raise CorruptBatchError(
                    f"{self.segment.path}: offsets {hole.first} to {hole.behind - 1} cannot be read: {hole.problem}"
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
        snapshot: Snapshot,
        in_turn: bool = False,
    ) -> Block:
        """Render the block from one place to another."""
        size = high[0] - low[0]
        data = self._render(snapshot, low[1], high[1], size)
        if data.size != size and self._limit(snapshot) >= high[1]:
            raise CorruptBatchError(
                f"{self.segment.path}: expected {size} bytes of offsets {low[1]} to {high[1] - 1}, found {data.size}"
            )
        return Block(low[0], data, in_turn)

    def _beside_damage(
        self,
        low: tuple[int, int],
        high: tuple[int, int],
        position: int,
        snapshot: Snapshot,
        error: CorruptError,
    ) -> Block:
        """Render what lies before later damage, or behind it. Raise `error` if `position` is in the damage."""
        end, damage = low
        with contextlib.suppress(CorruptError):
            for buffer, table, origin in self._batches(snapshot, low[1], high[1]):
                end += int(self.format.sizes(buffer, table, origin, self._labels, low[1], high[1]).sum())
                damage = min(high[1], int(table[-1, LAST_OFFSET]) + 1)
        if position < end:
            return self._block_between(low, (end, damage), snapshot)
        _, behind = self.segment.finder.damage_at(damage)
        if behind is None or behind >= high[1]:
            raise error
        start = high[0] - self._size_between(behind, high[1], snapshot)
        if position < start:
            raise error
        return self._block_between((start, behind), high, snapshot)

    def kept_block(self, position: int) -> Block | None:
        """Return the rendered block that holds a position; None if it is not in memory."""
        for block in self._blocks:
            if block.start <= position < block.end:
                return block
        return None

    def _batches(self, snapshot: Snapshot, start: int, end: int) -> Iterator[tuple[Bytes, Longs, int]]:
        """Read the visible batches with records in [start, end) of this segment. The limit is needed, as a map that was
        made while the next segment was missing from the list may reach beyond the end of this one."""
        limit = min(end, self._limit(snapshot))
        return read_batches(snapshot, start, limit, Isolation.COMMITTED)

    def _render(self, snapshot: Snapshot, start: int, end: int, size: int) -> Bytes:
        """Render the records in [start, end), which all belong to this segment and take `size` bytes."""
        out = np.empty(size, np.uint8)
        at = 0
        for buffer, table, origin in self._batches(snapshot, start, end):
            at = self.format.render(buffer, table, origin, start, end, out, at, self._labels)
        return out[:at]
