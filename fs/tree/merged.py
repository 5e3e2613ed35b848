"""`topics/<topic>/log.<format>` and `follow.<format>`: the records of all partitions, merged by their timestamps."""

from __future__ import annotations

import os
from collections.abc import Hashable
from dataclasses import dataclass, field

from topicfs.fs import errors
from topicfs.fs.entry import Handle, version_of, wants_writing
from topicfs.fs.formats import Format
from topicfs.fs.tree.partition_entry import partition_mtime
from topicfs.fs.tree.topic_entry import TopicEntry
from topicfs.fs.views.merged_view import MergedFollowHandle, MergedHandle
from topicfs.fs.views.partition_views import PartitionViews


@dataclass(eq=False)
class MergedFile(TopicEntry):
    """The records of all partitions at one moment. Each time that a name is looked up it may have more of them.

    format  the format of the lines
    _parts  the views of each partition, and the offsets that are shown, [start, end)
    """

    format: Format
    _parts: list[tuple[PartitionViews, int, int]] = field(init=False)

    fleeting = True

    def __post_init__(self) -> None:
        self._parts = []
        for views in _views_of(self):
            views.writers.await_closing()
            now = views.partition.offsets
            self._parts.append((views, now.start, now.stable))

    @property
    def is_deleted(self) -> bool:
        return any(views.partition.log.is_closed for views, _, _ in self._parts)

    @property
    def is_overtaken(self) -> bool:
        return self.is_deleted or any(views.is_cut for views, _, _ in self._parts)

    @property
    def _shown(self) -> tuple[Hashable, ...]:
        return tuple((views.serial, start, end, views.rewrites) for views, start, end in self._parts)

    @property
    def version(self) -> int:
        return version_of("merged", *self._shown)

    def size(self) -> int:
        handle = MergedHandle(self._parts, self.format, None)
        try:
            return handle.size()
        finally:
            handle.release()

    def mtime_ns(self) -> int:
        return max((partition_mtime(views) for views, _, _ in self._parts), default=0)

    def truncate(self, length: int) -> None:
        raise self._refused()

    def _refused(self) -> errors.AppendOnlyError:
        return errors.AppendOnlyError(
            f"{self.path} can only be read: append to {os.path.dirname(self.path).removesuffix('/views')}/"
            f"in.{self.format.suffix}"
        )

    def open(self, flags: int) -> Handle:
        if wants_writing(flags):
            raise self._refused()
        return MergedHandle(self._parts, self.format, self._shown)


@dataclass(eq=False)
class MergedFollowFile(TopicEntry):
    """The records that come to any partition, like a pipe."""

    format: Format

    def open(self, flags: int) -> Handle:
        if wants_writing(flags):
            raise errors.AppendOnlyError(f"{self.path} can only be read")
        return MergedFollowHandle(lambda: _views_of(self), self.format, self.context.given_up)


def _views_of(entry: TopicEntry) -> list[PartitionViews]:
    numbers = sorted(entry.context.store.topics().get(entry.topic, ()))
    if not numbers:
        raise errors.NotFoundError(f"there is no topic {entry.topic}")
    return [entry.context.views(entry.topic, number) for number in numbers]
