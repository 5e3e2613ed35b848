"""Background jobs: what is done every so often. Each is declared where its work is.

The daemon has threads for them (`mountd/scheduler.py`); a program without one calls `Jobs.run_due` every second or so.
A job that fails is logged and tried again when it is next due; the others go on.
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
"""The shortest interval: how often is looked for what is cheap to look for."""

LASTS: Final = 0
"""The interval of work that lasts, in a thread of its own. Where it fails it begins anew, once a second at most."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is done every so often.

    name         for people, logs and metrics
    interval_ms  from one start to the next, at least a second; 2^63-1: never. LASTS: the work waits itself for what
                 wakes it up
    work         does it
    delay_ms     until the first start
    thread       which of the daemon's does it: the jobs of one thread wait for each other
    """

    name: str
    interval_ms: int
    work: Callable[[], object]
    delay_ms: int
    thread: str = "scheduler"


@dataclass(frozen=True, slots=True)
class JobState:
    """How a job has fared; replaced as a whole.

    due_ms      when it starts next, by the clock that nobody can set
    runs        how often it ran, failures included
    errors      how often it failed
    last_run    milliseconds since the epoch at its last start, None before the first
    duration_s  how long the last run took
    error       what the last run failed with, None when it went well
    """

    due_ms: int
    runs: int = 0
    errors: int = 0
    last_run: int | None = None
    duration_s: float = 0.0
    error: str | None = None

    @property
    def healthy(self) -> bool:
        """Whether the last run went well, or there was none."""
        return self.error is None


class Jobs:
    """A list of jobs, and how each of them fares. One job runs in one thread at a time.

    clock   dates the runs
    steady  milliseconds of a clock that nobody can set, for intervals
    states  of each job by name: what metrics and status read, without a lock
    _jobs   by name
    """

    def __init__(self, jobs: Iterable[Job], clock: Clock = now_ms, steady: Clock = steady_ms) -> None:
        self.clock = clock
        self.steady = steady
        self.states: dict[str, JobState] = {}
        self._jobs: dict[str, Job] = {}
        self.add(jobs)

    def add(self, jobs: Iterable[Job]) -> None:
        """Have these done too: their delays begin now."""
        now = self.steady()
        for job in jobs:
            self._jobs[job.name] = job
            self.states[job.name] = JobState(now + job.delay_ms)

    def threads(self) -> dict[str, list[str]]:
        """The names of each thread's jobs."""
        found: dict[str, list[str]] = {}
        for job in self._jobs.values():
            found.setdefault(job.thread, []).append(job.name)
        return found

    def run_due(self) -> None:
        """Do all that is due, one job after the other. What is due each second is done each time: the caller has waited
        for it."""
        for job in self._jobs.values():
            if job.interval_ms <= TICK_MS or self.states[job.name].due_ms <= self.steady():
                self.run(job.name)

    def run(self, name: str) -> None:
        """Do one job now. It is next due an interval after this start; runs that were missed are not made up for."""
        job, before = self._jobs[name], self.states[name]
        due_ms = self.steady() + max(TICK_MS, job.interval_ms)
        last_run, began = self.clock(), time.monotonic()
        if job.interval_ms == LASTS:
            # Nobody waits for its end to learn that it has begun anew.
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
    """Run the job; what it failed with, None when it went well."""
    try:
        job.work()
    except (EngineError, OSError) as error:
        log.error(f"{job.name} failed, tried again when it is next due: {error}")
        return str(error)
    except Exception as error:
        # A mistake in one job must end neither the others nor, unseen, the thread.
        log.exception(f"{job.name} failed, and begins anew when it is next due")
        return repr(error)
    return None
