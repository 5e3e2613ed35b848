"""libfuse's structures and its life. The structures are fusepy's, with addresses for pointers; here they are read and
written. Its life is: mount, answer, unmount.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from _ctypes import CFuncPtr, _Pointer
from typing import Any, Final

import fuse
import numpy as np

from topicfs.engine.batch.table import Bytes
from topicfs.fs.entry import Attributes
from topicfs.fs.kernels import requests

BLOCK_SIZE: Final = requests.LARGEST_REQUEST
"""st_blksize: programs that use it as their buffer size (cat, stdio, Python) then ask for as much as a request can
carry. With 128 KiB, `cat file >> log.txt` cost both sides twice the processor time."""

_BESIDE_BYTES: Final = 4096
"""What libfuse leaves in its buffers for the head of a request."""

ENCODING: Final = ("utf-8", "surrogateescape")
"""The encoding of names: any bytes survive decoding and encoding."""

_NOW, _OMIT = (1 << 30) - 1, (1 << 30) - 2
"""UTIME_NOW and UTIME_OMIT, given in place of nanoseconds."""


_EXPORT = 1 << 4
"""FUSE_CAP_EXPORT_SUPPORT, which libfuse wants by itself."""


def is_callback(kind: Any) -> bool:
    """Tell whether a C type is a function."""
    return issubclass(kind, CFuncPtr)


def _plain(kind: Any) -> Any:
    """Return the C type with an address in place of each pointer, so that no object is made for it at each call."""
    if is_callback(kind):
        return ctypes.CFUNCTYPE(kind._restype_, *(_plain(argument) for argument in kind._argtypes_))
    return ctypes.c_void_p if issubclass(kind, _Pointer) else kind


class OperationsTable(ctypes.Structure):
    """struct fuse_operations."""

    _fields_ = [(name, _plain(kind), *bits) for name, kind, *bits in fuse.fuse_operations._fields_]


class _Arguments(ctypes.Structure):
    """struct fuse_args."""

    _fields_ = [("count", ctypes.c_int), ("words", ctypes.POINTER(ctypes.c_char_p)), ("owned", ctypes.c_int)]


class _Connection(ctypes.Structure):
    """The first members of struct fuse_conn_info."""

    _fields_ = [
        (name, ctypes.c_uint32)
        for name in ("major", "minor", "async_read", "max_write", "max_readahead", "capable", "want")
    ]


class _Channel(ctypes.Structure):
    """struct fuse_chan_ops: three functions."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("receive", "send", "destroy")]


# A library handle of our own: types are set on its functions, while fusepy's handle is shared with other code.
_libfuse: Final = ctypes.CDLL(fuse._libfuse._name)


_system: Final = ctypes.CDLL(None)
_system.free.argtypes = [ctypes.c_void_p]
_system.free.restype = None
_system.dlvsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
_system.dlvsym.restype = ctypes.c_void_p


def _declare(result: Any, name: str, *arguments: Any) -> None:
    # libfuse still has a function of 2001 under the name `fuse_new`, which is found if no version is named.
    address = _system.dlvsym(_libfuse._handle, name.encode(), b"FUSE_2.6")
    kind = ctypes.CFUNCTYPE(result, *arguments)
    setattr(_libfuse, name, kind((name, _libfuse) if address is None else address))


_at, _int = ctypes.c_void_p, ctypes.c_int
_declare(ctypes.POINTER(fuse.fuse_context), "fuse_get_context")
_declare(_int, "fuse_parse_cmdline", _at, ctypes.POINTER(_at), _at, _at)
_declare(None, "fuse_opt_free_args", _at)
_declare(_at, "fuse_mount", _at, _at)
_declare(None, "fuse_unmount", _at, _at)
_declare(_int, "fuse_chan_fd", _at)
_declare(_at, "fuse_chan_new", _at, _int, ctypes.c_size_t, _at)
_declare(None, "fuse_chan_destroy", _at)
_declare(_at, "fuse_new", _at, _at, _at, ctypes.c_size_t, _at)
_declare(None, "fuse_destroy", _at)
_declare(_at, "fuse_get_session", _at)
_declare(_at, "fuse_session_next_chan", _at, _at)
_declare(_int, "fuse_set_signal_handlers", _at)
_declare(None, "fuse_remove_signal_handlers", _at)
_declare(_int, "fuse_loop_mt", _at)
_declare(_int, "fuse_lowlevel_notify_inval_inode", _at, ctypes.c_uint64, ctypes.c_int64, ctypes.c_int64)

Stat: Final = fuse.c_stat
File: Final = fuse.fuse_file_info
StatVfs: Final = fuse.c_statvfs
Times: Final = fuse.c_utimbuf


# This is larger than any request. One type is enough for all sizes: ctypes would make a class for each size.
_Memory: Final = ctypes.c_uint8 * (1 << 30)


def bytes_at(address: int, size: int) -> Bytes:
    """Return memory as an array, without a copy."""
    return np.frombuffer(_Memory.from_address(address), np.uint8, size)


def asked() -> tuple[int, int]:
    """Return what the kernel asks for in a callback of getattr, open, getxattr or listxattr: its number of the inode,
    with the version in the upper half, or 0 if it asks by name; and the thread that it asks for."""
    context = _libfuse.fuse_get_context().contents
    return context.uid << 32 | context.gid, context.pid


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
    # `topicfs.fs.kernels.requests` looks for these bits.
    stat.st_rdev = attributes.version | (requests.FLEETING if attributes.fleeting else 0)
    stat.st_uid = attributes.uid
    stat.st_gid = attributes.gid
    seconds, rest = divmod(attributes.mtime_ns, 1_000_000_000)
    for time_spec in (stat.st_mtimespec, stat.st_ctimespec, stat.st_atimespec):
        time_spec.tv_sec = seconds
        time_spec.tv_nsec = rest


def copy_out(value: bytes, address: int, size: int) -> int:
    """Answer getxattr and listxattr: with a size of 0, the kernel asks how long the value is."""
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


def run(words: list[str], table: OperationsTable, windows: int = 0) -> bool:
    """Mount as the words of a command line say, answer until the mount is gone, and clean up. Return False on an error.
    `windows` is the address of a table of windows, or 0.

    It is what `fuse_main` does, but requests and answers pass through `topicfs.fs.kernels.requests`.
    """
    arguments = _Arguments(len(words), (ctypes.c_char_p * len(words))(*map(os.fsencode, words)), 0)
    place, threads, foreground = _at(), _int(), _int()
    given = ctypes.byref(arguments)
    if _libfuse.fuse_parse_cmdline(
        given, ctypes.byref(place), ctypes.byref(threads), ctypes.byref(foreground)
    ):
        return False
    try:
        kernel = _libfuse.fuse_mount(place, given)
        if kernel is None:
            return False
        ways = _Channel(requests.receive.address, requests.send.address, None)
        file, size = _libfuse.fuse_chan_fd(kernel), requests.LARGEST_REQUEST + _BESIDE_BYTES
        channel = _libfuse.fuse_chan_new(ctypes.byref(ways), file, size, windows)
        handle = _libfuse.fuse_new(channel, given, ctypes.byref(table), ctypes.sizeof(table), None)
        if handle is None:
            _libfuse.fuse_unmount(place, kernel)
            return False
        session = _libfuse.fuse_get_session(handle)
        _libfuse.fuse_set_signal_handlers(session)
        failed = _libfuse.fuse_loop_mt(handle)
        _libfuse.fuse_remove_signal_handlers(session)
        # This closes the descriptor that both channels share; our channel goes with the session.
        _libfuse.fuse_unmount(place, kernel)
        _libfuse.fuse_destroy(handle)
        return not failed
    finally:
        _libfuse.fuse_opt_free_args(given)
        _system.free(place)


def drop_pages(handle: int, node: int) -> bool:
    """Make the kernel drop the pages of an inode, so that the next read or page fault asks again. `handle` is
    libfuse's. Return False if the kernel no longer knows the inode."""
    channel = _libfuse.fuse_session_next_chan(_libfuse.fuse_get_session(handle), None)
    error: int = _libfuse.fuse_lowlevel_notify_inval_inode(channel, node, 0, 0)
    return error == 0


def refuse_handles(connection: int) -> None:
    """Take back, in `init`, that files can be found by their inodes alone: by open_by_handle_at(2), and by NFS. The
    kernel would look up `..` in directories that are gone, of which libfuse dies."""
    _Connection.from_address(connection).want &= ~_EXPORT


def this_handle() -> int:
    """Return libfuse's handle, in a callback."""
    found = _libfuse.fuse_get_context().contents.fuse
    assert isinstance(found, int)
    return found
