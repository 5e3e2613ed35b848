"""The shared log view: the whole log as one file, and how byte positions count while the log changes.

    origin                                                 size (what stat tells)
      |-- gone or rewritten --|-------- newest view ----------|
      0                    excess

A reader that opens `log.<format>` joins the newest view, so that positions count from one origin as long as any reader
holds it. Retention does not change the positions: a view keeps counting the segments that it has released. Compaction
does: a later reader must see the log as it is now, in a new view, which has fewer bytes. The size continues from the
old one, by `excess`, or `tail -f` would see a truncation. A handle that begins at byte 0 begins at the first record of
the newest view; one that begins elsewhere, as `tail` does, counts from the origin.
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
    """A view of the whole log, and the readers that have it open.

    excess  bytes from the origin to where the view begins
    places  the position of each reader in the view
    holds   by reader: segments pinned for a reader that joined later; the view may have released them, when all earlier
            readers were past them
    """

    view: View
    excess: int = 0
    places: dict[object, int] = field(default_factory=dict)
    holds: dict[object, Hold] = field(default_factory=dict)

    def release(self) -> None:
        """Release the segments that all readers have passed."""
        self.view.release_below(min(self.places.values()))


class SharedLogViews:
    """The views of one partition's whole log that some reader holds open.

    _views  the views by format, the newest last
    _lock   held while a reader joins, moves or leaves
    """

    def __init__(self, rendered: RenderedSegments) -> None:
        self._rendered = rendered
        self._views: dict[Format, list[SharedLogView]] = {}
        self._lock = threading.Lock()

    def join(self, fmt: Format, reader: object) -> SharedLogView:
        """Return the view that shows the log as it is now. Its positions continue those of earlier views."""
        log = self._rendered.partition.log
        with self._lock:
            views = self._views.setdefault(fmt, [])
            now = log.snapshot
            shared = views[-1] if views else None
            hold = None if shared is None else Hold.take(log, now.start, max(now.start + 1, now.end))
            # This is asked after the hold is taken, so what is rewritten from here on is held.
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
            # The order matters: what is appended in between can only make the size grow, never shrink.
            size = shared.view.size()
            shared.excess = max(0, _size(views[-1]) - size)
        views.append(shared)
        return shared

    def leave(self, fmt: Format, reader: object, shared: SharedLogView) -> None:
        """Remove a reader. After the last of all readers, the origin is the start offset again."""
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
        """Note that a reader has come to another segment, and release what all readers have passed. Otherwise a `tail
        -f` would keep retention from freeing anything."""
        with self._lock:
            shared.places[reader] = position
            if (hold := shared.holds.get(reader)) is not None:
                hold.release(shared.view.base_at(position))
            shared.release()

    def size(self, fmt: Format, otherwise: Callable[[], int]) -> int:
        """Return the bytes from the origin to the end, or `otherwise()` if no reader holds the log."""
        views = self._views.get(fmt)
        try:
            newest = views[-1] if views else None
        except IndexError:
            newest = None  # the last reader has just gone
        return otherwise() if newest is None else _size(newest)

    def is_held(self, fmt: Format) -> bool:
        """Tell whether some reader holds the log open in a format."""
        return bool(self._views.get(fmt))

    @property
    def readers(self) -> int:
        """Return how many readers hold the log open."""
        return sum(len(shared.places) for views in list(self._views.values()) for shared in list(views))


def _size(shared: SharedLogView) -> int:
    return shared.excess + shared.view.size()
