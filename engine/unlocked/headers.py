"""The records of a range without keys, values, headers and timestamps, by the headers of batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from topicfs.engine import batch as batches
from topicfs.engine.batch.columns import Columns
from topicfs.engine.batch.table import Longs
from topicfs.engine.kernels.scan import BASE_OFFSET, COUNT, LAST_OFFSET, POSITION, SIZE
from topicfs.engine.segment.batch_file import BatchFile
from topicfs.engine.segment.walk import NOTHING
from topicfs.engine.unlocked.offset_range import OffsetRange
from topicfs.engine.unlocked.scan import segments, visible

IN_HEADERS: Final = frozenset({"topic", "partition", "offset", "timestampType"})
"""Columns of records that the headers of batches tell, or the place of the log."""


def columns_of_headers(part: OffsetRange, offsets: bool) -> Iterator[tuple[Columns, Longs]]:
    """Yield the records of a range that no time bounds, with the batches that hold them. Batches are read only where
    their headers do not tell which records they hold: where compaction left gaps, if the `offsets` matter, and at the
    ends of the range."""
    for log, start, stop, upper in segments(part):
        for table in log.headers(start, stop):
            log.check_fitting(table)
            kept = visible(table, part, upper)
            base, last, count = kept[:, BASE_OFFSET], kept[:, LAST_OFFSET], kept[:, COUNT]
            gaps = last + 1 - base - count
            inside = (base >= part.start) & (last < part.end)
            told = (gaps == 0) | (inside & (gaps > 0) & (count >= 0) & (not offsets))
            for rows in np.split(np.arange(len(kept)), np.flatnonzero(np.diff(told)) + 1):
                if len(rows):
                    for columns in _placed(kept[rows]) if told[rows[0]] else _read(log, kept[rows]):
                        yield columns.between(part.start, part.end), kept[rows]


def _placed(table: Longs) -> Iterator[Columns]:
    """Yield the records of batches one behind the other from each batch's base offset, by their number."""
    count = table[:, COUNT]
    before = np.cumsum(count) - count
    offsets = np.repeat(table[:, BASE_OFFSET] - before, count) + np.arange(int(count.sum()))
    nothing = np.broadcast_to(np.int32(0), len(offsets))
    yield Columns(NOTHING, offsets, offsets, *[nothing] * 6)


def _read(log: BatchFile, table: Longs) -> Iterator[Columns]:
    for row in table:
        buffer, found = log.batch_at(int(row[POSITION]), int(row[SIZE]))
        yield from batches.columns(buffer, found.reshape(1, -1))
