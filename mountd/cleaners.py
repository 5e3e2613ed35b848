"""The cleaner threads: they compact, and remove what is due from compacted partitions.

A thread that finds no work rests for log.cleaner.backoff.ms. A thread whose run fails continues with the next run: the
partition that failed is skipped until the next start.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from topicfs.engine.cleaner.clean import Cleaner
from topicfs.engine.cleaner.manager import Cleans, Outcome
from topicfs.engine.cleaner.throttle import Throttle
from topicfs.engine.errors import EngineError
from topicfs.engine.record import MAX_INT32
from topicfs.engine.retention.removal import NOTHING, Removed
from topicfs.engine.store.store import Store

log = logging.getLogger(__name__)

# With log.cleaner.backoff.ms=0, a thread without work would keep others from running.
_SHORTEST_REST_S: Final = 0.01

# A higher value would be harmful: a thread that holds the GIL, but gets no time on a busy machine, holds up all others.
_NICENESS: Final = 5

# After this time, a stop that still waits is logged.
_PATIENCE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class CleanerState:
    """The results of a thread so far. The object is replaced, never changed.

    runs           how often it looked for work
    cleans         how often it compacted a log
    errors         how often a run failed
    last_run       milliseconds since the epoch when the last run began; None before the first
    duration_s     how long the last run took
    partition      the name of the partition that it compacted last; None before the first
    bytes_read     bytes that all its compactions have read
    bytes_written  bytes that all its compactions have written
    seconds        the total time of the runs that compacted
    removed        what its retention of compacted partitions has removed
    error          the error of the last run; None if it went well
    last_error     the latest error of any run; None if there was none
    """

    runs: int = 0
    cleans: int = 0
    errors: int = 0
    last_run: int | None = None
    duration_s: float = 0.0
    partition: str | None = None
    bytes_read: int = 0
    bytes_written: int = 0
    seconds: float = 0.0
    removed: Removed = NOTHING
    error: str | None = None
    last_error: str | None = None

    @property
    def healthy(self) -> bool:
        """Whether the last run went well, or there was none yet."""
        return self.error is None

    def after(self, outcome: Outcome, last_run: int, duration_s: float) -> CleanerState:
        """Return the state after one more run."""
        cleaned = outcome.cleaned
        return replace(
            self,
            runs=self.runs + 1,
            cleans=self.cleans + (cleaned is not None),
            errors=self.errors + (outcome.error is not None),
            last_run=last_run,
            duration_s=duration_s,
            partition=outcome.partition if cleaned is not None else self.partition,
            bytes_read=self.bytes_read + (0 if cleaned is None else cleaned.bytes_read),
            bytes_written=self.bytes_written + (0 if cleaned is None else cleaned.bytes_written),
            seconds=self.seconds + (0.0 if cleaned is None else duration_s),
            removed=self.removed + outcome.removed,
            error=outcome.error,
            last_error=outcome.error or self.last_error,
        )


def give_way() -> None:
    """Lower the priority of the calling thread: reads and writes come first if processors are short."""
    # A thread that is nicer already may not become less nice: the call would fail and end the thread.
    thread = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread, max(_NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))


def make_cleaner(store: Store, throttle: Callable[[int], None]) -> Cleans:
    """Make the cleaner of one thread, with its share of the memory for all threads."""
    daemon = store.daemon
    threads = max(1, daemon.log_cleaner_threads)
    return Cleaner.create(
        min(daemon.log_cleaner_dedupe_buffer_size // threads, MAX_INT32),
        daemon.log_cleaner_io_buffer_load_factor,
        daemon.log_cleaner_io_buffer_size // threads,
        throttle,
        secrets.token_bytes(16),
    )


class Cleaners:
    """The cleaner threads of one store, as many as its settings say at the start.

    states     the state of each thread by its name; metrics and status read it without a lock
    _store     the store whose partitions are compacted
    _make      makes the cleaner of a thread
    _threads   the running threads
    _stopping  set when the threads must end
    _woken     set when a thread shall look for work now, or must end
    """

    def __init__(
        self, store: Store, make: Callable[[Store, Callable[[int], None]], Cleans] = make_cleaner
    ) -> None:
        daemon = store.daemon
        count = daemon.log_cleaner_threads if daemon.log_cleaner_enable else 0
        self.states = {f"cleaner-{number}": CleanerState() for number in range(count)}
        self._store = store
        self._make = make
        self._threads: list[threading.Thread] = []
        self._stopping = threading.Event()
        self._woken = threading.Event()
        store.cleaning.wake = self._woken.set
        if not count:
            setting = "log.cleaner.threads=0" if daemon.log_cleaner_enable else "log.cleaner.enable=false"
            store.cleaning.why_idle = setting

    def start(self) -> None:
        """Start the threads."""
        throttle = Throttle(
            lambda: self._store.daemon.log_cleaner_io_max_bytes_per_second,
            time.monotonic,
            self._stopping.wait,
            lambda: self._store.cleaning.states.some_is_to_end,
        )
        for name in self.states:
            thread = threading.Thread(target=self._work, args=(name, throttle), name=name)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Break off work in progress, and end the threads. A second call does nothing."""
        self._stopping.set()
        self._woken.set()
        if not self._threads:
            return
        self._store.cleaning.stop()
        for thread in self._threads:
            while thread.is_alive():
                thread.join(_PATIENCE_S)
                if thread.is_alive():
                    log.warning(f"stopping: waiting for {thread.name}")
        self._threads.clear()

    def _work(self, name: str, throttle: Throttle) -> None:
        give_way()
        try:
            cleaner = self._make(self._store, throttle)
        except (MemoryError, ValueError) as error:
            log.error(f"{name} cannot begin: {error!r}")
            self.states[name] = replace(
                self.states[name], errors=1, error=repr(error), last_error=repr(error)
            )
            return
        while not self._stopping.is_set():
            if not self._run(name, cleaner):
                rest = self._store.daemon.log_cleaner_backoff_ms / 1000
                self._woken.wait(min(max(rest, _SHORTEST_REST_S), threading.TIMEOUT_MAX))
                self._woken.clear()
                if self._stopping.is_set():
                    self._woken.set()  # for the other threads: a stop comes only once

    def _run(self, name: str, cleaner: Cleans) -> bool:
        """Look for work once, and do it. Return False if there was none, or it failed."""
        last_run, began = self._store.clock(), time.monotonic()
        try:
            outcome = self._store.cleaning.work(cleaner, last_run)
        except (EngineError, OSError) as error:
            log.error(f"{name} failed, and goes on: {error}")
            outcome = Outcome(error=str(error))
        except Exception as error:
            # A bug in the compaction of one log must not end the thread, and must be logged.
            log.exception(f"{name} failed unexpectedly, and goes on")
            outcome = Outcome(error=repr(error))
        state = self.states[name].after(outcome, last_run, time.monotonic() - began)
        self.states[name] = state
        if outcome.cleaned is not None:
            log.info(
                f"{outcome.partition}: compacted up to offset {outcome.cleaned.end_offset}, "
                f"{outcome.cleaned.bytes_read} bytes became {outcome.cleaned.bytes_written}, "
                f"in {state.duration_s:.1f} s"
            )
        return outcome.advanced
