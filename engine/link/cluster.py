"""Questions to a cluster that any of its brokers, or the leader of a partition, answers."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kafka.protocol.admin import DescribeConfigsRequest
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest

from topicfs.engine.errors import ClusterAwayError, InvalidNameError, LinkError, LinkRefusedError
from topicfs.engine.files.metadata import uuid_text
from topicfs.engine.format.paths import validate_topic
from topicfs.engine.link.client import ClientSettings
from topicfs.engine.link.connection import Address, Connection, words_of

EARLIEST: Final = -2
LATEST: Final = -1
"""Special timestamps of `offset_at`."""

_TOPIC: Final = 2
"""The type of a topic in DescribeConfigs."""

_OWN: Final = 1
"""The source of a value in DescribeConfigs that the topic itself has."""

_UNKNOWN: Final = 3
_NOT_AUTHORIZED: Final = 29
_AVOIDED_S: Final = 60.0
"""For how long a broker that did not answer is asked after the others."""

_MOST_PARTITIONS: Final = 200_000
"""More partitions than any cluster has: an answer with more is refused."""


@dataclass(frozen=True, slots=True)
class ClusterPartition:
    """A partition as the cluster describes it.

    leader        the id of the broker that leads it; −1 while there is none
    leader_epoch  the leader's epoch
    """

    leader: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class DescribedTopic:
    """A topic as the cluster describes it."""

    name: str
    topic_id: str
    partitions: Mapping[int, ClusterPartition]


@dataclass(frozen=True, slots=True)
class Description:
    """What a cluster says of itself at one moment.

    cluster   the id of the cluster
    brokers   the addresses of its brokers, by their ids
    topics    the topics that we may see, by name
    problems  by topic: why it is not among them, where it was asked for by its name: LinkRefusedError where this user
              may not use it, ClusterAwayError where that may pass
    unknown   those of them that the cluster does not have
    """

    cluster: str
    brokers: Mapping[int, Address]
    topics: Mapping[str, DescribedTopic]
    problems: Mapping[str, LinkError] = field(default_factory=dict)
    unknown: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The settings of a topic in the cluster.

    settings  the topic's own
    broker    those of its brokers that are the defaults of the others
    """

    settings: Mapping[str, str]
    broker: Mapping[str, str]


class Cluster:
    """A cluster, by the addresses of some of its brokers. Several threads may use it: each question has the connection
    for itself.

    client      the settings of connections
    bootstrap   the addresses that were given
    brokers     the addresses of its brokers, by their ids, as they were last described
    _tls        the context for TLS
    _idle       connections that nobody uses, by their addresses
    _open       all connections
    _lock       guards both
    _is_closed  whether no more connections are opened
    _failed     when brokers did not answer, by time.monotonic
    """

    def __init__(self, bootstrap: Sequence[Address], client: ClientSettings) -> None:
        self.client = client
        self.bootstrap = tuple(bootstrap)
        self.brokers: Mapping[int, Address] = {}
        self._tls = client.tls()
        self._idle: dict[Address, Connection] = {}
        self._open: set[Connection] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        self._failed: dict[Address, float] = {}

    def close(self) -> None:
        """Close all connections. Who waits for an answer gets ClusterAwayError."""
        with self._lock:
            self._is_closed = True
            connections = list(self._open)
        for connection in connections:
            connection.close()

    def connect(self, address: Address) -> Connection:
        """Return a connection of the caller's own, which `let_go` closes."""
        if self._is_closed:
            raise ClusterAwayError(f"{address}: the link is closed")
        connection = Connection.open(address, self.client, self._tls)
        with self._lock:
            # Before it begins: `close` ends it also while a broker is slow to answer then.
            self._open.add(connection)
            is_closed = self._is_closed
        try:
            if is_closed:
                raise ClusterAwayError(f"{address}: the link is closed")
            connection.begin()
        except BaseException:
            self.let_go(connection)
            raise
        return connection

    def let_go(self, connection: Connection) -> None:
        """Close a connection."""
        with self._lock:
            self._open.discard(connection)
        connection.close()

    def address_of(self, node: int) -> Address:
        """Return the address of a broker."""
        address = self.brokers.get(node)
        if address is None:
            raise ClusterAwayError(f"broker {node}: the cluster does not tell its address")
        return address

    @contextlib.contextmanager
    def _connected(self, address: Address) -> Iterator[Connection]:
        """Lend a connection. It is closed where it fails, and kept for the next question else."""
        with self._lock:
            connection = self._idle.pop(address, None)
        if connection is None:
            connection = self.connect(address)
        try:
            yield connection
        except BaseException:
            self.let_go(connection)
            raise
        with self._lock:
            other = self._idle.setdefault(address, connection)
        if other is not connection:
            self.let_go(connection)

    def ask(self, address: Address, request: Any) -> Any:
        """Ask one broker."""
        with self._connected(address) as connection:
            return connection.ask(request)

    def ask_any(self, request: Any) -> Any:
        """Ask the brokers in random order, then those that were given at the start, until one answers. Not the same one
        each time: who is cut off from the others still answers, with what was true before. Those that did not answer
        lately come last: each that is frozen costs the time of a request."""
        known = list(self.brokers.values())
        random.shuffle(known)
        recent = time.monotonic() - _AVOIDED_S
        known.sort(key=lambda address: self._failed.get(address, recent) > recent)
        problems: list[LinkError] = []
        for address in dict.fromkeys((*known, *self.bootstrap)):
            try:
                answer = self.ask(address, request)
            except LinkError as error:
                problems.append(error)
                self._failed[address] = time.monotonic()
            else:
                self._failed.pop(address, None)
                return answer
        refused = [each for each in problems if isinstance(each, LinkRefusedError)]
        kind = LinkRefusedError if refused else ClusterAwayError
        raise kind("; ".join(dict.fromkeys(map(str, refused or problems))))

    # -- questions ------------------------------------------------------------------------------------

    def describe(self, by_name: Iterable[str] = ()) -> Description:
        """Return the brokers and the topics. Topics `by_name` that are not among those that we may see are asked
        for by their names, to learn why."""
        answer = self.ask_any(MetadataRequest[12](topics=None, allow_auto_topic_creation=False))
        brokers = self._take_brokers(answer)
        if not brokers or answer.cluster_id is None:
            raise LinkError("the cluster names none of its brokers yet, or not itself")
        topics = _topics(answer.topics)
        missing = [name for name in by_name if name not in topics]
        problems: dict[str, LinkError] = {}
        unknown: frozenset[str] = frozenset()
        if missing:
            wanted = [MetadataRequest.MetadataRequestTopic(version=12, name=name) for name in missing]
            asked = self.ask_any(MetadataRequest[12](topics=wanted, allow_auto_topic_creation=False))
            topics |= _topics(asked.topics)
            problems = {
                each.name: _error(each.error_code, "", ClusterAwayError)
                for each in asked.topics
                if each.error_code
            }
            unknown = frozenset(each.name for each in asked.topics if each.error_code == _UNKNOWN)
        return Description(answer.cluster_id, brokers, topics, problems, unknown)

    def look_for_brokers(self) -> None:
        """Learn which brokers there are now, whatever topics they have."""
        self._take_brokers(self.ask_any(MetadataRequest[12](topics=[], allow_auto_topic_creation=False)))

    def _take_brokers(self, answer: Any) -> Mapping[int, Address]:
        brokers = {each.node_id: Address(each.host, each.port) for each in answer.brokers}
        if brokers:
            self._close_all_but(brokers)
            self.brokers = brokers
        return brokers

    def _close_all_but(self, brokers: Mapping[int, Address]) -> None:
        keep = {*brokers.values(), *self.bootstrap}
        with self._lock:
            gone = [self._idle.pop(address) for address in list(self._idle) if address not in keep]
        self._failed = {address: at for address, at in self._failed.items() if address in keep}
        for connection in gone:
            self.let_go(connection)

    def topic_configs(self, topics: Sequence[str]) -> dict[str, TopicConfig | str]:
        """Return the settings of topics; in their place why they cannot be had, in words."""
        resources = [
            DescribeConfigsRequest.DescribeConfigsResource(
                version=4, resource_type=_TOPIC, resource_name=topic, configuration_keys=None
            )
            for topic in topics
        ]
        answer = self.ask_any(DescribeConfigsRequest[4](resources=resources, include_synonyms=True))
        return {
            each.resource_name: _why(each.error_code) if each.error_code else _config(each.configs)
            for each in answer.results
        }

    def offset_at(self, topic: str, number: int, leader: ClusterPartition, timestamp: int) -> int | None:
        """Return the first offset of a partition whose record is not earlier than a time, or the offset for EARLIEST or
        LATEST, as its leader tells it. None where no record is that late."""
        asked = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
            version=7,
            partition_index=number,
            current_leader_epoch=leader.leader_epoch,
            timestamp=timestamp,
        )
        of_topic = ListOffsetsRequest.ListOffsetsTopic(version=7, name=topic, partitions=[asked])
        request = ListOffsetsRequest[7](replica_id=-1, isolation_level=0, topics=[of_topic])
        answer = self.ask(self.address_of(leader.leader), request)
        found = [each for told in answer.topics if told.name == topic for each in told.partitions]
        if len(found) != 1 or found[0].partition_index != number:
            raise LinkError(f"{topic}-{number}: the leader's answer about offsets is about others")
        if found[0].error_code:
            raise _error(found[0].error_code, f"{topic}-{number}: ", LinkError)
        return None if found[0].offset < 0 else int(found[0].offset)


def _topics(told: Iterable[Any]) -> dict[str, DescribedTopic]:
    topics: dict[str, DescribedTopic] = {}
    count = 0
    for each in told:
        # A name from the network is the name of a directory here.
        with contextlib.suppress(InvalidNameError):
            if each.error_code or each.name is None:
                continue
            partitions = {
                part.partition_index: ClusterPartition(part.leader_id, part.leader_epoch)
                for part in each.partitions
                if part.partition_index >= 0
            }
            count += len(partitions)
            if count > _MOST_PARTITIONS:
                raise LinkError(f"expected at most {_MOST_PARTITIONS} partitions, found more")
            name = validate_topic(each.name)
            topics[name] = DescribedTopic(name, uuid_text(each.topic_id.bytes), partitions)
    return topics


def _why(code: int) -> str:
    if code == _NOT_AUTHORIZED:
        return f"{words_of(code)}: this user needs Describe, DescribeConfigs and Read on the topic"
    if code == _UNKNOWN:
        return f"{words_of(code)}: the cluster has no topic of this name, or shows it to other users only"
    return words_of(code)


def _error(code: int, place: str, kind: type[LinkError]) -> LinkError:
    """Return the error that a code stands for: one of its own where this user may not use the topic."""
    return (LinkRefusedError if code == _NOT_AUTHORIZED else kind)(f"{place}{_why(code)}")


def _config(entries: Iterable[Any]) -> TopicConfig:
    settings: dict[str, str] = {}
    broker: dict[str, str] = {}
    for entry in entries:
        if entry.value is None:
            continue
        source = next((each for each in entry.synonyms if each.value is not None), None)
        if entry.config_source == _OWN or source is None:
            settings[entry.name] = entry.value
        else:
            broker[source.name] = source.value
    return TopicConfig(settings, broker)
