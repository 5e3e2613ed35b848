"""How long tests wait on a machine that has other things to do.

Two kinds of limits are told apart. What must come some time is waited for with patience: only a fault keeps it away for
a minute. What must come soon is tried several times: a busy machine is late now and then, a fault is late each time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

PATIENCE_S: Final = 60.0


def eventually(condition: Callable[[], object], what: str, limit_s: float = PATIENCE_S) -> None:
    """Wait until it holds."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"not in {limit_s} s: {what}"
        time.sleep(0.005)


def ended(*threads: threading.Thread, limit_s: float = PATIENCE_S) -> None:
    """Wait until the threads have ended. They are daemons, so that one that hangs keeps no process from ending."""
    eventually(lambda: not any(thread.is_alive() for thread in threads), "the threads have ended", limit_s)


def promptly(limit_s: float, attempt: Callable[[], float | None], tries: int = 10) -> None:
    """One of several attempts takes less than this. An attempt that prepares something gives the seconds that count.

    There are always two, unless `tries` is 1: what can be tried only once would else fail on a busy machine alone."""
    taken = []
    for number in range(1, tries + 1):
        began = time.monotonic()
        seconds = attempt()
        taken.append(time.monotonic() - began if seconds is None else seconds)
        if min(taken) < limit_s and number >= min(2, tries):
            return
    raise AssertionError(
        f"expected less than {limit_s} s, found {min(taken):.3f} s at best, of {tries} attempts"
    )
