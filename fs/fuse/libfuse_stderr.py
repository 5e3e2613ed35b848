"""What libfuse prints when it cannot mount: standard error is its only way to say why.

A daemon's standard error goes nowhere, so the words are caught from before the mount until it answers.
"""

from __future__ import annotations

import os
import threading
from typing import Final

_STANDARD_ERROR: Final = 2


class LibfuseStderr:
    """Standard error, caught in memory for a while.

    _file   where it goes meanwhile: a file in memory
    _saved  where it went before, None once it goes there again
    """

    __slots__ = ("_file", "_guard", "_saved", "_words")

    def __init__(self, file: int, saved: int) -> None:
        self._file = file
        self._saved: int | None = saved
        self._guard = threading.Lock()
        self._words = ""

    @classmethod
    def begin(cls) -> LibfuseStderr:
        """Catch from now on."""
        file = os.memfd_create("libfuse")
        saved = os.dup(_STANDARD_ERROR)
        os.dup2(file, _STANDARD_ERROR)
        return cls(file, saved)

    def end(self) -> str:
        """Catch no more; gives what was caught. Only the first call does something."""
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
