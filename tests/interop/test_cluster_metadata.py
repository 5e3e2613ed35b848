"""What a real broker's metadata log says of its topics, and that no default of ours removes a broker's records."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import kafka_broker
import pytest
from kafka_broker import Broker, KafkaError, run_tool
from kafka_clients import consume, create_topics, produce

from topicfs import Record, Store
from topicfs.engine.cluster.image import Cluster
from topicfs.engine.cluster.reading import read_cluster
from topicfs.engine.files.metadata import MetaProperties
from topicfs.engine.plan.plan import plan
from topicfs.engine.record import now_ms
from topicfs.engine.settings.broker import BROKERS
from topicfs.engine.settings.lookup import DAEMON_BY_NAME

TOPICS: Mapping[str, Mapping[str, str]] = {
    "plain": {},
    "compacted": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"},
    "short": {"retention.ms": "3600000"},
    "deleted": {"retention.ms": "1"},
    "reset": {"retention.bytes": "1048576", "retention.ms": "1"},
    "partitioned": {"segment.bytes": "2097152"},
}
LONG_AGO = 1_600_000_000_000


def alter(bootstrap: str, kind: str, name: str | None, *changes: str) -> None:
    """Change settings as `kafka-configs` does."""
    entity = ["--entity-default"] if name is None else ["--entity-name", name]
    arguments = ["--bootstrap-server", bootstrap, "--alter", "--entity-type", kind, *entity, *changes]
    done = run_tool("org.apache.kafka.tools.ConfigCommand", *arguments)
    if done.returncode:
        done = run_tool("kafka.admin.ConfigCommand", *arguments)
    if done.returncode:
        raise KafkaError(f"{arguments}: {done.stdout}{done.stderr}")


def topics_tool(bootstrap: str, *arguments: str) -> None:
    done = run_tool("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", bootstrap, *arguments)
    if done.returncode:
        raise KafkaError(f"{arguments}: {done.stdout}{done.stderr}")


@dataclass(frozen=True, slots=True)
class Directory:
    """A backing directory whose logs a broker wrote."""

    clean: Path
    killed: Path


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Directory:
    root = tmp_path_factory.mktemp("metadata")
    live = root / "live"
    with Broker.start(live / "logs", root / "home") as broker:
        create_topics(broker.bootstrap, TOPICS)
        topics_tool(broker.bootstrap, "--alter", "--topic", "partitioned", "--partitions", "3")
        topics_tool(broker.bootstrap, "--delete", "--topic", "deleted")
        alter(broker.bootstrap, "topics", "reset", "--delete-config", "retention.ms")
        alter(
            broker.bootstrap,
            "brokers",
            None,
            "--add-config",
            "log.retention.bytes=9999999,log.retention.ms=123456",
        )
        alter(broker.bootstrap, "brokers", "1", "--add-config", "log.retention.ms=5000000000")
        alter(broker.bootstrap, "brokers", None, "--delete-config", "log.retention.bytes")
        for topic in ("plain", "compacted", "short"):
            old = [Record(b"v%d" % at, b"k%d" % (at % 5), LONG_AGO + at) for at in range(100)]
            produce(broker.bootstrap, topic, old)
        consume(broker.bootstrap, "plain", group="readers")  # makes __consumer_offsets
        broker.stop(clean=False)
    shutil.copytree(live, root / "killed")
    with Broker.start(live / "logs", root / "home"):
        pass
    return Directory(live, root / "killed")


@pytest.mark.parametrize("state", ["clean", "killed"])
def test_a_brokers_metadata_is_read(directory: Directory, state: str) -> None:
    logs: Path = getattr(directory, state) / "logs"
    node = MetaProperties.load_or_create(logs, now_ms, read_only=True).node_id
    cluster = read_cluster(logs, node)
    kafkas = {name: topic for name, topic in cluster.topics.items() if name.startswith("__")}
    assert set(cluster.topics) - set(kafkas) == set(TOPICS) - {"deleted"}
    assert {name: dict(topic.settings) for name, topic in cluster.topics.items() if name in TOPICS} == {
        **{name: dict(settings) for name, settings in TOPICS.items() if name not in ("deleted", "reset")},
        "reset": {"retention.bytes": "1048576"},
    }
    assert kafkas["__consumer_offsets"].settings["cleanup.policy"] == "compact"
    assert {name: cluster.topics[name].partitions for name in ("plain", "partitioned")} == {
        "plain": 1,
        "partitioned": 3,
    }
    # Kafka gives the other one by itself.
    assert cluster.settings == {"log.retention.ms": "5000000000", "min.insync.replicas": "1"}
    for name, topic in cluster.topics.items():
        for path in logs.glob(f"{name}-[0-9]*/partition.metadata"):
            assert path.read_text().endswith(f"topic_id: {topic.topic_id}"), name


def test_the_newest_snapshot_stands_for_what_is_before_it(directory: Directory, tmp_path: Path) -> None:
    """A broker that is made to take snapshots often goes on with the directory."""
    logs = tmp_path / "logs"
    shutil.copytree(directory.clean / "logs", logs)
    before = read_cluster(logs, 1)
    often = {"metadata.log.max.record.bytes.between.snapshots": "1"}
    with mock.patch.dict(kafka_broker.SETTINGS, often), Broker.start(logs, tmp_path / "home") as broker:
        metadata = logs / "__cluster_metadata-0"
        create_topics(broker.bootstrap, {"late": {"retention.ms": "77"}})
        end = time.monotonic() + 30
        while not list(metadata.glob("*.checkpoint")) and time.monotonic() < end:
            time.sleep(0.1)
        create_topics(broker.bootstrap, {"later": {"cleanup.policy": "compact"}})
    assert list(metadata.glob("*.checkpoint"))
    after = read_cluster(logs, 1)
    assert set(after.topics) == {*before.topics, "late", "later"}
    assert {name: after.topics[name] for name in before.topics} == before.topics
    assert after.topics["late"].settings == {"retention.ms": "77"}
    assert after.topics["later"].settings == {"cleanup.policy": "compact"}
    # The beginning of the log is in the snapshot: damage there is not looked at.
    whole = (metadata / "00000000000000000000.log").read_bytes()
    at = whole.index(b"compacted")
    (metadata / "00000000000000000000.log").write_bytes(whole[:at] + b"X" + whole[at + 1 :])
    assert read_cluster(logs, 1) == after
    for path in metadata.glob("*.checkpoint"):
        path.unlink()
    assert read_cluster(logs, 1) == Cluster(is_believed=False)


@pytest.mark.parametrize("state", ["clean", "killed"])
def test_topics_keep_the_settings_of_their_cluster(directory: Directory, tmp_path: Path, state: str) -> None:
    backing = tmp_path / "backing"
    shutil.copytree(getattr(directory, state), backing)
    with Store.open(backing) as store:

        def sources(topic: str) -> dict[str, tuple[str, str]]:
            return {each.name: (each.value, each.source) for each in store.explain(topic)}

        assert sources("compacted")["cleanup.policy"] == ("compact", "cluster")
        assert sources("short")["retention.ms"] == ("3600000", "cluster")
        assert sources("plain")["retention.ms"] == ("5000000000", "cluster:log.retention.ms")
        assert sources("__consumer_offsets")["cleanup.policy"] == ("compact", "cluster")
        assert store.why_kept("plain") is None
        store.configure("short", {"retention.ms": "-1"})
        assert sources("short")["retention.ms"] == ("-1", "topic")
        assert store.create("partitioned", 7).topic_id == store.partition("partitioned", 0).topic_id
    plans = {each.name: each for each in plan(backing, {}, now_ms(), is_running=False)}
    assert plans["compacted-0"].policy == "compact"
    assert plans["short-0"].removals == ()
    assert plans["plain-0"].removals
    assert not plans["__consumer_offsets-0"].removals


def test_what_is_not_known_is_kept(directory: Directory, tmp_path: Path) -> None:
    backing = tmp_path / "backing"
    shutil.copytree(directory.clean, backing)
    shutil.rmtree(backing / "logs" / "__cluster_metadata-0")
    with Store.open(backing) as store:
        store.upkeep.retain(now_ms())
        for topic in ("plain", "compacted", "short", "__consumer_offsets"):
            assert store.why_kept(topic) is not None
            assert store.partition(topic, 0).start_offset == 0
        assert store.partition("plain", 0).end_offset == 100
    with Store.open(backing, {"log.retention.ms": "3600000"}) as store:
        store.upkeep.retain(now_ms())
        assert store.partition("compacted", 0).start_offset == 0
    with Store.open(backing, {"log.retention.ms": "3600000", "log.cleanup.policy": "delete"}) as store:
        assert store.why_kept("plain") is None
        assert store.why_kept("__consumer_offsets") is not None
        store.upkeep.retain(now_ms())
        assert store.partition("plain", 0).start_offset == 100
        assert len(store.partition("__consumer_offsets", 0).log.chain.segments)
        assert store.partition("__consumer_offsets", 0).start_offset == 0


def test_every_setting_that_kafka_documents_is_known_by_name() -> None:
    done = run_tool("kafka.server.KafkaConfig")
    names = set(re.findall(r'id="brokerconfigs_([^"]+)"', done.stdout))
    assert len(names) > 300
    assert names - DAEMON_BY_NAME.keys() == BROKERS


def test_the_file_that_a_broker_ran_with_is_taken(directory: Directory, tmp_path: Path) -> None:
    backing = tmp_path / "backing"
    shutil.copytree(directory.clean, backing)
    shutil.copy(directory.clean.parent / "home" / "server.properties", backing)
    with Store.open(backing) as store:
        found = {each.name: (each.value, each.source) for each in store.explain("short")}
        assert found["segment.index.bytes"] == ("1048576", "daemon:log.index.size.max.bytes")
