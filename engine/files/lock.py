"""The lock of a log directory. It allows one owner at a time: this process, another one of ours, or a real broker.

`.lock` is an empty file under an exclusive POSIX record lock, the kind that the JVM takes, so that a broker
and this engine exclude each other. Such a lock belongs to a process, and is lost when the process closes *any*
descriptor of the file. So a second owner inside this process is refused by a table, before the file is
opened a second time. The file stays when the lock is released: to remove it could remove another owner's lock file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from topicfs.engine.errors import StoreLockedError
from topicfs.engine.files.regular import open_regular
from topicfs.engine.format.paths import LOCK

# Device and inode of each lock file that this process holds. Unlike paths they are the same under every
# name of the directory, and while the descriptor is open no other file can get them.
_held: Final[set[tuple[int, int]]] = set()
_held_guard: Final = threading.Lock()


@dataclass(slots=True)
class DirectoryLock:
    """An acquired lock.

    path        the lock file
    descriptor  its file descriptor, open while the lock is held; -1 after the release
    identity    device and inode of the lock file
    """

    path: Path
    descriptor: int
    identity: tuple[int, int]

    @classmethod
    def acquire(cls, directory: Path) -> DirectoryLock:
        """Lock the directory, which must exist. StoreLockedError if it has an owner already; this never waits."""
        path = directory / LOCK
        with _held_guard:
            if path.exists() and _identity(path.stat()) in _held:
                raise StoreLockedError(f"{path}: expected no owner, found another Store of this process")
            descriptor = open_regular(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                _lock(path, descriptor)
                identity = _identity(os.fstat(descriptor))
            except BaseException:
                os.close(descriptor)
                raise
            _held.add(identity)
        return cls(path, descriptor, identity)

    @classmethod
    def is_held(cls, directory: Path) -> bool:
        """Whether the directory has an owner; False also where that cannot be told. Nothing is changed."""
        path = directory / LOCK
        # Closing a descriptor releases the lock of this process. So a file that it has locked is not opened here.
        with _held_guard:
            try:
                if _identity(path.stat()) in _held:
                    return True
                descriptor = os.open(path, os.O_RDONLY)
            except OSError:
                return False
            try:
                found = _conflict(descriptor, fcntl.F_RDLCK)
                return found is not None and found[0] != fcntl.F_UNLCK
            finally:
                os.close(descriptor)

    def release(self) -> None:
        """Release the lock. A second call does nothing."""
        with _held_guard:
            if self.descriptor < 0:
                return
            os.close(self.descriptor)
            self.descriptor = -1
            _held.discard(self.identity)


def _lock(path: Path, descriptor: int) -> None:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        raise StoreLockedError(
            f"{path}: expected no owner, found {_owner(descriptor)}, which has the directory open "
            "(another topicfs or a Kafka broker)"
        ) from None


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _owner(descriptor: int) -> str:
    """Return in words which process holds the lock, with its number where the layout of the answer is known."""
    found = _conflict(descriptor, fcntl.F_WRLCK)
    if found is not None and found[0] != fcntl.F_UNLCK and found[1] > 0:
        return f"process {found[1]}"
    return "another process"


def _conflict(descriptor: int, kind: int) -> tuple[int, int] | None:
    """Return the lock that conflicts with one of this kind: its kind, F_UNLCK if there is none, and its process.
    None where the layout of the answer is not known."""
    if sys.platform != "linux" or struct.calcsize("P") != 8:
        return None
    # struct flock: type, whence, start, length, pid
    layout = "hhqqi4x"
    question = struct.pack(layout, kind, os.SEEK_SET, 0, 0, 0)
    found, _, _, _, process = struct.unpack(layout, fcntl.fcntl(descriptor, fcntl.F_GETLK, question))
    return found, process
