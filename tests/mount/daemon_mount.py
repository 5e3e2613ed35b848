"""The real daemon over a backing directory, for tests that look at it from outside only.

A warning or an error in its log that no test expected fails the run, and so does a daemon that does not stop
cleanly. What hangs is ended: the daemon then writes where each of its threads is into its log, and everybody who
waits is let go.
"""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import pytest
from forked_daemon import ROOT, STEERED, TESTED, ForkedDaemon, nursery
from patience import eventually

START_S = 120.0
STOP_S = 120.0
LIMIT_S = 120.0
"""Only what hangs takes that long, also on a machine that has much else to do."""
KEPT = ("-o", "log.retention.ms=-1")
UPKEEP = ("-o", "log.initial.task.delay.ms=100", "-o", "log.retention.check.interval.ms=500")
"""Retention comes all the time. By itself it comes 30 s after the start, and spoils a test on slow days only."""
_ANYWHERE = ("are older than retention.ms=",)
"""Words of warnings that any test may cause: records have whatever times make the test plain."""
_ALARM = re.compile(r" (WARNING|ERROR|CRITICAL) |^Traceback|^Fatal ")


class DaemonMount:
    """A backing directory and its mount.

    backing, path  the two directories
    state          where a read-only mount has its log
    process        the daemon, None while there is none
    hung           whether the watchdog had to end it
    environment    variables that it gets beside those of the tests
    keeps          whether records are kept for ever, but where settings say otherwise: many tests give them times of
                   years ago. Else there is the setting that users have
    prefix         a command that the daemon is started by, such as `prlimit`; then it is not forked
    """

    def __init__(self, place: Path) -> None:
        self.backing = place / "backing"
        self.path = place / "mnt"
        self.state = place / "state"
        self.process: subprocess.Popen[bytes] | ForkedDaemon | None = None
        self.hung = False
        self.keeps = True
        self.environment: dict[str, str] = {}
        self.prefix: tuple[str, ...] = ()
        self._socket = place / "steer"
        self._expected = [*_ANYWHERE]
        self._counts: dict[str, int] = {}
        self.backing.mkdir(parents=True, exist_ok=True)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    # -- life -----------------------------------------------------------------------------------------

    def configure(self, topic: str, **settings: object) -> None:
        """Settings of a topic, by Kafka's names with underscores, before the start."""
        directory = self.backing / "topics"
        directory.mkdir(exist_ok=True)
        lines = [f"{name.replace('_', '.')}={value}\n" for name, value in settings.items()]
        (directory / f"{topic}.properties").write_text("".join(lines))

    def start(self, *options: str) -> None:
        """Mount, and wait until it answers. A store is made where there is none."""
        making = (
            options
            if "--read-only" in options
            else ("--create", *UPKEEP, *(KEPT if self.keeps else ()), *options)
        )
        self._socket.unlink(missing_ok=True)
        arguments = ["mount", "--foreground", *making, str(self.backing), str(self.path)]
        environment = {
            **os.environ,
            "PYTHONPATH": TESTED,
            "STEER": str(self._socket),
            "XDG_STATE_HOME": str(self.state),
            "XDG_CACHE_HOME": str(self.state.with_name("cache")),
            **self.environment,
        }
        if self.prefix:
            self.process = subprocess.Popen(
                [*self.prefix, sys.executable, STEERED, *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        else:
            self.process = nursery().start(arguments, environment)
        words = f"is mounted at {self.path}, by process {self.process.pid}"
        eventually(lambda: words in self.said() or self.process.poll() is not None, words, START_S)
        assert self.process.poll() is None, f"the daemon ended at once:\n{self.said()}"

    def stop(self) -> int:
        """Unmount as SIGTERM does it. Gives the exit code."""
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait(STOP_S)
        self.process = None
        return code

    def umount(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Unmount by the command; the daemon has ended where that did well."""
        done = subprocess.run(
            [sys.executable, "-m", "topicfs.mountd.cli", "umount", *options, str(self.path)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            assert self.process is not None
            assert self.process.wait(STOP_S) == 0
            self.process = None
        return done

    def kill(self) -> None:
        """As a crash would end it. The dead mount stays."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(STOP_S)
        self.process = None

    def clear(self) -> None:
        """Leave nothing running and nothing mounted."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(STOP_S)
        while self.is_mounted:
            subprocess.run(["fusermount", "-uz", self.path], check=True)

    @property
    def is_mounted(self) -> bool:
        """Whether the kernel has a mount there, served or dead."""
        return f" {self.path} " in Path("/proc/mounts").read_text()

    def await_releases(self) -> None:
        """Wait until the daemon knows of all files that programs have closed: no close(2) waits for that."""

        def are_released() -> bool:
            try:
                told = (self / "metrics").read_text()
            except OSError as error:
                assert error.errno in (errno.ENFILE, errno.EMFILE)  # noqa: PT017
                return False
            found = re.search(r"^topicfs_open_files (\d+)", told, re.MULTILINE)
            assert found is not None
            # The last look at the metrics may be one of them still.
            return int(found[1]) <= 1

        eventually(are_released, "what was closed is released")

    # -- what it says ---------------------------------------------------------------------------------

    def said(self) -> str:
        """Its log so far, that of read-only mounts behind that of others."""
        logs = (self.backing / "topicfs.log", *self.state.glob("topicfs/*.log"))
        return "".join(log.read_text(errors="replace") for log in logs if log.exists())

    def expect(self, words: str) -> None:
        """A line with these words may be a warning or an error."""
        self._expected.append(words)

    def alarms(self) -> list[str]:
        """Warnings and errors that nobody expected."""
        return [
            line
            for line in self.said().splitlines()
            if _ALARM.search(line) and not any(words in line for words in self._expected)
        ]

    @contextmanager
    def watched(self, limit_s: float = LIMIT_S) -> Iterator[None]:
        """End the daemon if this takes longer, and fail."""
        timer = threading.Timer(limit_s, self._end_what_hangs)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            assert not self.hung, f"it hung; this is what it was doing:\n{self.said()[-8000:]}"

    @contextmanager
    def to_its_end(self, limit_s: float = LIMIT_S) -> Iterator[None]:
        """Have it stop well behind the block, with no alarm in its log, and leave nothing of it in any case."""
        try:
            with self.watched(limit_s):
                yield
            assert self.stop() == 0
            assert self.alarms() == []
        finally:
            self.clear()

    def _end_what_hangs(self) -> None:
        self.hung = True
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGABRT)

    # -- partitions -----------------------------------------------------------------------------------

    def new(self, topic: str = "plain") -> Path:
        """A new, empty partition of a topic."""
        number = self._counts[topic] = self._counts.get(topic, -1) + 1
        (self.path / f"{topic}-{number}").mkdir()
        return self.path / f"{topic}-{number}"

    def steer(self, call: str, partition: Path, *arguments: object) -> Any:
        """Have something done inside the daemon: `steered_daemon.py` says what there is."""
        with Client(str(self._socket)) as connection:
            connection.send((call, partition.name, arguments))
            answer, error = connection.recv()
        if error is not None:
            raise error
        return answer

    def status(self, partition: Path) -> dict[str, Any]:
        """What `status.json` says."""
        found = json.loads((partition / "status.json").read_bytes())
        assert isinstance(found, dict)
        return found


def append(file: Path, data: bytes) -> None:
    """Open, write, close, as `>>` does it."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND)
    try:
        write_all(descriptor, data)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """All of it, in as many writes as it takes."""
    while data:
        data = data[os.write(descriptor, data) :]


def delete(path: Path) -> None:
    """A partition or a topic with its records, as `topicfs delete` does it."""
    os.setxattr(path.parent, "user.topicfs.delete", path.name.encode())


def undelete(path: Path) -> None:
    """Take back the newest deletion of what was there."""
    os.setxattr(path.parent, "user.topicfs.undelete", path.name.encode())


@contextmanager
def opened(file: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    """A descriptor, closed at the end."""
    descriptor = os.open(file, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def full_disk(place: Path, size: str = "24m", *options: str) -> Iterator[tuple[DaemonMount, Path]]:
    """A mount whose backing directory is a small file system, and a file on it that can take up all room."""
    served = DaemonMount(place)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "topicfs-test", served.backing],
        check=False,
        capture_output=True,
    )
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.decode().strip()}")
    try:
        served.start(*options)
        with served.watched():
            yield served, served.backing / "filler"
        assert served.stop() == 0
        assert served.alarms() == []
    finally:
        served.clear()
        subprocess.run(["umount", "-l", served.backing], check=True)


def fill(file: Path) -> None:
    """Take up all room that is left."""
    with file.open("wb", buffering=0) as filler, suppress(OSError):
        while filler.write(bytes(1 << 20)):
            pass
        while filler.write(bytes(512)):
            pass
    with file.open("ab", buffering=0) as filler, suppress(OSError):
        while filler.write(bytes(512)):
            pass


@contextmanager
def refused(*numbers: int) -> Iterator[None]:
    """What is done inside fails with this errno."""
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the errno is looked at
        yield
    assert caught.value.errno in numbers, os.strerror(caught.value.errno or 0)


@contextmanager
def own_mount(place: Path, *options: str, keeps: bool = True) -> Iterator[DaemonMount]:
    """A mount of the test's own."""
    mount = DaemonMount(place)
    mount.keeps = keeps
    with mount.to_its_end():
        mount.start(*options)
        yield mount
