"""The life of a mount's process, from opening the store to closing it.

    opening    the store is opened, which may mean recovering it; a signal ends the process as a crash would
    starting   libfuse mounts, until the mount answers
    serving    until a signal, or until somebody unmounts
    stopping   no more calls: what handles hold is appended, threads end, the store is closed

The main thread waits for what happens, and says what is next: `mountd/events.py`. The other threads: open, fuse and
libfuse's pool, ahead, linger, scheduler, flush, inboxes, views, sealed, cleaner-0 and on. A read-only mount has none of
those behind ahead: nothing is kept in shape.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final, Protocol

from topicfs.engine.files.metadata import CleanShutdown
from topicfs.engine.format.paths import LOGS, META_PROPERTIES
from topicfs.engine.jobs import Job, Jobs
from topicfs.engine.store.store import Store
from topicfs.mountd import mounts
from topicfs.mountd.cleaners import Cleaners
from topicfs.mountd.events import Events
from topicfs.mountd.logs import LevelCounter
from topicfs.mountd.malloc import keep_freed_blocks
from topicfs.mountd.metrics import Metrics
from topicfs.mountd.mounts import source_of
from topicfs.mountd.scheduler import Scheduler
from topicfs.mountd.session import Session
from topicfs.mountd.users import in_words, users_of

log = logging.getLogger(__name__)

# A signal while the store is being opened waits this long for a clean end, before it becomes a crash's.
_GRACE_S: Final = 2.0

# A call waits this long for the GIL while another thread runs Python: with the default of 5 ms, a stat beside a busy
# thread took 4 ms at the 99th percentile; with 1 ms 0.08 ms, with 0.2 ms 0.03 ms.
_SWITCH_S: Final = 0.0005


class StartError(Exception):
    """The mount cannot be had; the message says why."""


class Operations(Protocol):
    """What the daemon needs of the file system. The adapter needs more of it."""

    def jobs(self) -> list[Job]:
        """What is done beside the calls, as long as the mount is there. What lasts ends with `close`."""

    def end_commits(self) -> None:
        """The mount is about to go: begin no more commits of inboxes, and return when those that have begun are done
        and answered."""

    def close(self) -> None:
        """No call comes any more: append what open handles still hold, and have the jobs end."""


@dataclass(frozen=True, slots=True)
class MountOptions:
    """What the command line says.

    read_only    the kernel refuses every change, and nothing under the backing directory is changed by the daemon
    allow_other  users other than the daemon's may come in
    settings     daemon settings for this run, which outrank server.properties
    """

    read_only: bool = False
    allow_other: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)

    def fuse_options(self, backing: Path) -> dict[str, str | bool]:
        """What libfuse is told of them."""
        return {
            "fsname": source_of(backing),
            "ro": self.read_only,
            "allow_other": self.allow_other,
        }


@dataclass(frozen=True, slots=True)
class Assembly:
    """What a daemon is put together from; tests put in their own.

    build  makes the file system over a store; its counts go into the metrics
    serve  mounts it at a path with libfuse's options, answers until it is unmounted, and gives back control. It tells
           the session of libfuse's `init` and `destroy`, from its callbacks
    """

    build: Callable[[Store, Metrics], Operations]
    serve: Callable[[Any, Path, Mapping[str, str | bool], Session], None]


class _Happened(Enum):
    """What the main thread waits for, beside signals and ends of threads."""

    STARTED = "the kernel has asked for the first time"


class Daemon:
    """One mount's process.

    backing, mount  real paths
    report          told what start-up waits for, in words
    _events         signals, ends of threads: the one thing that the main thread waits for
    """

    def __init__(
        self,
        backing: Path,
        mount: Path,
        options: MountOptions,
        assembly: Assembly,
        logged: LevelCounter,
        report: Callable[[str], None],
        events: Events,
    ) -> None:
        self.backing = backing
        self.mount = mount
        self.report = report
        self._options = options
        self._assembly = assembly
        self._logged = logged
        self._events = events

    def run(self, ready: Callable[[], None]) -> int:
        """Serve the mount, in the main thread; `ready` is called when it answers. Gives the exit code: 0 after a
        clean stop. StartError, or what the engine and the system raise, where the mount cannot be had."""
        keep_freed_blocks()
        sys.setswitchinterval(_SWITCH_S)
        store = self._open()
        try:
            jobs = Jobs(store.upkeep.jobs(), store.clock, store.steady)
            cleaners = Cleaners(store)
            metrics = Metrics(store, jobs, self._logged.taken, cleaners)
            operations = self._assembly.build(store, metrics)
            jobs.add(operations.jobs())
            schedulers = [Scheduler(jobs, name) for name in jobs.threads()]
            for scheduler in schedulers:
                scheduler.start()
            if not store.read_only:
                cleaners.start()
            try:
                self._serve(operations, ready)
            finally:
                operations.close()
                cleaners.stop()
                for scheduler in schedulers:
                    scheduler.stop()
        finally:
            store.close()
        if store.read_only:
            log.info(f"{self.backing}: stopped, unchanged")
            return 0
        clean = CleanShutdown.of(store.logs).exists()
        log.info(f"{self.backing}: stopped {'cleanly' if clean else 'with errors; the next start recovers'}")
        return 0 if clean else 1

    # -- opening --------------------------------------------------------------------------------------

    def _open(self) -> Store:
        """The store; a signal meanwhile ends the process."""
        logs = self.backing / LOGS
        # What was made and never opened has no ids yet.
        clean = CleanShutdown.of(logs).exists() or not (logs / META_PROPERTIES).exists()
        self.report(
            f"opening {self.backing}"
            if clean or self._options.read_only
            else f"recovering {self.backing}, which was not stopped cleanly"
        )
        opening: Future[Store] = Future()
        threading.Thread(target=self._open_into, args=(opening,), name="open", daemon=True).start()
        event = self._events.wait()
        if event is opening:
            return opening.result()
        assert isinstance(event, signal.Signals)
        # A recovery can take minutes and has no way to be stopped. To break it off is what a crash does, and what the
        # next recovery is for.
        log.info(f"{event.name} while {self.backing} is being opened")
        try:
            store = opening.result(_GRACE_S)
        except TimeoutError:
            raise StartError(f"stopped by {event.name} while {self.backing} was being opened") from None
        store.close()
        raise StartError(f"stopped by {event.name} before anything was mounted")

    def _open_into(self, opening: Future[Store]) -> None:
        opening.add_done_callback(self._events.tell)
        try:
            options = self._options
            opening.set_result(Store.open(self.backing, options.settings, read_only=options.read_only))
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            opening.set_exception(error)

    # -- serving --------------------------------------------------------------------------------------

    def _serve(self, operations: Operations, ready: Callable[[], None]) -> None:
        """Mount, and return when the mount is gone."""
        self.report(f"mounting {self.mount}")
        before = self.mount.stat().st_dev

        def serve(session: Session) -> None:
            options = self._options.fuse_options(self.backing)
            self._assembly.serve(operations, self.mount, options, session)

        session = Session(serve, lambda: self._events.tell(_Happened.STARTED))
        session.ended.add_done_callback(self._events.tell)
        session.start()
        try:
            self._wait(session, before, ready)
            if not session.ended.done():
                operations.end_commits()
        finally:
            session.stop()
        error = session.ended.exception()
        if error is not None:
            raise StartError(f"{self.mount} could not be served: {error}") from error

    def _wait(self, session: Session, device_before: int, ready: Callable[[], None]) -> None:
        """Until a signal comes, or the mount is gone."""
        while True:
            event = self._events.wait()
            if event is session.ended:
                log.info(f"{self.mount}: unmounted")
                return
            if event is _Happened.STARTED:
                if self.mount.stat().st_dev == device_before:
                    # It was taken away at once: the session is about to end.
                    continue
                log.info(f"{self.backing} is mounted at {self.mount}, by process {os.getpid()}")
                ready()
            elif isinstance(event, signal.Signals):
                mount = mounts.find(self.mount)
                users = users_of(self.mount, mount.device) if mount is not None else []
                log.info(f"{event.name}: unmounting {self.mount}")
                if users:
                    # Whoever sends a signal has decided: a machine that goes down waits for nobody's open file.
                    log.info(f"{self.mount} is taken away from\n{in_words(users)}")
                return
