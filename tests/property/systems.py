"""The three systems that are compared with one model: the engine, the operations object, and a real mount.

Each has a hand, which does inside of it what no file operation does (create, roll, transactions, raise the start
offset, move the clock), and the latter two have files. In a mount's process the hand is asked through a socket.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

import numpy as np
from harness import Mount, mounted
from memory_view_cache import MemoryViewCache
from partition_opening import NOW, Clock, without_fsync
from patience import PATIENCE_S

from topicfs import Record, Store
from topicfs.engine.partition.cutting import retire
from topicfs.engine.partition.partition import Partition, Producer
from topicfs.fs import errors
from topicfs.fs.appending import partition_writers
from topicfs.fs.formats import FORMATS
from topicfs.fs.kernels.windows import SETTLED, WINDOWS
from topicfs.fs.operations import FileSystem
from topicfs.fs.views import rendered_segment as text
from topicfs.fs.views import rendered_segments as rendered
from topicfs.fs.views import size_map as sizemap
from topicfs.mountd.view_cache import DirectoryViewCache

SETTINGS = {"list.all.views": "true"}
"""Called directly, no kernel follows links."""

FSYNC = os.fsync
"""The real one: the stores here do without, the mount is told."""

SMALL = {
    (partition_writers, "CLOSE_GRACE"): 0.01,
    (sizemap, "GRAIN"): 150,
    (text, "BLOCK"): 400,
    (rendered, "_READ_AT_ONCE"): 1,
}
"""Readers wait briefly for closes, of which no step here leaves one unfinished; and a log of some hundred bytes has
several marks and blocks. What was rendered is soon forgotten, else it would stand in for a segment that is gone."""


class Hand:
    """What is done inside of a system."""

    def __init__(self, store: Store, clock: Clock, files: FileSystem | None = None) -> None:
        self.store = store
        self.clock = clock
        self.files = files

    def create(self, topic: str, partitions: int, overrides: dict[str, str], batch_size: int) -> None:
        self.clock.ms = NOW
        self.store.create_topic(topic, partitions, overrides)
        if self.files is not None:
            self.files.context.batch_size = batch_size

    def delete(self, topic: str) -> None:
        """The topic with all its files."""
        delete = self.store.delete_topic if self.files is None else self.files.context.delete
        delete(topic)
        self.store.upkeep.remove_due(2**62)

    def set_clock(self, ms: int) -> None:
        self.clock.ms = ms

    def partition(self, name: str) -> Partition:
        return self.store.partition(name)

    def append(self, name: str, records: list[Record], producer: Producer | None) -> tuple[int, int]:
        appended = self.partition(name).append(records, producer)
        return appended.first_offset, appended.last_offset

    def end(self, name: str, producer: int, commit: bool) -> int:
        return self.partition(name).end_transaction(producer, 0, commit).first_offset

    def roll(self, name: str) -> None:
        self.partition(name).roll()

    def raise_start(self, name: str, offset: int, remove: bool) -> None:
        if self.files is not None:
            topic, _, number = name.rpartition("-")
            self.files.context.views(topic, int(number)).rendered.keep_for_readers()
        log = self.partition(name).log
        log.raise_start_offset(offset)
        if remove:
            with log.lock:
                segments = log.chain.segments
                retire(
                    log,
                    [s for s in segments.non_active if segments.higher(s.base_offset).base_offset <= offset],  # type: ignore[union-attr]
                )
            log.remove_due(self.clock())

    def bases(self, name: str) -> list[int]:
        return [segment.base_offset for segment in self.partition(name).log.chain.segments]

    def offsets(self, name: str) -> tuple[int, int, int]:
        now = self.partition(name).offsets
        return now.start, now.stable, now.end

    def records(self, name: str) -> list[Record]:
        return list(self.partition(name).records())

    def keep_maps(self) -> None:
        if self.files is not None:
            self.files.keep_maps()

    def holds_log(self, name: str, suffix: str) -> bool:
        """Whether somebody has the whole log open."""
        assert self.files is not None
        topic, _, number = name.rpartition("-")
        return bool(self.files.context.views(topic, int(number)).shared_log._views.get(FORMATS[suffix]))

    def writers(self) -> int:
        if self.files is None:
            return 0
        looked_at = self.files.context.looked_at()
        return len({handle for views in looked_at for handle in views.writers.handles})


class Files(Protocol):
    """The file operations, with errors as negative numbers."""

    def open(self, path: str, flags: int) -> int: ...
    def write(self, handle: int, data: bytes) -> int: ...
    def read(self, handle: int, position: int, length: int) -> bytes: ...
    def flush(self, handle: int) -> None: ...
    def sync(self, handle: int) -> None: ...
    def close(self, handle: int) -> None: ...
    def size(self, path: str) -> int: ...
    def names(self, path: str) -> list[str]: ...


class Engine:
    """A store by itself."""

    name = "engine"
    files: Files | None = None

    def __init__(self, place: Path) -> None:
        self.place = place
        self.clock = Clock()
        self.hand: Any = Hand(Store.open(place, SETTINGS, clock=self.clock, create=True), self.clock)

    def remount(self) -> None:
        self.hand.store.close()
        self.hand = Hand(Store.open(self.place, SETTINGS, clock=self.clock, create=True), self.clock)

    def stop(self) -> None:
        self.hand.store.close()


class Called:
    """The operations object's files."""

    def __init__(self, made: FileSystem) -> None:
        self.made = made

    def _told(self, call: Callable[[], int]) -> int:
        try:
            return call()
        except Exception as error:
            found = errors.answer(error)
            if found.loudness is errors.Loudness.UNKNOWN:
                raise
            return -found.errno

    def open(self, path: str, flags: int) -> int:
        return self._told(lambda: self.made.open(path, flags).handle)

    def write(self, handle: int, data: bytes) -> int:
        return self._told(lambda: self.made.write(handle, np.frombuffer(data, np.uint8)))

    def read(self, handle: int, position: int, length: int) -> bytes:
        answered = self._answered(handle, position, length)
        into = np.full(length, 0xA5, np.uint8)
        done = self._told(lambda: self.made.read(handle, position, into))
        if answered is not None and done < 0:
            return answered  # what was read past and then removed is still in memory: the model looks at it
        assert answered is None or into[:done].tobytes() == answered
        if done < 0:
            raise OSError(-done, os.strerror(-done))
        assert (into[done:] == 0xA5).all()
        return into[:done].tobytes()

    def _answered(self, handle: int, position: int, length: int) -> bytes | None:
        """What a read gets without a call of `read`; None if it is called."""
        kept, data = self.made.windows._kept.get(handle % WINDOWS, (0, np.empty(0, np.uint8)))
        start = position - int(self.made.windows._table[1 + handle % WINDOWS, 2])
        return (
            data[start : start + length].tobytes()
            if kept == handle and 0 <= start <= data.size - length
            else None
        )

    def flush(self, handle: int) -> None:
        # That of a settled handle is answered without a call.
        if self.made.windows._settled[handle % SETTLED] != handle:
            self.made.flush(handle)

    def sync(self, handle: int) -> None:
        self.made.fsync(handle, False)

    def close(self, handle: int) -> None:
        self.flush(handle)
        self.made.release(handle)

    def size(self, path: str) -> int:
        return self._told(lambda: self.made.getattr(path, None).size)

    def names(self, path: str) -> list[str]:
        return list(self.made.readdir(path))


class Operations(Engine):
    """The operations object, called directly."""

    name = "operations"

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.view_cache = MemoryViewCache()
        self._make()

    def _make(self) -> None:
        made = FileSystem(self.hand.store, self.view_cache)
        made.context.batch_size, made.context.linger.linger_ms = 1 << 20, 60_000
        self.hand.files = made
        self.files = Called(made)

    def remount(self) -> None:
        before = self.hand.files
        before.close_all()
        super().remount()
        self._make()
        self.hand.files.context.batch_size = before.context.batch_size


# -- the mount ----------------------------------------------------------------------------------------------


class ServedFileSystem(FileSystem):
    """In the mount's process: with a hand that listens, and an end."""

    def initialised(self) -> None:
        """Nothing begins."""

    def destroyed(self) -> None:
        self.close_all()
        self.context.store.close()


def serve(backing: Path, socket: Path, batch_size: int, ms: int) -> FileSystem:
    """Made in the mount's process."""
    for (module, name), value in SMALL.items():
        mock.patch.object(module, name, value).start()
    mock.patch("os.fsync").start()
    clock = Clock(ms)
    store = Store.open(backing, clock=clock, create=True)
    made = ServedFileSystem(store, DirectoryViewCache(backing / "views"))
    made.context.batch_size, made.context.linger.linger_ms = batch_size, 60_000
    listener = Listener(str(socket))
    threading.Thread(
        target=_listen, args=(Hand(store, clock, made), listener), name="hand", daemon=True
    ).start()
    return made


def _listen(hand: Hand, listener: Listener) -> None:
    with listener.accept() as connection:
        while True:
            try:
                name, arguments = connection.recv()
            except EOFError:
                return
            try:
                connection.send((getattr(hand, name)(*arguments), None))
            except Exception as error:  # noqa: BLE001 - the test raises it
                connection.send((None, error))


class Asked:
    """A hand in another process."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def ask(*arguments: object) -> Any:
            self.connection.send((name, arguments))
            assert self.connection.poll(PATIENCE_S), f"no answer to {name} in {PATIENCE_S} s"
            answer, error = self.connection.recv()
            if error is not None:
                raise error
            return answer

        return ask


class Descriptors:
    """The files of a mount, by system calls."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)

    def open(self, path: str, flags: int) -> int:
        try:
            return os.open(self.root + path, flags)
        except OSError as error:
            return -(error.errno or errno.EIO)

    def write(self, handle: int, data: bytes) -> int:
        try:
            return os.write(handle, data)
        except OSError as error:
            return -(error.errno or errno.EIO)

    def read(self, handle: int, position: int, length: int) -> bytes:
        return os.pread(handle, length, position)

    def flush(self, handle: int) -> None:
        os.close(os.dup(handle))

    def sync(self, handle: int) -> None:
        FSYNC(handle)

    def close(self, handle: int) -> None:
        os.close(handle)

    def size(self, path: str) -> int:
        try:
            return os.stat(self.root + path).st_size
        except OSError as error:
            return -(error.errno or errno.EIO)

    def names(self, path: str) -> list[str]:
        return os.listdir(self.root + path)


class Mounted:
    """A real mount, and the hand in its process."""

    name = "mount"
    files: Files

    def __init__(self, place: Path) -> None:
        self.place = place
        self.batch_size = 1 << 20
        self.ms = NOW
        self.mounts = 0
        self._stack = ExitStack()
        self._start()

    def _start(self) -> None:
        self.mounts += 1
        socket = self.place / f"hand-{self.mounts}"
        make = partial(serve, self.place / "backing", socket, self.batch_size, self.ms)
        (self.place / "backing").mkdir(exist_ok=True)
        mount = self._stack.enter_context(mounted(make, self.place, limit_s=300.0))
        self._stack.callback(self._expect, mount)
        connection = self._stack.enter_context(Client(str(socket)))
        self.hand: Any = Asked(connection)
        self.files = Descriptors(mount.path)

    @staticmethod
    def _expect(mount: Mount) -> None:
        """Readers were told that something is gone; whether it may be, the test looks at."""
        for words in ("was read past, then removed", "was deleted or closed"):
            if words in mount.said():
                mount.expect(words)

    def remount(self) -> None:
        self._stack.close()
        self._start()

    def stop(self) -> None:
        self._stack.close()

    def await_writers(self, count: int) -> None:
        """Until so many are open: a last close is followed by its release, which nobody waits for."""
        _await(lambda: self.hand.writers() == count)

    def await_logs(self, name: str, suffix: str) -> None:
        """Until nobody has the whole log open."""
        _await(lambda: not self.hand.holds_log(name, suffix))


def _await(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "a file that was closed is still open"
        time.sleep(0.001)


@contextmanager
def running(place: Path, with_mount: bool) -> Iterator[list[Any]]:
    """The systems, stopped at the end."""
    kinds: list[type] = [Engine, Operations, *([Mounted] if with_mount else [])]
    with without_fsync(), ExitStack() as stack:
        for (module, name), value in SMALL.items():
            stack.enter_context(mock.patch.object(module, name, value))
        systems = []
        for kind in kinds:
            (place / kind.__name__).mkdir()
            systems.append(kind(place / kind.__name__))
            stack.callback(systems[-1].stop)
        yield systems
