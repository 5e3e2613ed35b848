"""A cluster of three real brokers on loopback, each a controller too: killed, stopped and brought back one by one."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kafka_broker import (
    CLUSTER_ID,
    SETTINGS,
    START_SECONDS,
    STOP_SECONDS,
    KafkaError,
    format_directories,
    free_ports,
    java,
    write_properties,
)

NODES: Final = (1, 2, 3)

_OF_THREE: Final[Mapping[str, str]] = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    # A broker that is stopped is given up after this time, and others lead its partitions.
    "broker.session.timeout.ms": "2500",
    "controller.quorum.fetch.timeout.ms": "2000",
    "controller.quorum.election.timeout.ms": "1000",
    "replica.lag.time.max.ms": "3000",
    "num.network.threads": "2",
    "num.io.threads": "2",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "auto.leader.rebalance.enable": "false",
    "group.min.session.timeout.ms": "1000",
}


@dataclass(slots=True)
class Node:
    """One broker of a cluster.

    number     its id
    home       the directory of its files
    bootstrap  host:port for clients
    behind     the port of its other listener, which tells clients that it is at `before`: a rough network leads there
    before     the port of that network
    process    the JVM; None while there is none
    """

    number: int
    home: Path
    bootstrap: str
    behind: int
    before: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def log_dir(self) -> Path:
        """The directory of its partitions."""
        return self.home / "logs"

    def launch(self) -> None:
        """Begin to start it."""
        with (self.home / "broker.log").open("wb") as log:
            self.process = subprocess.Popen(
                java("kafka.Kafka", str(self.home / "server.properties"), jvm=["-Xmx256m"]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def await_start(self) -> None:
        """Return when it serves."""
        deadline = time.monotonic() + 2 * START_SECONDS
        while "Kafka Server started" not in self.said():
            if self.process is None or self.process.poll() is not None or time.monotonic() > deadline:
                raise KafkaError(f"broker {self.number} did not start\n{self.said()[-6000:]}")
            time.sleep(0.05)

    def start(self) -> None:
        """Start it, and return when it serves."""
        self.launch()
        self.await_start()

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it as a crash would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(STOP_SECONDS)
            self.process = None

    def said(self) -> str:
        """What it has logged in this run."""
        return (self.home / "broker.log").read_text(errors="replace")


@dataclass(slots=True)
class KafkaCluster:
    """Three brokers.

    nodes  the brokers, by their ids
    """

    nodes: dict[int, Node] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def running(cls, place: Path) -> Iterator[KafkaCluster]:
        """A cluster that has started. Its brokers are killed at the end."""
        ports = free_ports(4 * len(NODES))
        voters = ",".join(f"{node}@127.0.0.1:{ports[4 * at]}" for at, node in enumerate(NODES))
        cluster = cls()
        for at, number in enumerate(NODES):
            home = place / f"broker-{number}"
            (home / "logs").mkdir(parents=True)
            controller, client, behind, before = ports[4 * at : 4 * at + 4]
            plain = f"PLAINTEXT://127.0.0.1:{client}"
            write_properties(
                home / "server.properties",
                {
                    **SETTINGS,
                    **_OF_THREE,
                    "node.id": str(number),
                    "controller.quorum.voters": voters,
                    "listeners": f"{plain},CONTROLLER://127.0.0.1:{controller},ROUGH://127.0.0.1:{behind}",
                    "advertised.listeners": f"{plain},ROUGH://127.0.0.1:{before}",
                    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,ROUGH:PLAINTEXT",
                    "log.dirs": str(home / "logs"),
                },
            )
            format_directories(home / "server.properties", CLUSTER_ID)
            cluster.nodes[number] = Node(number, home, f"127.0.0.1:{client}", behind, before)
        try:
            for node in cluster.nodes.values():
                node.launch()
            for node in cluster.nodes.values():
                node.await_start()
            yield cluster
        finally:
            for node in cluster.nodes.values():
                node.kill()

    @property
    def bootstrap(self) -> str:
        """The addresses of all of them."""
        return ",".join(node.bootstrap for node in self.nodes.values())

    @property
    def rough_bootstrap(self) -> str:
        """The addresses of the networks that lead to them."""
        return ",".join(f"127.0.0.1:{node.before}" for node in self.nodes.values())
