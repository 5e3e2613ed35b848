"""What libfuse 2 alone dies of, or waits for ever: renames over what it has forgotten in part, and directories that are
found by handles. On real mounts of a small file system."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Mount, missing, mounted
from memory_files import Passing, Small

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    with mounted(Passing, tmp_path, entry_timeout="0") as mount:
        yield mount


def test_a_directory_that_is_forgotten_before_its_file_does_not_end_the_mount_when_its_name_is_renamed_to(
    mount: Mount,
) -> None:
    (mount / "a").mkdir()
    file = os.open(mount / "a/held", os.O_CREAT | os.O_WRONLY, 0o600)
    (mount / "a").rename(mount / "b")
    # The kernel keeps the file until its release has ended, and the directory only until it looks again.
    os.close(file)
    assert not (mount / "b").exists()
    time.sleep(0.1)
    (mount / "a").mkdir()
    (mount / "a").rename(mount / "b")
    assert not (mount / "a").exists()
    assert mount.process.is_alive()


def test_a_name_that_is_renamed_to_itself_stays_though_each_look_finds_another_file(mount: Mount) -> None:
    (mount / "file").write_bytes(b"x")
    (mount / "file").rename(mount / "file")
    assert (mount / "file").read_bytes() == b"x"


def test_a_rename_gives_the_errors_of_the_file_system(mount: Mount) -> None:
    with pytest.raises(FileNotFoundError):
        (mount / "missing").rename(mount / "b")
    (mount / "a").mkdir()
    with pytest.raises(FileNotFoundError):
        (mount / "a").rename(mount / "c/b")


class Handle(ctypes.Structure):
    """struct file_handle."""

    _fields_ = [("length", ctypes.c_uint32), ("kind", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may open files by handles")
def test_files_are_not_looked_up_by_handles_that_anybody_can_invent(tmp_path: Path) -> None:
    system, number = ctypes.CDLL(None, use_errno=True), ctypes.c_int()
    with mounted(Small, tmp_path) as mount:
        directory = mount / "directory"
        directory.mkdir()
        handle = Handle(128)
        assert (
            system.name_to_handle_at(-100, bytes(directory), ctypes.byref(handle), ctypes.byref(number), 0)
            == 0
        )
        version, node, generation = struct.unpack_from("=III", handle.data)
        assert (handle.length, version) == (12, 0)
        # An inode that the kernel does not have in its cache.
        struct.pack_into("=III", handle.data, 0, 5, node, generation)
        before = _looks(mount)
        root = os.open(mount.path, os.O_RDONLY)
        try:
            assert system.open_by_handle_at(root, ctypes.byref(handle), os.O_RDONLY) == -1
            assert ctypes.get_errno() == errno.ESTALE
        finally:
            os.close(root)
        assert _looks(mount) == before


def _looks(mount: Mount) -> int:
    return (mount / "calls").read_text().splitlines().count("getattr /directory None")
