"""How a command ends when what it shows finds no room, or when it is interrupted: in words, with its exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from topicfs.engine.store.store import Store
from topicfs.mountd.sections import SectionedGroup


@pytest.mark.parametrize("words", [["topics"], ["doctor"], ["offsets", "--json"], ["config", "orders"]])
def test_what_finds_no_room_on_standard_output_is_told_in_a_line(words: list[str], tmp_path: Path) -> None:
    with Store.open(tmp_path, create=True) as store:
        store.create("orders")
    verb, *rest = words
    command = [sys.executable, "-m", "topicfs.mountd.cli", verb, str(tmp_path), *rest]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr, "No space left" in done.stderr) == (1, False, True)


@pytest.mark.parametrize(
    ("words", "closed"),
    [
        (["cat", "orders"], ">&-"),
        (["status"], "<&- >&-"),
        (["verify"], ">&-"),
        (["append", "orders"], "<&-"),
        (["import", "orders", "-", "--format", "txt"], "<&- 2>&-"),
    ],
)
def test_who_closes_standard_streams_is_told_and_gets_no_file_in_their_place(
    words: list[str], closed: str, tmp_path: Path
) -> None:
    with Store.open(tmp_path, create=True) as store:
        store.create("orders").append_lines(b"one\n")
    verb, *rest = words
    command = f'"{sys.executable}" -m topicfs.mountd.cli {verb} "{tmp_path}" {" ".join(rest)} {closed}'
    done = subprocess.run(
        ["sh", "-c", command], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == (2 if verb == "verify" else 1), done.stderr
    assert "Bad file descriptor" in done.stderr or "2>&-" in closed
    assert len(done.stderr.splitlines()) == (0 if "2>&-" in closed else 1)
    with Store.open(tmp_path) as store:
        assert [record.value for record in store.partition("orders", 0).records()] == [b"one"]


def test_each_command_ends_with_130_when_it_is_interrupted() -> None:
    @click.group(cls=SectionedGroup)
    def group() -> None:
        """A group."""

    @group.command()
    def waits() -> None:
        """Wait."""
        raise KeyboardInterrupt

    done = CliRunner().invoke(group, ["waits"])
    assert (done.exit_code, done.stderr) == (130, "topicfs: interrupted\n")
