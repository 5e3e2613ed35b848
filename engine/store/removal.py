"""Directories that are to be removed: those of deleted partitions, after a delay, and unfinished ones."""

from __future__ import annotations

import logging
import shutil
import threading
from pathlib import Path

log = logging.getLogger(__name__)


class Removals:
    """The `-delete` directories that wait for their removal.

    _waiting  the directories, each with the time when it is due, by the store's steady clock
    _lock     guards the list; not held while a directory is removed
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Path]] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, directory: Path, due: int) -> None:
        """Have the directory removed at the time `due`."""
        with self._lock:
            self._waiting.append((due, directory))

    def remove_due(self, now: int) -> int:
        """Remove the due directories, and return how many there were. A failed one is tried again next time."""
        with self._lock:
            due = [entry for entry in self._waiting if entry[0] <= now]
            self._waiting = [entry for entry in self._waiting if entry[0] > now]
        removed = 0
        for entry in due:
            try:
                if entry[1].exists():
                    shutil.rmtree(entry[1])
            except OSError as error:
                log.error(f"{entry[1]}: cannot be removed, stays until the next try: {error}")
                with self._lock:
                    self._waiting.append(entry)
                continue
            removed += 1
        return removed
