"""`topics/<topic>/`: a topic's settings, and files that append lines to its partitions."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from topicfs.engine.errors import InvalidNameError, UnknownPartitionError
from topicfs.fs import errors
from topicfs.fs.appending.targets import PartitionTarget, TopicTarget
from topicfs.fs.context import Context
from topicfs.fs.entry import Directory, Entry, Handle, Link
from topicfs.fs.formats import FORMATS, Format
from topicfs.fs.tree.config import ConfigFile
from topicfs.fs.tree.deleting import Deleting
from topicfs.fs.tree.inbox import INBOX, InboxDirectory
from topicfs.fs.tree.logs import WriterHandle, batch_size_for, require_append
from topicfs.fs.tree.parquet import TABLE, table_of
from topicfs.fs.tree.partition import VIEWS
from topicfs.fs.tree.topic_entry import TopicEntry

WAYS_IN: Final = tuple(f"in.{suffix}" for suffix in FORMATS)


class TopicsDirectory(Deleting):
    """All topics. mkdir creates one, rmdir removes an empty one."""

    permissions = 0o777

    def __init__(self, path: str, context: Context) -> None:
        super().__init__(path)
        self.context = context

    def mtime_ns(self) -> int:
        return self.context.mtime_ns()

    def names(self) -> Iterable[str]:
        return sorted(self.context.store.topics())

    def lookup(self, name: str) -> Entry:
        if name not in self.context.store.topics():
            raise self.missing(name)
        return TopicDirectory(self.child(name), self.context, name)

    def create_directory(self, name: str) -> None:
        if name in self.context.store.topics():
            raise errors.ExistsError(f"topic {name} exists")
        self.context.store.create_topic(name)

    def remove_directory(self, name: str) -> None:
        try:
            self.context.remove_topic(name)
        except (UnknownPartitionError, InvalidNameError):
            raise self.missing(name) from None

    def delete(self, name: str) -> None:
        try:
            self.context.delete_topic(name)
        except (UnknownPartitionError, InvalidNameError):
            raise self.missing(name) from None

    def undelete(self, name: str) -> None:
        for deletion in self.context.store.deletions():
            if deletion.id == name:
                self.context.store.undelete(deletion.topic, deletion=name)
                return
        self.context.store.undelete(name)


class TopicDirectory(TopicEntry, Directory):
    """One topic. What only repeats the partitions' records, and what cannot be read, is listed as a link."""

    def names(self) -> Iterable[str]:
        yield "config"
        yield from WAYS_IN
        yield INBOX
        if table_of(self.child(TABLE), self.context, self.topic) is not None:
            yield TABLE

    def lookup(self, name: str) -> Entry:
        path = self.child(name)
        if name == "config":
            return ConfigFile(path, self.context, self.topic)
        if name == INBOX:
            return InboxDirectory(path, self.context.inbox(self.topic), ())
        if name == VIEWS:
            return TopicViewsDirectory(path, self.context, self.topic)
        found = self.view(path, name)
        return found if self.context.lists_all else TopicViewLink(path, self.context, self.topic, name)

    def view(self, path: str, name: str) -> Entry:
        """Return the entry that a link leads to."""
        table = table_of(path, self.context, self.topic) if name == TABLE else None
        if table is not None:
            return table
        if name not in WAYS_IN:
            raise self.missing(name)
        return InFile(path, self.context, self.topic, FORMATS[name.partition(".")[2]])


class TopicViewLink(TopicEntry, Link):
    """A link to the entry of the same name in `views`."""

    def __init__(self, path: str, context: Context, topic: str, name: str) -> None:
        super().__init__(path, context, topic)
        self.name = name

    def target(self) -> str:
        return f"{VIEWS}/{self.name}"


class TopicViewsDirectory(TopicDirectory):
    """The targets of a topic's links. This directory is not listed itself."""

    def names(self) -> Iterable[str]:
        yield from WAYS_IN
        if table_of(self.child(TABLE), self.context, self.topic) is not None:
            yield TABLE

    def lookup(self, name: str) -> Entry:
        return self.view(self.child(name), name)


class InFile(TopicEntry):
    """A file for appending: a line goes to the partition that its key gives, or to the partitions in turn."""

    permissions = 0o222

    def __init__(self, path: str, context: Context, topic: str, fmt: Format) -> None:
        super().__init__(path, context, topic)
        self.format = fmt

    def open(self, flags: int) -> Handle:
        if flags & os.O_ACCMODE != os.O_WRONLY:
            raise errors.NotSupportedError(f"{self.path} can only be appended to")
        require_append(self, flags)
        size = batch_size_for(flags, self.context)
        numbers = self.context.store.topics().get(self.topic)
        if not numbers:
            raise errors.NotFoundError(f"there is no topic {self.topic}")
        parts = {
            number: PartitionTarget(self.context.views(self.topic, number).writers, self.format, size)
            for number in numbers
        }
        for part in parts.values():
            for writers in part.writers():
                writers.await_closing()
        target = TopicTarget(parts, self.format, self.context.turns(self.topic))
        return WriterHandle(self.context.writers.open(target), flags)
