"""The consumer groups of a store: their positions, and the workers that share partitions.

    group = Groups.of(store)
    groups.create("readers")
    groups.commit("readers", {("orders", 0): 500})

All of it is in `__consumer_offsets`, which is made when the first group is, and read when somebody first asks: see
`topicfs.engine.groups.log`. Whatever changes a group is appended there first, and then taken up. So a crash leaves what
was acknowledged, and members keep their shares over a restart of the daemon; only how long each was silent is not kept,
and begins anew.

A commit compares and appends under the lock of its group's log, so of two that expect the same position one is refused.

Positions in topics that mirror those of a Kafka cluster are that cluster's while it is linked, and are in no log here.
"""

from __future__ import annotations

import logging
import re
import threading
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from topicfs.engine import batch as batches
from topicfs.engine.errors import (
    EngineError,
    GroupExistsError,
    GroupLimitError,
    GroupNotEmptyError,
    InvalidSettingError,
    LinkedTopicError,
    NotOwnerError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    PositionMovedError,
    UnknownGroupError,
    UnknownPartitionError,
    shown,
)
from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.groups import membership
from topicfs.engine.groups.assignment import STRATEGIES, Assignment
from topicfs.engine.groups.linked import LinkedGroups, names_of
from topicfs.engine.groups.log import GroupLog, GroupState
from topicfs.engine.groups.names import check_name
from topicfs.engine.groups.positions import check_expected
from topicfs.engine.groups.records import (
    GroupEntry,
    GroupMetadata,
    Member,
    Position,
    PositionEntry,
    position_records,
)
from topicfs.engine.jobs import TICK_MS, Job
from topicfs.engine.messages.topics import OFFSETS, partition_of
from topicfs.engine.partition.partition import Partition
from topicfs.engine.record import Record
from topicfs.engine.store import internal_topics
from topicfs.engine.store.store import Store
from topicfs.engine.transactions.cluster import NOBODY, Identity
from topicfs.engine.transactions.coordinator import Chunk

log = logging.getLogger(__name__)

DEFAULT_STRATEGY: Final = "range"
SESSION_TIMEOUT_MS: Final = 45_000
"""What Kafka's consumers have by default, as `partition.assignment.strategy` and `session.timeout.ms`."""

_OWN_ID: Final = re.compile("[0-9A-Za-z-]{1,64}")
_MOST_AT_ONCE: Final = 1000
_MINUTE_MS: Final = 60_000


class Worker(NamedTuple):
    """Who acts for a member: its name, and the id that it got when it joined. An earlier worker of that name, whose
    session is over, has another id."""

    name: str
    member_id: str


@dataclass(frozen=True, slots=True)
class PositionCommit:
    """Positions that a group is to have, for a transaction that sets them with its records.

    expected    positions that must be what is told here, None for none
    member      the member whose partitions these are; None for nobody of the group's members
    member_id   the id that it had when it read: an earlier worker of that name is fenced. None for whoever has the name
    partitions  those that were read: PositionMovedError where one was deleted since
    """

    group: str
    offsets: Mapping[PartitionKey, int]
    expected: Mapping[PartitionKey, int | None] = field(default_factory=dict)
    member: str | None = None
    member_id: str | None = None
    partitions: tuple[Partition, ...] = ()


class Groups:
    """The groups of one store. `of` gives them: there are never two of these for one store.

    store      the store
    linked     what they have in the Kafka cluster whose topics are mirrored
    _logs      the partitions of `__consumer_offsets` that were asked for, by number
    _numbers   the numbers of its partitions, once they were asked for
    _count     how many there are, of which a group's name chooses one
    _heard_of  by group and member's id: when it last gave a sign of life, by a clock that nobody can set
    _targets   by group: what each member is to have
    _guard     guards the making of logs
    """

    _all: Final[WeakKeyDictionary[Store, Groups]] = WeakKeyDictionary()
    _making: Final = threading.Lock()

    def __init__(self, store: Store) -> None:
        self.store = store
        self.linked = LinkedGroups(store)
        self._logs: dict[int, GroupLog] = {}
        self._numbers: tuple[int, ...] = ()
        self._count = 1
        self._heard_of: dict[tuple[str, str], int] = {}
        self._targets: dict[str, Assignment] = {}
        self._guard = threading.Lock()

    @classmethod
    def of(cls, store: Store) -> Groups:
        """Return the groups of a store."""
        with cls._making:
            found = cls._all.get(store)
            if found is None:
                found = cls._all[store] = cls(store)
            return found

    # -- finding --------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the names of all groups, in order."""
        here = {name for each in self._all_logs() for name in list(each.groups)}
        return sorted(here.union(self.linked.names()))

    def __contains__(self, group: str) -> bool:
        return self._is_here(group) or self.linked.has(group)

    def _is_here(self, group: str) -> bool:
        found = self._log(group)
        return found is not None and group in found.groups

    def state(self, group: str) -> GroupState:
        """Return what is known here of a group; nothing of one that only the cluster has. UnknownGroupError where there
        is none of that name."""
        found = self._log(group)
        state = None if found is None else found.groups.get(group)
        if state is None and group in self:
            return GroupState()
        if state is None:
            raise UnknownGroupError(f"there is no group {group}")
        return state

    def position(self, group: str, key: PartitionKey) -> Position | None:
        """Return how far a group has read a partition; None where nobody has said so."""
        cluster = self.linked.of(key)
        if cluster is not None:
            return cluster.position(group, key)
        return self.state(group).positions.get(key)

    def seen(self, group: str, key: PartitionKey) -> Position | None:
        """Return the same, for what waits for nothing: what was seen last, where a cluster does not answer."""
        cluster = self.linked.of(key)
        return self.position(group, key) if cluster is None else cluster.seen(group).get(key)

    def positions(self, group: str) -> dict[PartitionKey, Position]:
        """Return how far a group has read each partition, as `seen`."""
        state = self.state(group)
        here = {key: each for key, each in state.positions.items() if self.linked.of(key) is None}
        return here | dict(self.linked.seen(group))

    def members(self, group: str) -> dict[str, Member]:
        """Return the members of a group, by name, that are not silent for too long."""
        if not self._is_here(group) and group in self:
            return {}
        with self._changing(group) as (found, state):
            metadata = self._without_silent(found, group, state)
            return dict(metadata.members) if metadata is not None else {}

    def owned(self, group: str, member: Member) -> frozenset[PartitionKey]:
        """Return the partitions that are a member's own, here and in a cluster."""
        return (member.given - self.to_give_up(group, member)) | self.linked.owned(group, member.name)

    def to_give_up(self, group: str, member: Member) -> frozenset[PartitionKey]:
        """Return the partitions of a member that are to become another's."""
        target = self._targets.get(group)
        return (
            membership.NOTHING
            if target is None
            else member.given - target.get(member.name, membership.NOTHING)
        )

    def _all_logs(self) -> list[GroupLog]:
        if not self._numbers or self.store.read_only:
            self._look()
        return [self._log_of(number) for number in self._numbers]

    def _look(self) -> None:
        """Find the partitions that there are. Of a broker's directory the cluster knows how many there are in all."""
        numbers = tuple(self.store.topics().get(OFFSETS, ()))
        cluster = self.store.cluster_topic(OFFSETS) if numbers else None
        self._count = max((*numbers, 0 if cluster is None else cluster.partitions - 1), default=0) + 1
        self._numbers = numbers

    def _log(self, group: str, create: bool = False) -> GroupLog | None:
        if not self._numbers:
            if create:
                internal_topics.numbers(self.store, OFFSETS, create=True)
            self._look()
        if not self._numbers:
            return None
        try:
            return self._log_of(partition_of(group, self._count))
        except UnknownPartitionError:
            # The topic may have been deleted, and another broker's directory may have the group.
            self._numbers = ()
            if create:
                raise
            return None

    def _log_of(self, number: int) -> GroupLog:
        partition = self.store.partition(OFFSETS, number)
        found = self._logs.get(number)
        if found is None or found.partition is not partition:
            with self._guard:
                found = self._logs.get(number)
                if found is None or found.partition is not partition:
                    found = self._logs[number] = GroupLog(partition)
        found.catch_up()
        return found

    @contextmanager
    def _changing(self, group: str) -> Iterator[tuple[GroupLog, GroupState]]:
        """Give the log and the state of a group, which nobody else changes meanwhile. One that only the cluster has
        becomes one here too."""
        found = self._log(group)
        if not self._is_here(group) and self.linked.has(group):
            with suppress(GroupExistsError):
                found = self._create(group)
        if found is None:
            raise UnknownGroupError(f"there is no group {group}")
        with found.lock:
            # A transaction that held the lock has set positions in the log only.
            found.catch_up()
            state = found.groups.get(group)
            if state is None:
                raise UnknownGroupError(f"there is no group {group}")
            yield found, state

    # -- groups ---------------------------------------------------------------------------------------

    def create(self, group: str) -> None:
        """Make a group without positions. GroupExistsError where it is there."""
        check_name(group)
        if group in self:
            raise GroupExistsError(f"the group {group} exists")
        self._create(group)
        log.info(f"group {group}: created")

    def _create(self, group: str) -> GroupLog:
        found = self._log(group, create=True)
        assert found is not None, "it was made"
        with found.lock:
            if group in found.groups:
                raise GroupExistsError(f"the group {group} exists")
            found.append([GroupEntry(group, GroupMetadata(0, None, self.store.clock(), {}))])
        return found

    def remove(self, group: str, only_empty: bool = True) -> None:
        """Remove a group. GroupNotEmptyError where it has members, or with `only_empty` positions."""
        if self.linked.positions is not None:
            self.linked.positions.remove(group)
            if not self._is_here(group):
                return
        with self._changing(group) as (found, state):
            metadata = self._without_silent(found, group, state)
            if metadata is not None and metadata.members:
                raise GroupNotEmptyError(
                    f"the group {group}: expected no members, found {', '.join(sorted(metadata.members))}"
                )
            if state.positions and only_empty:
                raise GroupNotEmptyError(
                    f"the group {group}: expected no positions, found {len(state.positions)}: rm removes each"
                )
            self._refuse_newer(group, state)
            entries: list[PositionEntry | GroupEntry] = [
                PositionEntry(group, key, None) for key in state.positions
            ]
            found.append([*entries, GroupEntry(group, None)])
            self._targets.pop(group, None)
        log.info(f"group {group}: removed")

    def _refuse_newer(self, group: str, state: GroupState) -> None:
        if state.newer is not None:
            raise PolicyViolationError(
                f"the group {group}: its members are kept by a broker, by the newer protocol of {state.newer} groups"
            )

    # -- positions ------------------------------------------------------------------------------------

    def commit(
        self,
        group: str,
        offsets: Mapping[PartitionKey, int],
        expected: Mapping[PartitionKey, int | None] | None = None,
        worker: Worker | None = None,
        metadata: str = "",
        partitions: Iterable[Partition] = (),
    ) -> None:
        """Set positions, all or none.

        partitions  those that were read: PositionMovedError where one was deleted since, also where there is another
                    under its name, whose records nobody has read
        expected    positions that must be what is told here, None for none: else PositionMovedError
        worker      who sets them: NotOwnerError where a partition is not its own. Where a group has members, nobody
                    else may"""
        for key, offset in offsets.items():
            self._check_offset(key, offset)
        cluster = self.linked.of_all(offsets)
        if cluster is not None:
            member = self._identity(group, offsets, worker)
            self._check_open(group, partitions)
            cluster.commit(group, offsets, expected or {}, metadata, member)
            return
        with self._changing(group) as (found, state):
            self._check_owner(found, group, state, offsets, worker)
            # Whoever deletes one removes its positions afterwards, under the same lock.
            self._check_open(group, partitions)
            check_expected(group, state.positions, expected or {})
            now = self.store.clock()
            found.append(
                [
                    PositionEntry(group, key, Position(offset, now, metadata=metadata))
                    for key, offset in offsets.items()
                ]
            )

    def _identity(self, group: str, keys: Iterable[PartitionKey], worker: Worker | None) -> Identity:
        """Return who sets positions in mirrored partitions, as whom the cluster knows it. NotOwnerError where it may
        not."""
        if worker is None and not self._is_here(group):
            return NOBODY
        with self._changing(group) as (found, state):
            self._check_owner(found, group, state, (), worker)
        return NOBODY if worker is None else self.linked.identity(group, worker.name, keys)

    @staticmethod
    def _check_open(group: str, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            if not partition.is_open:
                raise PositionMovedError(f"group {group}: {partition.name} was deleted since it was read")

    @contextmanager
    def in_transaction(self, commits: Iterable[PositionCommit]) -> Iterator[list[Chunk]]:
        """Check positions as `commit` does, and give the records that set them, for a transaction that ends within the
        block. Nobody else changes these groups meanwhile, so what was expected is true when it is committed."""
        by_number: dict[int, list[PositionCommit]] = {}
        for each in commits:
            found = self._log(each.group)
            if found is None:
                raise UnknownGroupError(f"there is no group {each.group}")
            by_number.setdefault(found.partition.number, []).append(each)
        with ExitStack() as held:
            # All take them in this order, so no two wait for each other.
            yield [
                ((OFFSETS, number), batches.columns_of_records(records, self.store.clock()))
                for number, parts in sorted(by_number.items())
                for records in [[record for part in parts for record in self._records(held, part)]]
            ]

    @contextmanager
    def in_linked_transaction(self, commits: Sequence[PositionCommit]) -> Iterator[list[Identity]]:
        """Check positions in mirrored topics, for a transaction of the cluster that ends within the block, and give who
        sets each. Nobody else sets them through this store meanwhile."""
        wanted: dict[str, dict[PartitionKey, int | None]] = {}
        found: list[Identity] = []
        for each in commits:
            for key, offset in each.offsets.items():
                self._check_offset(key, offset)
            members = self.members(each.group)
            if each.member is not None and each.member not in members:
                raise NotOwnerError(f"group {each.group}: {each.member} is no member, or no longer")
            worker = (
                None
                if each.member is None
                else Worker(each.member, each.member_id or members[each.member].member_id)
            )
            found.append(self._identity(each.group, each.offsets, worker))
            self._check_open(each.group, each.partitions)
            wanted.setdefault(each.group, {}).update(each.expected)
        with self.linked.held(wanted, {each.group for each in commits if each.member is not None}):
            yield found

    def is_linked(self, key: PartitionKey) -> bool:
        """Tell whether positions in a partition are a cluster's."""
        return self.linked.of(key) is not None

    def _records(self, held: ExitStack, commit: PositionCommit) -> list[Record]:
        group, keys = commit.group, commit.offsets
        if self.linked.of_all(keys) is not None:
            raise LinkedTopicError(
                f"group {group}: {', '.join(names_of(keys))}: the position is the cluster's, and in no transaction of "
                f"this store's own"
            )
        for key, offset in keys.items():
            self._check_offset(key, offset)
        found, state = held.enter_context(self._changing(group))
        found.partition.log.check_leads()
        members = {} if state.metadata is None else state.metadata.members
        member = members.get(commit.member or "")
        if commit.member is not None and member is None:
            raise NotOwnerError(f"group {group}: {commit.member} is no member, or no longer")
        worker = None if member is None else Worker(member.name, commit.member_id or member.member_id)
        self._check_owner(found, group, state, keys, worker)
        self._check_open(group, commit.partitions)
        check_expected(group, state.positions, commit.expected)
        now = self.store.clock()
        positions = {key: Position(offset, now) for key, offset in keys.items()}
        found.check_room([PositionEntry(group, key, position) for key, position in positions.items()])
        return position_records(group, positions)

    def forget(self, group: str, key: PartitionKey) -> None:
        """Remove a position. UnknownGroupError where there is none."""
        cluster = self.linked.of(key)
        if cluster is not None:
            self._identity(group, (key,), None)
            cluster.forget(group, key)
            return
        with self._changing(group) as (found, state):
            self._check_owner(found, group, state, (key,), None)
            if key not in state.positions:
                raise UnknownGroupError(f"the group {group} has no position in {key[0]}-{key[1]}")
            found.append([PositionEntry(group, key, None)])

    def forget_partitions(self, topic: str, numbers: Collection[int]) -> None:
        """Remove all positions in partitions that were deleted: what is made again under their names has other records
        at these offsets."""
        keys = [(topic, number) for number in numbers] if topic != OFFSETS else []
        for found in self._all_logs() if keys else ():
            with found.lock:
                entries = [
                    PositionEntry(group, key, None)
                    for group, state in found.groups.items()
                    for key in keys
                    if key in state.positions
                ]
                for first in range(0, len(entries), _MOST_AT_ONCE):
                    found.append(entries[first : first + _MOST_AT_ONCE])

    def flush(self, group: str) -> None:
        """Bring what was changed of a group onto the disk."""
        found = self._log(group)
        if found is not None:
            found.partition.flush()

    def _check_offset(self, key: PartitionKey, offset: int) -> None:
        end = self.store.partition(*key).end_offset
        if not 0 <= offset <= end:
            raise OffsetOutOfRangeError(
                f"{key[0]}-{key[1]}: expected a position from 0 to the end {end}, found {offset}"
            )

    def _check_owner(
        self,
        found: GroupLog,
        group: str,
        state: GroupState,
        keys: Iterable[PartitionKey],
        worker: Worker | None,
    ) -> None:
        if state.metadata is None and worker is None:
            return
        metadata = self._without_silent(found, group, state)
        members = {} if metadata is None else metadata.members
        if worker is None:
            if members:
                raise NotOwnerError(
                    f"the group {group} has members, which alone set its positions: {', '.join(sorted(members))}"
                )
            return
        member = members.get(worker.name)
        if member is None or member.member_id != worker.member_id:
            raise NotOwnerError(
                f"group {group}: {worker.name} is a member no longer: it has left, or was silent for too long"
            )
        for topic, number in keys:
            if (topic, number) not in member.given:
                raise NotOwnerError(f"group {group}: {topic}-{number} is not {worker.name}'s, or no longer")
        self._heard_of[group, member.member_id] = self.store.steady()

    # -- members --------------------------------------------------------------------------------------

    def join(
        self,
        group: str,
        name: str,
        topics: Collection[str] = (),
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        strategy: str | None = None,
    ) -> Worker:
        """Add a member to a group; without topics it takes those in which the group has positions. GroupExistsError
        where there is one of that name."""
        check_name(name)
        with self._changing(group) as (found, state):
            self._refuse_newer(group, state)
            metadata = self._without_silent(found, group, state)
            if metadata is not None and name in metadata.members:
                raise GroupExistsError(f"group {group}: {name} is a member already")
            member = Member(name, f"{name}-{uuid.uuid4()}", session_timeout_ms, frozenset(topics))
            self._put_member(found, group, state, member, strategy)
            log.info(f"group {group}: {name} has joined")
        try:
            self._follow(group)
        except GroupLimitError:
            with self._changing(group) as (found, state):
                if state.metadata is not None and name in state.metadata.members:
                    self._drop(found, group, state, state.metadata, {name})
            raise
        return Worker(name, member.member_id)

    def replace(self, group: str, name: str, own_id: str | None = None) -> Worker:
        """Have somebody else act for a member, who keeps its share: a worker that was started again. Who has acted for
        it before is fenced. The new one may bring an id of its own, which the member's id ends with."""
        if own_id is not None and not _OWN_ID.fullmatch(own_id):
            raise InvalidSettingError(
                f"member.id: expected at most 64 letters, digits and dashes, found {shown(own_id)}"
            )
        with self._changing(group) as (found, state):
            metadata = self._without_silent(found, group, state)
            if metadata is None or name not in metadata.members:
                raise UnknownGroupError(f"group {group}: {name} is no member")
            before = metadata.members[name]
            member = replace(before, member_id=f"{name}-{own_id or uuid.uuid4()}")
            found.append([GroupEntry(group, replace(metadata, members={**metadata.members, name: member}))])
            self._heard_of.pop((group, before.member_id), None)
            self._heard_of[group, member.member_id] = self.store.steady()
            log.info(f"group {group}: {name} has begun anew")
            return Worker(name, member.member_id)

    def subscribe(
        self,
        group: str,
        worker: Worker,
        topics: Collection[str],
        session_timeout_ms: int | None = None,
        strategy: str | None = None,
    ) -> None:
        """Change what a member has subscribed to."""
        with self._changing(group) as (found, state):
            self._check_owner(found, group, state, (), worker)
            assert state.metadata is not None, "it has a member"
            before = state.metadata.members[worker.name]
            timeout = before.session_timeout_ms if session_timeout_ms is None else session_timeout_ms
            member = Member(before.name, before.member_id, timeout, frozenset(topics), before.given)
            self._put_member(found, group, state, member, strategy)
        try:
            self._follow(group)
        except GroupLimitError:
            with self._changing(group) as (found, state):
                if state.metadata is not None and worker.name in state.metadata.members:
                    now = state.metadata.members[worker.name]
                    timeout, topics = before.session_timeout_ms, before.topics
                    member = replace(now, session_timeout_ms=timeout, topics=topics)
                    self._put_member(found, group, state, member, None)
            raise

    def _put_member(
        self, found: GroupLog, group: str, state: GroupState, member: Member, strategy: str | None
    ) -> None:
        settings = self.store.daemon
        low, high = settings.group_min_session_timeout_ms, settings.group_max_session_timeout_ms
        if not low <= member.session_timeout_ms <= high:
            raise InvalidSettingError(
                f"session.timeout.ms: expected {low} to {high}, found {member.session_timeout_ms}"
            )
        metadata = state.metadata or GroupMetadata(0, None, 0, {})
        others = metadata.members.keys() - {member.name}
        present = metadata.strategy if others else None
        if strategy is not None and strategy not in STRATEGIES:
            raise InvalidSettingError(
                f"partition.assignment.strategy: expected {', '.join(STRATEGIES)}, found {shown(strategy)}"
            )
        if present is not None and strategy not in (None, present):
            raise InvalidSettingError(
                f"partition.assignment.strategy: expected {present}, which the group {group} has, found {strategy}"
            )
        chosen = present or strategy or metadata.strategy or DEFAULT_STRATEGY
        now = self.store.clock()
        self._divide(found, group, state, membership.with_member(metadata, member, chosen, now))
        self._heard_of[group, member.member_id] = self.store.steady()

    def leave(self, group: str, name: str) -> None:
        """Remove a member from its group, which divides its share."""
        with self._changing(group) as (found, state):
            metadata = self._without_silent(found, group, state)
            if metadata is None or name not in metadata.members:
                raise UnknownGroupError(f"group {group}: {name} is no member")
            self._drop(found, group, state, metadata, {name})
            log.info(f"group {group}: {name} has left")
        self._follow(group)

    def heartbeat(self, group: str, worker: Worker) -> frozenset[PartitionKey]:
        """Take a sign of life of a member, which works on nothing that it was to give up any more. Return what it has
        now. NotOwnerError where it is a member no longer."""
        with self._changing(group) as (found, state):
            self._check_owner(found, group, state, (), worker)
            self.linked.alive(group, worker.name)
            metadata = state.metadata
            assert metadata is not None, "it has a member"
            target = self._target(group, state, metadata)
            after = membership.gave_up(metadata, worker.name, target)
            if after is not metadata:
                found.append([GroupEntry(group, after)])
            return self.owned(group, after.members[worker.name])

    def hear(self, group: str, worker: Worker) -> None:
        """Take it that a member is there, and still works on what it has: unlike by `heartbeat` it gives nothing up.
        Who is a member no longer is not heard."""
        with suppress(UnknownGroupError, NotOwnerError), self._changing(group) as (found, state):
            self._check_owner(found, group, state, (), worker)

    def _without_silent(self, found: GroupLog, group: str, state: GroupState) -> GroupMetadata | None:
        """Remove the members whose session is over, and return the others. The caller holds the lock."""
        metadata = state.metadata
        if metadata is None or not metadata.members:
            return metadata
        now = self.store.steady()
        silent = {
            name
            for name, member in metadata.members.items()
            if now - self._heard_of.setdefault((group, member.member_id), now) > member.session_timeout_ms
        }
        if silent and not self.store.read_only:
            log.info(
                f"group {group}: {', '.join(sorted(silent))} silent for too long, and no member any more"
            )
            self._drop(found, group, state, metadata, silent)
        return state.metadata

    def _drop(
        self, found: GroupLog, group: str, state: GroupState, metadata: GroupMetadata, names: set[str]
    ) -> None:
        gone = [metadata.members[name].member_id for name in names]
        self._divide(found, group, state, membership.without_members(metadata, names, self.store.clock()))
        for member_id in gone:
            self._heard_of.pop((group, member_id), None)

    def _divide(self, found: GroupLog, group: str, state: GroupState, metadata: GroupMetadata) -> None:
        """Begin a new generation of a group with these members. It is on record before anybody is told."""
        target = self._new_target(state, metadata)
        found.append([GroupEntry(group, membership.divided(metadata, target, self.store.clock()))])
        self._targets[group] = target

    def _target(self, group: str, state: GroupState, metadata: GroupMetadata) -> Assignment:
        found = self._targets.get(group)
        if found is None or found.keys() != metadata.members.keys():
            found = self._targets[group] = self._new_target(state, metadata)
        return found

    def _new_target(self, state: GroupState, metadata: GroupMetadata) -> Assignment:
        default = frozenset(topic for topic, _ in state.positions)
        topics = {name: member.topics or default for name, member in metadata.members.items()}
        wanted = frozenset().union(*topics.values())
        wanted -= self.linked.topics(wanted)
        present = self.store.topics() if wanted else {}
        return membership.target_of(
            metadata, topics, {topic: numbers for topic, numbers in present.items() if topic in wanted}
        )

    def _follow(self, group: str) -> None:
        """Have the cluster know those members that read mirrored topics, and no others."""
        metadata = self.state(group).metadata if self._is_here(group) else None
        self.linked.follow(group, metadata, DEFAULT_STRATEGY)

    # -- upkeep ---------------------------------------------------------------------------------------

    def jobs(self) -> list[Job]:
        """Return the background jobs; none where the store was opened read-only."""
        if self.store.read_only:
            return []
        interval = self.store.daemon.offsets_retention_check_interval_ms
        return [
            Job("sessions of groups", TICK_MS, self.look_after_members, TICK_MS, "groups"),
            Job("offsets.retention.minutes", interval, self.expire_positions, interval, "groups"),
        ]

    def look_after_members(self) -> None:
        """Remove the members that are silent for too long, and divide partitions that came or went."""
        # Members of a cluster's groups stay that over a restart: nobody may ask for their group for a while.
        for found in list(self._logs.values()) if self.linked.members is None else self._all_logs():
            for group, state in list(found.groups.items()):
                if state.metadata is None or not state.metadata.members:
                    continue
                self._look_after(found, group, state)
                # Those that are one too many without a call that could be refused, as positions came, wait for room.
                with suppress(GroupLimitError):
                    self._follow(group)

    def _look_after(self, found: GroupLog, group: str, state: GroupState) -> None:
        with found.lock:
            metadata = self._without_silent(found, group, state)
            if metadata is None or not metadata.members:
                return
            wanted = self._new_target(state, metadata).values()
            divided = self._target(group, state, metadata).values()
            if membership.NOTHING.union(*wanted) != membership.NOTHING.union(*divided):
                self._divide(found, group, state, metadata)

    def expire_positions(self) -> int:
        """Remove positions that are older than `offsets.retention.minutes`, in topics that no member has subscribed to,
        and groups of which nothing is left. Return how many records that took. Where the topic was not made here, and
        nobody has said what holds for it, nothing is removed."""
        if self.store.why_kept(OFFSETS) is not None or self.store.links.topic(OFFSETS) is not None:
            return 0
        before = self.store.clock() - self.store.daemon.offsets_retention_minutes * _MINUTE_MS
        count = 0
        for found in self._all_logs():
            for group in list(found.groups):
                with found.lock:
                    state = found.groups.get(group)
                    entries = [] if state is None else self._expired(group, state, before)
                    for first in range(0, len(entries), _MOST_AT_ONCE):
                        found.append(entries[first : first + _MOST_AT_ONCE])
                count += len(entries)
        return count

    def _expired(self, group: str, state: GroupState, before: int) -> list[PositionEntry | GroupEntry]:
        if state.newer is not None:
            return []
        metadata = state.metadata
        members = {} if metadata is None else metadata.members
        subscribed = frozenset().union(*(member.topics for member in members.values()))
        if any(not member.topics for member in members.values()):
            return []
        # The positions of a group that has lost its last member count from that moment on.
        since = -1 if metadata is None or members else metadata.since_ms
        old: list[PositionEntry | GroupEntry] = [
            PositionEntry(group, key, None)
            for key, position in state.positions.items()
            if max(position.committed_ms, since) < before and key[0] not in subscribed
        ]
        if metadata is not None and not members and len(old) == len(state.positions) and since < before:
            old.append(GroupEntry(group, None))
        return old

    # -- what people see ------------------------------------------------------------------------------

    def lag(self, key: PartitionKey, position: Position | None) -> int:
        """Return how many offsets lie between a position, or the start, and the end that readers see."""
        now = self.store.partition(*key).offsets
        return max(0, now.stable - max(now.start, 0 if position is None else position.offset))

    def lags(self) -> dict[str, int]:
        """Return the lag of each group, in all partitions that are loaded, by the positions in a cluster that were seen
        last. It loads nothing, and asks nobody, as metrics must not."""
        loaded = {slot.key: slot.partition for slot in self.store.slots() if slot.partition is not None}
        found: dict[str, int] = {}
        for each in list(self._logs.values()):
            for group, state in list(each.groups.items()):
                found[group] = sum(
                    self.lag(key, position)
                    for key, position in list(state.positions.items())
                    if key in loaded and loaded[key].is_open and self.linked.of(key) is None
                )
        for group, positions in self.linked.known().items():
            found[group] = found.get(group, 0) + sum(
                self.lag(key, position)
                for key, position in positions.items()
                if key in loaded and loaded[key].is_open
            )
        return found

    def status(self, group: str) -> dict[str, Any]:
        """Return what there is to know of a group, for people and programs."""
        members = self.members(group)
        state = self.state(group)
        now, metadata = self.store.steady(), state.metadata
        owners = {
            key: name for name, member in members.items() for key in member.given | self.owned(group, member)
        }
        waits = any(self.to_give_up(group, member) for member in members.values())
        return {
            "group": group,
            "state": "Empty" if not members else "Rebalancing" if waits else "Stable",
            "generation": 0 if metadata is None else metadata.generation,
            "strategy": None if metadata is None else metadata.strategy,
            "protocol": state.newer,
            "members": [
                {
                    "name": name,
                    "member_id": member.member_id,
                    "topics": sorted(member.topics),
                    "session_timeout_ms": member.session_timeout_ms,
                    "silent_ms": now - self._heard_of.get((group, member.member_id), now),
                    "assigned": names_of(self.owned(group, member)),
                    "gives_up": names_of(self.to_give_up(group, member)),
                    "cluster_error": self.linked.member_error(group, name),
                }
                for name, member in sorted(members.items())
            ],
            "positions": [
                self._position_status(key, position, owners.get(key))
                for key, position in sorted(self.positions(group).items())
            ],
            "cluster_error": self.linked.error(group),
        }

    def _position_status(self, key: PartitionKey, position: Position, owner: str | None) -> dict[str, Any]:
        start = end = lag = None
        # A partition that is gone, or cannot be loaded, has none of these.
        with suppress(EngineError, OSError):
            offsets = self.store.partition(*key).offsets
            start, end, lag = offsets.start, offsets.stable, self.lag(key, position)
        return {
            "topic": key[0],
            "partition": key[1],
            "position": position.offset,
            "start": start,
            "end": end,
            "lag": lag,
            "owner": owner,
            "committed_at": position.committed_ms,
            "metadata": position.metadata,
        }


Store.when_deleted.append(lambda store, topic, numbers: Groups.of(store).forget_partitions(topic, numbers))
