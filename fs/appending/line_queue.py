"""The queue of one partition: whole lines of all its writers, in the order in which their writes were accepted.

It is to lines what Nagle's algorithm is to segments of TCP:

    nothing waits, and nothing was appended lately     a write is appended at once, and its error is the write's
    lines come faster than `linger.ms`                 they gather, up to `batch.size`, and are appended together
    an append has failed                               each write is appended at once, until one succeeds

Lines gather only where their room is made sure of before (`Log.promise`): a full disk is met by the write itself.
The first write of an open file does not gather either: most files are opened for one line and closed, as by
`echo >>`, and the close would append it anyway.

What can still fail when lines that gathered are appended is the disk itself. They then stay where they are, in front
of everything that comes later, and are tried again; until they are appended no other line is taken. As soon as fsync
or close has told their writer of the failure, they are dropped: what was reported as failed is never applied.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from topicfs.engine import batch as batches
from topicfs.engine.batch.columns import Columns
from topicfs.engine.batch.table import Bytes
from topicfs.engine.errors import EngineError, RecordTooLargeError
from topicfs.engine.format.batch_header import HEADER_SIZE
from topicfs.engine.kernels.encode import NEWLINE, RECORD_OVERHEAD
from topicfs.engine.partition.offsets import Appended
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.validate import batch_limit, shape_for
from topicfs.engine.record import Codec, TimestampType
from topicfs.fs.appending.linger import Linger

if TYPE_CHECKING:
    pass

log = logging.getLogger(__name__)

LARGE: Final = 32 * 1024
"""A write of this many bytes gains nothing by waiting for others: to keep a copy of it costs as much as an append."""

RETRY_MS: Final = 1000
"""How often lines that could not be appended are tried again, while nobody asks."""

_UNFINISHED_STEP: Final = 4096
"""Room for an unfinished line is made sure of in steps of this many bytes: it may come a byte at a time."""


class Sender:
    """One writer, as a queue knows it.

    has_written  a write of it was taken
    lost         why lines of it were dropped, until it is told
    held         bytes that are promised to its unfinished line
    """

    __slots__ = ("has_written", "held", "lost")

    def __init__(self) -> None:
        self.has_written = False
        self.lost: EngineError | OSError | None = None
        self.held = 0


@dataclass(frozen=True, slots=True)
class Built:
    """A batch that is finished.

    batch      its bytes
    text_size  bytes of its records as `txt`
    """

    batch: Bytes
    text_size: int


@dataclass(frozen=True, slots=True)
class _Waiting:
    """What one write brought.

    sender  whose it is
    piece   whole lines, of which each is a value; or records; or a batch of them
    now     when it came: the timestamp of lines
    size    bytes in the log, at most
    """

    sender: Sender
    piece: Bytes | Columns | Built
    now: int
    size: int


class LineQueue:
    """Lines on their way into one partition.

    _partition where the lines go
    _appended  called with each batch that was appended, and the bytes of its values with their newlines
    _refused   called with each error that no writer is told
    _linger    how long lines wait, and the clock of that
    _lock      held by who adds or appends lines. It is this partition's: nobody waits for another one's disk
    _waiting   what waits, in the order in which it came
    _size      bytes of it in the log, at most
    _promised  bytes that the log has promised for it
    _limit     the largest batch, as the settings had it when the first of it came
    _since     when that was, by the steady clock; None while nothing waits
    _last      when something was last appended
    _failed    the last append failed, and when it may be tried again by the flusher
    _senders   how many writers are open
    _builder   makes batches, while there are writers
    _has_room  room was asked for since it was last given back
    """

    def __init__(
        self,
        partition: Partition,
        linger: Linger,
        appended: Callable[[Appended, int], None],
        refused: Callable[[Exception], None],
    ) -> None:
        self._partition = partition
        self._appended = appended
        self._refused = refused
        self._linger = linger
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        self._size = 0
        self._promised = 0
        self._limit = 0
        self._since: int | None = None
        self._last: int | None = None
        self._failed: int | None = None
        self._senders = 0
        self._builder: batches.BatchBuilder | None = None
        self._has_room = False
        self._partition.log.register_queue(self.flush_all)

    # -- writers --------------------------------------------------------------------------------------

    def join(self) -> Sender:
        """A writer is opened."""
        with self._lock:
            self._senders += 1
        return Sender()

    def leave(self, sender: Sender) -> None:
        """A writer is gone. The room that is left over is given back with the last one."""
        with self._lock:
            self._drop(sender)
            self._hold(sender, 0)
            self._senders -= 1
            if not self._senders:
                self._builder = None
                if self._has_room and not self._waiting:
                    self._has_room = False
                    with contextlib.suppress(OSError):
                        self._partition.log.release_room()

    def waits_for(self, sender: Sender) -> bool:
        """Whether lines of a writer wait."""
        with self._lock:
            return self._has(sender)

    @property
    def holds_lines(self) -> bool:
        """Whether lines wait."""
        return bool(self._waiting)

    def _has(self, sender: Sender) -> bool:
        return any(waiting.sender is sender for waiting in self._waiting)

    def _tell_of_loss(self, sender: Sender) -> None:
        if sender.lost is not None:
            error, sender.lost = sender.lost, None
            raise error

    # -- taking lines ---------------------------------------------------------------------------------

    def put_lines(
        self, sender: Sender, head: Bytes, lines: Bytes, now: int, batch_size: int
    ) -> tuple[int, EngineError | None]:
        """Take whole lines, each a value, of which `head` is the first if it is not empty. Gives how many bytes were
        taken, and why the line behind them is refused. After an error nothing was taken."""
        whole = size = int(head.size + lines.size)
        if sender.has_written and size < LARGE:
            size += RECORD_OVERHEAD * (1 + int(np.count_nonzero(lines == NEWLINE)))
        with self._lock:
            self._tell_of_loss(sender)
            if self._gathers(sender, size, batch_size):
                # Copied: what was given is libfuse's memory.
                kept = np.concatenate((head, lines))
                if self._gather(sender, kept, now, size, batch_size):
                    return whole, None
            return self._append_behind(sender, head, lines, now)

    def put_columns(self, sender: Sender, columns: Columns, now: int, batch_size: int) -> int:
        """Take records that were checked. Gives how many were taken; after an error none was."""
        size = columns_size(columns)
        with self._lock:
            self._tell_of_loss(sender)
            if self._gathers(sender, size, batch_size) and self._gather(
                sender, columns, now, size, batch_size
            ):
                return len(columns)
            self._flush()
            return self._append_columns(sender, columns)

    def keep_columns(self, sender: Sender, columns: Columns, now: int, batch_size: int) -> None:
        """Take records that cannot be refused any more, as others of their write are appended elsewhere: what cannot
        be appended waits."""
        size = columns_size(columns)
        with self._lock:
            try:
                if self._gathers(sender, size, batch_size) and self._gather(
                    sender, columns, now, size, batch_size
                ):
                    return
            except (EngineError, OSError) as error:
                # What came before them could not be appended: they wait behind it.
                self._refused(error)
            self._keep_or_append(sender, columns, now)

    def _gathers(self, sender: Sender, size: int, batch_size: int) -> bool:
        """Whether lines of this size may wait for others."""
        if self._failed is not None or not sender.has_written or not self._partition.is_open:
            return False
        if HEADER_SIZE + size > min(batch_size, batch_limit(self._partition.settings), LARGE):
            return False
        if self._waiting:
            return True
        return self._last is not None and self._linger.clock() - self._last < self._linger.linger_ms

    def _gather(self, sender: Sender, piece: Bytes | Columns, now: int, size: int, batch_size: int) -> bool:
        """Let lines wait. False where their room cannot be made sure of."""
        if self._waiting and self._size + HEADER_SIZE + size > self._promised:
            self._flush()
        if not self._waiting:
            limit = batch_limit(self._partition.settings)
            if not self._promise(HEADER_SIZE + size, min(batch_size, limit)):
                return False
            self._limit = limit
        if not self._waiting or type(self._waiting[-1].piece) is not type(piece):
            size += HEADER_SIZE
        self._add(_Waiting(sender, piece, now, size))
        if self.due_ms is not None and self.due_ms <= self._linger.clock():
            # The flusher does not wait for writers that are at work: they do its.
            with contextlib.suppress(EngineError, OSError):
                self._flush()
        return True

    def _promise(self, least: int, most: int) -> bool:
        self._has_room = True
        codec = self._partition.settings.codec
        # What cannot be compressed grows by a little.
        more = 0 if codec in (None, Codec.NONE) else 1024 + most // 256
        try:
            promised = self._partition.log.promise(least + more, max(least, most) + more)
        except OSError:
            # The write itself meets the lack of room, or finds some.
            promised = 0
        self._promised = promised
        return promised > 0

    def _add(self, waiting: _Waiting) -> None:
        waiting.sender.has_written = True
        self._waiting.append(waiting)
        self._size += waiting.size
        if self._since is None:
            self._since = self._linger.clock()
            self._linger.note(self)

    # -- appending ------------------------------------------------------------------------------------

    def _append_behind(
        self, sender: Sender, head: Bytes, lines: Bytes, now: int
    ) -> tuple[int, EngineError | None]:
        """Append lines, and what waits in front of them: in one batch where that are lines too. Where a long text comes
        through requests that are large and small by turns, there would otherwise be twice as many."""
        front = [waiting.piece for waiting in self._waiting if isinstance(waiting.piece, np.ndarray)]
        limit = batch_limit(self._partition.settings)
        if not front or len(front) < len(self._waiting) or limit != self._limit:
            self._flush()
            return self._append_lines(sender, (head, lines), now)
        before = np.concatenate(front)
        try:
            taken, refusal = self._append_lines(sender, (before, head, lines), self._waiting[0].now)
        except (EngineError, OSError):
            # Those that wait have room, if these have none.
            self._flush()
            raise
        self._waiting.clear()
        self._end_waiting()
        if taken == before.size and refusal is None:
            # An error came behind them: it is met anew, by these lines alone.
            return self._append_lines(sender, (head, lines), now)
        return taken - before.size, refusal

    def _append_lines(
        self, sender: Sender, pieces: tuple[Bytes, ...], now: int
    ) -> tuple[int, EngineError | None]:
        builder = self._empty_builder()
        taken = built = 0
        refusal = None
        try:
            for piece in pieces:
                at = 0
                while at < piece.size and refusal is None:
                    try:
                        end = builder.add_lines(piece, at, now)
                    except RecordTooLargeError as error:
                        refusal = error
                        break
                    built, at = built + end - at, end
                    if at < piece.size:
                        self._append(self._finished(builder), sender.held + self._promised)
                        taken = built
            if builder.count:
                self._append(self._finished(builder), sender.held + self._promised)
                taken = built
        except (EngineError, OSError):
            # What was taken must not come again: the error is met by who writes the rest.
            if not taken:
                raise
            refusal = None
        if taken:
            sender.has_written = True
        return taken, refusal

    def _append_columns(self, sender: Sender, columns: Columns) -> int:
        builder = self._empty_builder()
        at = 0
        while at < len(columns):
            end = at + builder.add_columns(columns.rows(at, len(columns)))
            try:
                self._append(self._finished(builder), sender.held + self._promised)
            except (EngineError, OSError):
                if not at:
                    raise
                break
            at = end
            sender.has_written = True
        return at

    def _keep_or_append(self, sender: Sender, columns: Columns, now: int) -> None:
        """Append records, in batches, as far as that does well, and let the others wait."""
        builder = self._empty_builder()
        at = 0
        while at < len(columns):
            at += builder.add_columns(columns.rows(at, len(columns)))
            built = self._finished(builder)
            self._add(_Waiting(sender, built, now, int(built.batch.size)))
        with contextlib.suppress(EngineError, OSError):
            self._flush()

    def _empty_builder(self) -> batches.BatchBuilder:
        """A builder, the one that was used last if it can be: memory that is new for each write costs a third of it."""
        limit = batch_limit(self._partition.settings)
        builder = self._builder
        if builder is None or builder.count or builder.limit != limit:
            builder = self._builder = batches.BatchBuilder(limit)
        return builder

    def _finished(self, builder: batches.BatchBuilder) -> Built:
        settings = self._partition.settings
        stamped = settings.message_timestamp_type == TimestampType.LOG_APPEND_TIME
        append_time = self._partition.log.clock() if stamped else None
        size = builder.text_size
        return Built(builder.finish(shape_for(settings), append_time), size)

    def _append(self, built: Built, room: int) -> None:
        self._last = self._linger.clock()
        try:
            appended = self._partition.append_waiting(built.batch, room)
        except (EngineError, OSError):
            self._failed = self._last + RETRY_MS
            raise
        self._failed = None
        self._appended(appended, built.text_size)

    def _flush(self) -> None:
        """Append what waits. What could not be appended goes on waiting, in its place, unless it never can be."""
        try:
            while self._waiting:
                built, count = self._first_batch()
                self._append(built, self._promised)
                for _ in range(count):
                    self._size -= self._waiting.popleft().size
        except EngineError as error:
            # The partition is deleted, or offline until the next mount.
            self._lose(error)
            raise
        self._end_waiting()

    def _first_batch(self) -> tuple[Built, int]:
        """The first of what waits as one batch, and how many writes are in it."""
        first = self._waiting[0].piece
        if isinstance(first, Built):
            return first, 1
        together: list[_Waiting] = []
        size = HEADER_SIZE
        for waiting in self._waiting:
            if type(waiting.piece) is not type(first) or (together and size + waiting.size > self._limit):
                break
            together.append(waiting)
            size += waiting.size
        builder = batches.BatchBuilder(self._limit)
        if isinstance(first, Columns):
            for waiting in together:
                assert isinstance(waiting.piece, Columns)
                builder.add_columns(waiting.piece)
        else:
            lines = [waiting.piece for waiting in together if isinstance(waiting.piece, np.ndarray)]
            builder.add_lines(np.concatenate(lines), 0, together[0].now)
        return self._finished(builder), len(together)

    def _end_waiting(self) -> None:
        if self._promised:
            self._partition.log.take_back(self._promised)
        self._size = self._promised = 0
        self._since = None

    # -- who asks -------------------------------------------------------------------------------------

    def flush(self, sender: Sender) -> None:
        """Append what waits of a writer, and what came before it. An error is the last that is heard of its lines:
        they are dropped."""
        with self._lock:
            self._tell_of_loss(sender)
            if not self._has(sender):
                return
            try:
                self._flush()
            except (EngineError, OSError):
                self._drop(sender)
                sender.lost = None
                raise

    def flush_all(self) -> None:
        """Append everything that waits: something else is about to be appended."""
        if self._waiting:
            with self._lock:
                self._flush()

    @property
    def due_ms(self) -> int | None:
        """When lines have waited long enough; None while none wait."""
        since, failed = self._since, self._failed
        if since is None:
            return None
        return since + self._linger.linger_ms if failed is None else failed

    def flush_due(self) -> None:
        """Append what has waited long enough. After an error it goes on waiting: it is tried again, and its writers
        are told by their next fsync or close if it still fails."""
        if not self._lock.acquire(blocking=False):
            return  # a writer is at work, and looks at the time itself
        try:
            due = self.due_ms
            if due is not None and due <= self._linger.clock():
                self._flush()
        except (EngineError, OSError) as error:
            self._refused(error)
        finally:
            self._lock.release()

    # -- dropping -------------------------------------------------------------------------------------

    def _drop(self, sender: Sender) -> None:
        """Forget the lines of a writer."""
        if self._has(sender):
            self._waiting = deque(waiting for waiting in self._waiting if waiting.sender is not sender)
            self._size = sum(waiting.size for waiting in self._waiting)
            if not self._waiting:
                self._end_waiting()

    def _lose(self, error: EngineError) -> None:
        """Forget all lines; their writers are told by what they do next."""
        for waiting in self._waiting:
            waiting.sender.lost = error
        self._waiting.clear()
        self._end_waiting()

    # -- unfinished lines -----------------------------------------------------------------------------

    def hold(self, sender: Sender, size: int) -> None:
        """Make sure that there is room for an unfinished line of this size, as far as can be. OSError where there is
        none."""
        with self._lock:
            self._hold(sender, size)

    def _hold(self, sender: Sender, size: int) -> None:
        partition_log = self._partition.log
        if not size:
            if sender.held:
                partition_log.take_back(sender.held, lines=False)
                sender.held = 0
            return
        size += HEADER_SIZE + RECORD_OVERHEAD
        wanted = min(-(-size // _UNFINISHED_STEP) * _UNFINISHED_STEP, batch_limit(self._partition.settings))
        more = wanted - sender.held
        if more <= 0:
            return
        self._has_room = True
        if not partition_log.promise_unfinished(more):
            if not self._waiting:
                return
            self._flush()
            if not partition_log.promise_unfinished(more):
                return
        sender.held = wanted

    def find_room(self, sender: Sender, columns: Columns, batch_size: int) -> None:
        """OSError where there is no room for records; nothing where that cannot be known."""
        size = HEADER_SIZE + columns_size(columns)
        with self._lock:
            self._tell_of_loss(sender)
            if (
                self._waiting
                and self._gathers(sender, size, batch_size)
                and self._size + size <= self._promised
            ):
                return
            self._flush()
            self._has_room = True
            promised = self._partition.log.promise(size, size, lines=False)
            self._partition.log.take_back(promised, lines=False)

    def give_room_back(self, sender: Sender) -> None:
        """An unfinished line has ended, and goes elsewhere."""
        with self._lock:
            self._hold(sender, 0)
            with contextlib.suppress(OSError):
                self._partition.log.release_room()


def columns_size(columns: Columns) -> int:
    """Bytes that records take in the log, at most."""
    spans = np.maximum(columns.key_length, 0) + np.maximum(columns.value_length, 0) + columns.headers_length
    return int(spans.sum(dtype=np.int64)) + RECORD_OVERHEAD * len(columns)
