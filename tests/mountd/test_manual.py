"""The manual page: it is made of the command's help, and programs that show such pages take it."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from topicfs.mountd import manual
from topicfs.mountd.cli import main


def test_the_page_is_that_of_the_present_help() -> None:
    assert manual.PAGE.read_text() == manual.page(), "`make man` makes it anew"


def test_the_page_has_every_command_and_every_option() -> None:
    text = manual.page().replace("\\", "")
    assert main.commands
    for name, command in main.commands.items():
        assert f"fBtopicfs {name}fR" in text
        for parameter in command.params:
            assert all(option in text for option in parameter.opts if option.startswith("-"))


def test_man_shows_the_page_without_a_complaint() -> None:
    if shutil.which("man") is None or shutil.which("groff") is None:
        pytest.skip("there is no man")
    environment = {**os.environ, "MANWIDTH": "100", "LC_ALL": "C.UTF-8", "MANPAGER": "cat"}
    done = subprocess.run(
        ["man", "--warnings", "-l", str(manual.PAGE)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert (done.returncode, done.stderr) == (0, "")
    shown = done.stdout
    assert "topicfs - Kafka-style logs as a mounted file system" in shown
    assert "--by-key" in shown
    assert "topicfs export mnt orders -o orders.jsonl.gz" in shown
    assert not any(left in shown for left in ("\\fB", "\\-", "\\&"))
