"""The lasting identity of a file: its inode number and its creation time.

A file system gives the inode number of a removed file to a new one, often at once. The number and the creation time
together identify one file for good. Both stay the same when the file grows or is renamed, and after a restart.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final, NamedTuple

_HERE: Final = -100
"""The C constant AT_FDCWD: paths are relative to the current directory."""

_INODE, _MADE = 0x100, 0x800
"""The C constants STATX_INO and STATX_BTIME."""


class _Time(ctypes.Structure):
    """The C struct statx_timestamp."""

    _fields_ = [("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_uint32), ("unused", ctypes.c_int32)]


class _Status(ctypes.Structure):
    """The C struct statx."""

    _fields_ = [
        ("known", ctypes.c_uint32),
        ("before", ctypes.c_uint32 * 7),
        ("inode", ctypes.c_uint64),
        ("between", ctypes.c_uint64 * 5),
        ("made", _Time),
        ("rest", ctypes.c_uint8 * 160),
    ]


class Birth(NamedTuple):
    """The identity of a file. `made_ns` is its creation time, 0 where the file system does not tell it."""

    inode: int
    made_ns: int


# Python has statx from 3.15 on, C libraries since 2018.
_statx: Final = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)


def birth(path: Path | str) -> Birth:
    """Return the identity of the file that has this name now; OSError where there is none."""
    if _statx is None:
        return Birth(os.stat(path).st_ino, 0)
    found = _Status()
    if _statx(_HERE, os.fsencode(path), 0, _INODE | _MADE, ctypes.byref(found)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
    made = found.made.seconds * 1_000_000_000 + found.made.nanoseconds if found.known & _MADE else 0
    return Birth(found.inode, made)
