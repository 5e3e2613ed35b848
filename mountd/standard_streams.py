"""Standard input, output and error of a command that was started without them, as by `>&-`.

The next file that is opened would get such a number: a segment, say, into which a library prints then. And Python has
None in their place, which no command expects. So the numbers are taken, in a way that reading and writing fail as on a
closed descriptor; what goes to standard error is dropped.
"""

from __future__ import annotations

import os
import sys
from typing import Final

_STREAMS: Final = (("stdin", "r", os.O_WRONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY))


def take_closed() -> None:
    """Take the numbers of those that are closed, before any other file is opened."""
    for number, (name, mode, flags) in enumerate(_STREAMS):
        if getattr(sys, name) is not None:
            continue
        # All below it are open: it gets the lowest number that is free.
        opened = os.open(os.devnull, flags)
        if opened != number:
            os.close(opened)
            continue  # somebody else has it by now
        stream = os.fdopen(number, mode, encoding="utf-8", errors="surrogateescape", closefd=False)
        setattr(sys, name, stream)
