"""Commits of inboxes that are under way, so that who asked for one hears what became of it though the mount goes away.

A commit is a part of one call, and a command such as touch(1) makes more calls on the file that it has made by then.
Were the mount gone before they are answered, the command would fail for a batch that is committed. So before a daemon
that stops takes its mount away, it begins no more commits, ends those that have begun, and answers on for a moment.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Final

from topicfs.fs.errors import GoingAwayError

CLOSING_S: Final = 2.0
"""So long after the last commit, at most, the files by which something was committed may take to be closed."""

QUIET_S: Final = 0.1
"""So long after the last commit calls are still answered: those that its command makes beside that file."""


class Commits:
    """Of all topics.

    _active   how many are under way
    _open     files that are open by which something was committed
    _last     when the last one ended, or such a file was closed; None before the first
    _ending   no more begin
    """

    def __init__(self) -> None:
        self._active = 0
        self._open: set[object] = set()
        self._last: float | None = None
        self._ending = False
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Around a commit; GoingAwayError, and nothing is begun, when the mount is going away."""
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
        """A file is open by which something was committed."""
        with self._changed:
            self._open.add(file)

    def closed(self, file: object) -> None:
        """It is open no more; any other file may be told of too."""
        with self._changed:
            if file in self._open:
                self._open.remove(file)
                self._note()

    def _note(self) -> None:
        self._last = time.monotonic()
        self._changed.notify_all()

    def end(self) -> None:
        """Begin no more, and return when those that have begun are done, and whoever asked for them knows it."""
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
