"""The offset index and the time index of a segment.

    <base>.index, entries of 8 bytes           both fields rise, the first one strictly
    0   int32  last offset of a batch - base
    4   int32  position where that batch begins

    <base>.timeindex, entries of 12 bytes      timestamps rise strictly, offsets never fall
    0   int64  timestamp
    8   int32  offset - base

An entry of the time index says: up to and including this offset no record has a later timestamp than this one, and the
batch that ends with the offset has a record with it. Room for one entry is kept free, for the entry that is added when
the segment is sealed.

Numbers are big-endian. There is no header and no counter: the number of entries is the file's length divided by the
entry size, rounded down. We never preallocate, so a file of ours is as long as its entries. A broker gives an active
index its full size at once: the zeros behind its entries do not count.
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
    """An index that is searched in its file, without loading it: a search takes some twenty reads of a few bytes.

    base     the base offset of the segment
    entries  the number of entries, without zeros at the end
    _layout  the layout of an entry
    _read    returns bytes of the file, given a position and a length
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
        """Return the index with this content of its file."""
        return cls(base, layout, len(data), lambda position, length: data[position : position + length])

    def at(self, number: int) -> tuple[int, int]:
        """Return one entry as it is stored. Bytes that were cut off meanwhile count as zero."""
        size = self._layout.size
        first, second = self._layout.struct.unpack(self._read(number * size, size).ljust(size, b"\0"))
        return first, second

    def last(self) -> tuple[int, int] | None:
        """Return the last entry; None where there is none."""
        found = self.at(self.entries - 1) if self.entries else (0, 0)
        return found if any(found) else None

    def count_up_to(self, field: int, limit: int) -> int:
        """Return the number of entries that have at most `limit` in a field."""
        low, high = 0, self.entries
        while low < high:
            middle = (low + high) // 2
            if self.at(middle)[field] <= limit:
                low = middle + 1
            else:
                high = middle
        return low
