"""One helper that mounts, for all tests and benchmarks: `with mounted(make, place) as mount: …`

The operations are made and served in a process of their own, as a daemon does it: a test that shared a process with
the file system it calls would wait for itself. On the way out nothing stays mounted and no process stays behind, a
warning or error in the log that the test did not expect fails it, and so does a mount that hangs: then a watchdog
writes where each thread is and kills the process, which releases whoever waits for it.
"""

from __future__ import annotations

import faulthandler
import logging
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

LIMIT_S = 120.0
_BUSY_S = 2.0
_END_S = 60.0
_ALARMING = re.compile(r"^(WARNING|ERROR|CRITICAL) |^Traceback|^Fatal |^Exception ignored")


def missing() -> str | None:
    """What this machine lacks for mounting, in words; None if it lacks nothing."""
    if not Path("/dev/fuse").exists():
        return "there is no /dev/fuse"
    if shutil.which("fusermount") is None:
        return "fusermount is missing: apt-get install fuse"
    return None


class Mount:
    """A mount and the process that serves it.

    path      the mount point
    log       what the process logs and prints
    process   the one that serves
    timed_out whether the watchdog had to end it
    """

    def __init__(self, path: Path, log: Path, process: Any) -> None:
        self.path = path
        self.log = log
        self.process = process
        self.timed_out = False
        self._expected: list[str] = []

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    @property
    def pid(self) -> int:
        """Of the process that serves."""
        number = self.process.pid
        assert isinstance(number, int)
        return number

    @property
    def is_mounted(self) -> bool:
        """Whether the kernel has a mount there, served or dead."""
        return f" {self.path} " in Path("/proc/self/mountinfo").read_text()

    def said(self) -> str:
        """Everything in the log so far."""
        return self.log.read_text(errors="replace")

    def expect(self, words: str) -> None:
        """A line with these words must be in the log, and may be a warning or an error."""
        self._expected.append(words)

    def dump_stacks(self) -> None:
        """Where each thread is, into the log."""
        if self.process.is_alive():
            os.kill(self.pid, signal.SIGUSR1)
            time.sleep(0.2)

    def kill(self) -> None:
        """As a crash would."""
        self.process.kill()
        self.process.join(_END_S)
        assert not self.process.is_alive(), "the process of the mount does not end, though it was killed"

    def unmount(self) -> None:
        """Take the mount away, in use or not, and wait for the process to end by itself."""
        deadline = time.monotonic() + _BUSY_S
        while self.is_mounted and _fusermount("-u", self.path) != 0:
            if time.monotonic() > deadline:
                _fusermount("-uz", self.path)
                break
            time.sleep(0.05)
        self.process.join(_END_S)

    def check(self) -> None:
        """Fail for all that should not have happened."""
        said = self.said()
        assert not self.timed_out, f"the mount hung; this is what it was doing:\n{said}"
        lines = said.splitlines()
        for words in self._expected:
            assert any(words in line for line in lines), f"nothing was logged about {words!r}:\n{said}"
        alarming = [line for line in lines if _ALARMING.match(line)]
        unexpected = [line for line in alarming if not any(words in line for words in self._expected)]
        # A traceback belongs to the expected line above it.
        assert not [line for line in unexpected if not (self._expected and line.startswith("Traceback"))], (
            said
        )


def _fusermount(option: str, path: Path) -> int:
    command = ["fusermount", option, "-q", path]
    return subprocess.run(command, check=False, capture_output=True, timeout=_END_S).returncode


def _serve(make: Callable[[], Any], path: Path, log: Path, options: dict[str, str | bool]) -> None:
    """In the child: everything that is printed goes into the log, and signals do what they do to a C program."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.enable()
    # Standard error's own number is taken while libfuse mounts.
    faulthandler.register(signal.SIGUSR1, file=output)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with log.open("a") as stream:
        logging.basicConfig(stream=stream, level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
        from topicfs.fs.fuse.adapter import serve  # noqa: PLC0415 - the parent needs no libfuse

        made = make()
        serve(made, path, options, made if hasattr(made, "destroyed") else None)


@cache
def _servers() -> Any:
    """Processes that begin with the imports done, which take seconds, and with nothing else of this one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["topicfs.fs.fuse.adapter"])
    return context


@contextmanager
def mounted(
    make: Callable[[], Any], place: Path, limit_s: float = LIMIT_S, **options: str | bool
) -> Iterator[Mount]:
    """Mount what `make` makes below `place`, with libfuse's options. `make` is called in the child, so it must be
    something that pickle can name: a class, a function of a module, or a partial of one."""
    path, log = place / "mnt", place / "mount.log"
    path.mkdir(exist_ok=True)
    log.touch()
    process = _servers().Process(target=_serve, args=(make, path, log, options), name="mount")
    process.start()
    mount = Mount(path, log, process)
    watchdog = threading.Timer(limit_s, _end_what_hangs, (mount,))
    watchdog.daemon = True
    watchdog.start()
    try:
        _wait_until_it_answers(mount)
        yield mount
    finally:
        mount.unmount()
        watchdog.cancel()
        if process.is_alive():
            _end_what_hangs(mount)
        process.join(_END_S)
        assert not process.is_alive(), (
            f"the process of the mount does not end, though it was killed:\n{mount.said()}"
        )
        assert not mount.is_mounted
        # The body's own error says more than what its breaking off left in the log.
        if sys.exc_info()[0] is None or mount.timed_out:
            mount.check()


def _wait_until_it_answers(mount: Mount) -> None:
    before = mount.path.parent.stat().st_dev
    while mount.process.is_alive():
        # One that never answers is ended by the watchdog; one that ends at once gives an error here.
        with suppress(OSError):
            if mount.is_mounted and mount.path.stat().st_dev != before:
                return
        time.sleep(0.01)
    raise AssertionError(f"the mount ended before it answered:\n{mount.said()}")


def _end_what_hangs(mount: Mount) -> None:
    mount.timed_out = True
    mount.dump_stacks()
    mount.process.kill()
    _fusermount("-uz", mount.path)
