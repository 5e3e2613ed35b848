"""Pipelines over a mounted store that are killed again and again, and end exact: `make soak-spark`. It takes ten
minutes, or SOAK_SECONDS, so `make test` does not.

A writer appends clicks all the time. The job (see `pipelines_job`) is killed with its JVM and all workers, the daemon
is killed, and stopped, at random moments, and both are started again; what all queries have read of `bronze` is
removed, and `silver` is sealed every few seconds. SOAK_SEED chooses the same moments again. At the end each topic has
to have what plain Python makes of the clicks that were written.
"""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from daemon_mount import DaemonMount, append, eventually
from killed_job import end_session
from pipelines_job import BRONZE, FAR_MS, PAUSE_S, PIPELINES, USERS, WINDOW_S, click, end_offset, lines

sys.path.append(str(Path(__file__).parents[1] / "engine"))
from verify import verify

from topicfs import Store

SECONDS = float(os.environ.get("SOAK_SECONDS", "600"))
SEED = int(os.environ.get("SOAK_SEED", random.randrange(1_000_000)))
JOB = str(Path(__file__).with_name("pipelines_job.py"))
ROOT = Path(__file__).parents[2]
LIMIT_S = 600.0
OPTIONS = ("log.retention.check.interval.ms=1000", "log.initial.task.delay.ms=500")
STEPS = ("job", "job", "job", "job", "both", "daemon", "stop")
"""What is killed, or stopped, in some order; and then again, in another one."""

LIFE_S = 12.0
"""A job lives up to that long behind its start, which itself takes some seconds."""

GONE = (errno.ENOTCONN, errno.ECONNABORTED, errno.ENOENT)
"""What appending gives without a daemon: the dead mount, or the empty directory below it."""


class Pipelines:
    """One run.

    mount    the daemon
    chance   chooses moments
    job      process of the job that runs, or None
    done     how often each of STEPS was done
    stopped  that the writer is to end
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.mount = DaemonMount(place)
        self.chance = random.Random(SEED)
        self.job: subprocess.Popen[bytes] | None = None
        self.done: Counter[str] = Counter()
        self.stopped = threading.Event()
        self.began = time.monotonic()

    def say(self, words: str) -> None:
        sys.stdout.write(f"{time.monotonic() - self.began:6.1f} s  {words}\n")
        sys.stdout.flush()

    # -- life -----------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """The daemon and the topics, with the users' names."""
        own = {"file_delete_delay_ms": 300, "index_interval_bytes": 1000}
        self.mount.configure("bronze", internal_segment_bytes=20_000, **own)
        self.mount.configure("silver", segment_ms=3000, **own)
        self.start_daemon()
        for topic in ("users", "bronze", *PIPELINES):
            for number in range(BRONZE):
                (self.mount / f"{topic}-{number}").mkdir()
        names = "".join(f"u{number}\tname {number}\n" for number in range(USERS))
        append(self.mount / "topics/users/in.tsv", names.encode())

    def start_daemon(self) -> None:
        self.mount.start(*(word for option in OPTIONS for word in ("-o", option)))

    def start_job(self, *last: str) -> None:
        """Start it, and wait until its queries run."""
        (self.place / "begun").unlink(missing_ok=True)
        with (self.place / "said").open("ab") as said:
            self.job = job = subprocess.Popen(
                [sys.executable, JOB, str(self.place), *last],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        eventually(lambda: (self.place / "begun").exists() or job.poll() is not None, "the job runs", LIMIT_S)

    def end_job(self) -> None:
        """Kill it, with its JVM and all workers."""
        job = self.running()
        end_session(job.pid)
        job.wait(LIMIT_S)
        self.job = None

    def running(self) -> subprocess.Popen[bytes]:
        """The job, which has not ended by itself."""
        assert self.job is not None
        assert self.job.poll() is None, f"the job ended, see {self.place}:\n{self.said}"
        return self.job

    @property
    def said(self) -> str:
        """The last of what the jobs have printed, without Java's stacks."""
        printed = (self.place / "said").read_text(errors="replace").splitlines(keepends=True)
        return "".join(line for line in printed if not line.startswith("\tat "))[-10_000:]

    def run(self) -> list[int]:
        """All of it, to the end of what was written. Gives how many clicks each partition has got."""
        with ThreadPoolExecutor(1) as pool:
            writer = pool.submit(self.write)
            try:
                self.start_job()
                until = self.began + SECONDS
                while time.monotonic() < until:
                    for step in self.chance.sample(STEPS, len(STEPS)):
                        self.live(self.chance.uniform(0, LIFE_S))
                        self.step(step)
            finally:
                self.stopped.set()
            written = writer.result(LIMIT_S)
        self.end_job()
        held = [end_offset(self.mount.path, "bronze", number) for number in range(BRONZE)]
        assert held == written, f"the writer appended {written}, bronze has {held}"
        self.say(f"{sum(written)} clicks; the last run")
        self.start_job("last")
        assert self.job is not None
        assert self.job.wait(LIMIT_S) == 0, self.said
        return written

    def live(self, seconds: float) -> None:
        """Let the job do its work for a while, and remove what it has read now and then."""
        for _ in range(int(seconds)):
            time.sleep(1)
            self.running()
            if self.chance.random() < 0.3:
                self.remove_what_was_read()
        time.sleep(seconds % 1)

    def step(self, step: str) -> None:
        """Kill something, and start it again."""
        self.say(step)
        self.done[step] += 1
        if step in {"both", "daemon"}:
            self.mount.kill()
        elif step == "stop":
            assert self.mount.stop() == 0
        if step in {"both", "job"}:
            self.end_job()
        if self.mount.process is None:
            time.sleep(self.chance.uniform(0, 2))
            self.start_daemon()
        if self.job is None:
            self.start_job()

    def clear(self) -> None:
        """Leave nothing running."""
        if self.job is not None:
            end_session(self.job.pid)
            self.job.wait(LIMIT_S)
        self.mount.clear()

    # -- the writer -----------------------------------------------------------------------------------

    def write(self) -> list[int]:
        """Append clicks until the end, to all partitions alike. Gives how many each has got."""
        chance = random.Random(SEED)
        counts, wanted = [0] * BRONZE, 0
        while not self.stopped.wait(0.1):
            wanted += chance.randint(1, 6)
            for number in range(BRONZE):
                counts[number] = self.add(number, counts[number], wanted)
        return counts

    def add(self, number: int, first: int, end: int) -> int:
        """Append the clicks of these offsets. Gives how many there are: without a daemon fewer, or all of them."""
        clicks = (click(BRONZE * offset + number) for offset in range(first, end))
        try:
            append(self.mount / f"bronze-{number}/log.jsonl", lines(clicks))
        except OSError as error:
            if error.errno not in GONE:
                raise
            found: list[int] = []

            def looked() -> bool:
                with suppress(OSError):
                    found.append(end_offset(self.mount.path, "bronze", number))
                return bool(found)

            eventually(looked, "a daemon is there")
            assert first <= found[0] <= end, f"bronze-{number} ends at {found[0]}, acknowledged was {first}"
            return found[0]
        return end

    # -- retention ------------------------------------------------------------------------------------

    def committed(self, name: str) -> dict[str, int]:
        """Where a query has read `bronze` up to, by its checkpoint. Nothing where it has not ended a batch."""
        place = self.place / "checkpoints" / name
        batches = [int(each.name) for each in place.glob("commits/*") if each.name.isdecimal()]
        if batches:
            for line in (place / "offsets" / str(max(batches))).read_text().splitlines()[1:]:
                if line.startswith("{") and "bronze" in (found := json.loads(line)):
                    return dict(found["bronze"])
        return {}

    def remove_what_was_read(self) -> None:
        """Raise the start offset to where all that read `bronze` have committed."""
        read = [self.committed(name) for name in ("silver", "joined")]
        for number in range(BRONZE):
            start = min(each.get(str(number), 0) for each in read)
            (self.mount / f"bronze-{number}" / "start").write_text(f"{start}\n")

    # -- what must be ---------------------------------------------------------------------------------

    def compare(self, counts: list[int]) -> None:
        """What each topic has, as its files show it, with what it has to have."""
        wrong = {}
        for topic, wanted in expected(counts).items():
            rows = [
                json.loads(line)
                for log in self.mount.path.glob(f"{topic}-?/log.txt")
                for line in log.read_text().splitlines()
            ]
            found = Counter(tuple(row.values()) for row in rows)
            lost, more = wanted - found, found - wanted
            self.say(f"{topic}: {len(rows)} rows; {lost.total()} lost, {more.total()} twice or wrong")
            if lost or more:
                wrong[topic] = {"lost": sorted(lost)[:10], "more": sorted(more)[:10]}
        assert not wrong


def expected(counts: list[int]) -> dict[str, Counter[tuple[Any, ...]]]:
    """The rows of each topic, in plain Python: so many clicks were written, and behind them one of a far future."""
    clicks = [click(BRONZE * offset + number) for number in range(BRONZE) for offset in range(counts[number])]
    every = [*clicks, *(click(BRONZE * counts[number] + number, FAR_MS) for number in range(BRONZE))]
    sessions: dict[str, list[list[int]]] = {}
    for each in sorted(clicks, key=itemgetter("at")):
        of_user = sessions.setdefault(each["user"], [])
        if not of_user or each["at"] - of_user[-1][-1] >= PAUSE_S * 1000:
            of_user.append([])
        of_user[-1].append(each["at"])
    window_ms = WINDOW_S * 1000
    return {
        "silver": Counter((each["n"], each["user"], each["at"]) for each in every),
        "gold": Counter(Counter(each["at"] // window_ms * window_ms for each in clicks).items()),
        "sessions": Counter((user, each[0], len(each)) for user, runs in sessions.items() for each in runs),
        "joined": Counter((each["n"], each["user"], each["user"]) for each in every),
        "named": Counter((each["n"], each["user"], f"name {each['user'][1:]}") for each in every),
    }


@pytest.fixture
def pipelines(tmp_path: Path) -> Iterator[Pipelines]:
    made = Pipelines(tmp_path)
    try:
        yield made
    finally:
        made.clear()


def test_pipelines_that_are_killed_again_and_again_end_exact(pipelines: Pipelines) -> None:
    pipelines.say(f"SOAK_SEED={SEED} SOAK_SECONDS={SECONDS:g}")
    mount = pipelines.mount
    with mount.watched(SECONDS + 3 * LIMIT_S):
        pipelines.prepare()
        counts = pipelines.run()
        pipelines.compare(counts)
    starts = [mount.status(mount / f"bronze-{number}")["start_offset"] for number in range(BRONZE)]
    sealed = len(list(mount.path.glob("silver-?/sealed/txt/*")))
    assert mount.stop() == 0
    assert mount.alarms() == []
    assert not list((mount.backing / "staging").rglob("*part-*"))
    with Store.open(mount.backing) as store:
        for topic, numbers in store.topics().items():
            for number in numbers:
                verify(store.partition(topic, number), history=topic != "bronze")
    pipelines.say(f"{dict(pipelines.done)}; {starts} removed of bronze; {sealed} segments of silver sealed")
    # It was at work.
    assert min(starts) > 0
    assert sealed > 2
