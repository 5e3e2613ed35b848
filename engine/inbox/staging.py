"""Files on their way into a topic: an area like any disk, under BACKING/staging/<topic>/inbox.

A path is a tuple of names; the empty one is the area itself, which is there even before anything is in it.
What goes wrong here is an OSError, as the system gives it.
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
from topicfs.engine.files.regular import open_regular
from topicfs.engine.segment.descriptors import Descriptors

Parts = tuple[str, ...]

_PLACE: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
"""How a directory is opened to go on from it."""

BLOCK: Final = 1 << 20
"""Bytes that are read of a file at once."""


class StagedFile:
    """An open file.

    descriptor  its number; closed by `close`
    _places     where it has borrowed its place among the files that may be open
    """

    __slots__ = ("_places", "descriptor")

    def __init__(self, descriptor: int, places: Descriptors) -> None:
        self.descriptor = descriptor
        self._places = places

    def read(self, position: int, into: Bytes) -> int:
        """Fill `into` from a position on; gives how many bytes there were."""
        done = 0
        while done < into.size:
            size = os.preadv(self.descriptor, [memoryview(into)[done:]], position + done)
            if not size:
                break
            done += size
        return done

    def write(self, position: int, data: Bytes) -> int:
        """Write at a position; gives how many bytes there was room for."""
        return os.pwrite(self.descriptor, memoryview(data), position)

    def status(self) -> os.stat_result:
        return os.fstat(self.descriptor)

    def truncate(self, length: int) -> None:
        os.ftruncate(self.descriptor, length)

    def sync(self) -> None:
        os.fsync(self.descriptor)

    def close(self) -> None:
        os.close(self.descriptor)
        self._places.take_back()


@dataclass(frozen=True, slots=True)
class Staging:
    """One topic's area.

    No link is followed in it, nor on the way from the directory of all areas, which may be one: each name is looked up
    in the directory that was opened before.

    root    where it is, `<topic>/inbox` in that directory; made when something is put into it
    places  open files borrow a place there
    """

    root: Path
    places: Descriptors = field(default_factory=Descriptors)

    @contextlib.contextmanager
    def _above(self, parts: Parts) -> Iterator[tuple[int, str]]:
        """The directory that holds the last name of a path, and that name."""
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
        """A directory, opened to be read."""
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
        """What lstat tells; FileNotFoundError where there is nothing."""
        with self._above(parts) as (above, name):
            return os.stat(name, dir_fd=above, follow_symlinks=False)

    def names(self, parts: Parts) -> list[str]:
        """What a directory holds, in order."""
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

    def open(self, parts: Parts, flags: int) -> StagedFile:
        """Open a file as open(2) does; what appends has a position of its own to write at. NotRegularError where
        it is no regular file."""
        if flags & os.O_CREAT:
            self._make_room(parts)
        kept = os.O_ACCMODE | os.O_CREAT | os.O_EXCL | os.O_TRUNC
        self.places.lend()
        try:
            with self._above(parts) as (above, name):
                return StagedFile(open_regular(name, flags & kept, directory=above), self.places)
        except BaseException:
            self.places.take_back()
            raise

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
        """Remove a file, or all that a directory holds but not itself. Where there is nothing, that is well."""
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
        """Remove a file, or a directory with all that it holds."""
        self.discard(parts)
        with contextlib.suppress(FileNotFoundError):
            self.remove_directory(parts)

    # -- looking --------------------------------------------------------------------------------------

    def files(self, parts: Parts) -> Iterator[Parts]:
        """The files in a directory and below it; what somebody takes away meanwhile may be among them or not."""
        for name in self.names(parts):
            inner = (*parts, name)
            with contextlib.suppress(FileNotFoundError):
                if self.is_directory(inner):
                    yield from self.files(inner)
                else:
                    yield inner

    def last_change_ms(self, parts: Parts) -> int:
        """When something in it was last changed, by the system's clock: a time that nobody can set."""
        latest = self.status(parts).st_ctime_ns
        if self.is_directory(parts):
            for name in self.names(parts):
                with contextlib.suppress(FileNotFoundError):
                    latest = max(latest, self.last_change_ms((*parts, name)) * 1_000_000)
        return latest // 1_000_000

    def blocks(self, parts: Parts, zipped: bool = False) -> Iterator[Bytes]:
        """What a file holds, block by block; InvalidRecordError where it is to be gzip and is not."""
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

    def identity(self, parts: Parts) -> str:
        """What tells a file from every other: its size, time and content."""
        digest = hashlib.blake2b(digest_size=16)
        for block in self.blocks(parts):
            digest.update(block)
        status = self.status(parts)
        return f"{status.st_size}:{status.st_mtime_ns}:{digest.hexdigest()}"
