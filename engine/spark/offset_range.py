"""What one task reads: it goes from the driver, which plans, to a worker, which scans."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from topicfs.engine.format.transaction_index import AbortedTransaction


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """What one task reads of one partition: the records at the offsets [start, end).

    directory          the partition's
    size               bytes of `.log` files, about
    aborted            transactions within it whose records are left out
    fail_on_data_loss  records that were removed meanwhile are an error
    """

    topic: str
    number: int
    directory: Path
    start: int
    end: int
    size: int
    aborted: tuple[AbortedTransaction, ...]
    fail_on_data_loss: bool
