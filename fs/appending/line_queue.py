"""The queue of one partition: complete lines of all its writers, in the order in which their writes were accepted.

It does for lines what Nagle's algorithm does for TCP segments:

    nothing waits, and nothing was appended lately     a write is appended at once, and reports its own error
    lines come faster than `linger.ms`                 they gather, up to `batch.size`, and are appended together
    large writes come faster than that                 each is appended while its writer makes the next one
    an append has failed                               each write is appended at once, until one succeeds

Lines wait only after room for them was promised (`Log.promise`), so the write itself meets a full disk. The first
write of an open file does not gather either: most files are opened for one line and closed, as by `echo >>`, and the
close would append it anyway.

When gathered lines are appended, only the disk itself can still fail. The lines then stay in front of everything that
comes later, and are tried again; no other line is taken before they are appended. As soon as fsync or close has told
their writer of the failure, they are dropped: what was reported as failed is never applied.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from topicfs.engine import batch as batches
from topicfs.engine.batch.columns import Columns
from topicfs.engine.batch.table import Bytes, Longs
from topicfs.engine.errors import EngineError, RecordTooLargeError
from topicfs.engine.format.batch_header import HEADER_SIZE
from topicfs.engine.kernels.encode import NEWLINE, RECORD_OVERHEAD
from topicfs.engine.kernels.scan import BASE_OFFSET, LAST_OFFSET, POSITION
from topicfs.engine.partition.offsets import Appended
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.remote import UnderWay
from topicfs.engine.partition.validate import batch_limit, shape_for
from topicfs.engine.record import Codec, TimestampType
from topicfs.fs.appending.linger import Linger
from topicfs.fs.appending.write_behind import WriteBehind

log = logging.getLogger(__name__)

LARGE: Final = 32 * 1024
"""A write of this many bytes gains nothing by waiting for others: to copy it costs as much as to append it. It gains by
leaving its append to another core."""

RETRY_MS: Final = 1000
"""Milliseconds between attempts to append lines that failed, while no writer asks."""

BATCH: Final = 192 * 1024
"""A large write is divided into batches of this many bytes, or of `batch.size` if that is more: lines of 128 KiB with
what is added to them. The checksum of a larger batch makes a look-up of one record slower."""

_SEGMENT_PARTS: Final = 8
"""Batches that are appended together take at most this part of `segment.bytes`: they do not end a segment early."""

_UNFINISHED_STEP: Final = 4096
"""Room for an unfinished line is promised in steps of this many bytes, as it may come one byte at a time."""


class Sender:
    """One writer, as a queue knows it.

    batch_size   bytes of its lines that may gather
    has_written  whether a write of it was taken
    lost         why lines of it were dropped; None once the writer was told
    sent         the last batch with lines of it that is under way to a Kafka cluster; None if none is
    held         bytes that the log has promised for its unfinished line
    """

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self.has_written = False
        self.lost: EngineError | OSError | None = None
        self.sent: UnderWay | None = None
        self.held = 0


@dataclass(frozen=True, slots=True)
class Built:
    """Finished batches, which are appended together.

    batches  the batches
    texts    for each, the bytes of its records as `txt`
    """

    batches: batches.Batches
    texts: Longs

    @property
    def size(self) -> int:
        """Return the bytes that they take in the log."""
        return int(self.batches.data.size)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """What one write brought.

    sender  the writer
    piece   complete lines, each of which is a value; or records; or batches of records
    now     when it came: the timestamp of its lines
    size    bytes that it takes in the log, at most
    """

    sender: Sender
    piece: Bytes | Columns | Built
    now: int
    size: int


@dataclass(slots=True, eq=False)
class LineQueue:
    """The lines that wait to be appended to one partition.

    _partition  the partition that the lines go to
    _appended   called with each batch that was appended, and the bytes of its values with their newlines
    _refused    called with each error that is not reported to any writer
    _linger     knows how long lines wait, and has the steady clock
    _behind     appends a large write, after its writer was answered
    _lock       held while lines are added or appended. Each partition has its own: no writer waits for another one's
                disk. Whoever leaves an append to another thread leaves it the lock too
    _waiting    the writes that wait, in the order in which they came
    _size       bytes that the waiting writes take in the log, at most
    _promised   bytes that the log has promised for the waiting writes
    _limit      the largest batch, by the settings when the first waiting write came
    _since      when the first waiting write came, by the steady clock; None if nothing waits
    _last       when the last append ended, or began if it is under way; None before the first
    _failed     when the flusher may try again, if the last append failed; else None
    _senders    how many writers are open
    _builder    makes batches; None if no writer is open
    _has_room   whether room was asked for since it was last given back
    """

    _partition: Partition
    _linger: Linger
    _behind: WriteBehind
    _appended: Callable[[Appended, int], None]
    _refused: Callable[[Exception], None]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _waiting: deque[_Waiting] = field(default_factory=deque)
    _size: int = 0
    _promised: int = 0
    _limit: int = 0
    _since: int | None = None
    _last: int | None = None
    _failed: int | None = None
    _senders: int = 0
    _builder: batches.BatchBuilder | None = None
    _has_room: bool = False

    def __post_init__(self) -> None:
        self._partition.log.register_queue(self.flush_all)

    # -- writers --------------------------------------------------------------------------------------

    def join(self) -> None:
        """Count a writer that was opened."""
        with self._lock:
            self._senders += 1

    def leave(self, sender: Sender) -> None:
        """Remove a writer that was closed. After the last one, the room that is left over is given back."""
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

    @property
    def holds_lines(self) -> bool:
        """Tell whether any lines wait."""
        return bool(self._waiting)

    def _has(self, sender: Sender) -> bool:
        return any(waiting.sender is sender for waiting in self._waiting)

    def _tell_of_loss(self, sender: Sender) -> None:
        if sender.lost is not None:
            error, sender.lost = sender.lost, None
            raise error

    # -- taking lines ---------------------------------------------------------------------------------

    def put_lines(
        self, sender: Sender, head: Bytes, lines: Bytes, now: int
    ) -> tuple[int, EngineError | None]:
        """Take complete lines, each of which is a value; `head` is the first if it is not empty. Return how many bytes
        were taken, and why the next line is refused. After an error nothing was taken."""
        whole = size = int(head.size + lines.size)
        if sender.has_written and size < LARGE:
            size += RECORD_OVERHEAD * (1 + int(np.count_nonzero(lines == NEWLINE)))
        elif self._leaves(sender):
            # The batches are made without the lock, which the append of the last write may still hold.
            built = self._build(sender, head, lines, 0, now)
            if built is not None and int(built.texts.sum()) == whole:
                self._put_built(sender, built, now)
                return whole, None
        with self._lock:
            self._tell_of_loss(sender)
            if self._gathers(sender, size):
                # They are copied, as the bytes are in libfuse's memory.
                kept = np.concatenate((head, lines))
                if self._gather(sender, kept, now, size):
                    return whole, None
            return self._append_behind(sender, head, lines, now)

    def _leaves(self, sender: Sender) -> bool:
        """Tell whether a large write may be answered before it is appended."""
        if not (self._behind.runs and sender.has_written and sender.batch_size) or self._failed is not None:
            return False
        if self._lock.locked():
            return True
        return self._last is not None and self._linger.clock() - self._last < self._linger.linger_ms

    def _put_built(self, sender: Sender, built: Built, now: int) -> None:
        """Take the batches of a write. After an error none of them was taken."""
        is_left = False
        self._lock.acquire()
        try:
            self._tell_of_loss(sender)
            self._flush()
            if self._behind.is_idle and self._failed is None and self._has_room_for(built):
                self._waiting.append(_Waiting(sender, built, now, built.size))
                self._size = built.size
                is_left = True
            else:
                self._append(built, sender.held + self._promised)
            sender.has_written = True
        finally:
            if not is_left:
                self._lock.release()
        if is_left and not self._behind.take(self._append_left):
            self._append_left()

    def _has_room_for(self, built: Built) -> bool:
        """Have room promised for batches. Return False if the log cannot do that."""
        self._has_room = True
        try:
            self._promised = self._partition.log.promise(built.size, built.size)
        except OSError:
            # The append itself then meets the lack of room, or finds some.
            self._promised = 0
        return self._promised > 0

    def _append_left(self) -> None:
        """Append what a writer has left to this thread with the lock, and let go of it. After an error the lines keep
        waiting, and are tried again."""
        try:
            self._flush()
        except (EngineError, OSError) as error:
            self._refused(error)
            if self._waiting:
                self._since = self._linger.clock()
                self._linger.note(self)
        finally:
            self._lock.release()

    def put_columns(self, sender: Sender, columns: Columns, now: int) -> int:
        """Take records that were checked. Return how many were taken. After an error none was taken."""
        size = columns_size(columns)
        with self._lock:
            self._tell_of_loss(sender)
            if self._gathers(sender, size) and self._gather(sender, columns, now, size):
                return len(columns)
            self._flush()
            return self._append_columns(sender, columns)

    def put_columns_if(self, sender: Sender, columns: Columns, check: Callable[[], None]) -> tuple[int, int]:
        """Append records that were checked, unless `check` raises an error: nobody appends anything in between. Return
        how many were appended, and the end offset then."""
        with self._lock:
            self._flush()
            with self._partition.log.lock:
                check()
                return self._append_columns(sender, columns), self._partition.end_offset

    def keep_columns(self, sender: Sender, columns: Columns, now: int) -> None:
        """Take records that can no longer be refused, because other records of their write are appended elsewhere.
        Those that cannot be appended wait."""
        size = columns_size(columns)
        with self._lock:
            try:
                if self._gathers(sender, size) and self._gather(sender, columns, now, size):
                    return
            except (EngineError, OSError) as error:
                # Earlier lines could not be appended. These records wait behind them.
                self._refused(error)
            self._keep_or_append(sender, columns, now)

    def _gathers(self, sender: Sender, size: int) -> bool:
        """Tell whether lines of this size may wait for others."""
        if self._failed is not None or not sender.has_written or not self._partition.is_open:
            return False
        if HEADER_SIZE + size > min(sender.batch_size, batch_limit(self._partition.settings), LARGE):
            return False
        if self._waiting:
            return True
        return self._last is not None and self._linger.clock() - self._last < self._linger.linger_ms

    def _gather(self, sender: Sender, piece: Bytes | Columns, now: int, size: int) -> bool:
        """Add lines to those that wait. Return False if the log cannot promise room for them."""
        if self._waiting and self._size + HEADER_SIZE + size > self._promised:
            self._flush()
        if not self._waiting:
            limit = batch_limit(self._partition.settings)
            if not self._promise(HEADER_SIZE + size, min(sender.batch_size, limit)):
                return False
            self._limit = limit
        if not self._waiting or type(self._waiting[-1].piece) is not type(piece):
            size += HEADER_SIZE
        self._add(_Waiting(sender, piece, now, size))
        if self.due_ms is not None and self.due_ms <= self._linger.clock():
            # The flusher does not wait for a lock that a writer holds. So the writer does the flusher's work.
            with contextlib.suppress(EngineError, OSError):
                self._flush()
        return True

    def _promise(self, least: int, most: int) -> bool:
        self._has_room = True
        codec = self._partition.settings.codec
        # Data that cannot be compressed grows a little.
        more = 0 if codec in (None, Codec.NONE) else 1024 + most // 256
        try:
            promised = self._partition.log.promise(least + more, max(least, most) + more)
        except OSError:
            # The write itself then meets the lack of room, or finds some.
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
        """Append lines, after those that wait: in one batch if only lines wait. A long text may come in requests that
        are large and small by turns, and would otherwise be in twice as many batches."""
        front = [waiting.piece for waiting in self._waiting if isinstance(waiting.piece, np.ndarray)]
        limit = batch_limit(self._partition.settings)
        if not front or len(front) < len(self._waiting) or limit != self._limit:
            self._flush()
            return self._append_lines(sender, head, lines, now)
        before = sum(piece.size for piece in front)
        try:
            taken, refusal = self._append_lines(
                sender, np.concatenate((*front, head)), lines, self._waiting[0].now
            )
        except (EngineError, OSError):
            # There is room for the lines that wait, even if there is none for the new ones.
            self._flush()
            raise
        self._waiting.clear()
        self._end_waiting()
        if taken == before and refusal is None:
            # The error came after the waiting lines. The new lines meet it again on their own.
            return self._append_lines(sender, head, lines, now)
        return taken - before, refusal

    def _append_lines(
        self, sender: Sender, head: Bytes, lines: Bytes, now: int
    ) -> tuple[int, EngineError | None]:
        """Append the lines of `head`, and then those of `lines`."""
        taken = 0
        try:
            while taken < head.size + lines.size:
                built = self._build(sender, head, lines, taken, now)
                if built is None:
                    limit = batch_limit(self._partition.settings)
                    return taken, RecordTooLargeError(f"a line exceeds a batch of {limit} bytes")
                self._append(built, sender.held + self._promised)
                sender.has_written = True
                taken += int(built.texts.sum())
        except (EngineError, OSError):
            # What was taken must not be written again: the next write, of the rest, meets the error.
            if not taken:
                raise
        return taken, None

    def _build(self, sender: Sender, head: Bytes, lines: Bytes, start: int, now: int) -> Built | None:
        """Return batches of lines from a position in their text on: as many as are appended together. None if the first
        line is too long."""
        settings = self._partition.settings
        limit = batch_limit(settings)
        most = settings.segment_bytes // _SEGMENT_PARTS
        size = min(max(sender.batch_size, BATCH), limit)
        latest = self._append_time
        built, texts, _ = batches.several_from_lines(
            head, lines, start, now, now if latest is None else latest, shape_for(settings), size, limit, most
        )
        return None if built is None else Built(built, texts)

    def _append_columns(self, sender: Sender, columns: Columns) -> int:
        builder = self._empty_builder()
        ends = np.cumsum(_sizes(columns))
        at = behind = 0
        while at < len(columns):
            full = int(np.searchsorted(ends, behind + max(sender.batch_size, BATCH), "right"))
            end = at + builder.add_columns(columns.rows(at, max(full, at + 1)))
            behind = int(ends[end - 1])
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
        """Append records in batches until one fails, and let the remaining batches wait."""
        builder = self._empty_builder()
        at = 0
        while at < len(columns):
            at += builder.add_columns(columns.rows(at, len(columns)))
            built = self._finished(builder)
            self._add(_Waiting(sender, built, now, built.size))
        with contextlib.suppress(EngineError, OSError):
            self._flush()

    def _empty_builder(self) -> batches.BatchBuilder:
        """Return an empty builder, the last one if possible: new memory for each write would be a third of its cost."""
        limit = batch_limit(self._partition.settings)
        builder = self._builder
        if builder is None or builder.count or builder.limit != limit:
            builder = self._builder = batches.BatchBuilder(limit)
        return builder

    @property
    def _append_time(self) -> int | None:
        """Return the timestamp of all records of an append now, or None if each has its own."""
        stamped = self._partition.settings.message_timestamp_type == TimestampType.LOG_APPEND_TIME
        return self._partition.log.clock() if stamped else None

    def _finished(self, builder: batches.BatchBuilder) -> Built:
        texts = np.array([builder.text_size])
        batch = builder.finish(shape_for(self._partition.settings), self._append_time)
        return Built(batches.Batches.joined([batch]), texts)

    def _append(self, built: Built, room: int) -> None:
        self._last = self._linger.clock()
        try:
            appended = self._partition.append_waiting(built.batches, room)
        except (EngineError, OSError):
            self._failed = self._last + RETRY_MS
            raise
        finally:
            self._last = self._linger.clock()
        self._failed = None
        for each, text in zip(_each(appended, built.batches.table), built.texts.tolist(), strict=True):
            self._appended(each, text)

    def _flush(self) -> None:
        """Append what waits. After an OSError, the rest keeps waiting in its place; after an EngineError it is lost."""
        try:
            while self._waiting:
                built, count = self._first_batch()
                self._append(built, self._promised)
                for _ in range(count):
                    self._size -= self._waiting.popleft().size
        except EngineError as error:
            # The partition is deleted, or it is offline until the next mount.
            self._lose(error)
            raise
        self._end_waiting()

    def _first_batch(self) -> tuple[Built, int]:
        """Return the first of the waiting writes as one batch, and how many writes are in it."""
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

    # -- appending what waits -------------------------------------------------------------------------

    def flush(self, sender: Sender) -> None:
        """Append the waiting lines of a writer, and what came before them. After an error the lines are dropped, and it
        is not reported again."""
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
        """Append all waiting lines, as something else is about to be appended."""
        if self._waiting:
            with self._lock:
                self._flush()

    @property
    def due_ms(self) -> int | None:
        """Return when the waiting lines are due, or None if none wait."""
        since, failed = self._since, self._failed
        if since is None:
            return None
        return since + self._linger.linger_ms if failed is None else failed

    def flush_due(self) -> None:
        """Append lines that have waited long enough. After an error they keep waiting and are tried again. If that
        still fails, the next fsync or close of their writers reports it."""
        if not self._lock.acquire(blocking=False):
            return  # a writer has the lock, and checks the time itself
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
        """Drop the waiting lines of a writer."""
        if self._has(sender):
            self._waiting = deque(waiting for waiting in self._waiting if waiting.sender is not sender)
            self._size = sum(waiting.size for waiting in self._waiting)
            if not self._waiting:
                self._end_waiting()

    def _lose(self, error: EngineError) -> None:
        """Drop all waiting lines. The next call of each of their writers reports the error."""
        for waiting in self._waiting:
            waiting.sender.lost = error
        self._waiting.clear()
        self._end_waiting()

    # -- unfinished lines -----------------------------------------------------------------------------

    def hold(self, sender: Sender, size: int) -> None:
        """Make sure that there is room for an unfinished line of this size, as far as that is possible. OSError if
        there is no room."""
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

    def find_room(self, sender: Sender, columns: Columns) -> None:
        """Raise OSError if there is no room for records. Do nothing if that cannot be known."""
        size = HEADER_SIZE + columns_size(columns)
        with self._lock:
            self._tell_of_loss(sender)
            if self._waiting and self._gathers(sender, size) and self._size + size <= self._promised:
                return
            self._flush()
            self._has_room = True
            promised = self._partition.log.promise(size, size, lines=False)
            self._partition.log.take_back(promised, lines=False)

    def give_room_back(self, sender: Sender) -> None:
        """Give back the room of an unfinished line, which has ended and goes to another partition."""
        with self._lock:
            self._hold(sender, 0)
            with contextlib.suppress(OSError):
                self._partition.log.release_room()


def _each(appended: Appended, table: Longs) -> Iterator[Appended]:
    """Divide the result of an append into those of its batches."""
    if len(table) == 1:
        yield appended
        return
    for at, first, last in table[:, [POSITION, BASE_OFFSET, LAST_OFFSET]].tolist():
        place = appended.segment_base, appended.position + at
        yield Appended(first, last, appended.max_timestamp, last, appended.append_time, False, *place)


def columns_size(columns: Columns) -> int:
    """Return the bytes that records take in the log, at most."""
    return int(_sizes(columns).sum())


def _sizes(columns: Columns) -> Longs:
    spans = np.maximum(columns.key_length, 0) + np.maximum(columns.value_length, 0) + columns.headers_length
    return spans.astype(np.int64) + RECORD_OVERHEAD
