"""The offset from which on a partition shows its last N records.

Offsets count more than records: markers, records of aborted transactions and what compaction has removed have some too.
So batches are counted from the end backwards, in windows that double, until there are N records. Where nothing is
missing the first window is as long as it must be; else about twice that is looked at. Batches are checked as for a
reader: a damaged number of records is an error, not another answer.
"""

from __future__ import annotations

import numpy as np

from topicfs.engine import batch as batches
from topicfs.engine.batch.table import Longs
from topicfs.engine.errors import OffsetOutOfRangeError
from topicfs.engine.kernels.scan import BASE_OFFSET, COUNT, LAST_OFFSET, POSITION, SIZE
from topicfs.engine.partition.offsets import Isolation
from topicfs.engine.partition.reader import read_batches
from topicfs.engine.partition.snapshot import Snapshot


def start_of_last(snapshot: Snapshot, count: int, isolation: Isolation) -> int:
    """Return the offset of the first of the last `count` visible records; the start offset if there are not more."""
    end = snapshot.limit(isolation)
    wanted = window = count
    while end > snapshot.start:
        begin = max(snapshot.start, end - window)
        rows = [row for _, table, _ in read_batches(snapshot, begin, end, isolation) for row in table]
        for row in reversed(rows):
            known = _count(row, snapshot.start, end)
            offsets = None if known is not None else _offsets(snapshot, row, end)
            there = len(offsets) if offsets is not None else known or 0
            if there >= wanted:
                return int(row[LAST_OFFSET]) + 1 - wanted if offsets is None else int(offsets[there - wanted])
            wanted -= there
        # The first batch of the window may begin before it: it was counted whole.
        end = min(begin, int(rows[0][BASE_OFFSET])) if rows else begin
        window = max(wanted, 2 * window)
    return snapshot.start


def _count(row: Longs, start: int, end: int) -> int | None:
    """Return how many records a batch has, if it lies between two offsets and none of its own is missing; else None."""
    base, following = int(row[BASE_OFFSET]), int(row[LAST_OFFSET]) + 1
    is_whole = start <= base and following <= end and following - base == row[COUNT]
    return following - base if is_whole else None


def _offsets(snapshot: Snapshot, row: Longs, end: int) -> Longs:
    """Return the offsets that the records of a batch have, as far as they lie in the log and below an offset."""
    segment = snapshot.segments.floor(int(row[BASE_OFFSET]))
    if segment is None:
        raise OffsetOutOfRangeError(f"offset {row[BASE_OFFSET]} was removed before it was read")
    buffer, found = segment.log.batch_at(int(row[POSITION]), int(row[SIZE]))
    parts = [part.offsets for part in batches.columns(buffer, found.reshape(1, -1))]
    offsets = np.concatenate([np.empty(0, np.int64), *parts])  # compaction leaves empty batches, too
    return offsets[(offsets >= snapshot.start) & (offsets < end)]
