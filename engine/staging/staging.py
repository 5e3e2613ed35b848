"""A staging directory, such as BACKING/staging/<topic>/inbox: ordinary files that are to be committed.

A path is a tuple of names. The empty tuple is the staging directory itself, which may be listed before it exists.
Errors are the OSErrors of the system.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import shutil
import stat
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

from topicfs.engine.batch.table import Bytes
from topicfs.engine.errors import InvalidRecordError
from topicfs.engine.segment.descriptors import Descriptors, OtherFile

Parts = tuple[str, ...]

_PLACE: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
"""The flags to open a directory whose entries are opened next."""

HIDDEN: Final = (".", "_")
"""What the names of files begin with that hold no records."""

BLOCK: Final = 1 << 20
"""The number of bytes of a file that are read at once."""


@dataclass(frozen=True, slots=True)
class Staging:
    """One staging directory.

    The directory of all topics may be a symbolic link. Below it no link is followed: each name is looked up in the
    directory that was opened before.

    root    the path, `<topic>/inbox` in the directory of all topics; made when something is put into it
    places  the limit of open files, to which the files opened here count
    """

    root: Path
    places: Descriptors = field(default_factory=Descriptors)

    @contextlib.contextmanager
    def _above(self, parts: Parts) -> Iterator[tuple[int, str]]:
        """Open the directory that holds the last name of a path. Give its descriptor and that name."""
        *above, name = self.root.parts[-2:] + parts
        with contextlib.ExitStack() as opened:
            directory = os.open(self.root.parent.parent, _PLACE)
            opened.callback(os.close, directory)
            for part in above:
                directory = os.open(part, _PLACE | os.O_NOFOLLOW, dir_fd=directory)
                opened.callback(os.close, directory)
            yield directory, name

    @contextlib.contextmanager
    def _inside(self, parts: Parts) -> Iterator[int]:
        """Open a directory for reading. Give its descriptor."""
        with self._above(parts) as (above, name):
            directory = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
        try:
            yield directory
        finally:
            os.close(directory)

    def _make_room(self, parts: Parts) -> None:
        if len(parts) == 1:
            self.root.parent.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.root.parent)
            with contextlib.suppress(FileExistsError), self._above(()) as (topic, name):
                os.mkdir(name, dir_fd=topic)

    def status(self, parts: Parts) -> os.stat_result:
        """Return the result of lstat; FileNotFoundError where there is nothing."""
        with self._above(parts) as (above, name):
            return os.stat(name, dir_fd=above, follow_symlinks=False)

    def names(self, parts: Parts) -> list[str]:
        """Return the names in a directory, in order."""
        try:
            with self._inside(parts) as directory:
                return sorted(os.listdir(directory))
        except FileNotFoundError:
            if parts:
                raise
            return []

    def is_directory(self, parts: Parts) -> bool:
        return stat.S_ISDIR(self.status(parts).st_mode)

    # -- changing -------------------------------------------------------------------------------------

    def open(self, parts: Parts, flags: int) -> OtherFile:
        """Open a file as open(2) does. O_APPEND is dropped, as each write comes with its position. NotRegularError
        where it is not a regular file."""
        if flags & os.O_CREAT:
            self._make_room(parts)
        kept = os.O_ACCMODE | os.O_CREAT | os.O_EXCL | os.O_TRUNC
        with self._above(parts) as (above, name):
            return self.places.open_other(name, flags & kept, above)

    def make_directory(self, parts: Parts) -> None:
        self._make_room(parts)
        with self._above(parts) as (above, name):
            os.mkdir(name, dir_fd=above)

    def remove_directory(self, parts: Parts) -> None:
        with self._above(parts) as (above, name):
            os.rmdir(name, dir_fd=above)

    def remove_file(self, parts: Parts) -> None:
        with self._above(parts) as (above, name):
            os.unlink(name, dir_fd=above)

    def move(self, old: Parts, new: Parts) -> None:
        with self._above(old) as (source, name), self._above(new) as (target, new_name):
            os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=target)

    def truncate(self, parts: Parts, length: int) -> None:
        file = self.open(parts, os.O_WRONLY)
        try:
            file.truncate(length)
        finally:
            file.close()

    def set_times(self, parts: Parts, accessed_ns: int, modified_ns: int) -> None:
        with self._above(parts) as (above, name):
            os.utime(name, ns=(accessed_ns, modified_ns), dir_fd=above, follow_symlinks=False)

    def discard(self, parts: Parts) -> None:
        """Remove a file, or the content of a directory but not the directory. It may be missing."""
        with contextlib.suppress(FileNotFoundError):
            if not self.is_directory(parts):
                self.remove_file(parts)
                return
            with self._inside(parts) as directory:
                for name in os.listdir(directory):
                    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                    if stat.S_ISDIR(status.st_mode):
                        shutil.rmtree(name, dir_fd=directory)
                    else:
                        os.unlink(name, dir_fd=directory)

    def destroy(self, parts: Parts) -> None:
        """Remove a file, or a directory with its content."""
        self.discard(parts)
        with contextlib.suppress(FileNotFoundError):
            self.remove_directory(parts)

    # -- looking --------------------------------------------------------------------------------------

    def files(self, parts: Parts) -> Iterator[Parts]:
        """Give the files in a directory and below it. A file that is removed meanwhile may be included or not."""
        for name in self.names(parts):
            inner = (*parts, name)
            with contextlib.suppress(FileNotFoundError):
                if self.is_directory(inner):
                    yield from self.files(inner)
                else:
                    yield inner

    def last_change_ms(self, parts: Parts) -> int:
        """Return the time of the last change in a file or directory. It is the ctime, which programs cannot set."""
        latest = self.status(parts).st_ctime_ns
        if self.is_directory(parts):
            for name in self.names(parts):
                with contextlib.suppress(FileNotFoundError):
                    latest = max(latest, self.last_change_ms((*parts, name)) * 1_000_000)
        return latest // 1_000_000

    def census(self, parts: Parts) -> tuple[int, int]:
        """Return how many files a directory and those below it hold, save for what is HIDDEN, and the time that
        last_change_ms gives. Each file costs one call of the system, so that a status may show it."""
        with self._inside(parts) as directory, os.scandir(directory) as entries:
            files, latest = 0, os.fstat(directory).st_ctime_ns // 1_000_000
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_dir(follow_symlinks=False):
                        found, changed = self.census((*parts, entry.name))
                    else:
                        found, changed = 1, entry.stat(follow_symlinks=False).st_ctime_ns // 1_000_000
                    files += 0 if entry.name.startswith(HIDDEN) else found
                    latest = max(latest, changed)
        return files, latest

    def blocks(self, parts: Parts, zipped: bool = False) -> Iterator[Bytes]:
        """Give the content of a file, block by block, decompressed if `zipped`. InvalidRecordError where a zipped file
        is not gzip."""
        with (
            contextlib.closing(self.open(parts, os.O_RDONLY)) as opened,
            os.fdopen(opened.descriptor, "rb", closefd=False) as file,
        ):
            source: BinaryIO | gzip.GzipFile = gzip.GzipFile(fileobj=file) if zipped else file
            while True:
                try:
                    block = source.read(BLOCK)
                except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                    raise InvalidRecordError(f"{'/'.join(parts)}: expected gzip: {error}") from None
                if not block:
                    return
                yield np.frombuffer(block, np.uint8)

    @contextlib.contextmanager
    def reading(self, parts: Parts) -> Iterator[tuple[OtherFile, int]]:
        """Open a file for reading. Give it, and its size."""
        with contextlib.closing(self.open(parts, os.O_RDONLY)) as opened:
            yield opened, opened.status().st_size

    def identity(self, parts: Parts) -> str:
        """Return a text that identifies a file: its size, its time and a hash of its content."""
        digest = hashlib.blake2b(digest_size=16)
        for block in self.blocks(parts):
            digest.update(block)
        status = self.status(parts)
        return f"{status.st_size}:{status.st_mtime_ns}:{digest.hexdigest()}"
