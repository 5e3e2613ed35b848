"""`topics/<topic>/`: a topic's settings, and files of the records of all its partitions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from topicfs.engine.store.new_topic import NewTopic
from topicfs.fs import errors
from topicfs.fs.appending.handle import AppendHandle
from topicfs.fs.appending.targets import PartitionTarget, TopicTarget
from topicfs.fs.context import Context
from topicfs.fs.entry import Directory, Entry, Handle, ViewLink, require_append
from topicfs.fs.formats import Format
from topicfs.fs.tree import creating
from topicfs.fs.tree.config import ConfigFile
from topicfs.fs.tree.deleting import Deleting
from topicfs.fs.tree.inbox import INBOX, InboxDirectory
from topicfs.fs.tree.keys import KEYS, TopicKeysDirectory, has_keys
from topicfs.fs.tree.merged import MergedFile, MergedFollowFile
from topicfs.fs.tree.parquet import TABLE, TableDirectory, has_table
from topicfs.fs.tree.topic_entry import TopicEntry


class TopicsDirectory(Deleting):
    """All topics. mkdir creates one, rmdir removes an empty one."""

    permissions = 0o777

    @property
    def is_current(self) -> bool:
        return True

    def names(self) -> Iterable[str]:
        return sorted(self.context.store.topics())

    def lookup(self, name: str) -> Entry:
        if name not in self.context.store.topics():
            raise self.missing(name)
        return TopicDirectory(self.child(name), self.context, name)

    def create_directory(self, name: str) -> None:
        self._create(NewTopic(name))

    def set_xattr(self, name: str, value: bytes) -> None:
        if name == creating.CREATE:
            self._create(creating.read(value))
        else:
            super().set_xattr(name, value)

    def _create(self, topic: NewTopic) -> None:
        if topic.topic in self.context.store.topics():
            raise errors.ExistsError(f"topic {topic.topic} exists")
        self.context.create_topic(topic)

    def place_of(self, name: str) -> tuple[str, int | None]:
        return name, None

    def undelete(self, name: str) -> None:
        for deletion in self.context.store.deletions():
            if deletion.id == name:
                self.context.store.undelete(deletion.topic, deletion=name)
                return
        super().undelete(name)


class TopicDirectory(TopicEntry, Directory):
    """One topic. What only repeats the partitions' records, and what cannot be read, is listed as a link."""

    @property
    def is_current(self) -> bool:
        return self.topic in self.context.store.topics()

    def names(self) -> Iterable[str]:
        return self._entries()

    def lookup(self, name: str) -> Entry:
        entries = {**self._entries(), **_FOLLOWED, ViewLink.directory: TopicViewsDirectory}
        if name == KEYS and name in entries:
            # As in a partition's directory, it is always a link.
            return TopicViewLink(self.child(name), self.context, self.topic)
        if name in entries and name not in _NO_VIEWS and not self.context.lists_all:
            return TopicViewLink(self.child(name), self.context, self.topic)
        return self.made(name, entries, self.context, self.topic)

    def _entries(self) -> Mapping[str, _Maker]:
        """Return the listed entries."""
        found = {**_ENTRIES, TABLE: TableDirectory} if has_table(self.context, self.topic) else _ENTRIES
        return {**found, KEYS: TopicKeysDirectory} if has_keys(self.context, self.topic) else found


class TopicViewLink(TopicEntry, ViewLink):
    """A link to the entry of the same name in `views`."""


class TopicViewsDirectory(TopicDirectory):
    """The targets of a topic's links. This directory is not listed itself."""

    def lookup(self, name: str) -> Entry:
        return self.made(name, self._entries(), self.context, self.topic)

    def _entries(self) -> Mapping[str, _Maker]:
        return {name: make for name, make in super()._entries().items() if name not in _NO_VIEWS}


@dataclass(eq=False)
class InFile(TopicEntry):
    """A file for appending: a line goes to the partition that its key gives, or to the partitions in turn."""

    format: Format

    permissions = 0o222

    def open(self, flags: int) -> Handle:
        if flags & os.O_ACCMODE != os.O_WRONLY:
            raise errors.NotSupportedError(f"{self.path} can only be appended to")
        require_append(self, flags)
        links = self.context.store.links
        links.await_topic(self.topic)
        numbers, count = links.targets(self.topic)
        if not numbers:
            raise errors.NotFoundError(f"there is no topic {self.topic}")
        writers = [self.context.views(self.topic, number).writers for number in numbers]
        for each in writers:
            each.partition.log.check_takes_lines()
            each.await_closing()
        size = self.context.batch_size_for(flags)
        parts = [PartitionTarget(each, self.format, size) for each in writers]
        target = TopicTarget(parts, self.context.turns(self.topic), count)
        return AppendHandle.open(target, flags, self.context.holdings.unfinished_bytes)


_Maker = Callable[[str, Context, str], Entry]

_ENTRIES: Final[Mapping[str, _Maker]] = {
    "config": ConfigFile,
    **{f"in.{fmt.suffix}": partial(InFile, format=fmt) for fmt in Format},
    **{f"log.{fmt.suffix}": partial(MergedFile, format=fmt) for fmt in Format},
    INBOX: lambda path, context, topic: InboxDirectory(path, context.inbox(topic), ()),
}

_FOLLOWED: Final[Mapping[str, _Maker]] = {
    f"follow.{fmt.suffix}": partial(MergedFollowFile, format=fmt) for fmt in Format
}
"""What waits when it is read, and so is not listed."""

_NO_VIEWS: Final = ("config", INBOX, ViewLink.directory, *_FOLLOWED)
"""What is listed as it is, never as a link."""
