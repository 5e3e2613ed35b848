"""Rendering ahead: while the kernel takes one block to a reader, the next is made on another core.

A read that finds its bytes rendered costs a copy. Who reads in order is one block ahead of his own questions; what he
does not come to was rendered for nothing, so only the block behind the newest one is made, once he reads from that.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from typing import Final

from topicfs.engine.errors import EngineError
from topicfs.engine.partition.offsets import LogOffsets
from topicfs.engine.segment.segments import Segments
from topicfs.fs.views.rendered_segment import RenderedSegment

_MOST_WAITING: Final = 4
"""Blocks that wait to be rendered: more readers than that keep both cores busy by themselves."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The block of a text that begins at a position."""

    text: RenderedSegment
    position: int
    segments: Segments
    offsets: LogOffsets


class ReadAhead:
    """What is to be rendered next, and the work of the thread that does it.

    _wanted   oldest first
    _noted    guards _wanted
    _running  there is such a thread: without one nothing is noted
    """

    def __init__(self) -> None:
        self._wanted: list[_Wanted] = []
        self._noted = threading.Condition()
        self._running = False
        self._stopped = False

    def ask(self, text: RenderedSegment, position: int, segments: Segments, offsets: LogOffsets) -> None:
        """Have a block rendered, if there is time for it."""
        if not self._running or len(self._wanted) >= _MOST_WAITING:
            return
        with self._noted:
            if not any(w.text is text and w.position == position for w in self._wanted):
                self._wanted.append(_Wanted(text, position, segments, offsets))
                self._noted.notify()

    def run(self) -> None:
        """The thread's loop, until `stop`."""
        self._running = not self._stopped
        while True:
            with self._noted:
                self._noted.wait_for(lambda: self._wanted or self._stopped)
                if self._stopped:
                    return
                wanted = self._wanted[0]
            try:
                # Damage, and what was removed meanwhile, is told to whoever reads it.
                with contextlib.suppress(EngineError, OSError):
                    wanted.text.render_at(wanted.position, wanted.segments, wanted.offsets)
            finally:
                with self._noted:
                    # Only now: who asks again meanwhile finds that it is being made. And after a mistake too: the loop
                    # that begins anew must not meet it for ever.
                    self._wanted.pop(0)

    def stop(self) -> None:
        """End the loop."""
        with self._noted:
            self._running = False
            self._stopped = True
            self._noted.notify()
