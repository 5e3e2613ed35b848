"""What the writers of one partition share: the queue of lines, the closes in progress, and the last refusal."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from topicfs.engine.partition.offsets import Appended
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.remote import Way
from topicfs.fs.appending.line_queue import LineQueue
from topicfs.fs.appending.linger import Linger
from topicfs.fs.appending.linked_queue import LinkedQueue
from topicfs.fs.appending.write_behind import WriteBehind

if TYPE_CHECKING:
    from topicfs.fs.appending.handle import AppendHandle

CLOSE_GRACE: Final = 0.5
"""Seconds that a reader waits for a close to finish: the kernel reports the last close after close(2) has returned."""


class PartitionWriters:
    """The writing side of one partition.

    partition  the partition that lines are appended to
    refusal    the last refusal: its time in milliseconds, the reason in words, and the path if it is known; None before
               the first
    queue      the lines that wait to be appended
    handles    the open files that may append to it
    _closing   the writers with an unfinished line that are being closed, and until when a reader waits for each
    """

    def __init__(
        self,
        partition: Partition,
        linger: Linger,
        behind: WriteBehind,
        appended: Callable[[Appended, int], None],
        way: Way,
    ) -> None:
        self.partition = partition
        self.refusal: tuple[int, str, str | None] | None = None
        self.queue: LineQueue | LinkedQueue = (
            LinkedQueue(partition, way, linger, self.note_refusal)
            if partition.log.is_mirror
            else LineQueue(partition, linger, behind, appended, self.note_refusal)
        )
        self.handles: set[AppendHandle] = set()
        self._closed = threading.Condition()
        self._closing: dict[object, float] = {}

    @property
    def holds_lines(self) -> bool:
        """Tell whether lines wait for the partition, or a writer that may append to it holds the beginning of one."""
        return self.queue.holds_lines or any(handle.holds_tail for handle in tuple(self.handles))

    def note_refusal(self, error: Exception, path: str | None = None) -> None:
        """Remember why something was refused, as the caller was told only an errno."""
        self.refusal = (self.partition.log.clock(), str(error), path)

    def begin_close(self, writer: object) -> None:
        """Note that a writer's descriptor was closed in the middle of a line. It may be the last one."""
        self._closing[writer] = time.monotonic() + CLOSE_GRACE

    def is_closing(self, writer: object) -> bool:
        """Tell whether a writer's descriptor was closed just now, and nothing was written since: of the last close the
        kernel may not have told yet."""
        return self._closing.get(writer, 0.0) > time.monotonic()

    def note_last_close(self, writer: object) -> None:
        """Note that a writer's last close has come: its line will be appended soon, however long the disk takes."""
        self._closing[writer] = math.inf

    def end_close(self, writer: object) -> None:
        """Note that a writer is closed, or continues to write."""
        if self._closing.pop(writer, None) is not None:
            with self._closed:
                self._closed.notify_all()

    def await_closing(self) -> None:
        """Wait for closes in progress, so that the next command sees what a command wrote. The wait is short for a
        close that may not be the last, and has no limit for a last close."""
        while self._closing:
            with self._closed:
                latest = max(self._closing.values(), default=0.0)
                left = latest - time.monotonic()
                if left <= 0:
                    return
                self._closed.wait(min(left, CLOSE_GRACE))
