"""Starting a daemon in the background: the command waits until the daemon says that it serves, or why it does not.

The daemon tells its parent through a pipe, in one line of JSON for each message:

    ["waits", "<for what>"] or ["goes on", "<how far>"] …   then   ["ready", ""]   or   ["failed", "<why>"]
    or   ["crashed", "<how>"]

If it ends without any of the last three, it has crashed. Only this light module is imported before the fork: the child
must not get a copy of a thread or of another module's lock in the middle of its work.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from io import TextIOWrapper
from typing import Final, Protocol

READY: Final = "ready"
FAILED: Final = "failed"
CRASHED: Final = "crashed"
WAITS: Final = "waits"
GOES_ON: Final = "goes on"

# libfuse's messages about why it cannot mount are short. Anything longer is cut.
_MOST_WORDS: Final = 4096


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the daemon.

    kind  WAITS, GOES_ON, READY, FAILED or CRASHED
    text  what it waits for, how far it is, or why it failed
    """

    kind: str
    text: str


class Teller(Protocol):
    """The way in which the daemon reports to the process that started it."""

    def waits(self, text: str) -> None:
        """Report what the start waits for."""

    def progress(self, text: str) -> None:
        """Report how far it is, if what it waits for takes long."""

    def ready(self) -> None:
        """Report that the mount answers."""

    def failed(self, text: str) -> None:
        """Report that there will be no mount."""

    def crashed(self, text: str) -> None:
        """Report that there will be no mount because of a bug. The log has more."""


class PipeTeller:
    """Reports go through the pipe. A failure includes what the daemon has written to stderr.

    _pipe    the writing end of the pipe; None after READY
    _words   an unnamed file that is the daemon's stderr until it is ready
    """

    def __init__(self, pipe: TextIOWrapper, words: int) -> None:
        self._pipe: TextIOWrapper | None = pipe
        self._words = words

    def waits(self, text: str) -> None:
        """Report what the start waits for."""
        self._tell(WAITS, text)

    def progress(self, text: str) -> None:
        """Report how far it is, if what it waits for takes long."""
        self._tell(GOES_ON, text)

    def ready(self) -> None:
        """Report that the mount answers. From now on nothing reads stderr."""
        self._tell(READY, "")
        self._pipe = None
        _redirect(os.open(os.devnull, os.O_RDWR), 2)
        os.close(self._words)

    def failed(self, text: str) -> None:
        """Report that there will be no mount. After READY nothing listens any more, so then only the log shows it."""
        self._tell_end(FAILED, text)

    def crashed(self, text: str) -> None:
        """Report that there will be no mount because of a bug."""
        self._tell_end(CRASHED, text)

    def _tell_end(self, kind: str, text: str) -> None:
        if self._pipe is not None:
            words = os.pread(self._words, _MOST_WORDS, 0).decode("utf-8", "replace").strip()
            with contextlib.suppress(BrokenPipeError):
                self._tell(kind, f"{text}\n{words}" if words else text)

    def _tell(self, kind: str, text: str) -> None:
        """Send a message. BrokenPipeError if the command is gone, which ends the start: a user who has killed the
        command does not expect a mount minutes later."""
        print(json.dumps([kind, text]), file=self._pipe, flush=True)


class Child:
    """The daemon while it starts, as its parent sees it.

    process   the process id
    _pipe     the reading end of the pipe
    _unread   bytes that came after the last complete line
    """

    def __init__(self, process: int, pipe: int) -> None:
        self.process = process
        self._pipe = pipe
        self._unread = b""

    def next(self, timeout_s: float | None) -> Message | None:
        """Return the next message, or None if none came in that time. A death before READY gives CRASHED."""
        ready = select.poll()
        ready.register(self._pipe, select.POLLIN)
        while b"\n" not in self._unread:
            if not ready.poll(None if timeout_s is None else timeout_s * 1000):
                return None
            data = os.read(self._pipe, _MOST_WORDS)
            if not data:
                return self._death()
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        kind, text = json.loads(line)
        return Message(kind, text)

    def _death(self) -> Message:
        _, status = os.waitpid(self.process, 0)
        code = os.waitstatus_to_exitcode(status)
        how = f"ended with exit code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
        return Message(CRASHED, f"the daemon {how} before it was ready")

    def stop(self) -> None:
        """End the daemon, and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process, signal.SIGTERM)
        self.join()

    def join(self) -> None:
        """Wait until the daemon is gone."""
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.process, 0)


def hold_standard_descriptors() -> None:
    """Open stdin, stdout and stderr on /dev/null if they are closed. Otherwise a file of the store could get such a
    number, and what a library prints would be written into it."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)


def end_with_parent() -> None:
    """Have this process get SIGHUP when its parent ends, unless it ignores SIGHUP, as under nohup."""
    parent = os.getppid()
    # Parent 0 is in another namespace; parent 1 ends last.
    if parent <= 1 or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return
    try:
        process = os.pidfd_open(parent)
    except ProcessLookupError:
        os.kill(os.getpid(), signal.SIGHUP)
        return

    def wait() -> None:
        ended = select.poll()
        ended.register(process, select.POLLIN)
        ended.poll()
        os.kill(os.getpid(), signal.SIGHUP)

    # prctl's signal on the parent's death would also come when only the thread of the parent that started us ends.
    threading.Thread(target=wait, name="parent", daemon=True).start()


def start(run: Callable[[Teller], int]) -> Child:
    """Run the daemon in a child that outlives this process. `run` returns its exit code, and raises nothing."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        _become_daemon(run, writing)
    os.close(writing)
    return Child(process, reading)


def _become_daemon(run: Callable[[Teller], int], writing: int) -> None:
    """Become the daemon, in the child. This does not return."""
    code = 1
    try:
        # The daemon keeps no terminal's signals, no working directory that keeps a file system busy, no inherited
        # descriptor.
        os.setsid()
        os.chdir("/")
        _close_others(writing)
        words = os.memfd_create("topicfs-stderr")
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        _redirect(null, 1)
        os.dup2(words, 2)
        # Python blocks no signal in the child, but a shell may have started the command with blocked signals.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        code = run(PipeTeller(os.fdopen(writing, "w", encoding="utf-8"), words))
    finally:
        # Nothing that the command does at its end may run a second time here.
        os._exit(code)


def _close_others(kept: int) -> None:
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))


def _redirect(source: int, target: int) -> None:
    os.dup2(source, target)
    os.close(source)
