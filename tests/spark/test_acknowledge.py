"""A worker of Spark does not wait for an acknowledgement that its own kernel delays."""

from __future__ import annotations

import pickle
import socket
import time
from pathlib import Path

import pytest

from topicfs.engine.spark.acknowledge import SentToWorkers
from topicfs.engine.spark.columns import columns
from topicfs.engine.spark.options import parse
from topicfs.engine.spark.reader import TopicReader
from topicfs.engine.spark.stream import TopicStreamReader

TURNS = 20
DELAY_S = 0.04


def quickest_turn_s(reader: SentToWorkers) -> float:
    """The shortest time in which a task arrives whole, when it comes as from Spark: in two writes, on a connection
    that has answered before."""
    sent = pickle.dumps(reader)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as worker:
        worker.connect(server.getsockname())
        spark, _ = server.accept()
        turns = []
        with spark:
            for _ in range(TURNS):
                worker.sendall(b"answer")
                spark.recv(100)
                begun = time.monotonic()
                spark.sendall(sent)
                spark.sendall(b"range")
                pickle.loads(worker.recv(len(sent), socket.MSG_WAITALL))
                assert worker.recv(100) == b"range"
                turns.append(time.monotonic() - begun)
    return min(turns[1:])


@pytest.mark.parametrize("kind", [TopicReader, TopicStreamReader])
def test_a_reader_that_arrives_is_acknowledged_at_once(kind: type, tmp_path: Path) -> None:
    streaming = kind is TopicStreamReader
    options = parse({"path": str(tmp_path), "topic": "t"}, streaming=streaming)
    assert quickest_turn_s(kind(options, columns(include_headers=False))) < DELAY_S / 2
