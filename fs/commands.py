"""Command files: what is written to them is done, line by line, and reading tells what holds.

    echo 'cleanup.policy=compact' > topics/orders/config
    echo 500 >> orders-0/start

They have no content of their own to keep, so `>`, `>>` and writing anywhere in them are one: lines that are done in
their order. A write is done whole or not at all.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from typing import Final

from engine.batch.table import Bytes
from engine.errors import EngineError
from fs import errors
from fs.entry import BytesHandle, GeneratedFile, Handle, wants_writing

log = logging.getLogger(__name__)

LINE_LIMIT: Final = 16 * 1024
"""Bytes of a line; the longest that means anything has some hundred."""


class CommandFile(GeneratedFile):
    """A small file whose lines are done as they are written."""

    permissions = 0o666

    def apply(self, lines: Sequence[str]) -> None:
        """Do what the lines of one write say, all of it or, with an error, nothing."""
        raise NotImplementedError

    def note_refusal(self, error: Exception) -> None:
        """Remember why lines were refused: an errno is all that the writer was told."""
        raise NotImplementedError

    def open(self, flags: int) -> Handle:
        return CommandHandle(self, flags) if wants_writing(flags) else BytesHandle(self.content())

    def truncate(self, length: int) -> None:
        # What `>` does before it writes. What holds is only changed by lines.
        if length:
            raise errors.AppendOnlyError(f"{self.path} cannot be cut to {length} bytes, only to 0")


class CommandHandle(Handle):
    """A writer of a command file, which may read what held when it was opened.

    _file     where lines go
    _reader   None where the file was opened for writing only
    _tail     the beginning of a line whose newline has not come
    _is_done  the tail, as it is, was done at a close
    """

    def __init__(self, file: CommandFile, flags: int) -> None:
        self._file = file
        self._reader = BytesHandle(file.content()) if flags & os.O_ACCMODE == os.O_RDWR else None
        self._tail = b""
        self._is_done = False
        self._lock = threading.Lock()

    def read(self, position: int, into: Bytes) -> int:
        return super().read(position, into) if self._reader is None else self._reader.read(position, into)

    def write(self, data: Bytes) -> int:
        """Do the whole lines, and keep the beginning of one. After an error nothing was done, and nothing is kept."""
        with self._lock:
            *lines, tail = (self._tail + data.tobytes()).split(b"\n")
            self._tail, self._is_done = b"", False
            self._apply(lines, tail)
            self._tail = tail
            return int(data.size)

    def flush(self) -> None:
        """A descriptor is closed: a line without its newline is done, so that close(2) can tell. It is kept as well:
        where the close was a forked child's, in the middle of a line, the rest comes, and the whole line is done."""
        with self._lock:
            if self._tail and not self._is_done:
                self._apply([self._tail])
                self._is_done = True

    def _apply(self, lines: list[bytes], tail: bytes = b"") -> None:
        try:
            longest = max(map(len, (*lines, tail)))
            if longest > LINE_LIMIT:
                raise errors.BadInputError(f"a line has {longest} bytes, expected at most {LINE_LIMIT}")
            if lines:
                self._file.apply([_text(line) for line in lines])
        except (EngineError, OSError) as error:
            # The line that tells the errno knows the handle's number only.
            log.info(f"{self._file.path}: lines are refused: {error}")
            self._file.note_refusal(error)
            raise


def _text(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise errors.BadInputError(
            f"byte {error.start}: expected UTF-8, found {line[error.start]:#04x}"
        ) from None
