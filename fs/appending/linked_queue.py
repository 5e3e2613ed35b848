"""The queue of a partition whose lines a Kafka cluster appends. It has the same methods as a `LineQueue`.

    nothing is under way, and nothing was lately     a write is sent at once, and returns when it is acknowledged and
                                                     shown here: it reports its own error
    lines come faster than that                      they gather, and go as batches that are under way together: up to
                                                     `batch.size` each, and up to the topic's largest batch while as
                                                     many are under way as may be

Close and fsync wait until all batches with lines of their writer are acknowledged and shown. Where one is lost, the
next call of its writer tells so: a write takes nothing then. No lock is held while anybody waits for the cluster, or
for a mirror that is not ready. Lines that are due meanwhile stay, for as long as a batch may be under way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np

from topicfs.engine import batch as batches
from topicfs.engine.batch.columns import Columns
from topicfs.engine.batch.table import Bytes
from topicfs.engine.errors import EngineError, RecordTooLargeError
from topicfs.engine.format.batch_header import HEADER_SIZE
from topicfs.engine.kernels.encode import NEWLINE, RECORD_OVERHEAD
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.remote import Remote, UnderWay, Way
from topicfs.engine.partition.validate import batch_limit, shape_for
from topicfs.fs.appending.line_queue import Sender, columns_size
from topicfs.fs.appending.linger import Linger

Parts = list[tuple[int, UnderWay]]
"""Batches of one write, and how much of the write is taken when each of them is."""

T = TypeVar("T")

_FULL_LOOK_MS: Final = 5
"""How soon the flusher looks again at lines that are due while no more batches may be under way."""

_READY_LOOK_MS: Final = 50
"""How soon it looks again at lines that are due while the mirror is not ready."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """What one write brought.

    sender  the writer
    piece   complete lines, each of which is a value; or records
    now     when it came: the timestamp of its lines
    size    bytes that it takes in a batch, at most
    """

    sender: Sender
    piece: Bytes | Columns
    now: int
    size: int


@dataclass(slots=True, eq=False)
class LinkedQueue:
    """The lines that wait to be sent to the leader of one partition.

    _partition  the partition that mirrors it
    _way        leads to what appends in the cluster
    _refused    called with each error that is not reported to any writer
    _linger     knows how long lines wait, and has the steady clock
    _lock       held while lines are added or sent, never while somebody waits for the cluster
    _waiting    the writes that wait, in the order in which they came: all of lines, or all of records
    _size       bytes that they take in a batch, at most
    _limit      the largest batch, by the settings when the first of them came
    _since      when the first of them came, by the steady clock; None if nothing waits
    _later      when the flusher looks again at lines that were due, and could not be sent; 0 before that
    _last       when a batch was last sent; None before the first
    """

    _partition: Partition
    _way: Way
    _linger: Linger
    _refused: Callable[[Exception], None]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _waiting: list[_Waiting] = field(default_factory=list)
    _size: int = 0
    _limit: int = 0
    _since: int | None = None
    _later: int = 0
    _last: int | None = None

    def __post_init__(self) -> None:
        self._partition.log.register_queue(self.flush_all)

    # -- writers --------------------------------------------------------------------------------------

    def join(self) -> None:
        """Count a writer that was opened: nothing is held for it."""

    def leave(self, sender: Sender) -> None:
        """Remove a writer that was closed."""
        with self._lock:
            self._drop(sender)

    @property
    def holds_lines(self) -> bool:
        """Tell whether any lines wait, or are under way."""
        remote = self._partition.log.remote
        return bool(self._waiting) or (remote is not None and remote.is_busy)

    def _has(self, sender: Sender) -> bool:
        return any(waiting.sender is sender for waiting in self._waiting)

    def _tell_of_loss(self, sender: Sender) -> None:
        if sender.lost is not None:
            self._drop(sender)
            error, sender.lost, sender.sent = sender.lost, None, None
            raise error

    # -- taking lines ---------------------------------------------------------------------------------

    def put_lines(
        self, sender: Sender, head: Bytes, lines: Bytes, now: int
    ) -> tuple[int, EngineError | None]:
        """Take complete lines, each of which is a value; `head` is the first if it is not empty. Return how many bytes
        were taken, and why the next line is refused. After an error nothing was taken."""
        whole = int(head.size + lines.size)
        size = whole + RECORD_OVERHEAD * (1 + int(np.count_nonzero(lines == NEWLINE)))
        streams, sent = self._take(
            sender,
            size,
            # They are copied, as the bytes are in libfuse's memory.
            lambda: _Waiting(sender, np.concatenate((head, lines)), now, size),
            lambda remote: self._send_lines(remote, sender, (head, lines), now),
        )
        if sent is None:
            return whole, None
        parts, refusal = sent
        if streams or not parts:
            return (parts[-1][0] if parts else 0), refusal
        taken = self._await(sender, parts)
        return taken, refusal if taken == parts[-1][0] else None

    def put_columns(self, sender: Sender, columns: Columns, now: int) -> int:
        """Take records that were checked. Return how many were taken. After an error none was taken."""
        size = columns_size(columns)
        streams, parts = self._take(
            sender,
            size,
            lambda: _Waiting(sender, columns, now, size),
            lambda remote: self._send_columns(remote, sender, columns),
        )
        return len(columns) if streams or parts is None else self._await(sender, parts)

    def _take(
        self, sender: Sender, size: int, waiting: Callable[[], _Waiting], send: Callable[[Remote], T]
    ) -> tuple[bool, T | None]:
        """Have lines wait or, where they cannot, be sent, once there is room. Return whether their writer need not wait
        for the acknowledgement, and what `send` gives; None where they wait."""
        while True:
            remote = self._way.remote()
            with self._lock:
                self._tell_of_loss(sender)
                streams = self._streams(sender, remote)
                if streams and self._fits(size):
                    if self._has_place(size, remote):
                        self._gather(waiting(), remote)
                        return streams, None
                elif not remote.is_full:
                    self._send_waiting(remote)
                    return streams, send(remote)
            remote.await_room()

    def keep_columns(self, sender: Sender, columns: Columns, now: int) -> None:
        """Take records that can no longer be refused, because other records of their write are sent elsewhere."""
        size = columns_size(columns)
        remote = self._way.remote()
        with self._lock:
            if self._fits(size):
                self._gather(_Waiting(sender, columns, now, size), remote)
            else:
                self._send_waiting(remote)
                self._send_columns(remote, sender, columns)

    def _streams(self, sender: Sender, remote: Remote) -> bool:
        """Tell whether a writer's lines need not be acknowledged before its write returns."""
        if not sender.has_written or not sender.batch_size:
            return False
        if self._waiting or remote.is_busy:
            return True
        return self._last is not None and self._linger.clock() - self._last < self._linger.linger_ms

    def _fits(self, size: int) -> bool:
        return HEADER_SIZE + size <= batch_limit(self._partition.settings)

    def _joins(self, size: int) -> bool:
        """Tell whether lines fit into one batch with those that wait."""
        return not self._waiting or HEADER_SIZE + self._size + size <= self._limit

    def _has_place(self, size: int, remote: Remote) -> bool:
        """Tell whether lines can be taken at once: with those that wait, or as those are sent now."""
        return self._joins(size) or not remote.is_full

    def _gather(self, waiting: _Waiting, remote: Remote) -> None:
        is_other = bool(self._waiting) and type(self._waiting[-1].piece) is not type(waiting.piece)
        if is_other or not self._joins(waiting.size):
            self._send_waiting(remote)
        if not self._waiting:
            self._limit = batch_limit(self._partition.settings)
        waiting.sender.has_written = True
        self._waiting.append(waiting)
        self._size += waiting.size
        if self._since is None:
            self._since = self._linger.clock()
            self._linger.note(self)
        is_due = (
            self._size >= waiting.sender.batch_size
            or self._linger.clock() - self._since >= self._linger.linger_ms
        )
        if is_due and not remote.is_full:
            self._send_waiting(remote)

    # -- sending --------------------------------------------------------------------------------------

    def _send_lines(
        self, remote: Remote, sender: Sender, pieces: tuple[Bytes, ...], now: int
    ) -> tuple[Parts, EngineError | None]:
        builder = self._builder()
        parts: Parts = []
        taken, refusal = 0, None
        for piece in pieces:
            at = 0
            while at < piece.size and refusal is None:
                try:
                    end = builder.add_lines(piece, at, now)
                except RecordTooLargeError as error:
                    refusal = error
                    break
                taken, at = taken + end - at, end
                if at < piece.size:
                    parts.append((taken, self._send(remote, builder, (sender,))))
        if builder.count:
            parts.append((taken, self._send(remote, builder, (sender,))))
        return parts, refusal

    def _send_columns(self, remote: Remote, sender: Sender, columns: Columns) -> Parts:
        builder = self._builder()
        parts: Parts = []
        at = 0
        while at < len(columns):
            at += builder.add_columns(columns.rows(at, len(columns)))
            parts.append((at, self._send(remote, builder, (sender,))))
        return parts

    def _send_waiting(self, remote: Remote) -> None:
        """Send what waits, as one batch."""
        if not self._waiting:
            return
        # As large as when they were taken: the settings may have changed since.
        builder, now = batches.BatchBuilder(self._limit), self._waiting[0].now
        pieces = [waiting.piece for waiting in self._waiting]
        lines = [piece for piece in pieces if isinstance(piece, np.ndarray)]
        if lines:
            joined = np.concatenate(lines)
            used = builder.add_lines(joined, 0, now)
            assert used == joined.size, f"{joined.size} bytes of lines waited, {used} fit into a batch"
        for piece in pieces:
            if isinstance(piece, Columns):
                added = builder.add_columns(piece)
                assert added == len(piece), f"{len(piece)} records waited, {added} fit into a batch"
        senders = tuple({id(waiting.sender): waiting.sender for waiting in self._waiting}.values())
        self._clear()
        self._send(remote, builder, senders)

    def _builder(self) -> batches.BatchBuilder:
        return batches.BatchBuilder(batch_limit(self._partition.settings))

    def _send(self, remote: Remote, builder: batches.BatchBuilder, senders: tuple[Sender, ...]) -> UnderWay:
        self._last = self._linger.clock()
        # The append time is the leader's to give.
        shape = shape_for(self._partition.settings)
        sent = remote.send(builder.finish(batches.Shape(shape.codec, shape.level), None), senders)
        for sender in senders:
            sender.has_written = True
            sender.sent = sent
        return sent

    def _await(self, sender: Sender, parts: Parts) -> int:
        """Wait until the batches of a write are acknowledged and shown. Return how much of it is."""
        taken = 0
        for size, sent in parts:
            try:
                sent.wait()
            except (EngineError, OSError) as error:
                sender.sent = None
                # The writer is told of what was taken, or of the error. The next write, of the rest, meets it.
                sender.lost = error if taken else None
                if not taken:
                    raise
                return taken
            taken = size
        sender.sent = None
        return taken

    # -- sending what waits ---------------------------------------------------------------------------

    def flush(self, sender: Sender) -> None:
        """Send the waiting lines of a writer, and wait until the cluster has all of its lines, and they show here.
        After an error its lines are dropped, and it is not reported again."""
        with self._lock:
            self._tell_of_loss(sender)
            is_waiting = self._has(sender)
        if is_waiting:
            self._send_of(sender)
        with self._lock:
            self._tell_of_loss(sender)
            sent = sender.sent
        if sent is not None:
            try:
                sent.wait()
            except (EngineError, OSError):
                sender.sent = sender.lost = None
                raise
            sender.sent = None

    def _send_of(self, sender: Sender) -> None:
        """Send what waits, with a writer's lines. After an error those are dropped."""
        try:
            remote = self._way.remote()
            with self._lock:
                if self._has(sender):
                    self._send_waiting(remote)
        except (EngineError, OSError):
            with self._lock:
                self._drop(sender)
            raise

    def flush_all(self) -> None:
        """Send all waiting lines, if there is what appends them."""
        remote = self._partition.log.remote
        if self._waiting and remote is not None:
            with self._lock:
                self._send_waiting(remote)

    @property
    def due_ms(self) -> int | None:
        """Return when the waiting lines are due, or None if none wait."""
        since = self._since
        return None if since is None else max(since + self._linger.linger_ms, self._later)

    def flush_due(self) -> None:
        """Send lines that have waited long enough, unless as many batches are under way as may be, or the mirror is not
        ready: it waits for nothing."""
        if not self._lock.acquire(blocking=False):
            return  # a writer has the lock, and checks the time itself
        try:
            due, now = self.due_ms, self._linger.clock()
            if due is None or self._since is None or due > now:
                return
            remote = self._partition.log.remote
            if remote is None:
                self._way.check_coming(now - self._since)
                self._later = now + _READY_LOOK_MS
            elif remote.is_full:
                self._later = now + _FULL_LOOK_MS
            else:
                self._send_waiting(remote)
        except EngineError as error:
            self._refused(error)
            for waiting in self._waiting:
                waiting.sender.lost = error
            self._clear()
        finally:
            self._lock.release()

    # -- dropping -------------------------------------------------------------------------------------

    def _drop(self, sender: Sender) -> None:
        """Drop the waiting lines of a writer."""
        if self._has(sender):
            self._waiting = [waiting for waiting in self._waiting if waiting.sender is not sender]
            self._size = sum(waiting.size for waiting in self._waiting)
            if not self._waiting:
                self._clear()

    def _clear(self) -> None:
        self._waiting = []
        self._size = 0
        self._since, self._later = None, 0

    # -- room -----------------------------------------------------------------------------------------

    def hold(self, sender: Sender, size: int) -> None:
        """Make sure that an unfinished line can be sent, as far as that is possible: no room is needed here."""
        if size:
            self._way.remote()

    def find_room(self, sender: Sender, columns: Columns) -> None:
        """Wait until records may be sent. Raise what the writer is to be told of."""
        with self._lock:
            self._tell_of_loss(sender)
        self._way.remote().await_room()

    def give_room_back(self, sender: Sender) -> None:
        """Give back the room of an unfinished line: it has none."""
