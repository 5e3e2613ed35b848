"""The part of a partition that one task reads. The driver plans it and sends it to a worker, which scans it."""

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
    """The records of one partition at the offsets [start, end), which one task reads.

    directory          directory of the partition
    size               approximate bytes of `.log` files
    aborted            transactions within it whose records are left out
    fail_on_data_loss  whether records that were removed in the meantime are an error
    times              only records with such timestamps are read
    topic_id           id of the topic in a stream's plan: a task reads no records of a topic that was made again
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
