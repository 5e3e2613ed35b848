"""Control files: written lines are carried out, and reading shows the present state.

    echo 'cleanup.policy=compact' > topics/orders/config
    echo 500 >> orders-0/start

They have no content of their own, so `>`, `>>` and writing at any position mean the same: lines that are carried out in
order. Lines that come through one open file are carried out all or not at all, and at once at each write, since shells
check only the error of write(2): `printf` and `echo` of bash write each line on its own. If a write is refused, what
was done before is taken back, if possible, and nothing more is taken. fsync(2) makes what came so far final.
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
"""Bytes of a line, at most; the longest useful line has some hundred."""

LINES_LIMIT: Final = 1024 * 1024
"""Bytes of the lines that are carried out together, at most; the content of `config` has some thousand."""

TakeBack = Callable[[], None]
"""A function that undoes what lines have done."""


class ControlFile(GeneratedFile):
    """A small file whose lines are carried out as they are written."""

    permissions = 0o666
    can_empty = True

    def apply(self, lines: Sequence[str]) -> TakeBack | None:
        """Carry out the lines of one write: all or, with an error, none. Return a function that undoes them; None if
        there is nothing to undo, or no way to do so."""
        raise NotImplementedError

    def persist(self) -> None:
        """Bring what lines have done onto the disk, for fsync, where it is not there when the write returns."""

    def note_refusal(self, error: Exception) -> None:
        """Remember why lines were refused, if the content shows it: `FileSystem.refused` has the status show it."""

    def open(self, flags: int) -> Handle:
        return ControlHandle(self, flags) if wants_writing(flags) else BytesHandle(self.content())

    def truncate(self, length: int) -> None:
        # `>` does this before it writes. Only lines change the state.
        if length:
            raise errors.AppendOnlyError(f"{self.path} cannot be cut to {length} bytes, only to 0")


class ControlHandle(Handle):
    """A writer of a control file, which may also read the content at the open.

    _file        the control file that lines are applied to
    _reader      reads the content at the open, if the file was opened for that too
    _tail        the beginning of a line whose newline has not come
    _is_done     whether the tail, as it is, was carried out at a close
    _lines       the complete lines since the last fsync
    _take_back   the functions that undo them, the oldest first
    _waiting     the lines that were taken back when the close of a duplicate met half a line: they are carried out
                 together with what comes next
    _is_refused  whether a write was refused: no more are taken
    """

    def __init__(self, file: ControlFile, flags: int) -> None:
        self._file = file
        self._reader = BytesHandle(file.content()) if flags & os.O_ACCMODE == os.O_RDWR else Handle()
        self._tail = b""
        self._is_done = False
        self._lines: list[bytes] = []
        self._take_back: list[TakeBack] = []
        self._waiting: list[bytes] = []
        self._is_refused = False
        self._lock = threading.Lock()

    def read(self, position: int, into: Bytes) -> int:
        return self._reader.read(position, into)

    def write(self, data: Bytes, position: int = 0) -> int:
        """Carry out the complete lines, and keep the beginning of the next one. After an error nothing stays in force
        that came through this open file, and nothing is kept."""
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
        """Carry out a line without its newline when a descriptor is closed, so that close(2) reports its error. The
        line is kept too: if a forked child has closed in the middle of a line, the rest comes, and the full line is
        carried out."""
        with self._lock:
            if self._tail and not self._is_done and not self._is_refused:
                self._apply([self._tail])
                self._is_done = True

    def persist(self) -> None:
        with self._lock:
            self._lines, self._take_back = [], []
        self._file.persist()

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
            # The log line with the errno shows only the number of the handle.
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
