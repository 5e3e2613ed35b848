"""What passes between the kernel and libfuse: numbers of inodes are taken apart on the way in, and put together on the
way out. Requests and answers are built here as the kernel's headers state them, and go through pipes.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterator

import fuse
import pytest

from topicfs.fs.kernels import requests

LOOKUP, GETATTR, LINK, OPEN, READ, SETXATTR, BATCH_FORGET = 1, 3, 13, 14, 15, 21, 42
NODE = 0x1234567_00000009
"""Number 9 of libfuse, in a version."""

LIBFUSE = ctypes.CDLL(fuse._libfuse._name)
LIBFUSE.fuse_session_new.restype = ctypes.c_void_p
LIBFUSE.fuse_chan_new.restype = ctypes.c_void_p
LIBFUSE.fuse_chan_new.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p]


class Part(ctypes.Structure):
    """struct iovec."""

    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class Wire:
    """A channel whose two ends are pipes."""

    def __init__(self) -> None:
        self.ends: list[int] = []

    def channel(self, descriptor: int) -> ctypes.c_void_p:
        ways = (ctypes.c_void_p * 3)(requests.receive.address, requests.send.address, None)
        session = LIBFUSE.fuse_session_new((ctypes.c_void_p * 4)(), None)
        channel = LIBFUSE.fuse_chan_new(ctypes.addressof(ways), descriptor, 4096, None)
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
        length, buffer = self._receive(out)
        assert length == len(request)
        return buffer[:length]

    def _receive(self, descriptor: int) -> tuple[int, bytes]:
        buffer = ctypes.create_string_buffer(8192)
        function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
            requests.receive.address
        )
        channel = self.channel(descriptor)
        return function(ctypes.byref(channel), buffer, 8192), buffer.raw

    def fails(self, descriptor: int) -> int:
        """What libfuse gets from a descriptor that gives no request."""
        return self._receive(descriptor)[0]

    def send(self, *parts: bytes) -> bytes:
        """What the kernel sees of an answer."""
        out, into = self.pipe()
        kept = [ctypes.create_string_buffer(part, len(part)) for part in parts]
        given = (Part * len(parts))(*(Part(ctypes.addressof(each), len(each)) for each in kept))
        function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
            requests.send.address
        )
        assert function(self.channel(into), ctypes.byref(given), len(parts)) == 0
        return os.read(out, 8192)


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


def test_errors_of_the_device(wire: Wire) -> None:
    out, into = wire.pipe()
    os.write(into, b"short")
    assert wire.fails(out) == -errno.EIO
    os.set_blocking(out, False)
    assert wire.fails(out) == -errno.EAGAIN
    assert wire.fails(into) == -errno.EBADF
