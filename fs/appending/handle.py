"""Appending: bytes of several writers → complete lines → the partition's queue → the log.

Each open file has its own handle, which keeps the beginning of an unfinished line until the rest comes, or until the
last close. Complete lines go into the queue of their partition (`line_queue.py`), which all its writers share, and are
appended in the order in which they came.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from topicfs.engine.batch.table import Bytes
from topicfs.engine.errors import EngineError, RecordTooLargeError
from topicfs.engine.kernels.lines import first_newline, last_newline
from topicfs.fs.appending.linger import Linger
from topicfs.fs.appending.partition_writers import PartitionWriters

log = logging.getLogger(__name__)

NOTHING: Final = np.empty(0, np.uint8)

PIECE: Final = 4096
"""A write of this many bytes, a full buffer of stdio, may be one piece of a long text. A shorter write is complete."""


_LARGE_PIECE: Final = 64 * 1024
"""A request of at least this many bytes may be followed by another of the same write(2), up to 128 KiB each."""


class Target(Protocol):
    """The place that complete lines go to.

    refusal  why the last `add` did not take everything; None if it did
    """

    refusal: EngineError | None

    def add(self, lines: Bytes, head: Bytes = NOTHING) -> int:
        """Take complete lines; `head` is the first of them. Return how many bytes were taken: all up to the first line
        that is refused, or that does not fit on the disk. After an error nothing was taken."""

    def hold_room(self, size: int) -> None:
        """Make sure that there is room for an unfinished line of this many bytes, as far as that is possible. OSError
        if there is no room."""

    def hold_line(self, line: Bytes) -> None:
        """Make sure that there is room for a line that is probably at its end, as a descriptor is closed."""

    def flush(self) -> None:
        """Append the waiting lines. After an error they no longer wait: the caller knows that they are lost."""

    def persist(self) -> None:
        """Append the waiting lines, and bring them onto the disk."""

    def line_limit(self) -> int:
        """Return the longest line in bytes. A longer line is refused before its end has come."""

    def leave(self) -> None:
        """Note that the writer is closed."""

    def writers(self) -> tuple[PartitionWriters, ...]:
        """Return the writing sides of all partitions that it may append to."""


class AppendHandle:
    """One writer: the unfinished line that it wrote, and the target of its complete lines.

    target      where complete lines go
    _tail       the beginning of a line whose newline has not come
    _tail_lost  why the tail was dropped, if its writer is still to be told. Either a close(2) or an fsync reported a
                failure, so the tail must not be appended. Or the line was refused, and the kernel may not have passed
                that on
    _size       bytes of the last write
    """

    def __init__(self, target: Target, writers: Writers) -> None:
        self.target = target
        self._writers = writers
        self._tail = bytearray()
        self._tail_lost: EngineError | OSError | None = None
        self._size = 0
        self._lock = threading.Lock()

    def write(self, data: Bytes) -> int:
        """Take bytes. Return fewer than all of them if a line is refused behind lines that were taken. The writer then
        writes the rest again, which begins with the refused line, and gets the error."""
        with self._lock:
            return self._write(data, last_newline(data, 0, data.size) + 1)

    def write_through(self, data: Bytes) -> int:
        """Take bytes as `write` does, and bring the complete lines onto the disk. An error applies to all bytes."""
        with self._lock:
            end = last_newline(data, 0, data.size) + 1
            done = self._write(data, end)
            if end:
                try:
                    self.target.persist()
                except (EngineError, OSError):
                    # The unfinished line began in these bytes, which will be written again.
                    self._forget_tail()
                    raise
            return done

    def _write(self, data: Bytes, end: int) -> int:
        """Take bytes as `write` does; `end` is where the complete lines end."""
        for writers in self.target.writers():
            writers.end_close(self)
        self._tell_of_lost_tail()
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
            error = self._refused()
            self._tail_lost = error if is_piece else None
            raise error
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
        """Keep the beginning of a line. Return False if it is too long already: it is refused with what came before.
        With `is_sure`, room for it is promised, or there is an error."""
        limit = self.target.line_limit()
        size = len(self._tail) + rest.size
        if size > limit:
            self._forget_tail()
            self.target.refusal = RecordTooLargeError(f"a line goes beyond {limit} bytes")
            return False
        if rest.size:
            # The last close appends the tail, and cannot report that there is no room. This write can, and
            # `printf 'x\\ny' >>` checks its result. Where a long text comes in pieces, the next one ends the line at
            # once. Room for each piece would make it 1.7 times as slow, and its writer checks the result of close(2).
            if is_sure:
                self.target.hold_room(size)
            self._tail += rest.tobytes()
        return True

    def _tell_of_lost_tail(self) -> None:
        """Report the error of a lost tail again: the close(2) that was told of it may be a forked child's."""
        if self._tail_lost is not None:
            error, self._tail_lost = self._tail_lost, None
            raise error

    def _forget_tail(self) -> None:
        if self._tail:
            self._tail.clear()
            self.target.hold_room(0)

    def _refused(self) -> EngineError:
        error = self.target.refusal
        assert error is not None
        for writers in self.target.writers():
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
                        self.target.hold_line(np.frombuffer(bytes(self._tail), np.uint8))
            finally:
                if self._tail:
                    for writers in self.target.writers():
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
    def holds_tail(self) -> bool:
        """Tell whether the handle keeps the beginning of a line."""
        return bool(self._tail)

    def release(self) -> None:
        """Append an unfinished line as a complete one, at the last close. Errors reach no caller any more."""
        if self._tail:
            for writers in self.target.writers():
                writers.note_last_close(self)
        with self._lock:
            try:
                if self._tail:
                    line = np.frombuffer(bytes(self._tail) + b"\n", np.uint8)
                    self._tail.clear()
                    if self.target.add(line) < line.size:
                        log.error(f"a last line of {line.size} bytes is refused: {self._refused()}")
                self.target.flush()
            except (EngineError, OSError) as error:
                log.error(f"lines are lost at the last close: {error}")
                for writers in self.target.writers():
                    writers.note_refusal(error)
            finally:
                for writers in self.target.writers():
                    writers.end_close(self)
                self.target.leave()
                self._writers.forget(self)


@dataclass(slots=True)
class Writers:
    """All open writers.

    linger  the flusher, which knows how long lines wait
    _open   the open writers
    """

    linger: Linger
    _open: dict[AppendHandle, None] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def open(self, target: Target) -> AppendHandle:
        """Open a new writer."""
        handle = AppendHandle(target, self)
        with self._lock:
            self._open[handle] = None
        return handle

    def hold_lines_for(self, writers: PartitionWriters) -> bool:
        """Tell whether lines wait for a partition, or a writer that may append to it holds the beginning of one."""
        with self._lock:
            handles = list(self._open)
        return writers.queue.holds_lines or any(
            handle.holds_tail and writers in handle.target.writers() for handle in handles
        )

    def forget(self, handle: AppendHandle) -> None:
        """Remove a writer that is closed."""
        with self._lock:
            self._open.pop(handle, None)

    def flush_all(self) -> None:
        """Append all waiting lines, as the mount goes away."""
        with self._lock:
            handles = list(self._open)
        for handle in handles:
            with contextlib.suppress(EngineError, OSError):
                handle.release()
