"""`topicfs plan`: what it prints for a backing directory and for a mount, and that it changes nothing."""

from __future__ import annotations

import io
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from daemon_place import Place
from patience import eventually
from rich.console import Console

from topicfs.engine.record import Record
from topicfs.engine.store.store import Store
from topicfs.mountd import mounts, plans, tables
from topicfs.mountd.cli import main

SMALL = {"internal.segment.bytes": "110"}
"""One record a segment."""


def fill(backing: Path, open_settings: dict[str, str] | None = None) -> None:
    with Store.open(backing, open_settings, create=True) as store:
        for topic, settings in (
            ("big", {"retention.bytes": "250"}),
            ("keys", {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}),
            ("keep", {"cleanup.policy": ""}),
        ):
            partition = store.create(topic, overrides={**SMALL, **settings})
            for number in range(5):
                partition.append(Record(b"%030d" % number, b"key"))


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["plan", *map(str, arguments)], env={"COLUMNS": "200"})
    return result.exit_code, result.output


def as_json(*arguments: object) -> dict[str, dict[str, Any]]:
    code, said = run("--json", *arguments)
    assert code == 0, said
    return {each["partition"]: each for each in json.loads(said)}


def content(root: Path) -> dict[str, object]:
    """Every path with its bytes and its times."""
    found: dict[str, object] = {}
    for path in (root, *root.rglob("*")):
        status = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_mode, data)
    return found


def test_table_names_each_partition_and_what_would_be_done(tmp_path: Path) -> None:
    fill(tmp_path)
    code, said = run(tmp_path)
    assert code == 0
    lines = {line.split()[0]: line for line in said.splitlines()}
    assert list(lines) == ["partition", "big-0", "keep-0", "keys-0"]
    assert "removes 2 for size (202 B)" in lines["big-0"]
    assert "offsets 0 to 4, 404 B, 100% dirty" in lines["keys-0"]
    assert "nothing" in lines["keep-0"]


def test_json_has_all_of_it(tmp_path: Path) -> None:
    fill(tmp_path)
    said = as_json(tmp_path)
    assert said["big-0"]["remove"] == [
        {"segment": 0, "bytes": 101, "reason": "size"},
        {"segment": 1, "bytes": 101, "reason": "size"},
    ]
    assert said["big-0"]["cleaning"] is None
    clean = said["keys-0"]["cleaning"]
    assert (clean["eligible"], clean["from_offset"], clean["to_offset"]) == (True, 0, 4)
    assert said["keep-0"]["next_removal"] is None
    assert all(each["unknown"] == [] and each["error"] is None for each in said.values())


def test_what_waits_in_an_inbox_is_told(tmp_path: Path) -> None:
    fill(tmp_path)
    inbox = tmp_path / "staging" / "big" / "inbox"
    for number in range(22):
        (inbox / f"q{number}" / "partition=0").mkdir(parents=True)
        (inbox / f"q{number}" / "partition=0" / "part-00000.txt").touch()
        (inbox / f"q{number}" / ".part-00000.txt.crc").touch()
        time.sleep(0.02 if not number else 0)  # the clock of files may stand still for some milliseconds
    (inbox / ".scratch").mkdir()
    (inbox / "part-00000.txt").touch()
    before = content(tmp_path)
    code, said = run(tmp_path)
    assert code == 0
    (line,) = (line for line in said.splitlines() if line.startswith("big: "))
    assert "_SUCCESS has not been made there or was refused: q0 (1 files, since 20" in line
    assert line.endswith(" and 3 more")
    found = as_json(tmp_path)
    assert (found["big-0"]["inbox"]["batches"], found["big-0"]["inbox"]["files"]) == (23, 23)
    oldest = found["big-0"]["inbox"]["oldest"]
    assert oldest[0]["directory"] == "q0"
    assert oldest == sorted(oldest, key=lambda each: (each["since_ms"], each["directory"]))
    assert len(oldest) == 20
    assert found["keep-0"]["inbox"] == {"batches": 0, "files": 0, "oldest": []}
    assert content(tmp_path) == before


def test_settings_can_be_given_as_to_the_mount(tmp_path: Path) -> None:
    with Store.open(tmp_path, create=True) as store:
        partition = store.create("orders", overrides=SMALL)
        for number in range(5):
            partition.append(Record(b"%030d" % number, b"key"))
    assert as_json(tmp_path)["orders-0"]["remove"] == []
    assert len(as_json(tmp_path, "-o", "log.retention.bytes=0")["orders-0"]["remove"]) == 5


def test_plan_of_a_stopped_store_changes_nothing(tmp_path: Path) -> None:
    fill(tmp_path)
    before = content(tmp_path)
    run(tmp_path)
    assert content(tmp_path) == before


@pytest.mark.parametrize("arguments", [["missing"], ["empty"], ["full", "-o", "no.such.setting=1"]])
def test_what_cannot_be_planned_is_said_in_words(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "empty").mkdir()
    fill(tmp_path / "full")
    code, said = run(tmp_path / arguments[0], *arguments[1:])
    assert code == 1
    assert said.startswith("topicfs: ")
    assert list((tmp_path / "empty").iterdir()) == []


def test_plan_of_logs_that_no_mount_has_seen_yet(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    (tmp_path / "new").mkdir()
    (tmp_path / "store" / "logs").rename(tmp_path / "new" / "logs")
    assert list(as_json(tmp_path / "new")) == ["big-0", "keep-0", "keys-0"]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["logs"]


def test_mount_is_planned_like_its_backing_directory_and_nothing_changes(real_place: Place) -> None:
    fill(real_place.backing)
    quiet = ("log.initial.task.delay.ms", "replica.high.watermark.checkpoint.interval.ms")
    real_place.up(
        "-o", "log.cleaner.enable=false", *(part for name in quiet for part in ("-o", f"{name}=9999999"))
    )
    before = content(real_place.backing)
    code, of_mount = real_place.run("plan", "--json", real_place.mount)
    assert code == 0
    assert json.loads(of_mount) == list(as_json(real_place.backing).values())
    assert content(real_place.backing) == before
    assert len(json.loads(of_mount)[0]["remove"]) == 2
    real_place.down()


def test_settings_that_the_mount_was_given_are_known(real_place: Place) -> None:
    with Store.open(real_place.backing, create=True) as store:
        partition = store.create("orders", overrides=SMALL)
        for number in range(5):
            partition.append(Record(b"%030d" % number, b"key"))
    real_place.up("-o", "log.retention.bytes=0", "-o", "log.initial.task.delay.ms=9999999")
    assert len(as_json(real_place.mount)["orders-0"]["remove"]) == 5
    assert as_json(real_place.mount, "-o", "log.retention.bytes=-1")["orders-0"]["remove"] == []
    real_place.down()


def test_plan_after_a_crash_says_so_and_changes_nothing(real_place: Place) -> None:
    fill(real_place.backing)
    process = real_place.up("-o", "log.cleaner.enable=false")
    os.kill(process, signal.SIGKILL)
    eventually(lambda: mounts.is_dead(real_place.mount), "dead mount")
    before = content(real_place.backing)
    said = as_json(real_place.backing)
    assert all("recovery comes first" in each["unknown"][0] for each in said.values())
    assert content(real_place.backing) == before
    real_place.run("umount", real_place.mount)


def test_empty_store_is_said_to_be_empty(tmp_path: Path) -> None:
    Store.open(tmp_path, create=True).close()
    assert "no partitions" in run(tmp_path)[1]
    assert as_json(tmp_path) == {}


def test_times_and_sizes_are_readable() -> None:
    assert tables.time_text(0) == "1970-01-01T00:00:00Z"
    assert tables.time_text(2**63 - 1) == f"{2**63 - 1} ms"
    assert [tables.size_text(size) for size in (0, 1023, 1536, 5 << 30)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 GiB",
    ]


def test_names_in_brackets_are_no_markup() -> None:
    out = io.StringIO()
    lost = plans.PartitionPlan("a", 0, "delete", error="[red]lost[/red]")
    plans.show(plans.Plan([lost], {}), Console(file=out, width=200))
    assert "a-0: [red]lost[/red]" in out.getvalue()
