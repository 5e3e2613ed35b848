"""The segments of a partition: an immutable list that is replaced in one step.

Readers take the published list and need no lock. A change makes another list. Searches are bisections over the base
offsets, or over a running maximum of timestamps.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator
from itertools import accumulate, takewhile
from operator import attrgetter

from topicfs.engine.segment.segment import Segment

_base_offset = attrgetter("base_offset")


def _latest(segment: Segment) -> int:
    """Return the segment's largest timestamp. An empty one has none: the time of its file would hide later segments."""
    return segment.largest_timestamp if segment.size else segment.max_timestamp


class Segments:
    """Segments in the order of their base offsets, which are unique. The last one is active, the others are sealed.

    _segments  the segments
    _bases     their base offsets
    _maxima    largest timestamp up to and including each of the first sealed segments, as far as known.
               It grows by replacement, so readers may share it; timestamps of a sealed segment never change
    """

    __slots__ = ("_bases", "_maxima", "_segments")

    def __init__(
        self,
        segments: tuple[Segment, ...] = (),
        bases: tuple[int, ...] = (),
        maxima: tuple[int, ...] = (),
    ) -> None:
        self._segments = segments
        self._bases = bases
        self._maxima = maxima

    @classmethod
    def of(cls, segments: Iterable[Segment]) -> Segments:
        """Return the list of these segments, which may come in any order."""
        ordered = tuple(sorted(segments, key=_base_offset))
        bases = tuple(map(_base_offset, ordered))
        if len(set(bases)) < len(bases):
            raise ValueError(f"expected segments with different base offsets, found {bases}")
        return cls(ordered, bases)

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __contains__(self, segment: object) -> bool:
        return isinstance(segment, Segment) and self.at(segment.base_offset) is segment

    # -- other lists --------------------------------------------------------------------------------

    def with_replaced(self, removed: Collection[Segment], added: Collection[Segment]) -> Segments:
        """Return this list with some segments instead of others. Segments are compared by identity."""
        gone = set(map(id, removed))
        left = [each for each in self._segments if id(each) not in gone] if gone else self._segments
        result = Segments.of((*left, *added))
        # The known maxima of the first segments stay valid while these are the same and sealed.
        limit = min(len(self._maxima), len(result) - 1)
        pairs = zip(self._segments[:limit], result._segments, strict=False)
        result._maxima = self._maxima[: sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], pairs))]
        return result

    # -- by offset ----------------------------------------------------------------------------------

    @property
    def first(self) -> Segment:
        """Return the first segment. IndexError without segments, as for `last`."""
        return self._segments[0]

    @property
    def last(self) -> Segment:
        """Return the active segment."""
        return self._segments[-1]

    @property
    def last_two(self) -> tuple[Segment, ...]:
        """Return the last two segments, or fewer if there are fewer."""
        return self._segments[-2:]

    @property
    def non_active(self) -> tuple[Segment, ...]:
        """Return all segments except the last."""
        return self._segments[:-1]

    def from_base(self, base_offset: int) -> tuple[Segment, ...]:
        """Return the segments whose base offset is `base_offset` or above."""
        return self._segments[bisect_left(self._bases, base_offset) :]

    def at(self, base_offset: int) -> Segment | None:
        """Return the segment with exactly this base offset."""
        found = self.floor(base_offset)
        return found if found is not None and found.base_offset == base_offset else None

    def floor(self, offset: int) -> Segment | None:
        """Return the last segment whose base offset is at most `offset`: the one that may hold it."""
        place = bisect_right(self._bases, offset)
        return self._segments[place - 1] if place else None

    def lower(self, offset: int) -> Segment | None:
        """Return the last segment whose base offset is below `offset`."""
        place = bisect_left(self._bases, offset)
        return self._segments[place - 1] if place else None

    def higher(self, offset: int) -> Segment | None:
        """Return the first segment whose base offset is above `offset`."""
        place = bisect_right(self._bases, offset)
        return self._segments[place] if place < len(self._segments) else None

    def end_of(self, segment: Segment) -> int:
        """Return the offset below which the records of a sealed segment lie: the base of the next segment."""
        return self._bases[bisect_right(self._bases, segment.base_offset)]

    def range(self, start: int, end: int) -> tuple[Segment, ...]:
        """Return the segments that may hold offsets from `start` up to, not including, `end`."""
        if end < start:
            raise ValueError(f"expected an end from {start} on, found {end}")
        if start == end:
            return ()
        return self._segments[max(0, bisect_right(self._bases, start) - 1) : bisect_left(self._bases, end)]

    # -- by size and time ---------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Return the bytes of all `.log` files."""
        return sum(segment.size for segment in self._segments)

    def first_not_before(self, timestamp: int) -> Segment | None:
        """Return the first segment whose largest timestamp is `timestamp` or later."""
        maxima = self._maxima_of_sealed()
        place = bisect_left(maxima, timestamp)
        if place < len(maxima):
            return self._segments[place]
        if not self._segments or self.last.largest_timestamp < timestamp:
            return None
        return self.last

    def _maxima_of_sealed(self) -> tuple[int, ...]:
        maxima = self._maxima
        missing = self._segments[len(maxima) : -1]
        if missing:
            known = maxima[-1:]
            each = accumulate((*known, *map(_latest, missing)), max)
            maxima = (*maxima, *tuple(each)[len(known) :])
            self._maxima = maxima
        return maxima
