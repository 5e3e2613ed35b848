"""The place of a log: its backing directory, and its mount if that was named.

A reader may name either, and some a log directory alone, such as a broker's, or the directory in which the daemons of a
group have their stores side by side. Segments are read from the backing
directory, so that machines without the mount can read them too. A mount tells its backing directory, and the other
log directories if it shows several, and gives the offsets that the daemon has published.
"""

from __future__ import annotations

import errno
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from topicfs.engine.errors import ClosedError, InvalidNameError
from topicfs.engine.files.listing import PartitionKey, partitions_in
from topicfs.engine.files.place import DirectoryKind, kind_of, stores_in
from topicfs.engine.format.paths import LOGS
from topicfs.engine.mount_attributes import BACKING, LOG_DIRECTORIES

ENDED: Final = (errno.ENOTCONN, errno.ECONNABORTED)
"""The errors of a mount whose daemon has ended."""


@dataclass(frozen=True, slots=True)
class Place:
    """A log and its mount.

    backing  directory that has `logs/` in it, or a log directory itself
    mount    mount point of the running daemon, None if the backing directory was named
    others   further log directories: of the same broker, which a read-only mount may show, or of the daemons of a group
    """

    backing: Path
    mount: Path | None
    others: tuple[Path, ...] = ()

    @property
    def logs(self) -> Path:
        """Return the log directory, the first of several."""
        logs = self.backing / LOGS
        return logs if logs.is_dir() else self.backing

    @property
    def log_directories(self) -> tuple[Path, ...]:
        """Return all log directories."""
        return (self.logs, *self.others)

    def partitions(self) -> dict[PartitionKey, Path]:
        """Return the partitions, each with the log directory that it is in."""
        return partitions_in(self.log_directories)

    def logs_of(self, name: str) -> Path:
        """Return the log directory that has a partition of this name; the first one where none has."""
        return next(
            (logs for logs in self.others and self.log_directories if (logs / name).is_dir()), self.logs
        )


def place_of(path: str, or_logs: bool = False) -> Place:
    """Return the place that a backing directory, one with several of them, or a mount point names, or with `or_logs` a
    log directory.
    InvalidNameError if the path is none of them, ClosedError if it is a mount whose daemon has ended."""
    real = Path(os.path.realpath(path.removeprefix("file://")))
    shown = shown_at(real)
    if shown is not None:
        return shown
    kind = kind_of(real)
    if kind is DirectoryKind.FOREIGN and (stores := stores_in(real)):
        return Place(stores[0].parent, None, tuple(stores[1:]))
    if kind is not DirectoryKind.STORE and not (or_logs and kind is DirectoryKind.LOGS):
        raise InvalidNameError(
            f"path {path}: expected a backing directory with logs/ in it, or a mount of topicfs, found {kind.value}"
        )
    return Place(real, None)


def shown_at(path: Path) -> Place | None:
    """Return the place that a mount shows, or None if the path is no mount of topicfs. ClosedError if it is a mount
    whose daemon has ended."""
    if sys.platform != "linux":
        return None
    try:
        backing, directories = (os.getxattr(path, name) for name in (BACKING, LOG_DIRECTORIES))
        _, *others = (Path(os.fsdecode(each)) for each in directories.split(b"\0"))
        return Place(Path(os.fsdecode(backing)), path, tuple(others))
    except OSError as error:
        if error.errno in ENDED:
            raise ClosedError(
                f"{path}: the daemon of this mount has ended: mount it again, or give its backing directory"
            ) from error
        return None
