"""The time index of a segment. `topicfs.engine.format.index` draws its file."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from topicfs.engine.errors import CorruptIndexError, InvalidOffsetError
from topicfs.engine.format.index import TIME_ENTRY
from topicfs.engine.kernels.search import floor_slot, lookup_time
from topicfs.engine.record import NO_TIMESTAMP
from topicfs.engine.segment.offset_index import IndexBytes, IndexFile

_OFFSET_AT: Final = TIME_ENTRY.place_of("offset")


class TimeIndex(IndexFile):
    """Maps the largest timestamp so far to the last offset of its batch. Its fields are those of IndexFile."""

    __slots__ = ()

    ENTRY_SIZE: ClassVar[int] = TIME_ENTRY.size
    FIELDS: ClassVar[np.dtype[np.void]] = TIME_ENTRY.dtype()

    @property
    def room(self) -> int:
        """Return how many entries can still be appended, without the one that is kept for sealing."""
        return max(0, self.max_entries - 1 - self.view()[1])

    @property
    def last_entry(self) -> tuple[int, int]:
        """Return timestamp and offset of the last entry; (-1, base) without one."""
        entries = self.entries
        return self.entry(entries - 1) if entries else (NO_TIMESTAMP, self.base_offset)

    def floor(self, timestamp: int) -> tuple[int, int, int]:
        """Return number, timestamp and offset of the last entry at or before a time; (-1, -1, base) without one."""
        data, entries = self.view()
        slot, found, relative = lookup_time(data, entries, timestamp)
        return int(slot), int(found), self.base_offset + int(relative)

    def entry(self, number: int) -> tuple[int, int]:
        """Return timestamp and offset of one entry."""
        timestamp, relative = TIME_ENTRY.struct.unpack_from(*self._place_of(number))
        return timestamp, self.base_offset + relative

    def entry_of(self, timestamp: int, offset: int) -> IndexBytes:
        """Return an entry in its stored form."""
        return np.frombuffer(TIME_ENTRY.struct.pack(timestamp, self._relative(offset)), np.uint8)

    def entry_in(self, entries: IndexBytes, number: int) -> tuple[int, int]:
        """Return timestamp and offset of one of several entries in their stored form."""
        timestamp, relative = TIME_ENTRY.struct.unpack_from(entries, number * TIME_ENTRY.size)
        return timestamp, self.base_offset + relative

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """Return timestamp and offset of the last entry at or before a time; (-1, base) without one."""
        return self.floor(timestamp)[1:]

    def maybe_append(self, timestamp: int, offset: int, skip_full: bool = False) -> None:
        """Add an entry if it is later than the last one. `skip_full` uses the room kept for sealing."""
        if not skip_full:
            self._refuse_when_full()
        last_timestamp, last_offset = self.last_entry
        if self.entries and offset < last_offset:
            raise InvalidOffsetError(f"{self.path}: expected an offset from {last_offset} on, found {offset}")
        if self.entries and timestamp < last_timestamp:
            raise ValueError(f"{self.path}: expected a timestamp from {last_timestamp} on, found {timestamp}")
        if timestamp > last_timestamp:
            self.append_bytes(memoryview(TIME_ENTRY.struct.pack(timestamp, self._relative(offset))))

    def entries_below(self, offset: int) -> int:
        """Return how many entries have an offset below `offset`."""
        data, entries = self.view()
        slot = floor_slot(data, entries, TIME_ENTRY.size, _OFFSET_AT, offset - 1 - self.base_offset)
        return int(slot) + 1

    def truncate_to(self, offset: int) -> None:
        """Keep the entries whose offset is below `offset`."""
        self.keep(self.entries_below(offset))

    def sanity_check(self) -> None:
        """Raise CorruptIndexError if the file cannot be an index of this segment."""
        self.check_length()
        if not self.entries:
            return
        last_timestamp, last_offset = self.last_entry
        if last_timestamp < self.entry(0)[0]:
            raise CorruptIndexError(
                f"{self.path}: expected a last timestamp from {self.entry(0)[0]} on, found {last_timestamp}"
            )
        if last_offset < self.base_offset:
            raise CorruptIndexError(
                f"{self.path}: expected a last offset from {self.base_offset} on, found {last_offset}"
            )
