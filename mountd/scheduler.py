"""One thread that does what is due every so often.

A job that fails is logged and tried again when it is next due; the others go on. Jobs run one after another: each is
short, and none is waited for by a caller of the mount.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from topicfs.engine.errors import EngineError
from topicfs.engine.record import MAX_INT64, Clock, now_ms
from topicfs.engine.store.store import Store

log = logging.getLogger(__name__)

# How often the store is asked for what is cheap to look for; also the shortest period of a job.
_TICK_MS: Final = 1000

# A stop that waits longer for a running job says so.
_PATIENCE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Job:
    """What is done every so often.

    name       for people, logs and metrics
    period_ms  from one start to the next, at least a second; 2^63-1: never
    function   does it
    delay_ms   until the first start
    """

    name: str
    period_ms: int
    function: Callable[[], object]
    delay_ms: int


@dataclass(frozen=True, slots=True)
class State:
    """How a job has fared; replaced as a whole.

    due         monotonic seconds of its next start
    runs        how often it ran, failures included
    errors      how often it failed
    last_run    milliseconds since the epoch at its last start, None before the first
    duration_s  how long the last run took
    error       what the last run failed with, None when it went well
    """

    due: float
    runs: int = 0
    errors: int = 0
    last_run: int | None = None
    duration_s: float = 0.0
    error: str | None = None

    @property
    def healthy(self) -> bool:
        """Whether the last run went well, or there was none."""
        return self.error is None


class Scheduler:
    """The thread and its jobs.

    name      the thread's
    states    of each job by name: what metrics and status read, without a lock
    running   the name of the job that runs now, None between jobs
    _jobs     by name
    _clock    dates the runs
    _thread   None before the start
    _wake     guards _stopping, and is waited on between jobs
    """

    def __init__(self, jobs: Iterable[Job], clock: Clock = now_ms, name: str = "scheduler") -> None:
        now = time.monotonic()
        self.name = name
        self._jobs = {job.name: job for job in jobs}
        self.states = {name: State(now + job.delay_ms / 1000) for name, job in self._jobs.items()}
        self.running: str | None = None
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._wake = threading.Condition()
        self._stopping = False

    def start(self) -> None:
        """Begin."""
        self._thread = threading.Thread(target=self._work, name=self.name)
        self._thread.start()

    def stop(self) -> None:
        """End: at once between jobs, else when the running one is done. A second call does nothing."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is None:
            return
        while self._thread.is_alive():
            self._thread.join(_PATIENCE_S)
            if self._thread.is_alive():
                log.warning(f"stopping: waiting for {self.running}")

    def _work(self) -> None:
        while True:
            with self._wake:
                name = min(self.states, key=lambda name: self.states[name].due, default=None)
                if self._stopping:
                    return
                wait = _until(self.states[name].due) if name is not None else None
                if name is None or wait is not None:
                    self._wake.wait(wait)
                    continue
            self.run(name)

    def run(self, name: str) -> None:
        """Do one job now. It is next due a period after this start; runs that were missed are not made up for."""
        job = self._jobs[name]
        began = time.monotonic()
        last_run = self._clock()
        self.running = name
        error = _attempt(job)
        self.running = None
        before = self.states[name]
        if error is None and not before.healthy:
            log.info(f"{name}: works again")
        self.states[name] = replace(
            before,
            due=began + max(_TICK_MS, job.period_ms) / 1000,
            runs=before.runs + 1,
            errors=before.errors + (error is not None),
            last_run=last_run,
            duration_s=time.monotonic() - began,
            error=error,
        )


def _until(due: float) -> float | None:
    """Seconds to wait for a time, None when it has come."""
    left = due - time.monotonic()
    # The longest waits are "never", which the condition would refuse.
    return min(left, threading.TIMEOUT_MAX) if left > 0 else None


def _attempt(job: Job) -> str | None:
    """Run the job; what it failed with, None when it went well."""
    try:
        job.function()
    except (EngineError, OSError) as error:
        log.error(f"{job.name} failed, tried again when it is next due: {error}")
        return str(error)
    except Exception as error:
        # A mistake in one job must end neither the others nor, unseen, the thread.
        log.exception(f"{job.name} failed unexpectedly, tried again when it is next due")
        return repr(error)
    return None


def flush_jobs(store: Store) -> list[Job]:
    """What a store wants brought onto the disk, as often as its settings say.

    For a thread of their own: on a busy disk they take seconds each, while nothing would be removed."""
    flush = store.daemon.log_flush_scheduler_interval_ms
    # Kafka never looks for logs to flush unless told how often. Looking costs little, and a topic's flush.ms
    # would have no effect.
    looks_for_flushes = _TICK_MS if flush == MAX_INT64 else flush
    return [
        Job("flush of sealed segments", _TICK_MS, store.flush_rolled, _TICK_MS),
        Job("flush.ms", looks_for_flushes, store.flush_due, looks_for_flushes),
    ]


def upkeep_jobs(store: Store) -> list[Job]:
    """What else a store wants done, as often as its settings say."""
    daemon = store.daemon
    delay = daemon.log_initial_task_delay_ms

    def every(name: str, period_ms: int, function: Callable[[], object], delay_ms: int | None = None) -> Job:
        return Job(name, period_ms, function, period_ms if delay_ms is None else delay_ms)

    return [
        every("removal of deleted files", _TICK_MS, store.remove_due),
        every("segment.ms", _TICK_MS, store.roll_waited),
        every(
            "checkpoint of recovery points",
            daemon.log_flush_offset_checkpoint_interval_ms,
            store.checkpoint_recovery_points,
            delay,
        ),
        every(
            "checkpoint of start offsets",
            daemon.log_flush_start_offset_checkpoint_interval_ms,
            store.checkpoint_start_offsets,
            delay,
        ),
        every(
            "checkpoint of high watermarks",
            daemon.replica_high_watermark_checkpoint_interval_ms,
            store.checkpoint_high_watermarks,
        ),
        every("expiry of producers", daemon.producer_id_expiration_check_interval_ms, store.expire_producers),
        every("retention", daemon.log_retention_check_interval_ms, store.retain, delay),
    ]
