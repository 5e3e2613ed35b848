"""A partition as it is shown: what its views share."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from topicfs.engine.errors import ClosedError
from topicfs.engine.files.birth import Birth, birth
from topicfs.engine.partition.offsets import LogOffsets
from topicfs.engine.partition.partition import Partition
from topicfs.engine.record import Record
from topicfs.engine.segment.segment import Segment
from topicfs.engine.segment.segments import Segments
from topicfs.fs.appending.linger import Linger
from topicfs.fs.appending.partition_writers import PartitionWriters
from topicfs.fs.entry import Entry, Remembered
from topicfs.fs.formats import Format
from topicfs.fs.views.read_ahead import ReadAhead
from topicfs.fs.views.rendered_segments import RenderedSegments, ViewCache
from topicfs.fs.views.shared_log_view import SharedLogViews

RANGES: Final = 1024
"""Ranges that are remembered from a look at their name to its opening."""

SERIALS: Final = itertools.count(1)
"""Of what the kernel is to tell apart, in the life of the daemon."""


@dataclass(frozen=True, slots=True)
class _SealedSum:
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


class PartitionViews:
    """What views of one partition share.

    partition  theirs
    rendered   its segments in all formats
    writers    what its writers share
    written     the active segment and its size when its file's time was last asked for, and that time
    _last_record the record that was last asked for, and the segments in which it was found
    serial      tells it from others that had its name, and from each segment that was in it
    rewrites    counts how often segments were, or are about to be, replaced by others
    ranges      what names stood for lately that stand for other offsets each time
    _incarnation the partition's directory
    _born       by base offset: a segment, its file, and a serial
    shared_log  the views of the whole log that somebody holds open
    _sealed_sizes what sealed segments add up to, by format
    _stored_sealed bytes of the sealed segments' `.log` files, and the segments
    """

    def __init__(
        self, partition: Partition, view_cache: ViewCache, linger: Linger, read_ahead: ReadAhead | None = None
    ) -> None:
        self.partition = partition
        self.rendered = RenderedSegments(partition, view_cache, read_ahead)
        self.shared_log = SharedLogViews(self.rendered)
        self.writers = PartitionWriters(partition, linger, self.rendered.note)
        self.serial = next(SERIALS)
        self.rewrites = 0
        self.ranges: Remembered[Entry] = Remembered(RANGES)
        self._incarnation: Birth | None = None
        self._born: dict[int, tuple[Segment, Birth, int]] = {}
        self.written: tuple[Segment, int, int] | None = None
        self._last_record: tuple[Segments, Record] | None = None
        self._sealed_sizes: dict[str, _SealedSum] = {}
        self._stored_sealed: tuple[Segments, int] | None = None
        self._lock = threading.Lock()

    def before_removal(self, segments: Sequence[Segment]) -> None:
        """Retention or compaction is about to take segments out of the log: who has them open keeps them."""
        start, chain = self.partition.start_offset, self.partition.log.chain.segments
        following = [chain.higher(segment.base_offset) for segment in segments]
        if any(each is None or each.base_offset > start for each in following):
            # Not by retention, which removes what is below the start offset.
            with self._lock:
                self.rewrites += 1
        self.rendered.keep_for_readers()

    def forget_removed(self) -> None:
        """Let go of what is known of segments that are gone."""
        self.rendered.forget_removed()
        segments = self.partition.log.chain.segments
        with self._lock:
            for base, (segment, _, _) in list(self._born.items()):
                if segments.at(base) is not segment:
                    del self._born[base]

    @property
    def incarnation(self) -> Birth:
        """Tells the partition from another one that had its name before; the same after a restart."""
        if self._incarnation is None:
            self._incarnation = birth(self.partition.directory)
        return self._incarnation

    def born(self, segment: Segment) -> tuple[Birth, int]:
        """The file of a segment, which is the same after a restart, and a serial, which is not: some file systems do
        not tell when a file was made. FileNotFoundError where it was removed."""
        known = self._born.get(segment.base_offset)
        if known is None or known[0] is not segment:
            known = segment, birth(segment.log.path), next(SERIALS)
            with self._lock:
                present = self._born.get(segment.base_offset)
                if present is not None and present[0] is segment:
                    known = present
                elif segment in self.partition.log.chain.segments:
                    self._born[segment.base_offset] = known
        return known[1:]

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

    def log_size(self, fmt: Format) -> int:
        """Bytes of the whole log, counted from the origin of those who hold it."""
        return self.shared_log.size(fmt, lambda: self._size_from_start(fmt))

    def _size_from_start(self, fmt: Format) -> int:
        log = self.partition.log
        while True:
            offsets, segments = log.offsets, log.chain.segments
            try:
                return self._size_of(fmt, segments, offsets)
            except ClosedError:
                # A segment was removed while it was measured: the log has others now. Or it is closed itself.
                if log.chain.segments is segments:
                    raise

    def _size_of(self, fmt: Format, segments: Segments, offsets: LogOffsets) -> int:
        sealed = self._sealed_sizes.get(fmt.suffix)
        if sealed is None or sealed.segments is not segments or sealed.start != offsets.start:
            sealed = self._measure(fmt, segments, offsets)
        text = self.rendered.of(sealed.last, fmt)
        return sealed.size + text.size(segments, offsets) - sealed.skipped

    def _measure(self, fmt: Format, segments: Segments, offsets: LogOffsets) -> _SealedSum:
        """Add up the segments that can grow no more: later questions then ask the last one only."""
        size = skipped = 0
        first = segments.floor(offsets.start) or segments.first
        last = first
        for segment in segments.from_base(first.base_offset):
            if segment is not first and segment.base_offset > offsets.stable:
                break
            if segment is not first:
                size += self.rendered.of(last, fmt).size(segments, offsets) - skipped
                skipped = 0
            else:
                skipped = self.rendered.of(first, fmt).position_of(offsets.start, segments, offsets)
            last = segment
        sealed = _SealedSum(segments, offsets.start, size, last, skipped)
        if last is segments.last:
            self._sealed_sizes[fmt.suffix] = sealed
        return sealed

    def stored(self) -> int:
        """Bytes of all `.log` files. Of the sealed segments they are added up once: each command asks for it."""
        segments = self.partition.log.chain.segments
        known = self._stored_sealed
        if known is None or known[0] is not segments:
            last = segments.last
            known = segments, sum(segment.size for segment in segments if segment is not last)
            self._stored_sealed = known
        return known[1] + segments.last.size
