"""Write-behind: while a writer's next request is received, the one before it is appended on another core.

A program that copies a file into the mount waits for the answer to each write(2). So its own core reads the file, and
then the daemon's makes batches of the lines and writes them to the `.log`, each while the other one waits. The answer
comes before that last step here.

There is one thread, and it takes work only while it has none: nobody waits for another one's disk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class WriteBehind:
    """The thread that appends, and its work.

    runs      whether the thread runs, and takes work when it is idle
    is_idle   whether it waits for work
    _work     the work that it has not begun; None without one
    _guard    guards all of these
    _asked    released for each piece of work, and for the end
    """

    def __init__(self) -> None:
        self.runs = False
        self.is_idle = False
        self._stopped = False
        self._work: Callable[[], object] | None = None
        self._guard = threading.Lock()
        self._asked = threading.Semaphore(0)

    def take(self, work: Callable[[], object]) -> bool:
        """Have work done by the thread. Return False if it is not idle."""
        with self._guard:
            if not self.is_idle:
                return False
            self.is_idle = False
            self._work = work
        self._asked.release()
        return True

    def run(self) -> None:
        """Do the work that comes, until `stop`. Work that was taken before that is done."""
        try:
            while self._wait():
                self._asked.acquire()
                with self._guard:
                    work, self._work = self._work, None
                if work is not None:
                    work()
        finally:
            with self._guard:
                self.runs = self.is_idle = False

    def _wait(self) -> bool:
        """Be idle. Return False if there will be no more work."""
        with self._guard:
            self.runs = self.is_idle = not self._stopped
            return self.runs

    def stop(self) -> None:
        """End the loop."""
        with self._guard:
            self._stopped = True
            self.runs = self.is_idle = False
        self._asked.release()
