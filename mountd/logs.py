"""The daemon's log: a file under the backing directory, and also stderr in the foreground.

The log of a read-only mount is outside of the backing directory: see `file_of`.

A line: 2026-03-01 12:00:00,123 WARNING [scheduler] topicfs.engine.partition.slot: orders-0: offline, …
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import logging
import os
import threading
from collections import Counter
from logging.handlers import RotatingFileHandler, SysLogHandler
from pathlib import Path
from typing import Final, TextIO
from urllib.parse import quote

from topicfs.engine.format.paths import DAEMON_LOG
from topicfs.mountd.tables import escape_control

# With the older files, the log takes at most 40 MiB.
_BYTES: Final = 10 * 1024 * 1024
_OLDER: Final = 3
_LONGEST_NAME: Final = 200
_SYSTEM_LOG: Final = "/dev/log"
_LINE: Final = "{asctime} {levelname} [{threadName}] {name}: {message}"


class OneLine(logging.Formatter):
    """A formatter that writes a message as one line, so that no name in it, of a group or a file, looks like another
    message or moves a terminal's cursor. What an exception tells follows on lines of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the line."""
        return escape_control(super().formatMessage(record))


class LogFile(RotatingFileHandler):
    """The daemon's log file. It is rotated here when it grows large, and when another program, such as logrotate, has
    moved or removed it, the next message begins a new one under its name.

    _native   the same file again: the stack of a crash in native code goes where people will look for it
    """

    def __init__(self, path: Path) -> None:
        # A file name may contain bytes that are not UTF-8. A line about it must still be written.
        super().__init__(
            path, maxBytes=_BYTES, backupCount=_OLDER, encoding="utf-8", errors="backslashreplace"
        )
        self._native: TextIO | None = None
        self._follow()

    def emit(self, record: logging.LogRecord) -> None:
        """Write one message."""
        try:
            if not self._is_named(self.stream):
                before, self.stream = self.stream, self._open()
                if before is not None:
                    before.close()
        except OSError:
            # There is no file to write this to: the base class tells of that on stderr.
            self.handleError(record)
            return
        super().emit(record)
        if not self._is_named(self._native):
            self._follow()

    def _is_named(self, file: TextIO | None) -> bool:
        """Return whether an open file is the one that has the log's name."""
        if file is None:
            return False
        try:
            named, written = os.stat(self.baseFilename), os.fstat(file.fileno())
        except FileNotFoundError:
            return False
        return (named.st_dev, named.st_ino) == (written.st_dev, written.st_ino)

    def _follow(self) -> None:
        before = self._native
        with contextlib.suppress(OSError):
            self._native = open(self.baseFilename, "a")  # noqa: SIM115 - open until the next one is
            faulthandler.enable(self._native)
            if before is not None:
                before.close()


class LevelCounter(logging.Handler):
    """A log handler that counts warnings and errors by level, for the metrics.

    counts  the number of messages by the name of their level
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.counts: Counter[str] = Counter()
        self._guard = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        """Count one message."""
        with self._guard:
            self.counts[record.levelname] += 1

    def taken(self) -> dict[str, int]:
        """Return the counts so far."""
        with self._guard:
            return dict(self.counts)


def file_of(backing: Path, mount: Path, read_only: bool) -> Path | None:
    """Return the daemon's log file. A read-only mount does not change the backing directory: its log is in the user's
    state directory, by XDG's rules. None if there is no such directory, or it lies in the backing directory."""
    if not read_only:
        return backing / DAEMON_LOG
    try:
        base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        directory = Path(os.path.realpath(base)) / "topicfs"
        if not base.is_absolute() or directory.is_relative_to(backing):
            return None
        directory.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    name = quote(os.fsencode(mount), safe="")
    if len(name) > _LONGEST_NAME:
        name = hashlib.sha256(name.encode()).hexdigest()
    return directory / f"{name}.log"


def set_up(path: Path | None, foreground: bool) -> LevelCounter:
    """Begin to log to a file in an existing directory; without a path to the system's log, or else to stderr. It is
    called once in a process."""
    counter = LevelCounter()
    handlers: list[logging.Handler] = [_handler(path, foreground), counter]
    if foreground and path is not None:
        handlers.append(_on_stderr())
    formatter = OneLine(_LINE, style="{")
    for handler in handlers:
        handler.setFormatter(formatter)
    logging.basicConfig(level=logging.INFO, handlers=handlers)
    # fusepy logs every errno that a caller gets, and numba logs every step of a compilation.
    for noisy in ("fuse", "numba"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.captureWarnings(True)
    if path is None:
        faulthandler.enable()
    return counter


def _handler(path: Path | None, foreground: bool) -> logging.Handler:
    if path is not None:
        return LogFile(path)
    if foreground:
        return _on_stderr()
    if not os.path.exists(_SYSTEM_LOG):
        return logging.StreamHandler()
    return SysLogHandler(_SYSTEM_LOG)


def _on_stderr() -> logging.StreamHandler[TextIO]:
    """Log to standard error through a descriptor of its own: while it mounts, what is written to the usual one is taken
    for words of libfuse."""
    return logging.StreamHandler(os.fdopen(os.dup(2), "w", errors="backslashreplace"))
