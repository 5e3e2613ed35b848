"""Records on their way into a topic, as a file has them: not each of them says when it was made and where it goes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from topicfs.engine.batch.columns import Columns
from topicfs.engine.batch.table import Ints

NO_PARTITION: Final = -1
"""The value in place of a partition's number if a record names no partition."""

UNDATED: Final = -(1 << 63)
"""The value in place of a timestamp if a record has none: it gets the time of its append."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Some records, in order.

    columns     the records, with offsets 0, 1, 2 …; their timestamps may be UNDATED
    partitions  the partition that each one names, or NO_PARTITION
    """

    columns: Columns
    partitions: Ints

    def __len__(self) -> int:
        return len(self.columns)

    def dated(self, now: int) -> Columns:
        """Return the records, those without a timestamp with `now`."""
        missing = self.columns.timestamps == UNDATED
        if not missing.any():
            return self.columns
        return replace(self.columns, timestamps=np.where(missing, now, self.columns.timestamps))

    def sent_to(self, partition: int) -> Rows:
        """Return the records, of which those that name no partition name this one."""
        unnamed = self.partitions == NO_PARTITION
        return Rows(self.columns, np.where(unnamed, np.int32(partition), self.partitions))
