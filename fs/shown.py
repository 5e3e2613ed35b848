"""A partition as it is shown: what its views share, and the writers that are about to close."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from engine.partition.hold import Hold
from engine.partition.offsets import Offsets
from engine.partition.partition import Partition
from engine.record import Record
from engine.segment.segment import Segment
from engine.segment.segments import Segments
from fs.ahead import ReadAhead
from fs.formats import Format
from fs.texts import PartitionTexts, Shelf
from fs.view import View

CLOSE_GRACE: Final = 0.1
"""Seconds that a reader waits for a close to finish: the kernel sends the last one after close(2) returned."""


@dataclass(slots=True)
class _Shared:
    """A view of the whole log, and who has it open.

    places  where each reader is
    holds   what was promised to readers that came later: the view may have let go of it, as all others were past it
    """

    view: View
    places: dict[object, int] = field(default_factory=dict)
    holds: dict[object, Hold] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Sealed:
    """What the segments of a list add up to in a format, but for the last one that shows.

    segments, start  the list, and the start offset
    size             bytes of all before `last`
    last             the segment that may grow
    skipped          bytes of it that lie below the start offset
    """

    segments: Segments
    start: int
    size: int
    last: Segment
    skipped: int


class ShownPartition:
    """What views of one partition share.

    partition  theirs
    texts      its segments in all formats
    refusal    why an append was last refused, in words, with its time in milliseconds; None if none was
    written     the active segment and its size when its file's time was last asked for, and that time
    _last_record the record that was last asked for, and the segments in which it was found
    _logs      views of the whole log that somebody holds open, by format: they keep their byte origin
    _sealed_sizes what sealed segments add up to, by format
    _closing   writers with an unfinished line whose descriptor was closed: its last close is under way
    """

    def __init__(self, partition: Partition, shelf: Shelf, ahead: ReadAhead | None = None) -> None:
        self.partition = partition
        self.texts = PartitionTexts(partition, shelf, ahead)
        self.refusal: tuple[int, str] | None = None
        self.written: tuple[Segment, int, int] | None = None
        self._last_record: tuple[Segments, Record] | None = None
        self._logs: dict[str, _Shared] = {}
        self._sealed_sizes: dict[str, _Sealed] = {}
        self._lock = threading.Lock()
        self._closed = threading.Condition()
        self._closing: dict[object, float] = {}

    def before_removal(self, segments: Sequence[Segment]) -> None:
        """Retention or compaction is about to take segments out of the log: who has them open keeps them."""
        self.texts.keep_for_readers()

    def record(self, offset: int) -> Record | None:
        """A record by its offset. stat, open and read of one file each ask for it: the last one is remembered."""
        segments = self.partition.log.chain.segments
        last = self._last_record
        if last is not None and last[0] is segments and last[1].offset == offset:
            return last[1] if offset >= self.partition.start_offset else None
        record = self.partition.record(offset)
        if record is not None:
            self._last_record = (segments, record)
        return record

    # -- the whole log --------------------------------------------------------------------------------

    def hold_log(self, fmt: Format, reader: object) -> View:
        """The view of the whole log, shared with all who hold it: its positions count from one origin."""
        with self._lock:
            now = self.partition.offsets
            start = now.start
            place = 0
            shared = self._logs.get(fmt.suffix)
            if shared is None:
                shared = self._logs[fmt.suffix] = _Shared(View.open(self.texts, fmt, start))
            else:
                if start > shared.view.start_offset:
                    place = shared.view.position_of(start)
                shared.holds[reader] = Hold.take(self.partition.log.chain, start, max(start + 1, now.end))
            shared.places[reader] = place
            return shared.view

    def let_go_of_log(self, fmt: Format, reader: object) -> None:
        """One reader less. After the last one the origin is the start offset again."""
        with self._lock:
            shared = self._logs[fmt.suffix]
            del shared.places[reader]
            if (hold := shared.holds.pop(reader, None)) is not None:
                hold.release()
            if shared.places:
                shared.view.release_below(min(shared.places.values()))
            else:
                del self._logs[fmt.suffix]
                shared.view.close()

    def move_in_log(self, fmt: Format, reader: object, position: int) -> None:
        """A reader came to another segment: what all of them have read past is let go, or a `tail -f` would keep
        retention from freeing anything."""
        with self._lock:
            shared = self._logs[fmt.suffix]
            shared.places[reader] = position
            if (hold := shared.holds.get(reader)) is not None:
                hold.release(shared.view.base_at(position))
            shared.view.release_below(min(shared.places.values()))

    def log_size(self, fmt: Format) -> int:
        """Bytes of the whole log, counted from the origin of those who hold it."""
        shared = self._logs.get(fmt.suffix)
        if shared is not None:
            return shared.view.size()
        log = self.partition.log
        offsets, segments = log.offsets, log.chain.segments
        sealed = self._sealed_sizes.get(fmt.suffix)
        if sealed is None or sealed.segments is not segments or sealed.start != offsets.start:
            sealed = self._measure(fmt, segments, offsets)
        text = self.texts.of(sealed.last, fmt)
        return sealed.size + text.size(segments, offsets) - sealed.skipped

    def _measure(self, fmt: Format, segments: Segments, offsets: Offsets) -> _Sealed:
        """Add up the segments that can grow no more: later questions then ask the last one only."""
        size = skipped = 0
        first = segments.floor(offsets.start) or segments.first
        last = first
        for segment in segments.from_base(first.base_offset):
            if segment is not first and segment.base_offset > offsets.stable:
                break
            if segment is not first:
                size += self.texts.of(last, fmt).size(segments, offsets) - skipped
                skipped = 0
            else:
                skipped = self.texts.of(first, fmt).position_of(offsets.start, segments, offsets)
            last = segment
        sealed = _Sealed(segments, offsets.start, size, last, skipped)
        if last is segments.last:
            self._sealed_sizes[fmt.suffix] = sealed
        return sealed

    @property
    def open_logs(self) -> int:
        """How many hold a view of the whole log."""
        return sum(len(shared.places) for shared in self._logs.values())

    def note_refusal(self, error: Exception) -> None:
        """Remember why an append was refused: an errno is all that the writer was told."""
        self.refusal = (self.partition.log.clock(), str(error))

    # -- closing writers ------------------------------------------------------------------------------

    def begin_close(self, writer: object) -> None:
        """A descriptor of a writer was closed in the middle of a line: perhaps its last."""
        self._closing[writer] = time.monotonic() + CLOSE_GRACE

    def end_close(self, writer: object) -> None:
        """The writer is gone, or goes on writing."""
        if self._closing.pop(writer, None) is not None:
            with self._closed:
                self._closed.notify_all()

    def await_closing(self) -> None:
        """Wait briefly for closes that are under way, so that what a command wrote shows in the next one."""
        while self._closing:
            with self._closed:
                latest = max(self._closing.values(), default=0.0)
                left = latest - time.monotonic()
                if left <= 0:
                    return
                self._closed.wait(left)
