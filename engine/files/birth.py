"""Which file a name means: its inode number, and when that file was made.

A file system gives the number of a removed file to the next one that is made, often at once; together with the time of
its making it means one file for good. Both stay when a file grows, is renamed or is looked at after a restart.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final, NamedTuple

_HERE: Final = -100
"""AT_FDCWD."""

_INODE, _MADE = 0x100, 0x800
"""STATX_INO and STATX_BTIME."""


class _Time(ctypes.Structure):
    """struct statx_timestamp."""

    _fields_ = [("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_uint32), ("unused", ctypes.c_int32)]


class _Status(ctypes.Structure):
    """struct statx."""

    _fields_ = [
        ("known", ctypes.c_uint32),
        ("before", ctypes.c_uint32 * 7),
        ("inode", ctypes.c_uint64),
        ("between", ctypes.c_uint64 * 5),
        ("made", _Time),
        ("rest", ctypes.c_uint8 * 160),
    ]


class Birth(NamedTuple):
    """A file for good: `made_ns` is 0 where the file system does not tell."""

    inode: int
    made_ns: int


# Python has it from 3.15 on, C libraries since 2018.
_statx: Final = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)


def birth(path: Path | str) -> Birth:
    """Of the file that has this name now; OSError where none has it."""
    if _statx is None:
        return Birth(os.stat(path).st_ino, 0)
    found = _Status()
    if _statx(_HERE, os.fsencode(path), 0, _INODE | _MADE, ctypes.byref(found)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
    made = found.made.seconds * 1_000_000_000 + found.made.nanoseconds if found.known & _MADE else 0
    return Birth(found.inode, made)
