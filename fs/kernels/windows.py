"""Requests that are answered without Python: reads of bytes that lie in memory, and flushes that have nothing to do.
Beside them, which requests that ask for a name, or make a file, wait for their answers.

A read request costs 35 us in Python, and most tools read in pieces of 4 to 64 KiB. So Python renders a block, opens a
*window* on it, and the requests that lie in the window are answered here, in the thread that receives them. And each
close(2) waits for a flush, even if nothing was written since the last one: such a handle is *settled*.

A table of windows is an array of rows with eight numbers of 64 bits. The first row counts. A handle has one place for
its window, `handle % WINDOWS`, which it may have to leave to another one:

    row 0      0  reads that were answered          others   0  handle; 0 where there is no window
               1  their bytes                                1  threads that look at the row now
                                                             2  position in the file of the first byte
                                                             3  position behind the last one
                                                             4  address of the first byte
                                                             5  whether bytes for the kernel's pages are given too
                                                             6  whether the file ends with the window, for good

    rows of settled handles: handle, at the place `handle % SETTLED` of all their numbers; else 0

    rows of named: the number of a LOOKUP or CREATE that is not answered, at the place `number / 2 % NAMED`; else 0. One
    whose place another one has is not known here, and is not told of its caller's signals

Of the requests these fields are read, behind the header that `topicfs.fs.kernels.requests` draws:

    READ   40  uint64  handle   48  uint64  position   56  uint32  bytes   60  uint32  flags
    FLUSH  40  uint64  handle

A thread counts itself in before it looks at the handle, and out when the answer is written. Whoever closes a window
takes the handle away and waits until no thread is counted in: from then on nobody looks at its memory.
"""

from __future__ import annotations

from typing import Final

from numba import types

from topicfs.engine.kernels.compile import BOOL, INT, TABLE, inline, kernel
from topicfs.fs.kernels.memory import (
    add_atomically,
    load_atomically,
    longs_at,
    sizes_at,
    store_atomically,
    words_at,
)

WINDOWS: Final = 32
"""How many windows a table has. Each keeps a block in memory."""

SETTLED: Final = 1024
"""How many handles can be known to be settled. One that has to leave its place is asked for its flush."""

NAMED: Final = 1024
"""How many LOOKUP and CREATE requests can be known that wait. The kernel numbers its requests by twos."""

ROW: Final = 8
ROWS: Final = 1 + WINDOWS + SETTLED // ROW + NAMED // ROW
READS: Final = 0
READ_BYTES: Final = 1
_HANDLE: Final = 0
_USERS: Final = 1
_START: Final = 2
_END: Final = 3
_ADDRESS: Final = 4
_FOR_PAGES: Final = 5
_IS_WHOLE: Final = 6

_LONG: Final = 8
READ: Final = 15
_FLUSH: Final = 25
_READ_LENGTH: Final = 64
"""Bytes of a read request up to its flags."""

_FLUSH_LENGTH: Final = 48
"""Bytes of a flush request up to its handle."""

_ANSWER: Final = 128
"""Where in the request's memory its answer is made: behind the request, which is shorter, and may be read again."""

HAS_OWNER: Final = 2
"""FUSE_READ_LOCKOWNER: the read is a program's, and not one for pages."""

_DISABLED: Final = 1

writev = types.ExternalFunction("writev", types.intp(types.intc, types.uintp, types.intc))
_yield = types.ExternalFunction("sched_yield", types.intc())
_set_cancellation = types.ExternalFunction("pthread_setcancelstate", types.intc(types.intc, types.uintp))


@inline
def _write(descriptor, request, address, size):
    """Write the answer to a request, with so many bytes. Return whether the kernel took it."""
    answer = request + types.uintp(_ANSWER)
    head, parts = longs_at(answer), sizes_at(answer)
    words_at(answer)[0] = types.uint32(size + 16)
    words_at(answer)[1] = types.uint32(0)
    head[1] = longs_at(request)[1]
    parts[2], parts[3] = answer, types.uintp(16)
    parts[4], parts[5] = address, types.uintp(size)
    count = types.intc(2) if size > 0 else types.intc(1)
    return writev(descriptor, answer + types.uintp(16), count) >= 0


@inline
def _answer_read(table, descriptor, request):
    """Answer a read request, if all its bytes lie in the window of its handle, or the file ends there."""
    asked = longs_at(request)
    handle, position = types.int64(asked[5]), types.int64(asked[6])
    size, is_owned = types.int64(words_at(request)[14]), words_at(request)[15] & types.uint32(HAS_OWNER) != 0
    row = table + types.uintp((1 + (handle & (WINDOWS - 1))) * ROW * _LONG)
    is_answered = False
    # libfuse cancels its threads at unmount, at any call that can be cancelled. One that is counted in has to come out.
    _set_cancellation(types.intc(_DISABLED), types.uintp(0))
    add_atomically(row + types.uintp(_USERS * _LONG), 1)
    if handle != 0 and load_atomically(row) == handle:
        window = longs_at(row)
        start, end = types.int64(window[_START]), types.int64(window[_END])
        if window[_IS_WHOLE] != 0:
            size = max(types.int64(0), min(size, end - position))
        else:
            size = size if size > 0 and position <= end - size else types.int64(-1)
        if size >= 0 and start <= position and (is_owned or window[_FOR_PAGES] != 0):
            first = types.uintp(window[_ADDRESS]) + types.uintp(position - start)
            is_answered = _write(descriptor, request, first, size)
    add_atomically(row + types.uintp(_USERS * _LONG), -1)
    _set_cancellation(types.intc(0), types.uintp(0))
    if is_answered:
        add_atomically(table + types.uintp(READS * _LONG), 1)
        add_atomically(table + types.uintp(READ_BYTES * _LONG), size)
    return is_answered


@inline
def answer(table, descriptor, request, length):
    """Answer a request, if the table is enough for it. Return whether it is answered: if not, the request is as it was.
    `request` is its address, with room for 192 bytes."""
    operation = words_at(request)[1]
    if table == 0:
        return False
    if operation == READ and length >= _READ_LENGTH:
        return _answer_read(table, descriptor, request)
    if operation == _FLUSH and length >= _FLUSH_LENGTH:
        handle = longs_at(request)[5]
        settled = longs_at(table + types.uintp((1 + WINDOWS) * ROW * _LONG))
        if handle != 0 and settled[handle & types.uint64(SETTLED - 1)] == handle:
            return _write(descriptor, request, types.uintp(0), 0)
    return False


@inline
def _place_of(table, number):
    place = (number >> types.uint64(1)) & types.uint64(NAMED - 1)
    return (
        table + types.uintp(((1 + WINDOWS) * ROW + SETTLED) * _LONG) + types.uintp(place) * types.uintp(_LONG)
    )


@inline
def begin_named(table, number):
    """Note a LOOKUP or CREATE that waits for its answer."""
    if table != 0 and load_atomically(_place_of(table, number)) == 0:
        store_atomically(_place_of(table, number), types.int64(number))


@inline
def is_named(table, number):
    """Tell whether a request is a LOOKUP or CREATE that waits for its answer."""
    return table != 0 and load_atomically(_place_of(table, number)) == types.int64(number)


@inline
def end_named(table, number):
    """Note that a LOOKUP or CREATE is answered."""
    if is_named(table, number):
        store_atomically(_place_of(table, number), types.int64(0))


@inline
def _close(row):
    store_atomically(row, 0)
    while load_atomically(row + types.uintp(_USERS * _LONG)) != 0:
        _yield()


@kernel(INT, TABLE, INT)
def close_window(table, handle):
    """Close the window in the place of a handle. Afterwards nobody looks at its memory."""
    _close(types.uintp(table.ctypes.data) + types.uintp((1 + (handle & (WINDOWS - 1))) * ROW * _LONG))
    return 0


@kernel(INT, TABLE, INT, INT, INT, INT, BOOL, BOOL)
def open_window(table, handle, start, end, address, for_pages, is_whole):
    """Close the window in the place of a handle, and open another one."""
    row = types.uintp(table.ctypes.data) + types.uintp((1 + (handle & (WINDOWS - 1))) * ROW * _LONG)
    _close(row)
    window = longs_at(row)
    window[_START], window[_END] = types.uint64(start), types.uint64(end)
    window[_ADDRESS] = types.uint64(address)
    window[_FOR_PAGES] = types.uint64(1) if for_pages else types.uint64(0)
    window[_IS_WHOLE] = types.uint64(1) if is_whole else types.uint64(0)
    store_atomically(row, handle)
    return 0
