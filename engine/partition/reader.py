"""Reading a partition without a lock, while one appender, retention and compaction work on it.

A reader takes a snapshot of the log, and reads by it. Whatever is appended or rolled in the meantime is not seen. What
is removed ends in an error, unless its segments are held (see `topicfs.engine.partition.hold`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from topicfs.engine import batch as batches
from topicfs.engine.batch.columns import Columns
from topicfs.engine.batch.table import Bytes, Longs, without_aborted
from topicfs.engine.errors import CorruptBatchError, CorruptError, OffsetOutOfRangeError
from topicfs.engine.format.batch_header import CONTROL
from topicfs.engine.format.transaction_index import AbortedTransaction
from topicfs.engine.kernels.scan import ATTRIBUTES, BASE_OFFSET, LAST_OFFSET, POSITION
from topicfs.engine.partition.offsets import Isolation
from topicfs.engine.partition.snapshot import Snapshot
from topicfs.engine.record import Record
from topicfs.engine.segment.segment import Segment
from topicfs.engine.segment.segments import Segments


@dataclass(frozen=True, slots=True)
class Fetch:
    """A part of a segment.

    data                    whole batches as in the file, but the last may be cut off; the first may hold
                            records below the requested offset
    offset                  the requested offset
    segment_base            base offset of the segment that holds the data
    position                position of the data in that segment
    first_batch_incomplete  whether the first batch is larger than the limit and was cut off
    aborted                 with Isolation.COMMITTED, the aborted transactions that overlap the data
    """

    data: bytes
    offset: int
    segment_base: int
    position: int
    first_batch_incomplete: bool = False
    aborted: tuple[AbortedTransaction, ...] = ()


def fetch(snapshot: Snapshot, start: int, max_bytes: int, isolation: Isolation, at_least_one: bool) -> Fetch:
    """Return the bytes from the batch that holds `start` on, from one segment only."""
    if max_bytes < 0:
        raise ValueError(f"a read of {max_bytes} bytes: expected 0 or more")
    segments = snapshot.segments
    segment = segments.floor(start) if snapshot.start <= start <= snapshot.end else None
    if segment is None:
        name = segments.last.directory.name
        raise OffsetOutOfRangeError(f"{name}: offset {start} is outside {snapshot.start} to {snapshot.end}")
    limit = snapshot.limit(isolation)
    nothing = Fetch(b"", start, snapshot.active_base, snapshot.end_position)
    if start >= limit:
        return Fetch(b"", start, segment.base_offset, 0) if start < snapshot.end else nothing
    found = segment.position_of(start)
    while found is None:
        # Compaction may have removed everything from `start` to this segment's end.
        following = segments.higher(segment.base_offset)
        if following is None:
            return nothing
        segment = following
        found = segment.position_of(start)
    position, size, _, _ = found
    end = _end_position(segment, snapshot, limit)
    wanted = max(max_bytes, size) if at_least_one else max_bytes
    length = min(end - position, wanted)
    if length <= 0:
        return Fetch(b"", start, segment.base_offset, position)
    data = segment.log.read(position, length)
    aborted: tuple[AbortedTransaction, ...] = ()
    if isolation == Isolation.COMMITTED:
        upper = _upper_bound(snapshot, segment, position, length)
        aborted = tuple(aborted_between(segments, segment, start, upper))
    return Fetch(data, start, segment.base_offset, position, wanted < size, aborted)


def _end_position(segment: Segment, snapshot: Snapshot, limit: int) -> int:
    """Return the position in the segment where the records below `limit` end."""
    if limit == snapshot.end:
        return snapshot.end_position if segment.base_offset == snapshot.active_base else segment.size
    if segment.base_offset > limit:
        return 0
    found = segment.position_of(limit)
    if found is None:
        return (
            min(segment.size, snapshot.end_position)
            if segment.base_offset == snapshot.active_base
            else segment.size
        )
    return found[0]


def _upper_bound(snapshot: Snapshot, segment: Segment, position: int, length: int) -> int:
    """Return an offset behind all data in segment[position:position+length], found without reading that data."""
    entry = segment.offset_index.upper_bound(position, length)
    if entry is not None and segment.log.ends_with(entry[1], entry[0]):
        return entry[0]
    following = snapshot.segments.higher(segment.base_offset)
    return snapshot.end if following is None else following.base_offset


def aborted_between(segments: Segments, first: Segment, start: int, end: int) -> Iterator[AbortedTransaction]:
    """Yield the aborted transactions that overlap the offsets from `start` up to, but not including, `end`."""
    segment: Segment | None = first
    while segment is not None:
        found, complete = segment.transactions.collect(start, end)
        yield from found
        if complete:
            return
        segment = segments.higher(segment.base_offset)


# -- whole batches ------------------------------------------------------------------------------------


def read_batches(
    snapshot: Snapshot, start: int, end: int, isolation: Isolation
) -> Iterator[tuple[Bytes, Longs, int]]:
    """Yield the data batches that overlap [start, end), checked: chunks of a file, each with its batch table and
    its position in the file. With Isolation.COMMITTED, batches of aborted transactions are left out."""
    if start >= end:
        return
    segments = snapshot.segments
    segment = segments.floor(start)
    if segment is None:
        raise OffsetOutOfRangeError(f"offset {start} was removed before its segment could be held")
    while segment is not None and segment.base_offset < end:
        found = segment.position_of(start)
        if found is not None:
            check_end(snapshot, segment, found[2], found[3])
        if found is not None and found[2] < end:
            following = segments.higher(segment.base_offset)
            limit = snapshot.limit(isolation)
            whole = following is not None and following.base_offset <= limit
            stop = segment.size if whole else _end_position(segment, snapshot, limit)
            last, problem = None, None
            try:
                last = segment.position_of(end - 1, found[0])
                if last is not None:
                    check_end(snapshot, segment, last[2], last[3])
                    # Nothing behind the last batch is read: many views are only a few records long.
                    stop = min(stop, last[0] + last[1])
            except CorruptError as error:
                problem = error  # the batches before the damage are yielded first
                stop = stop if last is None else min(stop, last[0])
            for buffer, table in segment.log.batches(found[0], stop):
                origin = int(table[0, POSITION])
                kept = shown(segments, segment, table[table[:, BASE_OFFSET] < end], isolation)
                if len(kept):
                    yield buffer, kept, origin
                if table[-1, LAST_OFFSET] >= end:
                    return
            if problem is not None:
                raise problem
        segment = segments.higher(segment.base_offset)


def check_end(snapshot: Snapshot, segment: Segment, base_offset: int, last_offset: int) -> None:
    """Raise CorruptBatchError if a batch reaches into the next segment, or over the log's end. Its base offset is then
    damaged, which no checksum covers."""
    following = snapshot.segments.higher(segment.base_offset)
    # A batch behind the log's end was appended after the snapshot was taken.
    end = snapshot.end if following is None else following.base_offset
    if last_offset >= end and (following is not None or base_offset < end):
        raise CorruptBatchError(
            f"{segment.path}: expected offsets below {end}, found a batch from {base_offset} to {last_offset}"
        )


def read_record(snapshot: Snapshot, offset: int, isolation: Isolation) -> Record | None:
    """Return the record at an offset, or None for a marker, an aborted record or a gap."""
    segments = snapshot.segments
    segment = segments.floor(offset)
    found = None if segment is None else segment.position_of(offset)
    if segment is not None and found is not None:
        check_end(snapshot, segment, found[2], found[3])
    if segment is None or found is None or found[2] > offset or offset >= snapshot.limit(isolation):
        return None
    buffer, row = segment.log.batch_at(found[0], found[1])
    if not len(shown(segments, segment, row.reshape(1, -1), isolation)):
        return None
    return batches.record_at(buffer, row, offset)


def shown(segments: Segments, segment: Segment, table: Longs, isolation: Isolation) -> Longs:
    """Return the batches of a segment that are no markers and, with Isolation.COMMITTED, of no aborted transaction."""
    kept: Longs = table[table[:, ATTRIBUTES] & CONTROL == 0]
    if isolation != Isolation.COMMITTED or not len(kept):
        return kept
    return without_aborted(kept, lambda start, end: aborted_between(segments, segment, start, end))


def read_columns(snapshot: Snapshot, start: int, end: int, isolation: Isolation) -> Iterator[Columns]:
    """Yield the records in [start, end), as columns."""
    for buffer, table, origin in read_batches(snapshot, start, end, isolation):
        for part in batches.columns(buffer, table, origin):
            within = part.between(start, end)
            if len(within):
                yield within
