"""A view: the records of an offset range, in a format, as one run of bytes.

A view consists of consecutive rendered segments. It pins the segments that existed when it was opened, and those that
come while it is open, until its reader has passed them. So what it has promised to show stays readable.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from dataclasses import dataclass
from typing import Self

from topicfs.engine.batch.table import Bytes
from topicfs.engine.errors import ClosedError, CorruptError
from topicfs.engine.partition.hold import Hold
from topicfs.engine.partition.snapshot import Snapshot
from topicfs.engine.record import MAX_INT64, NO_OFFSET
from topicfs.engine.segment.segment import Segment
from topicfs.engine.segment.segments import Segments
from topicfs.fs.formats import Format
from topicfs.fs.views.rendered_segment import RenderedSegment
from topicfs.fs.views.rendered_segments import RenderedSegments


@dataclass(frozen=True, slots=True)
class _Part:
    """One segment's part of a view: `start` is its position in the view, `skipped` the rendered bytes before it."""

    text: RenderedSegment
    start: int
    skipped: int


class View:
    """The records in [start_offset, end_offset), or from start_offset on if there is no end.

    rendered, format  the rendered segments of the partition, and the format of this view
    start_offset      the first offset
    end_offset        the offset behind the last one; None if the view grows with the log
    lone              whether the view shows one segment, and ends with it
    segments          the list to read by: the segments of the view, and newer ones, as transactions may end there
    _cuts             how many truncations there were when the view was opened, or was last known to be below them
    _seen             the published list of segments that was taken up completely; None if there is none
    _parts            the parts so far, by rising position; the tuple is replaced, never changed
    _end              the last part of a view with an end, and its bytes, once they are known; else None
    _hold             keeps the segments readable
    _searched         the last segment of the view, and the later one up to which all were searched for deciders
    _deciders         later segments in which transactions with records in the view were aborted; they are pinned too
    """

    def __init__(
        self,
        rendered: RenderedSegments,
        fmt: Format,
        start_offset: int,
        end_offset: int | None,
        hold: Hold,
        lone: bool = False,
    ) -> None:
        self.rendered = rendered
        self.format = fmt
        self.start_offset = start_offset
        self.end_offset = end_offset
        self.lone = lone
        self._segments = hold.snapshot.segments
        self._cuts = hold.snapshot.cuts
        self._seen: Segments | None = None
        self._hold = hold
        self._parts: tuple[_Part, ...] = ()
        self._end: tuple[_Part, int] | None = None
        self._deciders: list[Segment] = []
        self._searched = (NO_OFFSET, NO_OFFSET)
        self._lock = threading.Lock()
        self._closed = False

    @classmethod
    def open(cls, rendered: RenderedSegments, fmt: Format, start: int, end: int | None = None) -> Self:
        """Open a view of the records that there are now, and of those that will come."""
        log = rendered.partition.log
        now = log.snapshot
        last = now.end if end is None else min(end, now.end)
        view = cls(rendered, fmt, start, end, Hold.take(log, start, max(start + 1, last)))
        rendered.open_views.add(view)
        return view

    @classmethod
    def of_segment(cls, rendered: RenderedSegments, fmt: Format, segment: Segment) -> Self:
        """Open a view of one segment, which grows with it. ClosedError if the segment was removed."""
        now = rendered.partition.log.snapshot
        segment.pin()
        view = cls(rendered, fmt, segment.base_offset, None, Hold(now, [segment]), lone=True)
        rendered.open_views.add(view)
        return view

    def close(self) -> None:
        """Release all segments, and drop their rendered blocks."""
        self.rendered.open_views.discard(self)
        with self._lock:
            self._closed = True
            self._hold.release()
            while self._deciders:
                self._deciders.pop().unpin()
            for part in self._parts:
                part.text.forget_blocks()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what it shows --------------------------------------------------------------------------------

    def size(self) -> int:
        """Return the present size of the view in bytes."""
        now = self._refresh()
        parts = self._parts
        return parts[-1].start + self._length(parts[-1], now) if parts else 0

    def read(self, position: int, into: Bytes) -> int:
        """Fill `into` from a position on. Return how many bytes there were."""
        now = self._refresh()
        done = 0
        while done < into.size:
            at = self._part_at(position + done)
            if at is None:
                break
            start = position + done - at.start
            length = min(into.size - done, self._length(at, now) - start)
            if length <= 0:
                break
            taken = at.text.read(at.skipped + start, into[done : done + length], now)
            self.rendered.used(at.text)
            # Where the read ends counts: those that follow in that block may be answered without a call of this.
            first = at.skipped + start
            wanted = at.text.next_wanted(first, first + max(taken, 1) - 1)
            if wanted is not None:
                self.rendered.read_ahead.ask(at.text, wanted, now)
            done += taken
            if taken < length:
                # Another reader has mapped more of the segment since this snapshot. The newest one shows all of it.
                newest = self._refresh()
                if newest.of(now.segments) == now:
                    raise CorruptError(
                        f"byte {position + done} of a view is missing from {at.text.segment.path}"
                    )
                now = newest
        # What was read while the log was cut, and appended to, may be of both.
        self._check_uncut(self.rendered.partition.log.snapshot)
        return done

    def window(self, position: int) -> tuple[int, Bytes] | None:
        """Return the rendered block that holds a position, as far as it belongs to the view: where it begins, and its
        bytes. None if it is not in memory."""
        now = self._refresh()
        part = self._found_part(position)
        block = None if part is None else part.text.kept_block(part.skipped + position - part.start)
        if part is None or block is None:
            return None
        first = max(block.start, part.skipped)
        end = min(block.end, part.skipped + self._length(part, now))
        return part.start + first - part.skipped, block.data[first - block.start : max(end - block.start, 0)]

    def now(self) -> Snapshot:
        """Return the newest snapshot, with the segments of the view."""
        return self._refresh()

    def position_of(self, offset: int) -> int:
        """Return where the first record at or above `offset` begins."""
        now = self._refresh()
        for part in reversed(self._parts):
            if part.text.segment.base_offset <= offset:
                inside = part.text.position_of(offset, now)
                return part.start + max(0, inside - part.skipped)
        return self._parts[0].start if self._parts else 0

    def shows_all_from(self, offset: int) -> bool:
        """Tell whether the view has the same segments as the log from `offset` on: none was rewritten since."""
        self._refresh()
        current = self.rendered.partition.log.snapshot.segments
        first = current.floor(offset) or current.first
        mine = [part.text.segment for part in self._parts]
        mine = [segment for segment in mine if segment.base_offset >= first.base_offset]
        return not self._parts or (bool(mine) and mine[0] is first and all(s in current for s in mine))

    def base_at(self, position: int) -> int:
        """Return the base offset of the segment that holds a position; -1 if there is none yet."""
        part = self._part_at(position)
        return -1 if part is None else part.text.segment.base_offset

    def first(self, position: int) -> int:
        """Return which position of the view is the file's first, if a reader begins to read at a position: always 0, as
        the view is not shared."""
        return 0

    def passed(self, position: int) -> None:
        """Release what the only reader has passed. A view with an end keeps all of it; one without may be followed for
        ever."""
        if self.end_offset is None:
            self.release_below(position)

    def release_below(self, position: int) -> None:
        """Release the segments that end before a position. They can be read again as long as the log has them."""
        parts = self._parts
        part = self._part_at(position) if parts and position >= parts[0].start else None
        if part is not None:
            with self._lock:
                base, current = part.text.segment.base_offset, self.rendered.partition.log.snapshot.segments
                self._hold.release(base)
                parts, gone = self._parts, 0
                while parts[gone].text.segment.base_offset < base and parts[gone].text.segment not in current:
                    gone += 1
                self._parts = parts[gone:]

    def keep_up(self) -> None:
        """Pin the segments that came since the last call on the view, before the log may remove them."""
        log = self.rendered.partition.log
        with self._lock:
            if self._closed or not self._hold.held:
                return
            now = log.snapshot
            if not self.lone:
                for segment in now.segments.from_base(self._hold.held[-1].base_offset + 1):
                    if self.end_offset is not None and segment.base_offset >= self.end_offset:
                        break
                    self._pin(segment)
            self._pin_deciders(now.segments)
            if self._parts:
                # The size of a segment is mapped while all of it is there. The segment may be gone from the log
                # already: in the published list another segment has its place, with other records.
                held = self._with_held(list(self._parts), now.segments)
                self._parts[-1].text.size(now.of(held))

    def _pin_deciders(self, current: Segments) -> None:
        first, last = self._hold.held[0], self._hold.held[-1]
        segment = current.higher(last.base_offset)
        end = MAX_INT64 if segment is None else segment.base_offset
        if self._searched[0] == last.base_offset:
            segment = current.higher(self._searched[1])
        while segment is not None:
            found, complete = segment.transactions.collect(first.base_offset, end)
            if found and segment not in self._deciders:
                try:
                    segment.pin()
                except ClosedError:
                    return  # it was removed before, and `keep_up` was called before that removal
                self._deciders.append(segment)
            following = None if complete else current.higher(segment.base_offset)
            if following is not None:
                # It is sealed, so its index does not grow. There may be thousands of segments without a transaction.
                self._searched = last.base_offset, segment.base_offset
            segment = following

    def _part_at(self, position: int) -> _Part | None:
        part, parts = self._found_part(position), self._parts
        if part is None and parts:
            raise ClosedError(
                f"byte {position} was read past, then removed: expected {parts[0].start} or more"
            )
        return part

    def _found_part(self, position: int) -> _Part | None:
        parts = self._parts
        # An empty part begins where the next one does. The last part that begins there is meant.
        at = bisect_right(parts, position, key=lambda part: part.start) - 1
        return parts[at] if at >= 0 else None

    def _length(self, part: _Part, now: Snapshot) -> int:
        if self.end_offset is None or self.end_offset >= part.text.map.next_offset:
            size = part.text.size(now)
            if self.end_offset is None or self.end_offset >= part.text.map.next_offset:
                return size - part.skipped
        if self._end is not None and self._end[0] is part:
            return self._end[1]
        length = max(0, part.text.position_of(self.end_offset, now, is_end=True) - part.skipped)
        if now.stable >= self.end_offset:
            # It stays there. To measure it reads a batch, which was half of what a short read costs.
            self._end = part, length
        return length

    def _refresh(self) -> Snapshot:
        """Take up the segments that have become visible, and return the newest snapshot with the view's segments."""
        now = self.rendered.partition.log.snapshot
        self._check_uncut(now)
        if now.segments is not self._seen:
            with self._lock:
                self._take_up(now)
        return now.of(self._segments)

    def _check_uncut(self, now: Snapshot) -> None:
        """Raise CorruptError if a truncation has removed records that the view shows, or may have shown."""
        if now.cuts == self._cuts:
            return
        end = self.end_offset
        if self.lone:
            following = self._hold.snapshot.segments.higher(self.start_offset)
            end = None if following is None else following.base_offset
        self.rendered.partition.log.check_uncut(self._cuts, end)
        self._cuts = now.cuts

    def _take_up(self, taken: Snapshot) -> None:
        if taken.stable < self.start_offset:
            # The log does not reach the first record yet, so it is not known where that record will begin.
            return
        parts = list(self._parts)
        last = parts[-1].text.segment.base_offset if parts else -1
        coming = [s for s in self._hold.held if s.base_offset > last] or [*taken.segments.from_base(last + 1)]
        if self.lone:
            coming = [] if parts else coming[:1]
        elif coming:
            coming += taken.segments.from_base(coming[-1].base_offset + 1)
        while not parts and len(coming) > 1 and coming[1].base_offset <= self.start_offset:
            del coming[0]
        pinned = set(map(id, self._hold.held))
        self._segments = self._with_held(parts, taken.segments)
        now = taken.of(self._segments)
        complete = True
        for segment in coming:
            if self.end_offset is not None and segment.base_offset >= self.end_offset:
                break
            if parts and segment.base_offset > now.stable:
                # The segment before it may still grow, when a transaction is committed: its size is not known yet.
                complete = False
                break
            if id(segment) not in pinned and not self._pin(segment):
                continue
            self._add(parts, segment, now)
        self._parts = tuple(parts)
        self._seen = taken.segments if complete else None

    def _with_held(self, parts: list[_Part], current: Segments) -> Segments:
        """Return the list of segments to read by. It includes held segments that are gone from the log. It has no gap,
        as a segment ends where the next one begins, and its transactions may end in later ones."""
        mine = [part.text.segment for part in parts]
        mine += [s for s in self._hold.held if not mine or s.base_offset > mine[-1].base_offset]
        following = self._hold.snapshot.segments.higher(mine[-1].base_offset) if self.lone else None
        if following is not None:
            mine.append(following)
        mine += [s for s in self._deciders if s.base_offset > mine[-1].base_offset]
        return _joined(mine, current)

    def _pin(self, segment: Segment) -> bool:
        if self._closed:
            return True
        try:
            segment.pin()
        except ClosedError:
            return False  # removed before it was visible here: nobody was promised it
        self._hold.held.append(segment)
        return True

    def _add(self, parts: list[_Part], segment: Segment, now: Snapshot) -> None:
        text = self.rendered.of(segment, self.format)
        if parts:
            before = parts[-1]
            parts.append(_Part(text, before.start + self._length(before, now), 0))
        else:
            parts.append(_Part(text, 0, text.position_of(self.start_offset, now)))


def _joined(mine: list[Segment], current: Segments) -> Segments:
    """Join the segments of a view and the newer ones. Some of the view's segments may be gone from the log."""
    if all(segment in current for segment in mine):
        return current
    newer = current.from_base(mine[-1].base_offset + 1)
    return Segments.of([*mine, *newer])
