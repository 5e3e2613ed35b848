"""The life of a mount's process, from opening the store to closing it.

    opening    the store is opened, perhaps after recovery; a signal ends the process as a crash would
    starting   libfuse mounts, until the mount answers
    serving    until a signal comes, or the mount is unmounted
    stopping   no more calls: what handles hold is appended, threads end, the store is closed

The main thread waits for events, and decides what comes next: see `mountd/events.py`. The other threads are: open, fuse
and libfuse's pool, ahead, linger, scheduler, flush, inboxes, views, sealed, cleaner-0 and on; with a link to a Kafka
cluster also link, link-<node> for each broker, and link-group with a group. A read-only mount has none of those after
ahead, as it has no upkeep; it has following and maps.
"""

from __future__ import annotations

import importlib.util
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
from typing import TYPE_CHECKING, Any, Final, Protocol

from topicfs.engine.files.metadata import CleanShutdown
from topicfs.engine.format.paths import LOGS, META_PROPERTIES
from topicfs.engine.jobs import Job, Jobs
from topicfs.engine.kernels.compile import load_all
from topicfs.engine.store.store import Store
from topicfs.mountd import mounts
from topicfs.mountd.cleaners import Cleaners
from topicfs.mountd.events import Events
from topicfs.mountd.logs import LevelCounter
from topicfs.mountd.memory import keep_freed_blocks, put_compiler_away
from topicfs.mountd.metrics import Metrics
from topicfs.mountd.mounts import source_of
from topicfs.mountd.scheduler import Scheduler
from topicfs.mountd.service import STOPPING, Service
from topicfs.mountd.session import Session
from topicfs.mountd.users import in_words, users_of

if TYPE_CHECKING:
    from topicfs.mountd.link import Link

log = logging.getLogger(__name__)

# A signal while the store is being opened allows this much time for a clean end. Then the process ends as in a crash.
_GRACE_S: Final = 2.0

# A call waits this long for the GIL while another thread runs Python. With the default of 5 ms, a stat beside a busy
# thread took 4 ms at the 99th percentile; with 1 ms it took 0.08 ms, with 0.2 ms 0.03 ms.
_SWITCH_S: Final = 0.0005


class StartError(Exception):
    """The mount could not be made; the message says why."""


class Operations(Protocol):
    """What the daemon needs of the file system. The adapter needs more."""

    def jobs(self) -> list[Job]:
        """Return the background jobs that run while the mount is there. Jobs that run for ever end with `close`."""

    def end_commits(self) -> None:
        """Prepare for the end of the mount: begin no more commits of inboxes, and return when those that have begun are
        done and answered."""

    def close(self) -> None:
        """End the jobs, and append what open handles still hold: no more calls will come."""


@dataclass(frozen=True, slots=True)
class MountOptions:
    """The options of the command line.

    read_only    whether the kernel refuses every change, and the daemon changes nothing under the backing directory
    allow_other  whether users other than the daemon's have access
    settings     daemon settings for this run, which override server.properties
    others       with `read_only`, the broker's further log directories
    """

    read_only: bool = False
    allow_other: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    others: tuple[Path, ...] = ()

    def fuse_options(self, backing: Path) -> dict[str, str | bool]:
        """Return the options for libfuse."""
        return {
            "fsname": source_of(backing),
            "ro": self.read_only,
            "allow_other": self.allow_other,
        }


@dataclass(frozen=True, slots=True)
class Assembly:
    """The parts that make a daemon; tests use their own.

    build  makes the file system over a store; its counts go into the metrics
    serve  mounts it at a path with libfuse's options, answers calls until it is unmounted, and returns. Inside
           libfuse's callbacks `init` and `destroy`, it tells the session
    """

    build: Callable[[Store, Metrics], Operations]
    serve: Callable[[Any, Path, Mapping[str, str | bool], Session], None]


class _Happened(Enum):
    """Events for the main thread, beside signals and the ends of threads."""

    STARTED = "the kernel has asked for the first time"


class Daemon:
    """One mount's process.

    backing, mount  the real paths of the backing directory and the mount point
    report          called with what the start waits for, in words
    _events         signals, ends of threads and `_Happened`: the main thread waits only for these
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
        """Serve the mount, in the main thread. `ready` is called when it answers. Return the exit code: 0 after a clean
        stop. If there can be no mount: StartError, or an error of the engine or the system."""
        keep_freed_blocks()
        load_all()
        put_compiler_away()
        sys.setswitchinterval(_SWITCH_S)
        store = self._open()
        try:
            jobs = Jobs(store.upkeep.jobs(), store.clock, store.steady)
            cleaners = Cleaners(store)
            metrics = Metrics(store, jobs, self._logged.taken, cleaners)
            operations = self._assembly.build(store, metrics)
            jobs.add(operations.jobs())
            link = self._link(store)
            end_metrics = self._serve_metrics(metrics, store.daemon.metrics_port)
            schedulers = [Scheduler(jobs, name) for name in jobs.threads()]
            for scheduler in schedulers:
                scheduler.start()
            if not store.read_only:
                cleaners.start()
            if link is not None:
                metrics.tell_of_link(store, link)
                link.start()
            try:
                self._serve(operations, ready, link)
            finally:
                end_metrics()
                if link is not None:
                    link.stop()
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

    def _serve_metrics(self, metrics: Metrics, port: int) -> Callable[[], None]:
        """Serve the metrics over HTTP too, where a port is set. Return what ends that."""
        if not port:
            return lambda: None
        try:
            return metrics.serve(port)
        except OSError as error:
            raise StartError(f"metrics.port={port}: {error.strerror or error}") from None

    def _link(self, store: Store) -> Link | None:
        """Return the link to a Kafka cluster, None where the settings name none, or the mount may change nothing."""
        if store.read_only or not store.daemon.link_bootstrap_servers:
            return None
        if importlib.util.find_spec("kafka") is None:
            raise StartError("a link to a Kafka cluster needs kafka-python: pip install 'topicfs[link]'")
        from topicfs.engine.link.options import LinkOptions  # noqa: PLC0415 - loads kafka-python, as the next does
        from topicfs.mountd.link import Link  # noqa: PLC0415

        options = LinkOptions.of(store.daemon, store.backing)
        return None if options is None else Link(store, options)

    # -- opening --------------------------------------------------------------------------------------

    def _open(self) -> Store:
        """Open the store. A signal meanwhile ends the process."""
        logs = self.backing / LOGS
        # A store that was made but never opened has no ids yet.
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
        # A recovery can take minutes, and cannot be stopped. To break it off is like a crash, and the next recovery
        # deals with it.
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
            opening.set_result(
                Store.open(self.backing, options.settings, read_only=options.read_only, others=options.others)
            )
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            opening.set_exception(error)

    # -- serving --------------------------------------------------------------------------------------

    def _serve(self, operations: Operations, ready: Callable[[], None], link: Link | None) -> None:
        """Mount, and return when the mount is gone."""
        self.report(f"mounting {self.mount}")
        before = self.mount.stat().st_dev

        def serve(session: Session) -> None:
            options = self._options.fuse_options(self.backing)
            self._assembly.serve(operations, self.mount, options, session)

        session = Session(serve, lambda: self._events.tell(_Happened.STARTED))
        session.ended.add_done_callback(self._events.tell)
        session.start()
        service = Service.of(os.environ)

        def answers() -> None:
            ready()
            service.ready(self.mount)

        try:
            self._wait(session, before, answers)
            service.tell(STOPPING)
            if link is not None:
                link.end_appends()
            if not session.ended.done():
                operations.end_commits()
        finally:
            session.stop()
        error = session.ended.exception()
        if error is not None:
            raise StartError(f"{self.mount} could not be served: {error}") from error

    def _wait(self, session: Session, device_before: int, ready: Callable[[], None]) -> None:
        """Wait until a signal comes, or the mount is gone."""
        while True:
            event = self._events.wait()
            if event is session.ended:
                log.info(f"{self.mount}: unmounted")
                return
            if event is _Happened.STARTED:
                if self.mount.stat().st_dev == device_before:
                    # The mount was taken away at once, so the session is about to end.
                    continue
                log.info(f"{self.backing} is mounted at {self.mount}, by process {os.getpid()}")
                ready()
            elif isinstance(event, signal.Signals):
                mount = mounts.find(self.mount)
                users = users_of(self.mount, mount.device) if mount is not None else []
                log.info(f"{event.name}: unmounting {self.mount}")
                if users:
                    # The sender of a signal has decided: a machine that shuts down does not wait for open files.
                    log.info(f"{self.mount} is taken away from\n{in_words(users)}")
                return
