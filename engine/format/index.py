"""The offset index and the time index of a segment.

    <base>.index, entries of 8 bytes           both fields rise, the first one strictly
    0   int32  last offset of a batch - base
    4   int32  position where that batch begins

    <base>.timeindex, entries of 12 bytes      timestamps rise strictly, offsets never fall
    0   int64  timestamp
    8   int32  offset - base

An entry of the time index says: up to and including this offset no record is later than this timestamp, and the batch
that ends with the offset holds one that has it. One entry's room is kept free for the entry that is added when the
segment is sealed.

Big-endian. The number of entries is the file's length divided by theirs, rounded down: no header, no counter. We never
preallocate, so a file of ours is as long as its entries. A broker gives an active index its full size at once: behind
its entries are zeros then, and they do not count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from topicfs.engine.format.layout import Layout

OFFSET_ENTRY: Final = Layout(offset="i", position="i")
TIME_ENTRY: Final = Layout(timestamp="q", offset="i")
OFFSET_ENTRY_SIZE: Final = OFFSET_ENTRY.size
TIME_ENTRY_SIZE: Final = TIME_ENTRY.size


class Index:
    """An index, searched where it lies: some twenty reads of a few bytes.

    base     of the segment
    entries  how many count
    _layout  of an entry
    _read    gives bytes of the file: from a position on, so many
    """

    __slots__ = ("_layout", "_read", "base", "entries")

    def __init__(self, base: int, layout: Layout, size: int, read: Callable[[int, int], bytes]) -> None:
        self.base = base
        self._layout = layout
        self._read = read
        low, high = 0, size // layout.size
        if high and any(self.at(high - 1)):
            low = high
        while low < high:
            middle = (low + high) // 2
            if any(self.at(middle)):
                low = middle + 1
            else:
                high = middle
        self.entries = low

    @classmethod
    def of(cls, base: int, layout: Layout, data: bytes) -> Index:
        """The index of a file that was read."""
        return cls(base, layout, len(data), lambda position, length: data[position : position + length])

    def at(self, number: int) -> tuple[int, int]:
        """One entry, as it is stored. What was cut off meanwhile is zero."""
        size = self._layout.size
        first, second = self._layout.struct.unpack(self._read(number * size, size).ljust(size, b"\0"))
        return first, second

    def last(self) -> tuple[int, int] | None:
        """The last entry, None where there is none."""
        found = self.at(self.entries - 1) if self.entries else (0, 0)
        return found if any(found) else None

    def count_up_to(self, field: int, limit: int) -> int:
        """How many entries have at most `limit` in a field."""
        low, high = 0, self.entries
        while low < high:
            middle = (low + high) // 2
            if self.at(middle)[field] <= limit:
                low = middle + 1
            else:
                high = middle
        return low
