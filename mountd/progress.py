"""What a command says while it works, on stderr: a terminal has one line with a sign of life, all else plain lines."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Final, Self

from rich.console import Console
from rich.status import Status

# How often work that goes on is told of where each time is a line of its own.
_EVERY_S: Final = 10.0


class _Stderr(Console):
    """Words for who listens. That nobody does is no reason to leave a mount half taken away."""

    def on_broken_pipe(self) -> None:
        """Go on, in silence."""
        self.quiet = True


CONSOLE: Final = _Stderr(stderr=True, highlight=False)


def say(text: str) -> None:
    """A line that stays."""
    CONSOLE.print(f"topicfs: {text}", markup=False, soft_wrap=True)


class Progress:
    """What is waited for, until the context ends.

    _line    the terminal's line, None before there was one
    _latest  when work that goes on was told of last, in seconds; None before it was
    """

    def __init__(self) -> None:
        self._open = ExitStack()
        self._line: Status | None = None
        self._latest: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the line away, until there is another."""
        self._open.close()
        self._line = None

    def wait(self, text: str) -> None:
        """Something else is waited for now."""
        if not CONSOLE.is_terminal:
            say(text)
        elif self._line is None:
            self._line = self._open.enter_context(CONSOLE.status(text))
        else:
            self._line.update(text)

    def progress(self, text: str) -> None:
        """What is waited for goes on; told of now and then."""
        now = time.monotonic()
        if CONSOLE.is_terminal or self._latest is None or now > self._latest + _EVERY_S:
            self._latest = now
            self.wait(text)
