"""`keys/`: the live keys of a compacted partition, or of a compacted topic, as files."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from topicfs.engine.batch.columns import Columns
from topicfs.engine.errors import InvalidRecordError, UnknownPartitionError
from topicfs.engine.inbox.routing import by_key
from topicfs.engine.keys.listing import KeyListing
from topicfs.engine.record import NO_OFFSET, Record
from topicfs.fs import errors
from topicfs.fs.appending.key_writer import KeySetter, KeyWriter, columns_of
from topicfs.fs.context import Context
from topicfs.fs.entry import (
    LONGEST_NAME,
    BytesHandle,
    Directory,
    DirectoryListing,
    Entry,
    Handle,
    version_of,
    wants_writing,
)
from topicfs.fs.key_names import KeyName, name_of, parse_key_name
from topicfs.fs.tree.partition_entry import PartitionEntry, range_xattrs
from topicfs.fs.tree.topic_entry import TopicEntry
from topicfs.fs.views.partition_views import PartitionViews

KEYS: Final = "keys"

_PART: Final = 48
"""Positions in a listing have the partition from this bit on, and the record below it."""


@dataclass(eq=False)
class KeyFile(PartitionEntry):
    """A key's value, exactly. Each record of a key is another file to the kernel.

    name    what its name stands for
    key     the key
    record  its last record; None while the key is made by an open file that is not closed yet
    writer  the open file, where this is one that is written
    """

    name: KeyName
    key: bytes
    record: Record | None
    writer: KeyWriter | None = None

    permissions = 0o666
    fleeting = True
    can_empty = True

    @property
    def is_current(self) -> bool:
        return False

    @property
    def generation(self) -> Hashable:
        return super().generation, None if self.record is None else self.record.offset

    @property
    def version(self) -> int:
        return 0 if self.record is None else version_of("key", self.views.serial, self.record.offset)

    def size(self) -> int:
        if self.record is not None:
            return len(self.record.value or b"")
        pending = [writer for writer, key in tuple(self.views.pending_keys.items()) if key == self.key]
        return max((writer.size() or 0 for writer in pending), default=0)

    def mtime_ns(self) -> int:
        if self.record is None:
            return self.views.partition.log.clock() * 1_000_000
        return max(0, self.record.timestamp or 0) * 1_000_000

    def xattrs(self) -> dict[str, bytes]:
        found = {"user.topicfs.key": self.key, "user.topicfs.partition": b"%d" % self.views.partition.number}
        if self.record is not None:
            offset = self.record.offset
            found |= range_xattrs(offset, offset + 1, self.record.timestamp)
            found["user.topicfs.offset"] = b"%d" % offset
        return found

    @property
    def _setter(self) -> KeySetter:
        return KeySetter(self.views, self.path, self.key)

    def open(self, flags: int) -> Handle:
        if not wants_writing(flags):
            if self.record is None:
                raise errors.NotFoundError(f"{self.path} is not set yet")
            return BytesHandle(self.record.value or b"")
        return self.written(flags, self.name.expected)

    def written(self, flags: int, expected: int | None) -> Handle:
        """Open it for writing."""
        self._setter.check(expected)
        content: bytes | None = b""
        if not flags & os.O_TRUNC:
            # Another program may have made the key since the kernel looked it up.
            is_undecided = self._setter.is_undecided
            self.record = self.views.keys.record(self.key, self.views.record)
            if is_undecided:
                content = None
            elif self.record is not None:
                content = self.record.value or b""
        emptied = bool(flags & os.O_TRUNC) or self.record is None
        self.writer = KeyWriter(self._setter, content, expected, bool(flags & os.O_APPEND), emptied)
        return self.writer

    def truncate(self, length: int) -> None:
        if self.writer is not None:
            self.writer.cut(length)
            return
        self._setter.check_size(length)
        value = self._setter.last_value() or b"" if length else b""
        self._setter.set(value[:length] + bytes(max(0, length - len(value))), self.name.expected)

    def remove(self) -> None:
        self._setter.set(None, self.name.expected)

    def set_mode(self) -> None:
        """Do nothing: `cp -p` of a file into a key sets the mode last, when the value is set already."""

    def set_owner(self) -> None:
        """Do nothing, as for the mode."""

    def set_times(self, accessed_ns: int | None, modified_ns: int | None) -> None:
        """Do nothing, as for the mode: the time is that of the record."""


class KeysDirectory(PartitionEntry, Directory):
    """The live keys of a partition. A file is made to set a key, and removed to remove it."""

    permissions = 0o777

    def names(self) -> Iterable[str]:
        return names_of(self.listing())

    def listing(self) -> DirectoryListing:
        return KeyNames([(self.views, None)])

    def lookup(self, name: str) -> Entry:
        return found_file(self.child(name), lambda key: self.views, [self.views], name)

    def create_file(self, name: str, flags: int) -> tuple[Entry, Handle]:
        return made_file(self.child(name), lambda key: self.views, name, flags)


class TopicKeysDirectory(TopicEntry, Directory):
    """The live keys of a topic, each in the partition that Kafka's default partitioner chooses for it."""

    permissions = 0o777

    @property
    def is_current(self) -> bool:
        return has_keys(self.context, self.topic)

    def names(self) -> Iterable[str]:
        return names_of(self.listing())

    def listing(self) -> DirectoryListing:
        numbers, count = self._numbers(), self._count()
        return KeyNames(
            [
                (self.context.views(self.topic, number), partial(_belong, number, numbers, count))
                for number in numbers
            ]
        )

    def lookup(self, name: str) -> Entry:
        every = (self.context.views(self.topic, number) for number in self._numbers())
        return found_file(self.child(name), self._views_of, every, name)

    def create_file(self, name: str, flags: int) -> tuple[Entry, Handle]:
        return made_file(self.child(name), self._own_views_of, name, flags)

    def _numbers(self) -> Sequence[int]:
        return self.context.store.topics().get(self.topic, ())

    def _count(self) -> int | None:
        return self.context.store.links.targets(self.topic)[1]

    def _views_of(self, key: bytes) -> PartitionViews:
        return self.context.views(self.topic, self._number_of(key))

    def _own_views_of(self, key: bytes) -> PartitionViews:
        self.context.store.links.await_division(self.topic)
        number = self._number_of(key)
        if number not in self._numbers():
            raise InvalidRecordError(f"{self.path}: partition {number} of the key is another daemon's")
        return self.context.views(self.topic, number)

    def _number_of(self, key: bytes) -> int:
        numbers = self._numbers()
        if not numbers:
            raise errors.NotFoundError(f"there is no topic {self.topic}")
        return int(by_key(columns_of(key, None, 0), numbers, self._count())[0])


class KeyNames(DirectoryListing):
    """The names of live keys, of one moment in each partition.

    _parts  the listing of each partition
    """

    def __init__(self, parts: list[tuple[PartitionViews, object]]) -> None:
        self._parts: list[KeyListing] = []
        self._views = [views for views, _ in parts]
        try:
            for views, keep in parts:
                views.writers.await_closing()
                self._parts.append(KeyListing(views.keys, keep))  # type: ignore[arg-type]
        except BaseException:
            self.close()
            raise

    def names(self, position: int) -> Iterator[tuple[str, int]]:
        first, place = divmod(position, 1 << _PART)
        for at in range(first, len(self._parts)):
            listing = self._parts[at]
            for key, _, behind in listing.keys(listing.start + place):
                name = name_of(key)
                if _is_hashed(name):
                    self._views[at].long_keys.keep(name, key)
                yield name, (at << _PART) + behind - listing.start
            place = 0

    def close(self) -> None:
        while self._parts:
            self._parts.pop().close()


def _is_hashed(name: str) -> bool:
    return "%~" in name


def names_of(listing: DirectoryListing) -> list[str]:
    """Return all names of a listing."""
    try:
        return [name for name, _ in listing.names(0)]
    finally:
        listing.close()


def found_file(path: str, views_of: object, every: Iterable[PartitionViews], name: str) -> KeyFile:
    """Return the file of a key. NotFoundError if the key is not there, or another record is its last than expected."""
    # The kernel may have found it a moment ago: who makes files then makes this one.
    missing = errors.TakenError(f"there is no {path}")
    wanted = parse_key_name(name)
    if wanted is None:
        raise missing
    if len(os.fsencode(wanted.stem)) > LONGEST_NAME:
        raise errors.NameTooLongError(f"{path}: a key's name has at most {LONGEST_NAME} bytes")
    key = wanted.key
    if key is None:
        key = _long_key(list(every), wanted.stem)
        if key is None:
            raise missing
    views: PartitionViews = views_of(key)  # type: ignore[operator]
    views.writers.await_closing()
    record = views.keys.record(key, views.record)
    if record is None and key not in tuple(views.pending_keys.values()):
        raise missing
    if wanted.expected is not None and (NO_OFFSET if record is None else record.offset) != wanted.expected:
        raise missing
    return KeyFile(path, views, wanted, key, record)


def made_file(path: str, views_of: object, name: str, flags: int) -> tuple[Entry, Handle]:
    """Make the file of a key, and open it."""
    wanted = parse_key_name(name)
    if name[:1] in (".", "_"):
        raise errors.NotSupportedError(
            f"{path}: names that begin with . or _ are no keys; write the first byte as %{ord(name[0]):02X} for one"
        )
    if wanted is None or wanted.key is None or _is_hashed(name_of(wanted.key)):
        raise errors.BadInputError(
            f"{path}: expected the name of a key, in which % is followed by two hexadecimal digits, "
            f"or @ and an offset; keys whose names are too long are set through in.jsonl and log.jsonl"
        )
    views: PartitionViews = views_of(wanted.key)  # type: ignore[operator]
    expected = wanted.expected
    if expected is None and flags & os.O_EXCL:
        expected = NO_OFFSET
    entry = KeyFile(path, views, wanted, wanted.key, None)
    return entry, entry.written(flags, expected)


def _long_key(every: list[PartitionViews], name: str) -> bytes | None:
    """Return the key that a name with a hash stands for, which is looked for among all keys."""
    for views in every:
        key = views.long_keys.get(name)
        if key is not None:
            return key
    for views in every:
        listing = KeyNames([(views, None)])
        try:
            if any(found == name for found, _ in listing.names(0)):
                return views.long_keys.get(name)
        finally:
            listing.close()
    return None


def _belong(
    number: int, numbers: Sequence[int], count: int | None, columns: Columns
) -> npt.NDArray[np.bool_]:
    """Tell which records are in the partition that their keys belong to."""
    belong: npt.NDArray[np.bool_] = (columns.key_length >= 0) & (by_key(columns, numbers, count) == number)
    return belong


def has_keys(context: Context, topic: str) -> bool:
    """Tell whether a topic is there, and is compacted."""
    try:
        return context.store.topic_settings(topic).compact
    except UnknownPartitionError:
        return False
