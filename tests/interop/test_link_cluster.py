"""A mount that is linked to three brokers mirrors their topics while they die, freeze and come back.

LINK_ROUNDS says how often a leader is taken away: 50 rounds take a quarter of an hour.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import KafkaError
from daemon_mount import append, opened
from kafka_clients import create_topics, ends_of, leaders_of, produce
from kafka_cluster import KafkaCluster, Node
from linked import LinkedMount, log_bytes
from patience import eventually
from steady_producer import SteadyProducer

from topicfs import Record

ROUNDS = int(os.environ.get("LINK_ROUNDS", "2"))
PARTITIONS = 2
FROZEN_S = 4.0
"""Longer than a broker's session: others lead its partitions then, and it comes back without knowing it."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with KafkaCluster.running(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def linked(cluster: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LinkedMount]:
    mount = LinkedMount(tmp_path_factory.mktemp("linked"), cluster.bootstrap)
    for words in (
        "cannot be asked",
        "nothing is mirrored from broker",
        "is not mirrored",
        "were lost in the cluster",
        "EIO: unclean-0: was truncated",
        "lines are lost",
    ):
        mount.expect(words)
    mount.link()
    try:
        with mount.watched(200 + 60 * ROUNDS):
            yield mount
        assert mount.stop() == 0
        assert mount.alarms() == []
    finally:
        mount.clear()


def values(linked: LinkedMount, partition: str) -> dict[int, bytes]:
    """What the mount shows, by offset."""
    lines = (linked / partition / "log.jsonl").read_bytes().splitlines()
    told: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return {each["offset"]: each["value"].encode() for each in told}


def is_led_by(node: Node, topic: str) -> bool:
    """Whether a broker leads partition 0 of a topic, as it says itself."""
    with suppress(KafkaError):
        return leaders_of(node.bootstrap, topic)[0] == node.number
    return False


def disturb(cluster: KafkaCluster, node: Node, freeze: bool) -> None:
    """Take a broker away for longer than its session, as by a crash or a cut network, and bring it back."""
    if freeze:
        node.send(signal.SIGSTOP)
        time.sleep(FROZEN_S)
        node.send(signal.SIGCONT)
        return
    node.kill()
    time.sleep(1.0)
    node.start()


@dataclass
class LineWriter:
    """A thread that appends lines to a file, as `echo >>` does, also while there is no mount.

    acknowledged  the lines whose close has done well, in their order
    failed        the others: the cluster may have them, or not
    """

    file: Path
    acknowledged: list[str] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)
    _stopping: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[LineWriter]:
        """Append until the block ends."""
        thread = threading.Thread(target=self._write, name="lines")
        thread.start()
        try:
            yield self
        finally:
            self._stopping.set()
            thread.join(120)
            assert not thread.is_alive(), "a write hangs"

    def _write(self) -> None:
        for number in itertools.count():
            if self._stopping.wait(0.01):
                return
            line = f"line-{number}"
            try:
                append(self.file, f"{line}\n".encode())
            except OSError:
                self.failed.add(line)
            else:
                self.acknowledged.append(line)


def test_nothing_is_missing_doubled_or_out_of_order_while_leaders_die(
    cluster: KafkaCluster, linked: LinkedMount
) -> None:
    create_topics(cluster.bootstrap, {"plain": {}, "exact": {}, "lines": {}}, PARTITIONS, 3)
    for number in range(PARTITIONS):
        linked.await_end(f"lines-{number}", 0)
    plain = SteadyProducer(cluster.bootstrap, "plain", PARTITIONS)
    exact = SteadyProducer(cluster.bootstrap, "exact", PARTITIONS, "exactly")
    lines = LineWriter(linked / "lines-0/log.txt")
    with plain.running(), exact.running(), lines.running():
        for number in range(2 * ROUNDS):
            before = len(plain.acknowledged)
            leader = leaders_of(cluster.bootstrap, "plain")[0]
            disturb(cluster, cluster.nodes[leader], freeze=number % 2 == 1)
            if number == 1 or random.random() < 0.2:
                linked.kill()
                linked.link()
            eventually(lambda known=before: len(plain.acknowledged) > known, "it is produced again")
            known = len(lines.acknowledged)
            eventually(lambda known=known: len(lines.acknowledged) > known, "it is appended again")
    linked.await_end("lines-0", ends_of(cluster.bootstrap, "lines", PARTITIONS)[0])
    there = [line for line in (linked / "lines-0/log.txt").read_text().split() if line not in lines.failed]
    assert there == lines.acknowledged, "each line that was acknowledged is there once, and in its order"
    for topic, producer in (("plain", plain), ("exact", exact)):
        ends = ends_of(cluster.bootstrap, topic, PARTITIONS)
        for number in range(PARTITIONS):
            name = f"{topic}-{number}"
            linked.await_end(name, ends[number])
            found = values(linked, name)
            mine = {offset: value for (at, offset), value in producer.acknowledged.items() if at == number}
            assert mine
            assert {offset: found.get(offset) for offset in mine} == mine, "nothing acknowledged is missing"
            assert len(set(found.values())) == len(found), "nothing is there twice"
            assert sorted(found) == list(found)
            copies = {node.number: log_bytes(node.log_dir / name) for node in cluster.nodes.values()}
            leader = leaders_of(cluster.bootstrap, topic)[number]
            assert linked.log_bytes(name) == copies[leader]


def test_what_an_unclean_election_has_lost_is_cut_off_here_too(
    cluster: KafkaCluster, linked: LinkedMount
) -> None:
    first, second = cluster.nodes[1], cluster.nodes[2]
    settings = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
    create_topics(cluster.bootstrap, {"unclean": settings}, assignment={0: [1, 2]})
    kept = produce(cluster.bootstrap, "unclean", [Record(b"kept %d" % number) for number in range(20)])
    linked.await_end("unclean-0", 20)
    second.kill()
    produce(cluster.bootstrap, "unclean", [Record(b"lost %d" % number) for number in range(30)])
    linked.await_end("unclean-0", 50)
    assert len(values(linked, "unclean-0")) == 50
    with opened(linked / "unclean-0/log.txt") as reader, opened(linked / "unclean-0/offset/0-9.txt") as below:
        assert os.pread(reader, 1 << 16, 0).count(b"\n") == 50
        first.kill()
        second.start()
        eventually(lambda: is_led_by(second, "unclean"), "the other one leads")
        produce(second.bootstrap, "unclean", [Record(b"instead %d" % number) for number in range(5)])
        linked.await_end("unclean-0", 25)
        with pytest.raises(OSError, match="Input/output error"):
            os.pread(reader, 1 << 16, 0)
        assert os.pread(below, 1 << 16, 0) == b"".join(b"%s\n" % (each.value or b"") for each in kept[:10])
    found = values(linked, "unclean-0")
    assert list(found.values()) == [b"kept %d" % n for n in range(20)] + [b"instead %d" % n for n in range(5)]
    told = linked.status(linked / "unclean-0")["link"]
    assert told["truncated_records"] == 30
    assert "unclean election" in told["notes"][0]
    assert linked.log_bytes("unclean-0") == log_bytes(second.log_dir / "unclean-0")
    first.start()
