"""The batches that are needed to restore the state of producers from the log.

The last batch of each live producer has its last sequence number. If a producer has written nothing in its epoch,
the marker has the epoch. At least the headers of these batches stay.
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
    """The parts of a log that its producers need.

    offsets  last data offset of each producer that has one, rising
    ids      producer ids that belong to these offsets
    epochs   epoch of each producer without a data offset, by producer
    """

    offsets: Longs
    ids: Longs
    epochs: Mapping[int, int]

    @classmethod
    def of(cls, producers: Mapping[int, ProducerEntry]) -> LiveProducers:
        """Return the needs of a log's producers. The caller holds the log's lock."""
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

    def mark(self, table: Longs, flags: Bytes) -> None:
        """Flag the batches whose header must stay."""
        if len(self.offsets):
            at = np.minimum(np.searchsorted(self.offsets, table[:, LAST_OFFSET]), len(self.offsets) - 1)
            found = (self.offsets[at] == table[:, LAST_OFFSET]) & (self.ids[at] == table[:, PRODUCER_ID])
            flags[found] |= RETAIN_EMPTY
        if self.epochs:
            for row in (table[:, ATTRIBUTES] & CONTROL).nonzero()[0].tolist():
                if self.epochs.get(int(table[row, PRODUCER_ID])) == table[row, PRODUCER_EPOCH]:
                    flags[row] |= RETAIN_EMPTY
