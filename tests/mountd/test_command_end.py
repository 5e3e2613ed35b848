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
