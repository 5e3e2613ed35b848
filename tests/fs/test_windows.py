"""Reads and flushes that are answered without Python: the kernel's requests go through a socket, as they would through
its device.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
from collections.abc import Iterator

import fuse
import numpy as np
import pytest

from topicfs.fs.fuse.windows import LARGEST, Windows
from topicfs.fs.kernels import requests
from topicfs.fs.kernels.windows import SETTLED, WINDOWS

READ, OTHER, FLUSH = 15, 18, 25
OWNED = 2
"""The flag of a read that is a program's, not one for pages."""

LIBFUSE = ctypes.CDLL(fuse._libfuse._name)
LIBFUSE.fuse_session_new.restype = ctypes.c_void_p
LIBFUSE.fuse_chan_new.restype = ctypes.c_void_p
LIBFUSE.fuse_chan_new.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p]


class Device:
    """A channel over one end of a socket; the other end is the kernel's."""

    def __init__(self, windows: Windows | None) -> None:
        self.kernel, self.end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ways = (ctypes.c_void_p * 3)(requests.receive.address, requests.send.address, None)
        session = LIBFUSE.fuse_session_new((ctypes.c_void_p * 4)(), None)
        address = None if windows is None else windows.address
        channel = LIBFUSE.fuse_chan_new(ctypes.addressof(self.ways), self.end.fileno(), 4096, address)
        LIBFUSE.fuse_session_add_chan(ctypes.c_void_p(session), ctypes.c_void_p(channel))
        self.channel = ctypes.c_void_p(channel)
        self.receive = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
            requests.receive.address
        )

    def passed(self) -> int:
        """Receive once. Which request libfuse gets to see; those before it are answered."""
        buffer = ctypes.create_string_buffer(8192)
        assert self.receive(ctypes.byref(self.channel), buffer, 8192) > 0
        return int(struct.unpack_from("=Q", buffer.raw, 8)[0])

    def close(self) -> None:
        self.kernel.close()
        self.end.close()


@pytest.fixture
def windows() -> Windows:
    return Windows()


@pytest.fixture
def device(windows: Windows) -> Iterator[Device]:
    made = Device(windows)
    yield made
    made.close()


def read_request(unique: int, handle: int, position: int, size: int, flags: int = OWNED) -> bytes:
    body = struct.pack("=QQIIQII", handle, position, size, flags, 0, 0, 0)
    return struct.pack("=IIQQIIII", 40 + len(body), READ, unique, 9, 1, 2, 3, 0) + body


def flush_request(unique: int, handle: int) -> bytes:
    body = struct.pack("=QIIQ", handle, 0, 0, 0)
    return struct.pack("=IIQQIIII", 40 + len(body), FLUSH, unique, 9, 1, 2, 3, 0) + body


def other_request(unique: int) -> bytes:
    return struct.pack("=IIQQIIII", 40, OTHER, unique, 9, 1, 2, 3, 0)


def some_bytes(size: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(os.urandom(size), np.uint8).copy()


def asked(device: Device, handle: int, position: int, size: int, flags: int = OWNED) -> bytes | None:
    """What a read gets from a window; None if libfuse gets to see it."""
    device.kernel.send(read_request(7, handle, position, size, flags))
    device.kernel.send(other_request(8))
    seen = device.passed()
    if seen == 7:
        assert device.passed() == 8
        return None
    answer = device.kernel.recv(1 << 20)
    assert struct.unpack_from("=IiQ", answer) == (len(answer), 0, 7)
    return answer[16:]


def test_a_read_in_a_window_is_answered_with_its_bytes(device: Device, windows: Windows) -> None:
    data = some_bytes(1000)
    windows.open(5, 4000, data, for_pages=False)
    for position, size in ((4000, 1000), (4000, 1), (4999, 1), (4321, 99)):
        assert asked(device, 5, position, size) == data[position - 4000 :][:size].tobytes()
    assert (windows.reads, windows.read_bytes) == (4, 1101)


def test_a_read_of_a_whole_file_is_answered_up_to_its_end_and_behind_it(
    device: Device, windows: Windows
) -> None:
    data = some_bytes(1000)
    windows.open_whole(5, data)
    for position, size in ((0, 4096), (0, 1), (999, 4096), (1000, 1), (5000, 4096), ((1 << 63) - 1, 4096)):
        assert asked(device, 5, position, size) == data[position : position + size].tobytes()
    for handle, position, flags in ((6, 0, OWNED), (5, 1 << 63, OWNED), (5, (1 << 64) - 1, OWNED), (5, 0, 0)):
        assert asked(device, handle, position, 4096, flags) is None
    windows.close(5)
    assert asked(device, 5, 0, 4096) is None


def test_an_empty_file_is_answered_with_no_bytes(device: Device, windows: Windows) -> None:
    windows.open_whole(5, some_bytes(0))
    assert asked(device, 5, 0, 4096) == b""


def test_a_small_file_takes_no_window_from_another_one(device: Device, windows: Windows) -> None:
    data = some_bytes(1000)
    windows.open(5, 0, data, for_pages=False)
    windows.open_whole(5 + WINDOWS, some_bytes(10))
    assert asked(device, 5, 0, 1000) == data.tobytes()
    assert asked(device, 5 + WINDOWS, 0, 10) is None
    windows.open(5 + WINDOWS, 0, data, for_pages=False)
    assert asked(device, 5 + WINDOWS, 0, 1001) is None


@pytest.mark.parametrize(
    ("handle", "position", "size"),
    [
        (5, 3999, 2),
        (5, 4999, 2),
        (5, 4000, 1001),
        (5, 5000, 1),
        (5, 0, 1),
        (5, 4000, 0),
        (5, (1 << 63) - 1, 4096),
        (5, 1 << 63, 4096),
        (5, (1 << 64) - 1, 4096),
        (5, 4000, (1 << 32) - 1),
        (6, 4000, 1),
        (5 + WINDOWS, 4000, 1),
        (0, 4000, 1),
        ((1 << 64) - 1, 4000, 1),
    ],
)
def test_any_other_read_is_libfuses(
    device: Device, windows: Windows, handle: int, position: int, size: int
) -> None:
    windows.open(5, 4000, some_bytes(1000), for_pages=True)
    assert asked(device, handle, position, size) is None
    assert windows.reads == 0


def test_a_read_that_is_cut_short_is_libfuses(device: Device, windows: Windows) -> None:
    windows.open(5, 0, some_bytes(1000), for_pages=True)
    device.kernel.send(read_request(7, 5, 0, 10)[:60])
    assert device.passed() == 7


def test_the_kernels_pages_are_filled_only_from_windows_that_say_so(device: Device, windows: Windows) -> None:
    data = some_bytes(1000)
    windows.open(5, 0, data, for_pages=False)
    assert asked(device, 5, 0, 10, flags=0) is None
    windows.open(5, 0, data, for_pages=True)
    assert asked(device, 5, 0, 10, flags=0) == data[:10].tobytes()


def test_a_window_can_be_moved_closed_and_taken_over(device: Device, windows: Windows) -> None:
    first, second, third = some_bytes(100), some_bytes(100), some_bytes(100)
    windows.open(5, 0, first, for_pages=False)
    windows.open(5, 100, second, for_pages=False)
    assert asked(device, 5, 0, 10) is None
    assert asked(device, 5, 100, 10) == second[:10].tobytes()
    windows.open(5 + WINDOWS, 0, third, for_pages=False)
    assert asked(device, 5, 100, 10) is None
    windows.close(5)
    assert asked(device, 5 + WINDOWS, 0, 10) == third[:10].tobytes()
    windows.close(5 + WINDOWS)
    assert asked(device, 5 + WINDOWS, 0, 10) is None


@pytest.mark.parametrize("handle", [5, 5 + SETTLED, 0, (1 << 64) - 1])
def test_a_flush_is_answered_only_for_a_settled_handle(device: Device, windows: Windows, handle: int) -> None:
    def is_answered() -> bool:
        device.kernel.send(flush_request(7, handle))
        device.kernel.send(other_request(8))
        if device.passed() == 7:
            assert device.passed() == 8
            return False
        assert device.kernel.recv(1 << 20) == struct.pack("=IiQ", 16, 0, 7)
        return True

    assert not is_answered()
    windows.settle(5, True)
    assert is_answered() == (handle == 5)
    windows.settle(5 + SETTLED, False)  # it does not have the place
    assert is_answered() == (handle == 5)
    windows.settle(5, False)
    assert not is_answered()


def test_a_settled_handle_leaves_its_place_to_another(device: Device, windows: Windows) -> None:
    windows.settle(5, True)
    windows.settle(5 + SETTLED, True)
    device.kernel.send(flush_request(7, 5))
    assert device.passed() == 7
    windows.settle(5, False)
    device.kernel.send(flush_request(9, 5 + SETTLED))
    device.kernel.send(other_request(8))
    assert device.passed() == 8


def test_a_window_is_never_so_large_that_idle_files_fill_the_memory(device: Device, windows: Windows) -> None:
    windows.open(5, 0, some_bytes(1000), for_pages=False)
    windows.open(5, 0, np.zeros(LARGEST, np.uint8), for_pages=False)
    assert asked(device, 5, 0, 10) == bytes(10)
    windows.open(5, 0, np.zeros(LARGEST + 1, np.uint8), for_pages=False)
    assert asked(device, 5, 0, 10) is None


def test_nothing_is_answered_on_a_mount_without_windows() -> None:
    device = Device(None)
    try:
        assert asked(device, 5, 0, 10) is None
        device.kernel.send(flush_request(7, 5))
        assert device.passed() == 7
    finally:
        device.close()


def test_whoever_closes_a_window_waits_until_nobody_reads_its_memory(
    device: Device, windows: Windows
) -> None:
    device.end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    windows.open(5, 0, some_bytes(1 << 16), for_pages=False)
    count = 64
    device.kernel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    for unique in range(count):
        device.kernel.send(read_request(100 + unique, 5, 0, 1000))
    device.kernel.send(other_request(8))
    reader = threading.Thread(target=device.passed)
    reader.start()
    while windows.reads == 0:
        pass
    before = -1
    while before != windows.reads:  # until it is stuck: the socket is full
        before = windows.reads
        threading.Event().wait(0.1)
    assert before < count
    closer = threading.Thread(target=windows.close, args=(5,))
    closer.start()
    closer.join(0.2)
    assert closer.is_alive()
    for _ in range(before + 1):
        device.kernel.recv(1 << 20)
    closer.join(60)
    assert not closer.is_alive()
    # What was answered before the window was closed is whole; the others are libfuse's.
    assert windows.reads >= before
    device.kernel.close()
    reader.join(60)
    assert not reader.is_alive()
