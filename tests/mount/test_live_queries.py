"""A topic of a live daemon in other programs: `topicfs.arrow` and `topicfs sql`, given the mount."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from daemon_mount import DaemonMount, append, eventually

import topicfs

pytest_plugins = ["shared_mount"]


def offsets(mount: DaemonMount, topic: str, **options: Any) -> list[int]:
    found = topicfs.arrow(mount.path, topic, columns=["offset"], **options).read_all()
    return [*found["offset"].to_pylist()]


def sql(mount: DaemonMount, query: str) -> list[str]:
    command = [sys.executable, "-m", "topicfs.mountd.cli", "sql", str(mount.path), query]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_what_was_appended_is_there_at_once_for_arrow_and_for_sql(mount: DaemonMount) -> None:
    partition = mount / "live-0"
    partition.mkdir()
    for number in range(3):
        append(partition / "log.tsv", b"k%d\tv%d\n" % (number, number))
        assert offsets(mount, "live") == [*range(number + 1)]
    assert sql(mount, "SELECT key, value FROM live ORDER BY key DESC LIMIT 1") == ["key,value", "k2,v2"]
    (partition / "start").write_text("2\n")
    assert offsets(mount, "live") == [2]
    assert offsets(mount, "live", start=0, end=2) == []


def test_sql_has_each_record_once_while_a_table_is_made(mount: DaemonMount) -> None:
    partition = mount / "tabled-0"
    partition.mkdir()
    (mount / "topics/tabled/config").write_text("parquet.enable=true\n")
    expected = 0
    for _ in range(3):
        append(partition / "log.txt", b"line\n" * 10)
        mount.steer("roll", partition)
        expected += 10
        assert sql(mount, 'SELECT count(*), max("offset") FROM tabled')[1] == f"{expected},{expected - 1}"
    append(partition / "log.txt", b"line\n")
    files = mount / "topics/tabled/table/partition=0"
    eventually(lambda: len(list(files.iterdir())) == 3, "three files")
    assert sql(mount, 'SELECT count(*), max("offset") FROM tabled')[1] == "31,30"
    assert "PARQUET" in "\n".join(sql(mount, "EXPLAIN SELECT value FROM tabled")).upper()
