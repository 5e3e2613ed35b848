"""The part of a store's groups that a Kafka cluster keeps, while topics here mirror its own: positions in these topics,
and the workers of this mount that are members there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

from topicfs.engine.errors import GroupLimitError, NotOwnerError, PolicyViolationError
from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.groups.cluster import ClusterMembers, ClusterPositions
from topicfs.engine.groups.records import GroupMetadata, Position
from topicfs.engine.store.store import Store
from topicfs.engine.transactions.cluster import NOBODY, Identity


class LinkedGroups:
    """What groups have in a cluster; nothing while none is linked.

    positions  the positions in mirrored topics; None while no cluster is linked
    members    the members of groups there; None while no cluster is linked
    _store     the store
    """

    def __init__(self, store: Store) -> None:
        self.positions: ClusterPositions | None = None
        self.members: ClusterMembers | None = None
        self._store = store

    def names(self) -> list[str]:
        """Return the groups that have positions there."""
        return [] if self.positions is None else self.positions.names()

    def has(self, group: str) -> bool:
        """Tell whether a group has positions there."""
        return self.positions is not None and self.positions.has(group)

    def seen(self, group: str) -> Mapping[PartitionKey, Position]:
        """Return the positions of a group; while the cluster is away as they were last seen."""
        return {} if self.positions is None else self.positions.seen(group)

    def known(self) -> Mapping[str, Mapping[PartitionKey, Position]]:
        """Return the positions that were seen last, by group. Nobody is asked."""
        return {} if self.positions is None else self.positions.known()

    def of(self, key: PartitionKey) -> ClusterPositions | None:
        """Return what has the positions in a partition that mirrors one of a cluster; None for those of this store. Of
        a topic that the cluster has no more, they are this store's."""
        linked = None if self.positions is None else self._store.links.topic(key[0])
        return None if linked is None or linked.ended is not None else self.positions

    def of_all(self, keys: Iterable[PartitionKey]) -> ClusterPositions | None:
        """Return what has the positions in all of these partitions; None where this store has."""
        found = {key: self.of(key) for key in keys}
        linked = [each for each in found.values() if each is not None]
        if linked and len(linked) < len(found):
            raise PolicyViolationError(
                f"{', '.join(names_of(found))}: positions of mirrored topics are the cluster's, and are not set in one "
                f"step with others"
            )
        return linked[0] if linked else None

    def topics(self, topics: Iterable[str]) -> frozenset[str]:
        """Return those of some topics whose groups have their members in the cluster."""
        if self.members is None:
            return frozenset()
        return frozenset(topic for topic in topics if self.of((topic, 0)) is not None)

    def owned(self, group: str, worker: str) -> frozenset[PartitionKey]:
        """Return the partitions that are a worker's own there."""
        return frozenset() if self.members is None else self.members.owned(group, worker)

    def alive(self, group: str, worker: str) -> None:
        """Take a sign of life of a worker."""
        if self.members is not None:
            self.members.alive(group, worker)

    def identity(self, group: str, worker: str, keys: Iterable[PartitionKey]) -> Identity:
        """Return who a worker is there. NotOwnerError where one of these partitions is not its own."""
        if self.members is None:
            return NOBODY
        owned = self.members.owned(group, worker)
        for key in keys:
            if key not in owned:
                raise NotOwnerError(f"group {group}: {names_of((key,))[0]} is not {worker}'s, or no longer")
        return self.members.identity(group, worker)

    @contextmanager
    def held(
        self, wanted: Mapping[str, Mapping[PartitionKey, int | None]], members: Collection[str]
    ) -> Iterator[None]:
        """Keep writers of this daemon from committing in these groups there, as `ClusterPositions.held`."""
        if self.positions is None:
            yield
            return
        with self.positions.held(wanted, members):
            yield

    def follow(self, group: str, metadata: GroupMetadata | None, default_strategy: str) -> None:
        """Have the cluster know those members of a group that read mirrored topics, and no others. GroupLimitError
        where one is too many; the others are known then."""
        if self.members is None:
            return
        workers = {} if metadata is None else dict(metadata.members)
        default: frozenset[str] = frozenset()
        if any(not worker.topics for worker in workers.values()):
            default = frozenset(topic for topic, _ in self.seen(group))
        wanted = {name: self.topics(worker.topics or default) for name, worker in workers.items()}
        for name in self.members.of_group(group):
            if not wanted.get(name):
                self.members.leave(group, name)
        strategy = (metadata.strategy if metadata else None) or default_strategy
        refused: GroupLimitError | None = None
        for name, topics in wanted.items():
            if topics:
                try:
                    self.members.want(group, name, topics, workers[name].session_timeout_ms, strategy)
                except GroupLimitError as error:
                    refused = error
        if refused is not None:
            raise refused

    def member_error(self, group: str, worker: str) -> str | None:
        """Return why a worker is no member there, in words; None where it is one, or is to be none."""
        return None if self.members is None else self.members.told(group, worker)

    def error(self, group: str) -> str | None:
        """Return why the cluster could not be asked about a group last; None if it could."""
        return None if self.positions is None else self.positions.words(group)


def names_of(keys: Iterable[PartitionKey]) -> list[str]:
    """Return the names of partitions, in order."""
    return [f"{topic}-{number}" for topic, number in sorted(keys)]
