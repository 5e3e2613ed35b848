"""Compaction beside a plain copy of the same file, and what writers notice of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from bench_mount import mount
from report import Report, Row, compared, limited, seconds
from workplace import folder

from topicfs import Store
from topicfs.engine.batch import BatchBuilder
from topicfs.engine.batch.columns import Columns
from topicfs.engine.cleaner.candidates import look
from topicfs.engine.cleaner.clean import Cleaned, Cleaner
from topicfs.engine.parquet.table import TableFile
from topicfs.engine.parquet.write import write_file
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.validate import batch_limit, shape_for

GIB = 1 << 30
KEYS = 1_000_000
KEY_SIZE, VALUE_SIZE = 16, 100
_PER_BATCH = 5_000
_DEDUPE_BUFFER, _IO_BUFFER = 128 << 20, 512 << 10
_ROUNDS = 3


def run(report: Report) -> None:
    with folder() as place:
        report.show("Upkeep", [*compaction(place), *latency(place), *tables(place)])


def fill(partition: Partition, total: int, keys: int) -> None:
    """Records of random keys, until the log has so many bytes."""
    random = np.random.default_rng(1)
    width = KEY_SIZE + VALUE_SIZE
    builder = BatchBuilder(batch_limit(partition.settings))
    starts = np.arange(_PER_BATCH, dtype=np.int32) * width
    ones = np.ones(_PER_BATCH, np.int32)
    while partition.size < total:
        rows = np.full((_PER_BATCH, width), ord("v"), np.uint8)
        numbers = random.integers(0, keys, _PER_BATCH)
        for digit in range(KEY_SIZE):
            rows[:, KEY_SIZE - 1 - digit] = ord("0") + numbers % 10
            numbers //= 10
        headers = np.zeros(1, np.uint8)
        columns = Columns(
            np.concatenate((rows.reshape(-1), headers)),
            np.arange(_PER_BATCH, dtype=np.int64),
            np.full(_PER_BATCH, partition.log.clock(), np.int64),
            starts,
            KEY_SIZE * ones,
            starts + np.int32(KEY_SIZE),
            VALUE_SIZE * ones,
            np.full(_PER_BATCH, rows.size, np.int32),
            ones,
        )
        assert builder.add_columns(columns) == _PER_BATCH
        partition.append_built(builder.finish(shape_for(partition.settings), None))


def clean(partition: Partition) -> Cleaned:
    """One whole compaction, on this thread."""
    cleaner = Cleaner.create(_DEDUPE_BUFFER, 0.9, _IO_BUFFER, lambda size: None, bytes(range(16)))
    now = partition.log.clock()
    found = look(partition.log, None, now)
    return cleaner.clean(partition.log, found.first_dirty, found.first_uncleanable, now, lambda: None)


def compaction(place: Path) -> list[Row]:
    rates, copies = [], []
    for number in range(3):
        with Store.open(place / f"clean-{number}", create=True) as store:
            store.create_topic("keys", overrides={"cleanup.policy": "compact", "segment.bytes": str(GIB)})
            partition = store.partition("keys-0")
            fill(partition, GIB - (64 << 20), KEYS)
            partition.roll()
            path = partition.log.chain.segments.first.path
            size = path.stat().st_size
            partition.flush()

            def copy(path: Path = path, size: int = size) -> float:
                return size / seconds(lambda: shutil.copyfile(path, place / "copy")) / 1e6

            copies.append(copy())
            rates.append(size / seconds(lambda p=partition: clean(p)) / 1e6)
            copies[-1] = statistics.mean((copies[-1], copy()))
        shutil.rmtree(place / f"clean-{number}")
    found = compared(list(zip(rates, copies, strict=True)))
    return [
        Row(
            "compaction, 1 GiB, 1 M keys, one thread",
            f"{found.ours:.0f} MB/s",
            f"copy {found.theirs:.0f} MB/s",
            *found.goal(0.25),
        ),
        limited("the same", found.ours, "MB/s", least=1200),
    ]


def latency(place: Path) -> list[Row]:
    """The 99th percentile of an append through the mount, without and with a compaction under way."""
    backing = place / "latency"
    with Store.open(backing, create=True) as store:
        store.create_topic("keys", overrides={"cleanup.policy": "compact", "segment.bytes": str(128 << 20)})
        fill(store.partition("keys-0"), GIB, KEYS)
        store.partition("keys-0").roll()
        store.create("bench", 0)
    rounds = []
    for number in range(_ROUNDS):
        again = place / f"latency-{number}"
        shutil.copytree(backing, again)
        (again / "server.properties").write_text("log.cleaner.enable=false\n")
        with mount(again, place / "latency-mount") as root:
            alone = _p99(root / "bench-0/log.txt", lambda: False)
        (again / "server.properties").write_text("log.cleaner.backoff.ms=10\n")
        with mount(again, place / "latency-mount") as root:
            before = _bytes(again / "logs/keys-0")

            def is_over(logs: Path = again / "logs/keys-0", before: int = before) -> bool:
                return _bytes(logs) < before / 4

            rounds.append((_p99(root / "bench-0/log.txt", is_over) * 1e6, alone * 1e6))
        shutil.rmtree(again)
    found = compared(rounds)
    return [
        Row(
            "append through the mount, p99, beside a compaction",
            f"{found.ours:.0f} us",
            f"alone {found.theirs:.0f} us",
            *found.goal(most=1.5),
        )
    ]


def tables(place: Path) -> list[Row]:
    """Records a second that become Parquet files."""
    count = 4_000_000
    wanted = TableFile("table.parquet", 0, count, 0, 0, -1, 0)
    with Store.open(place / "tables", create=True) as store:
        partition = store.create("bench", 0)
        random = np.random.default_rng(1)
        for _ in range(count // 10_000):
            text = random.integers(33, 127, (10_000, 100), np.uint8)
            text[:, -1] = ord("\n")
            partition.append_lines(text.reshape(-1))

        def made() -> object:
            columns = partition.columns()
            return write_file(place / wanted.name, columns, "bench", 0, wanted, lambda: False)

        rates = [count / seconds(made) / 1e6 for _ in range(3)]
    return [limited("records become a Parquet file", statistics.median(rates), "M records/s", least=4)]


def _bytes(directory: Path) -> int:
    sizes = 0
    for path in directory.glob("*.log"):
        with contextlib.suppress(FileNotFoundError):
            sizes += path.stat().st_size
    return sizes


def _p99(path: Path, is_over: Callable[[], bool]) -> float:
    """Seconds of an append, while `is_over` is not; some seconds at the most."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.2):
            if is_over():
                done.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    times = []
    line = b"x" * 99 + b"\n"
    deadline = time.perf_counter() + 5
    while not done.is_set() and time.perf_counter() < deadline:
        start = time.perf_counter()
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, line)
        os.close(descriptor)
        times.append(time.perf_counter() - start)
        time.sleep(0.0005)
    done.set()
    watcher.join()
    return statistics.quantiles(times, n=100)[98]
