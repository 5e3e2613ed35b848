"""The mount beside a do-nothing file system and a plain file: the first six rows of the design's targets."""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench_nothing import REQUEST, nothing, open_write_closes, read_rate, write_rate
from report import Row, compare, show
from workplace import folder, lines

from topicfs import Store

MIB = 1 << 20
SEGMENT = 128 * MIB
TOPICFS = Path(sys.executable).with_name("topicfs")


@contextmanager
def mount(backing: Path, place: Path) -> Iterator[Path]:
    """The daemon, serving a backing directory."""
    subprocess.run([TOPICFS, "mount", "--create", backing, place], check=True, stderr=subprocess.DEVNULL)
    try:
        yield place
    finally:
        subprocess.run([TOPICFS, "umount", place], check=True)


def run() -> None:
    with folder() as place, nothing() as idle:
        show("Mount: transfers of 100-byte lines", [*writing(place, idle.path), *reading(place, idle.path)])
        show(
            "Mount: single records",
            [*echoes(place, idle.path), *loggers(place, idle.path), *lookups(place, idle.path)],
        )


def _limit(transfer: float, plain: float) -> float:
    """The rate of a do-nothing transfer and a plain file's, one after the other."""
    return 1 / (1 / transfer + 1 / plain)


def writing(place: Path, idle: Path) -> list[Row]:
    data = lines(10_000).tobytes()[:REQUEST]
    total = 256 * MIB
    with mount(place / "write", place / "write-mount") as root:
        (root / "bench-0").mkdir()

        def plain() -> float:
            path = place / "plain"
            path.write_bytes(b"")
            rate = write_rate(path, data, total)
            path.unlink()
            return rate

        def limit() -> float:
            return _limit(write_rate(idle / "direct", data, total), plain())

        ours, theirs, ratio = compare(
            lambda: write_rate(root / "bench-0/log.txt", data, total), limit, rounds=5
        )
    return [
        Row(
            "cat file >> log.txt",
            f"{ours:.2f} GB/s",
            f"limit {theirs:.2f} GB/s",
            f"{ratio:.2f} x, >= 0.5 x",
            ratio >= 0.5,
        )
    ]


def reading(place: Path, idle: Path) -> list[Row]:
    segments = 6
    with Store.open(place / "read", create=True) as store:
        partition = store.create("bench", 0)
        for _ in range(segments):
            while partition.log.chain.active.size < SEGMENT:
                partition.append_lines(lines(1_300))
            partition.roll()
    with mount(place / "read", place / "read-mount") as root:
        sealed = sorted((root / "bench-0/sealed/txt").iterdir())
        jsonl = sorted((root / "bench-0/sealed/jsonl").iterdir())
        size = sealed[0].stat().st_size
        plain = place / "plain.txt"
        plain.write_bytes(sealed[0].read_bytes())
        first, second, rendered, limits, cached, kept = [], [], [], [], [], []
        for path, other in zip(sealed[1:], jsonl[1:], strict=True):
            _ = path.stat().st_size, other.stat().st_size
            first.append(read_rate(path, size))
            limits.append(_limit(read_rate(idle / "direct", size), read_rate(plain, size)))
            second.append(read_rate(path, size))
            cached.append(read_rate(plain, size))
            read_rate(idle / path.name, size)
            kept.append(read_rate(idle / path.name, size))
            rendered.append(read_rate(other, other.stat().st_size))
    one, limit, two, ext4, most = map(statistics.median, (first, limits, second, cached, kept))
    json = statistics.median(rendered)
    ratio = statistics.median(a / b for a, b in zip(first, limits, strict=True))
    again = statistics.median(a / b for a, b in zip(second, cached, strict=True))
    of_kernel = statistics.median(a / b for a, b in zip(second, kept, strict=True))
    return [
        Row(
            "first cat of a sealed segment",
            f"{one:.2f} GB/s",
            f"limit {limit:.2f} GB/s",
            f"{ratio:.2f} x, >= 0.5 x",
            ratio >= 0.5,
        ),
        Row(
            "second cat of it",
            f"{two:.2f} GB/s",
            f"plain file {ext4:.2f} GB/s",
            f"{again:.2f} x, >= 0.9 x",
            again >= 0.9,
        ),
        # What libfuse 2 lets the kernel keep, it serves in pages of 4 KiB, whoever made them.
        Row(
            "the same",
            f"{two:.2f} GB/s",
            f"do-nothing {most:.2f} GB/s",
            f"{of_kernel:.2f} x, >= 0.9 x",
            of_kernel >= 0.9,
        ),
        Row("first cat of it as jsonl", f"{json:.2f} GB/s", "", ">= 0.5 GB/s", json >= 0.5),
    ]


def echoes(place: Path, idle: Path) -> list[Row]:
    with mount(place / "echo", place / "echo-mount") as root:
        (root / "bench-0").mkdir()
        ours, theirs, ratio = compare(
            lambda: open_write_closes(root / "bench-0/log.txt"), lambda: open_write_closes(idle / "direct")
        )
    return [
        Row(
            "echo line >> log.txt",
            f"{1e6 / ours:.0f} us",
            f"do-nothing {1e6 / theirs:.0f} us",
            f"{ratio:.2f} x, >= 0.5 x",
            ratio >= 0.5,
        )
    ]


def loggers(place: Path, idle: Path) -> list[Row]:
    """Eight processes that each log line by line through a file of their own, as programs with a log handler do."""
    with mount(place / "loggers", place / "loggers-mount") as root:
        (root / "bench-0").mkdir()
        ours, theirs, ratio = compare(
            lambda: lines_logged(root / "bench-0/log.txt"), lambda: lines_logged(idle / "direct"), rounds=5
        )
    return [
        Row(
            "eight logging writers",
            f"{ours / 1000:.0f} k lines/s",
            f"do-nothing {theirs / 1000:.0f} k lines/s",
            f"{ratio:.2f} x, >= 0.5 x",
            ratio >= 0.5,
        )
    ]


LOGGER = """
import os, sys
log = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
line = b"x" * 99 + b"\\n"
print("open", flush=True)
input()
for _ in range(int(sys.argv[2])):
    os.write(log, line)
os.close(log)
"""


def lines_logged(path: Path, writers: int = 8, each: int = 5_000) -> float:
    """How many lines a second the writers of one file get rid of, all together."""
    command = [sys.executable, "-S", "-c", LOGGER, path, str(each)]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(writers)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    start = time.perf_counter()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
    if any(process.wait() for process in processes):
        raise RuntimeError("a writer failed")
    taken = time.perf_counter() - start
    for process in processes:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()
    return writers * each / taken


def lookups(place: Path, idle: Path) -> list[Row]:
    records = 10_000_000
    rows = []
    cost = {}
    for segments in (10, 100, 10_000):
        backing = place / f"lookup-{segments}"
        with Store.open(backing, create=True) as store:
            partition = store.create("bench", 0)
            per_batch = min(1_000, records // segments)
            for number in range(segments):
                if number:
                    partition.roll()
                for _ in range(records // segments // per_batch):
                    partition.append_lines(lines(per_batch))
        with mount(backing, place / f"lookup-{segments}-mount") as root:
            directory = root / "bench-0/offset"
            for offset in range(0, records, records // segments):
                (directory / str(offset)).read_bytes()

            def ours(directory: Path = directory) -> float:
                return _small_reads([directory / str(random.randrange(records)) for _ in range(1_000)])

            def nothing() -> float:
                return _small_reads([idle / f"direct{random.randrange(records)}" for _ in range(1_000)])

            rate, theirs, ratio = compare(ours, nothing)
        cost[segments] = 1e6 / rate
        if segments == 100:
            rows.append(
                Row(
                    "offset/N, 10 M records, 100 segments",
                    f"{1e6 / rate:.0f} us",
                    f"do-nothing {1e6 / theirs:.0f} us",
                    f"{ratio:.2f} x, >= 0.5 x",
                    ratio >= 0.5,
                )
            )
    growth = cost[10_000] / cost[10]
    rows.append(
        Row(
            "offset/N, from 10 to 10,000 segments",
            f"{cost[10_000]:.0f} us",
            f"{cost[10]:.0f} us",
            f"{growth:.2f} x, < 1.5 x",
            growth < 1.5,
        )
    )
    return rows


def _small_reads(paths: list[Path]) -> float:
    """How many files a second are opened, read and closed."""
    start = time.perf_counter()
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.read(descriptor, 4096)
        os.close(descriptor)
    return len(paths) / (time.perf_counter() - start)
