"""Where the file system keeps what it can rebuild: BACKING/views/<partition>/<name>. Safe to delete at any time."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from topicfs.engine.errors import CorruptError
from topicfs.engine.files.atomic import read_bounded, write_atomically
from topicfs.engine.format.paths import LOG_SUFFIX, PARQUET_LIST, PARQUET_SUFFIX

# A map has some bytes for each index interval of a segment: of the largest one it is far below this.
_MOST_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class DirectoryViewCache:
    """Files under one directory.

    directory  of all partitions
    """

    directory: Path

    def load(self, partition: str, name: str) -> bytes | None:
        """What was saved under this name; None where there is nothing."""
        try:
            return read_bounded(self.directory / partition / name, _MOST_BYTES)
        except (FileNotFoundError, CorruptError):
            return None

    def save(self, partition: str, name: str, data: bytes) -> None:
        """Keep it, in place of what was there. Not synced: what a power cut takes is built again."""
        path = self.directory / partition / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data, sync=False)

    def remove(self, partition: str, name: str) -> None:
        """Forget it."""
        with contextlib.suppress(FileNotFoundError):
            (self.directory / partition / name).unlink()

    def sweep(self, logs: Path) -> int:
        """Forget what is of partitions and segments that are not among the logs any more. Gives how many files went.

        Each name begins with its segment's base offset. Looked for on disk: partitions that nobody uses stay so. Files
        of a table may outlive their segments for a while: those are left to who makes them, as long as there is the
        partition."""
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
                # Not empty where something was saved just now: the next sweep takes it.
                with contextlib.suppress(OSError):
                    partition.rmdir()
        return removed


class ReadOnlyViewCache(DirectoryViewCache):
    """What an earlier mount has left there. A read-only mount adds nothing to it, and takes nothing away: what is
    missing is built in memory, for as long as the mount lives."""

    def save(self, partition: str, name: str, data: bytes) -> None:
        """Nothing is kept."""

    def remove(self, partition: str, name: str) -> None:
        """Nothing is removed."""

    def sweep(self, logs: Path) -> int:
        """Nothing is removed."""
        return 0


def _paths_in(directory: Path) -> list[Path]:
    """What a directory holds: nothing where it is not there, or is none."""
    try:
        return list(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
