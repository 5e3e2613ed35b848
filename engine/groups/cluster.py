"""What the groups of a store ask of the Kafka cluster whose topics it mirrors: positions in those topics, and members.

Groups know nothing of the link; `topicfs.engine.link.positions` and `topicfs.engine.link.members` do this for them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.groups.records import Position
from topicfs.engine.transactions.cluster import NOBODY, Identity


class ClusterMembers(Protocol):
    """The members that groups of a cluster have in this mount."""

    def want(
        self, group: str, name: str, topics: frozenset[str], session_timeout_ms: int, strategy: str
    ) -> None:
        """Have a worker be a member there, for partitions of these topics. It joins by itself, and stays one."""

    def leave(self, group: str, name: str) -> None:
        """Have a worker leave, if it is a member."""

    def of_group(self, group: str) -> list[str]:
        """Return the names of those that are or become members."""

    def owned(self, group: str, name: str) -> frozenset[PartitionKey]:
        """Return the partitions that are a worker's own at this moment."""

    def alive(self, group: str, name: str) -> None:
        """Take a sign of life of a worker, which works on nothing that it was to give up any more."""

    def identity(self, group: str, name: str) -> Identity:
        """Return who a worker is there. NotOwnerError where it is no member now."""

    def told(self, group: str, name: str) -> str | None:
        """Return why a worker is no member, in words; None where it is one, or is to be none."""


class ClusterPositions(Protocol):
    """The positions that groups of a cluster have in mirrored topics. Errors are LinkErrors."""

    def names(self) -> list[str]:
        """Return the groups that have such positions, as they were a second ago at most; while the cluster is away as
        they were last seen."""

    def has(self, group: str) -> bool:
        """Tell whether a group has such positions: as `names`."""

    def seen(self, group: str) -> Mapping[PartitionKey, Position]:
        """Return the positions of a group; while the cluster is away as they were last seen."""

    def known(self) -> Mapping[str, Mapping[PartitionKey, Position]]:
        """Return the positions of groups as they were last seen, by whomever. Nobody is asked."""

    def position(self, group: str, key: PartitionKey) -> Position | None:
        """Return the position that the cluster has now, and that no open transaction is to change; None for none."""

    def commit(
        self,
        group: str,
        offsets: Mapping[PartitionKey, int],
        expected: Mapping[PartitionKey, int | None],
        metadata: str = "",
        member: Identity = NOBODY,
    ) -> None:
        """Set positions. PositionMovedError where one of those that are expected is another one; who sets it elsewhere
        between this look and the commit is not noticed. NotOwnerError where the group has members, and the one that
        commits is none, or no longer."""

    def held(
        self, wanted: Mapping[str, Mapping[PartitionKey, int | None]], members: Collection[str]
    ) -> AbstractContextManager[None]:
        """Keep writers of this daemon from committing in these groups, in which the positions are what is expected, for
        a transaction that ends within the block. PositionMovedError and NotOwnerError as by `commit`; a member commits
        in the groups of `members`."""

    def forget(self, group: str, key: PartitionKey) -> None:
        """Remove a position, if the link may delete. PolicyViolationError where it may not, UnknownGroupError where
        there is none."""

    def remove(self, group: str) -> None:
        """Remove a group that has no positions, if the link may delete. GroupNotEmptyError or PolicyViolationError
        where it stays; nothing is done where the cluster has none of that name."""

    def words(self, group: str) -> str | None:
        """Return why the cluster could not be asked about a group last; None if it could."""
