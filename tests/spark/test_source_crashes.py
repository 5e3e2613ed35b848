"""A job that writes is killed, with its JVM and all workers, and runs again: each record is there once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from daemon_mount import DaemonMount, append
from killed_job import ROWS, end_session
from sampling import sample

from topicfs import Record, Store

JOB = str(Path(__file__).with_name("killed_job.py"))
ROOT = Path(__file__).parents[2]
LIMIT_S = 300.0
DOORS, QUERIES, STEPS = ("closed", "mounted"), ("batch", "stream"), ("staged", "between", "after")
Rows = list[tuple[str, str]]


def expected(number: int) -> Rows:
    """Key and value of the records of one of the partitions of `in`."""
    return sorted((f"k{n % 7}", f"v{n:03d}") for n in range(number, ROWS, 2))


def moments() -> list[str]:
    """All of them in a thorough run; otherwise one."""
    return [":".join(each) for each in sample(list(product(DOORS, QUERIES, STEPS)))]


class Jobs:
    """The place of the job, its two logs, and its runs."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.mount = DaemonMount(place)
        self.closed = place / "closed"

    def prepare(self) -> None:
        """Two logs with the same records, and files for what README does."""
        with Store.open(self.closed, create=True) as store:
            for topic, count in (("in", 2), ("a", 2), ("b", 1), ("c", 2), ("d", 1)):
                store.create_topic(topic, count)
            for n in range(ROWS):
                store.partition("in", n % 2).append(Record(b"v%03d" % n, b"k%d" % (n % 7)))
        self.mount.start()
        for name in ("in-0", "in-1", "a-0", "a-1", "b-0", "c-0", "c-1", "d-0", "orders-0"):
            (self.mount / name).mkdir()
        for number in (0, 1):
            lines = [f"k{n % 7}\tv{n:03d}\n" for n in range(number, ROWS, 2)]
            append(self.mount / f"in-{number}" / "log.tsv", "".join(lines).encode())
        (self.place / "files").mkdir()
        for n in range(3):
            (self.place / "files" / f"{n}.txt").write_text(f"{n} one\n{n} two\n")

    def run(self, moment: str = "") -> int:
        """One run, to its end. Gives its exit code."""
        with (self.place / "said").open("ab") as said:
            job = subprocess.Popen(
                [sys.executable, JOB, str(self.place), moment],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        try:
            return job.wait(LIMIT_S)
        finally:
            end_session(job.pid)

    @property
    def said(self) -> str:
        """What the runs have printed."""
        return (self.place / "said").read_text(errors="replace")

    def staged(self) -> list[Path]:
        """What is on its way in."""
        return [
            path
            for backing in (self.closed, self.mount.backing)
            for path in (backing / "staging").rglob("*part-*")
        ]

    def rows(self, door: str, topic: str) -> Rows:
        """What a topic has, as its reader sees it."""
        if door == "closed":
            with Store.open(self.closed, create=True) as store:
                return sorted(
                    ((record.key or b"").decode(), (record.value or b"").decode())
                    for number in store.topics()[topic]
                    for record in store.partition(topic, number).records()
                )
        return sorted(
            (record["key"], record["value"])
            for log in self.mount.path.glob(f"{topic}-?/log.jsonl")
            for record in map(json.loads, log.read_text().splitlines())
        )


@pytest.fixture(scope="module")
def survived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """A job that was killed again and again, and has come to its end."""
    jobs = Jobs(tmp_path_factory.mktemp("killed"))
    try:
        jobs.prepare()
        chosen = moments()
        with jobs.mount.watched(len(chosen) * LIMIT_S):
            for moment in chosen:
                assert jobs.run(moment) == -signal.SIGKILL, f"it was not killed {moment}:\n{jobs.said}"
            assert jobs.run() == 0, jobs.said
            yield jobs
        assert jobs.mount.stop() == 0
        assert jobs.mount.alarms() == []
    finally:
        jobs.mount.clear()


@pytest.mark.parametrize("door", ["closed", "mounted"])
def test_a_stream_that_is_killed_writes_each_row_once(survived: Jobs, door: str) -> None:
    assert survived.rows(door, "a") == expected(0)
    assert survived.rows(door, "b") == expected(1)


@pytest.mark.parametrize("door", ["closed", "mounted"])
def test_a_batch_with_a_name_is_written_once_whenever_its_job_is_killed(survived: Jobs, door: str) -> None:
    assert survived.rows(door, "c") == expected(0)
    assert survived.rows(door, "d") == expected(1)


def test_nothing_is_left_on_its_way_in(survived: Jobs) -> None:
    assert survived.staged() == []


def test_the_words_of_readme_write_each_row_once(survived: Jobs) -> None:
    rows = survived.rows("mounted", "orders")
    assert [value for _, value in rows] == sorted(f"{n} {word}" for n in range(3) for word in ("one", "two"))
