"""What libfuse prints when it cannot mount: standard error is the only place where it says why.

Nobody sees a daemon's standard error, so it is caught from before the mount until the mount answers.
"""

from __future__ import annotations

import os
import threading
from typing import Final

_STANDARD_ERROR: Final = 2


class LibfuseStderr:
    """Standard error, caught in memory for a while.

    _file   the file in memory where it goes meanwhile
    _saved  a copy of the descriptor where it went before; None once it goes there again
    """

    __slots__ = ("_file", "_guard", "_saved", "_words")

    def __init__(self, file: int, saved: int) -> None:
        self._file = file
        self._saved: int | None = saved
        self._guard = threading.Lock()
        self._words = ""

    @classmethod
    def begin(cls) -> LibfuseStderr:
        """Begin to catch standard error."""
        file = os.memfd_create("libfuse")
        saved = os.dup(_STANDARD_ERROR)
        os.dup2(file, _STANDARD_ERROR)
        return cls(file, saved)

    def end(self) -> str:
        """Stop catching, and return what was caught. Only the first call has an effect; later ones return the same."""
        with self._guard:
            if self._saved is not None:
                os.dup2(self._saved, _STANDARD_ERROR)
                os.close(self._saved)
                self._saved = None
                size = os.lseek(self._file, 0, os.SEEK_CUR)
                caught = os.pread(self._file, size, 0)
                os.close(self._file)
                self._words = caught.decode(errors="replace").strip()
            return self._words
