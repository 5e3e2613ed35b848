"""A read-only mount of a running broker's directory on a read-only file system, and of damaged copies of it."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from daemon_mount import DaemonMount, eventually
from kafka_broker import Broker
from kafka_clients import consume, create_topics, produce, transact

from topicfs import Record

THOROUGH: Final = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"

COPIES: Final = 12
"""The partitions of a damaged directory, each a copy of the broker's one. Each is damaged in its own way."""

CHECKPOINTS: Final = (
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
)

Shown = dict[int, tuple[str | None, str | None]]
"""Key and value of records by their offsets."""


def some(count: int, turn: int) -> list[Record]:
    return [
        Record(b"%d of turn %d " % (number, turn) + b"x" * 100, b"key %d" % number) for number in range(count)
    ]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A running broker with a topic of several segments, with transactions that were committed and aborted."""
    place = tmp_path_factory.mktemp("followed")
    settings = {"log.flush.offset.checkpoint.interval.ms": "500"}
    with Broker.start(place / "logs", place / "home", settings=settings) as running:
        create_topics(
            running.bootstrap, {"t": {"internal.segment.bytes": "9000", "index.interval.bytes": "500"}}
        )
        for turn in range(3):
            produce(running.bootstrap, "t", some(60, turn), "lz4" if turn == 1 else None)
            ends = [("commit", some(20, 3 + turn)), ("abort", some(20, 6 + turn))]
            transact(running.bootstrap, "t", f"id-{turn}", ends)
        yield running


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[DaemonMount]:
    made = DaemonMount(tmp_path)
    try:
        yield made
    finally:
        made.clear()


def records_of(file: Path) -> Shown:
    """The records that can be read before the first error, which is EIO or none."""
    content = bytearray()
    try:
        with file.open("rb", buffering=0) as opened:
            while block := opened.read(4096):
                content += block
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    whole, _, _ = content.rpartition(b"\n")
    lines = [json.loads(line) for line in whole.splitlines()]
    assert [line["offset"] for line in lines] == sorted({line["offset"] for line in lines})
    return {line["offset"]: (line["key"], line["value"]) for line in lines}


def test_a_running_broker_is_followed_on_a_read_only_file_system(
    broker: Broker, mount: DaemonMount, tmp_path: Path
) -> None:
    mount.backing = tmp_path / "bound"
    mount.backing.mkdir()
    done = subprocess.run(
        ["mount", "--bind", broker.log_dir, mount.backing], check=False, capture_output=True
    )
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.decode().strip()}")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", mount.backing], check=True)
        with pytest.raises(OSError, match="Read-only file system"):
            (mount.backing / "x").touch()
        create_topics(broker.bootstrap, {"bound": {}})
        mount.start("--read-only")
        with mount.watched():
            for turn in range(2):
                produce(broker.bootstrap, "bound", some(5, turn))
                expected = [
                    record.value.decode() for record in consume(broker.bootstrap, "bound") if record.value
                ]
                assert len(expected) == 5 * (turn + 1)
                eventually(
                    lambda expected=expected: (
                        (mount / "bound-0/log.txt").read_text().splitlines() == expected
                    ),
                    "what was produced",
                )
        assert mount.stop() == 0
        assert mount.alarms() == []
    finally:
        mount.clear()
        subprocess.run(["umount", "-l", mount.backing], check=True)


# -- damage -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Damage:
    """What was done to a partition.

    kind   what it was, in words
    files  the files that were damaged
    hides  those that have bytes of batches that are wrong or lack some, so that records are hidden
    """

    kind: str
    files: list[Path]
    hides: list[Path]


def batches_of(log: Path) -> list[tuple[int, int]]:
    """The position and the size of each batch."""
    content, position, found = log.read_bytes(), 0, []
    while position < len(content):
        size = 12 + int.from_bytes(content[position + 8 : position + 12], "big")
        found.append((position, size))
        position += size
    return found


def damage(directory: Path, chance: random.Random) -> Damage:
    """Damage one file of a partition, or have two change places.

    The base offset of a batch is left as it is: no checksum covers these eight bytes, and neither Kafka nor anybody
    else can tell one that is too large from a gap that compaction has left."""
    logs = sorted(path for path in directory.glob("*.log") if path.stat().st_size)
    others = sorted(path for path in directory.iterdir() if path.suffix != ".log" and path.stat().st_size)
    kind = chance.choice(("flip", "cut", "remove", "swap"))
    file = chance.choice(logs if chance.random() < 0.6 else others)
    is_log = file.suffix == ".log"
    size = file.stat().st_size
    bad = [file] if is_log else []
    if kind == "flip":
        position = chance.randrange(size)
        if is_log:
            start, length = chance.choice(batches_of(file))
            position = chance.randrange(start + 8, start + length)
        with file.open("r+b") as opened:
            byte = os.pread(opened.fileno(), 1, position)[0]
            os.pwrite(opened.fileno(), bytes([byte ^ 1 << chance.randrange(8)]), position)
        return Damage(f"flip in {file.name} at {position}", [file], bad)
    if kind == "cut":
        end = chance.randrange(size)
        os.truncate(file, end)
        is_between = is_log and end in {position for position, _ in batches_of_cut(file)}
        return Damage(f"cut of {file.name} from {size} to {end}", [file], [] if is_between else bad)
    if kind == "remove":
        file.unlink()
        return Damage(f"removal of {file.name}", [file], [])
    other = chance.choice([each for each in (logs if is_log else others) if each != file])
    spare = directory / "spare"
    file.rename(spare)
    other.rename(file)
    spare.rename(other)
    return Damage(f"swap of {file.name} and {other.name}", [file, other], [])


def batches_of_cut(log: Path) -> list[tuple[int, int]]:
    """The same where the last one may lack some bytes, and the end of the file behind them as an empty one."""
    found = batches_of(log)
    size = log.stat().st_size
    return [*found, *([(size, 0)] if not found or sum(found[-1]) == size else [])]


def copied(broker: Broker, backing: Path) -> list[Path]:
    """Copy the directory while the broker runs, with one partition for each damage. Return their directories."""
    shutil.rmtree(backing)
    backing.mkdir()
    for path in broker.log_dir.iterdir():
        if path.is_file() and path.name != ".lock":
            shutil.copy(path, backing)
    for name in CHECKPOINTS:
        path = backing / name
        if path.exists() and path.stat().st_size:
            version, _, *lines = path.read_text().splitlines()
            own = [line.split()[2] for line in lines if line.startswith("t 0 ")]
            lines = [f"t {number} {offset}" for offset in own for number in range(COPIES)]
            path.write_text("\n".join([version, str(len(lines)), *lines, ""]))
    return [
        Path(shutil.copytree(broker.log_dir / "t-0", backing / f"t-{number}")) for number in range(COPIES)
    ]


@pytest.mark.parametrize("seed", range(60 if THOROUGH else 2))
def test_of_a_damaged_copy_only_records_that_were_there_show_and_verify_names_what_hides_others(
    broker: Broker, mount: DaemonMount, seed: int
) -> None:
    chance = random.Random(seed)
    partitions = copied(broker, mount.backing)
    clean, aborted_too = (
        {
            record.offset: (record.key and record.key.decode(), record.value and record.value.decode())
            for record in consume(broker.bootstrap, "t", committed=committed)
        }
        for committed in (True, False)
    )
    done = {directory: damage(directory, chance) for directory in partitions[1:]}
    if chance.random() < 0.5:
        path = mount.backing / chance.choice(CHECKPOINTS)
        content = bytearray(path.read_bytes() or b"0")
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(content)
    mount.start("--read-only")
    with mount.watched():
        shown = {directory: records_of(mount / directory.name / "log.jsonl") for directory in partitions}
        for directory in partitions:
            json.loads((mount / directory.name / "status.json").read_bytes())
        found = subprocess.run(
            [sys.executable, "-m", "topicfs.mountd.cli", "verify", str(mount.path), "--json"],
            capture_output=True,
            text=True,
            check=False,
        )
    assert mount.stop() == 0
    assert "Traceback" not in mount.said()
    assert found.returncode == 1, found.stderr
    named = {json.loads(line).get("file") for line in found.stdout.splitlines()}
    for directory, records in shown.items():
        what = done.get(directory, Damage("nothing", [], []))
        told = f"{directory.name}: {what.kind}"
        assert {offset: aborted_too.get(offset) for offset in records} == records, told
        if not records.keys() <= clean.keys():
            # A segment whose transaction index is gone looks like one without transactions, to Kafka too.
            assert {file.suffix for file in what.files} == {".txnindex"}, told
            assert not named.isdisjoint(map(str, what.files)), told
        if not clean.keys() <= records.keys():
            assert named.issuperset(map(str, what.hides)), told
