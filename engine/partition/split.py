"""Splitting a segment whose offsets are more than 31 bits above its base.

Old compaction bugs of Kafka left such segments. Indexes cannot point into them, so each is divided into several
segments that fit, by the same swap as compaction uses. Every batch keeps its bytes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from topicfs.engine.batch.table import Bytes, Longs
from topicfs.engine.errors import CorruptBatchError, RollError
from topicfs.engine.files.atomic import sync_directory
from topicfs.engine.format.paths import CLEANED_SUFFIX
from topicfs.engine.kernels.scan import BASE_OFFSET, LAST_OFFSET, POSITION, SIZE
from topicfs.engine.partition.chain import Chain, publish_nothing
from topicfs.engine.record import MAX_INT32
from topicfs.engine.segment.segment import Segment

log = logging.getLogger(__name__)


def split(
    chain: Chain,
    segment: Segment,
    delay_ms: int,
    before_cut: Callable[[Segment], None],
    publish: Callable[[], None] = publish_nothing,
) -> list[Segment]:
    """Replace the segment by as many segments as needed. A bad end is left out, after a call of `before_cut`.
    RollError if no offset is too far above the base."""
    parts: list[Segment] = []
    for buffer, table in _good(segment):
        origin = int(table[0, POSITION])
        first = 0
        while first < len(table):
            row = table[first]
            base = segment.base_offset if not parts else parts[-1].base_offset
            if not parts or row[LAST_OFFSET] - base > MAX_INT32:
                if row[LAST_OFFSET] - base > MAX_INT32:
                    base = int(row[BASE_OFFSET])
                parts.append(chain.create(base, CLEANED_SUFFIX))
            fitting = table[first:, LAST_OFFSET] - base <= MAX_INT32
            end = first + int(np.argmin(fitting)) if not fitting.all() else len(table)
            rows = table[first:end]
            start = int(rows[0, POSITION]) - origin
            stop = int(rows[-1, POSITION] + rows[-1, SIZE]) - origin
            parts[-1].append(buffer[start:stop], rows)
            first = end
    if not parts or (len(parts) == 1 and parts[0].base_offset == segment.base_offset):
        for part in parts:
            part.delete()
        raise RollError(
            f"{segment.path}: no offset is more than {MAX_INT32} above the base: nothing to split"
        )
    size = segment.size
    cut = size - sum(part.size for part in parts)
    if cut:
        before_cut(segment)
        log.warning(f"{segment.path}: {cut} of {size} bytes cut off at position {size - cut}: no good batch")
    _index_aborted(segment, parts)
    written = os.stat(segment.path).st_mtime_ns
    for part in parts:
        part.seal()
        part.flush()
        part.transactions.flush()
        # A segment without timestamps is as old as its file.
        os.utime(part.path, ns=(written, written))
    log.warning(
        f"{segment.path}: split into segments {', '.join(str(part.base_offset) for part in parts)}, "
        f"as offsets go more than {MAX_INT32} above its base"
    )
    chain.replace((segment,), parts, delay_ms, publish)
    sync_directory(chain.directory)
    return parts


def _index_aborted(segment: Segment, parts: Sequence[Segment]) -> None:
    """Give each part the index entries of the aborted transactions whose markers it holds. Recovery would find them
    again, but a segment in the middle of a log is not recovered."""
    for entry in segment.transactions.all():
        holder = next((part for part in reversed(parts) if part.base_offset <= entry.last_offset), None)
        if holder is not None and entry.last_offset < holder.next_offset():
            holder.transactions.append(entry)


def _good(segment: Segment) -> Iterator[tuple[Bytes, Longs]]:
    """Yield the batches before the first one that is damaged, cut off, or not above the one before it."""
    before = segment.base_offset - 1
    try:
        for buffer, table in segment.log.batches(ordered=False):
            floors = np.concatenate(([before], table[:-1, LAST_OFFSET]))
            falling = np.flatnonzero(table[:, BASE_OFFSET] <= floors)
            good = int(falling[0]) if falling.size else len(table)
            if good:
                yield buffer, table[:good]
            if good < len(table):
                return
            before = int(table[-1, LAST_OFFSET])
    except CorruptBatchError as error:
        log.warning(f"{segment.path}: is split up to there: {error}")
