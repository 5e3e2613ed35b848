"""What one mount answers without Python: see `topicfs.fs.kernels.windows`, which does it."""

from __future__ import annotations

import threading
from typing import Final

import numpy as np

from topicfs.engine.batch.table import Bytes
from topicfs.fs.kernels.windows import (
    READ_BYTES,
    READS,
    ROW,
    ROWS,
    SETTLED,
    WINDOWS,
    close_window,
    open_window,
)

LARGEST: Final = 4 << 20
"""Bytes of a window, at most: so all of them keep 128 MiB at the most. A block has some 1 MiB, but one batch that is
larger is a block too."""


class Windows:
    """For some open files, bytes from which reads are answered, and which of them are settled. The bytes stay in memory
    while the window is open.

    _table    the table that the kernels read
    _settled  its part about settled handles
    _kept     by place in the table: the handle that has it, and its bytes
    _guard    held while a window is opened or closed
    """

    def __init__(self) -> None:
        self._table = np.zeros((ROWS, ROW), np.int64)
        self._settled = self._table[1 + WINDOWS :].reshape(-1)[:SETTLED]
        self._kept: dict[int, tuple[int, Bytes]] = {}
        self._guard = threading.Lock()

    @property
    def address(self) -> int:
        """Return the address of the table, for libfuse's channel. It must be kept while that is open."""
        return self._table.ctypes.data

    @property
    def reads(self) -> int:
        """Return how many reads were answered."""
        return int(self._table[0, READS])

    @property
    def read_bytes(self) -> int:
        """Return how many bytes they got."""
        return int(self._table[0, READ_BYTES])

    def open(self, handle: int, start: int, data: Bytes, for_pages: bool) -> None:
        """Show bytes that begin at a position of an open file, in place of what was shown of it before. With
        `for_pages`, the kernel gets them for its pages too. More than LARGEST are not shown."""
        if data.size > LARGEST:
            self.close(handle)
            return
        with self._guard:
            open_window(self._table, handle, start, start + data.size, data.ctypes.data, for_pages, False)
            self._kept[handle % WINDOWS] = handle, data

    def open_whole(self, handle: int, data: Bytes) -> None:
        """Show all bytes of an open file, which do not change: its end is answered too. What is shown of another file
        in the same place is left: small files come and go by the thousand, and it may be a large one that is read."""
        if data.size > LARGEST:
            return
        with self._guard:
            if handle % WINDOWS not in self._kept:
                open_window(self._table, handle, 0, data.size, data.ctypes.data, False, True)
                self._kept[handle % WINDOWS] = handle, data

    def close(self, handle: int) -> None:
        """Show nothing of an open file any more."""
        if self._kept.get(handle % WINDOWS, (0,))[0] != handle:
            return
        with self._guard:
            if self._kept.get(handle % WINDOWS, (0,))[0] == handle:
                close_window(self._table, handle)
                del self._kept[handle % WINDOWS]

    def settle(self, handle: int, is_settled: bool) -> None:
        """Note whether a flush of an open file would do nothing: it is answered then. Whoever is about to change that
        says so before."""
        place = handle % SETTLED
        if is_settled:
            self._settled[place] = handle
        elif self._settled[place] == handle:
            self._settled[place] = 0
