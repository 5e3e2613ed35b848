"""A hold of a reader on segments: they stay readable, whatever retention and compaction do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from topicfs.engine.partition.log import Log
from topicfs.engine.partition.snapshot import Snapshot
from topicfs.engine.segment.segment import Segment


@dataclass(slots=True)
class Hold:
    """The segments that held [start, end) when the hold was taken. Release it once, or use `with`.

    snapshot  the log at that time
    held      its segments that are pinned, by rising base offset
    """

    snapshot: Snapshot
    held: list[Segment] = field(default_factory=list)

    @classmethod
    def take(cls, log: Log, start: int | None = None, end: int | None = None) -> Hold:
        """Pin the segments that hold [start, end) now. Without bounds, these are all segments."""
        taken: list[Hold] = []

        def pinned(snapshot: Snapshot) -> Hold:
            hold = cls(snapshot)
            taken.append(hold)
            first = snapshot.start if start is None else start
            last = snapshot.end if end is None else end
            for segment in snapshot.segments.range(first, last) if last > first else ():
                segment.pin()
                hold.held.append(segment)
            return hold

        kept: Hold | None = None
        try:
            kept = log.with_snapshot(pinned)
            return kept
        finally:
            # A removal or a truncation meanwhile has the log looked at again: what was pinned before that goes.
            for hold in taken:
                if hold is not kept:
                    hold.release()

    def release(self, below: int | None = None) -> None:
        """Unpin all segments, or those that lie completely below an offset."""
        while self.held and (below is None or (len(self.held) > 1 and self.held[1].base_offset <= below)):
            self.held.pop(0).unpin()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
