"""The transactions in a clean: which batches were aborted, and which markers are no longer needed.

A marker is kept if a batch of its transaction was seen in the same pass, even an empty one. Without any batch, it
first gets a delete horizon, and is removed when that is over: a slow reader has that much time to see it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from topicfs.engine import batch as batches
from topicfs.engine.batch.table import Bytes, Longs
from topicfs.engine.errors import CorruptBatchError
from topicfs.engine.format.batch_header import CONTROL, DELETE_HORIZON, TRANSACTIONAL
from topicfs.engine.format.transaction_index import AbortedTransaction
from topicfs.engine.kernels.compact import DISCARD, EMPTY_TRANSACTION
from topicfs.engine.kernels.scan import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    COUNT,
    LAST_OFFSET,
    POSITION,
    PRODUCER_ID,
)


@dataclass(slots=True)
class _Aborted:
    """An aborted transaction whose marker has not been read yet.

    entry  its entry in the transaction index
    seen   whether one of its batches was seen
    """

    entry: AbortedTransaction
    seen: bool = False


class Transactions:
    """The transactions of one pass over a log, in the order of offsets.

    _waiting    aborted transactions that have not begun, the next one last
    _aborted    aborted transactions that have begun, by producer: each has at most one
    _committed  producers with seen batches that belong to no aborted transaction, up to their marker
    """

    __slots__ = ("_aborted", "_committed", "_waiting")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._waiting = sorted(aborted, key=attrgetter("first_offset"), reverse=True)
        self._aborted: dict[int, _Aborted] = {}
        self._committed: set[int] = set()

    def judge(
        self, buffer: Bytes, table: Longs, now: int, where: str
    ) -> tuple[Bytes, list[AbortedTransaction]]:
        """Return a byte of flags for each of the next batches, found without reading their records, and the entries
        of aborted transactions that are still needed. `where` is for messages."""
        flags = np.zeros(len(table), np.uint8)
        kept: list[AbortedTransaction] = []
        if not int(np.bitwise_or.reduce(table[:, ATTRIBUTES])) & (CONTROL | TRANSACTIONAL):
            return flags, kept
        first = 0
        for at in (table[:, ATTRIBUTES] & CONTROL).nonzero()[0].tolist():
            self._see_data(table[first:at], flags[first:at])
            try:
                flags[at] = self._see_control(buffer, table[at], int(table[0, POSITION]), now, kept)
            except CorruptBatchError as error:
                raise CorruptBatchError(
                    f"{where}: batch at position {table[at, POSITION]}: {error}"
                ) from error
            first = at + 1
        self._see_data(table[first:], flags[first:])
        return flags, kept

    def _begin(self, offset: int) -> None:
        """Begin the aborted transactions that start up to an offset."""
        while self._waiting and self._waiting[-1].first_offset <= offset:
            entry = self._waiting.pop()
            self._aborted[entry.producer_id] = _Aborted(entry)

    def _see_data(self, table: Longs, flags: Bytes) -> None:
        """Process batches among which there is no control batch."""
        transactional = table[:, ATTRIBUTES] & TRANSACTIONAL != 0
        if not transactional.any():
            return
        self._begin(int(table[-1, LAST_OFFSET]))
        for producer_id in np.unique(table[transactional, PRODUCER_ID]).tolist():
            mine = transactional & (table[:, PRODUCER_ID] == producer_id)
            aborted = self._aborted.get(producer_id)
            if aborted is not None:
                of_it = mine & (table[:, BASE_OFFSET] >= aborted.entry.first_offset)
                of_it &= table[:, LAST_OFFSET] <= aborted.entry.last_offset
                if of_it.any():
                    aborted.seen = True
                    flags[of_it] |= DISCARD
                    mine &= ~of_it
            if mine.any():
                self._committed.add(producer_id)

    def _see_control(
        self, buffer: Bytes, row: Longs, origin: int, now: int, kept: list[AbortedTransaction]
    ) -> int:
        self._begin(int(row[LAST_OFFSET]))
        if row[COUNT]:
            marker = batches.marker(buffer, row, origin)
            if marker is None:
                return 0
            if not self._is_of_empty(int(row[PRODUCER_ID]), marker.kind == batches.ABORT, kept):
                return 0
        has_horizon = int(row[ATTRIBUTES]) & DELETE_HORIZON
        return EMPTY_TRANSACTION | (DISCARD if has_horizon and row[BASE_TIMESTAMP] <= now else 0)

    def _is_of_empty(self, producer_id: int, is_abort: bool, kept: list[AbortedTransaction]) -> bool:
        """Return whether a marker ends a transaction of which no batch was seen."""
        if is_abort:
            aborted = self._aborted.pop(producer_id, None)
            if aborted is None or not aborted.seen:
                return True
            kept.append(aborted.entry)
            return False
        if producer_id in self._committed:
            self._committed.remove(producer_id)
            return False
        return True
