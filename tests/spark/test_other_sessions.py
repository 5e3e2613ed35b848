"""The data source through Spark Connect, and with more than one executor: what it reads and writes is the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from daemon_mount import DaemonMount, append
from other_session import EXECUTORS
from sampling import sample

from topicfs import Record, Store

SCRIPT = str(Path(__file__).with_name("other_session.py"))
ROOT = Path(__file__).parents[2]
COUNT = 50
LIMIT_S = 300


def key(number: int) -> str:
    return f"k{number % 7}"


def value(number: int) -> str:
    return f"v{number:03d}"


def run(kind: str, place: Path) -> dict[str, Any]:
    """What such a session prints."""
    done = subprocess.run(
        [sys.executable, SCRIPT, kind, str(place)],
        # Spark Connect then takes a port that is free, and not always the same.
        env={**os.environ, "PYTHONPATH": str(ROOT), "SPARK_TESTING": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


@contextmanager
def mounted(place: Path) -> Iterator[DaemonMount]:
    """A mount, watched."""
    served = DaemonMount(place)
    with served.to_its_end(LIMIT_S):
        served.start()
        yield served


def test_a_session_of_another_kind_reads_and_writes_the_same(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    for kind, executors in sample((("connect", 1), ("executors", EXECUTORS))):
        place = tmp_path_factory.mktemp(kind)
        with mounted(place) as mount:
            check(kind, executors, place, mount)


def check(kind: str, executors: int, tmp_path: Path, mount: DaemonMount) -> None:
    """What a session of a kind has read and written."""
    with Store.open(tmp_path / "closed", create=True) as store:
        store.create_topic("t", 2)
        store.create_topic("u", 2)
        for n in range(2 * COUNT):
            store.partition("t", n % 2).append(Record(value(n).encode(), key(n).encode()))
    for name in ("t-0", "t-1", "u-0", "v-0"):
        (mount / name).mkdir()
    for number in (0, 1):
        lines = "".join(f"{key(n)}\t{value(n)}\n" for n in range(number, 2 * COUNT, 2))
        append(mount / f"t-{number}" / "log.tsv", lines.encode())
    found = run(kind, tmp_path)
    assert found["executors"] == executors
    assert found["read"] == sorted([n % 2, n // 2, key(n), value(n)] for n in range(10, 2 * COUNT))
    streamed = [json.loads(line) for line in (mount / "u-0" / "log.jsonl").read_text().splitlines()]
    assert sorted((each["key"], each["value"]) for each in streamed) == sorted(
        (key(n), value(n)) for n in range(2 * COUNT) if n % 7 >= 3
    )
    if kind == "connect":
        piped = (mount / "v-0" / "log.tsv").read_text().splitlines()
        assert sorted(piped) == sorted(f"{key(n)}\t{value(n)}" for n in range(2 * COUNT))
    with Store.open(tmp_path / "closed", create=True) as store:
        written = [record for number in (0, 1) for record in store.partition("u", number).records()]
    assert sorted((record.key, record.value) for record in written) == sorted(
        (key(n).encode(), value(n).encode()) for n in range(2 * COUNT)
    )
