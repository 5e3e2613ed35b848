"""Mount points: whether one may be mounted, who serves one, and how a dead one goes away.

What is mounted where is read from the kernel's table, one line a mount:

    36 25 0:32 / /mnt/logs rw,nosuid shared:1 - fuse.topicfs topicfs:/data/logs%20of%20may rw,user_id=0
                 ^ point   ^ options (any number of optional fields)   ^ source   of a mount
                                            ^ type, behind the hyphen

In it blanks, newlines and backslashes are octal escapes. The source names the backing directory,
percent-encoded, because libfuse reads commas and backslashes in it as its own.

Of the engine only what reads names and settings is imported here: `topicfs umount` answers before its kernels would be
loaded.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from engine.files import place
from engine.record import now_ms
from engine.store.configuration import Configuration

SUBTYPE: Final = "topicfs"
_TYPE: Final = f"fuse.{SUBTYPE}"
_SOURCE: Final = f"{SUBTYPE}:"
_TABLE: Final = Path("/proc/self/mountinfo")
_ESCAPE: Final = re.compile(rb"\\([0-7]{3})")
_HELPERS: Final = ("fusermount", "fusermount3")

# What takes longer than this is explained to who waits.
_SOON_MS: Final = 1000

# A connection that was aborted, or whose daemon is gone, answers every call with one of these.
_DEAD: Final = (errno.ENOTCONN, errno.ECONNABORTED)


class MountError(Exception):
    """A mount point cannot be mounted or unmounted as asked; the message is for the user."""


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of the kernel's table.

    point      where it is mounted
    kind       the file system's type
    source     what is mounted, as the file system words it
    read_only  it was mounted so
    """

    point: Path
    kind: str
    source: str
    read_only: bool = False

    @property
    def backing(self) -> Path | None:
        """The backing directory of one of our mounts, None of any other."""
        if self.kind != _TYPE or not self.source.startswith(_SOURCE):
            return None
        return Path(os.fsdecode(unquote_to_bytes(self.source.removeprefix(_SOURCE))))


def real(path: Path) -> Path:
    """The path without links, also where its end is a dead mount or does not exist."""
    return Path(os.path.realpath(path))


def source_of(backing: Path) -> str:
    """What a mount of this backing directory names as its source."""
    return _SOURCE + quote(os.fsencode(backing))


def find(point: Path) -> Mount | None:
    """The mount at this very path, the uppermost where there are several; None where nothing is mounted."""
    return next(
        (mount for mount in reversed(list(_mounts(_TABLE.read_bytes()))) if mount.point == point), None
    )


def points_of(backing: Path) -> list[Path]:
    """Where a backing directory is mounted, as far as this process sees mounts."""
    return [mount.point for mount in _mounts(_TABLE.read_bytes()) if mount.backing == backing]


def _mounts(table: bytes) -> Iterator[Mount]:
    for line in table.splitlines():
        placed, _, filesystem = line.partition(b" - ")
        kind, source, *_ = filesystem.split(b" ")
        fields = placed.split(b" ")
        yield Mount(Path(_text(fields[4])), _text(kind), _text(source), b"ro" in fields[5].split(b","))


def _text(field: bytes) -> str:
    return os.fsdecode(_ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), field))


def is_dead(point: Path) -> bool:
    """Whether a mount has lost the process that served it."""
    try:
        point.stat()
    except OSError as error:
        return error.errno in _DEAD
    return False


def lock_owner(backing: Path) -> int | None:
    """The process that has the store open, None where there is none or it cannot be told."""
    # The kernel fills in the process where the lock is taken. struct flock: type, whence, start, length, pid
    if sys.platform != "linux" or struct.calcsize("P") != 8:
        return None
    layout = "hhqqi4x"
    logs = backing / place.LOGS
    try:
        # Not to wait for ever where somebody has put a FIFO there.
        descriptor = os.open((logs if logs.is_dir() else backing) / ".lock", os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as lock:
            question = struct.pack(layout, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, process = struct.unpack(layout, fcntl.fcntl(lock, fcntl.F_GETLK, question))
    except OSError:
        return None
    return process if kind != fcntl.F_UNLCK and process > 0 else None


# -- before mounting ----------------------------------------------------------------------------------


def prepare(
    backing: Path,
    point: Path,
    settings: Mapping[str, str] | None = None,
    read_only: bool = False,
    create: bool = False,
) -> bool:
    """Make sure that `backing` can be mounted at `point`, both real paths, with these settings. A dead mount of ours
    there is removed; then, when all else is found to be right, a missing mount point is made, and with `create` a
    missing store. Gives whether the mount point was made; MountError or EngineError says what is in the way."""
    if backing == point:
        raise MountError(f"{point}: the backing directory and the mount point are one directory")
    if backing in point.parents:
        raise MountError(f"{point}: the mount point lies inside the backing directory {backing}")
    if point in backing.parents:
        raise MountError(f"{backing}: the backing directory lies inside the mount point {point}")
    makes = create and place.kind_of(backing) is not place.Kind.STORE
    if read_only:
        place.logs_in(backing)
    elif makes:
        place.refuse_unless_free(backing)
    else:
        place.refuse_unless_store(backing)
    Configuration.load(backing, settings or {}, now_ms)
    _clear(point)
    owner = None if read_only else lock_owner(backing)
    if owner is not None:
        # The engine's lock decides; this look spares the user the wait for the engine, and the other's log our lines.
        raise MountError(
            f"{backing}: expected no owner, found process {owner}, which has the directory open "
            "(another topicfs or a Kafka broker)"
        )
    is_new = not point.exists()
    if not is_new:
        _refuse_unless_empty(point)
    if makes:
        place.make(backing)
    if is_new:
        point.mkdir(parents=True)
    return is_new


def _refuse_unless_empty(point: Path) -> None:
    if not point.is_dir():
        raise MountError(f"{point}: expected a directory to mount at, found a file")
    with os.scandir(point) as entries:
        first = next(entries, None)
    if first is not None:
        raise MountError(f"{point}: expected an empty directory to mount at, found {first.name!r} in it")


def _clear(point: Path) -> None:
    """Remove dead mounts of ours; MountError where something else is mounted."""
    while (mount := find(point)) is not None:
        if mount.backing is None:
            state = "dead mount" if is_dead(point) else "mount"
            raise MountError(f"{point}: expected no mount, found a {state} of type {mount.kind}")
        if not is_dead(point):
            owner = None if mount.read_only else lock_owner(mount.backing)
            process = f", served by process {owner}" if owner is not None else ""
            raise MountError(f"{point}: {mount.backing} is mounted there already{process}")
        detach(point)


# -- unmounting ---------------------------------------------------------------------------------------


def leave(point: Path, waits: Callable[[str], AbstractContextManager[object]]) -> None:
    """Stop the daemon of the mount at `point`, a real path, and return when both are gone; a dead mount is removed.
    MountError where there is none of ours, or it did not end well. `waits` is entered while this takes longer."""
    mount = find(point)
    if mount is None or mount.backing is None:
        raise MountError(f"{point}: expected a mount of topicfs, found {mount.kind if mount else 'none'}")
    if mount.read_only:
        # Its daemon has nothing to write down, and holds no lock: who holds one is another daemon.
        detach(point) if is_dead(point) else unmount(point)
        return
    owner = lock_owner(mount.backing)
    if owner is None:
        # Its daemon is gone, or lives where this process sees no processes: behind another namespace's walls.
        detach(point) if is_dead(point) else unmount(point)
        return
    _stop(owner, mount.backing, point, waits)
    if find(point) == mount:
        # The daemon was killed before it could unmount.
        detach(point)
    marker = mount.backing / "logs" / ".kafka_cleanshutdown"
    if not marker.exists() and lock_owner(mount.backing) is None:
        raise MountError(
            f"{point}: unmounted, but {mount.backing} was not stopped cleanly: the next mount recovers it, "
            f"and {mount.backing / 'topicfs.log'} says why"
        )


def _stop(
    owner: int, backing: Path, point: Path, waits: Callable[[str], AbstractContextManager[object]]
) -> None:
    """Have the process that owns the store stop, and wait until it has ended."""
    try:
        process = os.pidfd_open(owner)
    except ProcessLookupError:
        return
    try:
        # The number may have gone to another process before it was opened.
        if lock_owner(backing) != owner:
            return
        signal.pidfd_send_signal(process, signal.SIGTERM)
        ended = select.poll()
        ended.register(process, select.POLLIN)
        if not ended.poll(_SOON_MS):
            with waits(f"waiting for process {owner} to write everything down and stop"):
                ended.poll()
    except PermissionError:
        raise MountError(f"{point}: is served by process {owner}, which is another user's") from None
    finally:
        os.close(process)


def detach(point: Path) -> None:
    """Take a mount away at once, also when files on it are open. MountError where that is refused."""
    _fusermount("-uz", point)


def unmount(point: Path) -> None:
    """Take a mount away. MountError where files on it are open, or that is refused."""
    _fusermount("-u", point)


def _fusermount(how: str, point: Path) -> None:
    for helper in _HELPERS:
        with contextlib.suppress(FileNotFoundError):
            done = subprocess.run(
                [helper, how, "--", os.fspath(point)],
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
            if done.returncode:
                raise MountError(f"{point}: cannot be unmounted: {done.stderr.strip() or done.returncode}")
            return
    raise MountError(f"{point}: cannot be unmounted: fusermount is missing; install the package fuse")
