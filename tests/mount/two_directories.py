"""A read-only mount of two log directories of one broker: a topic with a partition in each, and one that is in the
second alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from daemon_mount import DaemonMount

from topicfs import Record, Store

COUNT = 5
"""The records of each partition."""

PARTITIONS = ("both-0", "both-1", "second-0")


@contextmanager
def two_directories(place: Path) -> Iterator[tuple[DaemonMount, Path]]:
    """Yield the mount, and the second directory."""
    one, two = place / "store", place / "two"
    store = Store.open(one, create=True)
    for name in PARTITIONS:
        topic, number = name.split("-")
        partition = store.create(topic, int(number), {"cleanup.policy": "delete"})
        partition.append([Record(f"{each} of {name}".encode()) for each in range(COUNT)])
    store.close()
    two.mkdir()
    for name in ("both-1", "second-0"):
        (one / "logs" / name).rename(two / name)
    for each in (one / "logs").iterdir():
        if each.is_file():
            shutil.copy(each, two)
    mount = DaemonMount(place)
    mount.backing = two
    try:
        mount.start("--read-only", str(one / "logs"))
        with mount.watched():
            yield mount, two
        assert mount.stop() == 0
        assert mount.alarms() == []
    finally:
        mount.clear()
