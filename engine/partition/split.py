"""Splitting a segment whose offsets go further than 31 bits above its base.

Old compaction bugs of Kafka left such segments. Indexes cannot point into them, so they are cut into several
that fit, by the same swap as compaction uses; every batch keeps its bytes.
"""

from __future__ import annotations

import logging

import numpy as np

from engine.errors import CorruptSegmentError, RollError
from engine.kernels.scan import BASE_OFFSET, LAST_OFFSET, POSITION, SIZE
from engine.partition.chain import Chain
from engine.record import MAX_INT32
from engine.segment.segment import Segment
from engine.store.names import CLEANED_SUFFIX

log = logging.getLogger(__name__)


def split(chain: Chain, segment: Segment, delay_ms: int) -> list[Segment]:
    """Replace the segment by as many as it needs. RollError where it has no offset that is too far up."""
    parts: list[Segment] = []
    for buffer, table in segment.batches():
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
    size = sum(part.size for part in parts)
    if size != segment.size or (len(parts) == 1 and parts[0].base_offset == segment.base_offset):
        for part in parts:
            part.delete()
        if size != segment.size:
            raise CorruptSegmentError(f"{segment.path}: {size} bytes after a split, expected {segment.size}")
        raise RollError(
            f"{segment.path}: no offset is more than {MAX_INT32} above the base: nothing to split"
        )
    for part in parts:
        part.seal()
        part.flush()
    log.warning(
        f"{segment.path}: split into segments {', '.join(str(part.base_offset) for part in parts)}, "
        f"as offsets go more than {MAX_INT32} above its base"
    )
    chain.replace((segment,), parts, delay_ms)
    return parts
