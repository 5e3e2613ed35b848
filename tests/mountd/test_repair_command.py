"""`topicfs repair`: what a recovery would do, told before anything is changed, and done with every byte kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from patience import PATIENCE_S

from topicfs.engine.record import Record
from topicfs.engine.store.store import Store
from topicfs.mountd.cli import main

COMMANDS = Path(__file__).parents[2] / "mountd" / "COMMANDS.md"
NOW = 1_780_000_000_000
BATCHES, RECORDS = 6, 10
SETTINGS = {"internal.segment.bytes": "400"}


def topicfs(*words: object) -> Result:
    return CliRunner().invoke(main, list(map(str, words)), catch_exceptions=False)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A store that was stopped cleanly, with a partition of several segments and a sound one."""
    with Store.open(tmp_path / "data", create=True) as store:
        for number in (0, 1):
            partition = store.create("orders", number, overrides=SETTINGS)
            for batch in range(BATCHES):
                first = batch * RECORDS
                partition.append([Record(b"%d" % at, b"k", NOW + at) for at in range(first, first + RECORDS)])
    return tmp_path / "data"


def content(directory: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(directory)): file.read_bytes() for file in directory.rglob("*") if file.is_file()
    }


def logs(data: Path) -> list[Path]:
    return sorted((data / "logs/orders-0").glob("*.log"))


def damage(log: Path) -> None:
    """One bit of the last byte of a log."""
    found = bytearray(log.read_bytes())
    found[-1] ^= 1
    log.write_bytes(found)


def values(data: Path, *words: object) -> list[str]:
    return topicfs("export", data, "orders-0", "--format", "txt", *words).stdout.split()


def test_where_nothing_is_wrong_nothing_is_to_be_repaired(data: Path) -> None:
    before = content(data)
    for words in ((), ("--apply",)):
        done = topicfs("repair", data, *words)
        assert (done.exit_code, done.stdout) == (0, "there is nothing that a recovery would mend\n")
    assert content(data) == before


def test_the_report_says_what_goes_and_what_stays_and_changes_nothing(data: Path) -> None:
    first, second, third, *later = logs(data)
    damage(second)
    before = content(data)
    done = topicfs("repair", data, "orders", "--json")
    finding, plan, summary = map(json.loads, done.stdout.splitlines())
    assert done.exit_code == 1
    assert (finding["severity"], finding["file"]) == ("damage", str(second))
    actions = {(each["file"], each["action"]) for each in plan["changes"]}
    assert {(str(second), "cut"), *((str(log), "removed") for log in (third, *later))} <= actions
    assert str(first) not in {file for file, _ in actions}
    kept = int(second.stem)
    assert kept < plan["records_after"] + RECORDS
    assert (plan["records_before"] - plan["records_after"], plan["bytes_lost"]) == (
        summary["summary"]["records_lost"],
        summary["summary"]["bytes_lost"],
    )
    lost = [second, third, *later]
    assert 0 < plan["bytes_lost"] <= sum(log.stat().st_size for log in lost)
    assert (plan["error"], plan["left"]) == (None, [])
    assert any("cut off at position" in words for words in plan["words"])
    assert content(data) == before
    assert f"topicfs repair {data} --apply" in topicfs("repair", data).stdout
    # As long as it is not repaired, what is behind the damage can be read.
    assert values(data, "--from", int(third.stem))[0] == str(int(third.stem))


def test_a_repair_keeps_every_file_that_it_changes(data: Path) -> None:
    damage(logs(data)[1])
    before = content(data / "logs/orders-0")
    plan = json.loads(topicfs("repair", data, "--json").stdout.splitlines()[1])
    done = topicfs("repair", data, "--apply")
    assert done.exit_code == 0, done.output
    (saved,) = (data / "repaired").iterdir()
    assert done.stdout.endswith(f"done; what was changed or removed is in {saved}\n")
    after = content(data / "logs/orders-0")
    gone = {name for name in before if after.get(name) != before[name]}
    assert gone
    assert content(saved / "orders-0") == {name: before[name] for name in gone}
    assert topicfs("verify", data).exit_code == 0
    assert values(data) == [str(at) for at in range(plan["records_after"])]
    assert len(topicfs("cat", data, "orders-1").stdout.split()) == BATCHES * RECORDS
    assert topicfs("append", data, "orders-0", COMMANDS).exit_code == 0


@pytest.mark.parametrize("at", [1, -1])
def test_what_is_not_named_stays_as_it_is(data: Path, at: int) -> None:
    """Damage stays where it is until somebody asks: also in the segment that a start after a crash checks."""
    damage(logs(data)[1])
    other = data / "logs/orders-1"
    damage(sorted(other.glob("*.log"))[at])
    before = content(other)
    done = topicfs("repair", data, "orders-0", "--apply")
    assert done.exit_code == 0, done.output
    assert content(other) == before
    assert topicfs("verify", data, "orders-0").exit_code == 0
    assert topicfs("verify", data, "orders-1").exit_code == 1
    assert topicfs("repair", data, "--apply").exit_code == 0
    assert topicfs("verify", data).exit_code == 0


def test_a_damaged_index_is_rebuilt_and_no_record_goes(data: Path) -> None:
    damage(logs(data)[0].with_suffix(".timeindex"))
    plan = json.loads(topicfs("repair", data, "--json").stdout.splitlines()[-2])
    assert {each["action"] for each in plan["changes"]} == {"rebuilt"}
    assert (plan["records_after"], plan["bytes_lost"]) == (plan["records_before"], 0)
    assert topicfs("repair", data, "--apply").exit_code == 0
    assert len(values(data)) == BATCHES * RECORDS


def test_what_is_open_is_reported_and_not_repaired(data: Path) -> None:
    damage(logs(data)[0])
    # In processes of their own: a look at the lock of a store would release it in the process that has it.
    command = [sys.executable, "-m", "topicfs.mountd.cli", "repair", str(data)]
    with Store.open(data):
        report, refused = (
            subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
            for words in (command, [*command, "--apply"])
        )
    assert report.returncode == 1
    assert "records stay" in report.stdout
    assert refused.returncode == 2
    assert "has it open" in refused.stderr
    assert not (data / "repaired").exists()


def test_what_is_not_there_ends_with_2(data: Path, tmp_path: Path) -> None:
    assert topicfs("repair", data, "clicks").exit_code == 2
    assert topicfs("repair", tmp_path / "absent").exit_code == 2


def test_several_stores_side_by_side_are_repaired_one_by_one(data: Path, tmp_path: Path) -> None:
    damage(logs(data)[0])
    with Store.open(tmp_path / "another", create=True) as store:
        store.create("clicks", 0)
    done = topicfs("repair", tmp_path)
    assert (done.exit_code, "expected one store" in done.stderr) == (2, True), done.stderr


def test_the_examples_of_repairing_work(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damage(logs(data)[1])
    monkeypatch.chdir(tmp_path)
    section = COMMANDS.read_text().partition("## Repairing a log\n")[2].partition("\n## ")[0]
    commands = [
        line.split("#")[0].split() for line in section.splitlines() if line.startswith("    topicfs ")
    ]
    assert [(words[-1], topicfs(*words[1:]).exit_code) for words in commands] == [
        ("data", 1),
        ("behind.jsonl", 0),
        ("--apply", 0),
    ]
    assert os.stat("behind.jsonl").st_size
