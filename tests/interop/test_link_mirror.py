"""A mount that is linked to a broker mirrors its topics: byte for byte, and whatever becomes of them there."""

from __future__ import annotations

import errno
import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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
from kafka_console import console, console_line, lags_of, offsets_at
from linked import LinkedMount, log_bytes
from patience import eventually

from topicfs import Record, Store
from topicfs.engine.partition.offsets import Isolation

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
    with mount.to_its_end(400):
        mount.link()
        yield mount


def test_a_mirror_has_the_bytes_of_its_leader(broker: Broker, linked: LinkedMount) -> None:
    create_topics(broker.bootstrap, {"bytes": {"segment.bytes": "1048576"}})
    for codec in CODECS:
        produce(broker.bootstrap, "bytes", records(300), codec)
    linked.await_end("bytes-0", 300 * len(CODECS))
    assert linked.log_bytes("bytes-0") == log_bytes(broker.log_dir / "bytes-0")
    produce(broker.bootstrap, "bytes", records(10, "later"))
    linked.await_end("bytes-0", 300 * len(CODECS) + 10)
    assert linked.log_bytes("bytes-0") == log_bytes(broker.log_dir / "bytes-0")
    assert linked.shown("bytes-0") == consume(broker.bootstrap, "bytes")


def test_a_compacted_topic_is_mirrored_with_its_gaps(broker: Broker, tmp_path: Path) -> None:
    end = compacted_topic(broker, "compacted", 600)
    place = broker.log_dir / "compacted-0"
    mount = LinkedMount(tmp_path, broker.bootstrap)
    with mount.to_its_end():
        mount.link("--link-topic", "compacted", "-o", "log.cleaner.enable=false")
        mount.await_end("compacted-0", end)
        assert mount.log_bytes("compacted-0") == log_bytes(place)
        assert mount.shown("compacted-0") == consume(broker.bootstrap, "compacted")
        assert (mount / "topics/compacted/config").read_text().startswith("cleanup.policy=compact ")


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
    assert linked.shown("transactions-0") == consume(broker.bootstrap, "transactions")
    assert linked.log_bytes("transactions-0") == log_bytes(broker.log_dir / "transactions-0")


def compacted_topic(broker: Broker, topic: str, count: int) -> int:
    """A topic that the broker has compacted. Gives the offset behind its last record."""
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.bytes": "1048576"}
    create_topics(broker.bootstrap, {topic: settings})
    for _ in range(3):
        produce(broker.bootstrap, topic, [Record(b"%01000d" % n, b"%d" % (n % 5)) for n in range(count)])
    eventually(
        lambda: len(log_bytes(broker.log_dir / f"{topic}-0")) < 1_200_000, "the broker has compacted it"
    )
    return 3 * count


def test_kafkas_own_tools_show_the_same_records_offsets_and_lag(broker: Broker, tmp_path: Path) -> None:
    create_topics(broker.bootstrap, {"tools-codecs": {}, "tools-transactions": {}, "tools-anew": {}})
    create_topics(broker.bootstrap, {"tools-inbox": {}}, 2)
    produce(broker.bootstrap, "tools-anew", records(9, "old"))
    odd = [
        Record(None, b"null", 5),
        Record(b"", None, 4, (("name", b"value"), ("none", None))),
        Record(b"\xc3\xa9", b""),
    ]
    sent = {"tools-codecs": len(CODECS) * (20 + len(odd)), "tools-anew": 7, "tools-more": 5 + 6}
    for codec in CODECS:
        produce(broker.bootstrap, "tools-codecs", [*records(20, f"of {codec}"), *odd], codec)
    steps = [("commit", records(20, "yes")), ("abort", records(20, "no")), ("open", records(4, "open"))]
    transact(broker.bootstrap, "tools-transactions", "tools", steps)
    ends = {"tools-compacted-0": compacted_topic(broker, "tools-compacted", 600), "tools-transactions-0": 46}
    mount = LinkedMount(tmp_path, broker.bootstrap)
    for words in ("deleted in the cluster", "tools-anew: ", "is not mirrored"):
        mount.expect(words)
    with mount.to_its_end(400):
        mount.link("--link-topic", "tools-*", "-o", "log.cleaner.enable=false")
        mount.await_end("tools-anew-0", 9)
        delete_topic(broker.bootstrap, "tools-anew")
        mount.await_error("tools-anew-0", "deleted in the cluster")
        create_topics(broker.bootstrap, {"tools-anew": {}, "tools-more": {}})
        delete(mount / "topics/tools-anew")
        produce(broker.bootstrap, "tools-anew", records(7, "anew"))
        sent["tools-inbox"] = commit_a_batch(mount, "tools-inbox")
        add_partitions(broker.bootstrap, "tools-more", 2)
        produce(broker.bootstrap, "tools-more", records(5))
        produce(broker.bootstrap, "tools-more", records(6), partition=1)
        ends |= {
            "tools-anew-0": 7,
            "tools-more-0": 5,
            "tools-more-1": 6,
            "tools-codecs-0": sent["tools-codecs"],
            "tools-inbox-0": 4 + 1,
            "tools-inbox-1": 1 + 1,
        }
        for name, end in ends.items():
            mount.await_end(name, end)
        topics = {name.rpartition("-")[0] for name in ends}
        sent["tools-compacted"] = len(consume(broker.bootstrap, "tools-compacted"))
        consume(broker.bootstrap, "tools-codecs", group="tools")
        produce(broker.bootstrap, "tools-codecs", records(3, "more"))
        sent["tools-codecs"] += 3
        mount.await_end("tools-codecs-0", sent["tools-codecs"])
        places = [f"{topic}:{number}" for topic, _, number in (name.rpartition("-") for name in ends)]
        moment = 1_700_000_000_005
        with ThreadPoolExecutor(2) as tools:
            # Of a transaction consumers of both kinds see no markers.
            seen = tools.submit(console, broker.bootstrap, topics, sum(sent.values()) + 20, committed=True)
            there = tools.submit(console, broker.bootstrap, topics, sum(sent.values()) + 44, committed=False)
            found = tools.submit(offsets_at, broker.bootstrap, places, moment)
            lag = tools.submit(lags_of, broker.bootstrap, "tools")
        lines = [
            console_line(int(name.rpartition("-")[2]), record)
            for name in ends
            for record in mount.shown(name)
        ]
        assert sorted(lines) == seen.result()
        with Store.open(mount.backing, read_only=True) as store:
            lines = [
                console_line(int(name.rpartition("-")[2]), record)
                for name in ends
                for record in store.partition(name).records(isolation=Isolation.UNCOMMITTED)
            ]
        assert sorted(lines) == there.result()
        assert len(found.result()) == len(ends) - 1, "one partition has no record that is so late"
        for name, place in zip(ends, places, strict=True):
            first = (mount / name / f"time/{moment}--.jsonl").read_bytes().splitlines()[:1]
            expected = found.result().get(place)
            assert [json.loads(line)["offset"] for line in first] == (
                [] if expected is None else [expected]
            ), name
        end = sent["tools-codecs"]
        assert lag.result() == {
            "tools-codecs:0": (end - 3, mount.status(mount / "tools-codecs-0")["end_offset"], 3)
        }


def commit_a_batch(mount: LinkedMount, topic: str) -> int:
    """Commit records of all kinds in an inbox: four and one, with a marker behind each. Gives how many they are."""
    for number in (0, 1):
        mount.await_end(f"{topic}-{number}", 0)
    batch = mount / f"topics/{topic}/inbox/batch"
    batch.mkdir()
    kinds = (
        {
            "key": "k",
            "value": "é",
            "headers": [{"key": "name", "value": "v"}, {"key": "none", "value": None}],
        },
        {"key": "k", "value": None, "timestamp": 1_700_000_000_003},
        {"key": None, "value": ""},
        {"value": "line"},
    )
    lines = [json.dumps({"partition": 0, **each}) for each in kinds]
    (batch / "part-0.jsonl").write_text("\n".join(lines))
    (batch / "part-1.jsonl").write_text('{"partition":1,"value":"other"}\n')
    (batch / "_SUCCESS").touch()
    return len(kinds) + 1


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
    assert linked.shown("stamped-0") == consume(broker.bootstrap, "stamped")


def test_partitions_are_not_added_to_a_mirror_and_local_topics_live_beside_it(
    broker: Broker, linked: LinkedMount
) -> None:
    create_topics(broker.bootstrap, {"refused": {}})
    produce(broker.bootstrap, "refused", records(3))
    linked.await_end("refused-0", 3)
    with refused(errno.EROFS):
        (linked / "refused-7").mkdir()
    assert len(linked.shown("refused-0")) == 3
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
    old = linked.shown("gone-0")
    delete_topic(broker.bootstrap, "gone")
    linked.await_error("gone-0", "deleted in the cluster")
    assert linked.shown("gone-0") == old
    create_topics(broker.bootstrap, {"gone": {}})
    produce(broker.bootstrap, "gone", records(9, "new"))
    linked.await_error("gone-0", "made anew")
    assert linked.shown("gone-0") == old
    with refused(errno.EROFS):
        append(linked / "gone-0/log.txt", b"line\n")
    delete(linked / "topics/gone")
    linked.await_end("gone-0", 9)
    assert linked.shown("gone-0") == consume(broker.bootstrap, "gone")


def test_what_the_cluster_deleted_before_it_was_mirrored_is_told(broker: Broker, linked: LinkedMount) -> None:
    create_topics(broker.bootstrap, {"late": {}})
    produce(broker.bootstrap, "late", records(50))
    delete_records(broker.bootstrap, "late", 30)
    linked.await_end("late-0", 50)
    offsets = [record.offset for record in linked.shown("late-0")]
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
