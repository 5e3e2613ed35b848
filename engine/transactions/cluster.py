"""What a store's transactions ask of the Kafka cluster whose topics it mirrors, where these are in them.

The store knows nothing of the link; `topicfs.engine.link.transactions` does this for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from topicfs.engine.batch.columns import Columns
from topicfs.engine.files.listing import PartitionKey


@dataclass(frozen=True, slots=True)
class LinkedCommit:
    """A transaction in the cluster, as the journal has it.

    name                what it is called here
    transactional_id    the id under which the cluster's coordinator knows it
    producer_id, epoch  its producer
    ranges              by partition: its first and its last offset; empty until all of its records are acknowledged
    """

    name: str
    transactional_id: str
    producer_id: int
    epoch: int
    ranges: Mapping[PartitionKey, tuple[int, int]]


class Identity(NamedTuple):
    """Who a member of a group is in the cluster: its generation, its id, and its lasting name if it has one."""

    generation: int = -1
    member_id: str = ""
    instance: str | None = None


NOBODY: Final = Identity()
"""Who sets positions and is no member."""


class LinkedTransaction(Protocol):
    """A transaction that is open in the cluster.

    records  how many records were added
    """

    records: int

    def committed_as(self) -> LinkedCommit:
        """Return what the journal is to know of it."""

    def put(self, key: PartitionKey, columns: Columns) -> None:
        """Add records to a partition. If the topic refuses one of them, none is added."""

    def set_positions(self, group: str, offsets: Mapping[PartitionKey, int], member: Identity) -> None:
        """Add positions of a group, as a member of it or as nobody."""

    def finish(self) -> None:
        """Wait until all records are acknowledged. From now on their offsets are known."""

    def close(self) -> None:
        """Send nothing more of it."""


class ClusterTransactions(Protocol):
    """The transactions of a store over mirrored topics. Errors are LinkErrors: then the outcome is not known yet."""

    def begin_named(self, name: str) -> LinkedTransaction:
        """Begin a transaction. One of the same name that is open is aborted, and no record of it comes later."""

    def abort_named(self, name: str) -> None:
        """Abort a transaction, if it is open: no record of it comes later."""

    def end_named(self, commit: LinkedCommit) -> None:
        """Ask for a transaction to be committed, until the coordinator answers."""

    def is_committed_named(self, commit: LinkedCommit) -> bool:
        """Tell how a transaction has ended whose commit was asked for. One that is open is aborted."""

    def await_named(self, commit: LinkedCommit) -> None:
        """Wait until the mirrors show the records of a committed transaction."""
