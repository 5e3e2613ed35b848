"""The whole log as one file: views that its readers share, and how byte positions count while it changes.

    origin                                                 size (what stat tells)
      |-- gone or rewritten --|-------- newest view ----------|
      0                    excess

Who opens `log.<format>` joins the newest view, so that positions count from one origin as long as anybody holds it.
Retention takes nothing from that: a view goes on counting what it has let go of. Compaction does: a reader that
comes later has to see what there is now, in a view of its own, whose bytes are fewer. The size goes on from what it
was, by `excess`, or `tail -f` would see a truncation. A handle that begins at byte 0 begins at the newest view's first
record; one that begins elsewhere, as `tail` does, counts from the origin.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from topicfs.engine.partition.hold import Hold
from topicfs.fs.formats import Format
from topicfs.fs.views.rendered_segments import RenderedSegments
from topicfs.fs.views.view import View


@dataclass(slots=True, eq=False)
class SharedLogView:
    """A view of the whole log, and who has it open.

    excess  bytes from the origin to where the view begins
    places  where each reader is, counted in the view
    holds   what was promised to readers that came later: the view may have let go of it, as all others were past it
    """

    view: View
    excess: int = 0
    places: dict[object, int] = field(default_factory=dict)
    holds: dict[object, Hold] = field(default_factory=dict)

    def release(self) -> None:
        """Let go of what all readers are past."""
        self.view.release_below(min(self.places.values()))


class SharedLogViews:
    """The views of one partition's whole log that somebody holds open.

    _views  by format, the newest last
    _lock   held while readers come, move and go
    """

    def __init__(self, rendered: RenderedSegments) -> None:
        self._rendered = rendered
        self._views: dict[Format, list[SharedLogView]] = {}
        self._lock = threading.Lock()

    def join(self, fmt: Format, reader: object) -> SharedLogView:
        """The view that shows what there is now; its positions go on from those of earlier ones."""
        log = self._rendered.partition.log
        with self._lock:
            views = self._views.setdefault(fmt, [])
            now = log.offsets
            shared = views[-1] if views else None
            hold = None if shared is None else Hold.take(log.chain, now.start, max(now.start + 1, now.end))
            # Asked for after the hold: what is rewritten from here on is held.
            if shared is None or not shared.view.shows_all_from(now.start):
                if hold is not None:
                    hold.release()
                shared, hold = self._begin(fmt, now.start, views), None
            if hold is not None:
                shared.holds[reader] = hold
            late = now.start > shared.view.start_offset
            shared.places[reader] = shared.view.position_of(now.start) if late else 0
            return shared

    def _begin(self, fmt: Format, start: int, views: list[SharedLogView]) -> SharedLogView:
        shared = SharedLogView(View.open(self._rendered, fmt, start))
        if views:
            # In this order: what comes in between makes the size grow, never shrink.
            size = shared.view.size()
            shared.excess = max(0, _size(views[-1]) - size)
        views.append(shared)
        return shared

    def leave(self, fmt: Format, reader: object, shared: SharedLogView) -> None:
        """One reader less. After the last one of all the origin is the start offset again."""
        with self._lock:
            del shared.places[reader]
            if (hold := shared.holds.pop(reader, None)) is not None:
                hold.release()
            if shared.places:
                shared.release()
                return
            views = self._views[fmt]
            views.remove(shared)
            if not views:
                del self._views[fmt]
            shared.view.close()

    def move(self, reader: object, shared: SharedLogView, position: int) -> None:
        """A reader came to another segment: what all of them have read past is let go, or a `tail -f` would keep
        retention from freeing anything."""
        with self._lock:
            shared.places[reader] = position
            if (hold := shared.holds.get(reader)) is not None:
                hold.release(shared.view.base_at(position))
            shared.release()

    def size(self, fmt: Format, otherwise: Callable[[], int]) -> int:
        """Bytes from the origin to the end; `otherwise` is asked where nobody holds the log."""
        views = self._views.get(fmt)
        try:
            newest = views[-1] if views else None
        except IndexError:
            newest = None  # the last reader has just gone
        return otherwise() if newest is None else _size(newest)

    def is_held(self, fmt: Format) -> bool:
        """Whether anybody holds the log open in a format."""
        return bool(self._views.get(fmt))

    @property
    def readers(self) -> int:
        """How many hold the log open."""
        return sum(len(shared.places) for views in list(self._views.values()) for shared in list(views))


def _size(shared: SharedLogView) -> int:
    return shared.excess + shared.view.size()
