"""SIGTERM and SIGHUP, for commands that leave files of their own behind when they end in the middle."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)
_KILLED: Final = 128
"""What shells add to the number of the signal that ended a program."""


@contextlib.contextmanager
def unwound() -> Iterator[None]:
    """Have these signals end the block as Ctrl-C does: what it has begun is removed. Those that are ignored stay so."""

    def end(number: int, _: object) -> None:
        sys.exit(_KILLED + number)

    taken = [each for each in _SIGNALS if signal.getsignal(each) is signal.SIG_DFL]
    for each in taken:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each in taken:
            signal.signal(each, signal.SIG_DFL)
