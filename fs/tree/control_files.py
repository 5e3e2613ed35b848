"""Command files: what is written to them is done, line by line, and reading tells what holds.

    echo 'cleanup.policy=compact' > topics/orders/config
    echo 500 >> orders-0/start

They have no content of their own to keep, so `>`, `>>` and writing anywhere in them are one: lines that are done in
their order. What is written through one open file is done whole or not at all, and each write at once, since shells
look at the error of write(2) alone: bash's `printf` and `echo` make a write of each line. So where one is refused, what
was done before is taken back, where it can be, and nothing more is taken. fsync(2) says that what came so far stays.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Final

from topicfs.engine.batch.table import Bytes
from topicfs.engine.errors import EngineError
from topicfs.fs import errors
from topicfs.fs.entry import BytesHandle, GeneratedFile, Handle, wants_writing

log = logging.getLogger(__name__)

LINE_LIMIT: Final = 16 * 1024
"""Bytes of a line; the longest that means anything has some hundred."""

LINES_LIMIT: Final = 1024 * 1024
"""Bytes of the lines that are done together: what `config` gives has some thousand."""

TakeBack = Callable[[], None]
"""Undoes what lines have done."""


class ControlFile(GeneratedFile):
    """A small file whose lines are done as they are written."""

    permissions = 0o666

    def apply(self, lines: Sequence[str]) -> TakeBack | None:
        """Do what the lines of one write say, all of it or, with an error, nothing. Gives what undoes it; None where
        there is nothing to undo, or nothing can."""
        raise NotImplementedError

    def note_refusal(self, error: Exception) -> None:
        """Remember why lines were refused: an errno is all that the writer was told."""
        raise NotImplementedError

    def open(self, flags: int) -> Handle:
        return ControlHandle(self, flags) if wants_writing(flags) else BytesHandle(self.content())

    def truncate(self, length: int) -> None:
        # What `>` does before it writes. What holds is only changed by lines.
        if length:
            raise errors.AppendOnlyError(f"{self.path} cannot be cut to {length} bytes, only to 0")


class ControlHandle(Handle):
    """A writer of a command file, which may read what held when it was opened.

    _file        where lines go
    _reader      None where the file was opened for writing only
    _tail        the beginning of a line whose newline has not come
    _is_done     the tail, as it is, was done at a close
    _lines       whole lines that came, since the last fsync
    _take_back   what undoes them, the oldest first
    _waiting     of these lines, those that were taken back as the close of a duplicate met half a line: they are done
                 with what comes next
    _is_refused  a write was refused: no more are taken
    """

    def __init__(self, file: ControlFile, flags: int) -> None:
        self._file = file
        self._reader = BytesHandle(file.content()) if flags & os.O_ACCMODE == os.O_RDWR else None
        self._tail = b""
        self._is_done = False
        self._lines: list[bytes] = []
        self._take_back: list[TakeBack] = []
        self._waiting: list[bytes] = []
        self._is_refused = False
        self._lock = threading.Lock()

    def read(self, position: int, into: Bytes) -> int:
        return super().read(position, into) if self._reader is None else self._reader.read(position, into)

    def write(self, data: Bytes) -> int:
        """Do the whole lines, and keep the beginning of one. After an error nothing is done that came through this
        open file, and nothing is kept."""
        with self._lock:
            if self._is_refused:
                raise errors.BadInputError(
                    f"{self._file.path}: nothing more is taken after a refusal: open the file again"
                )
            *lines, tail = (self._tail + data.tobytes()).split(b"\n")
            self._tail, self._is_done = b"", False
            try:
                self._apply(lines, tail)
            except BaseException:
                self._is_refused = True
                raise
            self._lines += lines
            self._tail = tail
            return int(data.size)

    def flush(self) -> None:
        """A descriptor is closed: a line without its newline is done, so that close(2) can tell. It is kept as well:
        where the close was a forked child's, in the middle of a line, the rest comes, and the whole line is done."""
        with self._lock:
            if self._tail and not self._is_done and not self._is_refused:
                self._apply([self._tail])
                self._is_done = True

    def persist(self) -> None:
        with self._lock:
            self._lines, self._take_back = [], []

    def _apply(self, lines: list[bytes], tail: bytes = b"") -> None:
        try:
            longest = max(map(len, (*lines, tail)))
            if longest > LINE_LIMIT:
                raise errors.BadInputError(f"a line has {longest} bytes, expected at most {LINE_LIMIT}")
            if sum(map(len, (*self._lines, *lines))) > LINES_LIMIT:
                raise errors.BadInputError(f"expected at most {LINES_LIMIT} bytes through one open file")
            if not lines:
                return
            take_back = self._file.apply([_text(line) for line in self._waiting + lines])
        except (EngineError, OSError) as error:
            self._take_all_back()
            # The line that tells the errno knows the handle's number only.
            log.info(f"{self._file.path}: lines are refused: {error}")
            self._file.note_refusal(error)
            raise
        self._waiting = []
        if take_back is not None:
            self._take_back.append(take_back)

    def _take_all_back(self) -> None:
        if self._take_back:
            self._waiting = list(self._lines)
        while self._take_back:
            try:
                self._take_back.pop()()
            except (EngineError, OSError) as error:
                log.error(
                    f"{self._file.path}: lines before the one that is refused cannot be taken back: {error}"
                )


def _text(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise errors.BadInputError(
            f"byte {error.start}: expected UTF-8, found {line[error.start]:#04x}"
        ) from None
