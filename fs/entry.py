"""What every name in the tree is: an entry, with the same few methods whatever it shows.

    directory   lookup(name) → entry, names() → names worth listing
    file        open(flags) → handle
    link        target

Entries are made anew for each call and hold no state of their own: state is in the engine, in the shown
partition (`topicfs.fs.views.partition_views`) and in open handles.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Generic, NamedTuple, TypeVar

from topicfs.engine.batch.table import Bytes
from topicfs.fs import errors

BLOCK: Final = 512

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose the tree is: user, group and permission bits of the backing directory."""

    uid: int
    gid: int
    mode: int


class Attributes(NamedTuple):
    """What stat tells. A tuple is made in a quarter of the time, and three are made for each command.

    mode, ino, nlink, size, uid, gid  as in stat(2)
    mtime_ns                          of the data, never of the question
    stored                            bytes that are stored for it, which st_blocks tells; None for its size
    version                           which of the bytes that the path stood for so far; 31 bits. Regular files of equal
                                      path and version are one file to the kernel: one for pages, mappings and locks.
                                      0 where that is so for all of them
    fleeting                          the next look at the name may find another version: the kernel asks each time
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
        """Honest for tools that take 0 for a hole."""
        return -(-(self.size if self.stored is None else self.stored) // BLOCK)


class Handle:
    """An open file. What a kind of file cannot do is refused here, in one way for all.

    is_paged  its bytes go into the kernel's pages, as of a mapping: the kernel lets go of them when it likes, and comes
              back for any of them as long as the file is open
    """

    direct_io = True
    keep_cache = False
    is_paged = False

    def size(self) -> int | None:
        """Bytes of what was opened, now; None where that is the entry's size."""
        return None

    def content(self) -> Hashable:
        """What the bytes depend on, where the version of the file does not say it: of open files that the kernel takes
        for one, those of equal content show the same byte at each position. None where they always do."""
        return None

    def read(self, position: int, into: Bytes) -> int:
        """Fill `into` from a position on; gives how many bytes there were."""
        raise errors.NotReadableError("this descriptor was not opened for reading")

    def write(self, data: Bytes) -> int:
        """Take bytes behind those taken before; gives how many were taken."""
        raise errors.NotWritableError("this descriptor was not opened for writing")

    def write_at(self, position: int, data: Bytes) -> int:
        """Take bytes at a position, where the file is one whose bytes have places of their own."""
        return self.write(data)

    def flush(self) -> None:
        """A descriptor is closed: perhaps one of several, perhaps a forked child's."""

    def persist(self) -> None:
        """fsync: bring what was written onto the disk."""

    def release(self) -> None:
        """The last descriptor is closed. Nobody is told of an error any more."""


class Entry:
    """A name in the tree. What a kind of entry cannot do is refused here, in one way for all.

    path       from the mount's root on, with a leading slash
    fleeting   as in `Attributes`
    can_go     retention or compaction may take it away while it is open
    """

    kind = stat.S_IFREG
    permissions = 0o444
    fleeting = False
    can_go = False

    def __init__(self, path: str) -> None:
        self.path = path

    def attributes(self, owner: Owner, size: int | None = None) -> Attributes:
        """What stat tells. `size` where it is known, as of an open file."""
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
        """The entry as it was when the kernel was told this version; as it is now for 0, and where that is not to be
        had, as its version tells. Some show something else each time."""
        return self

    @property
    def is_current(self) -> bool:
        """Whether the name still leads here, so that it need not be looked up anew. In doubt it does not."""
        return False

    @property
    def is_deleted(self) -> bool:
        """Whether what it shows was deleted by name: whoever has it open gets an error."""
        return False

    @property
    def is_there(self) -> bool:
        """Whether it can be asked for its attributes: what retention or compaction took away cannot, though who has it
        open reads on."""
        return True

    @property
    def generation(self) -> Hashable:
        """Changes when the same name comes to mean other bytes, and only then: also not over a restart."""
        return 0

    @property
    def version(self) -> int:
        """As in `Attributes`."""
        return 0

    def size(self) -> int:
        """Bytes, exactly."""
        return 0

    def stored(self) -> int | None:
        """Bytes that are stored for it, as st_blocks is to tell; None for its size."""
        return None

    def mtime_ns(self) -> int:
        """When the data last changed, in nanoseconds."""
        return 0

    def xattrs(self) -> dict[str, bytes]:
        """Extended attributes."""
        return {}

    def xattr(self, name: str) -> bytes | None:
        """An extended attribute, also one that is not listed, so that no tool copies it; None where there is none."""
        return self.xattrs().get(name)

    def set_xattr(self, name: str, value: bytes) -> None:
        """setxattr."""
        raise errors.AttributeNotSupportedError(f"{self.path}: attributes cannot be set")

    # -- directories ----------------------------------------------------------------------------------

    def lookup(self, name: str) -> Entry:
        """The entry of a name in this directory; NotFoundError where there is none."""
        raise errors.NotADirectoryError(f"{self.path} is not a directory")

    def names(self) -> Iterable[str]:
        """The names worth listing; others may be there as well."""
        raise errors.NotADirectoryError(f"{self.path} is not a directory")

    def create_directory(self, name: str) -> None:
        """mkdir."""
        raise errors.NotSupportedError(f"directories are not made in {self.path}")

    def remove_directory(self, name: str) -> None:
        """rmdir."""
        raise errors.NotSupportedError(f"{self.path.rstrip('/')}/{name} cannot be removed")

    def create_file(self, name: str, flags: int) -> tuple[Entry, Handle]:
        """Make a file and open it: open(2) of a name that is not there, with O_CREAT."""
        raise errors.NotSupportedError(
            f"{self.path.rstrip('/')}/{name}: files are not made here; partitions and topics are made by mkdir"
        )

    # -- what logs do not have ------------------------------------------------------------------------

    def remove(self) -> None:
        """unlink."""
        raise errors.AppendOnlyError(f"{self.path} cannot be removed")

    def move(self, parent: Entry, name: str) -> None:
        """rename, to a name in a directory."""
        raise errors.AppendOnlyError(f"{self.path} cannot be renamed")

    def set_mode(self) -> None:
        """chmod."""
        raise errors.AppendOnlyError(
            f"{self.path} cannot be given permissions of its own: they are the backing directory's"
        )

    def set_owner(self) -> None:
        """chown."""
        raise errors.AppendOnlyError(
            f"{self.path} cannot be given an owner of its own: it is the backing directory's"
        )

    def set_times(self, accessed_ns: int | None, modified_ns: int | None) -> None:
        """utimens; None for what stays."""
        raise errors.AppendOnlyError(f"{self.path} cannot be given a time: it is that of its data")

    # -- files and links ------------------------------------------------------------------------------

    def open(self, flags: int) -> Handle:
        """Open for what the flags say."""
        raise errors.IsADirectoryError(f"{self.path} is a directory")

    def truncate(self, length: int) -> None:
        """Cut to a length, also as `>` does it: to 0, before anything is written."""
        raise errors.AppendOnlyError(f"{self.path} cannot be cut: use >> to append")

    def target(self) -> str:
        """Where a symbolic link leads."""
        raise errors.NotALinkError(f"{self.path} is not a symbolic link")


class Directory(Entry):
    """An entry with names in it."""

    kind = stat.S_IFDIR
    permissions = 0o555

    def child(self, name: str) -> str:
        """The path of a name in this directory."""
        return f"/{name}" if self.path == "/" else f"{self.path}/{name}"

    def missing(self, name: str) -> errors.NotFoundError:
        """The error for a name that means nothing here."""
        return errors.NotFoundError(f"there is no {self.child(name)}")


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


class BytesHandle(Handle):
    """A small file that was made when it was opened."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def size(self) -> int:
        return len(self._data)

    def content(self) -> Hashable:
        return self._data

    def read(self, position: int, into: Bytes) -> int:
        part = memoryview(self._data)[position : position + into.size]
        memoryview(into)[: len(part)] = part
        return len(part)


class GeneratedFile(Entry):
    """A small file whose content is made when it is asked for."""

    def content(self) -> bytes:
        """What it holds now."""
        raise NotImplementedError

    def size(self) -> int:
        return len(self.content())

    def open(self, flags: int) -> Handle:
        refuse_writing(self, flags)
        return BytesHandle(self.content())


def wants_writing(flags: int) -> bool:
    """Whether a file is opened for writing."""
    return flags & os.O_ACCMODE != os.O_RDONLY


def refuse_writing(entry: Entry, flags: int) -> None:
    """EPERM at open for what can only be read."""
    if wants_writing(flags):
        raise errors.AppendOnlyError(f"{entry.path} can only be read")


class Remembered(Generic[Value]):
    """What names stood for when the kernel last looked, by version: it comes back for it at once, to open it.

    _most   so many are kept
    _found  the newest at the end
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: OrderedDict[int, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, version: int) -> Value | None:
        """What was kept under a version; None where it was not, or is not any more."""
        return self._found.get(version)

    def keep(self, version: int, value: Value) -> None:
        """Keep it, and let go of the oldest."""
        with self._lock:
            self._found[version] = value
            self._found.move_to_end(version)
            if len(self._found) > self._most:
                self._found.popitem(last=False)


class Snapshot(Entry):
    """A generated file with the content that it had when the kernel looked at its name."""

    fleeting = True

    def __init__(self, file: Entry, content: bytes, version: int) -> None:
        super().__init__(file.path)
        self._file = file
        self._content = content
        self._version = version

    @property
    def version(self) -> int:
        return self._version

    @property
    def generation(self) -> Hashable:
        return self._file.generation

    @property
    def is_deleted(self) -> bool:
        return self._file.is_deleted

    def size(self) -> int:
        return len(self._content)

    def mtime_ns(self) -> int:
        return self._file.mtime_ns()

    def open(self, flags: int) -> Handle:
        refuse_writing(self, flags)
        return BytesHandle(self._content)


class FleetingFile(GeneratedFile):
    """A generated file that can only be read, and has new content each time: to the kernel a new file each time.

    snapshots  what it was lately; of all such files
    """

    snapshots: Remembered[Snapshot]

    def at(self, version: int) -> Entry:
        found = self.snapshots.get(version)
        if found is None or found.path != self.path:
            version = version_of("snapshot", next(_snapshots))
            found = Snapshot(self, self.content(), version)
            self.snapshots.keep(version, found)
        return found


_snapshots: Final = itertools.count()


@lru_cache(maxsize=65536)
def version_of(*what: Hashable) -> int:
    """A version for what a path stands for: see `Attributes`."""
    digest = hashlib.blake2b(repr(what).encode("utf-8", "surrogateescape"), digest_size=4)
    return int.from_bytes(digest.digest()) >> 1 or 1


@lru_cache(maxsize=65536)
def inode(path: str, generation: Hashable) -> int:
    """A number that stays with a path, also over restarts, as long as it means the same bytes."""
    digest = hashlib.blake2b(f"{generation}:{path}".encode("utf-8", "surrogateescape"), digest_size=8)
    # 0 and 1 are taken: by "none" and by the root.
    return (int.from_bytes(digest.digest()) >> 1) | 2
