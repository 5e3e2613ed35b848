"""Mount points: whether one may be mounted, which process serves one, and how a dead one is removed.

The list of mounts is read from the kernel's table, which has one line for each mount:

    36 25 0:32 / /mnt/logs rw,nosuid shared:1 - fuse.topicfs topicfs:/data/logs%20of%20may rw,user_id=0
                 ^ point   ^ options (any number of optional fields)   ^ source   of a mount
                                            ^ type, behind the hyphen

In the table blanks, newlines and backslashes are octal escapes. The source names the backing directory,
percent-encoded, because libfuse itself interprets commas and backslashes in it.

Of the engine, only what reads names and settings is imported here: `topicfs umount` answers in less time than the
kernels would need to load.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import errno
import fcntl
import os
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from topicfs.engine.files import place
from topicfs.engine.format.paths import CLEAN_SHUTDOWN, DAEMON_LOG, LOCK, LOGS
from topicfs.engine.record import now_ms
from topicfs.mountd.users import User, in_words, users_of

SUBTYPE: Final = "topicfs"
_TYPE: Final = f"fuse.{SUBTYPE}"
_SOURCE: Final = f"{SUBTYPE}:"
_TABLE: Final = Path("/proc/self/mountinfo")
_ESCAPE: Final = re.compile(rb"\\([0-7]{3})")
_DEVICE: Final = Path("/dev/fuse")
_HELPERS: Final = ("fusermount", "fusermount3")

# A wait that takes longer than this is explained to the user.
_SOON_MS: Final = 1000

# A mount that is in use, though no user is found, is tried again for this long: a short visitor is just leaving.
_MOMENT_S: Final = 1.0

# A connection that was aborted, or whose daemon is gone, answers every call with one of these.
_DEAD: Final = (errno.ENOTCONN, errno.ECONNABORTED)


class MountError(Exception):
    """A mount point cannot be mounted or unmounted as asked. The message is for the user."""


class BusyMountError(MountError):
    """A mount that is in use cannot be taken away."""


@dataclass(frozen=True, slots=True)
class Made:
    """What was made for a mount that is not there yet.

    directories  the directories that were made for the mount point, the uppermost first
    store        the store that was made; None if there was one
    """

    directories: Sequence[Path] = ()
    store: place.NewStore | None = None

    def take_back(self, keep_store: bool = False) -> None:
        """Remove what was made, as there will be no mount. A store may be kept for its log, which shows the reason."""
        if self.store is not None and not keep_store:
            self.store.take_back({DAEMON_LOG})
        place.remove_directories(self.directories)


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of the kernel's table of mounts.

    point      the mount point
    kind       the type of the file system
    source     what is mounted, in the words of the file system
    device     the number of its device, "major:minor": each mount of a store has its own
    read_only  whether it is mounted read-only
    """

    point: Path
    kind: str
    source: str
    device: str = ""
    read_only: bool = False

    @property
    def backing(self) -> Path | None:
        """The backing directory of a mount of topicfs; None for any other mount."""
        if self.kind != _TYPE or not self.source.startswith(_SOURCE):
            return None
        return Path(os.fsdecode(unquote_to_bytes(self.source.removeprefix(_SOURCE))))


def real(path: Path) -> Path:
    """Return the path without links, also if its end is a dead mount or does not exist."""
    return Path(os.path.realpath(path))


def source_of(backing: Path) -> str:
    """Return the source that a mount of this backing directory has."""
    return _SOURCE + quote(os.fsencode(backing))


def find(point: Path) -> Mount | None:
    """Return the mount at exactly this path, the uppermost if there are several; None if nothing is mounted."""
    return next((mount for mount in reversed(list(_table())) if mount.point == point), None)


def mounted() -> list[Mount]:
    """Return all mounts of topicfs, as far as this process sees mounts."""
    return [mount for mount in _table() if mount.backing is not None]


def points_of(backing: Path) -> list[Path]:
    """Return where a backing directory is mounted, as far as this process sees mounts."""
    return [mount.point for mount in mounted() if mount.backing == backing]


def _table() -> Iterator[Mount]:
    for line in _TABLE.read_bytes().splitlines():
        placed, _, filesystem = line.partition(b" - ")
        kind, source, *_ = filesystem.split(b" ")
        fields = placed.split(b" ")
        read_only = b"ro" in fields[5].split(b",")
        yield Mount(Path(_text(fields[4])), _text(kind), _text(source), _text(fields[2]), read_only)


def _text(field: bytes) -> str:
    return os.fsdecode(_ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), field))


def is_dead(point: Path) -> bool:
    """Tell whether a mount has lost its daemon. A mount that does not answer has not: its daemon may hang."""
    found: list[int] = []

    def ask() -> None:
        try:
            point.stat()
        except OSError as error:
            found.append(error.errno or 0)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_SOON_MS / 1000)
    return any(number in _DEAD for number in found)


def lock_owner(backing: Path) -> int | None:
    """Return the process that has the store open; None if there is none, or it cannot be found out."""
    # The kernel fills in the process that holds the lock. struct flock: type, whence, start, length, pid
    if sys.platform != "linux" or struct.calcsize("P") != 8:
        return None
    layout = "hhqqi4x"
    logs = backing / LOGS
    try:
        # O_NONBLOCK: the open must not wait for ever if somebody has put a FIFO there.
        descriptor = os.open((logs if logs.is_dir() else backing) / LOCK, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as lock:
            question = struct.pack(layout, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, process = struct.unpack(layout, fcntl.fcntl(lock, fcntl.F_GETLK, question))
    except OSError:
        return None
    return process if kind != fcntl.F_UNLCK and process > 0 else None


# -- before mounting ----------------------------------------------------------------------------------


def check_machine() -> None:
    """Make sure that this machine can mount. MountError says what is missing, and how to install it."""
    try:
        os.close(os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        raise MountError(
            f"{_DEVICE} is missing: load the kernel's module by `modprobe fuse`, or start the container with "
            "`--device /dev/fuse --cap-add SYS_ADMIN`"
        ) from None
    except PermissionError:
        raise MountError(
            f"{_DEVICE} may not be opened: let this user in (`chmod 666 {_DEVICE}`), or start the container with "
            "`--device /dev/fuse --cap-add SYS_ADMIN`"
        ) from None
    except OSError as error:
        raise MountError(f"{_DEVICE} cannot be opened: {error.strerror}; `modprobe fuse` may help") from None
    if not any(shutil.which(helper) for helper in _HELPERS):
        raise MountError(
            "fusermount is missing: `apt-get install fuse`, or your system's package of that name"
        )
    if not (os.environ.get("FUSE_LIBRARY_PATH") or _has_libfuse()):
        raise MountError(
            "libfuse 2 is missing: `apt-get install libfuse2` (libfuse2t64 on Ubuntu 24.04 and later), or your "
            "system's package fuse-libs; FUSE_LIBRARY_PATH names one that is elsewhere"
        )


def _has_libfuse() -> bool:
    # This searches as fusepy does, which takes some time if the usual name is not found.
    with contextlib.suppress(OSError):
        ctypes.CDLL("libfuse.so.2")
        return True
    return ctypes.util.find_library("fuse") is not None


def prepare(
    backing: Path,
    point: Path,
    settings: Mapping[str, str] | None = None,
    read_only: bool = False,
    create: bool = False,
    others: Sequence[Path] = (),
) -> Made:
    """Make sure that `backing` can be mounted at `point`, both real paths, with these settings. A dead mount of topicfs
    at `point` is removed. Then, if all else is right, a missing mount point is made, and with `create` a missing store.
    Return what was made. MountError, EngineError or OSError says what is in the way, and then nothing was made.

    others  further log directories, for reading"""
    for each in (backing, *others):
        _refuse_nested(each, point)
    if len({backing, *others}) <= len(others):
        raise MountError(f"{backing}: expected different log directories, found one twice")
    for each in others:
        place.logs_in(each)
    makes = create and place.kind_of(backing) is not place.DirectoryKind.STORE
    if read_only:
        place.logs_in(backing)
    elif makes:
        place.refuse_unless_free(backing)
    else:
        place.refuse_unless_store(backing)
    from topicfs.engine.settings.configuration import Configuration  # noqa: PLC0415 - all settings, for `mount` alone

    Configuration.load(backing, settings or {}, now_ms)
    _clear(point)
    owner = None if read_only else lock_owner(backing)
    if owner is not None:
        # The engine's lock decides. This check saves the user the wait for the engine, and keeps our lines out of its
        # log.
        raise MountError(
            f"{backing}: expected no owner, found process {owner}, which has the directory open "
            "(another topicfs or a Kafka broker)"
        )
    if point.exists():
        _refuse_unless_empty(point)
    made = Made(place.make_directories(point))
    if makes:
        try:
            made = replace(made, store=place.make(backing))
        except BaseException:
            made.take_back()
            raise
    return made


def _refuse_nested(backing: Path, point: Path) -> None:
    if backing == point:
        raise MountError(f"{point}: the backing directory and the mount point are one directory")
    if backing in point.parents:
        raise MountError(f"{point}: the mount point lies inside the backing directory {backing}")
    if point in backing.parents:
        raise MountError(f"{backing}: the backing directory lies inside the mount point {point}")


def _refuse_unless_empty(point: Path) -> None:
    if not point.is_dir():
        raise MountError(f"{point}: expected a directory to mount at, found a file")
    with os.scandir(point) as entries:
        first = next(entries, None)
    if first is not None:
        raise MountError(f"{point}: expected an empty directory to mount at, found {first.name!r} in it")


def _clear(point: Path) -> None:
    """Remove dead mounts of topicfs. MountError if something else is mounted."""
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


def leave(
    point: Path,
    waits: Callable[[str], AbstractContextManager[object]],
    force: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> None:
    """Stop the daemon of the mount at `point`, a real path, and return when both are gone. A dead mount is removed.
    BusyMountError, before any change, if the mount is in use, unless `force` is set: then `tell` is called with the
    names of its users, who lose it. MountError if it is no mount of topicfs, or it did not end well. `waits` is entered
    while this takes longer."""
    mount = find(point)
    if mount is None or mount.backing is None:
        raise MountError(f"{point}: expected a mount of topicfs, found {mount.kind if mount else 'none'}")
    # If the mount were this process's working directory, the process itself would keep it busy.
    os.chdir("/")
    if is_dead(point):
        # A process that has the store open now serves another mount of it.
        detach(point)
        return
    if users := users_of(point, mount.device):
        if not force:
            raise BusyMountError(_busy(mount, users))
        tell(f"{point}: is taken away from\n{in_words(users)}")
    with _daemon_of(mount) as daemon:
        if not force:
            # The kernel checks and unmounts in one step, so that no new user can come in between.
            _unmount_idle(mount)
        elif daemon is None:
            detach(point)
        if daemon is None:
            # The daemon is not visible to this process: it runs in another namespace.
            return
        _stop(daemon, waits)
    if find(point) == mount:
        # The daemon was killed before it could unmount.
        detach(point)
    marker = mount.backing / LOGS / CLEAN_SHUTDOWN
    if not marker.exists() and lock_owner(mount.backing) is None:
        raise MountError(
            f"{point}: unmounted, but {mount.backing} was not stopped cleanly: the next mount recovers it, "
            f"and {mount.backing / DAEMON_LOG} says why"
        )


def _unmount_idle(mount: Mount) -> None:
    """Take away a mount that is not in use. BusyMountError if the kernel says that it is."""
    end = time.monotonic() + _MOMENT_S
    while True:
        try:
            unmount(mount.point)
        except BusyMountError:
            users = users_of(mount.point, mount.device)
            # A user that was there only for a moment is gone at the next attempt.
            if users or time.monotonic() > end:
                raise BusyMountError(_busy(mount, users)) from None
            time.sleep(_MOMENT_S / 20)
        else:
            return


def _busy(mount: Mount, users: list[User]) -> str:
    below = [f"    a mount at {each.point}" for each in _table() if mount.point in each.point.parents]
    who = "\n".join([in_words(users)] * bool(users) + below)
    return (
        f"{mount.point}: nothing was done, as it is in use by\n"
        f"{who or '    somebody whom this user does not see; root sees more'}\n"
        "End them first, or take it away from them with --force."
    )


@contextlib.contextmanager
def _daemon_of(mount: Mount) -> Iterator[int | None]:
    """Open the process that serves a mount; None if it is not visible. MountError if it is another user's."""
    assert mount.backing is not None
    # A read-only daemon holds no lock, and has nothing to write down. A process with the lock is another daemon.
    owner = None if mount.read_only else lock_owner(mount.backing)
    try:
        process = None if owner is None else os.pidfd_open(owner)
    except ProcessLookupError:
        process = None
    if process is None:
        yield None
        return
    try:
        # The number may have gone to another process before it was opened.
        if lock_owner(mount.backing) != owner:
            yield None
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, 0)  # this sends nothing, but checks the permission to send
        yield process
    except PermissionError:
        raise MountError(f"{mount.point}: is served by process {owner}, which is another user's") from None
    finally:
        os.close(process)


def _stop(daemon: int, waits: Callable[[str], AbstractContextManager[object]]) -> None:
    """Stop a daemon, and wait until it has ended."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(daemon, signal.SIGTERM)
    ended = select.poll()
    ended.register(daemon, select.POLLIN)
    if not ended.poll(_SOON_MS):
        with waits("waiting for the daemon to write everything down and stop"):
            ended.poll()


def detach(point: Path) -> None:
    """Take a mount away at once, even if files on it are open. MountError if that is refused."""
    _fusermount("-uz", point)


def unmount(point: Path) -> None:
    """Take a mount away. BusyMountError if files on it are open, MountError if that is refused."""
    _fusermount("-u", point)


def _fusermount(how: str, point: Path) -> None:
    for helper in _HELPERS:
        with contextlib.suppress(FileNotFoundError):
            done = subprocess.run(
                [helper, how, "--", os.fspath(point)],
                capture_output=True,
                text=True,
                errors="replace",
                env={**os.environ, "LC_ALL": "C"},
                check=False,
            )
            if done.returncode:
                if os.strerror(errno.EBUSY) in done.stderr:
                    raise BusyMountError(f"{point}: is in use")
                raise MountError(f"{point}: cannot be unmounted: {done.stderr.strip() or done.returncode}")
            return
    raise MountError(f"{point}: cannot be unmounted: fusermount is missing; install the package fuse")
