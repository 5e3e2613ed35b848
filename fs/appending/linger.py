"""The flusher: it appends the lines in the partitions' queues after they have waited for `linger.ms`."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from topicfs.engine.record import Clock, steady_ms

if TYPE_CHECKING:
    from topicfs.fs.appending.line_queue import LineQueue
    from topicfs.fs.appending.linked_queue import LinkedQueue

_LEAST_PAUSE_S: Final = 0.0005
"""Seconds after which a queue is tried again, if a writer holds its lock."""


@dataclass(slots=True)
class Linger:
    """The flusher and its queues.

    linger_ms  how many milliseconds lines wait
    clock      gives milliseconds of a steady clock, which never goes back and cannot be set
    _waiting   the queues in which lines wait
    _idle      whether the flusher waits for such a queue. It is woken only then: otherwise it would compete with the
               very writer that woke it
    """

    linger_ms: int
    clock: Clock = steady_ms
    _waiting: dict[LineQueue | LinkedQueue, None] = field(default_factory=dict)
    _noted: threading.Condition = field(default_factory=threading.Condition)
    _idle: bool = False
    _stopped: threading.Event = field(default_factory=threading.Event)

    def note(self, queue: LineQueue | LinkedQueue) -> None:
        """Note that lines wait in a queue from now on."""
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
                    # Lines that came in the meantime are seen here, or their queue is noted again.
                    if queue.due_ms is None:
                        self._waiting.pop(queue, None)

    def run(self) -> None:
        """Run the flusher's loop, until `stop`."""
        while not self._stopped.is_set():
            with self._noted:
                self._idle = True
                self._noted.wait_for(lambda: self._waiting or self._stopped.is_set())
                self._idle = False
                due = [at for queue in self._waiting if (at := queue.due_ms) is not None]
            # It never waits longer, even if a failed queue is due later: lines may come into other queues.
            left_ms = min(min(due, default=0) - self.clock(), self.linger_ms)
            self._stopped.wait(max(left_ms / 1000, _LEAST_PAUSE_S))
            self.flush_due()

    def stop(self) -> None:
        """End the flusher's loop."""
        self._stopped.set()
        with self._noted:
            self._noted.notify_all()
