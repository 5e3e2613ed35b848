"""The state that all views of one partition share."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from topicfs.engine.files.birth import Birth, birth
from topicfs.engine.keys.index import KeyIndex
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.snapshot import Snapshot
from topicfs.engine.record import Record
from topicfs.engine.segment.segment import Segment
from topicfs.engine.segment.segments import Segments
from topicfs.fs.appending.partition_writers import PartitionWriters
from topicfs.fs.entry import SERIALS, Entry, Remembered
from topicfs.fs.formats import Format
from topicfs.fs.views.rendered_segments import RenderedSegments
from topicfs.fs.views.shared_log_view import SharedLogViews

if TYPE_CHECKING:
    from topicfs.fs.appending.key_writer import KeyWriter
    from topicfs.fs.context import Context

RANGES: Final = 1024
"""How many resolved ranges are remembered between the look-up of a name and its opening."""

LONG_KEYS: Final = 256
"""How many long keys are remembered by partition. Any other is looked for in all keys, when its name is looked up."""


@dataclass(frozen=True, slots=True)
class _SealedSum:
    """The size of a list of segments in one format, except for the last segment that is visible.

    segments, start  the list of segments, and the start offset, for which the sum holds
    size             bytes of all segments before `last`
    last             the last visible segment, which may still grow
    skipped          bytes of `last` that lie below the start offset
    """

    segments: Segments
    start: int
    size: int
    last: Segment
    skipped: int


class PartitionViews:
    """What the views of one partition share.

    partition       the partition that is shown
    context         the context that the whole tree shares
    rendered        its rendered segments, in all formats
    writers         what the writers of the partition share
    written         the active segment, its size and its file's modification time, when that time was last read
    _last_record    the record that was last asked for, and the list of segments in which it was found
    serial          a number that differs for earlier partitions of the same name, and for each segment of this one
    cuts            how many truncations there were when these views were made: after another one they show no more
    rewrites        how often segments were replaced by others, or are about to be
    ranges          resolved ranges whose names stand for other offsets at each look-up
    _incarnation    the identity of the partition's directory; None until it was asked for
    _born           by base offset: a segment, the identity of its file, and a serial
    pending_keys    the keys of open files in which something is not set yet, by file
    long_keys       keys whose names have their hashes, by name, as they were last listed: the newest of them
    _keys           the index of keys; None until it is asked for
    shared_log      the views of the whole log that some reader holds open
    _sealed_sizes   the total size of the sealed segments, by format
    _stored_sealed  a list of segments, and the bytes of the `.log` files of its sealed segments
    """

    def __init__(self, partition: Partition, context: Context) -> None:
        self.partition = partition
        self.context = context
        self.rendered = RenderedSegments(partition, context.view_cache, context.read_ahead)
        self.shared_log = SharedLogViews(self.rendered)
        way = context.store.links.way_of(partition)
        self.writers = PartitionWriters(
            partition, context.linger, context.write_behind, self.rendered.note, way
        )
        self.serial = next(SERIALS)
        self.cuts = partition.log.snapshot.cuts
        self.rewrites = 0
        self.pending_keys: dict[KeyWriter, bytes] = {}
        self.long_keys: Remembered[bytes] = Remembered(LONG_KEYS)
        self._keys: KeyIndex | None = None
        self.ranges: Remembered[Entry] = Remembered(RANGES)
        self._incarnation: Birth | None = None
        self._born: dict[int, tuple[Segment, Birth, int]] = {}
        self.written: tuple[Segment, int, int] | None = None
        self._last_record: tuple[Segments, Record] | None = None
        self._sealed_sizes: dict[str, _SealedSum] = {}
        self._stored_sealed: tuple[Segments, int] | None = None
        self._lock = threading.Lock()
        self._making_keys = threading.Lock()

    def before_removal(self, segments: Sequence[Segment]) -> None:
        """Keep segments readable for open views, before retention or compaction removes them from the log."""
        now = self.partition.log.snapshot
        following = [now.segments.higher(segment.base_offset) for segment in segments]
        if any(each is None or each.base_offset > now.start for each in following):
            # This is not retention: retention only removes what is below the start offset.
            with self._lock:
                self.rewrites += 1
        self.rendered.keep_for_readers()

    def forget_removed(self) -> None:
        """Drop what is remembered about segments that were removed."""
        self.rendered.forget_removed()
        segments = self.partition.log.snapshot.segments
        with self._lock:
            for base, (segment, _, _) in list(self._born.items()):
                if segments.at(base) is not segment:
                    del self._born[base]

    @property
    def keys(self) -> KeyIndex:
        """Return the index of keys. The first call makes it, from its checkpoint or from the log."""
        found = self._keys
        if found is None:
            with self._making_keys:
                found = self._keys
                if found is None:
                    found = self._keys = KeyIndex(self.partition, self.context.view_cache)
        return found

    @property
    def known_keys(self) -> KeyIndex | None:
        """Return the index of keys, or None if nobody has asked for it."""
        return self._keys

    @property
    def is_cut(self) -> bool:
        """Tell whether the log was truncated since: other records may have the offsets that these views have shown."""
        return self.partition.log.snapshot.cuts != self.cuts

    @property
    def incarnation(self) -> Birth:
        """Identify the partition among others that had its name before; the value is the same after a restart."""
        if self._incarnation is None:
            self._incarnation = birth(self.partition.directory)
        return self._incarnation

    def born(self, segment: Segment) -> tuple[Birth, int]:
        """Return the identity of a segment's file, which stays the same after a restart, and a serial, which does not.
        Some file systems do not store when a file was made, so there is a serial. FileNotFoundError: it was removed."""
        known = self._born.get(segment.base_offset)
        if known is None or known[0] is not segment:
            born = birth(segment.log.path)
            if not segment.log.file.may_be(os.stat(segment.log.path)):
                raise FileNotFoundError(f"{segment.log.path} was replaced by another process")
            known = segment, born, next(SERIALS)
            with self._lock:
                present = self._born.get(segment.base_offset)
                if present is not None and present[0] is segment:
                    known = present
                elif segment in self.partition.log.snapshot.segments:
                    self._born[segment.base_offset] = known
        return known[1:]

    def record(self, offset: int) -> Record | None:
        """Return a record by its offset. It is remembered, as stat, open and read of one file each ask for it."""
        segments = self.partition.log.snapshot.segments
        last = self._last_record
        if last is not None and last[0] is segments and last[1].offset == offset:
            return last[1] if offset >= self.partition.start_offset else None
        record = self.partition.record(offset)
        if record is not None:
            self._last_record = (segments, record)
        return record

    # -- the whole log --------------------------------------------------------------------------------

    def log_size(self, fmt: Format) -> int:
        """Return the bytes of the whole log, counted from the origin that its open readers share."""
        return self.shared_log.size(fmt, lambda: self._size_from_start(fmt))

    def _size_from_start(self, fmt: Format) -> int:
        return self.partition.log.with_snapshot(lambda now: self._size_of(fmt, now))

    def _size_of(self, fmt: Format, now: Snapshot) -> int:
        sealed = self._sealed_sizes.get(fmt.suffix)
        if sealed is None or sealed.segments is not now.segments or sealed.start != now.start:
            sealed = self._measure(fmt, now)
        text = self.rendered.of(sealed.last, fmt)
        return sealed.size + text.size(now) - sealed.skipped

    def _measure(self, fmt: Format, now: Snapshot) -> _SealedSum:
        """Add up the segments that can no longer grow. Later calls then only ask the last one."""
        size = skipped = 0
        first = now.segments.floor(now.start) or now.segments.first
        last = first
        for segment in now.segments.from_base(first.base_offset):
            if segment is not first and segment.base_offset > now.stable:
                break
            if segment is not first:
                size += self.rendered.of(last, fmt).size(now) - skipped
                skipped = 0
            else:
                skipped = self.rendered.of(first, fmt).position_of(now.start, now)
            last = segment
        sealed = _SealedSum(now.segments, now.start, size, last, skipped)
        if last is now.segments.last:
            self._sealed_sizes[fmt.suffix] = sealed
        return sealed

    def stored(self) -> int:
        """Return the bytes of all `.log` files. The sum of the sealed ones is kept, as each command asks for it."""
        segments = self.partition.log.snapshot.segments
        known = self._stored_sealed
        if known is None or known[0] is not segments:
            last = segments.last
            known = segments, sum(segment.size for segment in segments if segment is not last)
            self._stored_sealed = known
        return known[1] + segments.last.size
