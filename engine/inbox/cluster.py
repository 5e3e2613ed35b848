"""What a linked topic's inbox asks of the cluster: transactions, and how one of them has ended.

The inbox knows nothing of the link; `topicfs.engine.link.transactions` does this for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from topicfs.engine.batch.columns import Columns


@dataclass(frozen=True, slots=True)
class ClusterCommit:
    """A transaction in the cluster, as the journal has it.

    transactional_id    the id under which the cluster's coordinator knows it
    producer_id, epoch  its producer
    ranges              by partition: its first and its last offset; empty until all of its records are acknowledged
    """

    transactional_id: str
    producer_id: int
    epoch: int
    ranges: Mapping[int, tuple[int, int]]


class ClusterTransaction(Protocol):
    """A transaction that is open in the cluster."""

    @property
    def records(self) -> int:
        """Return how many records were added."""

    @property
    def commit(self) -> ClusterCommit:
        """Return what the journal is to know of it."""

    def add(self, number: int, columns: Columns) -> None:
        """Add records to a partition. If the topic refuses one of them, none is added."""

    def finish(self) -> None:
        """Wait until all records are acknowledged. From now on `commit` knows their offsets."""

    def close(self) -> None:
        """Send nothing more of it."""


class ClusterTransactions(Protocol):
    """The transactions of a store's inboxes. Errors are LinkErrors: then the outcome is not known yet."""

    def begin(self, topic: str) -> ClusterTransaction:
        """Begin a transaction. One of the same topic that is open is aborted, and no record of it comes later."""

    def end(self, topic: str, commit: ClusterCommit) -> None:
        """Ask for a transaction to be committed, until the coordinator answers."""

    def is_committed(self, topic: str, commit: ClusterCommit) -> bool:
        """Tell how a transaction has ended whose commit was asked for. One that is open is aborted."""

    def abort(self, topic: str) -> None:
        """Abort the topic's transaction, if one is open: no record of it comes later."""

    def await_shown(self, topic: str, commit: ClusterCommit) -> None:
        """Wait until the mirrors show the records of a committed transaction."""
