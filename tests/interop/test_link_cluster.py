"""A mount that is linked to three brokers mirrors their topics while they die, freeze and come back.

LINK_ROUNDS says how often a leader is taken away: 50 rounds take a quarter of an hour.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiokafka.errors import KafkaError
from daemon_mount import opened
from kafka_clients import create_topics, ends_of, leaders_of, produce
from kafka_cluster import KafkaCluster, Node
from kafka_console import console, console_line
from line_writer import LineWriter, SteadyWriter
from linked import LinkedMount, log_bytes
from patience import eventually
from rough_network import RoughNetwork
from sampling import sample
from steady_producer import SteadyProducer

from topicfs import Record, arrow

ROUNDS = int(os.environ.get("LINK_ROUNDS", "2"))
PARTITIONS = 2
FROZEN_S = 4.0
"""Longer than a broker's session: others lead its partitions then, and it comes back without knowing it."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with KafkaCluster.running(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def networks(cluster: KafkaCluster) -> Iterator[list[RoughNetwork]]:
    """The networks between the mount and each broker. Brokers and producers have better ones."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(RoughNetwork.between(node.before, node.behind))
            for node in cluster.nodes.values()
        ]


@pytest.fixture(scope="module")
def linked(
    cluster: KafkaCluster, networks: list[RoughNetwork], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LinkedMount]:
    mount = LinkedMount(tmp_path_factory.mktemp("linked"), cluster.rough_bootstrap)
    for words in (
        "cannot be asked",
        "nothing is mirrored from broker",
        "is not mirrored",
        "is mirrored as before",
        "were lost in the cluster",
        "EIO: unclean-0: was truncated",
        "lines are lost",
        "cannot be aborted yet, and is tried again",
        "a commit that stopped half way is tried again",
        "in spite of",
    ):
        mount.expect(words)
    with mount.to_its_end(200 + 60 * ROUNDS):
        mount.link()
        yield mount


def values(linked: LinkedMount, partition: str) -> dict[int, bytes]:
    """What the mount shows, by offset."""
    return {
        record.offset: record.value or b"" for record in linked.shown(partition) if record.offset is not None
    }


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


@contextmanager
def roughened(networks: list[RoughNetwork]) -> Iterator[None]:
    """Have networks delay, cut and reset connections now and then, until the block ends."""
    stopping = threading.Event()

    def roughen() -> None:
        while not stopping.wait(random.uniform(0.2, 1.0)):
            network = random.choice(networks)
            network.delay_s = random.choice((0.0, 0.0, 0.005, 0.05))
            network.cut(reset=random.random() < 0.5)

    thread = threading.Thread(target=roughen, name="network")
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
        for network in networks:
            network.delay_s = 0.0


@dataclass
class BatchWriter(SteadyWriter):
    """A thread that commits batches of an inbox, each again and again until that has done well, also while there is no
    mount.

    inbox      the inbox
    committed  the batches whose commit has done well
    """

    inbox: Path
    committed: list[str] = field(default_factory=list)

    def _write(self) -> None:
        for number in itertools.count():
            name = f"batch-{number}"
            while True:
                try:
                    self._commit(name)
                    break
                except OSError:
                    time.sleep(0.05)
            self.committed.append(name)
            if self._stopping.wait(0.02):
                return

    def _commit(self, name: str) -> None:
        place = self.inbox / name
        with suppress(FileExistsError):
            place.mkdir()
        for number in range(PARTITIONS):
            line = f'{{"value":"{name}","partition":{number}}}\n'
            (place / f"part-{number}.jsonl").write_text(line)
        (place / "_SUCCESS").touch()


def test_nothing_is_missing_doubled_or_out_of_order_while_leaders_die(
    cluster: KafkaCluster, linked: LinkedMount, networks: list[RoughNetwork]
) -> None:
    create_topics(cluster.bootstrap, {"plain": {}, "exact": {}, "lines": {}, "batches": {}}, PARTITIONS, 3)
    for number in range(PARTITIONS):
        linked.await_end(f"lines-{number}", 0)
        linked.await_end(f"batches-{number}", 0)
    plain = SteadyProducer(cluster.bootstrap, "plain", PARTITIONS)
    exact = SteadyProducer(cluster.bootstrap, "exact", PARTITIONS, "exactly")
    lines = LineWriter(linked / "lines-0/log.txt")
    batches = BatchWriter(linked / "topics/batches/inbox")
    with plain.running(), exact.running(), lines.running(), batches.running(), roughened(networks):
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
            known = len(batches.committed)
            eventually(lambda known=known: len(batches.committed) > known, "a batch is committed again")
    linked.await_end("lines-0", ends_of(cluster.bootstrap, "lines", PARTITIONS)[0])
    lines.check((linked / "lines-0/log.txt").read_text().split())
    ends = ends_of(cluster.bootstrap, "batches", PARTITIONS)
    for number in range(PARTITIONS):
        linked.await_end(f"batches-{number}", ends[number])
        shown = (linked / f"batches-{number}/log.txt").read_text().split()
        assert shown == batches.committed, "each batch is there once, in each partition"
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
            mirrored = linked.log_bytes(name)
            for node in cluster.nodes.values():
                copy = node.log_dir / name
                eventually(lambda copy=copy, log=mirrored: log_bytes(copy) == log, f"{copy} is the same log")
    topics = ("plain", "exact", "lines", "batches")
    expected = [
        console_line(number, record)
        for topic in topics
        for number in range(PARTITIONS)
        for record in linked.shown(f"{topic}-{number}")
    ]
    assert console(cluster.bootstrap, topics, len(expected), committed=True) == sorted(expected)


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


class Daemons:
    """Daemons of one group, each with a mount and a store of its own.

    topic    the topic that they mirror
    stores   the directory of all stores, where they take partitions from each other; None: each has its own copies
    mounts   the mounts, by the names of the daemons
    running  the names of those that run, and are awake
    """

    def __init__(self, cluster: KafkaCluster, place: Path, topic: str, moves: bool, *names: str) -> None:
        self.topic = topic
        self.stores = place / "stores" if moves else None
        self.mounts: dict[str, LinkedMount] = {}
        self.running = set(names)
        own = () if self.stores is None else ("-o", f"link.group.directory={self.stores}")
        for name in names:
            mount = self.mounts[name] = LinkedMount(
                place / name, cluster.bootstrap, {"session.timeout.ms": str(SESSION_MS)}
            )
            for words in (
                "mirrors nothing until",
                "was deleted while it was open",
                "No such file or directory",
                "the group of daemons cannot be asked",
                "cannot be asked",
                "nothing is mirrored from",
                "is not mirrored",
                "is mirrored as before",
            ):
                mount.expect(words)
            if self.stores is not None:
                mount.backing = self.stores / name
            mount.link("--link-topic", topic, "--link-group", topic, *own)

    def who_has(self, number: int) -> list[str]:
        """Who says that it mirrors a partition."""
        return [name for name in sorted(self.running) if self._has(name, number)]

    def _has(self, name: str, number: int) -> bool:
        try:
            told = self.mounts[name].status(self.mounts[name] / f"{self.topic}-{number}")["link"]
        except OSError:
            # It is not here; or it was given up when its status was open, or taken while the daemon was stopped.
            return False
        return (
            told is not None and None not in (told["leader"], told["lag_records"]) and not told["last_error"]
        )

    def settle(self, words: str) -> dict[int, str]:
        """Wait until each partition has one daemon and all have alike, and return whose each is."""
        found: dict[int, list[str]] = {}

        def is_divided() -> bool:
            found.update({number: self.who_has(number) for number in range(SHARED)})
            counts = [sum(each == [name] for each in found.values()) for name in self.running]
            return all(len(each) == 1 for each in found.values()) and max(counts) - min(counts) <= 1

        eventually(is_divided, words, 90)
        return {number: each[0] for number, each in found.items()}


SESSION_MS = 3_000
SHARED = 6


def test_daemons_of_one_group_divide_the_partitions_and_take_over(
    cluster: KafkaCluster, tmp_path: Path
) -> None:
    for moves in sample((False, True)):
        place = tmp_path / str(moves)
        place.mkdir()
        divide_and_take_over(cluster, place, moves)


def divide_and_take_over(cluster: KafkaCluster, tmp_path: Path, moves: bool) -> None:
    """Three daemons, of which one dies and one is frozen; `moves`: whether partitions move into their stores."""
    topic = "moving" if moves else "shared"
    create_topics(cluster.bootstrap, {topic: {}}, SHARED, 3)
    daemons = Daemons(cluster, tmp_path, topic, moves, "one", "two", "three")
    producer = SteadyProducer(cluster.bootstrap, topic, SHARED)
    try:
        with producer.running():
            daemons.settle("three have two each")
            # One dies, one is stopped for longer than a session, and its partitions are others' when it wakes up.
            daemons.mounts["one"].kill()
            daemons.running.remove("one")
            whose = daemons.settle("two have three each")
            frozen = daemons.mounts["two"]
            assert frozen.process is not None
            os.kill(frozen.process.pid, signal.SIGSTOP)
            daemons.running.remove("two")
            lost = [number for number, name in whose.items() if name == "two"]
            daemons.settle("one has all")
            before = {number: frozen.log_bytes(f"{topic}-{number}") for number in lost}
            known = len(producer.acknowledged)
            eventually(lambda: len(producer.acknowledged) > known + 20, "more is produced")
            os.kill(frozen.process.pid, signal.SIGCONT)
            daemons.running.add("two")
            whose = daemons.settle("two have three each again")
            for number in lost:
                if whose[number] == "three":
                    assert frozen.log_bytes(f"{topic}-{number}") == before[number], (
                        "it wrote what was others'"
                    )
        ends = ends_of(cluster.bootstrap, topic, SHARED)
        for number, name in whose.items():
            daemons.mounts[name].await_end(f"{topic}-{number}", ends[number])
            mine = {at: value for (part, at), value in producer.acknowledged.items() if part == number}
            assert mine
            assert values(daemons.mounts[name], f"{topic}-{number}") == mine
        for name in ("two", "three"):
            assert daemons.mounts[name].stop() == 0
            assert daemons.mounts[name].alarms() == []
        if daemons.stores is not None:
            found = (
                arrow(daemons.stores, topic, columns=["partition", "offset", "value"]).read_all().to_pylist()
            )
            told = {(each["partition"], each["offset"]): each["value"] for each in found}
            assert len(told) == len(found), "each record is in one store"
            assert told == producer.acknowledged
    finally:
        for mount in daemons.mounts.values():
            mount.clear()
