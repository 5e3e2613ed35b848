"""Where in a log the records of a time may begin, where its time index does not tell.

An entry of a time index has the latest time of all batches up to an offset. A marker is a batch too, and has the time
at which its transaction ended. So the index tells nothing of records that are older than that, such as imported ones,
from the first marker on. Here markers do not count. It is found out when a look-up needs it first, and kept in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from topicfs.engine.batch.table import Longs
from topicfs.engine.format.batch_header import CONTROL
from topicfs.engine.kernels.scan import ATTRIBUTES, MAX_TIMESTAMP, POSITION, SIZE
from topicfs.engine.record import NO_TIMESTAMP
from topicfs.engine.segment.batch_file import CHUNK, BatchFile


@dataclass(frozen=True, slots=True)
class Dates:
    """The times of a log in parts of about a megabyte.

    positions  where each part begins
    latest     the latest time of a record up to the end of each part
    end        where the last part ends
    """

    positions: Longs
    latest: Longs
    end: int

    def extended(self, log: BatchFile) -> Dates:
        """Return what is known when what has come to the log since is looked at. CorruptError where it is damaged."""
        if self.end == log.size:
            return self
        # A part that came out small grows, however often somebody looks.
        kept = len(self.positions)
        if kept and self.end - self.positions[-1] < CHUNK:
            kept -= 1
        end = int(self.positions[kept]) if kept < len(self.positions) else self.end
        positions, latest = [int(at) for at in self.positions[:kept]], [int(at) for at in self.latest[:kept]]
        for _, table in log.batches(end, partial_ok=True, reuse=True):
            times = table[table[:, ATTRIBUTES] & CONTROL == 0, MAX_TIMESTAMP]
            positions.append(int(table[0, POSITION]))
            latest.append(int(max(times.max(initial=NO_TIMESTAMP), latest[-1] if latest else NO_TIMESTAMP)))
            end = int(table[-1, POSITION] + table[-1, SIZE])
        return Dates(np.array(positions, np.int64), np.array(latest, np.int64), end)

    def position_at(self, timestamp: int) -> int:
        """Return a position before which all records are earlier: the end of what is known where all are."""
        part = int(np.searchsorted(self.latest, timestamp))
        return int(self.positions[part]) if part < len(self.positions) else self.end


NO_DATES: Final = Dates(np.empty(0, np.int64), np.empty(0, np.int64), 0)
"""What is known of a log that nobody has looked at."""
