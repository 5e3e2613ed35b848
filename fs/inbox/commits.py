"""The commits of inboxes in progress. They are tracked so that their callers get an answer while the mount goes away.

A commit is part of one call, and a command such as touch(1) then makes more calls on the file that it has made. If the
mount were gone before these are answered, the command would fail for a batch that is committed. So a daemon that stops
begins no more commits, finishes those that have begun, and answers calls for a moment longer. Only then it unmounts.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Final

from topicfs.fs.errors import GoingAwayError

CLOSING_S: Final = 2.0
"""Seconds after the last commit in which the files that caused a commit may be closed, at most."""

QUIET_S: Final = 0.1
"""Seconds after the last commit in which calls are still answered: the other calls of its command."""


class Commits:
    """The commits of all topics.

    _active   how many commits are in progress
    _open     the open files that have caused a commit
    _last     when the last commit ended, or such a file was closed; None before the first
    _ending   whether no more commits may begin
    """

    def __init__(self) -> None:
        self._active = 0
        self._open: set[object] = set()
        self._last: float | None = None
        self._ending = False
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Count a commit while it runs. Raise GoingAwayError, before anything is begun, if the mount is going away."""
        with self._changed:
            if self._ending:
                raise GoingAwayError("the mount is going away: nothing is appended, and the files stay")
            self._active += 1
        try:
            yield
        finally:
            with self._changed:
                self._active -= 1
                self._note()

    def opened(self, file: object) -> None:
        """Note that a file which has caused a commit is open."""
        with self._changed:
            self._open.add(file)

    def closed(self, file: object) -> None:
        """Note that a file is closed. It may be called for any file."""
        with self._changed:
            if file in self._open:
                self._open.remove(file)
                self._note()

    def _note(self) -> None:
        self._last = time.monotonic()
        self._changed.notify_all()

    def end(self) -> None:
        """Begin no more commits; return when those that have begun are done, and their callers were answered."""
        with self._changed:
            self._ending = True
            self._changed.wait_for(lambda: not self._active)
            if self._last is None:
                return
            self._changed.wait_for(
                lambda: not self._open, max(0.0, self._last + CLOSING_S - time.monotonic())
            )
            left = self._last + QUIET_S - time.monotonic()
        if left > 0:
            time.sleep(left)
