"""A file as pyarrow reads it, with each length checked before memory is taken for it."""

from __future__ import annotations

import io
from typing import Final, Protocol

import numpy as np

from topicfs.engine.batch.table import Bytes
from topicfs.engine.column_files.rows import LARGEST
from topicfs.engine.errors import InvalidRecordError

CUT_SHORT: Final = "the file is damaged, or not all of it has come"


class File(Protocol):
    """An open file."""

    def read(self, position: int, into: Bytes) -> int:
        """Read into `into` from a position on. Return the number of bytes, which is less at the end of the file."""


class Source:
    """A part of a file, with the methods that pyarrow calls. It reads with pread, not through a mapping: a file that
    somebody cuts short meanwhile is an error then, and not a SIGBUS.

    start, end  where the part begins and ends in the file
    closed      what pyarrow looks at
    """

    closed = False

    def __init__(self, file: File, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self._file = file
        self._position = start

    def at(self, position: int, size: int) -> Bytes:
        """Return bytes from a position in the file on: fewer at the end of the part."""
        size = max(0, min(size, self.end - position))
        if position < self.start or not size:
            return np.empty(0, np.uint8)
        if size > LARGEST:
            raise InvalidRecordError(f"expected up to {LARGEST} bytes at once, found {size}")
        found = np.empty(size, np.uint8)
        return found[: self._file.read(position, found)]

    def read(self, size: int = -1) -> memoryview:
        """Return the next bytes."""
        found = self.at(self._position, self.end - self._position if size < 0 else size)
        self._position += found.size
        return memoryview(found)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position of the next read."""
        origin = {io.SEEK_SET: self.start, io.SEEK_CUR: self._position, io.SEEK_END: self.end}[whence]
        self._position = origin + offset
        return self._position - self.start

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._position - self.start

    def seekable(self) -> bool:
        """Tell that it can be read in any order."""
        return True

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def writable(self) -> bool:
        """Tell that it cannot be written."""
        return False

    def close(self) -> None:
        """Do nothing: who has opened the file closes it."""
