"""Events that the main thread waits for: signals, and what other threads tell it.

A queue alone does not work. A signal that comes between the interpreter's last check for signals and the wait would be
handled only after the wait, so never. And the kernel may give the signal to another thread, whose call is then
interrupted instead. So the main thread waits for bytes in a pipe: each signal writes its number there, in any thread.
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

    _signals  the signals that are events; other signals only pass through the pipe
    _reading  the end of the pipe where the main thread waits
    _writing  the other end, which never blocks: a full pipe wakes the main thread as well
    _told     the events that have not been taken yet
    """

    def __init__(self, signals: Iterable[signal.Signals], reading: int, writing: int) -> None:
        self._signals = frozenset(signals)
        self._reading = reading
        self._writing = writing
        self._told: deque[object] = deque()

    @classmethod
    def open(cls, signals: Iterable[signal.Signals]) -> Events:
        """Make these signals events from now on. It is called in the main thread, once in a process."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        events = cls(signals, reading, writing)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in events._signals:
            # Only a signal that has a handler is written into the pipe.
            signal.signal(number, lambda *_: None)
        return events

    def tell(self, event: object) -> None:
        """Add an event. Any thread may call this."""
        self._told.append(event)
        with contextlib.suppress(BlockingIOError):
            os.write(self._writing, _TOLD)

    def came(self) -> bool:
        """Tell whether `wait` would return at once. Only the main thread may call this."""
        while select.select([self._reading], [], [], 0)[0]:
            self._take()
        return bool(self._told)

    def wait(self) -> object:
        """Wait for the next event, and return it. Only the main thread may call this."""
        while not self._told:
            self._take()
        return self._told.popleft()

    def _take(self) -> None:
        """Wait for bytes in the pipe. Those that are the number of a signal in `_signals` become events."""
        for number in os.read(self._reading, 64):
            if number in self._signals:
                self._told.append(signal.Signals(number))
