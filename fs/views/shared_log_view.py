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

import contextlib
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

    excess   bytes from the origin to where the view begins
    readers  the readers
    """

    view: View
    excess: int = 0
    readers: set[LogReader] = field(default_factory=set)

    def size(self) -> int:
        """Return the bytes from the origin to the end."""
        return self.excess + self.view.size()

    def release(self) -> None:
        """Release the segments that all readers have passed."""
        self.view.release_below(min(reader.place for reader in self.readers))


@dataclass(slots=True, eq=False)
class LogReader:
    """One reader of a shared log view.

    shared   the view that it joined
    place    its position in the view
    _hold    segments pinned for a reader that joined later; the view may have released them, when all earlier readers
             were past them
    _others  the shared views of this format, the newest last
    _lock    held while a reader joins, moves or leaves
    """

    shared: SharedLogView
    place: int
    _hold: Hold | None
    _others: list[SharedLogView]
    _lock: threading.Lock

    def first(self, position: int) -> int:
        """Return which position of the view is the file's first, if the reader begins to read at a position."""
        view = self.shared.view
        start = view.position_of(view.rendered.partition.start_offset)
        return start if position == 0 else -self.shared.excess

    def passed(self, position: int) -> None:
        """Note that the reader has come to another segment, and release what all readers have passed. Otherwise a
        `tail -f` would keep retention from freeing anything."""
        with self._lock:
            self.place = position
            if self._hold is not None:
                self._hold.release(self.shared.view.base_at(position))
            self.shared.release()

    def close(self) -> None:
        """Remove the reader. After the last of all readers, the origin is the start offset again."""
        with self._lock:
            self.shared.readers.remove(self)
            if self._hold is not None:
                self._hold.release()
            if self.shared.readers:
                self.shared.release()
            else:
                self._others.remove(self.shared)
                self.shared.view.close()


class SharedLogViews:
    """The views of one partition's whole log that some reader holds open.

    _views  the views by format, the newest last
    _lock   held while a reader joins, moves or leaves
    """

    def __init__(self, rendered: RenderedSegments) -> None:
        self._rendered = rendered
        self._views: dict[Format, list[SharedLogView]] = {}
        self._lock = threading.Lock()

    def join(self, fmt: Format) -> LogReader:
        """Open a reader of the view that shows the log as it is now. Its positions continue those of earlier views."""
        log = self._rendered.partition.log
        with self._lock, contextlib.ExitStack() as on_error:
            views = self._views.setdefault(fmt, [])
            now = log.snapshot
            shared = views[-1] if views else None
            hold = None if shared is None else Hold.take(log, now.start, max(now.start + 1, now.end))
            if hold is not None:
                on_error.callback(hold.release)
            # This is asked after the hold is taken, so what is rewritten from here on is held.
            if shared is None or not shared.view.shows_all_from(now.start):
                on_error.close()
                shared, hold = self._begin(fmt, now.start, views), None
            late = now.start > shared.view.start_offset
            place = shared.view.position_of(now.start) if late else 0
            reader = LogReader(shared, place, hold, views, self._lock)
            shared.readers.add(reader)
            on_error.pop_all()
            return reader

    def _begin(self, fmt: Format, start: int, views: list[SharedLogView]) -> SharedLogView:
        shared = SharedLogView(View.open(self._rendered, fmt, start))
        try:
            if views:
                # The order matters: what is appended in between can only make the size grow, never shrink.
                size = shared.view.size()
                shared.excess = max(0, views[-1].size() - size)
        except BaseException:
            shared.view.close()
            raise
        views.append(shared)
        return shared

    def size(self, fmt: Format, otherwise: Callable[[], int]) -> int:
        """Return the bytes from the origin to the end, or `otherwise()` if no reader holds the log."""
        # The last reader may go at any moment: a slice of an empty list is no error.
        newest = self._views.get(fmt, [])[-1:]
        return newest[0].size() if newest else otherwise()

    @property
    def readers(self) -> int:
        """Return how many readers hold the log open."""
        return sum(len(shared.readers) for views in list(self._views.values()) for shared in list(views))
