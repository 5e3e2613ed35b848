"""`topicfs dump`, as a user runs it."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner
from patience import PATIENCE_S
from plain_messages import CASES, record_of

from topicfs import Record, Store
from topicfs.mountd import kernels
from topicfs.mountd.cli import main

PROGRAM = [sys.executable, "-m", "topicfs.mountd.cli", "dump"]
COMMANDS = Path(__file__).parents[2] / "mountd" / "COMMANDS.md"
NOW = 1_780_000_000_000  # 2026-05-28T20:26:40Z


@pytest.fixture(scope="module")
def backing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("dump") / "data"
    with Store.open(place, create=True) as store:
        for number in (0, 1):
            orders = store.create("orders", number)
            for at in range(3):
                orders.append(Record(b"%d pears" % at, b"k", NOW + 1000 * at))
    return place


def run(*words: object, where: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        cwd=where,
    )


def test_the_commands_of_the_readme_work(backing: Path) -> None:
    section = COMMANDS.read_text().partition("## Dumping files\n")[2].partition("\n## ")[0]
    commands = [line for line in section.splitlines() if line.startswith("    topicfs dump ")]
    assert len(commands) >= 4
    for command in commands:
        words = command.partition("#")[0].split()[2:]
        done = run(*words, where=backing.parent)
        assert (done.returncode, done.stderr) == (0, ""), command
        assert bool(done.stdout) == ("--verify" not in words), command


def test_partitions_of_a_store_are_named_behind_it(backing: Path) -> None:
    done = run("--print-data-log", backing, "orders-1", "orders-0")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("payload: 2 pears\n") == 2
    assert done.stdout.index("orders-1") < done.stdout.index("orders-0")


def test_the_files_of_a_store_itself_are_shown_where_no_partition_is_named(backing: Path) -> None:
    done = run(backing)
    assert done.returncode == 0
    assert "topic: orders partition: 1 offset: 3\n" in done.stdout
    assert "cluster.id: " in done.stdout


@pytest.mark.parametrize("codec", ["uncompressed", "zstd"])
def test_a_decoder_shows_messages_and_what_is_none_as_it_is(tmp_path: Path, codec: str) -> None:
    records = []
    expected = []
    for topic, message, version in CASES:
        if topic == "__transaction_state":
            key, value, key_data, value_data = record_of(topic, message, version, random.Random(1))
            records += [Record(value, key), Record(None, key), Record(b"plain", b"k"), Record(b"\0\0", key)]
            expected += [(key_data, value_data), (key_data, None), ("k", "plain"), (key_data, "\0\0")]
    with Store.open(tmp_path / "data", create=True) as store:
        store.create("log", overrides={"compression.type": codec}).append(records)
    done = run("--transaction-log-decoder", "--json", tmp_path / "data", "log-0")
    assert (done.returncode, done.stderr) == (0, "")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["key"], row["value"]) for row in rows if row["type"] == "record"] == expected
    done = run("--transaction-log-decoder", "--skip-record-metadata", tmp_path / "data", "log-0")
    lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert lines[0].startswith('| key: {"type":"0","data":{"transactionalId":')
    assert ' payload: {"version":"0","data":{"producerId":' in lines[0]
    assert lines[1].endswith("}} payload: <DELETE>")
    assert lines[2] == "| key: k payload: plain"
    assert len(lines) == len(records)


def test_limits_are_offsets_or_times(backing: Path) -> None:
    for limits in (
        ("--from", "1", "--to", "2"),
        ("--from", "2026-05-28T20:26:41", "--to", "2026-05-28T20:26:42Z"),
    ):
        done = run("--json", "--deep-iteration", *limits, backing, "orders-0")
        found = [json.loads(line) for line in done.stdout.splitlines()]
        assert [each["offset"] for each in found if each["type"] == "record"] == [1]


def test_what_is_wrong_is_told_on_standard_error_and_the_status_is_1(backing: Path, tmp_path: Path) -> None:
    shutil.copytree(backing, tmp_path / "copy")
    (log,) = (tmp_path / "copy/logs/orders-0").glob("*.log")
    data = bytearray(log.read_bytes())
    data[70] ^= 1
    log.write_bytes(data)
    done = run("--verify", tmp_path / "copy", "orders-0", "orders-1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"topicfs: {log}: batch at position 0: the checksum does not fit the bytes\n"


@pytest.mark.parametrize(
    "words",
    [
        ["--from", "yesterday", "x.log"],
        ["--to", str(2**63), "x.log"],
        [],
        ["--max-bytes", "-1", "x.log"],
        ["."],
    ],
)
def test_a_command_that_makes_no_sense_has_the_status_2(tmp_path: Path, words: list[str]) -> None:
    done = run(*words, where=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr


def test_an_interrupt_while_the_engine_is_loaded_is_no_finding(
    backing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(kernels, "loading", interrupted)
    done = CliRunner().invoke(main, ["dump", str(backing)])
    assert (done.exit_code, done.stdout, done.stderr) == (130, "", "topicfs: interrupted\n")


def test_a_reader_that_has_seen_enough_is_no_error(backing: Path) -> None:
    (log,) = (backing / "logs/orders-0").glob("*.log")
    command = f"{' '.join(PROGRAM)} --print-data-log {' '.join([str(log)] * 300)} | head -1"
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert (done.stdout, done.stderr) == (f"Dumping {log}\n", "")
