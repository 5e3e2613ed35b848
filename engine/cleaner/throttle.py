"""The limit on the speed at which all compactions together read and write."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

_LOOK_EVERY_S: Final = 0.3
_LONGEST_NAP_S: Final = 0.1
"""A long sleep is divided into short ones, so that a compaction that has to end does not sleep on."""


class Throttle:
    """One meter for all cleaner threads. A thread that reports too many bytes sleeps, and the others wait with it.

    rate        gives the limit in bytes a second, which may change at any time
    clock       gives seconds that never go back
    sleep       sleeps for a number of seconds
    in_a_hurry  gives whether some compaction has to end: then nobody sleeps
    _since      start of the present period; None before the first byte
    _observed   bytes since then
    """

    def __init__(
        self,
        rate: Callable[[], float],
        clock: Callable[[], float],
        sleep: Callable[[float], object],
        in_a_hurry: Callable[[], bool] = lambda: False,
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._in_a_hurry = in_a_hurry
        self._since: float | None = None
        self._observed = 0
        self._lock = threading.Lock()

    def __call__(self, size: int) -> None:
        """Count bytes that were read or written, and sleep if they were too many."""
        with self._lock:
            now = self._clock()
            if self._since is None:
                self._since = now
            self._observed += size
            elapsed = now - self._since
            if elapsed <= _LOOK_EVERY_S or not self._observed:
                return
            self._rest(self._observed / self._rate() - elapsed)
            self._since, self._observed = self._clock(), 0

    def _rest(self, seconds: float) -> None:
        end = self._clock() + seconds
        while (left := end - self._clock()) > 0 and not self._in_a_hurry():
            self._sleep(min(left, _LONGEST_NAP_S))
