"""Stores for tests: with a clock that is moved by hand, and a full check when the test is over."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from verify import verify, verify_files

from topicfs import Record, Store
from topicfs.engine.files.checkpoint import OffsetCheckpoint
from topicfs.engine.format.paths import HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS
from topicfs.engine.partition.partition import Partition
from topicfs.engine.verify.finding import Kind
from topicfs.engine.verify.run import Check

START = 1_700_000_000_000
SMALL = {"internal.segment.bytes": "300", "index.interval.bytes": "4096"}
"""Settings of a topic whose segments hold two or three records of `some`."""


class StoreBench:
    """A backing directory, and the store that has it open.

    warnings  whether the engine's log may have warnings
    verified  whether the files are to be checked at the end: the test has damaged none for good
    damaged   kinds of files beside the logs that the test has damaged for good
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now = START
        self.open_store: Store | None = None
        self.warnings = False
        self.verified = True
        self.damaged: set[Kind] = set()

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def store(self) -> Store:
        assert self.open_store is not None
        return self.open_store

    @property
    def marker(self) -> Path:
        return self.logs / ".kafka_cleanshutdown"

    def clock(self) -> int:
        return self.now

    def open(self, settings: Mapping[str, str] | None = None, lone: bool = True) -> Store:
        self.open_store = Store.open(self.root, settings, self.clock, lone, create=True)
        return self.open_store

    def reopen(self, settings: Mapping[str, str] | None = None, lone: bool = True) -> Store:
        """Stop cleanly and open again."""
        self.store.close()
        return self.open(settings, lone)

    def crash(self, settings: Mapping[str, str] | None = None) -> Store:
        """Stop as a killed process does, and open again."""
        self.store.abandon()
        return self.open(settings)

    def file(self, name: str, content: str) -> Path:
        """Write a file below the backing directory."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path

    def names(self) -> list[str]:
        """The directories in the log directory."""
        return sorted(path.name for path in self.logs.iterdir() if path.is_dir())

    def _checkpoint(self, name: str) -> dict[str, int]:
        found = OffsetCheckpoint(self.logs / name).read()
        return {f"{topic}-{number}": offset for (topic, number), offset in found.items()}

    @property
    def recovery_points(self) -> dict[str, int]:
        """As they are on disk."""
        return self._checkpoint(RECOVERY_POINTS)

    @property
    def starts(self) -> dict[str, int]:
        return self._checkpoint(LOG_STARTS)

    @property
    def high_watermarks(self) -> dict[str, int]:
        return self._checkpoint(HIGH_WATERMARKS)

    def check(self) -> None:
        """Verify what is open, close it, and verify the files."""
        store = self.open_store
        if store is None or not self.verified:
            if store is not None:
                store.close()
            return
        for slot in store._partitions.slots.values():
            partition = slot.partition
            if partition is not None and partition.log.failure is None and not partition.log.is_closed:
                verify(partition, history=False)
        store.close()
        for topic, number in store.partitions():
            interval = store.topic_settings(topic).index_interval_bytes
            found = verify_files(self.logs / f"{topic}-{number}", interval=interval, history=False)
            assert not found.problems, found.problems
        assert not list(self.root.rglob("*.tmp"))
        found = Check(self.root, lambda _: True, growing=False).findings()
        told = [str(each) for each in found if each.kind not in self.damaged]
        assert not told, "\n".join(told)


@contextlib.contextmanager
def checked_store_bench(root: Path, caplog: pytest.LogCaptureFixture) -> Iterator[StoreBench]:
    """A store bench that is checked at the end: its files, and that the engine warned of nothing unexpected."""
    store_bench = StoreBench(root)
    yield store_bench
    store_bench.check()
    warned = [
        record.getMessage()
        for record in (*caplog.get_records("call"), *caplog.records)
        if record.levelno >= logging.WARNING
    ]
    assert store_bench.warnings or not warned, warned


def some(partition: Partition, count: int = 10) -> None:
    """Append records of some 100 bytes each, one by one."""
    for number in range(count):
        partition.append(Record(b"%030d" % number, b"key", START))


def values(partition: Partition) -> list[bytes | None]:
    return [record.value for record in partition.records()]
