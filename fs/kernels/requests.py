"""What passes between the kernel and libfuse, looked at on its way: the kernel's inodes are told apart by their bytes.

The kernel keeps pages by inode, and libfuse 2 has one number for each path: a path that comes to stand for other bytes
would be shown with the pages of those before. So a number of the kernel is made of two here: libfuse's number of the
path in the lower half, and the *version* in the upper half, which the file system chooses by what the file holds. The
kernel then takes another version for another file, with pages, size and mappings of its own; libfuse sees the lower
half only. The version comes in `st_rdev`, which regular files have no other use for.

Numbers are those of the machine. A request:                  An answer:

    0   uint32  length                                           0   uint32  length
    4   uint32  operation                                        4   int32   error, negative
    8   uint64  which request                                    8   uint64  to which request
    16  uint64  inode                                            16  …       its own fields
    24  uint32  uid   28  gid   32  pid   36  padding
    40  …       its own fields                                An entry, the answer to LOOKUP:

    LINK          40  uint64  inode                              0   uint64  inode
    READ          48  uint64  position                           16  uint64  seconds that the name is remembered
                  60  uint32  flags                              32  uint32  and nanoseconds
    BATCH_FORGET  40  uint32  count                              100 uint32  mode
                  48  count × (uint64 inode, uint64 lookups)     116 uint32  rdev

LOOKUP alone is marked on its way in, in the highest bit of its number, so that its answer is known on the way out. uid
and gid of the caller are overwritten, since the kernel checks permissions: `topicfs.fs.fuse.libfuse` finds the inode
there. SETXATTR keeps them: who asked for a deletion is logged.
"""

from __future__ import annotations

import errno
import stat
from typing import Final

import fuse
import llvmlite.binding
from numba import types

from topicfs.engine.kernels.compile import callback, inline
from topicfs.fs.kernels import windows
from topicfs.fs.kernels.memory import longs_at, sizes_at, words_at
from topicfs.fs.kernels.windows import HAS_OWNER, READ, writev

FLEETING: Final = 1 << 31
"""In `st_rdev`: the kernel is not to remember where the name leads, but to ask each time."""

VERSIONS: Final = (1 << 31) - 1
"""The bits of `st_rdev` that are the version."""

FOR_PAGES: Final = 1 << 62
"""In the position of a read: the bytes go into the kernel's pages, for a mapping, sendfile(2) or a cached read."""

_LOOKUP: Final = 1
_GETATTR: Final = 3
_LINK: Final = 13
_OPEN: Final = 14
_SETXATTR: Final = 21
_BATCH_FORGET: Final = 42

_HEADER: Final = 40
_ENTRY: Final = 128
_LOWER: Final = 0xFFFFFFFF
_LOOKED_UP: Final = 1 << 63
_KIND: Final = 0o170000
_REGULAR: Final = stat.S_IFREG
_ENOENT: Final = errno.ENOENT
_ENODEV: Final = errno.ENODEV
_EIO: Final = errno.EIO

# By name, so that LLVM finds the functions, and what calls them can be cached.
llvmlite.binding.load_library_permanently(fuse._libfuse._name)

_read = types.ExternalFunction("read", types.intp(types.intc, types.uintp, types.uintp))
_errno = types.ExternalFunction("__errno_location", types.CPointer(types.intc)())
_descriptor = types.ExternalFunction("fuse_chan_fd", types.intc(types.uintp))
_table = types.ExternalFunction("fuse_chan_data", types.uintp(types.uintp))
_session = types.ExternalFunction("fuse_chan_session", types.uintp(types.uintp))
_exited = types.ExternalFunction("fuse_session_exited", types.intc(types.uintp))
_exit = types.ExternalFunction("fuse_session_exit", types.void(types.uintp))


@inline
def _take_apart(request, length):
    """Give libfuse its own numbers of inodes, and the callbacks the version."""
    words, longs = words_at(request), longs_at(request)
    operation, node = words[1], longs[2]
    longs[2] = node & types.uint64(_LOWER)
    asked = operation in (_OPEN, _GETATTR)
    if operation != _SETXATTR:
        words[6] = types.uint32(node >> types.uint64(32)) if asked else types.uint32(0)
        words[7] = types.uint32(node & types.uint64(_LOWER)) if asked else types.uint32(0)
    if operation == _LOOKUP:
        longs[1] |= types.uint64(_LOOKED_UP)
    elif operation == READ and length >= 64:
        if not words[15] & types.uint32(HAS_OWNER):
            longs[6] |= types.uint64(FOR_PAGES)
    elif operation == _LINK and length >= 48:
        longs[5] &= types.uint64(_LOWER)
    elif operation == _BATCH_FORGET and length >= 48:
        count = min(types.int64(words[10]), (length - 48) // 16)
        for at in range(count):
            longs[6 + 2 * at] &= types.uint64(_LOWER)


@inline
def _put_together(parts, count):
    """Give the kernel the number of libfuse and the version of a regular file that was looked up."""
    sizes = sizes_at(parts)
    if sizes[1] < 16:
        return
    answer = longs_at(sizes[0])
    if not answer[1] & types.uint64(_LOOKED_UP):
        return
    answer[1] &= ~types.uint64(_LOOKED_UP)
    if words_at(sizes[0])[1] != 0 or count < 2 or sizes[3] < _ENTRY:
        return
    longs, words = longs_at(sizes[2]), words_at(sizes[2])
    mark = types.uint64(words[29])
    if longs[0] == 0 or words[25] & types.uint32(_KIND) != types.uint32(_REGULAR):
        return
    longs[0] |= (mark & types.uint64(VERSIONS)) << types.uint64(32)
    words[29] = types.uint32(0)
    if mark & types.uint64(FLEETING):
        longs[2] = types.uint64(0)
        words[8] = types.uint32(0)


@callback(types.intc, types.CPointer(types.uintp), types.uintp, types.uintp)
def receive(channels, request, size):
    """Wait for a request that is not answered from the table of windows. Gives its length, 0 at the end, or a negative
    errno: as libfuse's own function does."""
    channel = channels[0]
    session, table = _session(channel), _table(channel)
    length = types.intp(-1)
    while length < 0:
        length = _read(_descriptor(channel), request, size)
        error = _errno()[0]
        if _exited(session):
            return types.intc(0)
        if length < 0:
            if error == _ENODEV:
                _exit(session)
                return types.intc(0)
            # ENOENT: the request was taken back before it was read.
            if error != _ENOENT:
                return types.intc(-error)
        elif length >= _HEADER and windows.answer(table, _descriptor(channel), request, length):
            length = types.intp(-1)
    if length < _HEADER:
        return types.intc(-_EIO)
    _take_apart(request, length)
    return types.intc(length)


@callback(types.intc, types.uintp, types.uintp, types.uintp)
def send(channel, parts, count):
    """Answer a request. Gives 0, or a negative errno: ENOENT where nobody waits for the answer any more."""
    if parts == 0:
        return types.intc(0)
    _put_together(parts, count)
    if writev(_descriptor(channel), parts, types.intc(count)) < 0:
        return types.intc(-_errno()[0])
    return types.intc(0)
