"""Where the daemon's log goes: a file under the backing directory, and stderr in the foreground.

A line: 2026-03-01 12:00:00,123 WARNING [scheduler] engine.store.slot: orders-0: offline, …
"""

from __future__ import annotations

import faulthandler
import logging
import threading
from collections import Counter
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

LOG_FILE: Final = "topicfs.log"

# With the older ones at most 40 MiB.
_BYTES: Final = 10 * 1024 * 1024
_OLDER: Final = 3
_LINE: Final = "{asctime} {levelname} [{threadName}] {name}: {message}"


class LevelCounter(logging.Handler):
    """Counts what is logged, by level, for the metrics.

    counts  messages of each level's name
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
        """The counts so far."""
        with self._guard:
            return dict(self.counts)


def set_up(backing: Path, foreground: bool) -> LevelCounter:
    """Begin to log for the daemon of a backing directory, which exists. Called once in a process."""
    # A file name may hold bytes that are not UTF-8; the line about it is still to be written.
    file = RotatingFileHandler(
        backing / LOG_FILE, maxBytes=_BYTES, backupCount=_OLDER, encoding="utf-8", errors="backslashreplace"
    )
    counter = LevelCounter()
    handlers: list[logging.Handler] = [file, counter]
    if foreground:
        handlers.append(logging.StreamHandler())
    formatter = logging.Formatter(_LINE, style="{")
    for handler in handlers:
        handler.setFormatter(formatter)
    logging.basicConfig(level=logging.INFO, handlers=handlers)
    # fusepy tells of every errno that a caller gets, and numba of every step of a compilation.
    for noisy in ("fuse", "numba"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.captureWarnings(True)
    # The stack of a crash in native code goes where someone will look for it.
    faulthandler.enable(open(backing / LOG_FILE, "a"))  # noqa: SIM115 - open as long as the process lives
    return counter
