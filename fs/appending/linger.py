"""The flusher: lines that wait in the partitions' queues wait for `linger.ms`, and no longer."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Final, Protocol

from topicfs.engine.record import Clock, steady_ms

_LEAST_PAUSE_S: Final = 0.0005
"""A queue that its writer holds just now is looked at again after this time."""


class Lingering(Protocol):
    """Lines of one partition that wait.

    due_ms  when they have waited long enough, by the steady clock; None while none wait
    """

    @property
    def due_ms(self) -> int | None: ...

    def flush_due(self) -> None:
        """Append them where they have waited long enough. What fails is told to their writers."""


@dataclass(slots=True)
class Linger:
    """How long lines wait, and who appends them then.

    linger_ms  how long
    clock      gives milliseconds that never go back: nobody can set it
    _waiting   the queues in which lines wait
    _idle      the flusher waits for such a queue. Otherwise nobody wakes it: it would stand in the way of the very
               writer that woke it
    """

    linger_ms: int
    clock: Clock = steady_ms
    _waiting: dict[Lingering, None] = field(default_factory=dict)
    _noted: threading.Condition = field(default_factory=threading.Condition)
    _idle: bool = False
    _stopped: threading.Event = field(default_factory=threading.Event)

    def note(self, queue: Lingering) -> None:
        """Lines wait in a queue from now on."""
        with self._noted:
            if queue not in self._waiting:
                self._waiting[queue] = None
                if self._idle:
                    self._noted.notify()

    def flush_due(self) -> None:
        """Append the lines that have waited long enough."""
        with self._noted:
            queues = list(self._waiting)
        for queue in queues:
            queue.flush_due()
            if queue.due_ms is None:
                with self._noted:
                    # Lines that came meanwhile are seen here, or are noted again.
                    if queue.due_ms is None:
                        self._waiting.pop(queue, None)

    def run(self) -> None:
        """The flusher's loop, until `stop`."""
        while not self._stopped.is_set():
            with self._noted:
                self._idle = True
                self._noted.wait_for(lambda: self._waiting or self._stopped.is_set())
                self._idle = False
                due = [at for queue in self._waiting if (at := queue.due_ms) is not None]
            # Not longer, though what failed is due later: lines of other queues may come meanwhile.
            left_ms = min(min(due, default=0) - self.clock(), self.linger_ms)
            self._stopped.wait(max(left_ms / 1000, _LEAST_PAUSE_S))
            self.flush_due()

    def stop(self) -> None:
        """End the flusher's loop."""
        self._stopped.set()
        with self._noted:
            self._noted.notify_all()
