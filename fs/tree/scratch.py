"""Files and directories that lie in the staging of a commit, and work as on any disk until it begins."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from topicfs.engine.batch.table import Bytes
from topicfs.engine.files.regular import NotRegularError
from topicfs.engine.segment.descriptors import OtherFile
from topicfs.engine.staging.staging import Parts, Staging
from topicfs.fs import errors
from topicfs.fs.entry import Attributes, Directory, Entry, Handle, Owner, inode, wants_writing
from topicfs.fs.inbox.claims import Claims, Writing


class Place(Protocol):
    """Where such files lie: their staging, and the claims on them."""

    @property
    def staging(self) -> Staging: ...

    @property
    def claims(self) -> Claims: ...


@dataclass(eq=False)
class Scratch(Entry):
    """What all entries of a staging have in common. chmod and chown succeed without effect, as Spark and cp need;
    utimens sets the times.

    place  where they lie
    parts  the path there
    """

    place: Place
    parts: Parts

    def status(self) -> os.stat_result:
        with as_told(self.path):
            return self.place.staging.status(self.parts)

    def attributes(self, owner: Owner, size: int | None = None) -> Attributes:
        found = self.status()
        return Attributes(
            self.kind | (self.permissions & owner.mode),
            # The inode is that of the file, not of its name: a rename keeps it.
            inode(f"staging:{found.st_dev}", found.st_ino),
            found.st_nlink,
            found.st_size,
            found.st_mtime_ns,
            owner.uid,
            owner.gid,
        )

    def set_mode(self) -> None:
        """Do nothing: jobs set the modes of their files, which mean nothing here."""

    def set_owner(self) -> None:
        """Do nothing, as for the mode."""

    def set_times(self, accessed_ns: int | None, modified_ns: int | None) -> None:
        found = self.status()
        with as_told(self.path):
            self.place.staging.set_times(
                self.parts,
                found.st_atime_ns if accessed_ns is None else accessed_ns,
                found.st_mtime_ns if modified_ns is None else modified_ns,
            )


@dataclass(eq=False)
class ScratchDirectory(Scratch, Directory):
    """A directory in a staging."""

    permissions = 0o777
    absent = errors.TakenError

    def create_directory(self, name: str) -> None:
        new = (*self.parts, name)
        self.check_directory(new)
        with self.place.claims.changing(new), as_told(self.child(name)):
            self.place.staging.make_directory(new)

    def remove_directory(self, name: str) -> None:
        place = (*self.parts, name)
        with self.place.claims.changing(place), as_told(self.child(name)):
            self.place.staging.remove_directory(place)

    def check_directory(self, new: Parts) -> None:
        """Refuse a directory that is to be made, with a reason, if it could not be committed."""
        raise NotImplementedError


class ScratchFile(Scratch):
    """A file in a staging.

    file  the file itself, if this entry is of an open file: its attributes are read there, even if its name is gone
    """

    permissions = 0o666
    can_empty = True
    file: OtherFile | None = None

    @property
    def is_guarded(self) -> bool:
        """Tell whether a commit keeps it from being changed."""
        return True

    def status(self) -> os.stat_result:
        return super().status() if self.file is None else self.file.status()

    def size(self) -> int:
        return self.status().st_size

    def mtime_ns(self) -> int:
        return self.status().st_mtime_ns

    def opened(self, flags: int) -> tuple[OtherFile, Writing | None]:
        """Open the file itself. An open for writing is noted in the claims."""
        claims = self.place.claims
        writes = wants_writing(flags)
        changes = self.is_guarded and (writes or flags & (os.O_CREAT | os.O_TRUNC))
        with claims.changing(*([self.parts] if changes else ())), as_told(self.path):
            # The kernel gives each write its position.
            self.file = self.place.staging.open(self.parts, flags & ~os.O_APPEND)
            if not writes:
                return self.file, None
            status = self.file.status()
            return self.file, claims.begin_writing((status.st_dev, status.st_ino))

    def open(self, flags: int) -> Handle:
        return ScratchHandle(self, flags)

    def truncate(self, length: int) -> None:
        if self.file is None:
            with self.place.claims.changing(self.parts), as_told(self.path):
                self.place.staging.truncate(self.parts, length)
        else:
            with as_told(self.path):
                self.file.truncate(length)

    def remove(self) -> None:
        with self.place.claims.changing(self.parts), as_told(self.path):
            self.place.staging.remove_file(self.parts)


class ScratchHandle(Handle):
    """An open file in a staging. It works as on any disk, through the page cache.

    writing  the note that it is open for writing; None if it is not
    """

    direct_io = False

    def __init__(self, entry: ScratchFile, flags: int) -> None:
        self._entry = entry
        self._file, self.writing = entry.opened(flags)

    def read(self, position: int, into: Bytes) -> int:
        return self._file.read(position, into)

    def write(self, data: Bytes, position: int = 0) -> int:
        if self.writing is not None:
            self.writing.is_closed = False
        with as_told(self._entry.path):
            return self._file.write(position, data)

    def flush(self) -> None:
        if self.writing is not None:
            self.writing.is_closed = True

    def persist(self) -> None:
        self._file.sync()

    def release(self) -> None:
        if self.writing is not None:
            self._entry.place.claims.end_writing(self.writing)
        self._file.close()


@contextlib.contextmanager
def as_told(path: str) -> Iterator[None]:
    """Turn errors of the disk about a file of a staging into errors about the entry that shows it."""
    try:
        yield
    except NotRegularError as error:
        raise errors.NotSupportedError(f"{path}: {error.strerror}") from None
    except FileNotFoundError:
        raise errors.TakenError(f"there is no {path}") from None
    except FileExistsError:
        raise errors.ExistsError(f"{path} exists") from None
    except NotADirectoryError:
        raise errors.NotADirectoryError(f"{path}: a name above it is no directory") from None
    except IsADirectoryError:
        raise errors.IsADirectoryError(f"{path} is a directory") from None
    except OSError as error:
        if error.errno == errno.ENOTEMPTY:
            raise errors.NotEmptyError(f"{path} is not empty") from None
        if error.errno == errno.EFBIG:
            raise errors.FileTooLargeError(f"{path}: {error.strerror}") from None
        if error.errno == errno.ENAMETOOLONG:
            raise errors.NameTooLongError(f"{path}: {error.strerror}") from None
        if error.errno == errno.EINVAL:
            raise errors.BadInputError(f"{path}: {error.strerror}") from None
        raise
