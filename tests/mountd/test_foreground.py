"""A daemon in the foreground, as `make run` has it: however it ends, no mount and no process of it is left."""

from __future__ import annotations

import contextlib
import os
import pty
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from daemon_place import ROOT, Place, alive
from patience import PATIENCE_S, eventually

from topicfs.mountd import mounts

VENV = Path(sys.executable).parents[1]


class Terminal:
    """A shell's command on a terminal of its own.

    process  the shell
    said     what came on the terminal
    """

    def __init__(self, process: int, end: int) -> None:
        self.process = process
        self.said = b""
        self._end = end
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        # A terminal on which nobody is left gives an error.
        with contextlib.suppress(OSError):
            while data := os.read(self._end, 65536):
                self.said += data

    def type(self, keys: bytes) -> None:
        os.write(self._end, keys)

    def wait(self) -> int:
        """The shell's exit code, when it and all that it started are done with the terminal."""
        _, status = os.waitpid(self.process, 0)
        self._reading.join(PATIENCE_S)
        return os.waitstatus_to_exitcode(status)


@contextmanager
def terminal(command: str, place: Place) -> Iterator[Terminal]:
    """A shell that runs a command line in the place's directory."""
    process, end = pty.fork()
    if process == 0:
        os.chdir(place.backing.parent)
        os.execve(
            "/bin/sh", ["sh", "-c", command], {**os.environ, "PATH": f"{VENV / 'bin'}:{os.environ['PATH']}"}
        )
    made = Terminal(process, end)
    try:
        yield made
    finally:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        os.close(end)


def make_run(place: Place) -> str:
    """`make run` for this place, with what is installed."""
    if shutil.which("make") is None:
        pytest.skip("make is missing: apt-get install make")
    words = ["make", "-s", "-C", ROOT, "-o", "setup", "run", f"VENV={VENV}"]
    return shlex.join(map(str, [*words, f"BACKING={place.backing}", f"MOUNT={place.mount}"]))


def daemon_of(place: Place) -> int:
    """The daemon's process, when the sample is there."""
    eventually((place.mount / "orders-0/log.txt").exists, "the sample")
    process = mounts.lock_owner(place.backing)
    assert process is not None
    return process


def test_ctrl_c_ends_make_run_without_a_word_of_failure(real_place: Place) -> None:
    with terminal(make_run(real_place), real_place) as shell:
        process = daemon_of(real_place)
        eventually(lambda: b"Ctrl-C unmounts it." in shell.said, "what to try")
        assert (real_place.mount / "orders-0/log.txt").read_text().splitlines()[9] == "10 apples"
        shell.type(b"\x03")
        shell.wait()
        real_place.wait_until_gone(process)
        for word in (b"***", b"Error", b"Interrupt", b"Traceback", b"WARNING"):
            assert word not in shell.said, shell.said
    assert real_place.stopped_clean


@pytest.mark.parametrize("pipe", ["| tee log", "2>&1 | tee log", "2>&1 | head -n 1"])
def test_ctrl_c_ends_make_run_in_a_pipe(real_place: Place, pipe: str) -> None:
    with terminal(f"{make_run(real_place)} {pipe}", real_place) as shell:
        process = daemon_of(real_place)
        shell.type(b"\x03")
        shell.wait()
        real_place.wait_until_gone(process)
    assert real_place.stopped_clean


def test_a_terminal_that_is_closed_ends_make_run(real_place: Place) -> None:
    with terminal(make_run(real_place), real_place) as shell:
        process = daemon_of(real_place)
        os.kill(shell.process, signal.SIGHUP)
    # The context has closed the terminal: the kernel sends SIGHUP to who is left on it.
    real_place.wait_until_gone(process)
    assert real_place.stopped_clean


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_make_run_whose_make_is_killed_leaves_nothing(real_place: Place, number: signal.Signals) -> None:
    with terminal(f"exec {make_run(real_place)}", real_place) as shell:
        process = daemon_of(real_place)
        os.kill(shell.process, number)
        real_place.wait_until_gone(process)
    assert real_place.stopped_clean


def test_make_run_says_why_it_cannot_mount(real_place: Place) -> None:
    real_place.mount.mkdir()
    (real_place.mount / "something").touch()
    with terminal(make_run(real_place), real_place) as shell:
        assert shell.wait() != 0
        assert b"expected an empty directory to mount at, found 'something' in it" in shell.said


# -- the daemon itself --------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_end_the_foreground(place: Place, number: signal.Signals) -> None:
    command = place.start("mount", "--create", "--foreground", place.backing, place.mount)
    eventually(lambda: place.mounted or command.poll() is not None, "mount")
    assert "metrics" in os.listdir(place.mount)
    command.send_signal(number)
    command.communicate(timeout=PATIENCE_S)
    assert command.returncode == 0
    assert not place.mounted
    assert place.stopped_clean


def started_by_another(place: Place, before: str = "") -> tuple[subprocess.Popen[bytes], int]:
    """A shell that has started a daemon in the foreground, and waits; and the daemon."""
    words = [
        sys.executable,
        "-m",
        "topicfs.mountd.cli",
        "mount",
        "--create",
        "--foreground",
        place.backing,
        place.mount,
    ]
    shell = subprocess.Popen(
        ["sh", "-c", f"{before} {shlex.join(map(str, words))} & wait"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    eventually(lambda: place.mounted, "mount")
    os.listdir(place.mount)
    process = mounts.lock_owner(place.backing)
    assert process is not None
    return shell, process


def test_the_foreground_ends_with_what_started_it(real_place: Place) -> None:
    shell, process = started_by_another(real_place)
    shell.kill()
    shell.wait()
    real_place.wait_until_gone(process)
    assert real_place.stopped_clean
    assert "SIGHUP: unmounting" in real_place.log


def test_under_nohup_it_goes_on(real_place: Place) -> None:
    shell, process = started_by_another(real_place, "nohup")
    shell.kill()
    shell.wait()
    os.kill(process, signal.SIGHUP)
    with pytest.raises(AssertionError, match="its end"):
        eventually(lambda: not alive(process) or not real_place.mounted, "its end", 1)
    assert "metrics" in os.listdir(real_place.mount)
    os.kill(process, signal.SIGTERM)
    real_place.wait_until_gone(process)
    assert real_place.stopped_clean


@pytest.mark.parametrize("closed", [">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_descriptors_are_no_files_of_the_store(real_place: Place, closed: str) -> None:
    words = shlex.join([sys.executable, "-m", "topicfs.mountd.cli", "mount", "--create", "--foreground"])
    command = subprocess.Popen(
        ["sh", "-c", f"exec {words} {real_place.backing} {real_place.mount} {closed}"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        eventually(lambda: real_place.mounted or command.poll() is not None, "mount")
        (real_place.mount / "t-0").mkdir()
        targets = [os.readlink(f"/proc/{command.pid}/fd/{number}") for number in range(3)]
        assert targets[1:] == ["/dev/null", "/dev/null"]
        assert not targets[0].startswith(str(real_place.backing))
    finally:
        command.terminate()
        command.wait()
    assert not real_place.mounted
    assert real_place.stopped_clean


CATCHING = """
import logging, sys
from topicfs.fs.fuse.libfuse_stderr import LibfuseStderr
from topicfs.mountd import logs

logs.set_up(None, True)
caught = LibfuseStderr.begin()
logging.info("a line of another thread")
print("libfuse's words", file=sys.stderr, flush=True)
sys.stdout.write(caught.end())
"""


def test_a_line_of_the_log_is_not_taken_for_words_of_libfuse_while_it_mounts() -> None:
    """regression: it was gone from standard error, and came as a warning of libfuse"""
    done = subprocess.run([sys.executable, "-c", CATCHING], capture_output=True, text=True, check=True)
    assert done.stdout == "libfuse's words"
    assert done.stderr.endswith("a line of another thread\n")
