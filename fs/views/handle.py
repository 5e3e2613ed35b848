"""The handles of open files that show rendered records: a view, and what the kernel's page cache may keep of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

from topicfs.engine.batch.table import Bytes
from topicfs.engine.errors import ClosedError
from topicfs.fs import errors
from topicfs.fs.entry import Handle
from topicfs.fs.views.shared_log_view import LogReader
from topicfs.fs.views.view import View

FOLLOW_WAIT: Final = 0.2
"""Seconds after which a waiting read checks whether its caller still waits: Ctrl-C works within that time."""


class ViewHandle(Handle):
    """An open view, or a reader of the shared log view. The kernel keeps the pages of a view that can no longer change.

    _view     the view that is shown
    _reader   what is told how far the handle has read: the view, or the reader of the shared log view
    _content  what the shown bytes depend on, beside the version
    _first    which position of the view is the file's first; None before the first read
    _base     the base offset of the segment that was read last
    """

    is_settled = True

    def __init__(self, reader: View | LogReader, final: bool = False, content: Hashable = None) -> None:
        self._reader = reader
        self._view = reader if isinstance(reader, View) else reader.shared.view
        self.is_shared = reader is not self._view
        self._content = id(self._view) if self.is_shared else content
        self._first: int | None = None
        self._base = -1
        self.direct_io, self.keep_cache = not final, final

    def size(self) -> int | None:
        return None if self.is_shared else self._view.size()

    def content(self) -> Hashable:
        # Size and positions of a shared view count from the origin. The file has one set of pages, so they cannot begin
        # elsewhere.
        if self._first:
            raise errors.SharedPagesError("the log was opened behind its origin, which somebody holds")
        return self._content

    def read(self, position: int, into: Bytes) -> int:
        if self._first is None:
            self._first = self._reader.first(position)
        place = self._first + position
        if place < 0:
            raise ClosedError(f"byte {position} was there before compaction: nobody keeps it")
        done = self._view.read(place, into)
        base = self._view.base_at(place)
        if base != self._base and not self.is_paged:
            self._base = base
            self._reader.passed(place)
        return done

    def window(self, position: int) -> tuple[int, Bytes] | None:
        first = self._first or 0
        found = self._view.window(first + position)
        if found is None:
            return None
        start, data = found
        return max(start - first, 0), data[max(first - start, 0) :]

    def persist(self) -> None:
        if self.is_shared:
            self._view.rendered.partition.flush()

    def release(self) -> None:
        self._reader.close()


class FollowHandle(ViewHandle):
    """A reader of the records that come after the open. A read waits while there are none.

    _given_up  tells whether the caller of a read no longer waits
    """

    waits = True

    def __init__(self, view: View, given_up: Callable[[], bool]) -> None:
        super().__init__(view)
        self._given_up = given_up

    def size(self) -> None:
        return None

    def window(self, position: int) -> None:
        return None

    def read(self, position: int, into: Bytes) -> int:
        # The kernel's position is its own count of what was read. It equals ours, since nothing is skipped. The kernel
        # also lets only one thread at a time read from a descriptor.
        log = self._view.rendered.partition.log
        while True:
            log.catch_up()
            seen = log.snapshot.stable
            done = self._view.read(position, into)
            if done:
                self._view.release_below(position)
                return done
            if not log.wait_for(seen, FOLLOW_WAIT) and self._given_up():
                raise errors.TryAgainError("no new record yet")
