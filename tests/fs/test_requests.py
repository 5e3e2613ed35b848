"""What passes between the kernel and libfuse: numbers of inodes are taken apart on the way in, and put together on the
way out. Requests and answers are built here as the kernel's headers state them, and go through pipes.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import socket
import stat
import struct
from collections.abc import Iterator

import fuse
import pytest

from topicfs.fs.fuse.windows import Windows
from topicfs.fs.kernels import requests
from topicfs.fs.kernels.windows import NAMED

LOOKUP, GETATTR, RENAME, LINK, OPEN, READ, SETXATTR, INIT, CREATE = 1, 3, 12, 13, 14, 15, 21, 26, 35
INTERRUPT, BATCH_FORGET = 36, 42
NODE = 0x1234567_00000009
"""Number 9 of libfuse, in a version."""

LIBFUSE = ctypes.CDLL(fuse._libfuse._name)
LIBFUSE.fuse_session_new.restype = ctypes.c_void_p
LIBFUSE.fuse_chan_new.restype = ctypes.c_void_p
LIBFUSE.fuse_chan_new.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p]


class Part(ctypes.Structure):
    """struct iovec."""

    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


Process = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
Receive = Send = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class Wire:
    """A channel whose two ends are pipes.

    processed  the requests that were given to libfuse beside those that are received
    buffer     what a request was received into last
    """

    def __init__(self) -> None:
        self.windows = Windows()
        self.ends: list[int] = []
        self.processed: list[bytes] = []
        self.buffer = ctypes.create_string_buffer(8192)
        self._process = Process(lambda _, request, size, channel: self.processed.append(_copy(request, size)))

    def channel(self, descriptor: int) -> ctypes.c_void_p:
        ways = (ctypes.c_void_p * 3)(requests.receive.address, requests.send.address, None)
        operations = (ctypes.c_void_p * 4)(ctypes.cast(self._process, ctypes.c_void_p))
        session = LIBFUSE.fuse_session_new(operations, None)
        channel = LIBFUSE.fuse_chan_new(ctypes.addressof(ways), descriptor, 4096, self.windows.address)
        LIBFUSE.fuse_session_add_chan(ctypes.c_void_p(session), ctypes.c_void_p(channel))
        return ctypes.c_void_p(channel)

    def pipe(self) -> tuple[int, int]:
        ends = os.pipe()
        self.ends += ends
        return ends

    def receive(self, request: bytes) -> bytes:
        """What libfuse sees of a request."""
        out, into = self.pipe()
        os.write(into, request)
        return self.receive_from(out)

    def receive_from(self, descriptor: int) -> bytes:
        length, buffer = self._receive(descriptor)
        return buffer[:length]

    def _receive(self, descriptor: int) -> tuple[int, bytes]:
        channel = self.channel(descriptor)
        length = Receive(requests.receive.address)(ctypes.byref(channel), self.buffer, 8192)
        return length, self.buffer.raw

    def fails(self, descriptor: int) -> int:
        """What libfuse gets from a descriptor that gives no request."""
        return self._receive(descriptor)[0]

    def send(self, *parts: bytes) -> bytes:
        """What the kernel sees of an answer."""
        error, seen = self.answer(*parts)
        assert error == 0
        return seen

    def answer(self, *parts: bytes) -> tuple[int, bytes]:
        """What libfuse is told of its answer, and what the kernel sees."""
        out, into = self.pipe()
        os.set_blocking(out, False)
        kept = [ctypes.create_string_buffer(part, len(part)) for part in parts]
        given = (Part * len(parts))(*(Part(ctypes.addressof(each), len(each)) for each in kept))
        error = Send(requests.send.address)(self.channel(into), ctypes.byref(given), len(parts))
        try:
            return error, os.read(out, 8192)
        except BlockingIOError:
            return error, b""


def _copy(address: int, size: int) -> bytes:
    return ctypes.string_at(address, size)


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire()
    yield made
    for end in made.ends:
        os.close(end)


def request(operation: int, body: bytes = b"", node: int = NODE, unique: int = 77) -> bytes:
    header = struct.pack("=IIQQIIII", 40 + len(body), operation, unique, node, 1001, 1002, 1003, 0)
    return header + body


def header_of(data: bytes) -> tuple[int, ...]:
    """Operation, which request, inode, uid and gid."""
    _, operation, unique, node, uid, gid, pid, _ = struct.unpack_from("=IIQQIIII", data)
    assert pid == 1003
    return operation, unique, node, uid, gid


def entry(mode: int, mark: int, node: int = 9) -> bytes:
    """struct fuse_entry_out, remembered for a second and a half."""
    head = struct.pack("=QQQQII", node, 5, 1, 1, 500_000_000, 0)
    return head + struct.pack("=6Q10I", 99, 12, 1, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, mark, 4096, 0)


def answer(data: bytes, unique: int, error: int = 0) -> bytes:
    return struct.pack("=IiQ", 16 + len(data), error, unique)


@pytest.mark.parametrize("operation", [OPEN, GETATTR])
def test_open_and_getattr_tell_the_inode_and_its_version(wire: Wire, operation: int) -> None:
    seen = wire.receive(request(operation, bytes(16)))
    assert header_of(seen) == (operation, 77, 9, 0x1234567, 9)
    assert seen[40:] == bytes(16)


def test_other_requests_tell_no_version(wire: Wire) -> None:
    assert header_of(wire.receive(request(18, bytes(24)))) == (18, 77, 9, 0, 0)


def test_setting_an_attribute_tells_whose_it_is(wire: Wire) -> None:
    assert header_of(wire.receive(request(SETXATTR, bytes(24)))) == (SETXATTR, 77, 9, 1001, 1002)


@pytest.mark.parametrize(("flags", "for_pages"), [(0, True), (2, False), (3, False), (1, True)])
def test_reads_for_pages_are_marked(wire: Wire, flags: int, for_pages: bool) -> None:
    body = struct.pack("=QQIIQII", 4, 8192, 4096, flags, 0, 0, 0)
    seen = wire.receive(request(READ, body))
    handle, position, *rest = struct.unpack_from("=QQIIQII", seen, 40)
    assert (handle, *rest) == (4, 4096, flags, 0, 0, 0)
    assert position == 8192 | (requests.FOR_PAGES if for_pages else 0)


@pytest.mark.parametrize("operation", [LOOKUP, CREATE])
def test_an_interrupt_names_a_request_as_libfuse_knows_it_until_that_is_answered(
    wire: Wire, operation: int
) -> None:
    def named(unique: int) -> int:
        """By which number libfuse is told of the interrupt of a request."""
        seen = wire.receive(request(INTERRUPT, struct.pack("=Q", unique), unique=unique | 1))
        return int(struct.unpack_from("=Q", seen, 40)[0])

    known = header_of(wire.receive(request(operation, bytes(24), unique=80)))[1]
    assert known != 80
    wire.receive(request(18, bytes(24), unique=82))
    assert (named(80), named(82)) == (known, 82)
    # Another one with the same place does not push it out.
    other = 80 + 2 * NAMED
    wire.receive(request(operation, bytes(24), unique=other))
    assert (named(80), named(other)) == (known, other)
    assert wire.send(answer(b"", known, -errno.EINTR)) == answer(b"", 80, -errno.EINTR)
    assert named(80) == 80


def test_inodes_inside_requests_lose_their_versions(wire: Wire) -> None:
    seen = wire.receive(request(LINK, struct.pack("=Q", NODE) + b"name\0"))
    assert seen[40:] == struct.pack("=Q", 9) + b"name\0"
    forgotten = [NODE, 7, NODE + 1, 8, NODE + (5 << 32), 9]
    seen = wire.receive(request(BATCH_FORGET, struct.pack("=II6Q", 3, 0, *forgotten), node=0))
    assert struct.unpack_from("=II6Q", seen, 40) == (3, 0, 9, 7, 10, 8, 9, 9)


def test_a_count_beyond_the_request_is_not_believed(wire: Wire) -> None:
    seen = wire.receive(request(BATCH_FORGET, struct.pack("=II2Q", 1 << 31, 0, NODE, 1), node=0))
    assert struct.unpack_from("=II2Q", seen, 40) == (1 << 31, 0, 9, 1)
    for operation in (READ, LINK, BATCH_FORGET):
        assert header_of(wire.receive(request(operation)))[2] == 9


@pytest.mark.parametrize(
    ("mode", "mark", "node", "seconds"),
    [
        (stat.S_IFREG | 0o444, 0, 9, (1, 500_000_000)),
        (stat.S_IFREG | 0o444, 77, 77 << 32 | 9, (1, 500_000_000)),
        (stat.S_IFREG | 0o444, requests.FLEETING | 77, 77 << 32 | 9, (0, 0)),
        (stat.S_IFREG | 0o444, requests.VERSIONS, requests.VERSIONS << 32 | 9, (1, 500_000_000)),
        (stat.S_IFDIR | 0o755, 77, 9, (1, 500_000_000)),
        (stat.S_IFLNK | 0o777, 77, 9, (1, 500_000_000)),
    ],
)
def test_the_answer_to_a_lookup_has_the_version(
    wire: Wire, mode: int, mark: int, node: int, seconds: tuple[int, int]
) -> None:
    unique = header_of(wire.receive(request(LOOKUP, b"name\0")))[1]
    assert unique != 77
    data = entry(mode, mark)
    seen = wire.send(answer(data, unique), data)
    assert struct.unpack_from("=IiQ", seen) == (16 + 128, 0, 77)
    found, _, whole, _, rest, _ = struct.unpack_from("=QQQQII", seen, 16)
    assert (found, (whole, rest)) == (node, seconds)
    assert seen[16 + 40 : 16 + 116] == data[40:116]
    if stat.S_ISREG(mode):
        assert struct.unpack_from("=I", seen, 16 + 116) == (0,)


def test_other_answers_pass_unchanged(wire: Wire) -> None:
    """Also what looks like an entry: the bytes of a file may be any."""
    data = entry(stat.S_IFREG | 0o444, 77)
    assert wire.send(answer(data, 77), data) == answer(data, 77) + data
    assert wire.send(answer(b"", 77, -errno.EIO)) == answer(b"", 77, -errno.EIO)
    unique = header_of(wire.receive(request(LOOKUP, b"name\0")))[1]
    assert wire.send(answer(b"", unique, -errno.ENOENT)) == answer(b"", 77, -errno.ENOENT)
    # A notification answers nothing.
    assert wire.send(answer(data, 0, 2), data) == answer(data, 0, 2) + data


def rename(old: bytes, new: bytes, node: int = 9, directory: int = 10) -> bytes:
    return request(RENAME, struct.pack("=Q", directory) + old + b"\0" + new + b"\0", node)


def test_a_rename_waits_for_the_answer_to_a_look_at_its_new_name_which_is_then_taken_back(wire: Wire) -> None:
    asked = rename(b"from", b"name" * 60)
    seen = wire.receive(asked)
    assert struct.unpack_from("=II", seen) == (len(seen), LOOKUP)
    unique, node, uid, gid, nobody = struct.unpack_from("=QQIIi", seen, 8)
    assert (node, uid, gid, nobody, seen[40:]) == (10, 0, 0, requests.NOBODY, b"name" * 60 + b"\0")
    assert unique != 77
    data = entry(stat.S_IFDIR, 0)
    # ENOENT: libfuse forgets the look.
    assert wire.answer(answer(data, unique), data) == (-errno.ENOENT, b"")
    (given,) = wire.processed
    assert header_of(given) == (RENAME, 77, 9, 0, 0)
    assert given[40:] == asked[40:]


def test_a_rename_into_a_directory_that_is_gone_gets_the_error_of_the_look(wire: Wire) -> None:
    seen = wire.receive(rename(b"from", b"to"))
    (unique,) = struct.unpack_from("=Q", seen, 8)
    error, found = wire.answer(answer(b"", unique, -errno.ENOENT))
    assert (error, found, wire.processed) == (-errno.ENOENT, answer(b"", 77, -errno.ENOENT), [])


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (rename(b"name", b"name", 9, 9), 0),
        (rename(b"name", b"name")[:-1], -errno.EIO),
        (request(RENAME, struct.pack("=Q", 9) + b"name\0"), -errno.EIO),
        (rename(b"from", b"n" * 5000), -errno.EIO),
    ],
)
def test_a_rename_to_itself_and_one_without_an_end_are_answered_at_once(asked: bytes, error: int) -> None:
    """libfuse would wait for its own lock for ever."""
    wire = Wire()
    kernel, daemon = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with kernel, daemon:
        kernel.send(asked)
        kernel.send(request(GETATTR, bytes(16)))
        assert header_of(wire.receive_from(daemon.fileno()))[0] == GETATTR
        assert kernel.recv(100) == answer(b"", 77, error)


@pytest.mark.parametrize(
    "asked", [rename(b"name", b"name"), rename(b"name", b"names", 9, 9), rename(b"names", b"name", 9, 9)]
)
def test_a_rename_to_another_directory_or_a_similar_name_is_none_to_itself(wire: Wire, asked: bytes) -> None:
    assert struct.unpack_from("=I", wire.receive(asked), 4) == (LOOKUP,)


def init(flags: int) -> bytes:
    """struct fuse_init_in, as kernels of 7.36 and later send it."""
    return request(INIT, struct.pack("=IIII12I", 7, 36, 131072, flags, *[0] * 12), node=0)


def test_requests_of_a_mebibyte_are_accepted_where_the_kernel_offers_them(wire: Wire) -> None:
    seen = wire.receive(init(1 << 22 | 1 << 5))
    assert seen[40:] == init(1 << 22 | 1 << 5)[40:]
    # What libfuse 2 answers.
    data = struct.pack("=IIIIHHI", 7, 19, 131072, 1 << 5, 12, 9, 1 << 20)
    found = wire.send(answer(data, header_of(seen)[1]), data)
    assert struct.unpack_from("=IiQ", found) == (16 + 64, 0, 77)
    assert struct.unpack_from("=IIIIHHIIH", found, 16) == (
        7, 19, 131072, 1 << 5 | 1 << 22, 12, 9, 1 << 20, 0, (1 << 20) // mmap.PAGESIZE,
    )  # fmt: skip
    assert found[16 + 30 :] == bytes(34)
    refused = header_of(wire.receive(init(1 << 22)))[1]
    assert wire.send(answer(b"", refused, -errno.EPROTO)) == answer(b"", 77, -errno.EPROTO)


def test_an_older_kernel_is_answered_as_libfuse_does(wire: Wire) -> None:
    seen = wire.receive(init(1 << 5))
    assert header_of(seen)[1] == 77
    data = bytes(24)
    assert wire.send(answer(data, 77), data) == answer(data, 77) + data
    assert header_of(wire.receive(request(INIT, bytes(8), node=0)))[1] == 77


def test_errors_of_the_device(wire: Wire) -> None:
    out, into = wire.pipe()
    os.write(into, b"short")
    assert wire.fails(out) == -errno.EIO
    os.set_blocking(out, False)
    assert wire.fails(out) == -errno.EAGAIN
    assert wire.fails(into) == -errno.EBADF
