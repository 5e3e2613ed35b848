"""A small file system over a store, and its libfuse edge: what the daemon's tests mount.

    log      lines written here wait in the file system until the daemon has them flushed; then they are records of t-0
    follow   a read that never ends by itself
    metrics  what the daemon tells

Run as a program it is the command `topicfs` with this file system.
"""

from __future__ import annotations

import errno
import os
import signal
import stat
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import fuse

from topicfs.engine.jobs import LASTS, Job
from topicfs.engine.store.store import Store
from topicfs.mountd.cli import main
from topicfs.mountd.daemon import Assembly
from topicfs.mountd.metrics import Metrics
from topicfs.mountd.session import Session

LINGER_S = float(os.environ.get("STAND_IN_LINGER", "0.02"))
FILES = ("log", "follow", "metrics")


class StandIn:
    """The operations.

    _held  lines that were accepted, and are not in the log yet
    """

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self.store = store
        self.metrics = metrics
        self.partition = store.partition("t-0") if "t-0" in store else store.create("t")
        self._held = b""
        self._wake = threading.Condition()
        self._closed = False

    def jobs(self) -> list[Job]:
        return [] if self.store.read_only else [Job("linger", LASTS, self.flush_lingering, 0, "linger")]

    def flush_lingering(self) -> None:
        while not self._closed:
            with self._wake:
                self._wake.wait_for(lambda: self._held or self._closed)
                self._wake.wait_for(lambda: self._closed, LINGER_S)
                self._append()

    def end_commits(self) -> None:
        pass

    def close(self) -> None:
        with self._wake:
            self._closed = True
            self._append()
            self._wake.notify_all()

    def _append(self) -> None:
        if self._held:
            if self._held.startswith(b"panic"):
                self._held = b""
                raise RuntimeError("a mistake in the file system")
            self.partition.append_lines(self._held)
            self._held = b""

    def getattr(self, path: str) -> dict[str, int]:
        if path == "/":
            return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
        if path[1:] not in FILES:
            raise fuse.FuseOSError(errno.ENOENT)
        size = len(self.metrics.render()) if path == "/metrics" else 1 << 30
        return {"st_mode": stat.S_IFREG | 0o644, "st_nlink": 1, "st_size": size}

    def read(self, path: str, size: int, position: int) -> bytes:
        if path == "/metrics":
            return self.metrics.render()[position : position + size]
        if path == "/log":
            return b"".join(record.value + b"\n" for record in self.partition.records())[position:][:size]
        time.sleep(0.5)
        raise fuse.FuseOSError(errno.EINTR)

    def write(self, data: bytes) -> int:
        with self._wake:
            self._held += data
            self._wake.notify_all()
        self.metrics.counts.wrote(len(data))
        return len(data)


class Edge(fuse.Operations):
    """What fusepy calls."""

    use_ns = True

    def __init__(self, operations: StandIn, session: Session) -> None:
        self.operations = operations
        self.session = session

    def init(self, path: str) -> None:
        self.session.initialised()

    def destroy(self, path: str) -> None:
        self.session.destroyed()

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        return self.operations.getattr(path)

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *FILES]

    def open(self, path: str, flags: int) -> int:
        return 0

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        return 0

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return self.operations.read(path, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        return self.operations.write(data)


def serve(operations: StandIn, mount: Path, options: Mapping[str, str | bool], session: Session) -> None:
    """Mount, until unmounted."""
    fuse.FUSE(
        Edge(operations, session), str(mount), foreground=True, subtype="topicfs", direct_io=True, **options
    )


def build(store: Store, metrics: Metrics) -> StandIn:
    """The file system, or what STAND_IN_FAILS says in its place."""
    failure = os.environ.get("STAND_IN_FAILS")
    if failure == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if failure == "mistake":
        raise RuntimeError("a mistake in the file system")
    if failure is not None:
        raise OSError(failure)
    return StandIn(store, metrics)


def serve_slowly(
    operations: StandIn, mount: Path, options: Mapping[str, str | bool], session: Session
) -> None:
    """As `serve`, after STAND_IN_SERVING seconds, with one more of libfuse's options, STAND_IN_OPTION."""
    time.sleep(float(os.environ.get("STAND_IN_SERVING", "0")))
    more = dict.fromkeys(os.environ.get("STAND_IN_OPTION", "").split(), True)
    serve(operations, mount, {**options, **more}, session)


def open_slowly(opening: Callable[..., Store]) -> Callable[..., Store]:
    """Opens a store, after STAND_IN_OPENING seconds."""

    def slow(*arguments: Any, **named: Any) -> Store:
        time.sleep(float(os.environ.get("STAND_IN_OPENING", "0")))
        return opening(*arguments, **named)

    return slow


if __name__ == "__main__":
    Store.open = open_slowly(Store.open)
    main(obj=lambda: Assembly(build, serve_slowly))
