"""The view cache: files that can be rebuilt, in BACKING/views/<partition>/<name>. They may be deleted at any time.

A read-only mount has its own in the user's cache directory, $XDG_CACHE_HOME/topicfs or ~/.cache/topicfs, under
views/<hash of BACKING's path>/<partition>/<name>."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from topicfs.engine.errors import CorruptError
from topicfs.engine.files.atomic import read_bounded, write_atomically
from topicfs.engine.format.paths import KEYS_CHECKPOINT, LOG_SUFFIX, PARQUET_LIST, PARQUET_SUFFIX, VIEWS
from topicfs.engine.kernels.cache import cache_home

log = logging.getLogger(__name__)

# A map has some bytes for each index interval of a segment. Even that of the largest segment is far below this limit.
_MOST_BYTES: Final = 64 * 1024 * 1024

_OF_PARTITIONS: Final = (PARQUET_LIST, KEYS_CHECKPOINT)
"""The files of a whole partition: they are of no segment."""

MOST_KEPT_BYTES: Final = 256 * 1024 * 1024
"""Bytes in a user's cache directory, at most, for all backing directories: the maps of some 700 GB of log."""


@dataclass(frozen=True, slots=True)
class DirectoryViewCache:
    """A view cache of files under one directory.

    directory  the directory that contains those of all partitions
    """

    directory: Path

    def load(self, partition: str, name: str, most: int = _MOST_BYTES) -> bytes | None:
        """Return what was saved under this name; None if there is nothing, or more than `most` bytes."""
        try:
            return read_bounded(self.directory / partition / name, most)
        except (FileNotFoundError, CorruptError):
            return None

    def save(self, partition: str, name: str, data: bytes) -> None:
        """Save data under a name, and replace what was there. It is not synced: what a power cut takes is rebuilt."""
        path = self.directory / partition / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data, durable=False)

    def remove(self, partition: str, name: str) -> None:
        """Remove what was saved under this name."""
        with contextlib.suppress(FileNotFoundError):
            (self.directory / partition / name).unlink()

    def sweep(self, *log_directories: Path) -> int:
        """Remove the files of partitions and segments that no longer exist. Return how many files were removed.

        The name of a file begins with its segment's base offset. Segments are looked for on disk, so that unused
        partitions are not loaded. Files of a table may outlive their segments for a while: while the partition exists,
        the job that made them removes them."""
        removed = 0
        for partition in _paths_in(self.directory):
            present = [logs / partition.name for logs in log_directories if (logs / partition.name).exists()]
            for path in _paths_in(partition):
                if present and (PARQUET_SUFFIX in path.name or path.name.startswith(_OF_PARTITIONS)):
                    continue
                log_name = path.name.partition(".")[0] + LOG_SUFFIX
                if not any((directory / log_name).exists() for directory in present):
                    path.unlink(missing_ok=True)
                    removed += 1
            if not present:
                # It is not empty if something was saved just now. The next sweep removes it.
                with contextlib.suppress(OSError):
                    partition.rmdir()
        return removed


@dataclass(frozen=True, slots=True)
class ReadOnlyViewCache:
    """The view cache of a read-only mount. It reads what a mount that may write has saved, and saves what is missing in
    the user's cache directory, for the next read-only mount of this user.

    saved  the view cache under the backing directory
    own    the one in the user's cache directory; None where there is no such directory, or it cannot be written
    """

    saved: DirectoryViewCache
    own: DirectoryViewCache | None

    @classmethod
    def of(cls, backing: Path) -> Self:
        """Return the view cache of a backing directory."""
        saved, home = DirectoryViewCache(backing / VIEWS), cache_home()
        if home is None:
            return cls(saved, None)
        name = hashlib.sha256(os.fsencode(os.path.realpath(backing))).hexdigest()[:32]
        directory = Path(os.path.realpath(home)) / "topicfs" / VIEWS / name
        if directory.is_relative_to(os.path.realpath(backing)):
            return cls(saved, None)
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            log.info(f"{directory}: cannot be made, what views need is kept in memory only: {error}")
            return cls(saved, None)
        if not os.access(directory, os.W_OK):
            return cls(saved, None)
        return cls(saved, DirectoryViewCache(directory))

    def load(self, partition: str, name: str, most: int = _MOST_BYTES) -> bytes | None:
        """Return what was saved under this name; None if there is nothing, or more than `most` bytes."""
        with contextlib.suppress(OSError):
            found = None if self.own is None else self.own.load(partition, name, most)
            if found is not None:
                return found
        return self.saved.load(partition, name, most)

    def save(self, partition: str, name: str, data: bytes) -> None:
        """Save data under a name in the user's cache directory, if that is possible."""
        if self.own is not None:
            try:
                self.own.save(partition, name, data)
            except OSError as error:
                log.info(f"{self.own.directory / partition / name}: not saved: {error}")

    def remove(self, partition: str, name: str) -> None:
        """Remove what was saved under this name in the user's cache directory."""
        if self.own is not None:
            with contextlib.suppress(OSError):
                self.own.remove(partition, name)

    def sweep(self, *log_directories: Path) -> int:
        """Remove the files of partitions and segments that no longer exist. Of those that are left, also of other
        backing directories, remove the oldest as long as they are too large together. Return how many were removed."""
        if self.own is None:
            return 0
        removed = self.own.sweep(*log_directories)
        kept = []
        for path in self.own.directory.parent.glob("*/*/*"):
            with contextlib.suppress(FileNotFoundError):  # another mount may remove it
                status = path.stat()
                kept.append((status.st_mtime_ns, status.st_size, path))
        size = sum(each[1] for each in kept)
        for _, length, path in sorted(kept):
            if size <= MOST_KEPT_BYTES:
                break
            path.unlink(missing_ok=True)
            size -= length
            removed += 1
        return removed


def _paths_in(directory: Path) -> list[Path]:
    """Return the paths in a directory; none if it does not exist, or is no directory."""
    try:
        return list(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
