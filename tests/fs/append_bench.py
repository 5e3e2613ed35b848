"""Writers of one partition's files, called directly, and disks that are full or broken."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
from tree_bench import APPEND, TreeBench, array

from topicfs.engine.segment import appender
from topicfs.fs.appending.handle import AppendHandle
from topicfs.fs.appending.targets import PartitionTarget


def writer(place: TreeBench, name: str = "log.txt", batch_size: int | None = None) -> AppendHandle:
    views = place.views()
    fmt = place.entry(f"/t-0/{name}").format  # type: ignore[attr-defined]
    size = place.files.context.batch_size if batch_size is None else batch_size
    unfinished = place.files.context.holdings.unfinished_bytes
    made = AppendHandle.open(PartitionTarget(views.writers, fmt, size), APPEND, unfinished)
    told, flush = [made.is_settled], made.flush
    made.settle = told.append

    def checked_flush() -> None:
        """What was told last is true; and where it says that there is nothing to do, nothing is done."""
        assert made.is_settled or not told[-1]
        waiting = views.writers.queue.holds_lines or made.holds_tail
        flush()
        assert not (told[-1] and waiting)

    made.flush = checked_flush  # type: ignore[method-assign]
    return made


FIRST = {
    "log.txt": b"first\n",
    "log.tsv": b"k\tfirst\n",
    "log.jsonl": b'{"key":"k","value":"first"}\n',
}


def busy_writer(place: TreeBench, name: str = "log.txt") -> AppendHandle:
    """One whose next lines gather: its first line, with the value `first`, was appended just now."""
    made = writer(place, name)
    made.write(array(FIRST[name]))
    assert not place.views().writers.queue.holds_lines
    return made


def values(place: TreeBench) -> list[bytes | None]:
    return [record.value for record in place.views().partition.records()]


@contextmanager
def full_disk() -> Iterator[None]:
    """No block is free: only what was allocated before can be written."""
    write = appender.write_exactly
    ends: dict[int, int] = {}

    def write_where_there_is_room(fd: int, position: int, data: memoryview) -> None:
        now = os.fstat(fd)
        allocated = now.st_blocks * 512
        # A block that is begun has room too: it is not counted, so that what fits does not depend on chance.
        end = ends.setdefault(now.st_ino, allocated if allocated >= now.st_size + 8192 else now.st_size)
        if position + len(data) > end:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(fd, position, data)

    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with (
        mock.patch.object(appender, "write_exactly", write_where_there_is_room),
        mock.patch.object(appender, "allocate", side_effect=full),
    ):
        yield


@contextmanager
def broken_disk() -> Iterator[None]:
    """Nothing can be written."""
    broken = OSError(errno.EIO, os.strerror(errno.EIO))
    with mock.patch.object(appender, "write_exactly", side_effect=broken):
        yield


def refused(call) -> int:  # type: ignore[no-untyped-def]
    with pytest.raises(OSError) as caught:  # noqa: PT011 - its errno is given
        call()
    assert caught.value.errno is not None
    return caught.value.errno
