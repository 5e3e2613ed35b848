"""Blocks of a file are allocated before its bytes are written, so that the write cannot lack room.

The file keeps its length and its time: a reader or a copy of the file sees no difference.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Final

_KEEP_SIZE: Final = 1
"""FALLOC_FL_KEEP_SIZE of linux/falloc.h. Without it the file would end in zeros, which recovery must cut off."""

_UNSUPPORTED: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV})
_SECTOR: Final = 512
_SLACK: Final = 64 * 1024
"""Bytes that a file system may have allocated for itself: to the end of a block, or for block addresses."""

# Python's posix_fallocate has no flags, and it writes zeros if a file system cannot allocate.
_libc = ctypes.CDLL(None, use_errno=True)
# Not every C library has a second name for the variant with 64-bit positions.
_fallocate = getattr(_libc, "fallocate64", None) or _libc.fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def allocate(fd: int, position: int, length: int) -> bool:
    """Allocate blocks for these bytes. Return False if the file system cannot do that. OSError if there is no room."""
    before = os.fstat(fd)
    while _fallocate(fd, _KEEP_SIZE, position, length) != 0:
        number = ctypes.get_errno()
        if number in _UNSUPPORTED:
            return False
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))
    _keep_time(fd, before)
    return True


def release_behind(fd: int, size: int) -> None:
    """Free the blocks behind a file's end, which is at `size`."""
    before = os.fstat(fd)
    os.ftruncate(fd, size)
    _keep_time(fd, before)


def is_allocated_behind(fd: int, size: int) -> bool:
    """Return whether a file has blocks behind its end. A few blocks are not detected."""
    return os.fstat(fd).st_blocks * _SECTOR > size + _SLACK


def _keep_time(fd: int, before: os.stat_result) -> None:
    """Restore the file's time, because a segment's time is that of its last append."""
    if os.fstat(fd).st_mtime_ns != before.st_mtime_ns:
        os.utime(fd, ns=(before.st_atime_ns, before.st_mtime_ns))
