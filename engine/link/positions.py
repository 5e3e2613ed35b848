"""Positions of groups in mirrored topics: the group's coordinator in the cluster has them, for all its clients.

    OffsetFetch    how far a group has read. It waits while a transaction is open that is to set a position
    OffsetCommit   sets positions as a client does that is no member: refused while the group has members
    ListGroups     each broker knows the groups that it coordinates, and OffsetFetch in which topics they are
    OffsetDelete, DeleteGroups    with link.delete=true alone

Kafka has no commit that compares. So what is expected is looked at before the commit, by one writer of this daemon at a
time: of all that write through it one does well. Another client of the cluster may come between the two.

What was seen is remembered for a moment: a shell's `cat` asks four times for what it reads. Where a question fails, it
is not asked again for a second: `ls -l` of a group would wait for each of its positions.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kafka.protocol.admin import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest

from topicfs.engine.errors import (
    ClusterAwayError,
    DeliveryTimeoutError,
    EngineError,
    GroupNotEmptyError,
    InvalidNameError,
    LinkError,
    NotOwnerError,
    PolicyViolationError,
    UnknownGroupError,
)
from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.groups.positions import check_expected
from topicfs.engine.groups.records import Position
from topicfs.engine.link.connection import Address, words_of
from topicfs.engine.link.coordinators import PASSING, Coordinated, Coordinators
from topicfs.engine.link.waiting import answer_of, in_turn
from topicfs.engine.record import Clock
from topicfs.engine.transactions.cluster import NOBODY, Identity

log = logging.getLogger(__name__)

_FETCH: Final = 8
_COMMIT: Final = 8
_LIST: Final = 4
_DESCRIBE: Final = 5
_DELETE: Final = 0
_DELETE_GROUPS: Final = 2

_GROUP_AT_FAULT: Final = 24
_OTHERS: Final = frozenset({22, 25, 27, 82, 86, 113})
"""The group has members, who alone set positions, or another member has it by now."""

_NOT_EMPTY: Final = 68
_NO_GROUP: Final = 69

_FRESH_S: Final = 0.1
"""How long a position counts as seen just now."""

_LISTED_S: Final = 1.0
_AVOIDED_S: Final = 10.0
_FAILED_S: Final = 1.0

_CONSUMERS: Final = ("consumer", "")
"""The protocols of groups that have positions: of consumers, and of clients that are no members."""

_DEAD: Final = "Dead"
_NEWER_WITH_MEMBERS: Final = ["Assigning", "Reconciling", "Stable"]
"""States of groups, by the names that coordinators give them."""

_MOST_GROUPS: Final = 10_000
"""Of so many groups of a cluster positions are looked at, in the order of their names."""

_GROUPS_AT_ONCE: Final = 100
_LISTERS: Final = 8


@dataclass(slots=True)
class _Seen:
    """What was seen of a group.

    positions  its positions in mirrored topics; replaced as a whole
    at         when they were asked for, by time.monotonic
    failed     when the last question failed
    error      with what; None if the last one did not
    unstable   those that an open transaction was to set; None where that was not asked
    elsewhere  whether it has positions in topics that are not mirrored
    changed    when a writer of this daemon has changed them last: what was asked before is not how they are
    lock       held by who compares and commits
    """

    positions: Mapping[PartitionKey, Position] = field(default_factory=dict)
    at: float = float("-inf")
    failed: float = float("-inf")
    error: EngineError | None = None
    unstable: frozenset[PartitionKey] | None = None
    elsewhere: bool = False
    changed: float = float("-inf")
    lock: threading.Lock = field(default_factory=threading.Lock)


class Positions:
    """The positions of one cluster's groups in the topics that are mirrored. Several threads may use it.

    _coordinators  the coordinators of groups
    _is_mirrored   tells whether a topic is mirrored
    _away          returns why the cluster did not answer lately: then who needs no answer does not wait for one. None
                   where it did
    _clock         the clock by which a position is dated: the cluster does not tell when it was committed
    _may_delete    whether groups and positions may be removed in the cluster
    _groups        what was seen, by group
    _names         the groups with positions in mirrored topics
    _names_at      the same, by the broker that coordinates them
    _avoided       until when brokers are not asked that have not answered, by time.monotonic
    _listed        when they were listed, by time.monotonic
    _guard         guards the table of groups
    _listing       held while groups are listed
    """

    def __init__(
        self,
        coordinators: Coordinators,
        is_mirrored: Callable[[str], bool],
        away: Callable[[], str | None],
        clock: Clock,
        may_delete: bool,
    ) -> None:
        self._coordinators = coordinators
        self._is_mirrored = is_mirrored
        self._away = away
        self._clock = clock
        self._may_delete = may_delete
        self._groups: dict[str, _Seen] = {}
        self._names: list[str] = []
        self._names_at: dict[Address, frozenset[str]] = {}
        self._avoided: dict[Address, float] = {}
        self._listed = float("-inf")
        self._guard = threading.Lock()
        self._listing = threading.Lock()

    # -- what there is --------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the groups that have positions in mirrored topics."""
        # Who waits no longer, as a signal has come, gets what was seen last.
        with suppress(ClusterAwayError), in_turn(self._listing, self._coordinators.has_given_up):
            if time.monotonic() - self._listed > _LISTED_S and self._away() is None:
                self._names = answer_of(self._list, self._coordinators.has_given_up)
                self._listed = time.monotonic()
        return self._names

    def has(self, group: str) -> bool:
        """Tell whether a group has such positions."""
        return bool(self._look(group, _LISTED_S))

    def seen(self, group: str) -> Mapping[PartitionKey, Position]:
        """Return the positions of a group; while the cluster is away as they were last seen."""
        return self._look(group, _FRESH_S)

    def known(self) -> Mapping[str, Mapping[PartitionKey, Position]]:
        """Return the positions of groups as they were last seen. Nobody is asked."""
        with self._guard:
            return {group: seen.positions for group, seen in self._groups.items() if seen.positions}

    def position(self, group: str, key: PartitionKey) -> Position | None:
        """Return the position that the cluster has now, and that no open transaction is to change; None for none."""
        return self._look(group, _FRESH_S, (key,)).get(key)

    def words(self, group: str) -> str | None:
        """Return why the cluster could not be asked about a group last; None if it could."""
        found = self._groups.get(group)
        return self._away() if found is None or found.error is None else str(found.error)

    def _look(
        self, group: str, fresh_s: float, must: Collection[PartitionKey] = ()
    ) -> Mapping[PartitionKey, Position]:
        """Return the positions of a group that were seen lately, or are there now. Where the cluster does not tell, and
        there is none that it must, return what was last seen."""
        seen, now = self._seen_of(group), time.monotonic()
        is_stable = not must or (seen.unstable is not None and seen.unstable.isdisjoint(must))
        if now - seen.at <= fresh_s and seen.at > seen.changed and is_stable:
            return seen.positions
        if self._away() is not None and not must:
            return seen.positions
        if seen.error is None or now - seen.failed > _FAILED_S:
            try:
                return self._fetch(group, seen, must)
            except LinkError as error:
                if not self._coordinators.has_given_up():
                    seen.error, seen.failed = error, time.monotonic()
                elif must:
                    # That a caller has a signal to handle tells others nothing about the cluster.
                    raise
                else:
                    return seen.positions
        if must:
            assert seen.error is not None, "it was kept"
            raise type(seen.error)(str(seen.error))
        return seen.positions

    def _seen_of(self, group: str) -> _Seen:
        with self._guard:
            found = self._groups.get(group)
            if found is None:
                if len(self._groups) >= _MOST_GROUPS:
                    self._groups = {name: each for name, each in self._groups.items() if each.lock.locked()}
                found = self._groups[group] = _Seen()
            return found

    def _fetch(
        self, group: str, seen: _Seen, must: Collection[PartitionKey]
    ) -> Mapping[PartitionKey, Position]:
        """Ask for the positions of a group. Wait while an open transaction is to set one of those that must be told."""
        asked = 0.0

        def request() -> Any:
            nonlocal asked
            asked = time.monotonic()
            return _fetch_request([group], bool(must))

        answer = self._coordinators.ask(
            Coordinated.group(group),
            request,
            lambda told: _code_of_fetch(told, must),
            self._coordinators.cluster.client.request_timeout_ms,
        )
        code = _code_of_fetch(answer, must)
        if code == _GROUP_AT_FAULT:
            raise InvalidNameError(f"group {group}: {words_of(code)}")
        if code and code != _NO_GROUP:
            raise LinkError(f"group {group}: its positions cannot be had: {words_of(code)}")
        for told in answer.groups:
            if told.group_id == group:
                self._note(seen, told, asked, bool(must))
        return seen.positions

    def _note(self, seen: _Seen, told: Any, asked: float, is_stable: bool) -> None:
        """Take up what a coordinator says of a group. A position that is another one is dated now."""
        now = self._clock()
        found: dict[PartitionKey, Position] = {}
        unstable: set[PartitionKey] = set()
        elsewhere = False
        for topic in told.topics:
            if not self._is_mirrored(topic.name):
                elsewhere = elsewhere or any(part.committed_offset >= 0 for part in topic.partitions)
                continue
            for part in topic.partitions:
                key = topic.name, int(part.partition_index)
                before = seen.positions.get(key)
                if part.error_code:
                    unstable.add(key)
                    found |= {} if before is None else {key: before}
                if part.committed_offset < 0 or part.error_code:
                    continue
                position = Position(
                    int(part.committed_offset), now, int(part.committed_leader_epoch), part.metadata or ""
                )
                is_same = before is not None and replace(before, committed_ms=now) == position
                found[key] = before if is_same and before is not None else position
        seen.positions, seen.at, seen.error = found, asked, None
        seen.elsewhere = elsewhere
        seen.unstable = frozenset(unstable) if is_stable else None

    def _list(self) -> list[str]:
        """Ask each broker. Of one that does not answer what was seen last is kept, and it is left alone for a while:
        its groups have another coordinator soon."""
        now = time.monotonic()
        brokers = [
            each for each in self._coordinators.cluster.brokers.values() if self._avoided.get(each, 0) < now
        ]
        if brokers:
            with ThreadPoolExecutor(min(_LISTERS, len(brokers)), "link-groups") as asking:
                self._names_at |= dict(zip(brokers, asking.map(self._groups_at, brokers), strict=True))
        known = set(self._coordinators.cluster.brokers.values())
        self._names_at = {each: names for each, names in self._names_at.items() if each in known}
        return sorted(frozenset().union(*self._names_at.values()))

    def _groups_at(self, broker: Address) -> frozenset[str]:
        """Return the groups with positions in mirrored topics that a broker coordinates."""
        cluster = self._coordinators.cluster
        before = self._names_at.get(broker, frozenset())
        found: set[str] = set()
        try:
            told = cluster.ask(broker, ListGroupsRequest[_LIST](states_filter=[]))
            if told.error_code:
                # It has just started, and reads what it coordinates.
                return before
            groups = sorted(each.group_id for each in told.groups if each.protocol_type in _CONSUMERS)
            for first in range(0, min(len(groups), _MOST_GROUPS), _GROUPS_AT_ONCE):
                asked = time.monotonic()
                answer = cluster.ask(broker, _fetch_request(groups[first : first + _GROUPS_AT_ONCE], False))
                for each in answer.groups:
                    if each.error_code in PASSING:
                        found.update(before.intersection((each.group_id,)))
                    elif self._has_some(each):
                        found.add(each.group_id)
                        self._note(self._seen_of(each.group_id), each, asked, False)
        except LinkError as error:
            log.info(f"{broker}: its groups are shown as they were last seen: {error}")
            self._avoided[broker] = time.monotonic() + _AVOIDED_S
            return before
        return frozenset(found)

    def _has_some(self, told: Any) -> bool:
        """Tell whether a group has positions in mirrored topics. One that may not be seen shows none."""
        return not told.error_code and any(
            part.committed_offset >= 0
            for topic in told.topics
            if self._is_mirrored(topic.name)
            for part in topic.partitions
        )

    # -- changes --------------------------------------------------------------------------------------

    def commit(
        self,
        group: str,
        offsets: Mapping[PartitionKey, int],
        expected: Mapping[PartitionKey, int | None],
        metadata: str = "",
        member: Identity = NOBODY,
    ) -> None:
        """Set positions, if those that are expected are there."""
        seen, since = self._seen_of(group), time.monotonic()
        with self._alone(group, seen, since):
            if expected:
                check_expected(group, self._fetch(group, seen, tuple(expected)), expected)
            answer = self._coordinators.ask(
                Coordinated.group(group),
                lambda: _commit_request(group, offsets, metadata, member),
                _first_code,
                since=since,
            )
        self._check(group, _first_code(answer), offsets)

    @contextmanager
    def _alone(self, group: str, seen: _Seen, since: float) -> Iterator[None]:
        """Keep other writers of this daemon from committing in a group. DeliveryTimeoutError for who has waited for
        them since then for longer than for a coordinator, or has a signal to handle."""
        limit_ms = self._coordinators.cluster.client.delivery_timeout_ms

        def is_over() -> bool:
            return time.monotonic() >= since + limit_ms / 1000 or self._coordinators.has_given_up()

        with ExitStack() as held:
            try:
                held.enter_context(in_turn(seen.lock, is_over))
            except ClusterAwayError as error:
                raise DeliveryTimeoutError(
                    f"group {group}: nothing was sent within {limit_ms} ms (delivery.timeout.ms), or before the mount "
                    f"or the writer ends: {error}"
                ) from None
            try:
                yield
            finally:
                seen.changed = time.monotonic()

    @contextmanager
    def held(
        self, wanted: Mapping[str, Mapping[PartitionKey, int | None]], members: Collection[str]
    ) -> Iterator[None]:
        """Keep writers of this daemon from committing in groups, for a transaction that ends within the block."""
        since = time.monotonic()
        with ExitStack() as stack:
            # All take them in this order, so no two wait for each other.
            for group, expected in sorted(wanted.items()):
                seen = self._seen_of(group)
                stack.enter_context(self._alone(group, seen, since))
                if group not in members:
                    self._check_no_members(group)
                if expected:
                    check_expected(group, self._fetch(group, seen, tuple(expected)), expected)
            yield

    def _check_no_members(self, group: str) -> None:
        """Refuse positions of a group with members: in a transaction a coordinator takes them from anybody."""
        answer = self._coordinators.ask(
            Coordinated.group(group),
            lambda: DescribeGroupsRequest[_DESCRIBE](groups=[group], include_authorized_operations=False),
            lambda told: told.groups[0].error_code,
        )
        if answer.groups[0].members or (
            answer.groups[0].group_state == _DEAD and self._has_newer_members(group)
        ):
            raise NotOwnerError(
                f"group {group}: the group has members in the cluster, which alone set its positions"
            )

    def _has_newer_members(self, group: str) -> bool:
        """Tell whether a group of the newer consumer protocol has members: the coordinator describes it as if it were
        not there, and lists it."""
        answer = self._coordinators.ask(
            Coordinated.group(group),
            lambda: ListGroupsRequest[_LIST](states_filter=_NEWER_WITH_MEMBERS),
            lambda told: told.error_code,
        )
        return any(each.group_id == group for each in answer.groups)

    def forget(self, group: str, key: PartitionKey) -> None:
        """Remove a position, if the link may delete."""
        self._check_may_delete(f"the position of group {group} in {key[0]}-{key[1]}")
        seen, since = self._seen_of(group), time.monotonic()
        with self._alone(group, seen, since):
            if key not in self._fetch(group, seen, (key,)):
                raise UnknownGroupError(f"the group {group} has no position in {key[0]}-{key[1]}")
            part = OffsetDeleteRequest.OffsetDeleteRequestTopic
            partition = part.OffsetDeleteRequestPartition(version=_DELETE, partition_index=key[1])
            topics = [part(version=_DELETE, name=key[0], partitions=[partition])]
            answer = self._coordinators.ask(
                Coordinated.group(group),
                lambda: OffsetDeleteRequest[_DELETE](group_id=group, topics=topics),
                lambda told: told.error_code or _first_code(told),
                since=since,
            )
        self._check(group, answer.error_code or _first_code(answer), (key,))

    def remove(self, group: str) -> None:
        """Remove a group without positions, if the link may delete. With positions in topics that are not mirrored it
        stays in the cluster, whose consumers need them."""
        seen, since = self._seen_of(group), time.monotonic()
        with self._alone(group, seen, since):
            found = self._fetch(group, seen, ())
            if found:
                self._check_may_delete(f"group {group}, which has {len(found)} positions in mirrored topics")
                raise GroupNotEmptyError(
                    f"the group {group}: expected no positions in the cluster, found {len(found)}: rm removes each"
                )
            if not self._may_delete or seen.elsewhere:
                return
            answer = self._coordinators.ask(
                Coordinated.group(group),
                lambda: DeleteGroupsRequest[_DELETE_GROUPS](groups_names=[group]),
                lambda told: told.results[0].error_code,
                since=since,
            )
            code = int(answer.results[0].error_code)
            self._listed = float("-inf")
        if code == _NOT_EMPTY:
            raise GroupNotEmptyError(
                f"the group {group}: expected no members in the cluster: {words_of(code)}"
            )
        if code not in (0, _NO_GROUP):
            raise LinkError(f"group {group}: the cluster does not delete it: {words_of(code)}")

    def _check_may_delete(self, what: str) -> None:
        if not self._may_delete:
            raise PolicyViolationError(
                f"{what}: it is the cluster's, where link.delete=false lets nobody remove it from here"
            )

    def _check(self, group: str, code: int, keys: Iterable[PartitionKey]) -> None:
        """Raise the error that a code stands for."""
        if not code:
            self._listed = float("-inf")
            return
        places = ", ".join(f"{topic}-{number}" for topic, number in keys)
        if code in _OTHERS:
            raise NotOwnerError(
                f"group {group}, {places}: the group has members in the cluster, which alone set its positions: "
                f"{words_of(code)}"
            )
        if code == _GROUP_AT_FAULT:
            raise InvalidNameError(f"group {group}: {words_of(code)}")
        raise LinkError(f"group {group}, {places}: the cluster does not take the position: {words_of(code)}")


def _fetch_request(groups: Iterable[str], is_stable: bool) -> Any:
    wanted = [
        OffsetFetchRequest.OffsetFetchRequestGroup(version=_FETCH, group_id=group, topics=None)
        for group in groups
    ]
    return OffsetFetchRequest[_FETCH](groups=wanted, require_stable=is_stable)


def _commit_request(group: str, offsets: Mapping[PartitionKey, int], metadata: str, member: Identity) -> Any:
    kind = OffsetCommitRequest.OffsetCommitRequestTopic
    topics: dict[str, list[Any]] = {}
    for (topic, number), offset in sorted(offsets.items()):
        topics.setdefault(topic, []).append(
            kind.OffsetCommitRequestPartition(
                version=_COMMIT,
                partition_index=number,
                committed_offset=offset,
                committed_leader_epoch=-1,
                committed_metadata=metadata,
            )
        )
    return OffsetCommitRequest[_COMMIT](
        group_id=group,
        generation_id_or_member_epoch=member.generation,
        member_id=member.member_id,
        group_instance_id=member.instance,
        topics=[kind(version=_COMMIT, name=topic, partitions=parts) for topic, parts in topics.items()],
    )


def _code_of_fetch(answer: Any, must: Collection[PartitionKey]) -> int:
    """Return the first error in an answer to a fetch, of the group or of the partitions that must be told."""
    codes = [group.error_code for group in answer.groups]
    codes += [
        part.error_code
        for group in answer.groups
        for topic in group.topics
        for part in topic.partitions
        if (topic.name, part.partition_index) in must
    ]
    return int(next((code for code in codes if code), 0))


def _first_code(answer: Any) -> int:
    codes = (part.error_code for topic in answer.topics for part in topic.partitions)
    return int(next((code for code in codes if code), 0))
