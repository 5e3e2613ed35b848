"""Positions in mirrored topics are the cluster's: Kafka's tools and consumers go on from them, and we from theirs."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_mount import opened, refused
from kafka_broker import Broker, run_tool
from kafka_clients import add_partitions, consume, create_topics, produce
from kafka_console import lags_of
from linked import LinkedMount
from patience import eventually

from topicfs import Consumer, Record, Transaction


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    place = tmp_path_factory.mktemp("broker")
    with Broker.start(place / "logs", place / "home") as broker:
        yield broker


@pytest.fixture(scope="module")
def linked(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LinkedMount]:
    mount = LinkedMount(tmp_path_factory.mktemp("linked"), broker.bootstrap)
    with mount.to_its_end(400):
        mount.link()
        yield mount


def topic_of(broker: Broker, linked: LinkedMount, topic: str) -> None:
    """A mirrored topic of ten records."""
    create_topics(broker.bootstrap, {topic: {}})
    produce(broker.bootstrap, topic, [Record(b"v%d" % number) for number in range(10)])
    linked.await_end(f"{topic}-0", 10)


def taken(broker: Broker, topic: str, group: str, count: int) -> list[str]:
    """The values that a Java consumer of a group gets, which then commits."""
    done = run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--group", group),
        *("--timeout-ms", "20000", "--max-messages", str(count), "--from-beginning"),
    )
    return done.stdout.split()


def test_kafkas_consumers_and_a_shell_go_on_from_each_others_positions(
    broker: Broker, linked: LinkedMount
) -> None:
    topic_of(broker, linked, "shared")
    group = linked / "groups/readers"
    group.mkdir()
    position = group / "shared-0"
    assert position.read_text() == "none\n"
    position.write_text("7\n")
    assert lags_of(broker.bootstrap, "readers") == {"shared:0": (7, 10, 3)}
    assert taken(broker, "shared", "readers", 2) == ["v7", "v8"]
    assert position.read_text() == "9\n"
    assert (group / "shared-0.pending.txt").read_bytes() == b"v9\n"
    assert taken(broker, "shared", "of-java", 3) == ["v0", "v1", "v2"]
    eventually(lambda: "of-java" in os.listdir(linked / "groups"), "the group of a consumer shows")


def test_a_transaction_of_the_mount_is_one_of_the_cluster(broker: Broker, linked: LinkedMount) -> None:
    topic_of(broker, linked, "read")
    create_topics(broker.bootstrap, {"made": {}})
    linked.await_end("made-0", 0)
    (linked / "groups/totals").mkdir()
    place = linked / "transactions/t1"
    (place / "groups/totals").mkdir(parents=True)
    (place / "made.jsonl").write_text('{"key":"k","value":"45"}\n')
    (place / "read-0.txt").write_text("end\n")
    (place / "groups/totals/read-0").write_text("10 if none\n")
    place.rename(linked / "transactions/t1.commit")
    assert [record.value for record in consume(broker.bootstrap, "made")] == [b"45"]
    assert [record.value for record in linked.shown("made-0")] == [b"45"]
    assert consume(broker.bootstrap, "read")[-1].value == b"end"
    assert (linked / "groups/totals/read-0").read_text() == "10\n"
    assert lags_of(broker.bootstrap, "totals")["read:0"][0] == 10


def test_programs_read_and_write_mirrored_topics_by_the_same_classes(
    broker: Broker, linked: LinkedMount
) -> None:
    topic_of(broker, linked, "of-programs")
    with Transaction(linked.path, "by-program") as transaction:
        transaction.send("of-programs", b"v10", key=b"k")
    assert consume(broker.bootstrap, "of-programs")[-1].value == b"v10"
    with Consumer(linked.path, "programs") as consumer:
        consumer.subscribe(["of-programs"])
        found = consumer.poll(5000)
        assert [record.value for record in found] == [b"v%d" % number for number in range(11)]
        consumer.commit()
    assert lags_of(broker.bootstrap, "programs")["of-programs:0"][2] == 0


def own(worker: Path) -> list[str]:
    """What a worker has that gives a sign of life."""
    os.utime(worker)
    return sorted(os.listdir(worker))


def test_workers_that_cooperate_keep_what_stays_their_own(broker: Broker, linked: LinkedMount) -> None:
    create_topics(broker.bootstrap, {"kept": {}}, partitions=2)
    linked.await_end("kept-1", 0)
    members = linked / "groups/keepers/members"
    members.parent.mkdir()
    me, other = members / "me", members / "other"
    words = "kept session.timeout.ms=6000 partition.assignment.strategy=cooperative-sticky\n"
    for worker in (me, other):
        worker.mkdir()
        (worker / "subscription").write_text(words)
        if worker is me:
            eventually(lambda: own(me) == ["kept-0", "kept-1"], "all is its own")
    # The first one keeps one of the two all the time. The other one gets its own when that is given up.
    seen: list[int] = []

    def is_shared() -> bool:
        seen.append(len(own(me)))
        return len(own(other)) == 1

    eventually(is_shared, "each has one")
    assert set(seen) <= {1, 2}
    assert sorted(own(me) + own(other)) == ["kept-0", "kept-1"]
    other.rmdir()
    eventually(lambda: own(me) == ["kept-0", "kept-1"], "all is its own again")
    me.rmdir()


def test_workers_of_a_shell_and_consumers_of_java_are_one_group(broker: Broker, linked: LinkedMount) -> None:
    create_topics(broker.bootstrap, {"divided": {}}, partitions=2)
    for number in (0, 1):
        produce(broker.bootstrap, "divided", [Record(b"v%d" % number)] * 3, partition=number)
        linked.await_end(f"divided-{number}", 3)
    group = linked / "groups/workers"
    group.mkdir()
    me, other = group / "members/me", group / "members/other"
    for worker in (me, other):
        worker.mkdir()
        (worker / "subscription").write_text("divided session.timeout.ms=6000\n")

    eventually(lambda: {len(own(me)), len(own(other))} == {1}, "each has one")
    assert set(own(me) + own(other)) == {"divided-0", "divided-1"}
    ((mine,), (theirs,)) = own(me), own(other)
    with (me / f"{mine}.pending.txt").open("r+b", buffering=0) as pending:
        assert pending.read() == b"v%s\n" % mine[-1:].encode() * 3
        pending.write(b"commit\n")
    (other / theirs).write_text("1\n")
    lags = lags_of(broker.bootstrap, "workers")
    assert lags == {f"divided:{mine[-1:]}": (3, 3, 0), f"divided:{theirs[-1:]}": (1, 3, 2)}
    with opened(group / theirs, os.O_WRONLY) as writer, refused(errno.EBUSY):
        os.write(writer, b"1\n")
    place = linked / "transactions/of-member"
    of_group = place / "groups/workers"
    (of_group / "members/me").mkdir(parents=True)
    (of_group / mine).write_text("2\n")
    with refused(errno.EBUSY):
        place.rename(linked / "transactions/of-member.commit")
    (of_group / mine).unlink()
    (of_group / "members/me" / mine).write_text("2 if 3\n")
    place.rename(linked / "transactions/of-member.commit")
    assert (group / mine).read_text() == "2\n"
    other.rmdir()
    eventually(lambda: own(me) == ["divided-0", "divided-1"], "all of it is its own")
    done: list[str] = []
    java = threading.Thread(target=lambda: done.extend(taken(broker, "divided", "workers", 4)))
    java.start()
    try:
        eventually(lambda: len(own(me)) == 1, "a consumer has the other one")
        (position,) = own(me)
        (me / position).write_text("latest\n")
        produce(broker.bootstrap, "divided", [Record(b"new")] * 4, partition=1 - int(position[-1:]))
    finally:
        java.join(60)
    assert len(done) == 4
    eventually(lambda: own(me) == ["divided-0", "divided-1"], "the consumer is gone")
    me.rmdir()


def test_a_leader_that_is_back_in_time_still_divides_partitions_that_are_added(
    broker: Broker, linked: LinkedMount
) -> None:
    create_topics(broker.bootstrap, {"grown": {}}, partitions=1)
    linked.await_end("grown-0", 0)
    me = linked / "groups/growers/members/me"
    me.mkdir(parents=True)
    (me / "subscription").write_text("grown session.timeout.ms=30000\n")
    eventually(lambda: own(me) == ["grown-0"], "it is its own")
    linked.kill()
    linked.link()
    eventually(lambda: own(me) == ["grown-0"], "it has it again")
    add_partitions(broker.bootstrap, "grown", 2)
    eventually(lambda: own(me) == ["grown-0", "grown-1"], "regression: nobody divided anew")
    me.rmdir()
