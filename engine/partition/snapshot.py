"""A log as of one moment: what a reader takes once, and reads by, while others append, remove and compact."""

from __future__ import annotations

from dataclasses import dataclass, replace

from topicfs.engine.partition.offsets import LogOffsets
from topicfs.engine.segment.segments import Segments


@dataclass(frozen=True, slots=True)
class Snapshot(LogOffsets):
    """The offsets of a log, and the segments that hold them. A log publishes a new one with every change, in one
    assignment, before it removes anything that the one before shows.

    segments  the segments, whose last one is active
    cuts      number of truncations before this moment: what was read across one may mix two states
    """

    segments: Segments
    cuts: int

    def of(self, segments: Segments) -> Snapshot:
        """Return the same moment with the segments of a reader, some of which may be gone from the log."""
        return self if segments is self.segments else replace(self, segments=segments)
