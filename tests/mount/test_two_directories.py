"""The commands, and `topicfs.arrow`, given a mount that shows two log directories."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_mount import DaemonMount
from two_directories import COUNT, PARTITIONS, two_directories

import topicfs


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DaemonMount, Path]]:
    with two_directories(tmp_path_factory.mktemp("two")) as found:
        yield found


def said(mount: DaemonMount, command: str, *words: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "topicfs.mountd.cli", command, str(mount.path), *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, "")
    return done.stdout


def test_the_mount_names_all_its_log_directories(place: tuple[DaemonMount, Path]) -> None:
    mount, two = place
    told = os.getxattr(mount.path, "user.topicfs.log_directories").split(b"\0")
    assert [Path(os.fsdecode(each)) for each in told] == [two.with_name("store") / "logs", two]


def test_plan_sees_the_partitions_of_both(place: tuple[DaemonMount, Path]) -> None:
    plans = json.loads(said(place[0], "plan", "--json"))
    assert [(each["partition"], each["segments"]) for each in plans] == [(name, 1) for name in PARTITIONS]


def test_sql_reads_the_records_of_both(place: tuple[DaemonMount, Path]) -> None:
    query = 'SELECT partition, count(*) FROM "both" GROUP BY ALL UNION ALL SELECT 9, count(*) FROM second ORDER BY 1'
    assert said(place[0], "sql", query).splitlines()[1:] == [f"{number},{COUNT}" for number in (0, 1, 9)]


def test_arrow_reads_the_records_of_both(place: tuple[DaemonMount, Path]) -> None:
    found = topicfs.arrow(place[0].path, "both", columns=["value"]).read_all()["value"].to_pylist()
    assert found == [f"{each} of both-{number}".encode() for number in (0, 1) for each in range(COUNT)]
    assert topicfs.arrow(place[0].path, "second", start=2).read_all().num_rows == COUNT - 2


def test_dump_shows_the_files_of_both(place: tuple[DaemonMount, Path]) -> None:
    mount, two = place
    expected = f"Dumping {two / 'second-0' / ('0' * 20 + '.log')}"
    assert expected in said(mount, "dump", "second-0").splitlines()
    assert f"Dumping {two / 'meta.properties'}" in said(mount, "dump").splitlines()
    done = subprocess.run(
        [sys.executable, "-m", "topicfs.mountd.cli", "dump", str(mount / "second-0")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert expected in done.stdout.splitlines()


def test_verify_checks_both(place: tuple[DaemonMount, Path]) -> None:
    mount, two = place
    summary = json.loads(said(mount, "verify", "--json").splitlines()[-1])["summary"]
    assert (summary["partitions"], summary["records"]) == (3, 3 * COUNT)
    damaged = two / "second-0" / ("0" * 20 + ".log")
    with damaged.open("r+b", buffering=0) as file:
        last = file.seek(-1, os.SEEK_END)
        whole = file.read(1)
        os.pwrite(file.fileno(), b"?", last)
        try:
            findings = said(mount, "verify", "--json", code=1).splitlines()
        finally:
            os.pwrite(file.fileno(), whole, last)
    assert str(damaged) in {json.loads(line).get("file") for line in findings}
