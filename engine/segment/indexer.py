"""The entries that batches at the end of a log add to its two indexes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from topicfs.engine.batch.table import Longs
from topicfs.engine.errors import InvalidOffsetError, OffsetOverflowError
from topicfs.engine.format.index import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE
from topicfs.engine.kernels.scan import LAST_OFFSET
from topicfs.engine.kernels.search import index_entries
from topicfs.engine.record import MAX_INT32, NO_TIMESTAMP
from topicfs.engine.segment.batch_file import Latest
from topicfs.engine.segment.finder import Finder
from topicfs.engine.segment.walk import NOTHING


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries that batches add to the indexes.

    offsets, times  entries as they are stored
    since           `since` of the indexer behind the batches
    largest         `largest` of the finder behind the batches
    """

    offsets: memoryview
    times: memoryview
    since: int
    largest: Latest


class Indexer:
    """Adds entries to both indexes of a log, behind those that they have.

    finder  holds the indexes
    since   bytes of the log since the last index entry
    """

    __slots__ = ("finder", "since")

    def __init__(self, finder: Finder) -> None:
        self.finder = finder
        self.since = 0

    def entries_for(self, table: Longs, position: int, length: int) -> Entries:
        """Return the index entries for batches that begin at `position`. Nothing is changed."""
        finder = self.finder
        batches, offset_index, time_index = finder.log, finder.offset_index, finder.time_index
        offsets = times = NOTHING
        last_indexed = NO_TIMESTAMP
        if self.since + length > finder.interval:
            offsets = np.empty(min(len(table), offset_index.room) * OFFSET_ENTRY_SIZE, np.uint8)
            times = np.empty(min(len(table), time_index.room) * TIME_ENTRY_SIZE, np.uint8)
            last_indexed = time_index.last_entry[0]
        bad, total, offset_count, time_count, since, largest, largest_at = index_entries(
            table,
            batches.base_offset,
            position,
            finder.interval,
            self.since,
            *finder.latest(),
            last_indexed,
            offsets,
            times,
        )
        if bad >= 0:
            raise OffsetOverflowError(
                f"{batches.path}: expected last offsets from {batches.base_offset} to "
                f"{batches.base_offset + MAX_INT32}, found {table[bad, LAST_OFFSET]}"
            )
        if total != length:
            raise ValueError(f"{batches.path}: {length} bytes to append, but a batch table for {total}")
        if offset_count and offset_index.entries:
            first = batches.base_offset + int.from_bytes(offsets[:4].tobytes(), "big")
            last = offset_index.last_offset
            if first <= last:
                raise InvalidOffsetError(f"{batches.path}: expected an offset above {last}, found {first}")
        return Entries(
            memoryview(offsets)[: offset_count * OFFSET_ENTRY_SIZE],
            memoryview(times)[: time_count * TIME_ENTRY_SIZE],
            since,
            (largest, largest_at),
        )

    def add(self, entries: Entries) -> None:
        """Add entries to the indexes. OSError if there is no room for them: some may have been added."""
        if entries.offsets:
            self.finder.offset_index.append_bytes(entries.offsets)
        if entries.times:
            self.finder.time_index.append_bytes(entries.times)
