"""The log of a partition: it appends, rolls and flushes. What removes records is in `topicfs.engine.partition.cutting`.

Every method that changes something takes the lock, or says that its caller holds it. Readers take the snapshot, which
is published in one assignment when an append is complete. So they never see a state in between.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Final, TypeVar

from topicfs.engine import batch as batches
from topicfs.engine.batch.table import Bytes, Longs
from topicfs.engine.errors import (
    ClosedError,
    CorruptError,
    CorruptIndexError,
    EngineError,
    InvalidOffsetError,
    LinkedTopicError,
    OffsetOutOfRangeError,
    ReadOnlyError,
    RecordBatchTooLargeError,
    RollError,
    UnexpectedAppendOffsetError,
    lacks_room,
)
from topicfs.engine.files.atomic import sync_directory
from topicfs.engine.files.metadata import PartitionMetadata
from topicfs.engine.format.batch_header import CONTROL, LOG_APPEND_TIME
from topicfs.engine.format.transaction_index import AbortedTransaction
from topicfs.engine.kernels import encode as encoding
from topicfs.engine.kernels.scan import (
    ATTRIBUTES,
    BASE_OFFSET,
    LAST_OFFSET,
    LEADER_EPOCH,
    MAX_TIMESTAMP,
    POSITION,
    PRODUCER_ID,
)
from topicfs.engine.partition.chain import Chain, segment_settings
from topicfs.engine.partition.epochs import LeaderEpochs
from topicfs.engine.partition.flusher import Flusher
from topicfs.engine.partition.offsets import Appended
from topicfs.engine.partition.recovery import epoch_changes
from topicfs.engine.partition.remote import Remote
from topicfs.engine.partition.snapshot import Snapshot
from topicfs.engine.partition.waiters import Waiters
from topicfs.engine.producer.deciding import deciding_rows
from topicfs.engine.producer.entry import BatchInfo, Origin
from topicfs.engine.producer.manager import CompletedTransaction, ProducerStates, ProducerUpdate
from topicfs.engine.record import MAX_INT64, NO_OFFSET, NO_TIMESTAMP, Clock
from topicfs.engine.segment.segment import Segment
from topicfs.engine.settings.topic import TopicSettings

logger = logging.getLogger(__name__)

_NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})
"""These errors come from opening a file. fsync never gives them."""


T = TypeVar("T")


def _stay() -> None:
    """Take up nothing: no other process changes the files of a log that may be appended to."""


_RESTART_S: Final = 0.1
"""A reader that waits for a log to begin anew looks again after this time in any case."""


class Log:
    """The log of one partition: its parts, which must agree, and the methods that change them.

    name            `<topic>-<number>`, for messages
    settings        settings of the topic; replaced in one step by `reconfigure`
    chain           the segments
    producers       producer state, for idempotence and transactions
    epochs          leader epochs and where each began
    metadata        the topic id
    flusher         what was written to disk, and what was not
    snapshot        what readers see, published in one assignment
    lone            no other replica has to acknowledge: the high watermark follows the end by itself
    leader_epoch    epoch that is written into batches appended here as leader
    failure         the error that took the log offline, None while it is not
    is_closed       whether it was deleted, or its store was closed
    read_only       whether changes are forbidden
    is_mirror       whether it mirrors a partition of a Kafka cluster, whose leader alone decides what is appended
    remote          appends lines there, which the mirror brings back; None without a link
    promised        bytes reserved behind the end of the active segment: for accepted lines that wait to be appended,
                    and for unfinished lines
    lines_wait      whether some of that is reserved for whole lines, which are appended very soon
    cut_offsets     from where on each truncation of this run has removed records: as many as the snapshot counts
    lock            held during every change
    catch_up        takes up what another process has changed in the files; it does nothing unless `read_only`
    _waiters        threads that wait for offsets
    _is_restarting  see `restarting`
    _readers        see `register_reader`
    _queues         see `register_queue`
    _after_cuts     see `register_cut`
    """

    def __init__(
        self,
        name: str,
        settings: TopicSettings,
        clock: Clock,
        chain: Chain,
        producers: ProducerStates,
        epochs: LeaderEpochs,
        metadata: PartitionMetadata,
        start: int,
        high_watermark: int,
        end: int,
        recovery_point: int,
        lone: bool,
        read_only: bool = False,
    ) -> None:
        self.name = name
        self.settings = settings
        self.clock = clock
        self.chain = chain
        self.producers = producers
        self.epochs = epochs
        self.metadata = metadata
        self.lone = lone
        self.read_only = read_only
        self.is_mirror = False
        self.remote: Remote | None = None
        self.leader_epoch = epochs.latest_epoch or 0
        self.failure: Exception | None = None
        self.promised = 0
        self.cut_offsets: tuple[int, ...] = ()
        self.lines_wait = False
        self.lock = threading.RLock()
        self.is_closed = False
        self.flusher = Flusher(chain, producers, self.lock, recovery_point)
        self.catch_up: Callable[[], None] = _stay
        self._waiters = Waiters()
        self._is_restarting = False
        self._readers: tuple[Callable[[Sequence[Segment]], None], ...] = ()
        self._queues: tuple[Callable[[], None], ...] = ()
        self._after_cuts: tuple[Callable[[], None], ...] = ()
        active = chain.active
        self.snapshot = Snapshot(
            start, start, high_watermark, end, active.base_offset, active.size, chain.segments, 0
        )
        self.publish()

    def register_reader(self, before_removal: Callable[[Sequence[Segment]], None]) -> None:
        """Call `before_removal` with the segments that retention or compaction is about to remove from the list, so
        that the reader can pin those it still needs. It is called with and without the lock, and perhaps twice."""
        self._readers += (before_removal,)

    def register_queue(self, flush: Callable[[], None]) -> None:
        """Register a queue of lines that is flushed before other records are appended, because its lines came first.
        `flush` is called without the lock, and an error in it refuses the append."""
        self._queues += (flush,)

    def register_cut(self, after_cut: Callable[[], None]) -> None:
        """Call `after_cut` when the log was truncated, or begun anew: what was read of it before is overtaken. It is
        called without the lock."""
        self._after_cuts += (after_cut,)

    def register_listener(self, changed: Callable[[], object]) -> None:
        """Call `changed` after each change that readers can see. It is called with the lock, and must not wait."""
        with self.lock:
            self._waiters.listeners += (changed,)

    def remove_listener(self, changed: Callable[[], object]) -> None:
        """Call a function no more that `register_listener` was given."""
        with self.lock:
            self._waiters.listeners = tuple(each for each in self._waiters.listeners if each != changed)

    def check_open(self) -> None:
        """Raise ClosedError if the log was closed or went offline."""
        if self.failure is not None:
            raise ClosedError(f"{self.name} is offline after an error: {self.failure}") from self.failure
        if self.is_closed:
            raise ClosedError(f"{self.name} is closed")

    def check_writable(self) -> None:
        """Raise ClosedError if the log was closed or went offline, and ReadOnlyError if it may not be changed."""
        self.check_open()
        if self.read_only:
            raise ReadOnlyError(f"{self.name}: opened read-only")

    def check_leads(self) -> None:
        """Raise as `check_writable` does, and LinkedTopicError if only a Kafka cluster may append to it."""
        self.check_writable()
        if self.is_mirror:
            raise LinkedTopicError(
                f"{self.name}: mirrors a partition of a Kafka cluster, and is only read here: append to it there"
            )

    def check_takes_lines(self) -> None:
        """Raise as `check_leads` does, but where lines are appended in the cluster."""
        if self.remote is None:
            self.check_leads()
        self.check_writable()

    def check_uncut(self, cuts: int, end: int | None) -> None:
        """Raise CorruptError if a truncation, after the first `cuts` of them, has removed offsets below `end`, or any
        where there is no end: other records may have these offsets now."""
        cut = min(self.cut_offsets[cuts:], default=MAX_INT64)
        if cut < (MAX_INT64 if end is None else end):
            raise CorruptError(
                f"{self.name}: was truncated to offset {cut} while it was read: other records may have the offsets "
                f"from there on"
            )

    @property
    def is_open(self) -> bool:
        """Return whether it can be read and appended to."""
        return self.failure is None and not self.is_closed

    def _fail(self, error: Exception) -> None:
        logger.error(f"{self.name}: taken offline: {error}")
        self.failure = error

    def announce_removal(self, segments: Sequence[Segment]) -> None:
        """Tell the registered readers that retention or compaction is about to remove these segments from the list."""
        for before_removal in self._readers:
            before_removal(segments)

    def announce_cut(self) -> None:
        """Tell those who registered for it that the log was cut."""
        for after_cut in self._after_cuts:
            after_cut()

    def flush_queues(self) -> None:
        """Append the lines that wait, before somebody else appends other records."""
        for flush in self._queues:
            flush()

    @contextlib.contextmanager
    def whole_or_offline(self, *others: type[EngineError]) -> Iterator[None]:
        """Take the log offline if an OSError, or one of the other errors, stops a change halfway. Memory and disk then
        no longer agree, and a later append would overlap what was not removed. Recovery uses the state on disk."""
        stopping: tuple[type[Exception], ...] = (OSError, *others)
        try:
            yield
        except stopping as error:
            self._fail(error)
            raise

    def _shut(self) -> None:
        self.is_closed = True
        self._waiters.wake()

    @contextlib.contextmanager
    def restarting(self) -> Iterator[None]:
        """Have readers that meet a removed segment wait until the log has segments again. The caller holds the lock."""
        self._is_restarting = True
        try:
            yield
        finally:
            self._is_restarting = False
            self._waiters.wake()

    def with_snapshot(self, look: Callable[[Snapshot], T]) -> T:
        """Return the result of `look` at the newest snapshot. It takes no lock: if segments were removed during the
        call, or cut and appended to, it looks at the next snapshot."""
        while True:
            self.check_open()
            taken = self.snapshot
            try:
                found = look(taken)
            except (ClosedError, FileNotFoundError, CorruptError, OffsetOutOfRangeError):
                self.check_open()
                if self._is_restarting:
                    self._waiters.wait_until(lambda: not self._is_restarting, _RESTART_S)
                elif self.snapshot.segments is taken.segments and self.snapshot.cuts == taken.cuts:
                    raise
            else:
                if self.snapshot.cuts == taken.cuts:
                    return found

    # -- appending ------------------------------------------------------------------------------------

    def lead(self, data: Bytes, table: Longs, now: int, origin: Origin, room: int = 0) -> Appended:
        """Append batches as leader: give them their offsets and epoch. `data` and `table` are changed. `room` is the
        part of the promised bytes that belongs to these batches."""
        with self.lock:
            self.check_leads()
            encoding.stamp_batches(data, table, self.snapshot.end, self.leader_epoch)
            append_time = now if table[0, ATTRIBUTES] & LOG_APPEND_TIME else NO_TIMESTAMP
            appended = self._write(data, table, origin, append_time, room)
        if appended.last_offset + 1 - self.flusher.point >= self.settings.flush_messages:
            self.flush()
        return appended

    def follow(self, data: Bytes, table: Longs) -> Appended:
        """Append batches that already have their offsets, as a replica does."""
        with self.lock:
            self.check_writable()
            first, last = int(table[0, BASE_OFFSET]), int(table[-1, LAST_OFFSET])
            if first < self.snapshot.end:
                raise UnexpectedAppendOffsetError(
                    f"{self.name}: offsets {first} to {last} to append, expected none below {self.snapshot.end}",
                    first,
                    last,
                )
            appended = self._write(data, table, Origin.REPLICATION, NO_TIMESTAMP)
        if appended.last_offset + 1 - self.flusher.point >= self.settings.flush_messages:
            self.flush()
        return appended

    def _write(self, data: Bytes, table: Longs, origin: Origin, append_time: int, room: int = 0) -> Appended:
        """Append batches that have their offsets. The caller holds the lock."""
        # A batch that its leader has taken gets a segment of its own: both may have had a larger segment.bytes then.
        is_taken = origin is Origin.REPLICATION and len(table) == 1
        if data.size > self.settings.segment_bytes and not is_taken:
            raise RecordBatchTooLargeError(
                f"{self.name}: {data.size} bytes to append, segment.bytes is {self.settings.segment_bytes}"
            )
        self.metadata.maybe_flush()
        # Python's own numbers: taking one number out of an array costs as much as ten steps with them.
        rows = table.tolist()
        first, last = rows[0][BASE_OFFSET], rows[-1][LAST_OFFSET]
        latest = rows[0] if len(rows) == 1 else max(rows, key=itemgetter(MAX_TIMESTAMP))
        if len(rows) > 1 or rows[0][LEADER_EPOCH] != self.epochs.latest_epoch:
            self.epochs.assign_all(epoch_changes(table))
        # A batch that has promised room here stays in this segment: a new segment would need new room.
        longest = MAX_INT64 if data.size <= room else self._longest_ms
        self._maybe_roll(data.size, first, last, latest[MAX_TIMESTAMP], longest)
        update = self._prepare(data, table, rows, origin)
        if isinstance(update, Appended):
            return update
        active = self.chain.active
        if active.unwritten:
            active.settle()
        aborted = sum(completed.is_aborted for completed in update.completed) if update is not None else 0
        if aborted:
            self._make_room_for_aborted(active, aborted, data.size)
        position = active.size
        try:
            active.append(data, table, data.size <= room, self.promised - room)
        except OSError:
            self.renew_promises()
            raise
        if update is None:
            self.producers.advance(last + 1)
            self.publish(end=last + 1)
        else:
            self._commit(update, last + 1)
        return Appended(
            first,
            last,
            latest[MAX_TIMESTAMP],
            latest[LAST_OFFSET] if latest[MAX_TIMESTAMP] >= 0 else NO_OFFSET,
            append_time,
            segment_base=active.base_offset,
            position=position,
        )

    def _make_room_for_aborted(self, active: Segment, count: int, size: int) -> None:
        """Make sure of room for the entries of transactions that a marker aborts: once it is in the log they have to be
        in the transaction index.

        The marker itself mostly has room in the last block of the log, while a first entry needs a block of its own. An
        abort must not wait for that: until then, nothing behind the transaction would show. So without room on disk
        the entries are in memory, if the marker has room."""
        try:
            active.transactions.make_room(count)
        except OSError as error:
            if not lacks_room(error):
                raise
            active.make_room(size + self.promised)
            active.hold_aborted(error)

    def _prepare(
        self, data: Bytes, table: Longs, rows: list[list[int]], origin: Origin
    ) -> ProducerUpdate | Appended | None:
        """Return what the append changes for producers. None: nothing changes. Appended: the append is a duplicate."""
        update = None
        # A client's batch may be refused: one comes at a time, and is looked at.
        telling = deciding_rows(table) if origin is Origin.REPLICATION else range(len(rows))
        for at in telling:
            row = rows[at]
            if row[PRODUCER_ID] < 0:
                continue
            update = update or self.producers.prepare(origin)
            marker = None
            if row[ATTRIBUTES] & CONTROL:
                marker = batches.marker(data, table[at], rows[0][POSITION])
            repeated = update.add(BatchInfo.of_row(row, marker))
            if repeated is not None:
                return Appended(
                    repeated.first_offset,
                    repeated.last_offset,
                    repeated.timestamp,
                    repeated.last_offset,
                    repeated.timestamp if row[ATTRIBUTES] & LOG_APPEND_TIME else NO_TIMESTAMP,
                    duplicate=True,
                )
        return update

    def _commit(self, update: ProducerUpdate, end: int) -> None:
        """Apply the changes of an append that was written. The records are in the log, even if something fails here."""
        self.producers.commit(update)
        self.producers.advance(end)
        try:
            for completed in update.completed:
                if completed.is_aborted:
                    self.chain.active.transactions.append(
                        AbortedTransaction(
                            completed.producer_id,
                            completed.first_offset,
                            completed.last_offset,
                            self.producers.last_stable_offset_for(completed),
                        )
                    )
                self.producers.complete_transaction(completed)
        except (OSError, CorruptIndexError, InvalidOffsetError) as error:
            # Without its index entry an aborted transaction would be visible. So it stays open until recovery.
            self._fail(error)
            raise
        finally:
            self.publish(end=end)

    def decide(self, producer_id: int, commit: bool) -> None:
        """Show a read-only log as if a marker at its end decided the producer's open transaction. Do nothing if the
        producer has no open transaction."""
        with self.lock:
            entry = self.producers.producers.get(producer_id)
            if entry is None or entry.current_transaction_first_offset == NO_OFFSET:
                return
            first, end = entry.current_transaction_first_offset, self.snapshot.end
            if not commit:
                active = self.chain.active
                aborted = AbortedTransaction(producer_id, first, end, end)
                active.hold_transactions([*active.transactions.all(), aborted])
            self.producers.complete_transaction(CompletedTransaction(producer_id, first, end - 1, not commit))
            self.publish()

    # -- room -----------------------------------------------------------------------------------------

    def promise(self, least: int, most: int, lines: bool = True) -> int:
        """Reserve room, so that up to `most` more bytes can be appended to the active segment even if the disk becomes
        full. Return how many bytes are promised: 0 if there is no room for at least `least`. `lines`: the bytes are
        for whole lines, which are appended very soon."""
        with self.lock:
            self.check_leads()
            active, now = self.chain.active, self.clock()
            if active.should_roll(
                least + self.promised,
                now,
                self.snapshot.end + least,
                now,
                self.settings.segment_bytes,
                self._longest_ms,
            ):
                return 0
            self._write_what_comes_first()
            size = min(most, self.settings.segment_bytes - active.size - self.promised)
            if size < least or not active.make_room(self.promised + size):
                return 0
            self.promised += size
            self.lines_wait = self.lines_wait or lines
            return size

    def promise_unfinished(self, size: int) -> bool:
        """Reserve room, so that an unfinished line can be appended when it ends. OSError where there is no room.
        Return False where nothing can be promised: the file system cannot allocate, or lines wait whose segment is
        full."""
        with self.lock:
            if self.promise(size, size, lines=False):
                return True
            if self.lines_wait or size > self.settings.segment_bytes:
                return False
            end, now = self.snapshot.end, self.clock()
            self._maybe_roll(size + self.promised, end, end, now, self._longest_ms)
            return bool(self.promise(size, size, lines=False))

    def take_back(self, size: int, lines: bool = True) -> None:
        """End a promise: its bytes were appended, or will not be."""
        with self.lock:
            self.promised -= size
            if lines:
                self.lines_wait = False

    def release_room(self) -> None:
        """Free the allocated room when nothing is promised, if there is enough of it to be worth the call."""
        with self.lock:
            active = self.chain.active
            if active.appender is not None and not self.promised and self.is_open:
                active.appender.release_large_room()

    def _write_what_comes_first(self) -> None:
        """Write the small files that the first append needs."""
        self.metadata.maybe_flush()
        if self.leader_epoch != self.epochs.latest_epoch:
            self.epochs.assign(self.leader_epoch, self.snapshot.end)

    def renew_promises(self) -> None:
        """Allocate the promised room again after the active segment was changed or cut. If that fails, the later
        append of the lines reports the error."""
        if self.promised:
            with contextlib.suppress(OSError):
                self.chain.active.make_room(self.promised)

    # -- rolling --------------------------------------------------------------------------------------

    def roll(self) -> None:
        """Seal the active segment, and begin a new one at the end offset."""
        with self.lock:
            self.check_writable()
            self._roll(self.snapshot.end)

    def roll_if_waited(self, now: int) -> bool:
        """Seal an active segment that is older than `segment.ms`. An append would seal it too. But if no append comes,
        a reader of sealed segments would never see its records."""
        if not self.chain.active.has_waited(now, self._longest_ms):
            return False
        with self.lock:
            self.check_writable()
            # Waiting lines have room in this segment, and are appended very soon.
            if self.lines_wait or not self.chain.active.has_waited(now, self._longest_ms):
                return False
            self._roll(self.snapshot.end)
            return True

    @property
    def _longest_ms(self) -> int:
        settings = self.settings
        return (
            min(settings.segment_ms, settings.max_compaction_lag_ms)
            if settings.compact
            else settings.segment_ms
        )

    def _maybe_roll(self, size: int, first: int, last: int, latest: int, longest_ms: int) -> None:
        segment_bytes, now = self.settings.segment_bytes, self.clock()
        if self.chain.active.should_roll(size, latest, last, now, segment_bytes, longest_ms):
            self._roll(first)

    def _roll(self, base: int) -> None:
        active = self.chain.active
        if base == active.base_offset and active.size == 0:
            # Nothing to seal: views that were opened on the empty segment go on using it. A new segment replaces it
            # only if its indexes are full. The snapshot at its base stays, because nothing has changed.
            if active.offset_index.is_full or active.time_index.is_full:
                self._recreate(active)
            return
        if base <= active.base_offset:
            raise RollError(
                f"{self.name}: a segment at offset {base} would not lie above the active one's "
                f"{active.base_offset}"
            )
        before = self.chain.segments.lower(active.base_offset)
        active.seal()
        if before is not None:
            active.date_behind(before)
        self.chain.add((self.chain.create(base),))
        self.publish()
        self.producers.advance(base)
        self.producers.take_snapshot(fsync=False)
        self.flusher.note_roll(base)
        self.renew_promises()

    def _recreate(self, active: Segment) -> None:
        try:
            self.chain.recreate(active, self.settings.file_delete_delay_ms)
        except OSError as error:
            # The old segment is gone and there is no new one: nothing can be appended.
            self._fail(error)
            raise
        self.publish()

    # -- keeping --------------------------------------------------------------------------------------

    def reconfigure(self, settings: TopicSettings) -> None:
        """Apply new settings. Existing segments keep the settings that they were created with."""
        with self.lock:
            self.settings = settings
            self.chain.settings = segment_settings(settings)

    def flush_is_due(self, now: int) -> bool:
        """Return whether `flush.ms` have passed since the last flush, and records came after it. `now` is by the
        steady clock."""
        return self.snapshot.end > self.flusher.point and now - self.flusher.last_ms >= self.settings.flush_ms

    def remove_due(self, now: int) -> int:
        """Remove files whose deletion delay is over. Return how many segments and snapshots were removed.

        This takes no lock: removing a large file takes a while, and nobody appends to it."""
        return self.chain.remove_due(now)

    def expire_producers(self, now: int) -> int:
        """Forget producers that were idle for `producer.id.expiration.ms`. Return how many."""
        with self.lock:
            return self.producers.remove_expired(now)

    def flush(self, up_to: int | None = None) -> None:
        """Write everything below `up_to` to disk, log and indexes. None means everything."""
        with self.flusher.lock:
            self._flush(up_to, with_active=False)

    def flush_sealed(self) -> bool:
        """Flush all sealed segments, if there are some that no flush has covered. Return whether there were."""
        if not self.flusher.has_rolled:
            return False
        self.flush(self.flusher.sealed_end)
        return True

    def _flush(self, up_to: int | None, with_active: bool) -> None:
        """An fsync error takes the log offline: the disk may report the lost data as written the next time. Where no
        descriptor is free nothing is lost: the next flush does all of it again. This needs no disk space: on a full
        disk it would otherwise refuse records that are appended already."""
        self.check_writable()
        self.flusher.begin()
        end = self.snapshot.end
        is_known = self._write_rebuilt_epochs()
        try:
            self.flusher.flush(end if up_to is None else min(up_to, end), with_active, is_known)
        except OSError as error:
            if error.errno not in _NO_DESCRIPTOR:
                self._fail(error)
            raise

    def _write_rebuilt_epochs(self) -> bool:
        """Write the leader epochs for which a recovery had no room. Return False if there still is none: only another
        recovery of the same records finds them again."""
        if not self.epochs.unwritten:
            return True
        with self.lock:
            try:
                self.epochs.flush()
            except OSError as error:
                if not lacks_room(error):
                    raise
                logger.warning(f"{self.name}: the recovery point stays, no room for leader epochs: {error}")
            return not self.epochs.unwritten

    def close(self) -> None:
        """Stop cleanly: flush everything, take a snapshot at the end, and cut every file to its true size."""
        with self.flusher.lock, self.lock:
            if self.is_closed:
                return
            try:
                if self.failure is None and not self.read_only:
                    self.metadata.maybe_flush()
                    self._name_the_end()
                    self._flush(None, with_active=True)
                    self.epochs.flush()
                    self.producers.take_snapshot(fsync=True)
                    for segment in self.chain.segments:
                        segment.keep_mended()
            finally:
                self._shut()
                self.chain.close()

    def _name_the_end(self) -> None:
        """Begin a segment at the end offset if no batch tells that offset: a truncation may have cut the log within a
        gap. The next start would take the log to end earlier, and give the same offsets again."""
        if not self.snapshot.cuts:
            return
        try:
            if self.chain.active.next_offset() < self.snapshot.end:
                self._roll(self.snapshot.end)
        except CorruptError as error:
            logger.warning(f"{self.name}: its end is damaged, and may be taken for an earlier one: {error}")
        except OSError as error:
            if not lacks_room(error):
                raise
            logger.warning(f"{self.name}: no room to keep its end at offset {self.snapshot.end}: {error}")

    def abandon(self) -> None:
        """Stop as in a crash: write nothing more."""
        with self.lock:
            self._shut()
            self.chain.abandon()

    @contextlib.contextmanager
    def still(self) -> Iterator[None]:
        """Keep everyone else from appending, flushing and changing segments during the `with` block."""
        with self.flusher.lock, self.lock:
            yield

    def rename(self, directory: Path) -> None:
        """Move the directory, to delete it. Nothing can be read or appended any more. A failed write, as on a full
        disk, does not stop the deletion: if it is undone, the log is recovered."""
        with self.flusher.lock, self.lock:
            try:
                self.metadata.maybe_flush()
                self._shut()
                self.chain.close()
            except OSError as error:
                logger.warning(f"{self.name}: deleted as it is on disk: {error}")
                self._shut()
                self.chain.abandon()
            self.chain.directory.rename(directory)
            sync_directory(directory.parent)

    # -- offsets --------------------------------------------------------------------------------------

    def publish(
        self,
        *,
        start: int | None = None,
        high_watermark: int | None = None,
        end: int | None = None,
        end_position: int | None = None,
        cut: int | None = None,
    ) -> None:
        """Publish the segments and new offsets to readers, all in one step. The caller holds the lock.

        `end_position` is where `end` lies in the active segment, if that segment has not been cut there yet. `cut`:
        the first offset that is removed; what lay from there on may be replaced by other records."""
        old = self.snapshot
        new_end = old.end if end is None else end
        new_start = old.start if start is None else start
        mark = old.high_watermark if high_watermark is None else high_watermark
        mark = new_end if self.lone else min(max(mark, new_start), new_end)
        self.producers.on_high_watermark(mark)
        unstable = self.producers.first_unstable_offset
        stable = mark if unstable is None else min(max(unstable, new_start), mark)
        active = self.chain.active
        if cut is not None:
            self.cut_offsets += (cut,)
        self.snapshot = Snapshot(
            new_start,
            stable,
            mark,
            new_end,
            active.base_offset,
            active.size if end_position is None else end_position,
            self.chain.segments,
            old.cuts + (cut is not None),
        )
        self._waiters.wake()

    def wait_for(self, offset: int, timeout: float) -> bool:
        """Wait until the stable offset is above `offset`, for at most `timeout` seconds. Return False if it is not.

        ClosedError if the log is closed during the wait."""
        if self.snapshot.stable <= offset:
            self._waiters.wait_until(lambda: self.snapshot.stable > offset or self.is_closed, timeout)
            self.check_open()
        return self.snapshot.stable > offset

    def wait_for_end(self, offset: int, timeout: float) -> None:
        """Wait until the end is above `offset`, or the log is closed, for at most `timeout` seconds."""
        self._waiters.wait_until(lambda: self.snapshot.end > offset or self.is_closed, timeout)

    def set_high_watermark(self, offset: int) -> None:
        """Set the high watermark, limited to the offsets of the log. It no longer follows the end by itself."""
        with self.lock:
            self.lone = False
            self.publish(high_watermark=offset)

    def raise_high_watermark(self, offset: int) -> None:
        """Raise the high watermark. A lower one changes nothing, one above the end is an error."""
        with self.lock:
            if offset > self.snapshot.end:
                raise OffsetOutOfRangeError(
                    f"{self.name}: high watermark {offset} to set, the end is {self.snapshot.end}"
                )
            self.set_high_watermark(max(offset, self.snapshot.high_watermark))

    def become_leader(self, epoch: int) -> None:
        """Write this epoch into batches from now on."""
        with self.lock:
            self.check_writable()
            self.epochs.assign(epoch, self.snapshot.end)
            self.leader_epoch = epoch

    def raise_start_offset(self, offset: int) -> bool:
        """Make `offset` the first one that may be read. Return False if it is not above the present one."""
        with self.lock:
            self.check_writable()
            if offset > self.snapshot.high_watermark:
                raise OffsetOutOfRangeError(
                    f"{self.name}: start offset {offset} to set, the high watermark is "
                    f"{self.snapshot.high_watermark}"
                )
            if offset <= self.snapshot.start:
                return False
            self.epochs.truncate_from_start(offset)
            self.producers.on_start_offset(offset)
            self.publish(start=offset)
            logger.info(f"{self.name}: start offset raised to {offset}")
            return True
