"""The batch table: one row for each batch of a buffer, and the array types that batches are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from topicfs.engine.errors import CorruptBatchError
from topicfs.engine.format.batch_header import HEADER_SIZE, TRANSACTIONAL
from topicfs.engine.format.transaction_index import AbortedTransaction
from topicfs.engine.kernels import scan as scanning
from topicfs.engine.kernels.scan import ATTRIBUTES, BASE_OFFSET, LAST_OFFSET, POSITION, PRODUCER_ID, SIZE

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]


class Batch(NamedTuple):
    """A batch in a buffer of its own.

    data  its bytes
    row   its row of a batch table, in which it begins at position 0
    """

    data: Bytes
    row: Longs


class Batches(NamedTuple):
    """Batches in one buffer, one behind the other: they are appended by one write.

    data   their bytes
    table  a row for each, in which the first one begins at position 0
    """

    data: Bytes
    table: Longs

    @classmethod
    def joined(cls, parts: Sequence[Batch]) -> Batches:
        """Join batches that begin at offset 0 each: the offsets of one go on where those of the one before end."""
        if len(parts) == 1:
            return cls(parts[0].data, parts[0].row.reshape(1, -1))
        table = np.array([part.row for part in parts])
        sizes, counts = table[:, SIZE], table[:, LAST_OFFSET] - table[:, BASE_OFFSET] + 1
        table[:, POSITION] = np.cumsum(sizes) - sizes
        table[:, BASE_OFFSET] = np.cumsum(counts) - counts
        table[:, LAST_OFFSET] = np.cumsum(counts) - 1
        return cls(np.concatenate([part.data for part in parts]), table)

    def each(self) -> Iterator[Batch]:
        """Yield the batches, each as it is by itself."""
        for row in self.table:
            start, count = int(row[POSITION]), int(row[LAST_OFFSET] - row[BASE_OFFSET] + 1)
            alone = row.copy()
            alone[[POSITION, BASE_OFFSET, LAST_OFFSET]] = 0, 0, count - 1
            yield Batch(self.data[start : start + int(row[SIZE])], alone)


def scan(data: Bytes, check: bool = True) -> Longs:
    """Return the batch table of bytes that must be complete batches, one behind the other."""
    table, used = scan_whole(data, check)
    if used < data.size:
        raise CorruptBatchError(f"batch at byte {used} of {data.size}: {scanning.PROBLEMS[scanning.PARTIAL]}")
    return table


def scan_whole(data: Bytes, check: bool = True) -> tuple[Longs, int]:
    """Return the batch table of the complete batches at the beginning, and their bytes: the last batch may be cut off,
    as in the answer to a fetch."""
    rows = max(1, data.size // HEADER_SIZE) if data.size < 64 * HEADER_SIZE else 64
    tables, start = [], 0
    while True:
        table = np.empty((rows, scanning.COLUMNS), np.int64)
        found, used, status = scanning.scan(data, start, data.size, 0, int(check), table)
        tables.append(table[:found])
        start += used
        if status in (scanning.DONE, scanning.PARTIAL):
            return tables[0] if len(tables) == 1 else np.concatenate(tables), start
        if status != scanning.FULL:
            raise CorruptBatchError(f"batch at byte {start} of {data.size}: {scanning.PROBLEMS[status]}")
        rows = min(4 * rows, 16384)


def without_aborted(table: Longs, aborted: Callable[[int, int], Iterable[AbortedTransaction]]) -> Longs:
    """Return the rows of batches that belong to no aborted transaction. `aborted` gives the aborted transactions
    that overlap the offsets [start, end). It is called only if a batch belongs to a transaction."""
    transactional = table[:, ATTRIBUTES] & TRANSACTIONAL != 0
    if not transactional.any():
        return table
    keep = np.ones(len(table), np.bool_)
    for each in aborted(int(table[0, BASE_OFFSET]), int(table[-1, LAST_OFFSET]) + 1):
        keep &= ~(
            transactional
            & (table[:, PRODUCER_ID] == each.producer_id)
            & (table[:, BASE_OFFSET] >= each.first_offset)
            & (table[:, LAST_OFFSET] <= each.last_offset)
        )
    return table[keep]
