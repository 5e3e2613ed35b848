"""A view: the records of an offset range, in a format, as one run of bytes.

A view is made of segments' texts, one behind the other. It pins the segments that it was opened on, and those
that come while it is open, until they have been read past: what it promised to show stays readable.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from dataclasses import dataclass
from typing import Self

from topicfs.engine.batch.table import Bytes
from topicfs.engine.errors import ClosedError, CorruptError
from topicfs.engine.partition.hold import Hold
from topicfs.engine.partition.offsets import LogOffsets
from topicfs.engine.record import MAX_INT64, NO_OFFSET
from topicfs.engine.segment.segment import Segment
from topicfs.engine.segment.segments import Segments
from topicfs.fs.formats import Format
from topicfs.fs.views.rendered_segment import RenderedSegment
from topicfs.fs.views.rendered_segments import RenderedSegments


@dataclass(frozen=True, slots=True)
class _Part:
    """One segment's share: `start` is its position in the view, `skipped` the bytes of the text before it."""

    text: RenderedSegment
    start: int
    skipped: int


class View:
    """The records in [start_offset, end_offset), or from start_offset on where there is no end.

    texts, format  what is shown, and how
    start_offset   the first record
    end_offset     behind the last one; None where the view grows with the log
    lone           the view is of one segment, and ends with it
    segments       those that it is made of, with newer ones: transactions in it may end there
    _seen          the published list of which everything was taken up
    _parts         shares of the segments so far, by rising position; replaced as a whole
    _hold          keeps them readable
    _searched      for the last segment of the view: up to which later one all were looked at for that
    _deciders      later segments, pinned as well: transactions that have records in the view were aborted there
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
        self.segments = hold.segments
        self._seen: Segments | None = None
        self._hold = hold
        self._parts: tuple[_Part, ...] = ()
        self._deciders: list[Segment] = []
        self._searched = (NO_OFFSET, NO_OFFSET)
        self._lock = threading.Lock()
        self._closed = False

    @classmethod
    def open(cls, rendered: RenderedSegments, fmt: Format, start: int, end: int | None = None) -> Self:
        """A view of what is there now, and of what comes."""
        log = rendered.partition.log
        now = log.offsets
        last = now.end if end is None else min(end, now.end)
        view = cls(rendered, fmt, start, end, Hold.take(log.chain, start, max(start + 1, last)))
        rendered.open_views.add(view)
        return view

    @classmethod
    def of_segment(cls, rendered: RenderedSegments, fmt: Format, segment: Segment) -> Self:
        """A view of one segment, as far as it grows. ClosedError where it was removed."""
        segments = rendered.partition.log.chain.segments
        segment.pin()
        view = cls(rendered, fmt, segment.base_offset, None, Hold(segments, [segment]), lone=True)
        rendered.open_views.add(view)
        return view

    def close(self) -> None:
        """Let go of the segments."""
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
        """Bytes of the view now."""
        offsets = self._refresh()
        parts = self._parts
        return parts[-1].start + self._length(parts[-1], offsets) if parts else 0

    def read(self, position: int, into: Bytes) -> int:
        """Fill `into` from a position on. Gives how many bytes there were."""
        offsets = self._refresh()
        done = 0
        while done < into.size:
            at = self._part_at(position + done)
            if at is None:
                break
            start = position + done - at.start
            length = min(into.size - done, self._length(at, offsets) - start)
            if length <= 0:
                break
            taken = at.text.read(at.skipped + start, into[done : done + length], self.segments, offsets)
            self.rendered.used(at.text)
            wanted = at.text.next_wanted(at.skipped + start)
            if wanted is not None:
                self.rendered.read_ahead.ask(at.text, wanted, self.segments, offsets)
            done += taken
            if taken < length:
                # The text has grown since these offsets, by another reader's look: newer ones show it all.
                if offsets is self.rendered.partition.log.offsets:
                    raise CorruptError(
                        f"byte {position + done} of a view is missing from {at.text.segment.path}"
                    )
                offsets = self._refresh()
        return done

    def position_of(self, offset: int) -> int:
        """Where the first record at or above `offset` begins."""
        offsets = self._refresh()
        for part in reversed(self._parts):
            if part.text.segment.base_offset <= offset:
                inside = part.text.position_of(offset, self.segments, offsets)
                return part.start + max(0, inside - part.skipped)
        return self._parts[0].start if self._parts else 0

    def shows_all_from(self, offset: int) -> bool:
        """Whether it is made of the very segments that the log has from `offset` on: none was rewritten since."""
        self._refresh()
        current = self.rendered.partition.log.chain.segments
        first = current.floor(offset) or current.first
        mine = [part.text.segment for part in self._parts]
        mine = [segment for segment in mine if segment.base_offset >= first.base_offset]
        return not self._parts or (bool(mine) and mine[0] is first and all(s in current for s in mine))

    def base_at(self, position: int) -> int:
        """The base offset of the segment in which a position lies; -1 while there is none."""
        part = self._part_at(position)
        return -1 if part is None else part.text.segment.base_offset

    def release_below(self, position: int) -> None:
        """Let go of the segments that end before a position. They can be read again as long as the log has them."""
        parts = self._parts
        part = self._part_at(position) if parts and position >= parts[0].start else None
        if part is not None:
            with self._lock:
                base, current = part.text.segment.base_offset, self.rendered.partition.log.chain.segments
                self._hold.release(base)
                parts, gone = self._parts, 0
                while parts[gone].text.segment.base_offset < base and parts[gone].text.segment not in current:
                    gone += 1
                self._parts = parts[gone:]

    def keep_up(self) -> None:
        """Pin what came since somebody last looked: it may be about to be removed from the log."""
        log = self.rendered.partition.log
        with self._lock:
            if self._closed or not self._hold.held:
                return
            offsets, current = log.offsets, log.chain.segments
            if not self.lone:
                for segment in current.from_base(self._hold.held[-1].base_offset + 1):
                    if self.end_offset is not None and segment.base_offset >= self.end_offset:
                        break
                    self._pin(segment)
            self._pin_deciders(current)
            if self._parts:
                # What it is made of is known as long as it is all there. It may be gone from the log already: in the
                # list that is published now another segment has its place, and other records.
                self._parts[-1].text.size(self._with_held(list(self._parts), current), offsets)

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
                    return  # it went before, and was asked for then
                self._deciders.append(segment)
            following = None if complete else current.higher(segment.base_offset)
            if following is not None:
                # Sealed: nothing is added to its index. There may be thousands without a transaction.
                self._searched = last.base_offset, segment.base_offset
            segment = following

    def _part_at(self, position: int) -> _Part | None:
        parts = self._parts
        at = bisect_right(parts, position, key=lambda part: part.start) - 1
        # Empty parts begin where their successor does: the last that begins there is meant.
        if at >= 0:
            return parts[at]
        if parts:
            raise ClosedError(
                f"byte {position} was read past, then removed: expected {parts[0].start} or more"
            )
        return None

    def _length(self, part: _Part, offsets: LogOffsets) -> int:
        if self.end_offset is None or self.end_offset >= part.text.map.next_offset:
            size = part.text.size(self.segments, offsets)
            if self.end_offset is None or self.end_offset >= part.text.map.next_offset:
                return size - part.skipped
        return max(
            0, part.text.position_of(self.end_offset, self.segments, offsets, is_end=True) - part.skipped
        )

    def _refresh(self) -> LogOffsets:
        """Take up segments that have become visible since."""
        log = self.rendered.partition.log
        offsets, current = log.offsets, log.chain.segments
        if current is not self._seen:
            with self._lock:
                self._take_up(current, offsets)
        return offsets

    def _take_up(self, current: Segments, offsets: LogOffsets) -> None:
        if offsets.stable < self.start_offset:
            # The log does not reach to the first record: where that will begin is not known yet.
            return
        parts = list(self._parts)
        last = parts[-1].text.segment.base_offset if parts else -1
        coming = [s for s in self._hold.held if s.base_offset > last] or [*current.from_base(last + 1)]
        if self.lone:
            coming = [] if parts else coming[:1]
        elif coming:
            coming += current.from_base(coming[-1].base_offset + 1)
        while not parts and len(coming) > 1 and coming[1].base_offset <= self.start_offset:
            del coming[0]
        pinned = set(map(id, self._hold.held))
        self.segments = self._with_held(parts, current)
        complete = True
        for segment in coming:
            if self.end_offset is not None and segment.base_offset >= self.end_offset:
                break
            if parts and segment.base_offset > offsets.stable:
                # What is before it may still grow, when a transaction is committed: its place is not known yet.
                complete = False
                break
            if id(segment) not in pinned and not self._pin(segment):
                continue
            self._add(parts, segment, offsets)
        self._parts = tuple(parts)
        self._seen = current if complete else None

    def _with_held(self, parts: list[_Part], current: Segments) -> Segments:
        """The list to read by: what is held and gone from the log is in it too, without a gap, since a segment ends
        where the next one begins, and its transactions may end there."""
        mine = [part.text.segment for part in parts]
        mine += [s for s in self._hold.held if not mine or s.base_offset > mine[-1].base_offset]
        following = self._hold.segments.higher(mine[-1].base_offset) if self.lone else None
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

    def _add(self, parts: list[_Part], segment: Segment, offsets: LogOffsets) -> None:
        text = self.rendered.of(segment, self.format)
        if parts:
            before = parts[-1]
            parts.append(_Part(text, before.start + self._length(before, offsets), 0))
        else:
            parts.append(_Part(text, 0, text.position_of(self.start_offset, self.segments, offsets)))


def _joined(mine: list[Segment], current: Segments) -> Segments:
    """The segments of a view, and the newer ones: some of the view's may be gone from the log."""
    if all(segment in current for segment in mine):
        return current
    newer = current.from_base(mine[-1].base_offset + 1)
    return Segments.of([*mine, *newer])
