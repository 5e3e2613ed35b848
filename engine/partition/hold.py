"""A reader's claim on segments: what it holds stays readable, whatever retention and compaction do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from topicfs.engine.errors import ClosedError
from topicfs.engine.partition.chain import Chain
from topicfs.engine.segment.segment import Segment
from topicfs.engine.segment.segments import Segments


@dataclass(slots=True)
class Hold:
    """The segments that held [start, end) when the hold was taken. Let go of it once, or use `with`.

    segments  the list as it was then
    held      those of them that are pinned, by rising base offset
    """

    segments: Segments
    held: list[Segment] = field(default_factory=list)

    @classmethod
    def take(cls, chain: Chain, start: int, end: int) -> Hold:
        """Pin what holds [start, end) now."""
        while True:
            segments = chain.segments
            hold = cls(segments)
            try:
                for segment in segments.range(start, end) if end > start else ():
                    segment.pin()
                    hold.held.append(segment)
            except ClosedError:
                # Removed between taking the list and the pin: the list that is published now is without it.
                hold.release()
                if chain.segments is segments:
                    raise
                continue
            return hold

    def release(self, below: int | None = None) -> None:
        """Let go of everything, or of the segments that lie wholly below an offset."""
        while self.held and (below is None or (len(self.held) > 1 and self.held[1].base_offset <= below)):
            self.held.pop(0).unpin()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
