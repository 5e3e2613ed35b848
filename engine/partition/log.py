"""This module changes a partition's log: it appends, rolls, truncates and flushes.

Every method that changes something takes the lock, or says that its caller holds it. Offsets are published last, in
one step. So readers never see a state in between.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Final

from topicfs.engine import batch as batches
from topicfs.engine.batch.table import Bytes, Longs
from topicfs.engine.errors import (
    CleaningAbortedError,
    CorruptIndexError,
    CorruptSegmentError,
    InvalidOffsetError,
    RecordBatchTooLargeError,
    RollError,
    UnexpectedAppendOffsetError,
)
from topicfs.engine.files.atomic import sync_directory
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
from topicfs.engine.partition.chain import segment_settings
from topicfs.engine.partition.offsets import Appended
from topicfs.engine.partition.recovery import epoch_changes
from topicfs.engine.partition.replay import rebuild
from topicfs.engine.partition.split import split
from topicfs.engine.partition.state import LogState
from topicfs.engine.producer import snapshot
from topicfs.engine.producer.entry import BatchInfo, Origin
from topicfs.engine.producer.manager import CompletedTransaction, ProducerUpdate
from topicfs.engine.record import MAX_INT32, MAX_INT64, NO_OFFSET, NO_TIMESTAMP
from topicfs.engine.segment.segment import Segment
from topicfs.engine.settings.topic import TopicSettings

logger = logging.getLogger(__name__)

_NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})
"""These errors come from opening a file. fsync never gives them."""


class Log(LogState):
    """The log of one partition, with every method that changes it. Its fields are those of LogState."""

    # -- appending ------------------------------------------------------------------------------------

    def lead(self, batch: Bytes, row: Longs, now: int, origin: Origin, room: int = 0) -> Appended:
        """Append one batch as leader: give it its offset and epoch. `batch` and `row` are changed. `room` is the part
        of the promised bytes that belongs to this batch."""
        with self.lock:
            self.check_writable()
            first = self.offsets.end
            encoding.stamp(batch, 0, first, self.leader_epoch)
            row[LAST_OFFSET] += first - row[BASE_OFFSET]
            row[BASE_OFFSET] = first
            row[LEADER_EPOCH] = self.leader_epoch
            append_time = now if row[ATTRIBUTES] & LOG_APPEND_TIME else NO_TIMESTAMP
            appended = self._write(batch, row.reshape(1, -1), origin, append_time, room)
        if appended.last_offset + 1 - self.recovery_point >= self.settings.flush_messages:
            self.flush()
        return appended

    def follow(self, data: Bytes, table: Longs) -> Appended:
        """Append batches that already have their offsets, as a replica does."""
        with self.lock:
            self.check_writable()
            first, last = int(table[0, BASE_OFFSET]), int(table[-1, LAST_OFFSET])
            if first < self.offsets.end:
                raise UnexpectedAppendOffsetError(
                    f"{self.name}: offsets {first} to {last} to append, expected none below {self.offsets.end}",
                    first,
                    last,
                )
            appended = self._write(data, table, Origin.REPLICATION, NO_TIMESTAMP)
        if appended.last_offset + 1 - self.recovery_point >= self.settings.flush_messages:
            self.flush()
        return appended

    def _write(self, data: Bytes, table: Longs, origin: Origin, append_time: int, room: int = 0) -> Appended:
        """Append batches that have their offsets. The caller holds the lock."""
        if data.size > self.settings.segment_bytes:
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
        position = active.size
        try:
            active.append(data, table, data.size <= room, self.promised - room)
        except OSError:
            self._renew_promises()
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

    def _prepare(
        self, data: Bytes, table: Longs, rows: list[list[int]], origin: Origin
    ) -> ProducerUpdate | Appended | None:
        """Return what the append changes for producers. None: nothing changes. Appended: the append is a duplicate."""
        update = None
        for at, row in enumerate(rows):
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
            first, end = entry.current_transaction_first_offset, self.offsets.end
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
            self.check_writable()
            active, now = self.chain.active, self.clock()
            if active.should_roll(
                least + self.promised,
                now,
                self.offsets.end + least,
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
            end, now = self.offsets.end, self.clock()
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
            if not self.promised and self.is_open:
                self.chain.active.release_large_room()

    def _write_what_comes_first(self) -> None:
        """Write the small files that the first append needs."""
        self.metadata.maybe_flush()
        if self.leader_epoch != self.epochs.latest_epoch:
            self.epochs.assign(self.leader_epoch, self.offsets.end)

    def _renew_promises(self) -> None:
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
            self._roll(self.offsets.end)

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
            self._roll(self.offsets.end)
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
        self.producers.advance(base)
        taken = self.producers.take_snapshot(fsync=False)
        if taken is not None:
            self._snapshots.append(taken)
        self._unflushed_roll = base
        self.publish()
        self._renew_promises()

    def _recreate(self, active: Segment) -> None:
        try:
            self.chain.recreate(active, self.settings.file_delete_delay_ms)
        except OSError as error:
            # The old segment is gone and there is no new one: nothing can be appended.
            self._fail(error)
            raise

    # -- cutting --------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> bool:
        """Remove everything from `offset` on. Return False if there was nothing to remove."""
        if offset < 0:
            raise ValueError(f"truncation to offset {offset}: expected 0 or more")
        with self.lock:
            self.check_writable()
            if offset >= self.offsets.end:
                self.epochs.truncate_from_end(offset)
                self.epochs.flush()
                return False
            if offset < self.chain.segments.first.base_offset:
                self.restart_at(offset)
                return True
            with self._whole_or_offline():
                # The last segment goes first: a crash in between leaves a shorter log, never a log with a hole.
                self.remove(tuple(s for s in self.chain.segments if s.base_offset > offset)[::-1])
                active = self.chain.active
                active.transactions.truncate_to(offset)
                active.truncate_to(offset)
                self.epochs.truncate_from_end(offset)
                self.epochs.flush()
                self._settle(start=min(self.offsets.start, offset), end=offset)
            self.cuts += 1
            logger.info(f"{self.name}: truncated to offset {offset}")
            return True

    def restart_at(self, offset: int, start: int | None = None) -> None:
        """Delete all records, and begin an empty log at `offset`."""
        with self.lock:
            self.check_writable()
            with self._whole_or_offline():
                self.remove(tuple(self.chain.segments)[::-1])
                self.chain.add((self.chain.create(offset),))
                self.epochs.clear()
                self.producers.truncate_fully_and_start_at(offset)
                self._settle(start=offset if start is None else start, end=offset)
            logger.info(f"{self.name}: emptied, begins anew at offset {offset}")

    def _settle(self, start: int, end: int) -> None:
        """Make the producer state fit a log that now ends earlier, before readers see the new end."""
        mark = min(self.offsets.high_watermark, end)
        rebuild(self.chain, self.producers, start, end, mark, self.clock())
        self.recovery_point = min(self.recovery_point, end)
        self._cut = min(self._cut, end)
        self._unflushed_roll = min(self._unflushed_roll, end)
        self.publish(start=start, high_watermark=mark, end=end)
        self._renew_promises()

    def remove(self, segments: Sequence[Segment]) -> None:
        """Remove segments from the log, with their snapshots. The caller holds the lock."""
        self.chain.remove(segments, self.settings.file_delete_delay_ms)
        self._remove_snapshots([segment.base_offset for segment in segments])

    def _remove_snapshots(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            renamed = self.producers.mark_snapshot_for_deletion(offset)
            if renamed is not None:
                self.chain.doom_file(renamed, self.settings.file_delete_delay_ms)

    def retire(self, segments: Sequence[Segment]) -> None:
        """Remove segments that lie below the start offset. The caller holds the lock."""
        with self._whole_or_offline():
            self.remove(segments)

    def replace(self, old: Sequence[Segment], new: Sequence[Segment], cuts: int) -> None:
        """Replace segments by the `.cleaned` ones that were made from them. The new ones are on disk already.

        `cuts` is the log's count at the time when the old ones were read. CleaningAbortedError, with nothing done,
        where an old segment was removed or the log was cut since then: removed records must not come back."""
        # This may take a while. The second call, which holds the lock, has little left to do.
        self.announce_removal(old)
        # No flush in between: it would record the new segments as durable while a power loss could bring back the old.
        with self._flushing:
            with self.lock:
                self._replace(old, new, cuts)
            with self._whole_or_offline():
                sync_directory(self.chain.directory)

    def _replace(self, old: Sequence[Segment], new: Sequence[Segment], cuts: int) -> None:
        self.check_writable()
        segments = self.chain.segments
        gone = [each.base_offset for each in old if each not in segments or each is segments.last]
        if gone or self.cuts != cuts:
            raise CleaningAbortedError(
                f"{self.name}: segments {gone} were removed, or the log was cut, while it was cleaned"
            )
        self.announce_removal(old)
        with self._whole_or_offline():
            self.chain.replace(old, new, self.settings.file_delete_delay_ms)
            self._remove_snapshots({each.base_offset for each in old} - {each.base_offset for each in new})

    def split_overflowing(self, segments: Sequence[Segment]) -> bool:
        """Split those of these segments that have offsets too far above their base. Old compactions left such
        segments. Return False if there is none."""
        found = False
        with self.lock:
            self.check_writable()
            for segment in segments:
                last = segment.next_offset() - 1
                if segment in self.chain.segments and last - segment.base_offset > MAX_INT32:
                    found = True
                    with self._whole_or_offline():
                        split(self.chain, segment, self.settings.file_delete_delay_ms, _refuse_cut)
        return found

    # -- keeping --------------------------------------------------------------------------------------

    def reconfigure(self, settings: TopicSettings) -> None:
        """Apply new settings. Existing segments keep the settings that they were created with."""
        with self.lock:
            self.settings = settings
            self.chain.settings = segment_settings(settings)

    @property
    def has_unflushed_roll(self) -> bool:
        """Return whether sealed segments exist that no flush has covered."""
        return self._unflushed_roll > self.recovery_point

    def flush_roll(self) -> None:
        """Flush all sealed segments to disk."""
        self.flush(self._unflushed_roll)

    def flush_is_due(self, now: int) -> bool:
        """Return whether `flush.ms` have passed since the last flush, and records came after it. `now` is by the
        steady clock."""
        return self.offsets.end > self.recovery_point and now - self.last_flush_ms >= self.settings.flush_ms

    def remove_due(self, now: int) -> int:
        """Remove files whose deletion delay is over. Return how many segments and snapshots were removed.

        This takes no lock: removing a large file takes a while, and nobody appends to it."""
        return self.chain.remove_due(now)

    def expire_producers(self, now: int) -> int:
        """Forget producers that were idle for `producer.id.expiration.ms`. Return how many."""
        with self.lock:
            return self.producers.remove_expired(now)

    def flush(self, up_to: int | None = None) -> None:
        """Write everything below `up_to` to disk, log and indexes. None means everything.

        fsync runs outside the lock: appends go on in the meantime, and only another flush waits."""
        with self._flushing:
            self._flush(self.offsets.end if up_to is None else up_to, with_active=False)

    def _flush(self, target: int, with_active: bool) -> None:
        """Flush. The caller holds `_flushing`. `with_active` includes an active segment that is empty, so that its
        index files exist afterwards."""
        self.check_writable()
        point = self.recovery_point
        self._cut = MAX_INT64
        if target <= point and not with_active:
            return
        self._sync(point, target, with_active)
        with self.lock:
            # Records that were cut off and appended again in the meantime are not on disk.
            self.recovery_point = max(self.recovery_point, min(target, self.offsets.end, self._cut))
            self.last_flush_ms = self.chain.steady()

    def _sync(self, start: int, end: int, with_active: bool) -> None:
        """Flush the segments from `start` to `end`, with snapshots and the directory.

        An fsync error takes the log offline: the disk may report the lost data as written the next time. Where no
        descriptor is free nothing is lost: the next flush does all of it again. This needs no disk space: on a full
        disk it would otherwise refuse records that are appended already."""
        with self.lock:
            segments = self.chain.segments
            floor = segments.floor(start)
            flushed = [
                segment
                for segment in segments.from_base(start if floor is None else floor.base_offset)
                if segment.base_offset < end or (with_active and segment is segments.last)
            ]
            for segment in flushed:
                if segment.is_active:
                    # Index files are created here, because only the holder of the lock may create and cut them.
                    segment.trim_indexes()
            waiting, self._snapshots = self._snapshots, []
        try:
            for path in waiting:
                snapshot.flush(path)
            for segment in flushed:
                self.chain.sync(segment)
            if any(segment.base_offset >= start for segment in flushed):
                sync_directory(self.chain.directory)
        except OSError as error:
            if error.errno not in _NO_DESCRIPTOR:
                self._fail(error)
                raise
            with self.lock:
                self._snapshots = waiting + self._snapshots
            raise

    def close(self) -> None:
        """Stop cleanly: flush everything, take a snapshot at the end, and cut every file to its true size."""
        with self._flushing, self.lock:
            if self._closed:
                return
            try:
                if self.failure is None and not self.read_only:
                    self.metadata.maybe_flush()
                    self._flush(self.offsets.end, with_active=True)
                    self.epochs.flush()
                    self.producers.take_snapshot(fsync=True)
                    for segment in self.chain.segments:
                        segment.keep_mended()
            finally:
                self._shut()
                self.chain.close()

    def abandon(self) -> None:
        """Stop as in a crash: write nothing more."""
        with self.lock:
            self._shut()
            self.chain.abandon()

    @contextlib.contextmanager
    def still(self) -> Iterator[None]:
        """Keep everyone else from appending, flushing and changing segments during the `with` block."""
        with self._flushing, self.lock:
            yield

    def rename(self, directory: Path) -> None:
        """Move the directory, to delete it. Nothing can be read or appended any more. A failed write, as on a full
        disk, does not stop the deletion: if it is undone, the log is recovered."""
        with self._flushing, self.lock:
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


def _refuse_cut(segment: Segment) -> None:
    """Refuse to split a segment in the middle of a log, where that would lose what lies behind a damaged batch."""
    raise CorruptSegmentError(f"{segment.path}: has to be split, and has a batch that is damaged")
