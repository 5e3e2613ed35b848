"""The place of a log: its backing directory, and its mount on this machine if there is one.

A query may name either. Segments are read from the backing directory, so that tasks on machines without the mount
can read them too. If there is a mount, it gives the offsets that the daemon has published.

The kernel's table lists the mounts. `topicfs.mountd.mounts` writes the source field that is read here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote_to_bytes

from topicfs.engine.errors import InvalidNameError
from topicfs.engine.format.paths import LOGS

_TABLE: Final = Path("/proc/self/mountinfo")
_TYPE: Final = b"fuse.topicfs"
_SOURCE: Final = b"topicfs:"
_ESCAPE: Final = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Place:
    """A log and its mount.

    backing  directory that has `logs/` in it; for a read-only mount it may also be a log directory itself
    mount    mount point of the running daemon, None if there is no daemon
    """

    backing: Path
    mount: Path | None

    @property
    def logs(self) -> Path:
        """Return the log directory."""
        logs = self.backing / LOGS
        return logs if logs.is_dir() else self.backing


def place_of(path: str) -> Place:
    """Return the place that a backing directory or a mount point names. InvalidNameError if the path is neither."""
    real = Path(os.path.realpath(path.removeprefix("file://")))
    mounts = list(_mounts())
    for point, backing, _ in reversed(mounts):
        if point == real:
            return Place(backing, point)
    if not (real / LOGS).is_dir():
        raise InvalidNameError(
            f"path {path}: expected a backing directory with logs/ in it, or a mount of topicfs, found neither"
        )
    # A read-only mount shows the state when it was first read, and not the newest offsets of a daemon.
    mount = next(
        (point for point, backing, read_only in reversed(mounts) if backing == real and not read_only), None
    )
    return Place(real, mount)


def _mounts() -> Iterator[tuple[Path, Path, bool]]:
    """Yield mount point and backing directory of each topicfs mount, and whether it is read-only."""
    try:
        table = _TABLE.read_bytes()
    except OSError:  # not on Linux
        return
    for line in table.splitlines():
        placed, _, system = line.partition(b" - ")
        kind, source, *_ = system.split(b" ")
        if kind == _TYPE and source.startswith(_SOURCE):
            backing = unquote_to_bytes(_unescaped(source).removeprefix(_SOURCE))
            fields = placed.split(b" ")
            read_only = b"ro" in fields[5].split(b",")
            yield Path(os.fsdecode(_unescaped(fields[4]))), Path(os.fsdecode(backing)), read_only


def _unescaped(field: bytes) -> bytes:
    return _ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), field)
