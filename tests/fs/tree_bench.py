"""A store with the file system over it, called directly; small segments, a clock that is moved by hand."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from memory_view_cache import MemoryViewCache
from partition_opening import NOW, Clock, without_fsync

from topicfs import Store
from topicfs.engine.partition.cutting import retire
from topicfs.engine.partition.partition import Partition
from topicfs.fs.entry import Entry
from topicfs.fs.formats import Format
from topicfs.fs.operations import FileSystem
from topicfs.fs.views.partition_views import PartitionViews
from topicfs.fs.views.view import View

APPEND = os.O_WRONLY | os.O_APPEND
BATCH_SIZE, LINGER_MS = 1 << 20, 5


class TreeBench:
    """Everything that a test of the file system needs."""

    def __init__(self, place: Path, **settings: str) -> None:
        self.clock = Clock(NOW)
        self.place = place
        self.view_cache = MemoryViewCache()
        # Paths lead to views themselves: there is no kernel here that would follow links.
        settings.setdefault("list_all_views", "true")
        self.settings = {name.replace("_", "."): value for name, value in settings.items()}
        self.open()

    def open(self) -> None:
        self.store = Store.open(self.place, self.settings, self.clock, create=True)
        self.files = FileSystem(self.store, self.view_cache)
        self.files.context.batch_size = BATCH_SIZE
        assert self.files.context.linger.linger_ms == LINGER_MS

    def reopen(self) -> None:
        """As a mount that goes and comes again."""
        self.files.close_all()
        self.store.close()
        self.open()

    def create(self, topic: str = "t", number: int = 0, **settings: object) -> PartitionViews:
        """A new partition, as it is shown."""
        named = {name.replace("_", "."): str(value) for name, value in settings.items()}
        self.store.create(topic, number, named or None)
        return self.views(topic, number)

    def views(self, topic: str = "t", number: int = 0) -> PartitionViews:
        return self.files.context.views(topic, number)

    def entry(self, path: str) -> Entry:
        return self.files._entry(path)

    def append(self, path: str, data: bytes) -> None:
        """As `>>` does it."""
        handle = self.files.open(path, APPEND).handle
        assert self.files.write(handle, array(data)) == len(data)
        self.files.flush(handle)
        self.files.release(handle)

    def delete(self, path: str) -> None:
        """A partition or a topic with its records, as `topicfs delete` does it."""
        parent, _, name = path.rpartition("/")
        self.files.setxattr(parent or "/", "user.topicfs.delete", name.encode(), 0)

    def read(self, path: str) -> bytes:
        """As `cat` does it, and its size is what there is."""
        size = self.files.getattr(path, None).size
        handle = self.files.open(path, os.O_RDONLY).handle
        found = whole(lambda position, into: self.files.read(handle, position, into))
        self.files.release(handle)
        assert len(found) == size
        return found


def array(data: bytes) -> np.ndarray:  # type: ignore[type-arg]
    return np.frombuffer(data, np.uint8)


def whole(read, chunk: int = 1000) -> bytes:  # type: ignore[no-untyped-def]
    """All that a read gives, in pieces of a size."""
    found = b""
    while True:
        into = np.zeros(chunk, np.uint8)
        done = read(len(found), into)
        if not done:
            return found
        found += into[:done].tobytes()


def view_of(view: View) -> bytes:
    """All of a view, whose size it is."""
    found = whole(view.read)
    assert view.size() == len(found)
    return found


def lines(partition: Partition, *values: bytes) -> None:
    """Records of these values, a batch each."""
    for value in values:
        partition.append_lines(value + b"\n")


def remove_below(partition: Partition, offset: int) -> None:
    """What retention does."""
    log = partition.log
    log.raise_start_offset(offset)
    with log.lock:
        segments = log.chain.segments
        gone = []
        for segment in segments.non_active:
            following = segments.higher(segment.base_offset)
            if following is not None and following.base_offset <= offset:
                gone.append(segment)
        retire(log, gone)


@contextmanager
def tree_bench(place: Path, **settings: str) -> Iterator[TreeBench]:
    """Closed at the end."""
    with without_fsync():
        made = TreeBench(place, **settings)
        yield made
        made.files.close_all()
        made.store.close()


ALL = list(Format)
