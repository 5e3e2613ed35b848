"""Appending: bytes of several writers → whole lines → the partition's queue → the log.

Each open file has a handle of its own, which keeps the beginning of a line whose newline has not come: it waits for
the rest, or for the last close. Whole lines go into the queue of their partition (`line_queue.py` beside this), which
all its writers share, and are appended there in the order in which they came.
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
"""A write of so many bytes, a whole buffer of stdio, may be a piece of a long text. A shorter one is all of it."""


_LARGE_PIECE: Final = 64 * 1024
"""Behind a request of so many bytes may come another one of the same write(2): pieces have up to 128 KiB."""


class Target(Protocol):
    """Where whole lines go.

    refusal  why the last `add` did not take everything; None where it did
    """

    refusal: EngineError | None

    def add(self, lines: Bytes, head: Bytes = NOTHING) -> int:
        """Take whole lines, of which `head` is the first, and give how many bytes were taken: up to the first line that
        is refused, or that the disk has no room for. After an error nothing was taken."""

    def hold_room(self, size: int) -> None:
        """Make sure that there is room for an unfinished line of so many bytes, as far as can be. OSError where there
        is none."""

    def hold_line(self, line: Bytes) -> None:
        """The same, where nothing of the line is to come any more, as far as can be known: a descriptor is closed."""

    def flush(self) -> None:
        """Append what waits. After an error it does not wait any more: who hears of it knows that it is lost."""

    def persist(self) -> None:
        """Append what waits, and bring it onto the disk."""

    def line_limit(self) -> int:
        """A longer line is refused before its end has come."""

    def leave(self) -> None:
        """The writer is gone."""

    def writers(self) -> tuple[PartitionWriters, ...]:
        """The partitions that it may append to."""


class AppendHandle:
    """One writer: what it wrote since its last whole line, and where whole lines go.

    target      where
    _tail       the beginning of a line whose newline has not come
    _tail_lost  why it is gone: a close(2) or an fsync was told of a failure, so it is not to be appended; or the line
                was refused, and the kernel may have kept that to itself
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
        """Take bytes. Fewer than all are taken where a line is refused behind others that are kept: the writer
        then writes the rest again, which begins with that line, and is told why."""
        with self._lock:
            return self._write(data, last_newline(data, 0, data.size) + 1)

    def write_through(self, data: Bytes) -> int:
        """As `write`, and the whole lines are on disk afterwards. An error is that of all of the bytes."""
        with self._lock:
            end = last_newline(data, 0, data.size) + 1
            done = self._write(data, end)
            if end:
                try:
                    self.target.persist()
                except (EngineError, OSError):
                    # It began in these bytes, which come again.
                    self._forget_tail()
                    raise
            return done

    def _write(self, data: Bytes, end: int) -> int:
        """As `write`; `end` is where the whole lines end."""
        for writers in self.target.writers():
            writers.end_close(self)
        self._tell_of_lost_tail()
        # Where a piece of a write(2) fails behind others, its writer is told of a short write, and begins the next one
        # in the middle of the line that is refused.
        is_piece = bool(self._tail) and self._size >= _LARGE_PIECE
        self._size = int(data.size)
        done = self._take(data[:end]) if end else 0
        if done == end:
            try:
                if self._keep_tail(data[end:], is_sure=not end or data.size < PIECE):
                    return int(data.size)
            except (EngineError, OSError):
                # What was taken must not come again: the error is met by who writes the rest.
                if not end:
                    raise
        if not done:
            error = self._refused()
            self._tail_lost = error if is_piece else None
            raise error
        return done

    def _take(self, lines: Bytes) -> int:
        """Take whole lines, of which the first ends the unfinished one. Gives how many of their bytes were taken. After
        an error nothing was taken, and the unfinished line is still there."""
        if not self._tail:
            return self.target.add(lines)
        first = first_newline(lines, 0, lines.size) + 1
        head = np.frombuffer(bytes(self._tail) + lines[:first].tobytes(), np.uint8)
        taken = self.target.add(lines[first:], head)
        begun = len(self._tail)
        self._forget_tail()
        # A first line that is refused is refused with its beginning.
        return max(taken - begun, 0)

    def _keep_tail(self, rest: Bytes, is_sure: bool) -> bool:
        """Keep the beginning of a line. False where it is too long already: it is refused with what came before.
        `is_sure`: there is to be room for it, or an error."""
        limit = self.target.line_limit()
        size = len(self._tail) + rest.size
        if size > limit:
            self._forget_tail()
            self.target.refusal = RecordTooLargeError(f"a line goes beyond {limit} bytes")
            return False
        if rest.size:
            # The last close appends it, and can tell nobody that there is no room. This write can, and is the one that
            # `printf 'x\\ny' >>` looks at. Where a long text comes in pieces the next one ends the line in a moment: it
            # would be made 1.7 times as slow, and its writer looks at what close(2) gives.
            if is_sure:
                self.target.hold_room(size)
            self._tail += rest.tobytes()
        return True

    def _tell_of_lost_tail(self) -> None:
        """Tell of an error in the middle of a line once more: the close(2) that was told may have been that of a forked
        child."""
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
        """A descriptor is closed: append the whole lines, keep an unfinished one."""
        with self._lock:
            try:
                with self._tail_lost_on_error():
                    self.target.flush()
                    if self._tail:
                        # The last close appends it, and can tell nobody.
                        self.target.hold_line(np.frombuffer(bytes(self._tail), np.uint8))
            finally:
                if self._tail:
                    for writers in self.target.writers():
                        writers.begin_close(self)

    @contextlib.contextmanager
    def _tail_lost_on_error(self) -> Iterator[None]:
        """Forget the unfinished line where its writer is told of a failure: what was reported as failed is not
        applied."""
        try:
            yield
        except (EngineError, OSError) as error:
            if self._tail:
                self._forget_tail()
                self._tail_lost = error
            raise

    def persist(self) -> None:
        """fsync: the whole lines are on disk afterwards."""
        with self._lock, self._tail_lost_on_error():
            self.target.persist()

    @property
    def holds_tail(self) -> bool:
        """Whether it keeps the beginning of a line."""
        return bool(self._tail)

    def release(self) -> None:
        """The last descriptor is closed: an unfinished line is a line now. Nobody can be told of an error."""
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

    linger  how long their lines wait, and the flusher
    _open   the writers
    """

    linger: Linger
    _open: dict[AppendHandle, None] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def open(self, target: Target) -> AppendHandle:
        """A new writer."""
        handle = AppendHandle(target, self)
        with self._lock:
            self._open[handle] = None
        return handle

    def hold_lines_for(self, writers: PartitionWriters) -> bool:
        """Whether lines wait for a partition, or a writer holds the beginning of one that it may append there."""
        with self._lock:
            handles = list(self._open)
        return writers.queue.holds_lines or any(
            handle.holds_tail and writers in handle.target.writers() for handle in handles
        )

    def forget(self, handle: AppendHandle) -> None:
        """A writer is gone."""
        with self._lock:
            self._open.pop(handle, None)

    def flush_all(self) -> None:
        """Append everything that waits: the mount goes away."""
        with self._lock:
            handles = list(self._open)
        for handle in handles:
            with contextlib.suppress(EngineError, OSError):
                handle.release()
