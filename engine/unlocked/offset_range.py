"""The part of a partition that one reader reads. It is planned first, maybe by another process than the one that
scans it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from topicfs.engine.format.transaction_index import AbortedTransaction


@dataclass(frozen=True, slots=True)
class TimeBounds:
    """Timestamps in ms, both ends included. None means no bound."""

    first: int | None = None
    last: int | None = None


EVERYTHING: Final = TimeBounds()


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The records of one partition at the offsets [start, end), which one reader reads.

    directory          directory of the partition
    size               approximate bytes of `.log` files
    aborted            transactions within it whose records are left out
    fail_on_data_loss  whether records that were removed in the meantime are an error
    times              only records with such timestamps are read
    topic_id           id of the topic in the plan: no records are read of a topic that was made again
    """

    topic: str
    number: int
    directory: Path
    start: int
    end: int
    size: int
    aborted: tuple[AbortedTransaction, ...]
    fail_on_data_loss: bool
    times: TimeBounds = EVERYTHING
    topic_id: str | None = None
