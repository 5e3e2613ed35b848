"""Going into the background: the command stays until the daemon says that it serves, or why it does not.

The daemon tells its parent through a pipe, one line of JSON each:

    ["waits", "<for what>"] or ["goes on", "<how far>"] …   then   ["ready", ""]   or   ["failed", "<why>"]
    or   ["crashed", "<how>"]

An end without any of the last three is a crash. Nothing heavier than this module is imported before the fork: no
thread, and no lock of another module, can be copied half way.
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

# libfuse's own words about why it cannot mount are short; what else comes is cut.
_MOST_WORDS: Final = 4096


@dataclass(frozen=True, slots=True)
class Message:
    """One line from the daemon.

    kind  WAITS, GOES_ON, READY, FAILED or CRASHED
    text  for what, how far, or why
    """

    kind: str
    text: str


class Teller(Protocol):
    """How the daemon talks to whoever started it."""

    def waits(self, text: str) -> None:
        """Start-up waits for this."""

    def progress(self, text: str) -> None:
        """What it waits for takes long, and is so far."""

    def ready(self) -> None:
        """The mount answers."""

    def failed(self, text: str) -> None:
        """There will be no mount."""

    def crashed(self, text: str) -> None:
        """The same, by a mistake in the program: the log has more."""


class PipeTeller:
    """Through the pipe, with the daemon's stderr added to why it failed.

    _pipe    its writing end
    _words   an unnamed file that is the daemon's stderr until it is ready
    """

    def __init__(self, pipe: TextIOWrapper, words: int) -> None:
        self._pipe: TextIOWrapper | None = pipe
        self._words = words

    def waits(self, text: str) -> None:
        """Start-up waits for this."""
        self._tell(WAITS, text)

    def progress(self, text: str) -> None:
        """What it waits for takes long, and is so far."""
        self._tell(GOES_ON, text)

    def ready(self) -> None:
        """The mount answers. From now on nobody reads stderr."""
        self._tell(READY, "")
        self._pipe = None
        _redirect(os.open(os.devnull, os.O_RDWR), 2)
        os.close(self._words)

    def failed(self, text: str) -> None:
        """There will be no mount. After it was ready nobody listens: then only the log tells."""
        self._tell_end(FAILED, text)

    def crashed(self, text: str) -> None:
        """The same, by a mistake in the program."""
        self._tell_end(CRASHED, text)

    def _tell_end(self, kind: str, text: str) -> None:
        if self._pipe is not None:
            words = os.pread(self._words, _MOST_WORDS, 0).decode("utf-8", "replace").strip()
            with contextlib.suppress(BrokenPipeError):
                self._tell(kind, f"{text}\n{words}" if words else text)

    def _tell(self, kind: str, text: str) -> None:
        """BrokenPipeError where the command is gone. That ends the start: a mount that appears minutes after its
        command was killed would surprise whoever killed it."""
        print(json.dumps([kind, text]), file=self._pipe, flush=True)


class Child:
    """The daemon, as its parent sees it while it starts.

    process   its number
    _pipe     the reading end
    _unread   bytes that came after the last whole line
    """

    def __init__(self, process: int, pipe: int) -> None:
        self.process = process
        self._pipe = pipe
        self._unread = b""

    def next(self, timeout_s: float | None) -> Message | None:
        """What it says next, None when it said nothing in that time. A death before READY comes as CRASHED."""
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
        """End it, and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process, signal.SIGTERM)
        self.join()

    def join(self) -> None:
        """Wait until it is gone."""
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.process, 0)


def hold_standard_descriptors() -> None:
    """Open what is closed of stdin, stdout and stderr, on nothing. Otherwise a file of the store could get such a
    number, and what a library prints would be written into it."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)


def end_with_parent() -> None:
    """Have this process get SIGHUP when the one that started it ends, unless it is deaf to that, as under nohup."""
    parent = os.getppid()
    # 0 is in another namespace; 1 ends last.
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

    # prctl's signal on the parent's death would also come at the end of the one thread of it that started us.
    threading.Thread(target=wait, name="parent", daemon=True).start()


def start(run: Callable[[Teller], int]) -> Child:
    """Run the daemon in a child that outlives this process. `run` gives its exit code, and raises nothing."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        _become_daemon(run, writing)
    os.close(writing)
    return Child(process, reading)


def _become_daemon(run: Callable[[Teller], int], writing: int) -> None:
    """In the child; does not return."""
    code = 1
    try:
        # No terminal's signals, no working directory that keeps a file system busy, no descriptor of whoever called.
        os.setsid()
        os.chdir("/")
        _close_others(writing)
        words = os.memfd_create("topicfs-stderr")
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        _redirect(null, 1)
        os.dup2(words, 2)
        # Python makes fork's child deaf to nothing, but a shell may have started the command so.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        code = run(PipeTeller(os.fdopen(writing, "w", encoding="utf-8"), words))
    finally:
        # Nothing of the command's own end is to run a second time, here.
        os._exit(code)


def _close_others(kept: int) -> None:
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))


def _redirect(source: int, target: int) -> None:
    os.dup2(source, target)
    os.close(source)
