"""Small files of the store: read whole up to a bound, replaced whole or not at all.

A replacement goes through `<name>.tmp`: write, fsync, rename, fsync of the directory. After a crash the
old or the new content is there, never a mixture; a `.tmp` file left behind holds nothing of worth.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from topicfs.engine.errors import CorruptCheckpointError
from topicfs.engine.files.regular import read_regular, write_regular
from topicfs.engine.format.paths import TEMPORARY_SUFFIX


def write_atomically(path: Path, data: bytes | bytearray, sync: bool = True) -> None:
    """Replace the file's content. On an error the old content stays. Durable when it returns, unless not to `sync`."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        write_regular(temporary, data, sync)
        temporary.replace(path)
    except OSError:
        # A disk that is full stays full as long as the half-written file is there.
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if sync:
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make the directory's entries durable: names created, renamed and removed in it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_bounded(path: Path, limit: int, follow: bool = False) -> bytes:
    """The file's bytes; CorruptCheckpointError when there are more than `limit`. With `follow` it may be a link."""
    with read_regular(path, follow) as file:
        # No more than the file has: the buffer is made before anything is read.
        data = file.read(min(limit, os.fstat(file.fileno()).st_size) + 1)
    if len(data) > limit:
        raise CorruptCheckpointError(f"{path}: expected at most {limit} bytes, found {path.stat().st_size}")
    return data
