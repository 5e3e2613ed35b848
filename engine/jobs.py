"""Background jobs, which run periodically. Each job is declared in the module that does its work.

The daemon has threads for them (`mountd/scheduler.py`); other programs call `Jobs.run_due` every second or so.
A job that fails is logged and tried again when it is next due; the other jobs continue.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from topicfs.engine.errors import EngineError
from topicfs.engine.record import Clock, now_ms, steady_ms

log = logging.getLogger(__name__)

TICK_MS: Final = 1000
"""The shortest interval: that of jobs whose check costs little."""

LASTS: Final = 0
"""The interval of work that does not end, in its own thread. If it fails, it starts again, at most once a second."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job that runs periodically.

    name         its name for people, logs and metrics
    interval_ms  the time from one start to the next, at least a second; 2^63-1: never. LASTS: the work does not end,
                 and waits by itself for events
    work         the function that does the work
    delay_ms     the time until the first start
    thread       the thread of the daemon that runs it: the jobs of one thread wait for each other
    """

    name: str
    interval_ms: int
    work: Callable[[], object]
    delay_ms: int
    thread: str = "scheduler"


@dataclass(frozen=True, slots=True)
class JobState:
    """The state of a job; replaced as a whole.

    due_ms      the time of its next start, by a clock that nobody can set
    runs        the number of runs, including failed ones
    errors      the number of failed runs
    last_run    the time of its last start in milliseconds since the epoch, None before the first
    duration_s  the duration of the last run
    error       the error of the last run, None if it succeeded
    """

    due_ms: int
    runs: int = 0
    errors: int = 0
    last_run: int | None = None
    duration_s: float = 0.0
    error: str | None = None

    @property
    def healthy(self) -> bool:
        """Whether the last run succeeded, or there was none."""
        return self.error is None


class Jobs:
    """A list of jobs, with the state of each. A job runs in one thread at a time.

    clock   the clock for the times of runs
    steady  a clock that nobody can set, in milliseconds, for intervals
    states  the state of each job, by name; metrics and status read it without a lock
    _jobs   the jobs, by name
    """

    def __init__(self, jobs: Iterable[Job], clock: Clock = now_ms, steady: Clock = steady_ms) -> None:
        self.clock = clock
        self.steady = steady
        self.states: dict[str, JobState] = {}
        self._jobs: dict[str, Job] = {}
        self.add(jobs)

    def add(self, jobs: Iterable[Job]) -> None:
        """Add jobs. Their delays begin now."""
        now = self.steady()
        for job in jobs:
            self._jobs[job.name] = job
            self.states[job.name] = JobState(now + job.delay_ms)

    def threads(self) -> dict[str, list[str]]:
        """Return the names of each thread's jobs."""
        found: dict[str, list[str]] = {}
        for job in self._jobs.values():
            found.setdefault(job.thread, []).append(job.name)
        return found

    def run_due(self) -> None:
        """Run all jobs that are due, one after the other. A job that is due each second runs at each call: the caller
        has waited."""
        for job in self._jobs.values():
            if job.interval_ms <= TICK_MS or self.states[job.name].due_ms <= self.steady():
                self.run(job.name)

    def run(self, name: str) -> None:
        """Run one job now. It is next due an interval after this start; missed runs are not repeated."""
        job, before = self._jobs[name], self.states[name]
        due_ms = self.steady() + max(TICK_MS, job.interval_ms)
        last_run, began = self.clock(), time.monotonic()
        if job.interval_ms == LASTS:
            # The work does not end, so the state tells at once that it was started again.
            self.states[name] = before = replace(before, last_run=last_run, error=None)
        error = _attempt(job)
        if error is None and not before.healthy:
            log.info(f"{name}: works again")
        self.states[name] = replace(
            before,
            due_ms=due_ms,
            runs=before.runs + 1,
            errors=before.errors + (error is not None),
            last_run=last_run,
            duration_s=time.monotonic() - began,
            error=error,
        )


def _attempt(job: Job) -> str | None:
    """Run the job. Return the error as text, None if it succeeded."""
    try:
        job.work()
    except (EngineError, OSError) as error:
        log.error(f"{job.name} failed, tried again when it is next due: {error}")
        return str(error)
    except Exception as error:
        # A bug in one job must not stop the other jobs, and must not end the thread unnoticed.
        log.exception(f"{job.name} failed, and begins anew when it is next due")
        return repr(error)
    return None
