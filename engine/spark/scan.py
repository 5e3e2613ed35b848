"""A task's records, read from segment files as complete, checked batches, and returned as Arrow batches.

Beside a running daemon, compaction may replace a segment, or retention remove it, at any moment. An open file stays
the same file. An index is trusted only if the `.log` still has its name after the index was read: a compacted
segment gets its `.log` first and its index afterwards, so an index seen before that is the old one or none. After
each segment the directory is listed again. The aborted transactions were found when the query was planned: it does
no harm to know too many of them.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from topicfs.engine import batch as batches
from topicfs.engine.batch.columns import Columns
from topicfs.engine.batch.table import Longs, without_aborted
from topicfs.engine.errors import ClosedError, CorruptError, CorruptSegmentError, OffsetOutOfRangeError
from topicfs.engine.files.metadata import PartitionMetadata
from topicfs.engine.format.batch_header import CONTROL, LOG_APPEND_TIME
from topicfs.engine.kernels.scan import (
    ATTRIBUTES,
    BASE_OFFSET,
    MAX_TIMESTAMP,
    POSITION,
)
from topicfs.engine.parquet.schema import batches as arrow_batch
from topicfs.engine.parquet.schema import timestamp_types_of
from topicfs.engine.record import now_ms
from topicfs.engine.segment.descriptors import Descriptors
from topicfs.engine.segment.segment import Segment
from topicfs.engine.segment.settings import SegmentSettings
from topicfs.engine.spark.files import listed
from topicfs.engine.spark.offset_range import EVERYTHING, OffsetRange, TimeBounds

ROWS: Final = 20_000
"""Records of an Arrow batch: fewer cost more calls, more no longer help (measured, see SPARK.md §4)."""

_FEW: Final = 5_000
_CHUNK: Final = 4 * 1024 * 1024
_TRIES: Final = 10
_PAUSE_S: Final = 0.02

T = TypeVar("T")


def record_batches(part: OffsetRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range, in order, with the columns of the schema."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for columns, kinds in columns_of(part):
        for first in range(0, len(columns), ROWS):
            end = min(first + ROWS, len(columns))
            kind = kinds if isinstance(kinds, int) else kinds[first:end]
            made = arrow_batch(columns.rows(first, end), part.topic, part.number, schema, kind)
            waiting.append(made)
            rows += len(made)
            # A compressed batch becomes an Arrow batch of its own, which may be small.
            if rows >= _FEW:
                yield _joined(waiting)
                waiting, rows = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(waiting: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(waiting) == 1:
        return waiting[0]
    return pa.Table.from_batches(waiting).combine_chunks().to_batches()[0]


def columns_of(part: OffsetRange) -> Iterator[tuple[Columns, int | npt.NDArray[np.int32]]]:
    """Yield the records of a range as columns, with their timestamp type: one for all, or one for each."""
    times = part.times
    for buffer, table, origin in _kept(part):
        late = table[table[:, MAX_TIMESTAMP] >= times.first] if times.first is not None else table
        kinds = late[:, ATTRIBUTES] & LOG_APPEND_TIME
        mixed = len(late) > 0 and bool((kinds != kinds[0]).any())
        for columns in batches.columns(buffer, late, origin):
            within = _timed(columns.between(part.start, part.end), times)
            if len(within):
                kind = timestamp_types_of(within, late) if mixed else int(kinds[0] != 0)
                yield within, kind


def _timed(columns: Columns, times: TimeBounds) -> Columns:
    if times == EVERYTHING:
        return columns
    first = -(2**63) if times.first is None else times.first
    last = 2**63 - 1 if times.last is None else times.last
    keep = (columns.timestamps >= first) & (columns.timestamps <= last)
    return columns if keep.all() else columns.take(np.flatnonzero(keep))


def _kept(part: OffsetRange) -> Iterator[tuple[npt.NDArray[np.uint8], Longs, int]]:
    """Yield the batches of a range that readers see, in chunks, each with its table and the chunk's position in its
    file."""
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
        if _made_again(part):  # what was opened before this look is of the planned topic
            _lose(part, at, part.end)
            return
        segment, start, stop = opened
        for buffer, table in segment.log.batches(start, stop, chunk=_CHUNK, reuse=True):
            kept = _visible(table, part, upper)
            if len(kept):
                yield buffer, kept, int(table[0, POSITION])
        at = upper


def _made_again(part: OffsetRange) -> bool:
    present = None if part.topic_id is None else PartitionMetadata.load(part.directory).topic_id
    return present not in (None, part.topic_id)


def _lose(part: OffsetRange, start: int, end: int) -> None:
    if part.fail_on_data_loss:
        raise OffsetOutOfRangeError(
            f"{part.topic}-{part.number}: offsets {start} to {end} were removed, by retention or with the topic, while "
            "the query ran. failOnDataLoss=false reads what is left"
        )


def _visible(table: Longs, part: OffsetRange, end: int) -> Longs:
    kept = table[(table[:, BASE_OFFSET] < end) & (table[:, ATTRIBUTES] & CONTROL == 0)]
    return without_aborted(
        kept, lambda start, end: (each for each in part.aborted if each.overlaps(start, end))
    )


def _opened(directory: Path, base: int, start: int, end: int) -> tuple[Segment, int, int] | None:
    """Return a segment that stays readable, and the positions in it of the offsets [start, end), or None if it was
    removed."""

    def look(segment: Segment) -> tuple[Segment, int, int]:
        found = segment.position_of(start)
        if found is None:
            return segment, segment.size, segment.size
        last = segment.position_of(end - 1, found[0])
        return segment, found[0], segment.size if last is None else last[0] + last[1]

    return _looked_at(directory, base, look)


def _looked_at(directory: Path, base: int, look: Callable[[Segment], T]) -> T | None:
    """Return the result of `look` on one generation of a segment's files, or None if the segment was removed."""
    for attempt in range(_TRIES):
        segment = Segment(directory, base, SegmentSettings(), now_ms, Descriptors())
        try:
            descriptor = segment.log.file.descriptor()
            found = look(segment)
            if os.path.samestat(os.fstat(descriptor.fd), os.stat(segment.log.path)):
                return found
        except (FileNotFoundError, ClosedError):
            return None
        except CorruptError:
            # An index of one generation met the records of another, or an append is running, or there is real damage.
            if attempt == _TRIES - 1:
                raise
        time.sleep(_PAUSE_S)
    raise CorruptSegmentError(f"{directory}: segment {base} was replaced {_TRIES} times while it was opened")


def offset_by_timestamp(directory: Path, base: int, timestamp: int, start: int) -> int | None:
    """Return the first offset of a segment, from `start` on, with a record that is not earlier, or None."""
    found = _looked_at(directory, base, lambda segment: segment.finder.offset_by_timestamp(timestamp, start))
    return None if found is None else found[1]
