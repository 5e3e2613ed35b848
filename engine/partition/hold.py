"""A hold of a reader on segments: they stay readable, whatever retention and compaction do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from topicfs.engine.errors import ClosedError
from topicfs.engine.partition.chain import Chain
from topicfs.engine.segment.segment import Segment
from topicfs.engine.segment.segments import Segments


@dataclass(slots=True)
class Hold:
    """The segments that held [start, end) when the hold was taken. Release it once, or use `with`.

    segments  the published list at that time
    held      the segments of that list that are pinned, by rising base offset
    """

    segments: Segments
    held: list[Segment] = field(default_factory=list)

    @classmethod
    def take(cls, chain: Chain, start: int, end: int) -> Hold:
        """Pin the segments that hold [start, end) now."""
        while True:
            segments = chain.segments
            hold = cls(segments)
            try:
                for segment in segments.range(start, end) if end > start else ():
                    segment.pin()
                    hold.held.append(segment)
            except ClosedError:
                # It was removed between reading the list and the pin: the list that is published now does not have it.
                hold.release()
                if chain.segments is segments:
                    raise
                continue
            return hold

    def release(self, below: int | None = None) -> None:
        """Unpin all segments, or those that lie completely below an offset."""
        while self.held and (below is None or (len(self.held) > 1 and self.held[1].base_offset <= below)):
            self.held.pop(0).unpin()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
