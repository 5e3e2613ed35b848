"""Upkeep of the same logs: compaction, recovery after a crash, and the start with many partitions."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from bench_upkeep import KEYS
from bench_upkeep import fill as fill_keys
from contest import ROUNDS, Contest, Contests, Result, Taken, memory_of
from kafka_broker import Broker
from sides import broker, fill, mounted

from topicfs import Store

_CLEAN = """
import sys, time
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from bench_upkeep import clean
from topicfs import Store
with Store.open(Path(sys.argv[1])) as store:
    partition = store.partition("keys-0")
    size = sum(each.size for each in partition.log.chain.segments.non_active)
    start = time.perf_counter()
    clean(partition)
    print(time.perf_counter() - start, size)
"""
_RECOVER = """
import sys, time
from pathlib import Path
from topicfs import Store
start = time.perf_counter()
with Store.open(Path(sys.argv[1])) as store:
    store.partition("bench-0")
    print(time.perf_counter() - start)
"""
_CLEANED = re.compile(r"cleaned log keys-0.*?([\d,.]+) MB of log processed in ([\d,.]+) seconds", re.DOTALL)
_LOADED = re.compile(r"Completed load of log with .*?in (\d+)ms|in (\d+)ms \(\d+/\d+ completed")
_PATIENCE_S = 600


def compact(contests: Contests, place: Path, scale: float) -> None:
    """The same segments of keyed records, by one thread of each side. The broker logs how long it took."""
    made = place / "made"
    with Store.open(made, create=True) as store:
        store.create_topic("keys", overrides={"cleanup.policy": "compact", "segment.bytes": str(128 << 20)})
        fill_keys(store.partition("keys-0"), int((1 << 30) * scale), int(KEYS * scale))
        store.partition("keys-0").roll()
    mine, others, sizes = [], [], []
    settings = {
        "log.cleanup.policy": "compact",
        "log.cleaner.backoff.ms": "100",
        "log.cleaner.min.cleanable.ratio": "0.01",
        "log.initial.task.delay.ms": "0",
    }
    for _ in range(3):
        ours, theirs = place / "ours", place / "theirs"
        shutil.copytree(made, ours)
        shutil.copytree(made, theirs)
        words = [sys.executable, "-c", _CLEAN, str(ours), *sys.path]
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
        mine.append(Taken(float(said[0])))
        sizes.append(int(said[1]))
        with broker(place / "cleaner", theirs / "logs", settings) as running:
            megabytes, seconds = (float(each.replace(",", "")) for each in _await(running, _CLEANED))
        # Should it have cleaned in several runs, the first tells its rate.
        others.append(Taken(seconds * sizes[-1] / (megabytes * (1 << 20))))
        for path in (ours, theirs, place / "cleaner"):
            shutil.rmtree(path)
    contests.add(
        Contest(
            f"compact {sizes[0] / 1e6:,.0f} MB, {int(KEYS * scale):,} keys",
            Result("topicfs, a thread", tuple(mine)),
            (Result("the broker's cleaner", tuple(others)),),
            5,
            sizes[0],
        )
    )


def _await(running: Broker, pattern: re.Pattern[str]) -> tuple[str, ...]:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        found = pattern.search(running.log())
        if found:
            return tuple(group for group in found.groups() if group is not None)
        time.sleep(0.2)
    raise AssertionError(f"the broker's log does not say {pattern.pattern}: {running.log()[-3000:]}")


def recover(contests: Contests, place: Path, scale: float) -> None:
    """A log of 1 GiB in one segment, none of which is known to be on the disk. The start of the process does not
    count: the broker logs how long it took to load the log."""
    made = place / "made"
    size = int((1 << 30) * scale) * 9 // 10
    fill(made, "bench", size // 108, 100, segment_bytes=1 << 30)
    (made / "logs/.kafka_cleanshutdown").unlink(missing_ok=True)
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        (made / "logs" / name).write_text("0\n0\n")
    mine, others = [], []
    for _ in range(3):
        ours, theirs = place / "ours", place / "theirs"
        shutil.copytree(made, ours)
        shutil.copytree(made, theirs)
        words = [sys.executable, "-c", _RECOVER, str(ours)]
        mine.append(Taken(float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)))
        with broker(place / "recovery", theirs / "logs") as running:
            assert running.recovered(), "the broker has recovered nothing"
            others.append(Taken(int(_await(running, _LOADED)[0]) / 1e3))
        for path in (ours, theirs, place / "recovery"):
            shutil.rmtree(path)
    log = sum(path.stat().st_size for path in (made / "logs/bench-0").glob("*.log"))
    contests.add(
        Contest(
            f"recover {log / 1e6:,.0f} MB after a crash",
            Result("topicfs opens the store and the log", tuple(mine)),
            (Result("the broker, by its log", tuple(others)),),
            3,
            log,
        )
    )


def start(contests: Contests, place: Path, scale: float) -> None:
    """1,000 partitions of ten segments each, after a clean stop."""
    partitions = int(1000 * scale)
    made = place / "made"
    with Store.open(made, create=True) as store:
        store.create_topic("bench", partitions)
        for number in range(partitions):
            partition = store.partition(f"bench-{number}")
            for segment in range(10):
                if segment:
                    partition.roll()
                partition.append_lines(b"line\n" * 10)
    mine, others = [], []
    settings = {"log.index.size.max.bytes": "10240"}
    with broker(place / "home", made / "logs", settings):
        pass
    for _ in range(ROUNDS):
        start = time.perf_counter()
        with mounted(made, place / "mnt") as ours:
            mine.append(Taken(time.perf_counter() - start, None, memory_of(ours.pid)))
        start = time.perf_counter()
        with broker(place / "home", made / "logs", settings) as running:
            others.append(Taken(time.perf_counter() - start, None, memory_of(running.process.pid)))
    contests.add(
        Contest(
            f"start with {partitions:,} partitions of 10 segments",
            Result("topicfs mount", tuple(mine)),
            (Result("the broker", tuple(others)),),
            None,
        )
    )
