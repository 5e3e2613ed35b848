"""Reading and replacing small files of the store: a file is read up to a size limit, and replaced atomically.

A replacement goes through `<name>.tmp`: write, fsync, rename, fsync of the directory. After a crash the file has
the old or the new content, never a mixture. A `.tmp` file that is left behind can be removed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from topicfs.engine.errors import CorruptCheckpointError
from topicfs.engine.files.regular import check_regular, open_regular, read_regular
from topicfs.engine.format.paths import TEMPORARY_SUFFIX


@contextlib.contextmanager
def replacing(path: Path, durable: bool = True, temporary: str = TEMPORARY_SUFFIX) -> Iterator[int]:
    """Give the descriptor of an empty file, which takes the place of the file when the block is done. With `durable` it
    is on disk then. An error keeps the old content; only after one of the last fsync, of the directory, the file has
    the new one. Where several may replace a file at once, each needs a suffix `temporary` of its own. NotRegularError
    where there is a device or a FIFO: it is not a file that can be replaced."""
    check_regular(path, follow=True)
    beside = path.with_name(path.name + temporary)
    try:
        descriptor = open_regular(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            yield descriptor
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        beside.replace(path)
    except BaseException:
        # The half-written file takes room, which a full disk needs.
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    if durable:
        sync_directory(path.parent)


def write_atomically(path: Path, data: bytes | bytearray | memoryview, durable: bool = True) -> None:
    """Replace the file's content, as `replacing` does."""
    with replacing(path, durable) as descriptor:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]


def sync_file(path: Path | str) -> None:
    """fsync a file that nobody in this process has open for writing."""
    descriptor = open_regular(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(directory: Path) -> None:
    """Make the directory's entries durable: names created, renamed and removed in it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(directory: Path) -> None:
    """Make a directory, and those above it, where they are missing, durably: what is in it would be lost with it."""
    if not directory.is_dir():
        make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)


def read_bounded(path: Path, limit: int, follow: bool = False) -> bytes:
    """Return the file's bytes; CorruptCheckpointError if they exceed `limit`. With `follow` it may be a link."""
    with read_regular(path, follow) as file:
        # `read` makes its buffer before it reads anything: ask for no more bytes than the file has.
        data = file.read(min(limit, os.fstat(file.fileno()).st_size) + 1)
    if len(data) > limit:
        raise CorruptCheckpointError(f"{path}: expected at most {limit} bytes, found {path.stat().st_size}")
    return data
