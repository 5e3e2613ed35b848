"""`topics/<topic>/`: a topic's settings, and where lines are appended to any of its partitions."""

from __future__ import annotations

import os
from collections.abc import Iterable

from engine.errors import InvalidNameError, UnknownPartitionError
from fs import errors
from fs.entry import Directory, Entry, Handle
from fs.formats import FORMATS, Format
from fs.house import House
from fs.targets import PartitionTarget, TopicTarget
from fs.tree.config import ConfigFile
from fs.tree.inbox import INBOX, InboxDirectory
from fs.tree.logs import WriterHandle, require_append
from fs.tree.of_topic import OfTopic
from fs.tree.parquet import TABLE, table_of


class TopicsDirectory(Directory):
    """All topics. mkdir creates one, rmdir deletes one."""

    permissions = 0o777

    def __init__(self, path: str, house: House) -> None:
        super().__init__(path)
        self.house = house

    def mtime_ns(self) -> int:
        return self.house.mtime_ns()

    def names(self) -> Iterable[str]:
        return sorted(self.house.store.topics())

    def lookup(self, name: str) -> Entry:
        if name not in self.house.store.topics():
            raise self.missing(name)
        return TopicDirectory(self.child(name), self.house, name)

    def create_directory(self, name: str) -> None:
        if name in self.house.store.topics():
            raise errors.ExistsError(f"topic {name} exists")
        self.house.store.create_topic(name)

    def remove_directory(self, name: str) -> None:
        try:
            self.house.delete_topic(name)
        except (UnknownPartitionError, InvalidNameError):
            raise self.missing(name) from None


class TopicDirectory(OfTopic, Directory):
    """One topic."""

    def names(self) -> Iterable[str]:
        yield "config"
        for suffix in FORMATS:
            yield f"in.{suffix}"
        yield INBOX
        if table_of(self.child(TABLE), self.house, self.topic) is not None:
            yield TABLE

    def lookup(self, name: str) -> Entry:
        if name == "config":
            return ConfigFile(self.child(name), self.house, self.topic)
        if name == INBOX:
            return InboxDirectory(self.child(name), self.house.entrance(self.topic), ())
        table = table_of(self.child(name), self.house, self.topic) if name == TABLE else None
        if table is not None:
            return table
        stem, _, suffix = name.partition(".")
        fmt = FORMATS.get(suffix)
        if stem != "in" or fmt is None:
            raise self.missing(name)
        return InFile(self.child(name), self.house, self.topic, fmt)


class InFile(OfTopic):
    """Append here: lines go to the partition that their key says, or to one after the other."""

    permissions = 0o222

    def __init__(self, path: str, house: House, topic: str, fmt: Format) -> None:
        super().__init__(path, house, topic)
        self.format = fmt

    def open(self, flags: int) -> Handle:
        if flags & os.O_ACCMODE != os.O_WRONLY:
            raise errors.NotSupportedError(f"{self.path} can only be appended to")
        require_append(self, flags)
        size = self.house.batch_size
        numbers = self.house.store.topics().get(self.topic)
        if not numbers:
            raise errors.NotFoundError(f"there is no topic {self.topic}")
        parts = {
            number: PartitionTarget(self.house.shown(self.topic, number), self.format, size)
            for number in numbers
        }
        target = TopicTarget(parts, self.format, self.house.turns(self.topic))
        return WriterHandle(self.house.writers.open(target), flags)
