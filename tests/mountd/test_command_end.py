"""How a command ends when what it shows finds no room, or when it is interrupted: in words, with its exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
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


def test_an_import_and_an_export_that_are_ended_leave_nothing_behind(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store", create=True) as store:
        store.create("orders").append_lines(b"x" * 999 + b"\n")
    inbox = tmp_path / "store" / "staging" / "orders" / "inbox"
    (tmp_path / "large.txt").touch()
    os.truncate(tmp_path / "large.txt", 250 << 20)

    def ended(number: int, words: list[object], sign: Callable[[], object]) -> int:
        command = [sys.executable, "-m", "topicfs.mountd.cli", *map(str, words)]
        program = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        while not sign():
            assert program.poll() is None
            time.sleep(0.001)
        program.send_signal(number)
        return program.wait()

    copying = ["import", tmp_path / "store", "orders", tmp_path / "large.txt"]
    code = ended(signal.SIGTERM, copying, lambda: list(inbox.glob(".import-*/records.txt")))
    assert code == 128 + signal.SIGTERM
    assert list(inbox.iterdir()) == []
    with Store.open(tmp_path / "store") as store:
        for _ in range(20):
            store.partition("orders", 0).append_lines(b"y" * 999_999 + b"\n")
    writing = ["export", tmp_path / "store", "orders", "-o", tmp_path / "out.jsonl.gz"]
    code = ended(signal.SIGHUP, writing, lambda: list(tmp_path.glob("out.jsonl.gz.*")))
    assert code == 128 + signal.SIGHUP
    assert list(tmp_path.glob("out*")) == []
