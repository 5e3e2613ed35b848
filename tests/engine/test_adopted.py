"""Topics that were not made here: what their cluster says holds, and no default of ours removes their records."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_bench import SMALL, START, StoreBench, checked_store_bench
from test_cluster import OF_BROKER, OF_TOPIC, frame, setting, text, write

from topicfs import Record, Store
from topicfs.engine.format.paths import CREATED_TOPICS, METADATA_LOG
from topicfs.engine.plan.plan import plan
from topicfs.engine.verify.finding import Kind
from topicfs.engine.verify.run import Check

DAY = 86_400_000
LATER = START + 3650 * DAY


@pytest.fixture
def store_bench(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[StoreBench]:
    with checked_store_bench(tmp_path, caplog) as store_bench:
        yield store_bench


@pytest.fixture
def adopted(store_bench: StoreBench) -> StoreBench:
    """A store whose log directory somebody put there, without a word on it: topic `t`, old and in many segments."""
    store = store_bench.open()
    for topic in ("t", "__consumer_offsets"):
        partition = store.create(topic, 0, SMALL)
        for number in range(9):
            partition.append(Record(b"v" * 120, b"key", START + number))
    store.close()
    shutil.rmtree(store_bench.root / "topics")
    (store_bench.root / CREATED_TOPICS).unlink()
    return store_bench


def introduce(store_bench: StoreBench, topic: str, *values: bytes, other_id: bool = False) -> None:
    """Let the metadata of a cluster know the topic, and say this."""
    import base64  # noqa: PLC0415 - for this alone

    written = (store_bench.logs / f"{topic}-0" / "partition.metadata").read_text().rpartition(" ")[2]
    raw = bytes(16) if other_id else base64.urlsafe_b64decode(written + "==")
    shutil.rmtree(store_bench.logs / METADATA_LOG, ignore_errors=True)
    write(store_bench.logs, frame(2, text(topic), raw), *values)


def segments(store: Store, topic: str = "t") -> int:
    return len(store.partition(topic, 0).log.chain.segments)


def source(store: Store, name: str, topic: str = "t") -> tuple[str, str]:
    return {each.name: (each.value, each.source) for each in store.explain(topic)}[name]


def test_what_nobody_has_said_anything_of_is_kept(adopted: StoreBench) -> None:
    store = adopted.open()
    before = segments(store)
    store.upkeep.retain(LATER)
    assert segments(store) == before
    assert source(store, "retention.ms") == ("-1", "kept")
    assert source(store, "cleanup.policy") == ("", "kept")
    assert "stay until cleanup.policy and retention.ms are set" in (store.why_kept("t") or "")
    found = {each.name: each for each in plan(adopted.root, {}, LATER, is_running=True)}
    assert found["t-0"].removals == ()
    assert found["t-0"].kept == store.why_kept("t")


@pytest.mark.parametrize(
    ("name", "value"),
    [("log.retention.ms", "1000"), ("log.retention.hours", "1"), ("log.retention.bytes", "0")],
)
def test_server_properties_may_say_it(adopted: StoreBench, name: str, value: str) -> None:
    adopted.file("server.properties", f"{name}={value}\nlog.cleanup.policy=delete\n")
    store = adopted.open()
    assert store.why_kept("t") is None
    store.upkeep.retain(LATER)
    assert segments(store) == 1
    before = segments(store, "__consumer_offsets")
    assert before > 1
    assert store.why_kept("__consumer_offsets") is not None, "but not of Kafka's own"
    assert source(store, "cleanup.policy", "__consumer_offsets") == ("", "kept")


@pytest.mark.parametrize("metadata", ["missing", "of another topic"])
def test_a_topic_that_may_be_compacted_is_not_deleted_by_a_line_on_retention(
    adopted: StoreBench, metadata: str
) -> None:
    """regression: Kafka's own server.properties has this line, and a broker's second disk has no metadata"""
    adopted.file("server.properties", "log.retention.hours=168\nlog.retention.bytes=1\n")
    if metadata == "of another topic":
        introduce(adopted, "t", setting(OF_TOPIC, "t", "cleanup.policy", "delete"), other_id=True)
    store = adopted.open()
    before = segments(store)
    store.upkeep.retain(LATER)
    assert segments(store) == before
    assert source(store, "cleanup.policy") == ("", "kept")
    assert "until cleanup.policy is set, for the topic or for all of them in" in (store.why_kept("t") or "")
    store.configure("t", {"cleanup.policy": "delete"})
    assert store.why_kept("t") is None
    store.upkeep.retain(LATER)
    assert segments(store) == 1


def test_what_metadata_that_is_not_believed_tells_of_is_kept_whatever_is_said_of_all_topics(
    adopted: StoreBench, caplog: pytest.LogCaptureFixture
) -> None:
    adopted.warnings = True
    adopted.file(
        "server.properties", "log.retention.hours=168\nlog.retention.bytes=1\nlog.cleanup.policy=delete\n"
    )
    introduce(adopted, "t", setting(OF_TOPIC, "t", "cleanup.policy", "compact"))
    path = adopted.logs / METADATA_LOG / "00000000000000000000.log"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    adopted.verified = False
    with caplog.at_level(logging.WARNING):
        store = adopted.open()
    assert "cannot be read" in caplog.text
    before = segments(store)
    store.upkeep.retain(LATER)
    assert segments(store) == before
    assert (store.why_kept("t") or "").endswith(
        "until cleanup.policy and retention.ms are set, for the topic"
    )
    store.create("ours", 0)
    assert source(store, "cleanup.policy", "ours") == ("delete", "daemon:log.cleanup.policy")


def test_the_topics_own_settings_may_say_it(adopted: StoreBench) -> None:
    store = adopted.open()
    for topic in ("t", "__consumer_offsets"):
        before = segments(store, topic)
        store.configure(topic, {"cleanup.policy": "delete"})
        store.upkeep.retain(LATER)
        assert segments(store, topic) == before, "how long they are kept is not said yet"
        store.configure(topic, {"retention.ms": "1000"})
        assert store.why_kept(topic) is None
        store.upkeep.retain(LATER)
        assert segments(store, topic) == 1


def test_what_the_cluster_says_holds(adopted: StoreBench) -> None:
    introduce(
        adopted, "t", setting(OF_TOPIC, "t", "retention.ms", "1000"), setting(OF_TOPIC, "t", "odd.name", "1")
    )
    store = adopted.open()
    assert source(store, "retention.ms") == ("1000", "cluster")
    assert store.why_kept("t") is None
    store.upkeep.retain(LATER)
    assert segments(store) == 1
    store.configure("t", {"retention.ms": "-1"})
    assert source(store, "retention.ms") == ("-1", "topic")
    store.configure("t", {"retention.ms": None})
    assert source(store, "retention.ms") == ("1000", "cluster")


def test_settings_of_the_clusters_broker_outrank_server_properties(adopted: StoreBench) -> None:
    adopted.file("server.properties", "log.retention.ms=1000\n")
    introduce(adopted, "t", setting(OF_BROKER, "", "log.retention.ms", "-1"))
    store = adopted.open()
    assert source(store, "retention.ms") == ("-1", "cluster:log.retention.ms")
    store.upkeep.retain(LATER)
    assert segments(store) > 1


def test_a_compacted_topic_of_a_cluster_is_compacted_and_not_deleted(adopted: StoreBench) -> None:
    introduce(
        adopted,
        "__consumer_offsets",
        setting(OF_TOPIC, "__consumer_offsets", "cleanup.policy", "compact"),
    )
    adopted.file("server.properties", "log.retention.ms=1000\n")
    store = adopted.open()
    assert store.topic_settings("__consumer_offsets").compact
    assert store.why_kept("__consumer_offsets") is None
    store.cleaning.retain_compacted(LATER)
    store.upkeep.retain(LATER)
    assert store.partition("__consumer_offsets", 0).start_offset == 0


def test_metadata_of_another_topic_of_that_name_is_not_this_ones(adopted: StoreBench) -> None:
    introduce(adopted, "t", setting(OF_TOPIC, "t", "retention.ms", "1000"), other_id=True)
    store = adopted.open()
    assert source(store, "retention.ms") == ("-1", "kept")
    assert store.cluster_topic("t") is None


def test_a_value_that_is_not_allowed_here_keeps_the_records(
    adopted: StoreBench, caplog: pytest.LogCaptureFixture
) -> None:
    adopted.warnings = True
    adopted.file("server.properties", "log.retention.hours=168\n")
    introduce(adopted, "t", setting(OF_TOPIC, "t", "retention.ms", "soon"))
    store = adopted.open()
    with caplog.at_level(logging.WARNING):
        assert source(store, "retention.ms") == ("-1", "kept")
    assert "retention.ms: expected a whole number of 64 bits" in caplog.text


def test_settings_that_exclude_each_other_keep_the_records(
    adopted: StoreBench, caplog: pytest.LogCaptureFixture
) -> None:
    adopted.warnings = True
    adopted.file("server.properties", "log.retention.hours=168\n")
    adopted.file("topics/t.properties", "max.compaction.lag.ms=5\n")
    introduce(
        adopted,
        "t",
        setting(OF_TOPIC, "t", "min.compaction.lag.ms", "7"),
        setting(OF_TOPIC, "t", "retention.ms", "1"),
    )
    store = adopted.open()
    with caplog.at_level(logging.ERROR):
        assert store.topic_settings("t").retention_ms == -1
    assert "is left out" in caplog.text


def test_what_is_made_here_has_our_defaults(store_bench: StoreBench) -> None:
    store = store_bench.open()
    store.create("t", 0, SMALL)
    assert store.why_kept("t") is None
    assert source(store, "retention.ms") == (str(7 * DAY), "default")
    store = store_bench.reopen()
    store.create("t", 1)
    assert source(store, "retention.ms") == (str(7 * DAY), "default")
    store = store_bench.crash()
    assert source(store, "retention.ms") == (str(7 * DAY), "default")


def test_a_topic_that_is_made_in_the_place_of_an_adopted_one_is_ours(adopted: StoreBench) -> None:
    store = adopted.open()
    store.delete_topic("t")
    store.create("t", 0)
    assert store.why_kept("t") is None
    store = adopted.reopen()
    assert store.why_kept("t") is None


def test_partitions_that_are_added_to_an_adopted_topic_are_kept_too(adopted: StoreBench) -> None:
    store = adopted.open()
    store.create("t", 1)
    assert store.partition("t", 1).topic_id == store.partition("t", 0).topic_id
    store = adopted.reopen()
    assert store.why_kept("t") is not None


def test_a_partition_that_is_put_beside_ours_makes_the_topic_an_adopted_one(store_bench: StoreBench) -> None:
    store = store_bench.open()
    store.create("t", 0)
    store.create("u", 0)
    store.close()
    shutil.copytree(store_bench.logs / "u-0", store_bench.root / "elsewhere")
    (store_bench.root / "elsewhere").rename(store_bench.logs / "t-1")
    (store_bench.logs / "t-1" / "partition.metadata").unlink()
    store_bench.verified = False
    store = store_bench.open()
    assert store.why_kept("t") is not None
    assert store.why_kept("u") is None


def test_the_list_of_what_was_made_here_survives_half_a_line(store_bench: StoreBench) -> None:
    store = store_bench.open()
    store.create("t", 0)
    path: Path = store_bench.root / CREATED_TOPICS
    with path.open("a") as file:
        file.write("half")
    store = store_bench.reopen()
    found = Check(store_bench.root, lambda _: True, growing=True).findings()
    assert Kind.CREATED_TOPICS not in {each.kind for each in found}
    store.create("u", 0)
    assert len(path.read_text().splitlines()) == 2
    store = store_bench.reopen()
    assert store.why_kept("t") is None
    assert store.why_kept("u") is None


def test_the_list_of_what_was_made_here_is_bounded(store_bench: StoreBench) -> None:
    store = store_bench.open()
    store.create("t", 0)
    store.close()
    path = store_bench.root / CREATED_TOPICS
    with path.open("a") as file:
        file.writelines(f"{number:022d}\n" for number in range(0, 40_000, 16))
    store = store_bench.open()
    assert len(path.read_text().splitlines()) == 1
    assert store.why_kept("t") is None
