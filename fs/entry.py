"""What every name in the tree is: an entry, with the same few methods whatever it shows.

    directory   lookup(name) → entry, names() → names worth listing
    file        open(flags) → handle
    link        target

Entries are made anew for each call and hold no state of their own: state is in the engine, in the shown
partition (`fs.shown`) and in open handles.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from engine.batch.table import Bytes
from fs import errors

BLOCK: Final = 512


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
    """

    mode: int
    ino: int
    nlink: int
    size: int
    mtime_ns: int
    uid: int
    gid: int
    stored: int | None = None

    @property
    def blocks(self) -> int:
        """Honest for tools that take 0 for a hole."""
        return -(-(self.size if self.stored is None else self.stored) // BLOCK)


class Handle:
    """An open file. What a kind of file cannot do is refused here, in one way for all."""

    direct_io = True
    keep_cache = False

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

    path               from the mount's root on, with a leading slash
    outlives_its_name  who has it open can read on, and ask for its attributes, when the name is gone
    """

    kind = stat.S_IFREG
    permissions = 0o444
    outlives_its_name = False

    def __init__(self, path: str) -> None:
        self.path = path

    def attributes(self, owner: Owner) -> Attributes:
        """What stat tells."""
        return Attributes(
            self.kind | (self.permissions & owner.mode),
            inode(self.path, self.generation),
            2 if self.kind == stat.S_IFDIR else 1,
            self.size(),
            self.mtime_ns(),
            owner.uid,
            owner.gid,
            self.stored(),
        )

    @property
    def is_current(self) -> bool:
        """Whether the name still leads here, so that it need not be looked up anew. In doubt it does not."""
        return False

    @property
    def generation(self) -> int:
        """Changes when the same name comes to mean other bytes."""
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


@lru_cache(maxsize=65536)
def inode(path: str, generation: int) -> int:
    """A number that stays with a path, also over restarts, as long as it means the same bytes."""
    digest = hashlib.blake2b(f"{generation}:{path}".encode("utf-8", "surrogateescape"), digest_size=8)
    # 0 and 1 are taken: by "none" and by the root.
    return (int.from_bytes(digest.digest()) >> 1) | 2
