"""The command `topicfs` with a stand-in for the file system, run as a user would, and cleared away afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from patience import PATIENCE_S, eventually

from topicfs.engine.store.store import Store
from topicfs.mountd import mounts

ROOT = Path(__file__).parents[2]


class Place:
    """A backing directory and a mount point, neither of which exists yet.

    real      whether the real file system is mounted, in the place of the stand-in
    commands  started and maybe still running
    """

    def __init__(self, directory: Path, real: bool = False) -> None:
        self.real = real
        self.backing = directory / "backing"
        self.mount = directory / "mount"
        self.commands: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str | Path, **environment: str) -> subprocess.Popen[str]:
        """Begin a command."""
        # Only mounting needs the stand-in, which loads the engine: that takes long.
        stand_in = arguments[0] == "mount" and not self.real
        program = (
            [str(ROOT / "tests" / "mountd" / "stand_in.py")] if stand_in else ["-m", "topicfs.mountd.cli"]
        )
        command = subprocess.Popen(
            [sys.executable, *program, *map(str, arguments)],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "XDG_STATE_HOME": str(self.backing.with_name("state")),
                **environment,
            },
            stdin=subprocess.DEVNULL,
            close_fds=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.commands.append(command)
        return command

    def run(self, *arguments: str | Path, **environment: str) -> tuple[int, str]:
        """Run a command to its end: its exit code, and what it said."""
        command = self.start(*arguments, **environment)
        said, complained = command.communicate(timeout=PATIENCE_S)
        return command.returncode, said + complained

    def up(self, *options: str, **environment: str) -> int:
        """Mount. Gives the daemon's process."""
        # On a busy machine it says what it waits for.
        code, said = self.run("mount", "--create", *options, self.backing, self.mount, **environment)
        assert code == 0, said
        process = mounts.lock_owner(self.backing)
        assert process is not None
        return process

    def down(self, *options: str) -> None:
        """Unmount."""
        code, said = self.run("umount", *options, self.mount)
        assert code == 0, said

    @property
    def mounted(self) -> bool:
        return mounts.find(self.mount) is not None

    @property
    def stopped_clean(self) -> bool:
        return (self.backing / "logs" / ".kafka_cleanshutdown").exists()

    @property
    def log(self) -> str:
        return (self.backing / "topicfs.log").read_text()

    def values(self) -> list[bytes | None]:
        """The records' values, read by the engine when nobody else has the store open."""
        with Store.open(self.backing, create=True) as store:
            return [record.value for record in store.partition("t-0").records()]

    def wait_until_gone(self, process: int) -> None:
        """Until the daemon has ended, and nothing is mounted."""
        eventually(lambda: not alive(process), f"end of process {process}")
        assert not self.mounted

    def clear(self) -> None:
        """Leave nothing running and nothing mounted."""
        for command in self.commands:
            if command.poll() is None:
                # A daemon that is still starting has no lock yet, and would mount after the test.
                for child in children(command.pid):
                    os.kill(child, signal.SIGKILL)
        if (process := mounts.lock_owner(self.backing)) is not None and process != os.getpid():
            os.kill(process, signal.SIGKILL)
        for command in self.commands:
            command.kill()
            command.communicate()
        while self.mounted:
            mounts.detach(self.mount)


def children(process: int) -> list[int]:
    """Processes that it started."""
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def alive(process: int) -> bool:
    """Whether it runs; one that ended and is not yet collected does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def cleared(made: Place) -> Iterator[Place]:
    """A place for a test, which leaves nothing mounted."""
    yield made
    left = made.mounted
    made.clear()
    assert not left, "a test left its mount behind"
