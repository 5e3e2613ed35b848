"""A stand-in for a broker: it answers the link's requests from logs in memory, and lies where a test wants it to."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from kafka.protocol.admin import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)
from kafka.protocol.consumer import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    FetchRequest,
    FetchResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
)
from stand_in_groups import KEYS, StandInGroups

from topicfs.engine import batch as batches
from topicfs.engine.batch.table import Bytes
from topicfs.engine.kernels import encode
from topicfs.engine.kernels.scan import BASE_SEQUENCE, COUNT, PRODUCER_EPOCH, PRODUCER_ID
from topicfs.engine.record import Record, now_ms

REQUESTS: Final[dict[int, Any]] = {
    0: ProduceRequest,
    1: FetchRequest,
    2: ListOffsetsRequest,
    3: MetadataRequest,
    10: FindCoordinatorRequest,
    11: JoinGroupRequest,
    12: HeartbeatRequest,
    13: LeaveGroupRequest,
    14: SyncGroupRequest,
    18: ApiVersionsRequest,
    19: CreateTopicsRequest,
    20: DeleteTopicsRequest,
    22: InitProducerIdRequest,
    24: AddPartitionsToTxnRequest,
    26: EndTxnRequest,
    32: DescribeConfigsRequest,
    **KEYS,
}
HEAD: Final = struct.Struct(">hhih")
OWN: Final = 1
UNKNOWN: Final = 3
DEFAULT: Final = 5
INVALID_EPOCH: Final = 47
INVALID_STATE: Final = 48
NOT_MAPPED: Final = 49
FENCED: Final = 90
BY_ID: Final = 13
OUT_OF_ORDER: Final = 45
DUPLICATE: Final = 46
KEPT: Final = 5
"""So many batches of a producer a leader remembers."""

CLUSTER: Final = "StandInForACluster0000"


@dataclass(slots=True)
class Log:
    """One partition, as its leader has it.

    batches  pairs of the offset behind a batch, and its bytes
    epoch    the leader's epoch
    start    the first offset that there is
    stable   the stable offset; None: the end
    last     by producer: the first sequence, the count and the offset of each of its last batches
    open_since  by producer: where its open transaction begins
    epochs   by producer: its newest epoch
    """

    batches: list[tuple[int, bytes]] = field(default_factory=list)
    epoch: int = 0
    start: int = 0
    stable: int | None = None
    last: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    open_since: dict[int, int] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def end(self) -> int:
        """The offset behind the last record."""
        return self.batches[-1][0] if self.batches else self.start

    def add(self, *values: bytes, epoch: int | None = None) -> None:
        """Append a batch of these values, of the leader's epoch or another one."""
        built = batches.from_records([Record(value) for value in values], now_ms())
        end = self.end
        encode.stamp(built.data, 0, end, self.epoch if epoch is None else epoch)
        self.batches.append((end + len(values), built.data.tobytes()))

    def transact(self, producer: int, values: Sequence[bytes], commit: bool | None) -> None:
        """Append a transaction of a producer, and the marker that ends it. None: it stays open."""
        shape = batches.Shape(producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)
        self.open_since[producer] = self.end
        self._put(
            batches.from_records([Record(value) for value in values], now_ms(), shape).data, len(values)
        )
        if commit is not None:
            kind = batches.COMMIT if commit else batches.ABORT
            self._put(batches.end_marker(producer, 0, kind, 0, now_ms()).data, 1)
            del self.open_since[producer]

    def _put(self, data: Bytes, count: int) -> None:
        end = self.end
        encode.stamp(data, 0, end, self.epoch)
        self.batches.append((end + count, data.tobytes()))

    def produce(self, records: bytes) -> tuple[int, int]:
        """Append a producer's batch once, and in the order of its sequences. Return an error code and its offset."""
        # Of a producer that was thought dead a batch may come on another connection at the same time.
        with self._lock:
            return self._produce(np.frombuffer(records, np.uint8).copy())

    def _produce(self, data: Bytes) -> tuple[int, int]:
        row = batches.scan(data)[0]
        sequence, count, end = int(row[BASE_SEQUENCE]), int(row[COUNT]), self.end
        producer, epoch = int(row[PRODUCER_ID]), int(row[PRODUCER_EPOCH])
        if epoch < self.epochs.get(producer, epoch):
            return INVALID_EPOCH, -1
        if epoch > self.epochs.get(producer, -1):
            self.epochs[producer] = epoch
            self.last.pop(producer, None)
        known = self.last.setdefault(producer, [])
        for first, _, offset in known:
            if first == sequence:
                return 0, offset
        # A batch of a producer that is not known is taken whatever its sequence is, as Kafka does.
        following = known[-1][0] + known[-1][1] if known else sequence
        if sequence != following:
            return (OUT_OF_ORDER if sequence > following else DUPLICATE), -1
        self._put(data, count)
        known.append((sequence, count, end))
        del known[:-KEPT]
        return 0, end

    def mark(self, producer: int, epoch: int, commit: bool) -> None:
        """Append the marker that ends a transaction."""
        kind = batches.COMMIT if commit else batches.ABORT
        self._put(batches.end_marker(producer, epoch, kind, 0, now_ms()).data, 1)
        if epoch > self.epochs.get(producer, -1):
            self.epochs[producer] = epoch
            self.last.pop(producer, None)

    def cut(self, offset: int, epoch: int) -> None:
        """Lose all batches from an offset on, as an unclean election does, whose leader has this epoch."""
        self.batches = [each for each in self.batches if each[0] <= offset]
        self.open_since = {each: since for each, since in self.open_since.items() if since < offset}
        self.epoch = epoch

    def data(self, offset: int = 0) -> bytes:
        """The batches from the one that holds an offset on."""
        return b"".join(data for end, data in self.batches if end > offset)

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch that is not above this one, and where it ends. An epoch that is below all others ends where
        those begin."""
        found, end = epoch, self.start
        for behind, data in self.batches:
            own = int.from_bytes(data[12:16], "big")
            if own > epoch:
                break
            found, end = own, behind
        return found, self.end if epoch >= self.epoch else end


@dataclass(slots=True)
class Topic:
    """One topic.

    settings  its own settings
    logs      its partitions
    id        its id
    """

    settings: dict[str, str] = field(default_factory=dict)
    logs: dict[int, Log] = field(default_factory=lambda: {0: Log()})
    id: uuid.UUID = field(default_factory=uuid.uuid4)


@dataclass(slots=True)
class Transaction:
    """What the coordinator knows of a transactional id.

    producer    its producer's id
    epoch       its newest epoch
    state       empty, ongoing, committed or aborted
    partitions  the partitions of the transaction that is ongoing
    """

    producer: int
    epoch: int = -1
    state: str = "empty"
    partitions: set[tuple[str, int]] = field(default_factory=set)


class StandInBroker:
    """A broker on loopback. Each connection has a thread.

    topics    the topics by name
    twist     changes an answer before it is sent; by the class of its request
    garble    changes the bytes of an answer, without the length before them
    refuse    the error codes with which the next batches are refused, before anything is appended
    transactions  the transactions by their ids
    groups    the positions of groups
    other     what another member of the group has, who is there while this is not None
    beats     the error codes with which the next heartbeats are answered
    asked     how many requests of each kind came
    port      where it listens; it stays the same when it is away, and comes back
    """

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.twist: dict[Any, Callable[[Any, Any], None]] = {}
        self.garble: Callable[[Any, bytes], bytes] = lambda _, data: data
        self.refuse: list[int] = []
        self.transactions: dict[str, Transaction] = {}
        self.groups = StandInGroups()
        self.other: frozenset[tuple[str, int]] | None = None
        self.beats: list[int] = []
        self._generation = 0
        self._joined_with: frozenset[tuple[str, int]] | None = None
        self.asked: dict[Any, int] = {}
        self.port = 0
        self._server: socket.socket | None = None
        self._connections: list[socket.socket] = []

    @classmethod
    @contextlib.contextmanager
    def running(cls) -> Iterator[StandInBroker]:
        """A broker that listens."""
        broker = cls()
        broker.come()
        try:
            yield broker
        finally:
            broker.go()

    @property
    def bootstrap(self) -> str:
        """Its address."""
        return f"127.0.0.1:{self.port}"

    def come(self) -> None:
        """Listen."""
        self._server = socket.create_server(("127.0.0.1", self.port))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._server,), daemon=True).start()

    def go(self) -> None:
        """Be away: no connection stays."""
        server, self._server = self._server, None
        if server is not None:
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            server.close()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._connections = []

    def _accept(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                self._connections.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError), connection:
            while True:
                size = int.from_bytes(_read(connection, 4), "big")
                data = _read(connection, size)
                key, version, number, length = HEAD.unpack_from(data)
                kind = REQUESTS[key]
                head = HEAD.size + length + (1 if kind.flexible_version_q(version) else 0)
                request = kind[version].decode(memoryview(data)[head:])
                self.asked[kind] = self.asked.get(kind, 0) + 1
                answer = self._answer(kind, request)
                self.twist.get(kind, lambda *_: None)(request, answer)
                answer.with_header(correlation_id=number)
                told = bytes(answer.encode(framed=False, header=True))
                told = self.garble(kind, told)
                connection.sendall(len(told).to_bytes(4, "big") + told)

    def _answer(self, kind: Any, request: Any) -> Any:
        answers: dict[Any, Callable[[Any], Any]] = {
            ApiVersionsRequest: self._versions,
            MetadataRequest: self._metadata,
            DescribeConfigsRequest: self._configs,
            ListOffsetsRequest: self._offsets,
            FetchRequest: self._fetch,
            FindCoordinatorRequest: self._coordinator,
            InitProducerIdRequest: self._new_producer,
            AddPartitionsToTxnRequest: self._add_partitions,
            EndTxnRequest: self._end_transaction,
            ProduceRequest: self._produce,
            CreateTopicsRequest: self._create,
            DeleteTopicsRequest: self._delete,
            JoinGroupRequest: self._join,
            SyncGroupRequest: self._sync,
            HeartbeatRequest: self._beat,
            LeaveGroupRequest: lambda _: LeaveGroupResponse[4](throttle_time_ms=0, error_code=0, members=[]),
            **self.groups.answers(),
            AddOffsetsToTxnRequest: self._add_offsets,
        }
        return answers[kind](request)

    def _versions(self, _: Any) -> Any:
        keys = [
            ApiVersionsResponse.ApiVersion(
                version=3, api_key=key, min_version=0, max_version=kind.max_version
            )
            for key, kind in REQUESTS.items()
        ]
        return ApiVersionsResponse[3](error_code=0, api_keys=keys, throttle_time_ms=0)

    def _metadata(self, request: Any) -> Any:
        part = MetadataResponse.MetadataResponseTopic
        names = list(self.topics) if request.topics is None else [each.name for each in request.topics]
        topics = []
        for name in names:
            topic = self.topics.get(name)
            partitions = [] if topic is None else sorted(topic.logs.items())
            topics.append(
                part(
                    version=12,
                    error_code=UNKNOWN if topic is None else 0,
                    name=name,
                    topic_id=uuid.UUID(int=0) if topic is None else topic.id,
                    is_internal=name.startswith("__"),
                    partitions=[
                        part.MetadataResponsePartition(
                            version=12,
                            error_code=0,
                            partition_index=number,
                            leader_id=1,
                            leader_epoch=log.epoch,
                            replica_nodes=[1],
                            isr_nodes=[1],
                            offline_replicas=[],
                        )
                        for number, log in partitions
                    ],
                )
            )
        broker = MetadataResponse.MetadataResponseBroker(
            version=12, node_id=1, host="127.0.0.1", port=self.port, rack=None
        )
        return MetadataResponse[12](
            throttle_time_ms=0, brokers=[broker], cluster_id=CLUSTER, controller_id=1, topics=topics
        )

    def _configs(self, request: Any) -> Any:
        result = DescribeConfigsResponse.DescribeConfigsResult
        entry = result.DescribeConfigsResourceResult
        results = []
        for resource in request.resources:
            known = self.topics.get(resource.resource_name)
            topic = known or Topic()
            told = [_entry(entry, name, value, OWN, name) for name, value in topic.settings.items()]
            if "retention.ms" not in topic.settings:
                told.append(_entry(entry, "retention.ms", "604800000", DEFAULT, "log.retention.hours", "168"))
            results.append(
                result(
                    version=4,
                    error_code=UNKNOWN if known is None else 0,
                    error_message=None,
                    resource_type=2,
                    resource_name=resource.resource_name,
                    configs=told,
                )
            )
        return DescribeConfigsResponse[4](throttle_time_ms=0, results=results)

    def _offsets(self, request: Any) -> Any:
        topic = ListOffsetsResponse.ListOffsetsTopicResponse
        told = []
        for each in request.topics:
            parts = []
            for part in each.partitions:
                known = self.topics.get(each.name)
                log = Log() if known is None else known.logs[part.partition_index]
                parts.append(
                    topic.ListOffsetsPartitionResponse(
                        version=7,
                        partition_index=part.partition_index,
                        error_code=UNKNOWN if known is None else 0,
                        timestamp=-1,
                        offset={-2: log.start, -1: log.end}.get(part.timestamp, log.start),
                        leader_epoch=log.epoch,
                    )
                )
            told.append(topic(version=7, name=each.name, partitions=parts))
        return ListOffsetsResponse[7](throttle_time_ms=0, topics=told)

    def _coordinator(self, _: Any) -> Any:
        return FindCoordinatorResponse[3](
            throttle_time_ms=0, error_code=0, error_message=None, node_id=1, host="127.0.0.1", port=self.port
        )

    def _new_producer(self, request: Any) -> Any:
        producer, epoch = 1000 + self.asked[InitProducerIdRequest], 0
        if request.transactional_id is not None:
            known = self.transactions.setdefault(request.transactional_id, Transaction(producer))
            if known.state == "ongoing":
                self.groups.end(request.transactional_id, False)
                self._mark(known, known.epoch + 1, False)
            known.epoch += 1
            known.state = "empty"
            producer, epoch = known.producer, known.epoch
        return InitProducerIdResponse[4](
            throttle_time_ms=0, error_code=0, producer_id=producer, producer_epoch=epoch
        )

    def _add_partitions(self, request: Any) -> Any:
        known = self.transactions[request.v3_and_below_transactional_id]
        code = FENCED if request.v3_and_below_producer_epoch != known.epoch else 0
        result = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
        told = []
        for topic in request.v3_and_below_topics:
            if not code:
                known.state = "ongoing"
                known.partitions |= {(topic.name, number) for number in topic.partitions}
            parts = [
                result.AddPartitionsToTxnPartitionResult(
                    version=3, partition_index=number, partition_error_code=code
                )
                for number in topic.partitions
            ]
            told.append(result(version=3, name=topic.name, results_by_partition=parts))
        return AddPartitionsToTxnResponse[3](throttle_time_ms=0, results_by_topic_v3_and_below=told)

    def _add_offsets(self, request: Any) -> Any:
        known = self.transactions[request.transactional_id]
        known.state = "ongoing"
        return AddOffsetsToTxnResponse[3](throttle_time_ms=0, error_code=0)

    def _end_transaction(self, request: Any) -> Any:
        known = self.transactions.get(request.transactional_id)
        ended = "committed" if request.committed else "aborted"
        if known is None:
            code = NOT_MAPPED
        elif request.producer_epoch != known.epoch:
            code = FENCED
        elif known.state == "ongoing":
            self.groups.end(request.transactional_id, request.committed)
            self._mark(known, known.epoch, request.committed)
            code, known.state = 0, ended
        else:
            code = 0 if known.state == ended else INVALID_STATE
        return EndTxnResponse[3](throttle_time_ms=0, error_code=code)

    def _mark(self, transaction: Transaction, epoch: int, commit: bool) -> None:
        for topic, number in sorted(transaction.partitions):
            self.topics[topic].logs[number].mark(transaction.producer, epoch, commit)
        transaction.partitions.clear()

    def time_is_over(self, transactional_id: str) -> None:
        """Abort a transaction that is open, as the coordinator does when its time is over."""
        known = self.transactions[transactional_id]
        known.epoch += 1
        self.groups.end(transactional_id, False)
        self._mark(known, known.epoch, False)
        known.state = "aborted"

    def _produce(self, request: Any) -> Any:
        topic = ProduceResponse.TopicProduceResponse
        ids = {each.id: each for each in self.topics.values()}
        told = []
        for wanted in request.topic_data:
            parts = []
            for part in wanted.partition_data:
                code = self.refuse.pop(0) if self.refuse else 0
                found = self.topics[wanted.name] if request.version < BY_ID else ids[wanted.topic_id]
                log = found.logs[part.index]
                offset = -1
                if not code:
                    code, offset = log.produce(part.records)
                parts.append(
                    topic.PartitionProduceResponse(
                        version=request.version,
                        index=part.index,
                        error_code=code,
                        base_offset=offset,
                        log_append_time_ms=-1,
                        log_start_offset=log.start,
                        record_errors=[],
                        error_message=None,
                    )
                )
            told.append(
                topic(
                    version=request.version,
                    name=wanted.name,
                    topic_id=wanted.topic_id,
                    partition_responses=parts,
                )
            )
        return ProduceResponse[request.version](responses=told, throttle_time_ms=0)

    def _create(self, request: Any) -> Any:
        wanted = request.topics[0]
        code = self.refuse.pop(0) if self.refuse else 0
        if not code:
            self.topics[wanted.name] = Topic(logs={n: Log() for n in range(max(1, wanted.num_partitions))})
        told = CreateTopicsResponse.CreatableTopicResult(
            version=7,
            name=wanted.name,
            topic_id=uuid.UUID(int=0) if code else self.topics[wanted.name].id,
            error_code=code,
            error_message=None,
            num_partitions=wanted.num_partitions,
            replication_factor=wanted.replication_factor,
            configs=[],
        )
        return CreateTopicsResponse[7](throttle_time_ms=0, topics=[told])

    def _delete(self, request: Any) -> Any:
        wanted = request.topics[0].topic_id
        self.topics = {name: each for name, each in self.topics.items() if each.id != wanted}
        told = DeleteTopicsResponse.DeletableTopicResult(
            version=6, name=None, topic_id=wanted, error_code=0, error_message=None
        )
        return DeleteTopicsResponse[6](throttle_time_ms=0, responses=[told])

    def _join(self, request: Any) -> Any:
        """One member asks, and is the leader; perhaps another one is there, whose claim is made up."""
        member = JoinGroupResponse.JoinGroupResponseMember
        self._generation += 1
        self._joined_with = self.other
        mine = request.protocols[0].metadata
        members = [member(version=7, member_id="asks", group_instance_id=None, metadata=mine)]
        if self.other is not None:
            part = ConsumerProtocolSubscription.TopicPartition
            claim = ConsumerProtocolSubscription(
                version=2,
                topics=ConsumerProtocolSubscription.decode(bytes(mine)).topics,
                user_data=None,
                owned_partitions=[part(version=2, topic=name, partitions=[at]) for name, at in self.other],
                generation_id=self._generation - 1,
            )
            members.append(
                member(version=7, member_id="other", group_instance_id=None, metadata=claim.encode())
            )
        return JoinGroupResponse[7](
            throttle_time_ms=0,
            error_code=0,
            generation_id=self._generation,
            protocol_type="consumer",
            protocol_name=request.protocols[0].name,
            leader="asks",
            member_id="asks",
            members=members,
        )

    def _sync(self, request: Any) -> Any:
        given = {each.member_id: bytes(each.assignment) for each in request.assignments}
        # It may be gone since they were asked to join: then they are asked again.
        if "other" in given and self.other is not None:
            told = ConsumerProtocolAssignment.decode(given["other"]).assigned_partitions
            self.other = frozenset((each.topic, number) for each in told for number in each.partitions)
            self._joined_with = self.other
        return SyncGroupResponse[5](
            throttle_time_ms=0,
            error_code=0,
            protocol_type="consumer",
            protocol_name=request.protocol_name,
            assignment=given["asks"],
        )

    def _beat(self, _: Any) -> Any:
        code = self.beats.pop(0) if self.beats else 0 if self.other == self._joined_with else 27
        return HeartbeatResponse[4](throttle_time_ms=0, error_code=code)

    def _fetch(self, request: Any) -> Any:
        topic = FetchResponse.FetchableTopicResponse
        ids = {each.id: each for each in self.topics.values()}
        told, some = [], False
        for wanted in request.topics:
            found = ids.get(wanted.topic_id)
            parts = [self._partition(topic, found, each) for each in wanted.partitions]
            some = some or any(each.records or each.error_code or each.diverging_epoch for each in parts)
            told.append(topic(version=13, topic_id=wanted.topic_id, partitions=parts))
        if not some:
            threading.Event().wait(min(request.max_wait_ms, 50) / 1000)
        return FetchResponse[13](throttle_time_ms=0, error_code=0, session_id=0, responses=told)

    def _partition(self, topic: Any, found: Topic | None, asked: Any) -> Any:
        part = topic.PartitionData
        log = None if found is None else found.logs.get(asked.partition)
        code, records, diverging = 0, b"", None
        if log is None:
            code = 100
        elif asked.current_leader_epoch < log.epoch:
            code = 74
        elif asked.last_fetched_epoch >= 0 and asked.fetch_offset >= log.start:
            epoch, end = log.end_of_epoch(asked.last_fetched_epoch)
            if epoch < asked.last_fetched_epoch or end < asked.fetch_offset:
                diverging = part.EpochEndOffset(version=13, epoch=epoch, end_offset=end)
        if log is not None and not code and diverging is None:
            if log.start <= asked.fetch_offset <= log.end:
                records = log.data(asked.fetch_offset)
            else:
                code = 1
        end = -1 if log is None else log.end
        return part(
            version=13,
            partition_index=asked.partition,
            error_code=code,
            high_watermark=end,
            last_stable_offset=end if log is None or log.stable is None else log.stable,
            log_start_offset=-1 if log is None else log.start,
            diverging_epoch=diverging,
            aborted_transactions=None,
            preferred_read_replica=-1,
            records=records,
        )


def _entry(kind: Any, name: str, value: str, source: int, synonym: str, other: str | None = None) -> Any:
    told = kind.DescribeConfigsSynonym(
        version=4, name=synonym, value=value if other is None else other, source=source
    )
    return kind(
        version=4,
        name=name,
        value=value,
        read_only=False,
        config_source=source,
        is_sensitive=False,
        synonyms=[told],
        config_type=5,
        documentation=None,
    )


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def damaged(data: bytes, at: int) -> bytes:
    """The bytes with one of them changed."""
    found = np.frombuffer(data, np.uint8).copy()
    found[at] ^= 0xFF
    return found.tobytes()


def values_of(records: Sequence[Record]) -> list[bytes | None]:
    """The values of records."""
    return [record.value for record in records]
