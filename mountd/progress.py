"""What a command reports on stderr while it works: one changing line on a terminal, elsewhere plain lines."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Final, Self

from rich.console import Console
from rich.status import Status

# Seconds between two reports about continuing work, where each report is a line of its own.
_EVERY_S: Final = 10.0


class _Stderr(Console):
    """Messages for the user. A closed stderr is no reason to leave a mount half taken away."""

    def on_broken_pipe(self) -> None:
        """Go on without output."""
        self.quiet = True


CONSOLE: Final = _Stderr(stderr=True, highlight=False)


def say(text: str) -> None:
    """Print a line that stays."""
    CONSOLE.print(f"topicfs: {text}", markup=False, soft_wrap=True)


def words_of(error: Exception) -> str:
    """Return what an error says: of one of the system the file and the reason, without its number."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return str(error)


class Progress:
    """The report of what a command waits for, until the context ends.

    _line    the terminal's line; None before there was one
    _latest  when continuing work was last reported, in seconds; None before the first time
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
        """Remove the line, until there is another one."""
        self._open.close()
        self._line = None

    def wait(self, text: str) -> None:
        """Show what the command waits for now."""
        if not CONSOLE.is_terminal:
            say(text)
        elif self._line is None:
            self._line = self._open.enter_context(CONSOLE.status(text))
        else:
            self._line.update(text)

    def progress(self, text: str) -> None:
        """Show now and then how far the work is."""
        now = time.monotonic()
        if CONSOLE.is_terminal or self._latest is None or now > self._latest + _EVERY_S:
            self._latest = now
            self.wait(text)
