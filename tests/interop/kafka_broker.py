"""The real Kafka, as Maven Central publishes it: a broker on loopback, and the dump tool.

The jars lie in `.tools/kafka`; INSTALL is the command that puts them there. The broker is a cluster of one
node, broker and controller in one process. Its directories:

    log_dir/        partitions; the directory whose format `logs/` has to share
    home/           server.properties and broker.log of this run; nothing that Kafka keeps
    metadata_dir/   the controller's own log, `__cluster_metadata-0`. By default it is log_dir, as in Kafka.
                    When it lies elsewhere, our own `logs/` is served as it is.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Self

from kafka_topics import Topic, introduce

PROJECT: Final = Path(__file__).resolve().parents[2]
JARS: Final = PROJECT / ".tools" / "kafka"
INSTALL: Final = "mvn -q -f tests/interop/pom.xml dependency:copy-dependencies"

START_SECONDS: Final = 60
STOP_SECONDS: Final = 60
TOOL_SECONDS: Final = 60

LOGGING: Final = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)
# One compiler tier and one collector thread: a broker that lives for seconds starts faster with few cores.
SMALL: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m")

CLUSTER_ID: Final = "TopicfsInteropCluster0"
BOOTSTRAP: Final = "bootstrap.checkpoint"
NODE_ID: Final = "1"

SETTINGS: Final[Mapping[str, str]] = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # Smaller than the default of 10 MiB, which a copy of a directory would write out in zeros.
    "log.index.size.max.bytes": "1048576",
    # Records of the tests carry timestamps of years ago.
    "log.retention.ms": "-1",
    # After kill -9 the controller refuses the broker's successor until the old session has ended.
    "broker.heartbeat.interval.ms": "200",
    "broker.session.timeout.ms": "1000",
}


class KafkaError(Exception):
    """The broker or a tool did not do its work; the message ends with what it printed."""


def missing() -> str | None:
    """Why Kafka cannot run here, or None."""
    if shutil.which("java") is None:
        return "no Java: install a Java 17 runtime, such as the package default-jre-headless"
    if not any(JARS.glob("kafka_2.13-*.jar")):
        return f"no Kafka in {JARS.relative_to(PROJECT)}: run `{INSTALL}`"
    return None


def java(main: str, *arguments: str, jvm: Iterable[str] = (), base: Iterable[str] = SMALL) -> list[str]:
    """The command line that runs a class of Kafka. `base` has the options of Java's memory and compiler."""
    brokers = sorted(jar.name for jar in JARS.glob("kafka_2.13-*.jar"))
    if len(brokers) != 1:
        raise KafkaError(
            f"expected one version of Kafka in {JARS}, found {brokers}: empty it and run `{INSTALL}`"
        )
    return ["java", *base, *LOGGING, *jvm, "-cp", f"{JARS}/*", main, *arguments]


def run_tool(main: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one of Kafka's tools to its end, with warnings and worse on its standard error."""
    command = java(main, *arguments, jvm=["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"])
    # Java says on its standard error that it has taken these options; the tools have them as arguments.
    own = {name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"}
    return subprocess.run(command, capture_output=True, text=True, timeout=TOOL_SECONDS, check=False, env=own)


# -- the dump tool ----------------------------------------------------------------------------------

DUMPED: Final = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")

# What the tool prints when it finds fault, on one stream or the other; its exit status stays 0.
COMPLAINT: Final = re.compile(
    r"invalid bytes|isvalid: false|Mismatches in|mismatch in|out of order|not found in the log"
    r"|Non-consecutive|Ignoring unknown file|Exception|[Cc]orrupt|WARN|ERROR|FATAL"
)


def files_of(partition: Path) -> list[Path]:
    """The files of a partition's directory that the dump tool reads."""
    return sorted(path for path in partition.iterdir() if path.suffix in DUMPED)


def dump(files: Iterable[Path], *options: str) -> str:
    """What the dump tool prints: its output, then its errors, then a line of ours if it failed."""
    names = [str(path) for path in files]
    if not names:
        raise KafkaError("expected files to dump, found none")
    done = run_tool("org.apache.kafka.tools.DumpLogSegments", *options, "--files", ",".join(names))
    failure = f"ERROR exit status {done.returncode}\n" if done.returncode else ""
    return done.stdout + done.stderr + failure


UTF8: Final = ("-Dfile.encoding=UTF-8", "-Dsun.stdout.encoding=UTF-8", "-Dstdout.encoding=UTF-8")
"""Options of Java by which tools print UTF-8, whatever the locale."""


def dump_bytes(files: Iterable[Path], *options: str) -> bytes:
    """What the dump tool prints on its standard output, as it is."""
    names = ",".join(map(str, files))
    command = java("org.apache.kafka.tools.DumpLogSegments", *options, "--files", names, jvm=UTF8)
    return subprocess.run(command, capture_output=True, timeout=TOOL_SECONDS, check=True).stdout


def complaints(output: str) -> list[str]:
    """The lines of a dump that find fault.

    Lines of records (`|`) are left out: they print keys and values, which may hold any word. The tool
    expects each file to begin at offset 0, so the pair `-1 is followed by` is no break in offsets.
    """
    lines = [line for line in output.splitlines() if not line.startswith("|")]
    found = []
    for number, line in enumerate(lines):
        if not COMPLAINT.search(line):
            continue
        details = list(_indented(lines, number + 1))
        if line.startswith("Non-consecutive"):
            details = [detail for detail in details if not detail.startswith("  -1 is followed by ")]
            if not details:
                continue
        found.append("\n".join([line, *details]))
    return found


def _indented(lines: list[str], start: int) -> Iterable[str]:
    for line in lines[start:]:
        if not line.startswith("  "):
            return
        yield line


# -- the broker -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Broker:
    """A running broker. As a context manager it is stopped cleanly, or killed when the block raised.

    log_dir    where its partitions are
    home       where its server.properties and broker.log are; broker.log begins anew at each start
    bootstrap  host:port for clients, on loopback
    process    the JVM; alive until `stop`
    """

    log_dir: Path
    home: Path
    bootstrap: str
    process: subprocess.Popen[bytes]

    @classmethod
    def start(
        cls,
        log_dir: Path,
        home: Path,
        *,
        metadata_dir: Path | None = None,
        topics: Iterable[Topic] = (),
        settings: Mapping[str, str] | None = None,
        jvm: Iterable[str] = SMALL,
    ) -> Self:
        """Start on a directory, which is formatted first if Kafka does not know it; return when it serves.

        `topics` are made known to a cluster that is formatted now, under the ids in their directories. `settings` are
        added to those of all brokers here.
        """
        home.mkdir(parents=True, exist_ok=True)
        log_dir.mkdir(parents=True, exist_ok=True)
        metadata_dir = metadata_dir or log_dir
        identity = identity_of(log_dir)
        client_port, controller_port = free_ports(2)
        properties = home / "server.properties"
        write_properties(
            properties,
            {
                **SETTINGS,
                "node.id": identity.get("node.id", NODE_ID),
                "controller.quorum.voters": f"{identity.get('node.id', NODE_ID)}@127.0.0.1:{controller_port}",
                "listeners": f"PLAINTEXT://127.0.0.1:{client_port},CONTROLLER://127.0.0.1:{controller_port}",
                "log.dirs": str(log_dir),
                "metadata.log.dir": str(metadata_dir),
                **(settings or {}),
            },
        )
        if not (metadata_dir / "meta.properties").exists():
            format_directories(properties, identity.get("cluster.id", CLUSTER_ID))
            introduce(topics, metadata_dir, identity_of(log_dir))
        with (home / "broker.log").open("wb") as log:
            process = subprocess.Popen(
                java("kafka.Kafka", str(properties), base=jvm),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C at the tests is not the broker's: __exit__ stops it
            )
        broker = cls(log_dir, home, f"127.0.0.1:{client_port}", process)
        try:
            broker._await_start()
        except BaseException:
            broker.stop(clean=False)
            raise
        return broker

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop(clean=kind is None)

    def stop(self, *, clean: bool = True) -> None:
        """Stop cleanly (SIGTERM) or as a crash (SIGKILL), and wait. A second call does nothing."""
        if self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM if clean else signal.SIGKILL)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STOP_SECONDS)
            raise KafkaError(f"broker did not stop within {STOP_SECONDS} s\n{self._tail()}") from None

    def log(self) -> str:
        """What the broker has logged in this run."""
        return (self.home / "broker.log").read_text(errors="replace")

    def complaints(self) -> list[str]:
        """What the broker warned of in its logs: a bad index, a stray directory, a cut tail."""
        found = re.compile(
            r" (WARN|ERROR|FATAL) (kafka\.log\.|kafka\.server\.Log|org\.apache\.kafka\.storage\.)"
        )
        return [line for line in self.log().splitlines() if found.search(line)]

    def recovered(self) -> list[str]:
        """The broker's lines about segments that it recovered at start. After a clean stop there are none."""
        return [line for line in self.log().splitlines() if "Recovering unflushed segment" in line]

    def _await_start(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while "Kafka Server started" not in self.log():
            if self.process.poll() is not None:
                raise KafkaError(f"broker ended with {self.process.returncode} at start\n{self._tail()}")
            if time.monotonic() > deadline:
                raise KafkaError(f"broker did not start within {START_SECONDS} s\n{self._tail()}")
            time.sleep(0.05)

    def _tail(self) -> str:
        return "\n".join(self.log().splitlines()[-40:])


def identity_of(log_dir: Path) -> dict[str, str]:
    """The fields of a directory's meta.properties; none when it has no such file."""
    path = log_dir / "meta.properties"
    if not path.exists():
        return {}
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def format_directories(properties: Path, cluster_id: str) -> None:
    """Give directories that have no identity one; those that have it keep it.

    Kafka's tool takes a second of a processor each time, so its bytes are kept: in one release of Kafka they are the
    same for all directories but for their times."""
    told = dict(line.split("=", 1) for line in properties.read_text().splitlines())
    log_dir = Path(told["log.dirs"])
    metadata_dir = Path(told.get("metadata.log.dir", log_dir))
    for directory in {log_dir, metadata_dir}:
        if not identity_of(directory):
            directory.mkdir(parents=True, exist_ok=True)
            write_properties(
                directory / "meta.properties",
                {
                    "version": "1",
                    "cluster.id": cluster_id,
                    "node.id": told["node.id"],
                    "directory.id": base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("="),
                },
            )
    (metadata_dir / BOOTSTRAP).write_bytes(_formatted())


@cache
def _formatted() -> bytes:
    """The first records of a cluster's metadata, as Kafka's own tool formats a directory."""
    with tempfile.TemporaryDirectory() as place:
        properties = Path(place) / "server.properties"
        listeners = {
            "node.id": NODE_ID,
            "controller.quorum.voters": f"{NODE_ID}@127.0.0.1:9093",
            "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
            "log.dirs": place,
        }
        write_properties(properties, {**SETTINGS, **listeners})
        done = run_tool(
            "kafka.tools.StorageTool", "format", "--cluster-id", CLUSTER_ID, "--config", str(properties)
        )
        if done.returncode:
            raise KafkaError(f"format ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return (Path(place) / BOOTSTRAP).read_bytes()


def write_properties(path: Path, values: Mapping[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on, held together for a moment so that they differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
