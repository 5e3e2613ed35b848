"""A topic as one file: the records that all its partitions had at one moment, merged by their timestamps.

Its size is that of its partitions' views together, as merging changes only the order of lines. A reader that begins
somewhere in the middle, as `tail` does, finds the last time up to which there are no more bytes than that, by
bisection: at each time the size maps tell how many bytes come before it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Final

from topicfs.engine.batch.table import Bytes
from topicfs.engine.errors import CorruptBatchError
from topicfs.engine.partition.hold import Hold
from topicfs.engine.partition.timestamps import first_offset
from topicfs.fs import errors
from topicfs.fs.entry import Handle
from topicfs.fs.formats import Format
from topicfs.fs.views.handle import FOLLOW_WAIT
from topicfs.fs.views.merging import NOTHING, Source, next_lines
from topicfs.fs.views.partition_views import PartitionViews
from topicfs.fs.views.view import View

_UNDATED: Final = -1
"""The time of records without one: all records come from there on."""


class MergedHandle(Handle):
    """An open merged file, which never changes.

    _views    the view of each partition, by their numbers
    _sources  what is still to be merged behind the block
    _start    where the block begins
    _block    the lines that were merged last
    """

    is_settled = True

    def __init__(
        self, parts: Sequence[tuple[PartitionViews, int, int]], fmt: Format, content: Hashable
    ) -> None:
        self._content = content
        self._format = fmt
        self._lock = threading.Lock()
        with contextlib.ExitStack() as opened:
            self._views = [
                opened.enter_context(View.open(views.rendered, fmt, start, end))
                for views, start, end in parts
            ]
            self._close = opened.pop_all().close
        self._sizes = [view.size() for view in self._views]
        self._begin([view.start_offset for view in self._views], 0)

    def size(self) -> int:
        return sum(self._sizes)

    def content(self) -> Hashable:
        return self._content

    def read(self, position: int, into: Bytes) -> int:
        with self._lock:
            done = 0
            while done < into.size and position + done < self.size():
                place = position + done - self._start
                if not 0 <= place < self._block.size:
                    self._go_to(position + done)
                    place = position + done - self._start
                part = self._block[place : place + into.size - done]
                into[done : done + part.size] = part
                done += part.size
            return done

    def window(self, position: int) -> tuple[int, Bytes] | None:
        with self._lock:
            return (self._start, self._block) if 0 <= position - self._start < self._block.size else None

    def release(self) -> None:
        self._close()

    def _begin(self, offsets: Sequence[int], position: int) -> None:
        """Merge from these offsets on, which is the position in the file."""
        self._start, self._block = position, NOTHING
        self._sources = [
            Source(view.rendered.partition, self._format, view.now, offset, view.end_offset or 0)
            for view, offset in zip(self._views, offsets, strict=True)
        ]

    def _go_to(self, position: int) -> None:
        """Merge up to the block that has a position."""
        behind = self._start + self._block.size
        # To merge a few blocks more costs less than to look for a time.
        if not behind <= position < behind + (4 << 20):
            self._begin(*self._before(position))
        while not self._start <= position < self._start + self._block.size:
            self._start, self._block = self._start + self._block.size, NOTHING
            try:
                self._block = next_lines(self._sources)
            except BaseException:
                # What comes behind damage is found by its time, as from anywhere else.
                self._start = self.size()
                raise
            if not self._block.size:
                raise CorruptBatchError(f"byte {position} of {self.size()}: the lines end at {self._start}")

    def _before(self, position: int) -> tuple[list[int], int]:
        """Return the offsets from the last time on up to which there are at most so many bytes, and their number."""
        low, found = _UNDATED, ([view.start_offset for view in self._views], 0)
        high = max((view.now().segments.last.largest_timestamp for view in self._views), default=0) + 1
        while high - low > 1:
            middle = (low + high) // 2
            offsets = [self._first_at(view, middle) for view in self._views]
            size = sum(view.position_of(offset) for view, offset in zip(self._views, offsets, strict=True))
            if size <= position:
                low, found = middle, (offsets, size)
            else:
                high = middle
        return found

    @staticmethod
    def _first_at(view: View, time: int) -> int:
        return min(max(first_offset(view.now(), time), view.start_offset), view.end_offset or 0)


class _Followed:
    """One partition of a follower.

    views   its views
    source  what of it is still to be merged
    _hold   keeps that readable
    """

    def __init__(self, views: PartitionViews, fmt: Format, start: int) -> None:
        self.views = views
        self._hold = Hold(views.partition.log.snapshot)
        self.source = Source(views.partition, fmt, lambda: self._hold.snapshot, start, start)

    def extend(self) -> bool:
        """Take up what has come to the partition. Return False if nothing has."""
        partition, source = self.views.partition, self.source
        partition.catch_up()
        partition.log.check_open()
        stable = partition.stable_offset
        if stable <= source.end:
            return False
        hold = Hold.take(partition.log, source.end, stable)
        self._hold.release()
        self._hold = hold
        source.offset = max(source.offset, min(hold.snapshot.start, stable))
        source.extend(stable)
        return True

    def release(self) -> None:
        self._hold.release()


class MergedFollowHandle(Handle):
    """A reader of the records that come to any partition after the open, also to one that is made later. Those that are
    there when it reads are merged; a later one comes behind them, whatever its timestamp.

    _present   gives the views of the partitions that are there, by their numbers
    _followed  the partitions that are followed, by their numbers
    _ready     merged lines that were not read yet
    _news      set when a log has changed
    _given_up  tells whether the caller of a read no longer waits
    _lock      held while lines are merged and given, but not while a read waits: several threads may read
    """

    waits = True

    def __init__(
        self, present: Callable[[], Sequence[PartitionViews]], fmt: Format, given_up: Callable[[], bool]
    ) -> None:
        self._present = present
        self._format = fmt
        self._given_up = given_up
        self._ready: Bytes = NOTHING
        self._news = threading.Event()
        self._lock = threading.Lock()
        self._followed: dict[int, _Followed] = {}
        for views in present():
            self._follow(views, views.partition.stable_offset)

    def size(self) -> None:
        return None

    def read(self, position: int, into: Bytes) -> int:
        while True:
            self._news.clear()
            with self._lock:
                done = self._take(into)
            if done:
                return done
            if not self._news.wait(FOLLOW_WAIT) and self._given_up():
                raise errors.TryAgainError("no new record yet")

    def _take(self, into: Bytes) -> int:
        """Give the next lines. Return 0 if there are none yet."""
        while not self._ready.size:
            self._ready = next_lines([each.source for each in self._followed.values()])
            if not self._ready.size and not self._extend():
                return 0
        part = self._ready[: into.size]
        into[: part.size] = part
        self._ready = self._ready[part.size :]
        return int(part.size)

    def _extend(self) -> bool:
        """Take up what has come to the partitions, and new partitions. Return False if nothing has come."""
        came = [each.extend() for each in self._followed.values()]
        for views in self._present():
            if views.partition.number not in self._followed:
                self._follow(views, views.partition.start_offset)
                came.append(self._followed[views.partition.number].extend())
        return any(came)

    def _follow(self, views: PartitionViews, start: int) -> None:
        self._followed[views.partition.number] = _Followed(views, self._format, start)
        self._followed = dict(sorted(self._followed.items()))
        views.partition.log.register_listener(self._news.set)

    def release(self) -> None:
        for each in self._followed.values():
            each.views.partition.log.remove_listener(self._news.set)
            each.release()
