"""The process: how long it takes to start, its memory, many partitions, and how soon followers see lines."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from bench_mount import TOPICFS, mount
from report import Report, Row, limited, seconds
from workplace import folder, lines

from topicfs import Store

PARTITIONS = 10_000
_SEGMENTS = 3
_ROUNDS = 5


def run_start(report: Report) -> None:
    with folder() as place:
        report.show("Start and memory", [*starts(place), *many(place)])


def run_follow(report: Report) -> None:
    with folder() as place:
        report.show("Followers", follow(place))


def starts(place: Path) -> list[Row]:
    backing, mnt = place / "small", place / "small-mount"
    with Store.open(backing, create=True) as store:
        store.create("bench", 0).append_lines(lines(1000))
    helped = statistics.median(seconds(lambda: _call("--help")) for _ in range(_ROUNDS))
    planned = statistics.median(seconds(lambda: _call("plan", backing)) for _ in range(_ROUNDS))
    mounted = []
    for _ in range(_ROUNDS):
        mounted.append(seconds(lambda: _call("mount", backing, mnt)))
        _call("umount", mnt)
    with mount(backing, mnt):
        time.sleep(3)
        idle = _rss(backing)
        with (mnt / "bench-0/log.txt").open("rb") as log:
            log.read()
        used = _rss(backing)
    return [
        limited("topicfs --help", helped, "s", most=0.15),
        limited("topicfs plan", planned, "s", most=0.6),
        limited(
            "topicfs mount of a small store, until it answers", statistics.median(mounted), "s", most=0.8
        ),
        limited("an idle daemon", idle, "MB RSS", most=110),
        limited("the same when it was read", used, "MB RSS"),
    ]


def many(place: Path) -> list[Row]:
    """Ten thousand partitions of three segments. They are links to the files of one, and are only read."""
    backing, mnt = place / "many", place / "many-mount"
    with Store.open(backing, create=True) as store:
        first = store.create("bench", 0)
        for number in range(_SEGMENTS):
            if number:
                first.roll()
            first.append_lines(lines(100))
    for number in range(1, PARTITIONS):
        shutil.copytree(backing / "logs/bench-0", backing / f"logs/bench-{number}", copy_function=os.link)
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        ends = "".join(f"bench {number} {_SEGMENTS * 100}\n" for number in range(PARTITIONS))
        (backing / "logs" / name).write_text(f"0\n{PARTITIONS}\n{ends}")
    start = time.perf_counter()
    with mount(backing, mnt) as root:
        took = time.perf_counter() - start
        idle = _rss(backing)
        listed = seconds(lambda: os.listdir(root))
        told = seconds((root / "metrics").read_bytes)
        status = statistics.median(
            seconds((path / "status.json").read_bytes) for path in sorted(root.glob("bench-11*"))
        )
        thousand = [root / f"bench-{number}" for number in range(1000, 2000)]
        names = sum(len(os.listdir(path)) for path in thousand)
        command = ["find", *thousand, "-printf", "%s"]

        def find() -> None:
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)

        found, again = seconds(find), seconds(find)
    size = f"{PARTITIONS:,} partitions x {_SEGMENTS} segments"
    return [
        limited(f"{size}: mount, until it answers", took, "s", most=1.5),
        limited("the same, idle", idle, "MB RSS", most=250),
        limited("the same, list of names", listed * 1e6 / PARTITIONS, "us a partition"),
        limited("the same, metrics", told, "s"),
        limited("the same, status.json of a partition, the first time", status * 1e3, "ms"),
        limited("find -printf %s over 1,000 of them", found * 1e6 / names, "us a name"),
        limited("the same again", again * 1e6 / names, "us a name"),
    ]


WRITER = """
import os, sys, time
for _ in range(int(sys.argv[2])):
    log = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
    os.write(log, b"%d\\n" % time.monotonic_ns())
    os.close(log)
    time.sleep(0.01)
"""


def follow(place: Path, count: int = 500) -> list[Row]:
    """From the moment before a line is written to the moment when a reader of follow.txt has it."""
    with mount(place / "follow", place / "follow-mount") as root:
        (root / "bench-0").mkdir()
        waited = sorted(_waited(root / "bench-0", count))
        pipe = sorted(_through_pipe(count))
    one, most = (waited[int(count * part)] / 1e6 for part in (0.5, 0.99))
    least, worst = (pipe[int(count * part)] / 1e6 for part in (0.5, 0.99))
    return [
        Row(
            "line written, seen in follow.txt, p50",
            f"{one:.2f} ms",
            f"pipe {least:.2f} ms",
            "< 0.5 ms",
            one < 0.5,
        ),
        Row("the same, p99", f"{most:.2f} ms", f"pipe {worst:.2f} ms", "< 2 ms", most < 2),
    ]


def _waited(partition: Path, count: int) -> list[int]:
    descriptor = os.open(partition / "follow.txt", os.O_RDONLY)
    try:
        return _gathered(
            descriptor, [sys.executable, "-S", "-c", WRITER, partition / "log.txt", str(count)], count
        )
    finally:
        os.close(descriptor)


def _through_pipe(count: int) -> list[int]:
    """The same between two programs over a pipe: what waking up costs on this machine."""
    reading, writing = os.pipe()
    command = [sys.executable, "-S", "-c", WRITER, f"/dev/fd/{writing}", str(count)]
    try:
        return _gathered(reading, command, count, writing)
    finally:
        os.close(reading)
        os.close(writing)


def _gathered(descriptor: int, command: list[object], count: int, kept: int | None = None) -> list[int]:
    waited: list[int] = []

    def read() -> None:
        while len(waited) < count:
            data = os.read(descriptor, 1 << 16)
            now = time.monotonic_ns()
            waited.extend(now - int(line) for line in data.split())

    reader = threading.Thread(target=read)
    reader.start()
    time.sleep(0.3)
    subprocess.run(command, check=True, pass_fds=() if kept is None else (kept,))
    reader.join()
    return waited


def _call(*words: object) -> None:
    subprocess.run([TOPICFS, *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _rss(backing: Path) -> float:
    """MB of memory of the daemon that has a backing directory open."""
    found = subprocess.run(["pgrep", "-f", f"mount.* {backing} "], capture_output=True, text=True, check=True)
    pages = int(Path(f"/proc/{found.stdout.split()[0]}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
