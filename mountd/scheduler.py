"""A scheduler: a thread that runs its own jobs, one after another, when each is due."""

from __future__ import annotations

import logging
import threading
from typing import Final

from topicfs.engine.jobs import Jobs

log = logging.getLogger(__name__)

# After this time, a stop that still waits for a running job is logged.
_PATIENCE_S: Final = 10.0


class Scheduler:
    """The thread and its jobs.

    name      the name of the thread, by which jobs say that they are its own
    running   the name of the job that runs now; None between jobs
    _jobs     the jobs of all threads
    _thread   the thread; None before the start
    _wake     the condition that guards _stopping; the thread waits on it between jobs
    """

    def __init__(self, jobs: Jobs, name: str = "scheduler") -> None:
        self.name = name
        self.running: str | None = None
        self._jobs = jobs
        self._thread: threading.Thread | None = None
        self._wake = threading.Condition()
        self._stopping = False

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._work, name=self.name)
        self._thread.start()

    def stop(self) -> None:
        """End the thread: at once between jobs, else after the running job. A second call does nothing."""
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
        states = self._jobs.states
        names = self._jobs.threads()[self.name]
        while True:
            with self._wake:
                if self._stopping:
                    return
                name = min(names, key=lambda name: states[name].due_ms)
                left_ms = states[name].due_ms - self._jobs.steady()
                if left_ms > 0:
                    # The longest waits mean "never", and the condition does not accept them.
                    self._wake.wait(min(left_ms / 1000, threading.TIMEOUT_MAX))
                    continue
            self.running = name
            self._jobs.run(name)
            self.running = None
