"""A log that is cut as the cluster's was: nothing of what it showed before is shown again, wherever it was kept.

What comes instead has the same sizes, and its segments the same bases: only their content tells them apart.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import duckdb
import pytest
from daemon_mount import ROOT, refused
from patience import eventually
from stand_in_broker import Log
from test_semantics_link import Linked, a_link

BASE = "{:020d}"


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Linked]:
    with a_link(tmp_path_factory.mktemp("cut")) as linked:
        linked.mount.expect("lines are lost")
        yield linked


def fill(linked: Linked, name: str, log: Log, word: bytes, first: int = 0) -> list[bytes]:
    """Three segments of two records, from a segment on. Gives their values."""
    values: list[bytes] = []
    for number in range(first, 3):
        both = [b"%s %d" % (word, 2 * number + each) for each in (0, 1)]
        log.add(*both)
        values += both
        end = log.end
        eventually(lambda end=end: ends_at(linked, name, end), f"{name} ends at {end}")
        linked.mount.steer("roll", linked.mount / name)
    return values


def ends_at(linked: Linked, name: str, end: int) -> bool:
    # It is not here yet, or its status was opened before a cut.
    with suppress(OSError):
        return bool(linked.mount.status(linked.mount / name)["end_offset"] == end)
    return False


def seen(place: Path) -> dict[str, list[bytes]]:
    """The values that each kind of view shows."""
    names = [BASE.format(base) for base in (0, 2, 4)]
    told = [json.loads(line) for line in (place / "log.jsonl").read_bytes().splitlines()]
    return {
        "log.txt": (place / "log.txt").read_bytes().splitlines(),
        "log.jsonl": [each["value"].encode() for each in told],
        "sealed": [
            line for name in names for line in (place / f"sealed/txt/{name}.txt").read_bytes().splitlines()
        ],
        "segments": [
            line for name in names for line in (place / f"segments/{name}.txt").read_bytes().splitlines()
        ],
        "offset": [(place / f"offset/{number}").read_bytes() for number in range(6)],
        "range": (place / "offset/0-5.txt").read_bytes().splitlines(),
        "time": (place / "time/last-1h.txt").read_bytes().splitlines(),
    }


def in_table(place: Path) -> list[bytes]:
    """The values in the topic's table, as DuckDB reads it."""
    files = f"{place}/sealed/parquet/*.parquet"
    rows = duckdb.sql(f"SELECT value FROM read_parquet('{files}') ORDER BY \"offset\"").fetchall()
    return [value if isinstance(value, bytes) else str(value).encode() for (value,) in rows]


@pytest.mark.parametrize("away", [False, True])
def test_no_view_shows_what_was_lost(linked: Linked, away: bool) -> None:
    name = f"cut{int(away)}-0"
    log = linked.topic(name.removesuffix("-0")).logs[0]
    place = linked.mount / name
    config = linked.mount / "topics" / name.removesuffix("-0") / "config"
    eventually(config.exists, "the topic is here")
    config.write_text("parquet.enable=true\n")
    old = fill(linked, name, log, b"old")
    for _ in range(2):
        assert all(values == old for values in seen(place).values())
    eventually(lambda: table_has(place, old), "the table has them")
    raw = BASE.format(2)
    follower = os.open(place / "follow.txt", os.O_RDONLY)
    sealed = os.open(place / f"sealed/txt/{raw}.txt", os.O_RDONLY)
    try:
        os.pread(sealed, 3, 0)
        if away:
            linked.mount.kill()
        log.cut(2, log.epoch + 1)
        if away:
            linked.start()
        new = fill(linked, name, log, b"new", first=1)
        if not away:
            with refused(5):
                os.pread(sealed, 4096, 5)
            with refused(5):
                os.read(follower, 4096)
    finally:
        for file in (sealed, follower):
            # The daemon that served them may be dead.
            with suppress(OSError):
                os.close(file)
    expected = [*old[:2], *new]
    for _ in range(2):
        for view, values in seen(place).items():
            assert values == expected, view
    eventually(lambda: table_has(place, expected), "the table has what came instead")
    assert linked.told(name)["truncated_records"] == 4
    done = subprocess.run(
        [sys.executable, "-m", "topicfs.mountd.cli", "verify", str(linked.mount.backing)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def table_has(place: Path, values: list[bytes]) -> bool:
    # A file that is replaced meanwhile cannot be read.
    with suppress(duckdb.Error, OSError):
        return in_table(place) == values
    return False
