"""Opening a partition's directory in tests: small segments, a clock that stands still until it is moved."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from topicfs.engine.partition.loading import Known, load
from topicfs.engine.partition.partition import Partition
from topicfs.engine.segment.descriptors import Descriptors
from topicfs.engine.settings.topic import resolve_topic

NOW = 1_700_000_000_000
NEVER = 2**62
"""Producers that have been idle this long are forgotten: none of ours is."""

CLEAN = Known(clean=True)


class Clock:
    """A clock that stands still until moved."""

    def __init__(self, ms: int = NOW) -> None:
        self.ms = ms

    def __call__(self) -> int:
        return self.ms


def open_partition(
    directory: Path,
    known: Known = Known(),  # noqa: B008 - a frozen value
    clock: Clock | None = None,
    lone: bool = True,
    expiration_ms: int = NEVER,
    **settings: object,
) -> Partition:
    """Load the directory, made where it is missing. Settings are Kafka's names with underscores."""
    directory.mkdir(parents=True, exist_ok=True)
    overrides = {"segment_bytes": 1000, "index_interval_bytes": 200, **settings}
    named = {
        name.replace("_", ".").replace("segment.bytes", "internal.segment.bytes"): str(value)
        for name, value in overrides.items()
    }
    return load(
        "t",
        0,
        directory,
        resolve_topic(named, {}),
        expiration_ms,
        known,
        clock or Clock(),
        Descriptors(64),
        lone,
    )


@contextlib.contextmanager
def crashing(partition: Partition) -> Iterator[Partition]:
    """The partition, left behind at the end as a crash leaves it."""
    try:
        yield partition
    finally:
        partition.log.abandon()


@contextlib.contextmanager
def without_fsync() -> Iterator[None]:
    """fsync costs milliseconds here and changes nothing that a test of a living machine can see."""
    with mock.patch("os.fsync"):
        yield
