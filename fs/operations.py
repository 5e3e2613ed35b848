"""The operations of the file system: paths and handles on one side, entries on the other."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from engine import Store
from engine.batch.table import Bytes
from fs import errors
from fs.adapter import Opened
from fs.append import Writers
from fs.entry import Attributes, Entry, Handle, Owner
from fs.house import House
from fs.texts import Shelf
from fs.tree.root import RootDirectory

_MOST_KNOWN: Final = 4096
"""Entries by path: some 1 KiB each, with what they refer to."""


@dataclass(frozen=True, slots=True)
class _Open:
    """An open file: what it was opened on, and how it is read and written."""

    entry: Entry
    handle: Handle


class FileSystem:
    """A store as a tree of files. Each method is a file operation; any error may come out of it.

    house    what all of the tree shares
    owner    whose the files are
    _root    the tree
    _known   entries by path, to be used as long as they are current: each call asks for a path, and again for those
             above it
    closing  the mount goes away: long work ends
    _handles open files, by number
    """

    def __init__(
        self,
        store: Store,
        shelf: Shelf,
        batch_size: int,
        linger_ms: int,
        metrics: Callable[[], bytes] = bytes,
    ) -> None:
        status = os.stat(store.backing)
        self.house = House(store, shelf, Writers(store.clock, linger_ms), batch_size)
        self.owner = Owner(status.st_uid, status.st_gid, status.st_mode & 0o777)
        self._root = RootDirectory(self.house, metrics)
        self._known: dict[str, Entry] = {"/": self._root}
        self._handles: dict[int, _Open] = {}
        self._numbers = itertools.count(1)
        self.closing = False

    def wait_until(self, given_up: Callable[[], bool]) -> None:
        """Calls that wait for records ask this, every now and then, whether anybody still waits for them."""
        self.house.given_up = given_up

    def refused(self, error: Exception, paths: Iterable[str], handle: int | None) -> None:
        """A call has failed: where that is a refusal, the status of what it was about tells why."""
        opened = None if handle is None else self._handles.get(handle)
        if errors.is_refusal(error):
            any(
                self.house.note_refusal(error, path)
                for path in (paths if opened is None else [opened.entry.path])
            )

    # -- names ----------------------------------------------------------------------------------------

    def _entry(self, path: str) -> Entry:
        known = self._known.get(path)
        if known is not None and known.is_current:
            return known
        parent, name = self._parent(path)
        entry = parent.lookup(name)
        if entry.is_current:
            if len(self._known) >= _MOST_KNOWN:
                self._known = {"/": self._root}
            self._known[path] = entry
        return entry

    def _parent(self, path: str) -> tuple[Entry, str]:
        directory, _, name = path.rpartition("/")
        return self._entry(directory or "/"), name

    def getattr(self, path: str, handle: int | None) -> Attributes:
        entry = self._handles[handle].entry if handle is not None and not path else self._named_or_open(path)
        return entry.attributes(self.owner)

    def access(self, path: str, mask: int) -> None:
        mode = self._entry(path).attributes(self.owner).mode
        for asked, bits in ((os.R_OK, 0o444), (os.W_OK, 0o222), (os.X_OK, 0o111)):
            if mask & asked and not mode & bits:
                raise errors.NoAccessError(f"{path} has no bits of {bits:o} in {mode:o}")

    def _named_or_open(self, path: str) -> Entry:
        """The entry of a name, or of a file that is open though its name is gone: libfuse 2 asks by name for an open
        file too, and the kernel asks before it reads through its page cache."""
        try:
            return self._entry(path)
        except errors.NotFoundError:
            for opened in list(self._handles.values()):
                if opened.entry.path == path and opened.entry.outlives_its_name:
                    return opened.entry
            raise

    def readdir(self, path: str, handle: int) -> Iterable[tuple[str, Attributes | None]]:
        return [(name, None) for name in self._entry(path).names()]

    def readlink(self, path: str) -> str:
        return self._entry(path).target()

    def mkdir(self, path: str, mode: int) -> None:
        parent, name = self._parent(path)
        parent.create_directory(name)

    def rmdir(self, path: str) -> None:
        parent, name = self._parent(path)
        parent.remove_directory(name)

    def getxattr(self, path: str, name: str) -> bytes:
        value = self._entry(path).xattr(name)
        if value is None:
            raise errors.NoAttributeError(f"{path} has no attribute {name}")
        return value

    def listxattr(self, path: str) -> list[str]:
        return list(self._entry(path).xattrs())

    def statfs(self, path: str) -> os.statvfs_result:
        return os.statvfs(self.house.store.backing)

    # -- open files -----------------------------------------------------------------------------------

    def open(self, path: str, flags: int) -> Opened:
        try:
            entry = self._entry(path)
        except errors.TakenError as error:
            # The kernel remembers a name that we took away. Told so, it looks again, and makes the file where it may.
            raise errors.StaleError(str(error)) from None
        try:
            opened = entry.open(flags)
        except errors.NotFoundError:
            if entry.is_current:
                raise
            # A segment that compaction has rewritten just now: its name is that of another one, and always was there.
            entry = self._entry(path)
            opened = entry.open(flags)
        return self._opened(entry, opened)

    def create(self, path: str, mode: int, flags: int) -> Opened:
        parent, name = self._parent(path)
        return self._opened(*parent.create_file(name, flags))

    def _opened(self, entry: Entry, opened: Handle) -> Opened:
        number = next(self._numbers)
        self._handles[number] = _Open(entry, opened)
        return Opened(number, opened.direct_io, opened.keep_cache)

    def read(self, handle: int, position: int, into: Bytes) -> int:
        return self._handles[handle].handle.read(position, into)

    def write(self, handle: int, data: Bytes, position: int = 0) -> int:
        return self._handles[handle].handle.write_at(position, data)

    def flush(self, handle: int) -> None:
        self._handles[handle].handle.flush()

    def fsync(self, handle: int, datasync: bool) -> None:
        self._handles[handle].handle.persist()

    def release(self, handle: int) -> None:
        self._handles.pop(handle).handle.release()

    def keep_maps(self) -> None:
        """Put the size maps of sealed segments on the shelf, and let go of those that are gone."""
        self.house.store.inboxes.settle()
        for shown in self.house.looked_at():
            shown.forget_removed()
            shown.texts.keep_complete(lambda: self.closing)

    def end_commits(self) -> None:
        """Begin no more commits of inboxes, and return when those that have begun are done and answered."""
        self.house.commits.end()

    def close_all(self) -> None:
        """Release what is still open, as the mount goes away: unfinished lines are lines now."""
        for number in list(self._handles):
            self.release(number)

    # -- what logs do not have ------------------------------------------------------------------------

    def mknod(self, path: str, mode: int, device: int) -> None:
        raise errors.NotSupportedError(
            f"{path}: files are not made here; partitions and topics are made by mkdir"
        )

    def symlink(self, target: str, path: str) -> None:
        raise errors.NotSupportedError(f"{path}: links are not made here")

    def link(self, existing: str, path: str) -> None:
        raise errors.NotSupportedError(f"{path}: links are not made here")

    def truncate(self, path: str, length: int, handle: int | None) -> None:
        entry = self._entry(path) if handle is None or path else self._handles[handle].entry
        entry.truncate(length)

    def unlink(self, path: str) -> None:
        entry = self._entry(path)
        entry.remove()

    def rename(self, old: str, new: str) -> None:
        entry = self._entry(old)
        entry.move(*self._parent(new))

    def chmod(self, path: str, mode: int) -> None:
        self._entry(path).set_mode()

    def chown(self, path: str, uid: int, gid: int) -> None:
        self._entry(path).set_owner()

    def utimens(self, path: str, accessed_ns: int | None, modified_ns: int | None) -> None:
        self._entry(path).set_times(accessed_ns, modified_ns)

    def setxattr(self, path: str, name: str, value: bytes, flags: int) -> None:
        self._entry(path).set_xattr(name, value)

    def removexattr(self, path: str, name: str) -> None:
        raise errors.AttributeNotSupportedError(f"{path}: attributes cannot be removed")
