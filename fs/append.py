"""Appending: bytes of several writers → whole lines → batches → the log.

Each open file has a handle of its own: its lines keep their order, and a batch is of one handle. Lines wait in
a batch that grows until it is full (`batch.size`), until they have waited for `linger.ms`, or until somebody
asks: fsync, or the close of any descriptor. A last line without its newline waits for the last close.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from engine.batch.table import Bytes
from engine.errors import EngineError, RecordTooLargeError
from engine.kernels.lines import first_newline, last_newline
from engine.record import Clock
from fs.shown import ShownPartition

log = logging.getLogger(__name__)


class Target(Protocol):
    """Where whole lines go.

    refusal  why the last `add` did not take everything; None where it did
    """

    refusal: EngineError | None

    def add(self, lines: Bytes) -> int:
        """Take whole lines, and give how many bytes were taken: up to the first line that is refused. After an
        error nothing was taken."""

    def flush(self) -> None:
        """Append what waits. What could not be appended goes on waiting."""

    def persist(self) -> None:
        """Append what waits, and bring it onto the disk."""

    def line_limit(self) -> int:
        """A longer line is refused before its end has come."""

    def waiting_since(self) -> int | None:
        """When the first line that waits came; None where none does."""

    def shown(self) -> tuple[ShownPartition, ...]:
        """The partitions that it may append to."""


class AppendHandle:
    """One writer: what it wrote since its last whole line, and where whole lines go.

    target   where
    _tail    the beginning of a line whose newline has not come
    """

    def __init__(self, target: Target, writers: Writers) -> None:
        self.target = target
        self._writers = writers
        self._tail = bytearray()
        self._lock = threading.Lock()

    def write(self, data: Bytes) -> int:
        """Take bytes. Fewer than all are taken where a line is refused behind others that are kept: the writer
        then writes the rest again, which begins with that line, and is told why."""
        with self._lock:
            for shown in self.target.shown():
                shown.end_close(self)
            try:
                done = self._complete_tail(data)
                try:
                    return done + self._take(data[done:])
                except (EngineError, OSError):
                    # What was taken must not come again: the error is met by who writes the rest.
                    if done:
                        return done
                    raise
            finally:
                self._writers.note(self)

    def _take(self, data: Bytes) -> int:
        """Take whole lines and the beginning of one. After an error nothing was taken."""
        end = last_newline(data, 0, data.size) + 1
        taken = self.target.add(data[:end]) if end else 0
        if taken == end and self._keep_tail(data[end:]):
            return int(data.size)
        if taken == 0:
            raise self._refused()
        return taken

    def _complete_tail(self, data: Bytes) -> int:
        """End the unfinished line with what came. Gives how many bytes of `data` that took."""
        if not self._tail:
            return 0
        end = first_newline(data, 0, data.size) + 1
        if end == 0:
            return 0
        line = np.frombuffer(bytes(self._tail) + data[:end].tobytes(), np.uint8)
        taken = self.target.add(line)
        self._tail.clear()
        if taken < line.size:
            raise self._refused()
        return int(end)

    def _keep_tail(self, rest: Bytes) -> bool:
        """Keep the beginning of a line. False where it is too long already: it is refused with what came before."""
        limit = self.target.line_limit()
        if len(self._tail) + rest.size > limit:
            self._tail.clear()
            self.target.refusal = RecordTooLargeError(f"a line goes beyond {limit} bytes")
            return False
        self._tail += rest.tobytes()
        return True

    def _refused(self) -> EngineError:
        error = self.target.refusal
        assert error is not None
        for shown in self.target.shown():
            shown.note_refusal(error)
        return error

    def flush(self) -> None:
        """A descriptor is closed: append the whole lines, keep an unfinished one."""
        with self._lock:
            try:
                self.target.flush()
            finally:
                if self._tail:
                    for shown in self.target.shown():
                        shown.begin_close(self)

    def persist(self) -> None:
        """fsync: the whole lines are on disk afterwards."""
        with self._lock:
            self.target.persist()

    def flush_waiting(self, before: int) -> None:
        """Append lines that wait since before some time. After an error they go on waiting: the writer's next
        call tries again, and is told where it still fails."""
        if not self._lock.acquire(blocking=False):
            return  # the writer is at work, and sends them itself or waits for the next round
        try:
            since = self.target.waiting_since()
            if since is not None and since <= before:
                self.target.flush()
        except (EngineError, OSError) as error:
            for shown in self.target.shown():
                shown.note_refusal(error)
        finally:
            self._lock.release()

    def waiting_since(self) -> int | None:
        """When the first line that waits came."""
        return self.target.waiting_since()

    @property
    def holds_lines(self) -> bool:
        """Whether lines wait, or the beginning of one."""
        return bool(self._tail) or self.target.waiting_since() is not None

    def release(self) -> None:
        """The last descriptor is closed: an unfinished line is a line now. Nobody can be told of an error."""
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
                for shown in self.target.shown():
                    shown.note_refusal(error)
            finally:
                for shown in self.target.shown():
                    shown.end_close(self)
                self._writers.forget(self)


@dataclass(slots=True)
class Writers:
    """All open writers, and the flusher's work: lines do not wait longer than `linger_ms`.

    clock      gives the time
    linger_ms  how long lines may wait
    _open      the writers
    _waiting   those whose lines wait
    _idle      the flusher waits for such a writer. Otherwise nobody wakes it: it would stand in the way of the very
               writer that woke it
    """

    clock: Clock
    linger_ms: int
    _open: dict[AppendHandle, None] = field(default_factory=dict)
    _waiting: dict[AppendHandle, None] = field(default_factory=dict)
    _noted: threading.Condition = field(default_factory=threading.Condition)
    _idle: bool = False
    _stopped: threading.Event = field(default_factory=threading.Event)

    def open(self, target: Target) -> AppendHandle:
        """A new writer."""
        handle = AppendHandle(target, self)
        with self._noted:
            self._open[handle] = None
        return handle

    def hold_lines_for(self, shown: ShownPartition) -> bool:
        """Whether a writer holds lines that it may append to a partition."""
        with self._noted:
            handles = list(self._open)
        return any(handle.holds_lines and shown in handle.target.shown() for handle in handles)

    def note(self, handle: AppendHandle) -> None:
        """Lines of a writer may wait from now on."""
        if handle.waiting_since() is None:
            return
        with self._noted:
            # Looked at under the lock: the flusher may be about to take it out.
            if handle not in self._waiting:
                self._waiting[handle] = None
                if self._idle:
                    self._noted.notify()

    def forget(self, handle: AppendHandle) -> None:
        """A writer is gone."""
        with self._noted:
            self._open.pop(handle, None)
            self._waiting.pop(handle, None)

    def flush_due(self) -> None:
        """Append the lines that have waited long enough."""
        with self._noted:
            handles = list(self._waiting)
        for handle in handles:
            handle.flush_waiting(self.clock() - self.linger_ms)
            if handle.waiting_since() is None:
                with self._noted:
                    # Lines that came meanwhile have been noted again, or are seen here.
                    if handle.waiting_since() is None:
                        self._waiting.pop(handle, None)

    def flush_all(self) -> None:
        """Append everything that waits: the mount goes away."""
        with self._noted:
            handles = list(self._open)
        for handle in handles:
            with contextlib.suppress(EngineError, OSError):
                handle.release()

    def run(self) -> None:
        """The flusher's loop, until `stop`."""
        while not self._stopped.is_set():
            with self._noted:
                self._idle = True
                self._noted.wait_for(lambda: self._waiting or self._stopped.is_set())
                self._idle = False
            self._stopped.wait(max(self.linger_ms, 1) / 1000)
            self.flush_due()

    def stop(self) -> None:
        """End the flusher's loop."""
        self._stopped.set()
        with self._noted:
            self._noted.notify_all()
