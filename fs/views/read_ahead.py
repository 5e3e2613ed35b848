"""Read-ahead: while the kernel hands one block to a reader, the next block is rendered on another core.

A read that finds its bytes rendered costs only a copy. A sequential reader has one block more than it has asked for.
A block that it never reaches was rendered in vain, so only the block after the newest one is rendered, and only once
the reader reads from the newest one.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from typing import Final

from topicfs.engine.errors import EngineError
from topicfs.engine.partition.snapshot import Snapshot
from topicfs.fs.views.rendered_segment import RenderedSegment

_MOST_WAITING: Final = 4
"""How many blocks may wait to be rendered. More readers than that keep both cores busy by themselves."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The block of a rendered segment that begins at a position."""

    text: RenderedSegment
    position: int
    snapshot: Snapshot


class ReadAhead:
    """The blocks that are to be rendered, and the loop of the thread that renders them.

    _wanted   the blocks that wait, oldest first
    _noted    the condition that guards _wanted
    _running  whether the thread runs; without it no block is added
    """

    def __init__(self) -> None:
        self._wanted: list[_Wanted] = []
        self._noted = threading.Condition()
        self._running = False
        self._stopped = False

    def ask(self, text: RenderedSegment, position: int, snapshot: Snapshot) -> None:
        """Ask for a block to be rendered, if the thread runs and few enough blocks wait."""
        if not self._running or len(self._wanted) >= _MOST_WAITING:
            return
        with self._noted:
            if not any(w.text is text and w.position == position for w in self._wanted):
                self._wanted.append(_Wanted(text, position, snapshot))
                self._noted.notify()

    def run(self) -> None:
        """Render the blocks that are asked for, until `stop`."""
        self._running = not self._stopped
        while True:
            with self._noted:
                self._noted.wait_for(lambda: self._wanted or self._stopped)
                if self._stopped:
                    return
                wanted = self._wanted[0]
            try:
                # Damage, and the removal of a segment, are reported to the reader when it reads there.
                with contextlib.suppress(EngineError, OSError):
                    wanted.text.render_at(wanted.position, wanted.snapshot)
            finally:
                with self._noted:
                    # The block is removed only now, so that a second request sees that it is being rendered. It is
                    # removed after an unexpected error too, or the restarted loop would meet it for ever.
                    self._wanted.pop(0)

    def stop(self) -> None:
        """End the loop."""
        with self._noted:
            self._running = False
            self._stopped = True
            self._noted.notify()
