"""Deletion of records by name through the mount, with extended attributes that no tool sets by itself.

    setfattr -n user.topicfs.delete -v orders mnt/topics        a topic, with all that it holds
    setfattr -n user.topicfs.delete -v orders-0 mnt             a partition
    setfattr -n user.topicfs.undelete -v orders mnt/topics      take back a topic's newest deletion, or one by id
    setfattr -n user.topicfs.undelete -v orders-0 mnt           take back a partition's
    getfattr --only-values -n user.topicfs.deleted mnt/topics   what can be taken back, as JSON

The attribute belongs to the directory that contains the name, so that the kernel checks the permission to write there,
as for rmdir. `topicfs delete` and `topicfs undelete` set it. None of the attributes is listed, so tools that copy
attributes do not see them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from topicfs.engine.errors import InvalidNameError, UnknownPartitionError
from topicfs.fs.entry import Directory
from topicfs.fs.tree.compacting import COMPACT, ask
from topicfs.fs.tree.store_entry import StoreEntry

DELETE: Final = "user.topicfs.delete"
UNDELETE: Final = "user.topicfs.undelete"
DELETED: Final = "user.topicfs.deleted"


@dataclass(eq=False)
class Deleting(StoreEntry, Directory):
    """A directory whose names can be deleted with all that they hold, and taken back, or compacted. rmdir deletes what
    is empty."""

    def catch_up(self) -> None:
        self.context.store.catch_up()

    def xattr(self, name: str) -> bytes | None:
        return self.context.deletions() if name == DELETED else super().xattr(name)

    def set_xattr(self, name: str, value: bytes) -> None:
        tasks: dict[str, Callable[[str], None]] = {
            DELETE: self._delete,
            UNDELETE: self.undelete,
            COMPACT: lambda wanted: ask(self.context.store, *self.place_of(wanted)),
        }
        task = tasks.get(name)
        if task is None:
            super().set_xattr(name, value)
            return
        try:
            wanted = value.decode("ascii")
        except UnicodeDecodeError:
            raise self.missing(repr(value)) from None
        task(wanted)

    def remove_directory(self, name: str) -> None:
        self._delete(name, only_empty=True)

    def _delete(self, name: str, only_empty: bool = False) -> None:
        try:
            self.context.delete(*self.place_of(name), only_empty)
        except (UnknownPartitionError, InvalidNameError):
            raise self.missing(name) from None

    def place_of(self, name: str) -> tuple[str, int | None]:
        """Return the topic, and the number of the partition, that a name stands for; no number for a whole topic."""
        raise NotImplementedError

    def undelete(self, name: str) -> None:
        """Take back the newest deletion of what had this name."""
        self.context.store.undelete(*self.place_of(name))
