"""The mount beside a do-nothing file system and a plain file: transfers, and single records."""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench_nothing import REQUEST, nothing, open_write_closes, read_rate, write_rate
from report import Comparison, Report, Row, compare, compared, gigabytes, limited, microseconds
from workplace import folder, lines

from topicfs import Record, Store

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


def run_transfers(report: Report) -> None:
    with folder() as place, nothing() as idle:
        report.show(
            "Mount: transfers of 100-byte lines", [*writing(place, idle.path), *reading(place, idle.path)]
        )


def run_records(report: Report) -> None:
    with folder() as place, nothing() as idle:
        report.show("Mount: single records", [*echoes(place, idle.path), *loggers(place, idle.path)])


def run_lookups(report: Report) -> None:
    with folder() as place, nothing() as idle:
        report.show("Mount: records by offset", lookups(place, idle.path))


def run_keys(report: Report) -> None:
    with folder() as place, nothing() as idle:
        report.show("Mount: the newest value of a key", keys(place, idle.path))


def run_groups(report: Report) -> None:
    with folder() as place, nothing() as idle:
        report.show(
            "Mount: positions of groups, and transactions", [*positions(place, idle.path), *commits(place)]
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

        found = compare(lambda: write_rate(root / "bench-0/log.txt", data, total), limit, rounds=5)
    return [
        gigabytes("cat file >> log.txt", found, "limit", 0.6),
        limited("the same", found.ours, "GB/s", least=1.2),
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
        first, second, kept, rendered, tabbed = [], [], [], [], []
        for path, other in zip(sealed[1:], jsonl[1:], strict=True):
            tsv = path.parent.parent / "tsv" / f"{path.stem}.tsv"
            _ = path.stat().st_size, other.stat().st_size, tsv.stat().st_size
            limit = _limit(read_rate(idle / "direct", size), read_rate(plain, size))
            first.append((read_rate(path, size), limit))
            again, of_ext4 = read_rate(path, size), read_rate(plain, size)
            second.append((again, of_ext4))
            read_rate(idle / path.name, size)
            kept.append((again, read_rate(idle / path.name, size)))
            rendered.append(read_rate(other, other.stat().st_size))
            tabbed.append((read_rate(tsv, tsv.stat().st_size), first[-1][0]))
    return [
        gigabytes("first cat of a sealed segment", compared(first), "limit", 0.8),
        gigabytes("second cat of it", compared(second), "plain file"),
        # What libfuse 2 lets the kernel keep, it serves in pages of 4 KiB, whoever made them.
        gigabytes("the same", compared(kept), "do-nothing", 0.9),
        limited("first cat of it as jsonl", statistics.median(rendered), "GB/s", least=1.2),
        gigabytes("first cat of it as tsv", compared(tabbed), "txt", 0.9),
    ]


def echoes(place: Path, idle: Path) -> list[Row]:
    with mount(place / "echo", place / "echo-mount") as root:
        (root / "bench-0").mkdir()

        def ours() -> float:
            return open_write_closes(root / "bench-0/log.txt")

        def theirs() -> float:
            return open_write_closes(idle / "direct")

        alone = compare(ours, theirs)
        for number in range(1, 1000):
            (root / f"bench-{number}").mkdir()
            with (root / f"bench-{number}/log.txt").open("ab") as log:
                log.write(b"a line\n")
        among = compare(ours, theirs)
        with _writers(root, 3):
            beside = compare(ours, theirs)
    name = "echo line >> log.txt"
    return [
        microseconds(name, alone, "do-nothing", 0.5),
        limited("the same", 1e6 / alone.ours, "us", most=90),
        microseconds(f"{name}, of 1,000 partitions", among, "do-nothing"),
        microseconds(f"{name}, of 1,000, beside three writers", beside, "do-nothing"),
    ]


WRITER = """
import os, sys, time
while True:
    log = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
    os.write(log, b"x" * 99 + b"\\n")
    os.close(log)
    time.sleep(0.001)
"""


@contextmanager
def _writers(root: Path, count: int) -> Iterator[None]:
    """So many processes that each append a line to a partition of their own, again and again."""
    command = [sys.executable, "-S", "-c", WRITER]
    processes = [
        subprocess.Popen([*command, root / f"bench-{number}/log.txt"]) for number in range(1, 1 + count)
    ]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def loggers(place: Path, idle: Path) -> list[Row]:
    """Eight processes that each log line by line through a file of their own, as programs with a log handler do, and
    as many as 64."""
    with mount(place / "loggers", place / "loggers-mount") as root:
        (root / "bench-0").mkdir()
        log = root / "bench-0/log.txt"
        eight = compare(lambda: lines_logged(log), lambda: lines_logged(idle / "direct"), rounds=5)
        many = compare(
            lambda: lines_logged(log, 64, 1_000), lambda: lines_logged(idle / "direct", 64, 1_000), rounds=3
        )
    return [_logged("eight logging writers", eight, 0.5), _logged("64 logging writers", many)]


def _logged(work: str, found: Comparison, least: float | None = None) -> Row:
    return Row(
        work,
        f"{found.ours / 1000:.0f} k lines/s",
        f"do-nothing {found.theirs / 1000:.0f} k lines/s",
        *found.goal(least),
    )


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

            found = compare(ours, nothing)
        cost[segments] = 1e6 / found.ours
        if segments == 100:
            rows.append(microseconds("offset/N, 10 M records, 100 segments", found, "do-nothing", 0.5))
    growth = cost[10_000] / cost[10]
    rows.append(
        Row(
            "offset/N, 10,000 segments beside 10",
            f"{cost[10_000]:.0f} us",
            f"{cost[10]:.0f} us",
            f"{growth:.2f} x, < 1.5 x",
            growth < 1.5,
        )
    )
    return rows


def keys(place: Path, idle: Path) -> list[Row]:
    """Look-ups of keys, and a listing of all of them."""
    count, each = 1_000_000, 500
    backing = place / "keys"
    with Store.open(backing, create=True) as store:
        partition = store.create("bench", 0, {"cleanup.policy": "compact"})
        # Some 16 KiB, as producers send them by default: a look-up reads a batch.
        for first in range(0, count, each):
            partition.append([Record(b"value of it", b"key %d" % row) for row in range(first, first + each)])
    with mount(backing, place / "keys-mount") as root:
        directory = root / "bench-0/views/keys"
        begun = time.perf_counter()
        (directory / "key 1").read_bytes()
        built = time.perf_counter() - begun
        begun = time.perf_counter()
        listed = sum(1 for _ in os.scandir(directory))
        listing = time.perf_counter() - begun
        assert listed == count

        def ours() -> float:
            return _small_reads([directory / f"key {random.randrange(count)}" for _ in range(1_000)])

        def nothing() -> float:
            return _small_reads([idle / f"direct{random.randrange(count)}" for _ in range(1_000)])

        found = compare(ours, nothing)
    return [
        microseconds("keys/<key>, 1 M keys", found, "do-nothing", 0.5),
        limited("keys/<key>, 1 M keys", found.ours, "a second", least=20_000),
        Row("the index of 1 M keys, made from the log", f"{built:.2f} s", "", "", None),
        Row("ls of 1 M keys", f"{listing:.1f} s", "", "", None),
    ]


def positions(place: Path, idle: Path) -> list[Row]:
    """Positions that are set by a new open file each, as a shell does, and by one that stays open."""
    with mount(place / "groups", place / "groups-mount") as root:
        (root / "bench-0").mkdir()
        with (root / "bench-0/log.txt").open("ab") as log:
            log.write(b"x\n" * 100_000)
        (root / "groups/readers").mkdir()
        position = root / "groups/readers/bench-0"

        def ours() -> float:
            start = time.perf_counter()
            for number in range(1_000):
                descriptor = os.open(position, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.write(descriptor, b"%d\n" % number)
                os.close(descriptor)
            return 1_000 / (time.perf_counter() - start)

        def held() -> float:
            descriptor = os.open(position, os.O_WRONLY)
            start = time.perf_counter()
            for number in range(1_000):
                os.pwrite(descriptor, b"%d\n" % number, 0)
            taken = time.perf_counter() - start
            os.close(descriptor)
            return 1_000 / taken

        found = compare(ours, lambda: open_write_closes(idle / "log", count=1_000))
        open_all_the_time = statistics.median(held() for _ in range(7))
        assert position.read_bytes() == b"999\n"
    return [
        microseconds("echo N > groups/<group>/<partition>", found, "do-nothing"),
        limited("echo N > groups/<group>/<partition>", found.ours, "a second", least=5_000),
        limited("the same through one open file", open_all_the_time, "a second", least=5_000),
    ]


def commits(place: Path) -> list[Row]:
    """Transactions over ten partitions: on the disk, and in memory, where an fsync costs nothing."""
    with tempfile.TemporaryDirectory(prefix="topicfs-bench-", dir="/dev/shm") as memory:
        return [
            limited("mv t t.commit, ten partitions, in memory", _commit_ms(Path(memory)), "ms", most=5),
            limited("the same on the disk", _commit_ms(place), "ms"),
        ]


def _commit_ms(place: Path) -> float:
    """How long a commit takes that appends to ten partitions, the median of fifty."""
    with mount(place / "commits", place / "commits-mount") as root:
        for number in range(10):
            (root / f"bench-{number}").mkdir()
        begun = root / "transactions/t"
        found = []
        for _ in range(50):
            begun.mkdir()
            for number in range(10):
                (begun / f"bench-{number}.txt").write_bytes(b"a line\n")
            start = time.perf_counter()
            begun.rename(begun.with_name("t.commit"))
            found.append(time.perf_counter() - start)
        assert (root / "bench-9/log.txt").read_bytes() == b"a line\n" * 50
    return 1_000 * statistics.median(found)


def _small_reads(paths: list[Path]) -> float:
    """How many files a second are opened, read and closed."""
    start = time.perf_counter()
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.read(descriptor, 4096)
        os.close(descriptor)
    return len(paths) / (time.perf_counter() - start)
