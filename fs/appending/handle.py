"""Appending: bytes of several writers → complete lines → the partition's queue → the log.

Each open file has its own handle, which keeps the beginning of an unfinished line until the rest comes, or until the
last close. Complete lines go into the queue of their partition (`line_queue.py`), which all its writers share, and are
appended in the order in which they came.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from typing import Final

import numpy as np

from topicfs.engine.batch.table import Bytes
from topicfs.engine.errors import EngineError, RecordTooLargeError
from topicfs.engine.kernels.lines import first_newline, last_newline
from topicfs.fs.appending.targets import Target
from topicfs.fs.entry import Handle
from topicfs.fs.holdings import Holding

log = logging.getLogger(__name__)

PIECE: Final = 4096
"""A write of this many bytes, a full buffer of stdio, may be one piece of a long text. A shorter write is complete."""


_LARGE_PIECE: Final = 64 * 1024
"""A request of at least this many bytes may be followed by another of the same write(2), up to 1 MiB each; 128 KiB with
a kernel before 4.20."""


class AppendHandle(Handle):
    """A file that is open for appending: the unfinished line that was written, and the target of its complete lines.

    target      where complete lines go
    _reader     reads, if the file was opened for that too
    _synced     whether the complete lines of each write are brought onto the disk: with direct_io the kernel leaves
                O_SYNC and O_DSYNC to the daemon
    _tail       the beginning of a line whose newline has not come
    _tail_lost  why the tail was dropped, if its writer is still to be told. Either a close(2) or an fsync reported a
                failure, so the tail must not be appended. Or the line was refused, and the kernel may not have passed
                that on
    _size       bytes of the last write
    _unfinished counts the bytes of the tails of all open files
    """

    def __init__(self, target: Target, synced: bool, reader: Handle, unfinished: Holding) -> None:
        self.target = target
        self._reader = reader
        self._synced = synced
        self._tail = bytearray()
        self._tail_lost: EngineError | OSError | None = None
        self._size = 0
        self._unfinished = unfinished
        self._lock = threading.Lock()

    @classmethod
    def open(
        cls, target: Target, flags: int, unfinished: Holding, reader: Handle | None = None
    ) -> AppendHandle:
        """Open a writer, with a reader if the file was opened for both."""
        handle = cls(target, bool(flags & os.O_DSYNC), reader or Handle(), unfinished)
        for writers in target.writers:
            writers.handles.add(handle)
        return handle

    def read(self, position: int, into: Bytes) -> int:
        return self._reader.read(position, into)

    def write(self, data: Bytes, position: int = 0) -> int:
        """Take bytes. Return fewer than all of them if a line is refused behind lines that were taken. The writer then
        writes the rest again, which begins with the refused line, and gets the error. If the lines are brought onto the
        disk, an error of that applies to all bytes."""
        with self._lock:
            self.settle(False)
            try:
                end = last_newline(data, 0, data.size) + 1
                done = self._write(data, end)
                if self._synced and end:
                    try:
                        self.target.persist()
                    except (EngineError, OSError):
                        # The unfinished line began in these bytes, which will be written again.
                        self._forget_tail()
                        raise
                return done
            finally:
                self.settle(self.is_settled)

    def _write(self, data: Bytes, end: int) -> int:
        """Take bytes; `end` is where the complete lines end."""
        for writers in self.target.writers:
            writers.end_close(self)
        if self._tail_lost is not None:
            # It is told again: the close(2) that was told of it may be a forked child's.
            error, self._tail_lost = self._tail_lost, None
            raise error
        # If a later piece of a write(2) fails, its writer is told of a short write, and begins the next write in the
        # middle of the refused line.
        is_piece = bool(self._tail) and self._size >= _LARGE_PIECE
        self._size = int(data.size)
        done = self._take(data[:end]) if end else 0
        if done == end:
            try:
                if self._keep_tail(data[end:], is_sure=not end or data.size < PIECE):
                    return int(data.size)
            except (EngineError, OSError):
                # What was taken must not be written again: the next write, of the rest, meets the error.
                if not end:
                    raise
        if not done:
            refusal = self._refused()
            self._tail_lost = refusal if is_piece else None
            raise refusal
        return done

    def _take(self, lines: Bytes) -> int:
        """Take complete lines; the first one ends the unfinished line. Return how many of their bytes were taken. After
        an error nothing was taken, and the unfinished line is kept."""
        if not self._tail:
            return self.target.add(lines)
        first = first_newline(lines, 0, lines.size) + 1
        head = np.frombuffer(bytes(self._tail) + lines[:first].tobytes(), np.uint8)
        taken = self.target.add(lines[first:], head)
        begun = len(self._tail)
        self._forget_tail()
        # If the first line is refused, its beginning is refused with it.
        return max(taken - begun, 0)

    def _keep_tail(self, rest: Bytes, is_sure: bool) -> bool:
        """Keep the beginning of a line. Return False if it is refused, with what came before: it is too long already,
        or no line is taken here. With `is_sure`, room for it is promised, or there is an error."""
        limit = self.target.line_limit()
        size = len(self._tail) + rest.size
        if size > limit:
            self._forget_tail()
            self.target.refusal = RecordTooLargeError(f"a line goes beyond {limit} bytes")
            return False
        if rest.size:
            # A shell's own printf sees what write(2) gives, and not what close(2) does.
            self.target.refusal = self.target.refusal_of_all()
            if self.target.refusal is not None:
                return False
            # The last close appends the tail, and cannot report that there is no room. This write can, and
            # `printf 'x\\ny' >>` checks its result. Where a long text comes in pieces, the next one ends the line at
            # once. Room for each piece would make it 1.7 times as slow, and its writer checks the result of close(2).
            self._unfinished.take(rest.size)
            if is_sure:
                try:
                    self.target.hold_room(size)
                except BaseException:
                    self._unfinished.give(rest.size)
                    raise
            self._tail += rest.tobytes()
        return True

    def _forget_tail(self) -> None:
        if self._tail:
            self._clear_tail()
            self.target.hold_room(0)

    def _clear_tail(self) -> None:
        self._unfinished.give(len(self._tail))
        self._tail.clear()

    def _refused(self) -> EngineError:
        error = self.target.refusal
        assert error is not None
        for writers in self.target.writers:
            writers.note_refusal(error)
        return error

    def flush(self) -> None:
        """Append the complete lines and keep an unfinished one, as a descriptor is closed."""
        with self._lock:
            try:
                with self._tail_lost_on_error():
                    self.target.flush()
                    if self._tail:
                        # The last close appends the tail, and cannot report an error.
                        line = np.frombuffer(bytes(self._tail), np.uint8)
                        self.target.refusal = self.target.refusal_at_end(line)
                        if self.target.refusal is not None:
                            raise self._refused()
                        self.target.hold_line(line)
            finally:
                if self._tail:
                    for writers in self.target.writers:
                        writers.begin_close(self)

    @contextlib.contextmanager
    def _tail_lost_on_error(self) -> Iterator[None]:
        """Drop the unfinished line if its writer is told of a failure: what has failed must not be applied."""
        try:
            yield
        except (EngineError, OSError) as error:
            if self._tail:
                self._forget_tail()
                self._tail_lost = error
            raise

    def persist(self) -> None:
        """Bring the complete lines onto the disk, for fsync."""
        with self._lock, self._tail_lost_on_error():
            self.target.persist()

    @property
    def is_settled(self) -> bool:  # type: ignore[override]  # what is a constant of other handles
        return not self._tail and self._tail_lost is None and not self.target.waits

    @property
    def holds_tail(self) -> bool:
        """Tell whether the handle keeps the beginning of a line."""
        return bool(self._tail)

    def release(self) -> None:
        """Append an unfinished line as a complete one, at the last close. Errors reach no caller any more."""
        if self._tail:
            for writers in self.target.writers:
                writers.note_last_close(self)
        with self._lock:
            try:
                if self._tail:
                    line = np.frombuffer(bytes(self._tail) + b"\n", np.uint8)
                    self._clear_tail()
                    if self.target.add(line) < line.size:
                        log.error(f"a last line of {line.size} bytes is refused: {self._refused()}")
                self.target.flush()
            except (EngineError, OSError) as error:
                log.error(f"lines are lost at the last close: {error}")
                for writers in self.target.writers:
                    writers.note_refusal(error)
            finally:
                for writers in self.target.writers:
                    writers.end_close(self)
                    writers.handles.discard(self)
                try:
                    self.target.leave()
                finally:
                    self._reader.release()
