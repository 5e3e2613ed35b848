"""A mount that is linked to a broker mirrors its topics: byte for byte, and whatever becomes of them there."""

from __future__ import annotations

import errno
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon_mount import append, delete, refused
from kafka_broker import PROJECT, Broker
from kafka_clients import (
    add_partitions,
    change_topic,
    consume,
    create_topics,
    delete_records,
    delete_topic,
    produce,
    transact,
)
from linked import LinkedMount, log_bytes
from patience import eventually

from topicfs import Record

CODECS = (None, "gzip", "snappy", "lz4", "zstd")


def records(count: int, word: str = "value") -> list[Record]:
    return [
        Record(b"%s %d" % (word.encode(), number), b"key %d" % (number % 7), 1_700_000_000_000 + number)
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    place = tmp_path_factory.mktemp("broker")
    settings = {"log.cleaner.backoff.ms": "100"}
    with Broker.start(place / "logs", place / "home", settings=settings) as broker:
        yield broker


@pytest.fixture(scope="module")
def linked(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LinkedMount]:
    mount = LinkedMount(tmp_path_factory.mktemp("linked"), broker.bootstrap)
    mount.link()
    try:
        with mount.watched(400):
            yield mount
        assert mount.stop() == 0
        assert mount.alarms() == []
    finally:
        mount.clear()


def shown(linked: LinkedMount, partition: str) -> list[Record]:
    """What the mount shows of a partition, as records."""
    lines = (linked / partition / "log.jsonl").read_bytes().splitlines()
    return [record_of(json.loads(line)) for line in lines]


def record_of(told: dict[str, Any]) -> Record:
    key, value = (None if told[name] is None else told[name].encode() for name in ("key", "value"))
    return Record(value, key, told["timestamp"], (), told["offset"])


def test_a_mirror_has_the_bytes_of_its_leader(broker: Broker, linked: LinkedMount) -> None:
    create_topics(broker.bootstrap, {"bytes": {"segment.bytes": "1048576"}})
    for codec in CODECS:
        produce(broker.bootstrap, "bytes", records(300), codec)
    linked.await_end("bytes-0", 300 * len(CODECS))
    assert linked.log_bytes("bytes-0") == log_bytes(broker.log_dir / "bytes-0")
    produce(broker.bootstrap, "bytes", records(10, "later"))
    linked.await_end("bytes-0", 300 * len(CODECS) + 10)
    assert linked.log_bytes("bytes-0") == log_bytes(broker.log_dir / "bytes-0")
    assert shown(linked, "bytes-0") == consume(broker.bootstrap, "bytes")


def test_a_compacted_topic_is_mirrored_with_its_gaps(broker: Broker, tmp_path: Path) -> None:
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.bytes": "1048576"}
    create_topics(broker.bootstrap, {"compacted": settings})
    for _ in range(3):
        produce(broker.bootstrap, "compacted", [Record(bytes(1000), b"%d" % (n % 5)) for n in range(600)])
    place = broker.log_dir / "compacted-0"
    eventually(lambda: len(log_bytes(place)) < 1_200_000, "the broker has compacted it")
    mount = LinkedMount(tmp_path, broker.bootstrap)
    try:
        mount.link("--link-topic", "compacted", "-o", "log.cleaner.enable=false")
        mount.await_end("compacted-0", 1800)
        assert mount.log_bytes("compacted-0") == log_bytes(place)
        assert shown(mount, "compacted-0") == consume(broker.bootstrap, "compacted")
        assert (mount / "topics/compacted/config").read_text().startswith("cleanup.policy=compact ")
        assert mount.stop() == 0
        assert mount.alarms() == []
    finally:
        mount.clear()


def test_only_what_consumers_see_of_transactions_is_shown(broker: Broker, linked: LinkedMount) -> None:
    create_topics(broker.bootstrap, {"transactions": {}})
    transact(
        broker.bootstrap,
        "transactions",
        "one",
        [("commit", records(20, "yes")), ("abort", records(20, "no")), ("commit", records(5, "yes"))],
    )
    produce(broker.bootstrap, "transactions", records(3, "plain"))
    transact(broker.bootstrap, "transactions", "open", [("open", records(4, "open"))])
    produce(broker.bootstrap, "transactions", records(3, "behind"))
    linked.await_end("transactions-0", 58)
    status = linked.status(linked / "transactions-0")
    assert status["stable_offset"] == status["link"]["stable_offset"] == 51
    assert shown(linked, "transactions-0") == consume(broker.bootstrap, "transactions")
    assert linked.log_bytes("transactions-0") == log_bytes(broker.log_dir / "transactions-0")


def test_a_mirror_has_the_settings_of_the_cluster(broker: Broker, linked: LinkedMount) -> None:
    create_topics(broker.bootstrap, {"settings": {"cleanup.policy": "compact", "segment.ms": "777777"}})
    config = linked / "topics/settings/config"
    eventually(config.exists, "the topic is here")
    lines = {
        line.split("=")[0]: [part.strip() for part in line.split("=", 1)[1].split(" # ")]
        for line in config.read_text().splitlines()
    }
    assert lines["cleanup.policy"] == ["compact", "cluster"]
    assert lines["segment.ms"] == ["777777", "cluster"]
    assert lines["retention.bytes"] == ["-1", "cluster:log.retention.bytes"]
    change_topic(broker.bootstrap, "settings", {"cleanup.policy": "compact", "segment.ms": "888888"})
    eventually(lambda: "segment.ms=888888" in config.read_text(), "the change is here")
    config.write_text("segment.ms=999999\n")
    assert "segment.ms=999999" in config.read_text()


def test_lines_are_appended_in_the_cluster(broker: Broker, linked: LinkedMount) -> None:
    create_topics(
        broker.bootstrap,
        {"lines": {"compression.type": "zstd"}, "stamped": {"message.timestamp.type": "LogAppendTime"}},
        2,
    )
    produce(broker.bootstrap, "lines", records(3))
    linked.await_end("lines-0", 3)
    append(linked / "lines-0/log.txt", b"one\ntwo\n")
    assert (linked / "lines-0/offset/3-.txt").read_bytes() == b"one\ntwo\n"
    append(linked / "topics/lines/in.jsonl", b'{"partition":0,"key":"k","value":"three"}\n')
    assert [record.value for record in consume(broker.bootstrap, "lines")][3:] == [b"one", b"two", b"three"]
    assert linked.log_bytes("lines-0") == log_bytes(broker.log_dir / "lines-0")
    linked.await_end("stamped-0", 0)
    append(linked / "stamped-0/log.txt", b"now\n")
    assert linked.log_bytes("stamped-0") == log_bytes(broker.log_dir / "stamped-0")
    assert shown(linked, "stamped-0") == consume(broker.bootstrap, "stamped")


def test_what_is_not_lines_is_not_appended_to_a_mirror(broker: Broker, linked: LinkedMount) -> None:
    create_topics(broker.bootstrap, {"refused": {}})
    produce(broker.bootstrap, "refused", records(3))
    linked.await_end("refused-0", 3)
    with refused(errno.EROFS):
        (linked / "topics/refused/inbox/batch").mkdir()
    with refused(errno.EROFS):
        (linked / "topics/refused/inbox/.file").write_bytes(b"line\n")
    with refused(errno.EROFS):
        (linked / "refused-7").mkdir()
    assert "mirrors" in linked.status(linked / "refused-0")["last_refusal"]["reason"]
    assert len(shown(linked, "refused-0")) == 3
    (linked / "topics/local").mkdir()
    append(linked / "local-0/log.txt", b"line\n")
    assert (linked / "local-0/log.txt").read_bytes() == b"line\n"
    assert linked.status(linked / "local-0")["link"] is None


def test_added_partitions_are_mirrored(broker: Broker, linked: LinkedMount) -> None:
    create_topics(broker.bootstrap, {"more": {}}, 2)
    produce(broker.bootstrap, "more", records(5), partition=1)
    linked.await_end("more-1", 5)
    add_partitions(broker.bootstrap, "more", 3)
    eventually((linked / "more-2").is_dir, "the partition is here")
    produce(broker.bootstrap, "more", records(7), partition=2)
    linked.await_end("more-2", 7)


def test_a_local_topic_of_the_same_name_stays(broker: Broker, linked: LinkedMount) -> None:
    linked.expect("a local topic has this name")
    (linked / "topics/both").mkdir()
    append(linked / "both-0/log.txt", b"ours\n")
    create_topics(broker.bootstrap, {"both": {}})
    produce(broker.bootstrap, "both", records(5))
    eventually(
        lambda: 'topicfs_link_problem{error="a local topic has this name' in (linked / "metrics").read_text(),
        "the metrics tell of it",
    )
    append(linked / "both-0/log.txt", b"again\n")
    assert (linked / "both-0/log.txt").read_bytes() == b"ours\nagain\n"


def test_a_deleted_topic_stays_and_one_made_anew_never_mixes_with_it(
    broker: Broker, linked: LinkedMount
) -> None:
    linked.expect("deleted in the cluster")
    linked.expect("gone: ")
    linked.expect("is not mirrored")
    create_topics(broker.bootstrap, {"gone": {}})
    produce(broker.bootstrap, "gone", records(5, "old"))
    linked.await_end("gone-0", 5)
    old = shown(linked, "gone-0")
    delete_topic(broker.bootstrap, "gone")
    linked.await_error("gone-0", "deleted in the cluster")
    assert shown(linked, "gone-0") == old
    create_topics(broker.bootstrap, {"gone": {}})
    produce(broker.bootstrap, "gone", records(9, "new"))
    linked.await_error("gone-0", "made anew")
    assert shown(linked, "gone-0") == old
    with refused(errno.EROFS):
        append(linked / "gone-0/log.txt", b"line\n")
    delete(linked / "topics/gone")
    linked.await_end("gone-0", 9)
    assert shown(linked, "gone-0") == consume(broker.bootstrap, "gone")


def test_what_the_cluster_deleted_before_it_was_mirrored_is_told(broker: Broker, linked: LinkedMount) -> None:
    create_topics(broker.bootstrap, {"late": {}})
    produce(broker.bootstrap, "late", records(50))
    delete_records(broker.bootstrap, "late", 30)
    linked.await_end("late-0", 50)
    offsets = [record.offset for record in shown(linked, "late-0")]
    assert offsets[0] in (0, 30)
    assert offsets[-1] == 49


def test_the_example_reads_and_appends(broker: Broker) -> None:
    create_topics(broker.bootstrap, {"shown": {"retention.ms": "86400000"}}, 2)
    produce(broker.bootstrap, "shown", [Record(b"pears %d" % number) for number in range(5)])
    done = subprocess.run(
        [PROJECT / "examples/link.sh", broker.bootstrap, "shown"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for words in ("retention.ms=86400000", "5 shown-0/log.txt", "pears 4", "a line from a shell"):
        assert words in done.stdout, words
    assert consume(broker.bootstrap, "shown")[-1].value == b"a line from a shell"
