"""The view cache: files that can be rebuilt, in BACKING/views/<partition>/<name>. They may be deleted at any time."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from topicfs.engine.errors import CorruptError
from topicfs.engine.files.atomic import read_bounded, write_atomically
from topicfs.engine.format.paths import LOG_SUFFIX, PARQUET_LIST, PARQUET_SUFFIX

# A map has some bytes for each index interval of a segment. Even that of the largest segment is far below this limit.
_MOST_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class DirectoryViewCache:
    """A view cache of files under one directory.

    directory  the directory that contains those of all partitions
    """

    directory: Path

    def load(self, partition: str, name: str) -> bytes | None:
        """Return what was saved under this name; None if there is nothing."""
        try:
            return read_bounded(self.directory / partition / name, _MOST_BYTES)
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

    def sweep(self, logs: Path) -> int:
        """Remove the files of partitions and segments that no longer exist. Return how many files were removed.

        The name of a file begins with its segment's base offset. Segments are looked for on disk, so that unused
        partitions are not loaded. Files of a table may outlive their segments for a while: while the partition exists,
        the job that made them removes them."""
        removed = 0
        for partition in _paths_in(self.directory):
            is_there = (logs / partition.name).exists()
            for path in _paths_in(partition):
                if is_there and (PARQUET_SUFFIX in path.name or path.name.startswith(PARQUET_LIST)):
                    continue
                if not (logs / partition.name / (path.name.partition(".")[0] + LOG_SUFFIX)).exists():
                    path.unlink(missing_ok=True)
                    removed += 1
            if not is_there:
                # It is not empty if something was saved just now. The next sweep removes it.
                with contextlib.suppress(OSError):
                    partition.rmdir()
        return removed


class ReadOnlyViewCache(DirectoryViewCache):
    """The view cache of a read-only mount: it only reads what an earlier mount has saved. What is missing is built in
    memory, for as long as the mount lives."""

    def save(self, partition: str, name: str, data: bytes) -> None:
        """Do nothing: nothing is saved."""

    def remove(self, partition: str, name: str) -> None:
        """Do nothing: nothing is removed."""

    def sweep(self, logs: Path) -> int:
        """Do nothing: nothing is removed."""
        return 0


def _paths_in(directory: Path) -> list[Path]:
    """Return the paths in a directory; none if it does not exist, or is no directory."""
    try:
        return list(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
