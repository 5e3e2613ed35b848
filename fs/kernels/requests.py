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
    RENAME        40  uint64  inode of the new directory
                  48  old name, 0, new name, 0
    READ          48  uint64  position                           16  uint64  seconds that the name is remembered
                  60  uint32  flags                              32  uint32  and nanoseconds
    BATCH_FORGET  40  uint32  count                              100 uint32  mode
                  48  count × (uint64 inode, uint64 lookups)     116 uint32  rdev
    INTERRUPT     40  uint64  which request
    INIT          52  uint32  flags
                                                              The answer to INIT, of 64 bytes:

                                                                 12  uint32  flags
                                                                 20  uint32  bytes of a write, at most
                                                                 28  uint16  pages of a request, at most

LOOKUP and CREATE, whose answer begins with an entry too, and INIT are marked on their way in, in the highest bits of
their numbers, so that the answer is known on the way out. An INTERRUPT names a request by the kernel's number: libfuse
finds one of these only when it is marked there too. uid and gid of the caller are overwritten, since the kernel
checks permissions: `topicfs.fs.fuse.libfuse` finds the inode there. SETXATTR keeps them: who asked for a deletion is
logged.

libfuse 2 locks what has the two names of a RENAME while it is at work, and dies by an assertion if it forgets that
meanwhile (`node->treelock == 0`). The kernel keeps what it renames, and what it renames over. But where it finds
nothing of the new name, libfuse may have a directory of that name that the kernel has forgotten before something in
it, as they are told by several threads, and an open file is forgotten late. Such a directory goes with the last of
what is in it. So a RENAME is *held* here until libfuse has answered a LOOKUP of the new name, made here: from then on
libfuse keeps what has that name. In the same thread the RENAME is processed then. Only after it the answer to the
LOOKUP is refused, as if nobody waited for it any more (ENOENT), and libfuse takes it back. A RENAME of a name to
itself, which comes where two looks at the name find two files, is answered here: libfuse would wait for its own lock
for ever.

libfuse 2 is older than the kernel's offer of requests with more than 128 KiB. Its answer to INIT has 24 bytes: where
the kernel has made the offer, the answer gets those that accept it.
"""

from __future__ import annotations

import errno
import resource
import stat
from typing import Final

import fuse
import llvmlite.binding
from numba import types

from topicfs.engine.kernels.compile import callback, inline
from topicfs.fs.kernels import windows
from topicfs.fs.kernels.memory import longs_at, octets_at, sizes_at, words_at
from topicfs.fs.kernels.windows import HAS_OWNER, READ, writev

FLEETING: Final = 1 << 31
"""In `st_rdev`: the kernel is not to remember where the name leads, but to ask each time."""

VERSIONS: Final = (1 << 31) - 1
"""The bits of `st_rdev` that are the version."""

FOR_PAGES: Final = 1 << 63
"""In the position of a read: the bytes go into the kernel's pages, for a mapping, sendfile(2) or a cached read. It is
the sign: a program may read at any position that has none."""

LARGEST_REQUEST: Final = 1 << 20
"""Bytes that a write or a read carries, at most: the kernel's own limit, unless an administrator has changed that."""

NOBODY: Final = -1
"""The thread that a LOOKUP is for where the kernel has not asked for it: any attributes may be answered."""

_LOOKUP: Final = 1
_GETATTR: Final = 3
_RENAME: Final = 12
_LINK: Final = 13
_OPEN: Final = 14
_SETXATTR: Final = 21
_GETXATTR: Final = 22
_LISTXATTR: Final = 23
_INIT: Final = 26
_CREATE: Final = 35
_INTERRUPT: Final = 36
_BATCH_FORGET: Final = 42

_HEADER: Final = 40
_ENTRY: Final = 128
_LOWER: Final = 0xFFFFFFFF
_LOOKED_UP: Final = 1 << 63
_BEGUN: Final = 1 << 62
_HELD: Final = 1 << 61
_OLD_NAME: Final = 48
_MAX_PAGES: Final = 1 << 22
_SHORT_INIT: Final = 24
_LONG_INIT: Final = 64
_MOST_PAGES: Final = LARGEST_REQUEST // resource.getpagesize()
_KIND: Final = 0o170000
_REGULAR: Final = stat.S_IFREG
_ENOENT: Final = errno.ENOENT
_ENODEV: Final = errno.ENODEV
_EIO: Final = errno.EIO

# By name, so that LLVM finds the functions, and what calls them can be cached.
llvmlite.binding.load_library_permanently(fuse._libfuse._name)

_read = types.ExternalFunction("read", types.intp(types.intc, types.uintp, types.uintp))
_write = types.ExternalFunction("write", types.intp(types.intc, types.uintp, types.uintp))
_calloc = types.ExternalFunction("calloc", types.uintp(types.uintp, types.uintp))
_free = types.ExternalFunction("free", types.void(types.uintp))
_errno = types.ExternalFunction("__errno_location", types.CPointer(types.intc)())
_descriptor = types.ExternalFunction("fuse_chan_fd", types.intc(types.uintp))
_table = types.ExternalFunction("fuse_chan_data", types.uintp(types.uintp))
_session = types.ExternalFunction("fuse_chan_session", types.uintp(types.uintp))
_process = types.ExternalFunction(
    "fuse_session_process", types.void(types.uintp, types.uintp, types.uintp, types.uintp)
)
_exited = types.ExternalFunction("fuse_session_exited", types.intc(types.uintp))
_exit = types.ExternalFunction("fuse_session_exit", types.void(types.uintp))


@inline
def _take_apart(request, length, table):
    """Give libfuse its own numbers of inodes, and the callbacks the version."""
    words, longs = words_at(request), longs_at(request)
    operation, node = words[1], longs[2]
    longs[2] = node & types.uint64(_LOWER)
    asked = operation in (_OPEN, _GETATTR, _GETXATTR, _LISTXATTR)
    if operation != _SETXATTR:
        words[6] = types.uint32(node >> types.uint64(32)) if asked else types.uint32(0)
        words[7] = types.uint32(node & types.uint64(_LOWER)) if asked else types.uint32(0)
    if operation in (_LOOKUP, _CREATE):
        windows.begin_named(table, longs[1])
        longs[1] |= types.uint64(_LOOKED_UP)
    elif operation == _INTERRUPT and length >= 48:
        if windows.is_named(table, longs[5]):
            longs[5] |= types.uint64(_LOOKED_UP)
    elif operation == READ and length >= 64:
        if not words[15] & types.uint32(HAS_OWNER):
            longs[6] |= types.uint64(FOR_PAGES)
    elif operation == _INIT and length >= 56:
        if words[13] & types.uint32(_MAX_PAGES):
            longs[1] |= types.uint64(_BEGUN)
    elif operation in (_LINK, _RENAME) and length >= 48:
        longs[5] &= types.uint64(_LOWER)
    elif operation == _BATCH_FORGET and length >= 48:
        count = min(types.int64(words[10]), (length - 48) // 16)
        for at in range(count):
            longs[6 + 2 * at] &= types.uint64(_LOWER)


@inline
def _put_together(parts, count, table):
    """Give the kernel the number of libfuse and the version of a regular file that was looked up."""
    sizes = sizes_at(parts)
    if sizes[1] < 16:
        return
    answer = longs_at(sizes[0])
    if not answer[1] & types.uint64(_LOOKED_UP):
        return
    answer[1] &= ~types.uint64(_LOOKED_UP)
    windows.end_named(table, answer[1])
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


@inline
def _begins(parts, count):
    """Tell whether an answer is the one to an INIT that has offered large requests. Its number is restored."""
    sizes = sizes_at(parts)
    if sizes[1] < 16:
        return False
    answer = longs_at(sizes[0])
    if answer[1] & types.uint64(_LOOKED_UP) or not answer[1] & types.uint64(_BEGUN):
        return False
    answer[1] &= ~types.uint64(_BEGUN)
    return words_at(sizes[0])[1] == 0 and count == 2 and sizes[3] == _SHORT_INIT


@inline
def _accept(descriptor, parts):
    """Answer INIT as libfuse does, and take large requests."""
    answer = _calloc(types.uintp(1), types.uintp(16 + _LONG_INIT))
    if answer == 0:
        return types.intp(-1)
    sizes, words = sizes_at(parts), words_at(answer)
    longs_at(answer)[1] = longs_at(sizes[0])[1]
    words[0] = types.uint32(16 + _LONG_INIT)
    for at in range(_SHORT_INIT // 4):
        words[4 + at] = words_at(sizes[2])[at]
    words[7] |= types.uint32(_MAX_PAGES)
    words[11] = types.uint32(_MOST_PAGES)
    written = _write(descriptor, answer, types.uintp(16 + _LONG_INIT))
    _free(answer)
    return written


@inline
def _answer(descriptor, request, error):
    """Answer a request without data, in its own memory: its number stays where it is."""
    words_at(request)[0], words_at(request)[1] = types.uint32(16), types.uint32(error)
    return _write(descriptor, request, types.uintp(16))


@inline
def _behind_name(request, start, length):
    """Find where the next name begins, behind the one at `start`; beyond the request if this one has no end."""
    octets, at = octets_at(request), start
    while at < length and octets[at] != 0:
        at += 1
    return at + 1


@inline
def _is_to_itself(request, new, length):
    octets, size = octets_at(request), length - new
    if longs_at(request)[2] != longs_at(request)[5] or new != _OLD_NAME + size:
        return False
    at = 0
    while at < size and octets[_OLD_NAME + at] == octets[new + at]:
        at += 1
    return at == size


@inline
def _hold(request, new, length, held):
    """Keep a RENAME at an address, and put a LOOKUP of its new name in its place. Return the length of that."""
    octets, kept = octets_at(request), octets_at(held)
    for at in range(length):
        kept[at] = octets[at]
    words, longs = words_at(request), longs_at(request)
    size = _HEADER + length - new
    words[0], words[1], words[8] = types.uint32(size), types.uint32(_LOOKUP), types.uint32(NOBODY)
    longs[1], longs[2] = types.uint64(_HELD) | types.uint64(held), longs_at(held)[5]
    for at in range(new, length):
        octets[_HEADER + at - new] = kept[at]
    return size


@inline
def _begin_rename(descriptor, request, length, size):
    """Answer a RENAME of a name to itself, and hold any other. Return the length of the request that libfuse gets in
    its place, or -1 if it gets none."""
    # The second half of the buffer is free: the kernel's longest names are far from that.
    half = types.int64(size) // 16 * 8
    new = _behind_name(request, _OLD_NAME, length)
    if length > half or _behind_name(request, new, length) != length:
        _answer(descriptor, request, -_EIO)
    elif _is_to_itself(request, new, length):
        _answer(descriptor, request, 0)
    else:
        return types.intp(_hold(request, new, length, request + types.uintp(half)))
    return types.intp(-1)


@inline
def _go_on(channel, parts):
    """Process the RENAME that was held until this answer."""
    answer = sizes_at(parts)[0]
    held = types.uintp(longs_at(answer)[1] & ~types.uint64(_HELD))
    error = words_at(answer)[1]
    if error != 0:
        _answer(_descriptor(channel), held, error)
    else:
        _process(_session(channel), held, types.uintp(words_at(held)[0]), channel)


@inline
def _is_for_held(parts):
    sizes = sizes_at(parts)
    if sizes[1] < 16:
        return False
    request = longs_at(sizes[0])[1]
    return request & types.uint64(_LOOKED_UP | _BEGUN | _HELD) == types.uint64(_HELD)


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
        elif length > _OLD_NAME and words_at(request)[1] == _RENAME:
            _take_apart(request, length, table)
            length = _begin_rename(_descriptor(channel), request, length, size)
            if length > 0:
                return types.intc(length)
    if length < _HEADER:
        return types.intc(-_EIO)
    _take_apart(request, length, table)
    return types.intc(length)


@callback(types.intc, types.uintp, types.uintp, types.uintp)
def send(channel, parts, count):
    """Answer a request. Gives 0, or a negative errno: ENOENT where nobody waits for the answer any more."""
    if parts == 0:
        return types.intc(0)
    if _is_for_held(parts):
        _go_on(channel, parts)
        return types.intc(-_ENOENT)
    if _begins(parts, count):
        written = _accept(_descriptor(channel), parts)
    else:
        _put_together(parts, count, _table(channel))
        written = writev(_descriptor(channel), parts, types.intc(count))
    if written < 0:
        return types.intc(-_errno()[0])
    return types.intc(0)
