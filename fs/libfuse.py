"""libfuse's structures: fusepy's, with addresses for pointers, and what is read from and written to them."""

from __future__ import annotations

import ctypes
import errno
import time
from _ctypes import CFuncPtr, _Pointer
from typing import Any, Final

import fuse
import numpy as np

from engine.batch.table import Bytes
from fs.entry import Attributes

BLOCK_SIZE: Final = 128 << 10
"""st_blksize: programs with buffers of that size (stdio, Python) then ask for as much as a request can carry."""

ENCODING: Final = ("utf-8", "surrogateescape")
"""Of names: any bytes come and go unchanged."""

_NOW, _OMIT = (1 << 30) - 1, (1 << 30) - 2
"""UTIME_NOW and UTIME_OMIT, in the place of nanoseconds."""


def is_callback(kind: Any) -> bool:
    """Whether a C type is a function."""
    return issubclass(kind, CFuncPtr)


def _plain(kind: Any) -> Any:
    """A C type, but an address for a pointer: no object is made for it at each call."""
    if is_callback(kind):
        return ctypes.CFUNCTYPE(kind._restype_, *(_plain(argument) for argument in kind._argtypes_))
    return ctypes.c_void_p if issubclass(kind, _Pointer) else kind


class Table(ctypes.Structure):
    """struct fuse_operations."""

    _fields_ = [(name, _plain(kind), *bits) for name, kind, *bits in fuse.fuse_operations._fields_]


Stat: Final = fuse.c_stat
File: Final = fuse.fuse_file_info
StatVfs: Final = fuse.c_statvfs
Times: Final = fuse.c_utimbuf


# Larger than any request, so that one type does for all of them: ctypes makes a class for each size.
_Memory: Final = ctypes.c_uint8 * (1 << 30)


def bytes_at(address: int, size: int) -> Bytes:
    """Memory as an array, without a copy."""
    return np.frombuffer(_Memory.from_address(address), np.uint8, size)


def path_of(raw: bytes | None) -> str:
    return "" if raw is None else raw.decode(*ENCODING)


def fill(address: int, attributes: Attributes) -> None:
    """Write attributes into a struct stat."""
    ctypes.memset(address, 0, ctypes.sizeof(Stat))
    stat = Stat.from_address(address)
    stat.st_mode = attributes.mode
    stat.st_ino = attributes.ino
    stat.st_nlink = attributes.nlink
    stat.st_size = attributes.size
    stat.st_blocks = attributes.blocks
    stat.st_blksize = BLOCK_SIZE
    stat.st_uid = attributes.uid
    stat.st_gid = attributes.gid
    seconds, rest = divmod(attributes.mtime_ns, 1_000_000_000)
    for time_spec in (stat.st_mtimespec, stat.st_ctimespec, stat.st_atimespec):
        time_spec.tv_sec = seconds
        time_spec.tv_nsec = rest


def copy_out(value: bytes, address: int, size: int) -> int:
    """Answer getxattr and listxattr: a size of 0 asks how long the value is."""
    if size == 0:
        return len(value)
    if len(value) > size:
        return -errno.ERANGE
    ctypes.memmove(address, value, len(value))
    return len(value)


def time_of(spec: Any) -> int | None:
    if spec.tv_nsec == _OMIT:
        return None
    return time.time_ns() if spec.tv_nsec == _NOW else spec.tv_sec * 1_000_000_000 + spec.tv_nsec
