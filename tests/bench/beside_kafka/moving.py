"""Many records: appended, and read."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import numpy as np
from aiokafka.admin import AIOKafkaAdminClient
from contest import Contests, Taken, Way, cold, may_be_cold, run
from kafka_broker import Broker
from kafka_clients import create_topics
from sides import Mounted, broker, fill, mounted, random_lines, tool

# What the performance tool needs to be at its best with lines of this kind.
TUNED = ("batch.size=131072", "linger.ms=5")


def append(contests: Contests, place: Path, scale: float) -> None:
    """Lines of a file: topicfs, kcat, and Kafka's performance tool, which makes up its records."""
    random = np.random.default_rng(1)
    settings = {"log.segment.delete.delay.ms": "0"}
    with (
        mounted(place / "backing", place / "mnt", "--create", "-o", "log.segment.delete.delay.ms=0") as ours,
        broker(place, place / "kafka", settings) as theirs,
    ):
        for size, records in ((100, int(10_000_000 * scale)), (1000, int(1_000_000 * scale))):
            plain = place / "plain"
            with plain.open("wb") as file:
                for _ in range(0, records, 10_000):
                    file.write(random_lines(random, 10_000, size))
            contests.hold(
                f"append {records:,} lines of {size} bytes",
                Way("cat file >> log.txt", partial(_ours, ours, plain)),
                [
                    Way("kcat -P -l file", partial(_kcat, theirs, plain)),
                    Way("kafka-producer-perf-test", partial(_tool, theirs, records, size)),
                ],
                goal=10,
                amount=records * size,
                warm=False,
            )
            plain.unlink()


def _ours(ours: Mounted, plain: Path, number: int) -> Taken:
    (ours.root / f"bench{number}-0").mkdir()
    taken = run(f"cat {plain} >> {ours.root}/bench{number}-0/log.txt", [ours.pid])
    run(f"echo -1 > {ours.root}/bench{number}-0/start && rmdir {ours.root}/bench{number}-0")
    return taken


def _kcat(theirs: Broker, plain: Path, number: int) -> Taken:
    topic = f"kcat{number}"
    create_topics(theirs.bootstrap, {topic: {}})
    taken = run(f"kcat -P -b {theirs.bootstrap} -t {topic} -p 0 -l {plain}", [theirs.process.pid])
    delete_topic(theirs, topic)
    return taken


def _tool(theirs: Broker, records: int, size: int, number: int) -> Taken:
    topic = f"tool{number}"
    create_topics(theirs.bootstrap, {topic: {}})
    command = tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", str(records), "--record-size", str(size - 1)),
        *("--throughput", "-1", "--producer-props", f"bootstrap.servers={theirs.bootstrap}", *TUNED),
    )
    taken = run(command, [theirs.process.pid])
    delete_topic(theirs, topic)
    return taken


def delete_topic(theirs: Broker, topic: str) -> None:
    """Delete a topic and its files."""

    async def delete() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=theirs.bootstrap)
        await admin.start()
        try:
            await admin.delete_topics([topic])
        finally:
            await admin.close()

    asyncio.run(delete())


def scan(contests: Contests, place: Path, scale: float) -> None:
    """The same segments: a broker serves them, and they are mounted beside it."""
    for size, records in ((100, int(10_000_000 * scale)), (1000, int(1_000_000 * scale))):
        backing = place / f"scan{size}"
        fill(backing, "bench", records, size)
        with (
            broker(place / f"broker{size}", backing / "logs") as theirs,
            mounted(backing, place / "mnt", "--read-only") as ours,
        ):
            consume = f"kcat -C -b {theirs.bootstrap} -t bench -p 0 -o beginning -e -q"
            perf = tool(
                "org.apache.kafka.tools.ConsumerPerformance",
                *("--bootstrap-server", theirs.bootstrap, "--topic", "bench", "--messages", str(records)),
            )
            partition, server = ours.root / "bench-0", theirs.process.pid
            rivals = [
                Way.command("kcat -C", f"{consume} > /dev/null", server),
                Way.command("kafka-consumer-perf-test", perf, server),
            ]
            work, amount = f"read {records:,} lines of {size} bytes", records * size
            whole = Way.command("cat log.txt", f"cat {partition}/log.txt > /dev/null", ours.pid)
            sealed = Way.command(
                "cat segments/*.txt", f"cat {partition}/segments/*.txt > /dev/null", ours.pid
            )
            # With /dev/null for its output grep stops at the first line that it finds.
            found = Way.command(
                "grep -c log.txt", f"grep -c qzx {partition}/log.txt | cat > /dev/null", ours.pid
            )
            piped = Way.command("kcat -C | grep -c", f"{consume} | grep -c qzx | cat > /dev/null", server)
            contests.hold(work, whole, rivals, 10, amount=amount)
            contests.hold(f"{work}, again", sealed, rivals[:1], 10, amount=amount)
            if may_be_cold():
                cold_work = f"{work}, from the disk"
                contests.hold(cold_work, whole, rivals[:1], None, amount=amount, before=cold, rounds=3)
            search = f"search {records:,} lines of {size} bytes"
            contests.hold(search, found, [piped], 10, amount=amount, rounds=3)
