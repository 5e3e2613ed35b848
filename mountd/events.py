"""What the main thread waits for: signals, and what other threads tell it.

A queue alone will not do: a signal that comes between the interpreter's last look for signals and the wait would
be handled when the wait is over, so never; and the kernel may give it to another thread, whose call is then the one
that is interrupted. So the wait is for bytes in a pipe, where the signal itself writes its number, in any thread.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections import deque
from collections.abc import Iterable
from typing import Final

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_TOLD: Final = b"\0"


class Events:
    """Events in the order in which they came.

    _signals  numbers that are events; other signals only pass through the pipe
    _reading  the pipe's end where the main thread waits
    _writing  the other one, which never blocks: a full pipe wakes the main thread as well
    _told     events that are not taken yet
    """

    def __init__(self, signals: Iterable[signal.Signals], reading: int, writing: int) -> None:
        self._signals = frozenset(signals)
        self._reading = reading
        self._writing = writing
        self._told: deque[object] = deque()

    @classmethod
    def open(cls, signals: Iterable[signal.Signals]) -> Events:
        """From now on these signals are events. In the main thread, once in a process."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        events = cls(signals, reading, writing)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in events._signals:
            # Only a signal that has a handler is written into the pipe.
            signal.signal(number, lambda *_: None)
        return events

    def tell(self, event: object) -> None:
        """Something happened; from any thread."""
        self._told.append(event)
        with contextlib.suppress(BlockingIOError):
            os.write(self._writing, _TOLD)

    def came(self) -> bool:
        """Whether `wait` would return at once. In the main thread."""
        while select.select([self._reading], [], [], 0)[0]:
            self._take()
        return bool(self._told)

    def wait(self) -> object:
        """The next event. In the main thread."""
        while not self._told:
            self._take()
        return self._told.popleft()

    def _take(self) -> None:
        """Look what came through the pipe; waits for it. Only signals are events of their own there."""
        for number in os.read(self._reading, 64):
            if number in self._signals:
                self._told.append(signal.Signals(number))
