"""The least that a mirror has to do: `python bare_fetch.py HOST PORT TOPIC` fetches all of partition 0, one request
after the other, and keeps nothing. It prints seconds, processor seconds and megabytes of memory.

Messages are those of kafka-python. Of an answer only the headers of batches are looked at, for the next offset.
"""

from __future__ import annotations

import resource
import socket
import struct
import sys
import time
import uuid
from typing import Any, Final

from kafka.protocol.consumer import FetchRequest, FetchResponse, ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

AT_ONCE: Final = 8 * 1024 * 1024
HEAD: Final = struct.Struct(">qi")
LAST_DELTA: Final = struct.Struct(">i")


class Bare:
    """A connection that sends one request after the other."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request: Any, answer: Any) -> Any:
        request.with_header(correlation_id=1, client_id="bare")
        self._socket.sendall(request.encode(framed=True, header=True))
        size = int.from_bytes(self._receive(4), "big")
        data = memoryview(self._receive(size))
        # The header of an answer is its number, and no tags behind it where the version has any.
        return answer.decode(data[4 + answer.flexible_version_q(request.API_VERSION) :])

    def _receive(self, size: int) -> bytearray:
        data = bytearray(size)
        rest = memoryview(data)
        while rest:
            rest = rest[self._socket.recv_into(rest) :]
        return data


def position_behind(records: bytes) -> int:
    """The offset behind the last whole batch."""
    at, behind = 0, -1
    while at + 61 <= len(records):
        base, length = HEAD.unpack_from(records, at)
        if at + 12 + length > len(records):
            break
        behind = base + LAST_DELTA.unpack_from(records, at + 23)[0] + 1
        at += 12 + length
    return behind


def main(host: str, port: str, topic: str) -> None:
    bare = Bare(host, int(port))
    named = MetadataRequest.MetadataRequestTopic(version=12, name=topic)
    told = bare.ask(MetadataRequest[12](topics=[named]), MetadataResponse[12])
    topic_id: uuid.UUID = told.topics[0].topic_id
    part = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
        version=7, partition_index=0, current_leader_epoch=-1, timestamp=-1
    )
    of_topic = ListOffsetsRequest.ListOffsetsTopic(version=7, name=topic, partitions=[part])
    ends = bare.ask(
        ListOffsetsRequest[7](replica_id=-1, isolation_level=0, topics=[of_topic]), ListOffsetsResponse[7]
    )
    end = ends.topics[0].partitions[0].offset
    start, used = time.perf_counter(), time.process_time()
    position = 0
    while position < end:
        wanted = FetchRequest.FetchTopic.FetchPartition(
            version=13, partition=0, fetch_offset=position, partition_max_bytes=AT_ONCE
        )
        answer = bare.ask(
            FetchRequest[13](
                max_wait_ms=500,
                min_bytes=1,
                max_bytes=2 * AT_ONCE,
                isolation_level=0,
                session_id=0,
                session_epoch=-1,
                topics=[FetchRequest.FetchTopic(version=13, topic_id=topic_id, partitions=[wanted])],
                forgotten_topics_data=[],
                rack_id="",
            ),
            FetchResponse[13],
        )
        position = position_behind(answer.responses[0].partitions[0].records)
    took, used = time.perf_counter() - start, time.process_time() - used
    print(took, used, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)


if __name__ == "__main__":
    main(*sys.argv[1:])
