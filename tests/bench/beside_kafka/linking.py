"""A linked store: how fast it mirrors a topic, how fast it appends, and how soon others see a line."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from contest import Contest, Contests, Result, Taken, Way, cpu_of, memory_of, run
from finding import waited
from kafka_broker import Broker
from kafka_clients import create_topics
from moving import TUNED, delete_topic
from sides import Mounted, broker, fill, mounted, random_lines, tool

_BARE: Final = Path(__file__).with_name("bare_fetch.py")
_LINES_OF_A_BATCH: Final = 1280
"""Batches of 128 KiB, as a producer makes them that is told to be fast."""

_PATIENCE_S: Final = 600


def mirror(contests: Contests, place: Path, scale: float) -> None:
    """A topic of a broker: mirrored, fetched and forgotten, and written to a file by kcat."""
    records = int(10_000_000 * scale)
    fill(place / "full", "bench", records, 100, segment_bytes=1 << 30, at_once=_LINES_OF_A_BATCH)
    size = sum(file.stat().st_size for file in (place / "full/logs/bench-0").glob("*.log"))
    with broker(place / "broker", place / "full/logs") as theirs:
        config = _client(place)
        out = place / "out.txt"
        consume = f"kcat -C -b {theirs.bootstrap} -t bench -p 0 -o beginning -e -q > {out}"
        contests.hold(
            f"mirror {records:,} lines of 100 bytes",
            Way("topicfs mount --link", partial(_mirror, theirs, place, config, size)),
            [
                Way("a bare loop of fetches", partial(_fetch, theirs)),
                Way.command("kcat -C > file", consume, theirs.process.pid),
            ],
            {"a bare loop of fetches": 0.7, "kcat -C > file": 3},
            amount=size,
        )


def _client(place: Path) -> Path:
    config = place / "client.properties"
    config.write_text("metadata.max.age.ms=1000\n")
    return config


def _link(theirs: Broker, config: Path, *topics: str) -> tuple[str, ...]:
    patterns = [word for topic in topics for word in ("--link-topic", topic)]
    return "--create", "--link", theirs.bootstrap, "--link-config", str(config), *patterns


def _mirror(theirs: Broker, place: Path, config: Path, size: int, _: int) -> Taken:
    """From the moment when the mirror is made to that when it has all: the start of the daemon is another row."""
    backing, server = place / "mirror", theirs.process.pid
    with mounted(backing, place / "mnt", *_link(theirs, config, "bench")) as ours:
        deadline = time.monotonic() + _PATIENCE_S
        log = backing / "logs/bench-0"
        start = cpu = 0.0
        while (found := _size_of(log)) < size:
            assert time.monotonic() < deadline, f"{found} of {size} bytes were mirrored"
            if not start and log.exists():
                start, cpu = time.perf_counter(), cpu_of(ours.pid) + cpu_of(server)
            time.sleep(0.002)
        taken = Taken(
            time.perf_counter() - start,
            cpu_of(ours.pid) + cpu_of(server) - cpu,
            memory_of(ours.pid) + memory_of(server),
        )
    shutil.rmtree(backing)
    return taken


def _size_of(log: Path) -> int:
    return sum(file.stat().st_size for file in log.glob("*.log"))


def _fetch(theirs: Broker, _: int) -> Taken:
    server = theirs.process.pid
    before = cpu_of(server)
    host, port = theirs.bootstrap.split(":")
    done = subprocess.run(
        [sys.executable, _BARE, host, port, "bench"], stdout=subprocess.PIPE, text=True, check=True
    )
    seconds, cpu, memory = map(float, done.stdout.split())
    return Taken(seconds, cpu + cpu_of(server) - before, memory + memory_of(server))


def produce(contests: Contests, place: Path, scale: float) -> None:
    """Lines of a file into a broker, acknowledged by all replicas in sync: through the link, by kcat, and by Kafka's
    performance tool, which makes up its records."""
    records, size = int(10_000_000 * scale), 100
    random = np.random.default_rng(1)
    plain = place / "plain"
    with plain.open("wb") as file:
        for _ in range(0, records, 10_000):
            file.write(random_lines(random, min(10_000, records), size))
    with broker(place, place / "kafka", {"log.segment.delete.delay.ms": "0"}) as theirs:
        options = _link(theirs, _client(place), "link*")
        with mounted(place / "backing", place / "mnt", *options) as ours:
            contests.hold(
                f"append {records:,} lines of {size} bytes to a cluster",
                Way("cat file >> log.txt, linked", partial(_append, ours, theirs, plain)),
                [
                    Way("kcat -P -l file", partial(_kcat, theirs, plain)),
                    Way("kafka-producer-perf-test", partial(_tool, theirs, records, size)),
                ],
                {"kcat -P -l file": 3, "kafka-producer-perf-test": 5},
                amount=records * size,
                warm=False,
                rounds=3,
            )


def _append(ours: Mounted, theirs: Broker, plain: Path, number: int) -> Taken:
    topic = f"link{number}"
    create_topics(theirs.bootstrap, {topic: {}})
    log = ours.root / f"{topic}-0/log.txt"
    _await(log)
    taken = run(f"cat {plain} >> {log}", [ours.pid, theirs.process.pid])
    delete_topic(theirs, topic)
    return taken


def _await(log: Path) -> None:
    """Wait until a mirror is here, and takes lines."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            with log.open("ab", buffering=0) as file:
                file.write(b"the first line\n")
        except OSError:
            assert time.monotonic() < deadline, f"{log} takes no lines"
            time.sleep(0.05)
        else:
            return


def _kcat(theirs: Broker, plain: Path, number: int) -> Taken:
    topic = f"kcat{number}"
    create_topics(theirs.bootstrap, {topic: {}})
    command = f"kcat -P -b {theirs.bootstrap} -t {topic} -p 0 -X acks=all -l {plain}"
    taken = run(command, [theirs.process.pid])
    delete_topic(theirs, topic)
    return taken


def _tool(theirs: Broker, records: int, size: int, number: int) -> Taken:
    topic = f"tool{number}"
    create_topics(theirs.bootstrap, {topic: {}})
    command = tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", str(records), "--record-size", str(size - 1)),
        *(
            "--throughput",
            "-1",
            "--producer-props",
            f"bootstrap.servers={theirs.bootstrap}",
            "acks=all",
            *TUNED,
        ),
    )
    taken = run(command, [theirs.process.pid])
    delete_topic(theirs, topic)
    return taken


def latency(contests: Contests, place: Path, scale: float) -> None:
    """From the moment before a line is written into one mount to that when it is read in another, through a broker."""
    count = int(3000 * scale)
    config = _client(place)
    with broker(place, place / "kafka") as theirs:
        create_topics(theirs.bootstrap, {"bench": {}})
        options = _link(theirs, config, "bench")
        server = theirs.process.pid
        with (
            mounted(place / "one", place / "first", *options) as one,
            mounted(place / "two", place / "second", *options) as two,
        ):
            for each in (one, two):
                _await(each.root / "bench-0/log.txt")
            mine = waited(
                f"exec cat {two.root}/bench-0/follow.txt",
                f"cat >> {one.root}/bench-0/log.txt",
                count,
                [one.pid, two.pid, server],
            )
        to = f"-b {theirs.bootstrap} -t bench -p 0"
        consume = f"exec kcat -C {to} -o end -u -q"
        quick = waited(consume, f"kcat -P {to} -X acks=all -X linger.ms=0", count, [server])
        usual = waited(consume, f"kcat -P {to} -X acks=all", count, [server])
    for name, part in (("p50", 0.5), ("p99", 0.99)):
        results = [
            Result(tool, (each.at(part),))
            for tool, each in (
                ("cat >> log.txt of one mount to cat follow.txt of another", mine),
                ("kcat to kcat, linger.ms=0", quick),
                ("kcat to kcat", usual),
            )
        ]
        contests.add(
            Contest(
                f"a line of 1 KiB is written, acknowledged by a cluster and seen, {name}",
                results[0],
                tuple(results[1:]),
                1,
            )
        )
