"""The group of daemons that divide a cluster's partitions: Kafka's own group protocol, the classic one.

    join      the coordinator gathers all members, and one of them, the leader, divides the partitions
    sync      each member learns what is its own in this generation
    heartbeat within each `session.timeout.ms`, or the coordinator takes the member for dead; tells of a new generation

A member may write to a mirror only while its lease holds: `session.timeout.ms` from when it has *sent* the last
request that the coordinator answered well. The coordinator counts from when that came, which is later. So whoever was
stopped for longer, or is cut off, writes nothing any more when the coordinator gives its partitions to others. The
clock of the lease goes on while the process, or the machine, sleeps.

Of `kafka-consumer-groups.sh` the group is one of consumers: it shows members and what they mirror.
"""

from __future__ import annotations

import logging
import struct
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kafka.errors import KafkaError
from kafka.protocol.consumer import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from kafka.protocol.metadata import FindCoordinatorRequest

from topicfs.engine.errors import ClusterAwayError, LinkError, LinkRefusedError
from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.link.client import ClientSettings
from topicfs.engine.link.cluster import Cluster
from topicfs.engine.link.connection import Address, words_of
from topicfs.engine.link.division import Claim, divided

log = logging.getLogger(__name__)

_JOIN: Final = 7
_SYNC: Final = 5
_HEARTBEAT: Final = 4
_LEAVE: Final = 4
_FIND: Final = 3
_SUBSCRIPTION: Final = 2
_ASSIGNMENT: Final = 1

_PROTOCOL: Final = "topicfs"
"""The name of the protocol: a consumer that joins by mistake is refused."""

_MOVED: Final = frozenset({14, 15, 16})
"""There is no coordinator at the moment, or it is another broker."""

_EXPELLED: Final = frozenset({22, 25})
"""The group has gone on without this member: what it had is others' now."""

_REBALANCING: Final = 27
_ID_NEEDED: Final = 79
_FENCED: Final = 82
_STRANGERS: Final = 23
_REFUSED: Final = frozenset({24, 26, 30, 81})

_LEASE: Final = 0.9
"""The part of a session's time for which a lease holds: what is begun within it ends within the session."""

_HEARTBEATS: Final = 4
"""Heartbeats in the time of a session."""

_LATER_MS: Final = 5_000
"""The answer to a join may take a session's time, and this much longer."""


def boot_s() -> float:
    """Return a time that goes on while the machine sleeps, and that nobody can set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


Divide = Callable[[Collection[PartitionKey], Mapping[str, Claim]], Mapping[str, Collection[PartitionKey]]]
"""Says what each member is to have, of these partitions and by what the members say."""


@dataclass(slots=True)
class Group:
    """This daemon's membership. One thread calls `step`; another one works on the partitions.

    name        the name of the group
    instance    the name of this member in it, by which it gets its partitions back after a restart; empty: none
    wanted      the partitions that the cluster has of the topics that are mirrored, as they were last seen
    topics      their topics
    held        the partitions that are worked on here; who gives one up does that before
    error       why the group cannot be asked, in words; None while it can
    generation  the number of the present division, −1 without one
    protocol    the name of the way in which partitions are divided: all members have the same
    divide      divides them, as the leader does it
    works       what this member does with partitions, in words
    may_join    whether it may join now; else it waits, and stays what it is
    members     how many members it has, where this one has divided the partitions; else 0
    changed     set when the partitions are to be looked at: others are this member's
    _assigned   what is this member's in the present generation
    _until      until when that is so, by `boot_s`
    _divided    what was divided last, as far as this member has to look whether it has changed; None where that is
                another one's to do, the leader's
    _joined     the topics that it joined with
    _was_told   whether it was ever told what is its own
    _gave_up    whether it has given up what others are to have, since it joined
    _member     the coordinator's name for it; empty: it gives one
    _must_join  whether it has to join before anything else
    _is_fenced  whether another daemon has its name: then it stays out
    _patient    the cluster, with more time for each answer: one to a join takes long
    """

    name: str
    instance: str
    _cluster: Cluster
    _patient: Cluster
    wanted: frozenset[PartitionKey] = frozenset()
    topics: frozenset[str] = frozenset()
    held: frozenset[PartitionKey] = frozenset()
    error: str | None = "the group was not joined yet"
    generation: int = -1
    protocol: str = _PROTOCOL
    divide: Divide = divided
    works: str = "this daemon mirrors"
    may_join: bool = True
    members: int = 0
    changed: threading.Event = field(default_factory=threading.Event)
    _assigned: frozenset[PartitionKey] = frozenset()
    _until: float = 0.0
    _member: str = ""
    _must_join: bool = True
    _is_fenced: bool = False
    _divided: frozenset[PartitionKey] | None = None
    _joined: frozenset[str] = frozenset()
    _gave_up: bool = False
    _was_told: bool = False
    _coordinator: Address | None = None

    @classmethod
    def of(cls, name: str, client: ClientSettings, bootstrap: Collection[Address]) -> Group:
        """Return a membership that is to begin."""
        wait_ms = max(client.request_timeout_ms, client.session_timeout_ms + _LATER_MS)
        patient = Cluster(tuple(bootstrap), replace(client, request_timeout_ms=wait_ms))
        return cls(name, client.group_instance_id, Cluster(tuple(bootstrap), client), patient)

    @property
    def session_s(self) -> float:
        """The time after which the coordinator takes a member for dead."""
        return self._cluster.client.session_timeout_ms / 1000

    @property
    def given(self) -> frozenset[PartitionKey]:
        """What was this member's as far as it knows, also where the lease is over: it shows that, and waits."""
        return self._assigned

    @property
    def has_joined(self) -> bool:
        """Tell whether the coordinator has ever said what is this member's."""
        return self._was_told

    def may_write(self, key: PartitionKey) -> bool:
        """Tell whether a partition is this member's at this moment."""
        return key in self._assigned and boot_s() < self._until

    @property
    def lease_s(self) -> float:
        """For how long it may write without another answer of the coordinator."""
        return max(0.0, self._until - boot_s())

    @property
    def must_join(self) -> bool:
        """Tell whether the next step joins, if it may: it may take as long as the others need."""
        return self._must_join or self._has_changed()

    @property
    def member_id(self) -> str:
        """Return the coordinator's name for this member."""
        return self._member

    @property
    def is_surplus(self) -> bool:
        """Tell whether something is worked on here that is not this member's any more."""
        return not self.held <= self._assigned

    # -- one step -------------------------------------------------------------------------------------

    def step(self) -> float:
        """Do what is to be done now, and return after how many seconds to come again. LinkError where it failed."""
        try:
            if self._is_fenced:
                return self.session_s
            if self.must_join and not self.may_join:
                if not self._must_join:
                    self._beat()
            elif self.must_join:
                if self.is_surplus and self.generation < 0:
                    # It was expelled. What it had has to be let go before it joins as another.
                    self.changed.set()
                    return 0.05
                self._join()
            else:
                self._beat()
            self.error = None
        except LinkError as error:
            self.error = str(error)
            self._coordinator = None
            raise
        if self.is_surplus:
            self.changed.set()
        if self._must_join:
            # Who may not join looks again before the session is over, as it may then.
            return 0.0 if self.may_join else self.session_s * (1 - _LEASE) / 2
        return self.session_s / _HEARTBEATS

    def _has_changed(self) -> bool:
        """Tell whether the partitions have to be divided anew: the leader sees others than it has divided, the topics
        of this member are others, or all that it had to give up is given up."""
        return (
            (self._divided is not None and self._divided != self.wanted)
            or self._joined != self.topics
            or self._gave_up
        )

    def let_go(self, held: frozenset[PartitionKey]) -> None:
        """Note what is worked on here from now on."""
        had_surplus = self.is_surplus
        self.held = held
        if had_surplus and not self.is_surplus and self.generation >= 0:
            # Others wait for what was given up.
            self._gave_up = True

    def _join(self) -> None:
        """Join the group, or the next generation of it, and learn what is this member's."""
        topics, returns = self.topics, not self._member and bool(self.instance)
        self._gave_up = False
        told = self._ask_to_join(topics)
        if told.error_code == _ID_NEEDED:
            self._member = told.member_id
            self._must_join = True
            return
        self._check(told.error_code)
        self._member, generation = told.member_id, int(told.generation_id)
        self._joined = topics
        assignments: list[Any] = []
        self._divided, self.members = None, 0
        if told.leader == told.member_id:
            assignments = self._divide(told.members)
        elif returns:
            # It may be the leader. The coordinator does not say so to one that is back before its session is over, lest
            # it divides what is divided: so it looks after the partitions, until the next division tells.
            self._divided = self.wanted
        sent, synced = self._ask_for_share(generation, assignments)
        self._check(synced.error_code)
        assigned = _assigned_in(bytes(synced.assignment))
        if assigned != self._assigned:
            names = ", ".join(f"{topic}-{number}" for topic, number in sorted(assigned)) or "nothing"
            log.info(f"group {self.name}, generation {generation}: {self.works} {names}")
        self.generation, self._assigned = generation, assigned
        self._renew(sent)
        self._must_join, self._was_told = False, True
        self.changed.set()

    def _ask_to_join(self, topics: Collection[str]) -> Any:
        """Tell the coordinator what this member wants and has, and return its answer."""
        owned = self._assigned | self.held
        claim = ConsumerProtocolSubscription(
            version=_SUBSCRIPTION,
            topics=sorted(topics),
            user_data=None,
            owned_partitions=_by_topic(ConsumerProtocolSubscription.TopicPartition, _SUBSCRIPTION, owned),
            generation_id=self.generation,
        )
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(
            version=_JOIN, name=self.protocol, metadata=claim.encode()
        )
        request = JoinGroupRequest[_JOIN](
            group_id=self.name,
            session_timeout_ms=self._cluster.client.session_timeout_ms,
            rebalance_timeout_ms=self._cluster.client.session_timeout_ms,
            member_id=self._member,
            group_instance_id=self.instance or None,
            protocol_type="consumer",
            protocols=[protocol],
        )
        return self._ask(request, self._patient)[1]

    def _ask_for_share(self, generation: int, assignments: list[Any]) -> tuple[float, Any]:
        """Ask which partitions are this member's; as the leader, with those of all. Return when that was asked, and the
        answer."""
        request = SyncGroupRequest[_SYNC](
            group_id=self.name,
            generation_id=generation,
            member_id=self._member,
            group_instance_id=self.instance or None,
            protocol_type="consumer",
            protocol_name=self.protocol,
            assignments=assignments,
        )
        return self._ask(request, self._patient)

    def _divide(self, members: Collection[Any]) -> list[Any]:
        claims = {each.member_id: _claim_in(bytes(each.metadata)) for each in members}
        self._divided, self.members = self.wanted, len(claims)
        return [
            SyncGroupRequest.SyncGroupRequestAssignment(
                version=_SYNC,
                member_id=member,
                assignment=ConsumerProtocolAssignment(
                    version=_ASSIGNMENT,
                    assigned_partitions=_by_topic(
                        ConsumerProtocolAssignment.TopicPartition, _ASSIGNMENT, keys
                    ),
                    user_data=None,
                ).encode(),
            )
            for member, keys in self.divide(self._divided, claims).items()
        ]

    def _beat(self) -> None:
        sent, told = self._ask(
            HeartbeatRequest[_HEARTBEAT](
                group_id=self.name,
                generation_id=self.generation,
                member_id=self._member,
                group_instance_id=self.instance or None,
            ),
            self._cluster,
        )
        if told.error_code == _REBALANCING:
            # Until it joins anew, what it has stays its own.
            # The coordinator waits for it no longer than a session, from when it began to: the lease is not renewed.
            self._must_join = True
            return
        self._check(told.error_code)
        self._renew(sent)

    def _renew(self, sent: float) -> None:
        self._until = sent + self.session_s * _LEASE

    def leave(self, for_good: bool = False) -> None:
        """Tell the coordinator that this member is gone. A named one is not, unless `for_good`: it comes back."""
        self._assigned = frozenset()
        try:
            if self._member and (for_good or not self.instance):
                self._ask(
                    LeaveGroupRequest[_LEAVE](
                        group_id=self.name,
                        members=[
                            LeaveGroupRequest.MemberIdentity(
                                version=_LEAVE,
                                member_id=self._member,
                                group_instance_id=self.instance or None,
                            )
                        ],
                    ),
                    self._cluster,
                )
        except LinkError as error:
            log.info(f"group {self.name}: was left without a word, and notices it after a session: {error}")

    def end(self) -> None:
        """Have who waits for an answer to a join wait no longer, with ClusterAwayError."""
        self._patient.close()

    def close(self) -> None:
        """Close all connections."""
        self._cluster.close()
        self._patient.close()

    # -- asking ---------------------------------------------------------------------------------------

    def _ask(self, request: Any, cluster: Cluster) -> tuple[float, Any]:
        """Ask the coordinator. Return when it was asked, and what it says."""
        if self._coordinator is None:
            self._coordinator = self._find()
        sent = boot_s()
        try:
            return sent, cluster.ask(self._coordinator, request)
        except LinkError:
            self._coordinator = None
            raise

    def _find(self) -> Address:
        # Those that were given at the start may be gone by now.
        self._cluster.look_for_brokers()
        told = self._cluster.ask_any(FindCoordinatorRequest[_FIND](key=self.name, key_type=0))
        if told.error_code in _REFUSED:
            raise LinkRefusedError(
                f"group {self.name}: {words_of(told.error_code)}: this user needs Read on the group"
            )
        if told.error_code:
            raise ClusterAwayError(f"group {self.name}: {words_of(told.error_code)}")
        return Address(told.host, told.port)

    def _check(self, code: int) -> None:
        """Raise the error that a code stands for, and forget what it says is over."""
        if not code:
            return
        words = f"group {self.name}: {words_of(code)}"
        if code == _REBALANCING:
            self._must_join = True
            raise ClusterAwayError(words)
        if code in _MOVED:
            raise ClusterAwayError(words)
        if code in _EXPELLED or code == _FENCED:
            if self._assigned or self.held:
                log.warning(f"{words}: {self.works} nothing until it has joined anew")
            self._assigned, self.generation, self._member = frozenset(), -1, ""
            self._must_join = True
            self.changed.set()
        if code == _FENCED:
            self._is_fenced = True
            hint = ". Mount again, each with its own name" if self.protocol == _PROTOCOL else ""
            raise LinkRefusedError(f"{words}: another member has group.instance.id={self.instance}{hint}")
        if code in _EXPELLED:
            raise ClusterAwayError(words)
        if code == _STRANGERS:
            theirs = (
                "are no daemons of topicfs"
                if self.protocol == _PROTOCOL
                else f"do not divide by {self.protocol}"
            )
            raise LinkRefusedError(f"{words}: other members of this group {theirs}")
        if code in _REFUSED:
            checked = (
                "link.group, session.timeout.ms"
                if self.protocol == _PROTOCOL
                else "the worker's session.timeout.ms"
            )
            raise LinkRefusedError(
                f"{words}: check {checked} and the rights of this user, which needs Read on the group"
            )
        raise LinkError(words)


def _by_topic(kind: Any, version: int, keys: Collection[PartitionKey]) -> list[Any]:
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(keys):
        topics.setdefault(topic, []).append(number)
    return [kind(version=version, topic=topic, partitions=numbers) for topic, numbers in topics.items()]


def _keys_in(told: Collection[Any]) -> frozenset[PartitionKey]:
    return frozenset((each.topic, number) for each in told for number in each.partitions)


def _assigned_in(data: bytes) -> frozenset[PartitionKey]:
    """Return the partitions in an assignment. A member that is given none gets no bytes."""
    if not data:
        return frozenset()
    try:
        return _keys_in(ConsumerProtocolAssignment.decode(data).assigned_partitions)
    except _BROKEN as error:
        raise LinkError(f"an assignment of {len(data)} bytes breaks its format: {error!r}") from error


def _claim_in(data: bytes) -> Claim:
    """Return what a member says. One that cannot be understood gets nothing."""
    try:
        told = ConsumerProtocolSubscription.decode(data)
        return Claim(frozenset(told.topics), _keys_in(told.owned_partitions), int(told.generation_id))
    except _BROKEN as error:
        log.warning(f"a member of the group says what breaks the format, and gets nothing: {error!r}")
        return Claim(frozenset(), frozenset(), -1)


_BROKEN: Final = (ValueError, KeyError, IndexError, TypeError, AttributeError, struct.error, KafkaError)
