"""The records of a range, read from segment files as complete, checked batches.

Beside a running daemon, compaction may replace a segment, or retention remove it, at any moment. An open file stays
the same file. An index is trusted only if the `.log` still has its name after the index was read: a compacted
segment gets its `.log` first and its index afterwards, so an index seen before that is the old one or none. After
each segment the directory is listed again. The aborted transactions were found when the read was planned: it does
no harm to know too many of them.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import numpy as np

from topicfs.engine import batch as batches
from topicfs.engine.batch.columns import Columns
from topicfs.engine.batch.plain import plain
from topicfs.engine.batch.table import Bytes, Longs, without_aborted
from topicfs.engine.errors import ClosedError, CorruptError, CorruptSegmentError, OffsetOutOfRangeError
from topicfs.engine.files.metadata import PartitionMetadata
from topicfs.engine.format.batch_header import CONTROL
from topicfs.engine.kernels.scan import ATTRIBUTES, BASE_OFFSET, LAST_OFFSET, MAX_TIMESTAMP, POSITION
from topicfs.engine.record import now_ms
from topicfs.engine.segment.batch_file import BatchFile
from topicfs.engine.segment.descriptors import Descriptors
from topicfs.engine.segment.segment import Segment
from topicfs.engine.segment.settings import SegmentSettings
from topicfs.engine.segment.walk import Room, room
from topicfs.engine.unlocked.files import listed
from topicfs.engine.unlocked.offset_range import EVERYTHING, OffsetRange, TimeBounds

CHUNK: Final = 4 * 1024 * 1024
"""Bytes of a segment that are read at once, unless one batch is larger."""

_TRIES: Final = 10
_PAUSE_S: Final = 0.02

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Batches of a segment that lie one behind the other.

    buffer  their bytes
    table   those that may hold records of the range, for readers of committed records
    origin  the position of buffer[0] in the table
    """

    buffer: Bytes
    table: Longs
    origin: int

    def columns(self, part: OffsetRange) -> Iterator[Columns]:
        """Yield the records of the range. Any thread may do this."""
        for buffer, table, origin in plain(self.buffer, self.table, self.origin, CHUNK):
            for columns in batches.columns(buffer, table, origin):
                within = _timed(columns.between(part.start, part.end), part.times)
                if len(within):
                    yield within


def _timed(columns: Columns, times: TimeBounds) -> Columns:
    if times == EVERYTHING:
        return columns
    first = -(2**63) if times.first is None else times.first
    last = 2**63 - 1 if times.last is None else times.last
    keep = (columns.timestamps >= first) & (columns.timestamps <= last)
    return columns if keep.all() else columns.take(np.flatnonzero(keep))


def chunks(part: OffsetRange, reuse: bool = False, room: Room = room) -> Iterator[Chunk]:
    """Yield the chunks of a range, in order. With `reuse` a chunk is overwritten by the next one. `room` gives their
    buffers."""
    for log, start, stop, upper in segments(part):
        for buffer, table in log.batches(start, stop, chunk=CHUNK, reuse=reuse, room=room):
            log.check_fitting(table)
            kept = visible(table, part, upper)
            if len(kept):
                yield Chunk(buffer, kept, int(table[0, POSITION]))


def segments(part: OffsetRange) -> Iterator[tuple[BatchFile, int, int, int]]:
    """Yield the logs that hold a range, each with two positions between which the range lies, and the offset where the
    next one begins, or the range ends."""
    at = part.start
    while at < part.end:
        try:
            bases = listed(part.directory).bases
        except FileNotFoundError:
            if not part.directory.parent.is_dir():
                raise  # nothing was removed: this machine cannot see the log
            bases = ()
        place = bisect_right(bases, at) - 1
        if place < 0:
            lost = min(bases[0], part.end) if bases else part.end
            _lose(part, at, lost)
            at = lost
            continue
        upper = min(part.end, bases[place + 1]) if place + 1 < len(bases) else part.end
        opened = _opened(part.directory, bases[place], at, upper)
        if opened is None:
            continue  # removed after it was listed
        segment, (start, stop) = opened
        try:
            if _made_again(part):  # what was opened before this look is of the planned topic
                _lose(part, at, part.end)
                return
            yield segment.log, start, stop, upper
        finally:
            segment.abandon()
        at = upper


def _made_again(part: OffsetRange) -> bool:
    present = None if part.topic_id is None else PartitionMetadata.load(part.directory).topic_id
    return present not in (None, part.topic_id)


def _lose(part: OffsetRange, start: int, end: int) -> None:
    if part.fail_on_data_loss:
        raise OffsetOutOfRangeError(
            f"{part.topic}-{part.number}: offsets {start} to {end} were removed, by retention or with the topic, after "
            "the read had begun"
        )


def visible(table: Longs, part: OffsetRange, end: int) -> Longs:
    """Return the batches that readers see, and that may hold records of the range below an offset."""
    kept = (
        (table[:, BASE_OFFSET] < end)
        & (table[:, LAST_OFFSET] >= part.start)
        & (table[:, ATTRIBUTES] & CONTROL == 0)
    )
    if part.times.first is not None:
        kept &= table[:, MAX_TIMESTAMP] >= part.times.first
    return without_aborted(
        table[kept], lambda start, end: (each for each in part.aborted if each.overlaps(start, end))
    )


def _opened(directory: Path, base: int, start: int, end: int) -> tuple[Segment, tuple[int, int]] | None:
    """Return a segment that stays readable until it is abandoned, and the positions in it of the offsets [start, end),
    or None if it was removed."""

    def look(segment: Segment) -> tuple[int, int]:
        found = segment.position_of(start)
        if found is None:
            return segment.size, segment.size
        last = segment.position_of(end - 1, found[0])
        return found[0], segment.size if last is None else last[0] + last[1]

    return _looked_at(directory, base, look)


def _looked_at(directory: Path, base: int, look: Callable[[Segment], T]) -> tuple[Segment, T] | None:
    """Return a segment, and the result of `look` on one generation of its files; None if it was removed. The caller
    abandons the segment: a segment refers to itself, so that its files would stay open until garbage is collected."""
    for attempt in range(_TRIES):
        segment = Segment(directory, base, SegmentSettings(), now_ms, Descriptors())
        is_kept = False
        try:
            descriptor = segment.log.file.descriptor()
            found = look(segment)
            is_kept = os.path.samestat(os.fstat(descriptor.fd), os.stat(segment.log.path))
            if is_kept:
                return segment, found
        except (FileNotFoundError, ClosedError):
            return None
        except CorruptError:
            # An index of one generation met the records of another, or an append is running, or there is real damage.
            if attempt == _TRIES - 1:
                raise
        finally:
            if not is_kept:
                segment.abandon()
        time.sleep(_PAUSE_S)
    raise CorruptSegmentError(f"{directory}: segment {base} was replaced {_TRIES} times while it was opened")


def offset_by_timestamp(directory: Path, base: int, timestamp: int, part: OffsetRange) -> int | None:
    """Return the first offset of a range, in a segment, with a record that readers see and that is not earlier, or
    None."""
    looked = _looked_at(
        directory,
        base,
        lambda segment: segment.finder.offset_by_timestamp(
            timestamp, part.start, lambda rows: visible(rows, part, part.end)
        ),
    )
    if looked is None:
        return None
    segment, found = looked
    segment.abandon()
    return None if found is None else found[1]
