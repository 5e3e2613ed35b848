"""Grouping of segments: each group becomes one segment."""

from __future__ import annotations

from collections.abc import Sequence

from topicfs.engine.record import MAX_INT32
from topicfs.engine.segment.segment import Segment


def _sizes(segment: Segment) -> tuple[int, int, int]:
    """Return the bytes of log, offset index and time index."""
    offsets, times = segment.offset_index, segment.time_index
    return segment.size, offsets.entries * offsets.ENTRY_SIZE, times.entries * times.ENTRY_SIZE


def grouped(
    segments: Sequence[Segment], uncleanable: int, segment_bytes: int, index_bytes: int
) -> list[list[Segment]]:
    """Return groups of neighbouring segments that fit into one segment together, in order.

    `uncleanable` is the offset behind the last of them. A group has at most `segment_bytes` of log and `index_bytes`
    of each index, and offsets that an index can hold. An empty segment joins a group whatever its offset is."""
    groups: list[list[Segment]] = []
    limits = (segment_bytes, index_bytes, index_bytes)
    total = (0, 0, 0)
    for number, segment in enumerate(segments):
        sizes = _sizes(segment)
        together = tuple(a + b for a, b in zip(total, sizes, strict=True))
        behind = segments[number + 1].base_offset if number + 1 < len(segments) else uncleanable
        if (
            groups
            and all(size <= limit for size, limit in zip(together, limits, strict=True))
            and (sizes[0] == 0 or behind - 1 - groups[-1][0].base_offset <= MAX_INT32)
        ):
            groups[-1].append(segment)
            total = (together[0], together[1], together[2])
        else:
            groups.append([segment])
            total = sizes
    return groups
