"""What all entries of a partition have in common: its modification time, and that they end when it is deleted."""

from __future__ import annotations

import os
from collections.abc import Hashable
from dataclasses import dataclass

from topicfs.engine.mount_attributes import FIRST_OFFSET, NEXT_OFFSET
from topicfs.engine.segment.segment import Segment
from topicfs.fs import errors
from topicfs.fs.context import Context
from topicfs.fs.entry import Entry
from topicfs.fs.views.partition_views import PartitionViews


@dataclass(eq=False)
class PartitionEntry(Entry):
    """An entry that shows something of a partition."""

    views: PartitionViews

    @property
    def context(self) -> Context:
        return self.views.context

    def catch_up(self) -> None:
        self.views.partition.catch_up()

    @property
    def is_current(self) -> bool:
        return self.views.partition.is_open and not self.views.is_cut

    @property
    def is_deleted(self) -> bool:
        return self.views.partition.log.is_closed

    @property
    def is_overtaken(self) -> bool:
        return self.is_deleted or self.views.is_cut

    @property
    def generation(self) -> Hashable:
        try:
            incarnation = self.views.incarnation
        except FileNotFoundError:
            raise errors.NotFoundError(f"{self.path} was deleted") from None
        # The kernel keeps no page of what was shown before a truncation: the file has another inode then.
        return (incarnation, self.views.cuts) if self.views.cuts else incarnation

    def mtime_ns(self) -> int:
        return partition_mtime(self.views)


def partition_mtime(views: PartitionViews) -> int:
    """Return when a partition last changed, which is when its active segment was written. The time is kept until the
    segment grows, as each command asks for the times of several entries."""
    log = views.partition.log
    active = log.snapshot.segments.last
    size = active.size
    known = views.written
    if known is None or known[0] is not active or known[1] != size:
        try:
            known = views.written = active, size, written_ns(views, active)
        except errors.NotFoundError:
            if log.is_closed:
                raise
            # The log begins anew: its old segments are gone, and its directory has changed just now.
            return os.stat(log.chain.directory).st_mtime_ns
    return known[2]


def offset_xattrs(views: PartitionViews) -> dict[str, bytes]:
    """Return the extended attributes that tell which offsets the whole log has."""
    views.writers.await_closing()
    now = views.partition.offsets
    return range_xattrs(now.start, now.stable)


def written_ns(views: PartitionViews, segment: Segment) -> int:
    """Return when a segment's `.log` was written, in nanoseconds. NotFoundError if it was removed.

    A segment that is sealed within a millisecond is dated behind the one before it, perhaps a moment ahead of the
    kernel's clock. The active one, which is written next, is no earlier than that."""
    written = _written_ns(segment)
    if written is None:
        raise errors.NotFoundError(f"segment {segment.base_offset} was removed")
    segments = views.partition.log.snapshot.segments
    before = segments.lower(segment.base_offset) if segments.last is segment else None
    return max(written, 0 if before is None else _written_ns(before) or 0)


def _written_ns(segment: Segment) -> int | None:
    try:
        return os.stat(segment.log.path).st_mtime_ns
    except FileNotFoundError:
        return None


def range_xattrs(first: int, end: int, max_timestamp: int | None = None) -> dict[str, bytes]:
    """Return the extended attributes of a file that shows the records in [first, end)."""
    found = {FIRST_OFFSET: b"%d" % first, NEXT_OFFSET: b"%d" % end}
    if max_timestamp is not None:
        found["user.topicfs.max_timestamp"] = str(max_timestamp).encode()
    return found
