"""The offset from which on a partition shows its last N records.

Offsets count more than records: markers, records of aborted transactions and what compaction has removed have some too.
So batches are counted from the end backwards, in windows that double, until there are N records. Where nothing is
missing the first window is as long as it must be; else about twice that is looked at. Batches are checked as for a
reader: a damaged number of records is an error, not another answer.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from topicfs.engine import batch as batches
from topicfs.engine.batch.table import Longs
from topicfs.engine.errors import OffsetOutOfRangeError
from topicfs.engine.kernels.scan import BASE_OFFSET, COLUMNS, COUNT, LAST_OFFSET, POSITION, SIZE
from topicfs.engine.partition.offsets import Isolation
from topicfs.engine.partition.reader import read_batches
from topicfs.engine.partition.snapshot import Snapshot

_NONE: Final = np.empty((0, COLUMNS), np.int64)


def start_of_last(snapshot: Snapshot, count: int, isolation: Isolation) -> int:
    """Return the offset of the first of the last `count` visible records; the start offset if there are not more."""
    end = snapshot.limit(isolation)
    wanted = window = count
    while end > snapshot.start:
        begin = max(snapshot.start, end - window)
        tables = [table for _, table, _ in read_batches(snapshot, begin, end, isolation)]
        table = np.concatenate(tables) if tables else _NONE
        found, wanted = _from_end(snapshot, table, end, wanted)
        if found is not None:
            return found
        # The first batch of the window may begin before it: it was counted whole.
        end = min(begin, int(table[0, BASE_OFFSET])) if len(table) else begin
        window = max(wanted, 2 * window)
    return snapshot.start


def _from_end(snapshot: Snapshot, table: Longs, end: int, wanted: int) -> tuple[int | None, int]:
    """Look for a record by its number from the end of some batches. Return its offset, or None and how many are left to
    find before these batches."""
    counts = table[:, LAST_OFFSET] + 1 - table[:, BASE_OFFSET]
    is_whole = counts == table[:, COUNT]
    is_whole &= (table[:, BASE_OFFSET] >= snapshot.start) & (table[:, LAST_OFFSET] < end)
    behind = len(table)
    while behind:
        gaps = np.flatnonzero(~is_whole[:behind])
        first = int(gaps[-1]) + 1 if gaps.size else 0
        # In these batches no record is missing, so their numbers are enough.
        sums = np.cumsum(counts[first:behind][::-1])
        at = int(np.searchsorted(sums, wanted))
        if at < len(sums):
            before = int(sums[at - 1]) if at else 0
            return int(table[behind - 1 - at, LAST_OFFSET]) + 1 - (wanted - before), 0
        wanted -= int(sums[-1]) if len(sums) else 0
        if first:
            offsets = _offsets(snapshot, table[first - 1], end)
            if len(offsets) >= wanted:
                return int(offsets[len(offsets) - wanted]), 0
            wanted -= len(offsets)
        behind = max(0, first - 1)
    return None, wanted


def _offsets(snapshot: Snapshot, row: Longs, end: int) -> Longs:
    """Return the offsets that the records of a batch have, as far as they lie in the log and below an offset."""
    segment = snapshot.segments.floor(int(row[BASE_OFFSET]))
    if segment is None:
        raise OffsetOutOfRangeError(f"offset {row[BASE_OFFSET]} was removed before it was read")
    buffer, found = segment.log.batch_at(int(row[POSITION]), int(row[SIZE]))
    parts = [part.offsets for part in batches.columns(buffer, found.reshape(1, -1))]
    offsets = np.concatenate([np.empty(0, np.int64), *parts])  # compaction leaves empty batches, too
    return offsets[(offsets >= snapshot.start) & (offsets < end)]
