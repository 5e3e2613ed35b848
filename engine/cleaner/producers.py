"""The batches without which a producer's state could not be told from the log.

The last batch of each live producer has its last sequence number; of a producer that has written nothing in its
epoch, the marker has the epoch. Of these at least the header stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from topicfs.engine.batch.table import Bytes, Longs
from topicfs.engine.format.batch_header import CONTROL
from topicfs.engine.kernels.compact import RETAIN_EMPTY
from topicfs.engine.kernels.scan import ATTRIBUTES, LAST_OFFSET, PRODUCER_EPOCH, PRODUCER_ID
from topicfs.engine.producer.entry import ProducerEntry
from topicfs.engine.record import NO_OFFSET


@dataclass(frozen=True, slots=True)
class LiveProducers:
    """What the producers of a log need of it.

    offsets  the last data offset of each that has one, rising
    ids      whose they are
    epochs   epoch of each that has none, by producer
    """

    offsets: Longs
    ids: Longs
    epochs: Mapping[int, int]

    @classmethod
    def of(cls, producers: Mapping[int, ProducerEntry]) -> LiveProducers:
        """Those of a log, whose lock the caller holds."""
        written = sorted(
            (entry.last_data_offset, entry.producer_id)
            for entry in producers.values()
            if entry.last_data_offset != NO_OFFSET
        )
        offsets, ids = np.array(written, np.int64).reshape(-1, 2).T.copy()
        epochs = {
            entry.producer_id: entry.epoch
            for entry in producers.values()
            if entry.last_data_offset == NO_OFFSET
        }
        return cls(offsets, ids, epochs)

    def between(self, start: int, end: int) -> LiveProducers:
        """What they need of the offsets [start, end). A marker may be anywhere."""
        first, behind = np.searchsorted(self.offsets, (start, end))
        return LiveProducers(self.offsets[first:behind], self.ids[first:behind], self.epochs)

    def mark(self, table: Longs, flags: Bytes) -> None:
        """Flag the batches of which the header must stay."""
        if len(self.offsets):
            at = np.minimum(np.searchsorted(self.offsets, table[:, LAST_OFFSET]), len(self.offsets) - 1)
            found = (self.offsets[at] == table[:, LAST_OFFSET]) & (self.ids[at] == table[:, PRODUCER_ID])
            flags[found] |= RETAIN_EMPTY
        if self.epochs:
            for row in (table[:, ATTRIBUTES] & CONTROL).nonzero()[0].tolist():
                if self.epochs.get(int(table[row, PRODUCER_ID])) == table[row, PRODUCER_EPOCH]:
                    flags[row] |= RETAIN_EMPTY
