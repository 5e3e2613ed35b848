"""How many calls ended in each errno, and which of these the log is still told about.

Who reads damaged bytes reads them again, or those behind them: each read is told its errno, but a line for each would
push out of the log what else it had to say.
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
    """Whether a line goes into the log."""

    TOLD = "it does"
    LAST = "it does, as the last of its kind for a while"
    LEFT_OUT = "it does not"


class ErrorBudget:
    """The failures of a process.

    _counts  calls that ended in an errno, by its name
    _lines   of each kind: when its while began, and how many lines there were in it
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lines: dict[Hashable, tuple[float, int]] = {}
        self._guard = threading.Lock()

    def note(self, name: str) -> None:
        """One call ended in the errno of this name."""
        with self._guard:
            self._counts[name] += 1

    def counts(self) -> dict[str, int]:
        """How many calls ended in each errno so far."""
        with self._guard:
            return dict(self._counts)

    def telling(self, kind: Hashable, now: float) -> Telling:
        """Whether another line of a kind goes into the log at a time in seconds: so many of them do in a while.
        There are few kinds."""
        with self._guard:
            began, lines = self._lines.get(kind, (now, 0))
            if now - began >= WHILE_S:
                began, lines = now, 0
            self._lines[kind] = began, lines + 1
        if lines + 1 == MOST_LINES:
            return Telling.LAST
        return Telling.TOLD if lines < MOST_LINES else Telling.LEFT_OUT


ERRORS: Final = ErrorBudget()
"""Of this process, which serves one mount."""
