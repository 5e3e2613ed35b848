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
from kafka.protocol.admin import DescribeConfigsRequest, DescribeConfigsResponse
from kafka.protocol.consumer import FetchRequest, FetchResponse, ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.producer import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
)

from topicfs.engine import batch as batches
from topicfs.engine.kernels import encode
from topicfs.engine.kernels.scan import BASE_SEQUENCE, COUNT, PRODUCER_ID
from topicfs.engine.record import Record, now_ms

REQUESTS: Final[dict[int, Any]] = {
    0: ProduceRequest,
    1: FetchRequest,
    2: ListOffsetsRequest,
    3: MetadataRequest,
    18: ApiVersionsRequest,
    22: InitProducerIdRequest,
    32: DescribeConfigsRequest,
}
HEAD: Final = struct.Struct(">hhih")
OWN: Final = 1
UNKNOWN: Final = 3
DEFAULT: Final = 5
CLUSTER: Final = "StandInForACluster0000"


@dataclass(slots=True)
class Log:
    """One partition, as its leader has it.

    batches  pairs of the offset behind a batch, and its bytes
    epoch    the leader's epoch
    start    the first offset that there is
    stable   the stable offset; None: the end
    last     by producer: the sequence of its last batch, and the offset where that lies
    """

    batches: list[tuple[int, bytes]] = field(default_factory=list)
    epoch: int = 0
    start: int = 0
    stable: int | None = None
    last: dict[int, tuple[int, int]] = field(default_factory=dict)

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

    def produce(self, records: bytes) -> int:
        """Append a producer's batch once, and return its offset."""
        data = np.frombuffer(records, np.uint8).copy()
        row = batches.scan(data)[0]
        producer, sequence, end = int(row[PRODUCER_ID]), int(row[BASE_SEQUENCE]), self.end
        known = self.last.get(producer)
        if known is not None and known[0] == sequence:
            return known[1]
        encode.stamp(data, 0, end, self.epoch)
        self.batches.append((end + int(row[COUNT]), data.tobytes()))
        self.last[producer] = sequence, end
        return end

    def cut(self, offset: int, epoch: int) -> None:
        """Lose all batches from an offset on, as an unclean election does, whose leader has this epoch."""
        self.batches = [each for each in self.batches if each[0] <= offset]
        self.epoch = epoch

    def data(self, offset: int = 0) -> bytes:
        """The batches from the one that holds an offset on."""
        return b"".join(data for end, data in self.batches if end > offset)

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch that is not above this one, and where it ends."""
        found, end = -1, self.start
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


class StandInBroker:
    """A broker on loopback. Each connection has a thread.

    topics    the topics by name
    twist     changes an answer before it is sent; by the class of its request
    garble    changes the bytes of an answer, without the length before them
    refuse    the error codes with which the next batches are refused, before anything is appended
    asked     how many requests of each kind came
    port      where it listens; it stays the same when it is away, and comes back
    """

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.twist: dict[Any, Callable[[Any, Any], None]] = {}
        self.garble: Callable[[Any, bytes], bytes] = lambda _, data: data
        self.refuse: list[int] = []
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
                request = kind[version].decode(memoryview(data)[HEAD.size + length + 1 :])
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
            InitProducerIdRequest: self._new_producer,
            ProduceRequest: self._produce,
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

    def _new_producer(self, _: Any) -> Any:
        number = self.asked[InitProducerIdRequest]
        return InitProducerIdResponse[4](
            throttle_time_ms=0, error_code=0, producer_id=1000 + number, producer_epoch=0
        )

    def _produce(self, request: Any) -> Any:
        topic = ProduceResponse.TopicProduceResponse
        ids = {each.id: each for each in self.topics.values()}
        told = []
        for wanted in request.topic_data:
            parts = []
            for part in wanted.partition_data:
                code = self.refuse.pop(0) if self.refuse else 0
                log = ids[wanted.topic_id].logs[part.index]
                parts.append(
                    topic.PartitionProduceResponse(
                        version=13,
                        index=part.index,
                        error_code=code,
                        base_offset=-1 if code else log.produce(part.records),
                        log_append_time_ms=-1,
                        log_start_offset=log.start,
                        record_errors=[],
                        error_message=None,
                    )
                )
            told.append(topic(version=13, topic_id=wanted.topic_id, partition_responses=parts))
        return ProduceResponse[13](responses=told, throttle_time_ms=0)

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
