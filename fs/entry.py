"""Entries: every name in the tree is an entry, and all kinds of entries have the same few methods.

    directory   lookup(name) → entry, names() → the listed names
    file        open(flags) → handle
    link        target

Entries are usually made for one call and hold no state of their own. State is in the engine, in the views of the
partition (`topicfs.fs.views.partition_views`) and in open handles.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

import numpy as np

from topicfs.engine.batch.table import Bytes
from topicfs.fs import errors

if TYPE_CHECKING:
    from topicfs.fs.context import Context

BLOCK: Final = 512

LONGEST_NAME: Final = 255
"""Bytes of a name, at most, as on any disk. Only of a key's name the part behind `%@` may go beyond."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of the tree: user, group and permission bits of the backing directory."""

    uid: int
    gid: int
    mode: int


class Attributes(NamedTuple):
    """What stat reports. It is a tuple, as that is made in a quarter of the time, and each command needs three.

    mode, ino, nlink, size, uid, gid  as in stat(2)
    mtime_ns                          when the data changed, in nanoseconds; never the time of the call
    stored                            bytes that are stored for it, which st_blocks reports; None if that is its size
    version                           31 bits that tell the successive contents of the path apart. To the kernel,
                                      regular files of equal path and version are one file: one for pages, mappings and
                                      locks. 0 if all contents of the path are one file
    fleeting                          whether the next look-up may find another version: the kernel then asks each time
    """

    mode: int
    ino: int
    nlink: int
    size: int
    mtime_ns: int
    uid: int
    gid: int
    stored: int | None = None
    version: int = 0
    fleeting: bool = False

    @property
    def blocks(self) -> int:
        """Return the blocks of 512 bytes. A file with data must not have 0, as tools take that for a hole."""
        return -(-(self.size if self.stored is None else self.stored) // BLOCK)


class Handle:
    """An open file. The base class refuses all calls that a kind of file does not support.

    is_paged    whether its bytes go into the kernel's pages, as for a mapping. The kernel drops pages when it likes,
                and may ask for any of them again while the file is open
    is_settled  whether a flush would do nothing now, so that close(2) need not wait for one
    settle      to be called with the present `is_settled`, before and after whatever changes it
    waits       whether reads wait for records to come
    """

    direct_io = True
    keep_cache = False
    is_paged = False
    is_settled = False
    settle: Callable[[bool], object] = bool
    waits = False

    def size(self) -> int | None:
        """Return the present size in bytes of what was opened; None if it is the entry's size."""
        return None

    def content(self) -> Hashable:
        """Return what the bytes depend on, beside the version of the file. Among open files that the kernel takes for
        one file, those of equal content show the same byte at each position. None if they always do."""
        return None

    def read(self, position: int, into: Bytes) -> int:
        """Fill `into` from a position on. Return how many bytes there were."""
        raise errors.NotReadableError("this descriptor was not opened for reading")

    def window(self, position: int) -> tuple[int, Bytes] | None:
        """Return bytes around a position that was just read: where they begin, and the bytes, which are in memory and
        will not change. Reads of them need not come here. None if there are none, or if each read matters."""
        return None

    def whole(self) -> Bytes | None:
        """Return all bytes of the file, if they are in memory and do not change while it is open. Reads need not come
        here then, but for those of the kernel's pages."""
        return None

    def write(self, data: Bytes, position: int = 0) -> int:
        """Take bytes. Return how many were taken. The position only counts if the bytes of the file have fixed ones:
        else they follow those taken before."""
        raise errors.NotWritableError("this descriptor was not opened for writing")

    def flush(self) -> None:
        """Handle the close of a descriptor: it may be one of several, or a forked child's."""

    def persist(self) -> None:
        """Bring what was written onto the disk, for fsync."""

    def release(self) -> None:
        """Handle the close of the last descriptor. Errors reach no caller any more."""

    def release_at_end(self) -> None:
        """Release it as the mount goes away, although nobody has closed the last descriptor: its program may have been
        about to write more, and hears that the mount is gone."""
        self.release()


@dataclass(eq=False)
class Entry:
    """A name in the tree. The base class refuses all calls that a kind of entry does not support.

    path       the path from the mount's root on, with a leading slash
    fleeting   as in `Attributes`
    can_empty  whether it takes O_TRUNC: else an open with it is a `truncate` to 0
    can_go     whether retention or compaction may remove it while it is open
    """

    path: str

    kind = stat.S_IFREG
    permissions = 0o444
    fleeting = False
    can_empty = False
    can_go = False

    def attributes(self, owner: Owner, size: int | None = None) -> Attributes:
        """Return what stat reports. `size` is given if it is known, as for an open file."""
        return Attributes(
            self.kind | (self.permissions & owner.mode),
            inode(self.path, self.generation),
            2 if self.kind == stat.S_IFDIR else 1,
            self.size() if size is None else size,
            self.mtime_ns(),
            owner.uid,
            owner.gid,
            self.stored(),
            self.version,
            self.fleeting,
        )

    def at(self, version: int) -> Entry:
        """Return the entry as it was when the kernel was told this version; for 0, or if that is no longer known, as it
        is now. Its own version then tells which it is. Entries that change at each look-up override this."""
        return self

    def catch_up(self) -> None:
        """Take up what another process has changed in the files that this shows, on a read-only mount. It is called
        before anything else is asked."""

    @property
    def is_current(self) -> bool:
        """Tell whether the name still stands for this entry, so that no look-up is needed. If in doubt, it is False."""
        return False

    @property
    def is_deleted(self) -> bool:
        """Tell whether what it shows was deleted by name: its open files then get errors."""
        return False

    @property
    def is_overtaken(self) -> bool:
        """Tell whether its open files may no longer show what they have shown: what it shows was deleted, or cut."""
        return self.is_deleted

    @property
    def is_there(self) -> bool:
        """Tell whether its attributes can be read. After removal by retention or compaction they cannot, though open
        files can still be read."""
        return True

    @property
    def generation(self) -> Hashable:
        """Return a value that changes if the name gets other bytes, and only then. It stays the same over a restart."""
        return 0

    @property
    def version(self) -> int:
        """Return the version, as in `Attributes`."""
        return 0

    def size(self) -> int:
        """Return the exact size in bytes."""
        return 0

    def stored(self) -> int | None:
        """Return the bytes that are stored for it, which st_blocks reports; None if that is its size."""
        return None

    def mtime_ns(self) -> int:
        """Return when the data last changed, in nanoseconds."""
        return 0

    def xattrs(self) -> dict[str, bytes]:
        """Return the listed extended attributes."""
        return {}

    def xattr(self, name: str) -> bytes | None:
        """Return an extended attribute, or None. It may be one that is not listed, so that no tool copies it."""
        return self.xattrs().get(name)

    def set_xattr(self, name: str, value: bytes) -> None:
        """Set an extended attribute, for setxattr."""
        raise errors.AttributeNotSupportedError(f"{self.path}: attributes cannot be set")

    # -- directories ----------------------------------------------------------------------------------

    def lookup(self, name: str) -> Entry:
        """Return the entry of a name in this directory. NotFoundError if there is none."""
        raise errors.NotADirectoryError(f"{self.path} is not a directory")

    def names(self) -> Iterable[str]:
        """Return the listed names. Other names may exist as well."""
        raise errors.NotADirectoryError(f"{self.path} is not a directory")

    def listing(self) -> DirectoryListing | None:
        """Open a directory that is listed a page at a time. None if it has few names, which `names` gives."""
        return None

    def create_directory(self, name: str) -> None:
        """Make a directory, for mkdir."""
        raise errors.NotSupportedError(f"directories are not made in {self.path}")

    def remove_directory(self, name: str) -> None:
        """Remove a directory, for rmdir."""
        raise errors.NotSupportedError(f"{self.path.rstrip('/')}/{name} cannot be removed")

    def create_file(self, name: str, flags: int) -> tuple[Entry, Handle]:
        """Make a file and open it: open(2) of a name that does not exist, with O_CREAT."""
        raise errors.NotSupportedError(
            f"{self.path.rstrip('/')}/{name}: files are not made here; partitions and topics are made by mkdir"
        )

    # -- what logs do not have ------------------------------------------------------------------------

    def remove(self) -> None:
        """Remove the entry, for unlink."""
        raise errors.AppendOnlyError(f"{self.path} cannot be removed")

    def move(self, parent: Entry, name: str) -> None:
        """Rename the entry to a name in a directory."""
        raise errors.AppendOnlyError(f"{self.path} cannot be renamed")

    def set_mode(self) -> None:
        """Change the mode, for chmod."""
        raise errors.AppendOnlyError(
            f"{self.path} cannot be given permissions of its own: they are the backing directory's"
        )

    def set_owner(self) -> None:
        """Change the owner, for chown."""
        raise errors.AppendOnlyError(
            f"{self.path} cannot be given an owner of its own: it is the backing directory's"
        )

    def set_times(self, accessed_ns: int | None, modified_ns: int | None) -> None:
        """Set the times, for utimens. None keeps a time as it is."""
        raise errors.AppendOnlyError(f"{self.path} cannot be given a time: it is that of its data")

    # -- files and links ------------------------------------------------------------------------------

    def open(self, flags: int) -> Handle:
        """Open the file as the flags say."""
        raise errors.IsADirectoryError(f"{self.path} is a directory")

    def truncate(self, length: int) -> None:
        """Cut the file to a length. `>` does that too: it cuts to 0 before anything is written."""
        raise errors.AppendOnlyError(f"{self.path} cannot be cut: use >> to append")

    def target(self) -> str:
        """Return the target of a symbolic link."""
        raise errors.NotALinkError(f"{self.path} is not a symbolic link")


class DirectoryListing:
    """An open directory that may have any number of names: they are asked for a page at a time."""

    def names(self, position: int) -> Iterator[tuple[str, int]]:
        """Yield the names from a position on, the first of which is 0, each with the position behind it."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what the listing holds."""


class Directory(Entry):
    """An entry that contains names.

    absent  the error for a name that does not exist
    """

    kind = stat.S_IFDIR
    permissions = 0o555
    absent: type[errors.NotFoundError] = errors.NotFoundError

    def child(self, name: str) -> str:
        """Return the path of a name in this directory."""
        return f"/{name}" if self.path == "/" else f"{self.path}/{name}"

    def made(self, name: str, entries: Mapping[str, Callable[..., Entry]], *arguments: object) -> Entry:
        """Make the entry of a name as a table says. NotFoundError if the table does not have the name."""
        make = entries.get(name)
        if make is None:
            raise self.missing(name)
        return make(self.child(name), *arguments)

    def missing(self, name: str) -> errors.NotFoundError:
        """Return the error for a name that does not exist here."""
        if len(os.fsencode(name)) > LONGEST_NAME:
            return errors.NameTooLongError(f"{self.child(name)}: a name has at most {LONGEST_NAME} bytes")
        return self.absent(f"there is no {self.child(name)}")


class Link(Entry):
    """A symbolic link."""

    kind = stat.S_IFLNK
    permissions = 0o777

    def size(self) -> int:
        return len(self.target())

    def stored(self) -> int | None:
        return 0

    def open(self, flags: int) -> Handle:
        raise errors.NotSupportedError(f"{self.path} is a symbolic link")


class ViewLink(Link):
    """A link to the entry of the same name in `views`, a directory beside it that is not listed."""

    directory = "views"

    def target(self) -> str:
        return f"{self.directory}/{self.path.rpartition('/')[2]}"


class BytesHandle(Handle):
    """A small file whose content was made at the open."""

    is_settled = True

    def __init__(self, data: bytes) -> None:
        self._data = data

    def size(self) -> int:
        return len(self._data)

    def content(self) -> Hashable:
        return self._data

    def whole(self) -> Bytes:
        return np.frombuffer(self._data, np.uint8) if self._data else np.empty(0, np.uint8)

    def read(self, position: int, into: Bytes) -> int:
        part = memoryview(self._data)[position : position + into.size]
        memoryview(into)[: len(part)] = part
        return len(part)


class GeneratedFile(Entry):
    """A small file whose content is made at each call that needs it."""

    def content(self) -> bytes:
        """Return the present content."""
        raise NotImplementedError

    def size(self) -> int:
        return len(self.content())

    def open(self, flags: int) -> Handle:
        refuse_writing(self, flags)
        return BytesHandle(self.content())


def wants_writing(flags: int) -> bool:
    """Tell whether a file is opened for writing."""
    return flags & os.O_ACCMODE != os.O_RDONLY


def refuse_writing(entry: Entry, flags: int) -> None:
    """Refuse to open a read-only entry for writing, with EPERM."""
    if wants_writing(flags):
        raise errors.AppendOnlyError(f"{entry.path} can only be read")


def require_append(entry: Entry, flags: int) -> None:
    """Refuse an open that would overwrite or cut, with EPERM."""
    if flags & os.O_TRUNC or not flags & os.O_APPEND:
        raise errors.AppendOnlyError(f"{entry.path} can only be appended to: use >>")


class Remembered(Generic[Value]):
    """What names stood for at the kernel's recent look-ups, by version or name. An open behind one asks for it.

    _most   how many are kept
    _found  what is kept, the newest at the end
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: OrderedDict[Hashable, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, version: Hashable) -> Value | None:
        """Return what was kept under a version; None if nothing was, or if it was dropped."""
        return self._found.get(version)

    def keep(self, version: Hashable, value: Value) -> None:
        """Keep a value, and drop the oldest one if there are too many."""
        with self._lock:
            self._found[version] = value
            self._found.move_to_end(version)
            if len(self._found) > self._most:
                self._found.popitem(last=False)


class FleetingFile(GeneratedFile):
    """A generated file that can only be read, and is a new file to the kernel at each look-up, as its content changes.

    context  the context that the tree shares: it remembers recent contents
    _seen    the content at the look-up; None if this is the name itself, which has the present one
    """

    context: Context
    fleeting = True
    version = 0
    _seen: bytes | None = None

    def make(self) -> bytes:
        """Make the present content."""
        raise NotImplementedError

    def content(self) -> bytes:
        return self.make() if self._seen is None else self._seen

    def at(self, version: int) -> Entry:
        found = self.context.snapshots.get(version)
        if found is None or found.path != self.path:
            found = copy.copy(self)
            found._seen, found.version = self.make(), version_of("snapshot", next(SERIALS))
            self.context.snapshots.keep(found.version, found)
        return found


SERIALS: Final = itertools.count(1)
"""Numbers that tell things apart for the kernel, as long as the daemon runs."""


@lru_cache(maxsize=65536)
def version_of(*what: Hashable) -> int:
    """Return a version for what a path stands for: see `Attributes`."""
    digest = hashlib.blake2b(repr(what).encode("utf-8", "surrogateescape"), digest_size=4)
    return int.from_bytes(digest.digest()) >> 1 or 1


@lru_cache(maxsize=65536)
def inode(path: str, generation: Hashable) -> int:
    """Return an inode number that a path keeps, also over restarts, as long as it stands for the same bytes."""
    digest = hashlib.blake2b(f"{generation}:{path}".encode("utf-8", "surrogateescape"), digest_size=8)
    # 0 means "none", and 1 is the root.
    return (int.from_bytes(digest.digest()) >> 1) | 2
