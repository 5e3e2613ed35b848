"""Threads that wait for a log to change."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Waiters:
    """The threads that wait until something of a log has become true.

    _changed  wakes them
    _waiting  their number: a change that nobody waits for takes no lock
    listeners  functions that are called at each change, by those who wait for several logs
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting = 0
        self.listeners: tuple[Callable[[], object], ...] = ()

    def wake(self) -> None:
        """Have the waiting threads look again, after a change that they can see already."""
        for call in self.listeners:
            call()
        if self._waiting:
            with self._changed:
                self._changed.notify_all()

    def wait_until(self, is_true: Callable[[], bool], timeout: float) -> None:
        """Wait until `is_true`, for at most `timeout` seconds."""
        with self._changed:
            self._waiting += 1
            try:
                # A change that came before `_waiting` was raised is seen here.
                self._changed.wait_for(is_true, timeout)
            finally:
                self._waiting -= 1
