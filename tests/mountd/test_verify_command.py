"""`topicfs verify`, as a user runs it: on a backing directory, and beside what writes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from patience import PATIENCE_S

from topicfs import Record, Store
from topicfs.engine.cleaner.clean import Cleaner
from topicfs.engine.partition.partition import Producer
from topicfs.engine.record import now_ms
from topicfs.fs.views.size_map import SizeMap
from topicfs.mountd.cli import main

COMMANDS = Path(__file__).parents[2] / "mountd" / "COMMANDS.md"
NOW = 1_780_000_000_000


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("verify") / "data"
    with Store.open(place, create=True) as store:
        for number in (0, 1):
            store.create("orders", number).append([Record(b"%d" % at, b"k", NOW + at) for at in range(100)])
        store.create("clicks", 0).append(Record(b"x", None, NOW))
    return place


@pytest.fixture
def data(written: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    shutil.copytree(written, tmp_path / "data")
    return tmp_path / "data"


def verified(*words: object) -> Result:
    return CliRunner().invoke(main, ["verify", *map(str, words)])


def damage(log: Path) -> None:
    descriptor = os.open(log, os.O_WRONLY)
    os.pwrite(descriptor, b"\xff\xff", 70)
    os.close(descriptor)


def test_what_cannot_be_printed_is_no_traceback(data: Path) -> None:
    damage(next((data / "logs/orders-0").glob("*.log")))
    reading, writing = os.pipe()
    os.close(reading)
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        for out, code, told in ((writing, 1, ""), (full, 2, "topicfs: No space left on device\n")):
            for names in ((), ("orders-1",)):
                done = subprocess.run(
                    [sys.executable, "-m", "topicfs.mountd.cli", "verify", str(data), *names],
                    stdout=out,
                    stderr=subprocess.PIPE,
                    text=True,
                    check=False,
                    timeout=PATIENCE_S,
                )
                assert (done.returncode, done.stderr) == (code, told), names
    finally:
        os.close(writing)
        os.close(full)


def test_a_good_store_is_one_line_and_exit_code_0(written: Path) -> None:
    done = verified(written)
    assert done.exit_code == 0
    assert done.stdout.startswith("3 partitions, ")
    assert " 201 records in " in done.stdout
    assert done.stdout.endswith(": nothing found\n")
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""


def test_damage_is_a_line_with_its_place_and_exit_code_1(data: Path) -> None:
    log = data / "logs" / "orders-1" / f"{0:020d}.log"
    damage(log)
    done = verified(data)
    assert done.exit_code == 1
    first, last = done.stdout.splitlines()
    assert first.startswith(f"damage: {log}, batch at position 0 (offset 0, ")
    assert "expected bytes that fit their checksum, found" in first
    assert first.endswith("the records of this batch cannot be read")
    assert last.endswith(": 1 damage")


def test_a_note_alone_is_exit_code_0(data: Path) -> None:
    (data / "logs" / ".kafka_cleanshutdown").write_text("{")
    done = verified(data)
    assert done.exit_code == 0
    assert done.stdout.startswith("note: ")
    assert done.stdout.endswith(": 1 note\n")


def test_topics_and_partitions_can_be_chosen(data: Path) -> None:
    damage(data / "logs" / "orders-1" / f"{0:020d}.log")
    assert verified(data, "clicks", "orders-0").exit_code == 0
    assert verified(data, "orders").exit_code == 1
    assert verified(data, "orders-1").exit_code == 1


def test_json_has_a_line_for_each_finding_and_one_for_the_summary(data: Path) -> None:
    log = data / "logs" / "orders-1" / f"{0:020d}.log"
    damage(log)
    done = verified(data, "--json")
    assert done.exit_code == 1
    finding, summary = map(json.loads, done.stdout.splitlines())
    assert (finding["severity"], finding["kind"], finding["file"]) == ("damage", "batch", str(log))
    assert set(finding) == {"severity", "kind", "file", "at", "expected", "found", "effect"}
    assert summary["summary"]["findings"] == {"damage": 1, "repairable": 0, "note": 0}
    assert summary["summary"]["partitions"] == 3
    assert summary["summary"]["bytes"] > 0


def test_what_is_not_there_is_exit_code_2(written: Path, tmp_path: Path) -> None:
    for words in ((tmp_path / "nothing",), (written, "nothing"), (written, "orders-7"), ()):
        done = verified(*words)
        assert done.exit_code == 2
        assert done.stdout == ""
        assert done.stderr


def test_nothing_is_changed_and_a_broker_s_directory_will_do(written: Path) -> None:
    before = {path: path.stat() for path in written.rglob("*")}
    assert verified(written / "logs").exit_code == 0
    after = {path: path.stat() for path in written.rglob("*")}
    assert {path: (each.st_size, each.st_mtime_ns, each.st_ctime_ns) for path, each in before.items()} == {
        path: (each.st_size, each.st_mtime_ns, each.st_ctime_ns) for path, each in after.items()
    }


def saved_map(data: Path, change: Callable[[SizeMap], object]) -> Path:
    """A map of the first of two segments, with a change before it is saved."""
    with Store.open(data) as store:
        partition = store.partition("orders", 0)
        partition.roll()
        segment = partition.log.snapshot.segments.first
        made = SizeMap(0)
        for _, table in segment.log.batches():
            made.add(table, np.full(len(table), 10, np.int64))
        status = os.stat(segment.path)
    change(made)
    path = data / "views" / "orders-0" / f"{0:020d}.txt.map"
    path.parent.mkdir(parents=True)
    path.write_bytes(made.encode((status.st_size, status.st_mtime_ns, status.st_ino)))
    return path


def of_another_log(path: Path) -> None:
    os.utime(path.parents[2] / "logs" / "orders-0" / f"{0:020d}.log", (1, 1))


@pytest.mark.parametrize(
    ("change", "harm", "words"),
    [
        (lambda made: None, lambda path: None, None),
        (lambda made: None, of_another_log, None),
        (lambda made: None, damage, "bytes that do not fit their checksum"),
        (lambda made: made.skip_to(150), lambda path: None, "a map up to offset 150"),
        (lambda made: made.add_one(100_000, 5, 99, 1), lambda path: None, "a mark for a batch with offset 5"),
    ],
)
def test_a_size_map_that_does_not_describe_its_segment_is_repairable(
    data: Path, change: Callable[[SizeMap], object], harm: Callable[[Path], object], words: str | None
) -> None:
    path = saved_map(data, change)
    harm(path)
    done = verified(data)
    assert done.exit_code == (1 if words else 0), done.stdout
    if words:
        assert done.stdout.startswith(f"repairable: {path}: expected a map of the segment, found {words}")


@pytest.mark.busy
@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_nothing_is_found_while_somebody_appends_rolls_aborts_and_removes(
    tmp_path: Path, policy: str
) -> None:
    place = tmp_path / "data"
    with Store.open(place, create=True) as store:
        partition = store.create("t", 0)
        store.configure(
            "t",
            {
                "internal.segment.bytes": "20000",
                "index.interval.bytes": "500",
                "retention.bytes": "60000",
                "cleanup.policy": policy,
                "min.cleanable.dirty.ratio": "0",
            },
        )
        cleaner = Cleaner.create(1 << 20, 0.9, 1 << 16, lambda size: None, bytes(16))
        changed = 0
        stop = threading.Event()

        def write() -> None:
            nonlocal changed
            number = 0
            while not stop.is_set():
                values = [Record(b"%d" % number * 30, b"%d" % (number % 50), NOW + number)] * 5
                partition.append(values)
                if number % 20 == 0:
                    partition.append(Record(b"aborted", b"k", NOW), Producer(1, 0, number // 20, True))
                    partition.end_transaction(1, 0, False)
                if number % 200 == 0:
                    before = partition.log.snapshot.segments.first
                    store.cleaning.retain_others(now_ms())
                    store.cleaning.work(cleaner, now_ms())
                    changed += partition.log.snapshot.segments.first is not before
                number += 1

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(2):
                done = subprocess.run(
                    [sys.executable, "-m", "topicfs.mountd.cli", "verify", str(place)],
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=PATIENCE_S,
                )
                assert (done.returncode, len(done.stdout.splitlines())) == (0, 1), done.stdout + done.stderr
        finally:
            stop.set()
            writer.join()
    assert changed > 2, "segments were replaced or removed all the time"
    assert verified(place).exit_code == 0


def test_the_commands_of_readme_run(data: Path, tmp_path: Path) -> None:
    section = COMMANDS.read_text().partition("## Checking a log\n")[2].partition("\n## ")[0]
    commands = [line.strip() for line in section.splitlines() if line.startswith("    topicfs ")]
    assert len(commands) == 3
    program = tmp_path / "bin" / "topicfs"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m topicfs.mountd.cli "$@"\n')
    program.chmod(0o755)
    (tmp_path / "mnt").symlink_to(data)
    for command in commands:
        environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
        done = subprocess.run(
            command,
            shell=True,
            cwd=tmp_path,
            env=environment,
            check=False,
            capture_output=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, (command, done.stderr)
