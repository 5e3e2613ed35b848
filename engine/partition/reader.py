"""Reading a partition, without a lock, beside one appender, retention and compaction.

A reader takes the published offsets first and the published segments then: whatever is removed or rolled in
between, the segments hold what the offsets promise, or the offset is found to be out of range.
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
from topicfs.engine.partition.chain import Chain
from topicfs.engine.partition.offsets import Isolation, LogOffsets
from topicfs.engine.record import Record
from topicfs.engine.segment.segment import Segment
from topicfs.engine.segment.segments import Segments


@dataclass(frozen=True, slots=True)
class Fetch:
    """A slice of a segment.

    data                    whole batches as they lie in the file, but the last may be cut off; the first may
                            hold records below the offset asked for
    offset                  the offset asked for
    segment_base            of the segment that holds the data
    position                of the data in that segment
    first_batch_incomplete  the first batch is larger than the limit and was cut off
    aborted                 with Isolation.COMMITTED, the aborted transactions that overlap the data
    """

    data: bytes
    offset: int
    segment_base: int
    position: int
    first_batch_incomplete: bool = False
    aborted: tuple[AbortedTransaction, ...] = ()


def fetch(
    chain: Chain, offsets: LogOffsets, start: int, max_bytes: int, isolation: Isolation, at_least_one: bool
) -> Fetch:
    """The bytes from the batch that holds `start` on, never across segments."""
    if max_bytes < 0:
        raise ValueError(f"a read of {max_bytes} bytes: expected 0 or more")
    segments = chain.segments
    segment = segments.floor(start) if offsets.start <= start <= offsets.end else None
    if segment is None:
        raise OffsetOutOfRangeError(
            f"{chain.directory.name}: offset {start} is outside {offsets.start} to {offsets.end}"
        )
    limit = offsets.limit(isolation)
    nothing = Fetch(b"", start, offsets.active_base, offsets.end_position)
    if start >= limit:
        return Fetch(b"", start, segment.base_offset, 0) if start < offsets.end else nothing
    found = segment.position_of(start)
    while found is None:
        # Compaction may have removed everything from `start` to this segment's end.
        following = segments.higher(segment.base_offset)
        if following is None:
            return nothing
        segment = following
        found = segment.position_of(start)
    position, size, _, _ = found
    end = _end_position(segment, offsets, limit)
    wanted = max(max_bytes, size) if at_least_one else max_bytes
    length = min(end - position, wanted)
    if length <= 0:
        return Fetch(b"", start, segment.base_offset, position)
    data = segment.read(position, length)
    aborted: tuple[AbortedTransaction, ...] = ()
    if isolation == Isolation.COMMITTED:
        upper = _upper_bound(segments, segment, position, length, offsets)
        aborted = tuple(aborted_between(segments, segment, start, upper))
    return Fetch(data, start, segment.base_offset, position, wanted < size, aborted)


def _end_position(segment: Segment, offsets: LogOffsets, limit: int) -> int:
    """Where in the segment the records end that lie below `limit`."""
    if limit == offsets.end:
        return offsets.end_position if segment.base_offset == offsets.active_base else segment.size
    if segment.base_offset > limit:
        return 0
    found = segment.position_of(limit)
    if found is None:
        return (
            min(segment.size, offsets.end_position)
            if segment.base_offset == offsets.active_base
            else segment.size
        )
    return found[0]


def _upper_bound(
    segments: Segments, segment: Segment, position: int, length: int, offsets: LogOffsets
) -> int:
    """An offset behind everything in segment[position:position+length], found without reading it."""
    entry = segment.offset_index.upper_bound(position, length)
    if entry is not None and segment.ends_with(entry[1], entry[0]):
        return entry[0]
    following = segments.higher(segment.base_offset)
    return offsets.end if following is None else following.base_offset


def aborted_between(segments: Segments, first: Segment, start: int, end: int) -> Iterator[AbortedTransaction]:
    """The aborted transactions that overlap the offsets from `start` to, not including, `end`."""
    segment: Segment | None = first
    while segment is not None:
        found, complete = segment.transactions.collect(start, end)
        yield from found
        if complete:
            return
        segment = segments.higher(segment.base_offset)


# -- whole batches ------------------------------------------------------------------------------------


def read_batches(
    segments: Segments, offsets: LogOffsets, start: int, end: int, isolation: Isolation
) -> Iterator[tuple[Bytes, Longs, int]]:
    """The data batches that overlap [start, end), checked: chunks of a file, each with its batch table and
    its position in the file. With Isolation.COMMITTED, batches of aborted transactions are left out."""
    segment = segments.floor(start)
    if segment is None and start < end:
        raise OffsetOutOfRangeError(f"offset {start} was removed before its segment could be held")
    while segment is not None and segment.base_offset < end:
        found = segment.position_of(start)
        if found is not None:
            check_end(segments, segment, offsets, found[2], found[3])
        if found is not None and found[2] < end:
            following = segments.higher(segment.base_offset)
            limit = offsets.limit(isolation)
            whole = following is not None and following.base_offset <= limit
            stop = segment.size if whole else _end_position(segment, offsets, limit)
            last, problem = None, None
            try:
                last = segment.position_of(end - 1, found[0])
            except CorruptError as error:
                problem = error  # what lies before the damage is given first
            if last is not None:
                check_end(segments, segment, offsets, last[2], last[3])
                # Nothing behind the last batch is read: many a view is a few records long.
                stop = min(stop, last[0] + last[1])
            for buffer, table in segment.batches(found[0], stop):
                origin = int(table[0, POSITION])
                kept = table[(table[:, BASE_OFFSET] < end) & (table[:, ATTRIBUTES] & CONTROL == 0)]
                if isolation == Isolation.COMMITTED and len(kept):
                    kept = _without_aborted(segments, segment, kept)
                if len(kept):
                    yield buffer, kept, origin
                if table[-1, LAST_OFFSET] >= end:
                    return
            if problem is not None:
                raise problem
        segment = segments.higher(segment.base_offset)


def check_end(
    segments: Segments, segment: Segment, offsets: LogOffsets, base_offset: int, last_offset: int
) -> None:
    """CorruptBatchError where a batch would reach into the next segment, or over the log's end: then its base offset is
    damaged, which no checksum covers."""
    following = segments.higher(segment.base_offset)
    # Behind the log's end is what was appended since these offsets were taken.
    end = offsets.end if following is None else following.base_offset
    if last_offset >= end and (following is not None or base_offset < end):
        raise CorruptBatchError(
            f"{segment.path}: expected offsets below {end}, found a batch from {base_offset} to {last_offset}"
        )


def read_record(segments: Segments, offsets: LogOffsets, offset: int, isolation: Isolation) -> Record | None:
    """The record at an offset; None where a marker, an aborted record or a gap is."""
    segment = segments.floor(offset)
    found = None if segment is None else segment.position_of(offset)
    if segment is not None and found is not None:
        check_end(segments, segment, offsets, found[2], found[3])
    if segment is None or found is None or found[2] > offset or offset >= offsets.limit(isolation):
        return None
    buffer, row = segment.batch_at(found[0], found[1])
    if row[ATTRIBUTES] & CONTROL:
        return None
    if isolation == Isolation.COMMITTED and not len(_without_aborted(segments, segment, row.reshape(1, -1))):
        return None
    return batches.record_at(buffer, row, offset)


def _without_aborted(segments: Segments, segment: Segment, table: Longs) -> Longs:
    return without_aborted(table, lambda start, end: aborted_between(segments, segment, start, end))


def read_columns(
    segments: Segments, offsets: LogOffsets, start: int, end: int, isolation: Isolation
) -> Iterator[Columns]:
    """The records in [start, end), as columns."""
    for buffer, table, origin in read_batches(segments, offsets, start, end, isolation):
        for part in batches.columns(buffer, table, origin):
            within = part.between(start, end)
            if len(within):
                yield within
