"""Where lines are appended that a log here only mirrors: the leader of its partition in a Kafka cluster.

The log's own modules know nothing of the link; this is what `topicfs.engine.link.produce` does for them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from topicfs.engine.batch.table import Batch
from topicfs.engine.errors import EngineError


class Writer(Protocol):
    """Who wrote lines of a batch.

    lost  why lines of it are lost; None once it was told
    """

    lost: EngineError | OSError | None


class UnderWay(Protocol):
    """A batch that is under way to the cluster."""

    @property
    def is_lost(self) -> bool:
        """Tell whether the cluster has refused it, or has not acknowledged it in time."""

    def wait(self) -> None:
        """Wait until the cluster has acknowledged the batch and the log here shows it. Raise why it is lost."""


class Remote(Protocol):
    """What appends to the partition."""

    @property
    def is_busy(self) -> bool:
        """Tell whether batches are under way."""

    @property
    def is_full(self) -> bool:
        """Tell whether as many batches are under way as may be."""

    def await_room(self) -> None:
        """Wait while it is full. DeliveryTimeoutError where that lasts for too long, or the caller has given up."""

    def send(self, batch: Batch, writers: Collection[Writer]) -> UnderWay:
        """Take a batch, which goes behind all that were taken before. If it is lost, its writers are told in `lost`."""


class Way(Protocol):
    """What leads from a log here to its `Remote`, which may not be there yet."""

    def remote(self) -> Remote:
        """Return what appends to the partition, once it is there. Nobody calls this who holds a lock. LinkedTopicError
        where it never will be, DeliveryTimeoutError where that takes too long, or the caller has given up."""

    def check_coming(self, waited_ms: int) -> None:
        """Raise why lines that have waited for so long, in which it was not there, are lost; it waits for nothing."""
