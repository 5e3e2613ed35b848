"""Both sides of a contest: a mount, and a broker as Kafka's own scripts start it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from bench_mount import TOPICFS
from kafka_broker import Broker, java
from kafka_topics import topics_of

from topicfs import Store
from topicfs.engine.record import now_ms

HOUR_MS: Final = 3_600_000
_AT_ONCE: Final = 10_000

# What Kafka's scripts pass to Java, for its server and for its tools.
_JAVA: Final = ("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")
SERVER: Final = (*_JAVA, "-Xms1G", "-Xmx1G")
TOOL: Final = (*_JAVA, "-Xmx512M")


@dataclass(frozen=True, slots=True)
class Mounted:
    """A mount: its root, and its daemon."""

    root: Path
    pid: int


@contextmanager
def mounted(backing: Path, place: Path, *options: str) -> Iterator[Mounted]:
    """The daemon over a backing directory, or over a broker's log directory."""
    subprocess.run([TOPICFS, "mount", *options, backing, place], check=True, stderr=subprocess.DEVNULL)
    try:
        found = subprocess.run(
            ["pgrep", "-f", f"mount.* {place}$"], capture_output=True, text=True, check=True
        )
        yield Mounted(place, int(found.stdout.split()[-1]))
    finally:
        subprocess.run([TOPICFS, "umount", place], check=True)


@contextmanager
def broker(place: Path, log_dir: Path, settings: Mapping[str, str] | None = None) -> Iterator[Broker]:
    """A broker over a log directory, which may be ours: then it learns the topics that are there."""
    topics = topics_of(log_dir, {}) if log_dir.exists() else ()
    with Broker.start(
        log_dir, place / "home", metadata_dir=place / "metadata", topics=topics, settings=settings, jvm=SERVER
    ) as started:
        yield started


def tool(main: str, *arguments: str) -> str:
    """The shell command that runs one of Kafka's tools."""
    words = java(main, *arguments, jvm=["-Dorg.slf4j.simpleLogger.defaultLogLevel=error"], base=TOOL)
    return " ".join(f"'{word}'" for word in words)


def fill(
    backing: Path,
    topic: str,
    records: int,
    size: int,
    segment_bytes: int = 128 << 20,
    parquet: bool = False,
    at_once: int = _AT_ONCE,
) -> int:
    """A topic of one partition with lines of so many bytes, that no codec makes much smaller, written over the last
    hour, so many in a batch. Return the timestamp of the first."""
    random = np.random.default_rng(1)
    first = now = now_ms() - HOUR_MS
    with Store.open(backing, clock=lambda: now, create=True) as store:
        overrides = {"segment.bytes": str(segment_bytes), "parquet.enable": str(parquet).lower()}
        store.create_topic(topic, overrides=overrides)
        partition = store.partition(f"{topic}-0")
        at_once = min(at_once, records)
        for written in range(0, records, at_once):
            now = first + HOUR_MS * written // records
            partition.append_lines(random_lines(random, at_once, size))
        if parquet:
            # The active segment is not in the table.
            partition.roll()
    return first


def random_lines(random: np.random.Generator, count: int, size: int) -> bytes:
    """So many lines of printable bytes."""
    lines = random.integers(33, 127, (count, size), np.uint8)
    lines[:, -1] = ord("\n")
    return lines.tobytes()
