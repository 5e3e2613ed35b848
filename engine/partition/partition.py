"""One partition: a log that grows at its end, and may be cut at both ends.

Readers take no lock. Changes go through `Log`, which has a lock (see `engine/CONCURRENCY.md`). Nothing here runs by
itself: what Kafka does on a schedule is a method here, and the owner of the partition calls it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Self, TypeVar

import numpy as np

from topicfs.engine import batch as batches
from topicfs.engine.batch.columns import Columns
from topicfs.engine.batch.table import Bytes, Longs
from topicfs.engine.errors import (
    CorruptError,
    OffsetOutOfRangeError,
    OffsetsOutOfOrderError,
    PolicyViolationError,
)
from topicfs.engine.format.batch_header import HEADER_SIZE
from topicfs.engine.kernels.encode import RECORD_OVERHEAD
from topicfs.engine.kernels.scan import BASE_OFFSET, LAST_OFFSET
from topicfs.engine.partition import cutting, last, reader, timestamps
from topicfs.engine.partition.hold import Hold
from topicfs.engine.partition.log import Log
from topicfs.engine.partition.offsets import Appended, Isolation, LogOffsets
from topicfs.engine.partition.validate import accept, batch_limit, check_records, check_size, shape_for
from topicfs.engine.producer.entry import Origin, increment
from topicfs.engine.record import NO_OFFSET, Record
from topicfs.engine.settings.topic import TopicSettings

T = TypeVar("T")
Data = bytes | bytearray | memoryview | Bytes


@dataclass(frozen=True, slots=True)
class Producer:
    """The identity of an appender, for idempotence and transactions.

    producer_id, epoch  as a coordinator gave them
    sequence            sequence number of the first record of this append
    transactional       whether the records belong to the producer's open transaction, or begin one
    """

    producer_id: int
    epoch: int
    sequence: int
    transactional: bool = False


class Partition:
    """One partition of a topic.

    topic, number  its name is `<topic>-<number>`
    log            its records, and every method that changes them
    """

    def __init__(self, topic: str, number: int, log: Log) -> None:
        self.topic = topic
        self.number = number
        self.log = log

    def __repr__(self) -> str:
        return f"<Partition {self.name} {self.start_offset}..{self.end_offset}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what it is -----------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Return `<topic>-<number>`."""
        return f"{self.topic}-{self.number}"

    @property
    def directory(self) -> Path:
        """Return the directory that holds its files."""
        return self.log.chain.directory

    @property
    def settings(self) -> TopicSettings:
        """Return the settings of its topic."""
        return self.log.settings

    @property
    def topic_id(self) -> str | None:
        """Return the topic's id, or None if it has none."""
        return self.log.metadata.topic_id

    @property
    def offsets(self) -> LogOffsets:
        """Return all four offsets as of one moment."""
        return self.log.snapshot

    @property
    def start_offset(self) -> int:
        """Return the offset of the first record that may be read."""
        return self.log.snapshot.start

    @property
    def stable_offset(self) -> int:
        """Return the offset below which all records are replicated and belong to no open transaction."""
        return self.log.snapshot.stable

    @property
    def high_watermark(self) -> int:
        """Return the offset below which every replica has the records."""
        return self.log.snapshot.high_watermark

    @property
    def end_offset(self) -> int:
        """Return the offset that the next record gets."""
        return self.log.snapshot.end

    @property
    def recovery_point(self) -> int:
        """Return the offset below which everything is known to be on disk."""
        return self.log.flusher.point

    @property
    def is_open(self) -> bool:
        """Return whether it can be read and appended to: it is not deleted, closed or offline."""
        return self.log.is_open

    def catch_up(self) -> None:
        """Take up what another process has changed in the files, where the partition is opened read-only."""
        self.log.catch_up()

    @property
    def size(self) -> int:
        """Return the bytes in its `.log` files."""
        return self.log.snapshot.segments.size

    # -- reading --------------------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        max_bytes: int,
        isolation: Isolation = Isolation.COMMITTED,
        at_least_one: bool = True,
    ) -> reader.Fetch:
        """Return raw batches from the one that holds `offset` on, as a broker sends them to a consumer."""
        return self.log.with_snapshot(
            lambda snapshot: reader.fetch(snapshot, offset, max_bytes, isolation, at_least_one)
        )

    def columns(
        self,
        start: int | None = None,
        end: int | None = None,
        isolation: Isolation = Isolation.COMMITTED,
    ) -> Iterator[Columns]:
        """Yield the records in [start, end) as arrays, a chunk of about 1 MiB at a time.

        Records that are removed during the read are still delivered. Records that are appended during it are not."""
        with self.hold(start, end) as hold:
            taken = hold.snapshot
            first = taken.start if start is None else start
            last = min(taken.limit(isolation), taken.end if end is None else end)
            if not taken.start <= first <= taken.end:
                raise OffsetOutOfRangeError(
                    f"{self.name}: offset {first} to read from, expected {taken.start} to {taken.end}"
                )
            try:
                for part in reader.read_columns(taken, first, last, isolation):
                    yield part
                    hold.release(int(part.offsets[-1]))
            except CorruptError as error:
                if self.log.snapshot.cuts == taken.cuts:
                    raise
                raise OffsetOutOfRangeError(f"{self.name}: truncated while it was read: {error}") from error

    def records(
        self,
        start: int | None = None,
        end: int | None = None,
        isolation: Isolation = Isolation.COMMITTED,
    ) -> Iterator[Record]:
        """Yield the records in [start, end), one object each."""
        for part in self.columns(start, end, isolation):
            yield from part.records()

    def record(self, offset: int, isolation: Isolation = Isolation.COMMITTED) -> Record | None:
        """Return the record at an offset, or None if this reader may see no record there."""
        now = self.offsets
        if not now.start <= offset < now.limit(isolation):
            return None
        return self.log.with_snapshot(lambda snapshot: reader.read_record(snapshot, offset, isolation))

    def offset_for_timestamp(
        self, timestamp: int, isolation: Isolation = Isolation.COMMITTED
    ) -> timestamps.Found | None:
        """Return the first record at or after a time. A special timestamp of `timestamps` may be given instead."""
        return self.log.with_snapshot(
            lambda snapshot: timestamps.find(snapshot, self.log.epochs, timestamp, isolation)
        )

    def first_shown_at(self, timestamp: int) -> timestamps.Found | None:
        """Return the first record that readers see and that is not earlier."""
        return self.log.with_snapshot(lambda snapshot: timestamps.first_shown(snapshot, timestamp))

    def first_offset_at(self, timestamp: int) -> int:
        """Return the offset of the first record that is not earlier. It is the stable offset if readers see no such
        record."""
        return self.log.with_snapshot(lambda snapshot: timestamps.first_offset(snapshot, timestamp))

    def start_of_last(self, count: int, isolation: Isolation = Isolation.COMMITTED) -> int:
        """Return the offset of the first of the last `count` records, one or more, that readers see; the start offset
        if there are not more."""
        return self.log.with_snapshot(lambda snapshot: last.start_of_last(snapshot, count, isolation))

    def hold(self, start: int | None = None, end: int | None = None) -> Hold:
        """Keep the segments that hold [start, end) readable until the hold is released."""
        return Hold.take(self.log, start, end)

    # -- appending ------------------------------------------------------------------------------------

    def append(self, records: Record | Sequence[Record], producer: Producer | None = None) -> Appended:
        """Append records, in one batch if they fit in one. If any record is invalid, none is appended."""
        if isinstance(records, Record):
            records = (records,)
        now = self.log.clock()
        settings = self.settings
        times = np.array([now if r.timestamp is None else r.timestamp for r in records], np.int64)
        check_records(times, np.array([r.key is None for r in records], np.bool_), settings, now)
        shape = shape_for(settings)
        built = []
        done = 0
        for part in _split(records, batch_limit(settings)):
            if producer is not None:
                shape = replace(
                    shape,
                    producer_id=producer.producer_id,
                    producer_epoch=producer.epoch,
                    base_sequence=increment(producer.sequence, done),
                    transactional=producer.transactional,
                )
            built.append(batches.from_records(part, now, shape))
            check_size(built[-1].data, settings)
            done += len(part)
        if not built:
            raise ValueError("an append needs at least one record")
        self.log.flush_queues()
        return _joined([self._append_own(batch, now, Origin.CLIENT) for batch in built])

    def append_lines(self, lines: Data) -> Appended:
        """Append each line as a record: its bytes without the newline are the value, and the key is null.

        A last line without a newline counts. If a line is refused, the lines before it stay appended."""
        data = lines if isinstance(lines, np.ndarray) else np.frombuffer(lines, np.uint8)
        if not data.size:
            raise ValueError("an append needs at least one line")
        now = self.log.clock()
        settings = self.settings
        if settings.compact:
            check_records(np.array([now]), np.ones(1, np.bool_), settings, now)
        self.log.flush_queues()
        shape = shape_for(settings)
        limit = batch_limit(settings)
        done = []
        start = 0
        while start < data.size:
            batch, start = batches.from_lines(data, now, shape, limit, start)
            check_size(batch.data, settings)
            done.append(self._append_own(batch, now, Origin.CLIENT))
        return _joined(done)

    def append_batch(self, batch: Data, origin: Origin = Origin.CLIENT) -> Appended:
        """Append one batch that a producer built. It is validated, gets its offsets, and is rewritten if the topic
        needs that."""
        data = batch if isinstance(batch, np.ndarray) else np.frombuffer(batch, np.uint8)
        now = self.log.clock()
        accepted = accept(data, self.settings, now, origin)
        self.log.flush_queues()
        return self._append_own(accepted, now, origin)

    def append_raw(self, data: Data) -> Appended:
        """Append batches of another log unchanged, with their offsets, leader epochs and bytes."""
        array = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
        return self.append_scanned(array, batches.scan(array))

    def append_scanned(self, data: Bytes, table: Longs) -> Appended:
        """Append batches as `append_raw` does, whose batch table is known and whose checksums were checked."""
        if not len(table):
            raise ValueError("an append needs at least one batch")
        falling = np.flatnonzero(table[1:, BASE_OFFSET] <= table[:-1, LAST_OFFSET])
        if falling.size:
            at = int(falling[0])
            raise OffsetsOutOfOrderError(
                f"{self.name}: batch {at + 1} begins at offset {table[at + 1, BASE_OFFSET]}, "
                f"expected one above {table[at, LAST_OFFSET]}"
            )
        if not self.log.is_mirror:
            # The lines that wait at a mirror go to the cluster, which has put these batches before them.
            self.log.flush_queues()
        return self.log.follow(data, table)

    def end_transaction(
        self, producer_id: int, epoch: int, commit: bool, coordinator_epoch: int = 0
    ) -> Appended:
        """Append the marker that commits or aborts the producer's open transaction."""
        now = self.log.clock()
        kind = batches.COMMIT if commit else batches.ABORT
        batch = batches.end_marker(producer_id, epoch, kind, coordinator_epoch, now)
        self.log.flush_queues()
        return self._append_own(batch, now, Origin.COORDINATOR)

    def append_built(self, batch: batches.Batch, origin: Origin = Origin.CLIENT) -> Appended:
        """Append a batch that this process built from checked records. Its content is not checked again."""
        self.log.flush_queues()
        return self._append_own(batch, self.log.clock(), origin)

    def append_waiting(self, built: batches.Batches, room: int) -> Appended:
        """Append batches of lines that waited, all or none. `room` of the log's promised bytes belong to them."""
        return self.log.lead(built.data, built.table, self.log.clock(), Origin.CLIENT, room)

    def _append_own(self, batch: batches.Batch, now: int, origin: Origin) -> Appended:
        return self.log.lead(batch.data, batch.row.reshape(1, -1), now, origin)

    # -- changing -------------------------------------------------------------------------------------

    def roll(self) -> None:
        """Seal the active segment, and begin a new one."""
        self.log.flush_queues()
        self.log.roll()

    def truncate_to(self, offset: int) -> bool:
        """Remove everything from `offset` on. Return False if there was nothing to remove."""
        return cutting.truncate(self.log, offset)

    def restart_at(self, offset: int) -> None:
        """Delete all records, and begin an empty log at `offset`."""
        cutting.restart(self.log, offset)

    def deletion_bound(self, before: int) -> int:
        """Return the start offset that `delete_records` would set now, or raise the error that it would raise. The
        offset can still be used later: a high watermark only rises."""
        log = self.log
        log.check_open()
        if not log.settings.delete:
            raise PolicyViolationError(
                f"{self.name}: records are deleted only where cleanup.policy has 'delete', "
                f"found {log.settings.cleanup_policy_text!r}"
            )
        mark = log.snapshot.high_watermark
        offset = mark if before == NO_OFFSET else before
        if not 0 <= offset <= mark:
            raise OffsetOutOfRangeError(
                f"{self.name}: records before {offset} to delete, expected 0 to the high watermark {mark}"
            )
        return offset

    def delete_records(self, before: int) -> int:
        """Raise the start offset. -1 raises it to the high watermark. Return the start offset.

        The space is freed when retention next runs. `Store.delete_records` also saves the new offset."""
        log = self.log
        with log.lock:
            log.raise_start_offset(self.deletion_bound(before))
            return log.snapshot.start

    def flush(self, up_to: int | None = None) -> None:
        """Write everything, or everything below an offset, to disk: log and indexes."""
        self.log.flush(up_to)

    def close(self) -> None:
        """Stop cleanly. The next opening of the partition then checks nothing."""
        self.log.close()


def _split(records: Sequence[Record], limit: int) -> Iterator[Sequence[Record]]:
    """Divide a list of records into batches of at most `limit` bytes, by an upper bound of their sizes."""
    first, size = 0, HEADER_SIZE
    for at, record in enumerate(records):
        needed = (
            RECORD_OVERHEAD
            + len(record.key or b"")
            + len(record.value or b"")
            + sum(10 + 4 * len(name) + len(value or b"") for name, value in record.headers)
        )
        if size + needed > limit and at > first:
            yield records[first:at]
            first, size = at, HEADER_SIZE
        size += needed
    if first < len(records):
        yield records[first:]


def _joined(parts: Sequence[Appended]) -> Appended:
    """Combine the results of several consecutive appends into one."""
    if len(parts) == 1:
        return parts[0]
    latest = max(parts, key=attrgetter("max_timestamp"))
    return Appended(
        parts[0].first_offset,
        parts[-1].last_offset,
        latest.max_timestamp,
        latest.offset_of_max_timestamp,
        parts[-1].append_time,
        all(part.duplicate for part in parts),
        parts[0].segment_base,
        parts[0].position,
    )
