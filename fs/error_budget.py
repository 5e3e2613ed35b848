"""The error budget: how many calls ended in each errno, and which of these errors are still logged.

A program that reads damaged bytes reads them again, or those behind them. Each read gets its errno, but a line for each
would push everything else out of the log.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable
from enum import Enum
from typing import Final

WHILE_S: Final = 60.0
MOST_LINES: Final = 10


class Telling(Enum):
    """Whether an error is logged."""

    TOLD = "it does"
    LAST = "it does, as the last of its kind for a while"
    LEFT_OUT = "it does not"


class ErrorBudget:
    """The counts and the error budget of one process.

    _counts  how many calls ended in each errno, by its name
    _lines   by kind of error: when its present period began, and how many errors it had since
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lines: dict[Hashable, tuple[float, int]] = {}
        self._guard = threading.Lock()

    def note(self, name: str) -> None:
        """Count a call that ended in the errno of this name."""
        with self._guard:
            self._counts[name] += 1

    def counts(self) -> dict[str, int]:
        """Return how many calls ended in each errno so far."""
        with self._guard:
            return dict(self._counts)

    def telling(self, kind: Hashable, now: float) -> Telling:
        """Tell whether an error of a kind is logged at a time in seconds: in each period only the first MOST_LINES are.
        There are few kinds, so they are kept."""
        with self._guard:
            began, lines = self._lines.get(kind, (now, 0))
            if now - began >= WHILE_S:
                began, lines = now, 0
            self._lines[kind] = began, lines + 1
        if lines + 1 == MOST_LINES:
            return Telling.LAST
        return Telling.TOLD if lines < MOST_LINES else Telling.LEFT_OUT


ERRORS: Final = ErrorBudget()
"""The error budget of this process, which serves one mount."""
