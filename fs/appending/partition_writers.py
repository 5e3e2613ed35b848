"""What the writers of one partition share: the queue of lines, the closes that are under way, the last refusal."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Final

from topicfs.engine.partition.offsets import Appended
from topicfs.engine.partition.partition import Partition
from topicfs.fs.appending.line_queue import LineQueue
from topicfs.fs.appending.linger import Linger

CLOSE_GRACE: Final = 0.1
"""Seconds that a reader waits for a close to finish: the kernel sends the last one after close(2) returned."""


class PartitionWriters:
    """The writing side of one partition that is shown.

    partition  where the lines go
    refusal    what was last refused: the time in milliseconds, why, in words, and the path where it is known; None if
               nothing was
    queue      lines that wait to be appended
    _closing   writers with an unfinished line whose descriptor was closed: its last close is under way
    """

    def __init__(
        self, partition: Partition, linger: Linger, appended: Callable[[Appended, int], None]
    ) -> None:
        self.partition = partition
        self.refusal: tuple[int, str, str | None] | None = None
        self.queue = LineQueue(partition, linger, appended, self.note_refusal)
        self._closed = threading.Condition()
        self._closing: dict[object, float] = {}

    def note_refusal(self, error: Exception, path: str | None = None) -> None:
        """Remember why something was refused: an errno is all that its caller was told."""
        self.refusal = (self.partition.log.clock(), str(error), path)

    def begin_close(self, writer: object) -> None:
        """A descriptor of a writer was closed in the middle of a line: perhaps its last."""
        self._closing[writer] = time.monotonic() + CLOSE_GRACE

    def note_last_close(self, writer: object) -> None:
        """The last close has come: its line is there soon, however long the disk takes."""
        self._closing[writer] = math.inf

    def end_close(self, writer: object) -> None:
        """The writer is gone, or goes on writing."""
        if self._closing.pop(writer, None) is not None:
            with self._closed:
                self._closed.notify_all()

    def await_closing(self) -> None:
        """Wait for closes that are under way, so that what a command wrote shows in the next one: briefly for those
        that may not be the last, to the end for those that are."""
        while self._closing:
            with self._closed:
                latest = max(self._closing.values(), default=0.0)
                left = latest - time.monotonic()
                if left <= 0:
                    return
                self._closed.wait(min(left, CLOSE_GRACE))
