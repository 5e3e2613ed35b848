"""`offset/` and `time/`: records by offset and by time. A name can be opened even if it is not listed."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

from topicfs.engine.partition.timestamps import MAX
from topicfs.engine.record import MAX_INT64, Record
from topicfs.fs.entry import (
    SERIALS,
    Attributes,
    BytesHandle,
    Directory,
    Entry,
    Handle,
    Owner,
    refuse_writing,
    version_of,
)
from topicfs.fs.formats import FORMATS, Format
from topicfs.fs.selections import (
    DAY_MS,
    HOUR_MS,
    LastSelection,
    OffsetSelection,
    RecentSelection,
    Selection,
    TimeSelection,
    day_name,
    parse_day,
    parse_hour,
    parse_offset,
    parse_offsets,
    parse_times,
)
from topicfs.fs.tree.partition_entry import PartitionEntry, range_xattrs
from topicfs.fs.views.handle import ViewHandle
from topicfs.fs.views.partition_views import PartitionViews
from topicfs.fs.views.view import View


def resolve(views: PartitionViews, selection: Selection) -> tuple[int, int | None]:
    """Return the offsets that a selection means now: the first, and the one behind the last (None: it grows)."""
    partition = views.partition
    now = partition.offsets
    match selection:
        case OffsetSelection(first, last):
            end = None if last is None else last + 1
            return max(first, now.start), end
        case LastSelection(count):
            # What comes in between is not shown: the range ends where the log did before.
            return min(now.stable, partition.start_of_last(count)), now.stable
        case TimeSelection(start, end):
            first = now.start if start is None else partition.first_offset_at(start)
            return first, None if end is None else max(first, partition.first_offset_at(end))
        case RecentSelection(span):
            return partition.first_offset_at(max(0, partition.log.clock() - span)), None


@dataclass(eq=False)
class ResolvedRange(PartitionEntry):
    """Some records in a format: from `start` to before `end`, or without an end.

    fleeting   whether the name may stand for other records at the next look-up
    version    as in `Attributes`; a fleeting range gets a new one at each look-up
    _measured  the `_changes` and the size at the last measurement; it is only used if the range can no longer grow
    """

    format: Format
    start: int
    end: int | None
    fleeting: bool

    def __post_init__(self) -> None:
        self._version = version_of("look", next(SERIALS)) if self.fleeting else 0
        self._measured: tuple[Hashable, int] = (None, 0)

    @property
    def generation(self) -> Hashable:
        return super().generation, self.start, self.end

    @property
    def version(self) -> int:
        return self._version or version_of("range", self.views.serial, self.start, self.end, *self._changes)

    @property
    def _changes(self) -> tuple[int, int]:
        """Return how often segments were rewritten, and how many records were removed at the beginning of the range."""
        return self.views.rewrites, max(0, self.views.partition.start_offset - self.start)

    def _view(self) -> View:
        self.views.writers.await_closing()
        return View.open(self.views.rendered, self.format, self.start, self.end)

    def size(self) -> int:
        changes = self._changes
        if self._measured[0] == changes:
            return self._measured[1]
        is_whole = self.end is not None and self.end <= self.views.partition.stable_offset
        with self._view() as view:
            size = view.size()
        if is_whole:
            self._measured = changes, size
        return size

    def open(self, flags: int) -> Handle:
        refuse_writing(self, flags)
        # This is asked before the open: if something changes meanwhile, the content counts as another one.
        changes = self._changes
        return ViewHandle(self._view(), content=changes)


@dataclass(eq=False)
class RangeFile(PartitionEntry):
    """Some records in a format, as a name selects them. If it may select other records each time, each look-up of the
    name gives a new file, so that two that are open and mapped do not share pages."""

    selection: Selection
    format: Format

    def at(self, version: int) -> Entry:
        known = self.views.ranges.get(version)
        if known is not None and known.path == self.path:
            return known
        self.views.writers.await_closing()
        start, end = resolve(self.views, self.selection)
        fleeting = not isinstance(self.selection, OffsetSelection) or start != self.selection.first
        found = ResolvedRange(self.path, self.views, self.format, start, end, fleeting)
        if fleeting:
            self.views.ranges.keep(found.version, found)
        return found

    def attributes(self, owner: Owner, size: int | None = None) -> Attributes:
        return self.at(0).attributes(owner, size)

    def size(self) -> int:
        return self.at(0).size()

    def xattrs(self) -> dict[str, bytes]:
        start, end = resolve(self.views, self.selection)
        stable = self.views.partition.stable_offset
        return range_xattrs(start, stable if end is None else min(end, stable))

    def open(self, flags: int) -> Handle:
        return self.at(0).open(flags)


@dataclass(eq=False)
class ValueFile(PartitionEntry):
    """The value of one record, exactly. A null value is an empty file."""

    record: Record

    @property
    def is_current(self) -> bool:
        return False  # the record may have been deleted

    @property
    def version(self) -> int:
        return version_of("value", self.views.serial)

    def size(self) -> int:
        return len(self.record.value or b"")

    def mtime_ns(self) -> int:
        return max(0, self.record.timestamp or 0) * 1_000_000

    def xattrs(self) -> dict[str, bytes]:
        offset = self.record.offset
        found = range_xattrs(offset, offset + 1, self.record.timestamp)
        if self.record.key is not None:
            found["user.topicfs.key"] = self.record.key
        return found

    def open(self, flags: int) -> Handle:
        refuse_writing(self, flags)
        return BytesHandle(self.record.value or b"")


class RangesDirectory(PartitionEntry, Directory):
    """A directory whose names select records: `<selection>.<format>`."""

    def lookup(self, name: str) -> Entry:
        stem, _, suffix = name.rpartition(".")
        fmt = FORMATS.get(suffix)
        selection = None if fmt is None else self.select(stem)
        if fmt is None or selection is None:
            raise self.missing(name)
        return RangeFile(self.child(name), self.views, selection, fmt)

    def select(self, stem: str) -> Selection | None:
        """Return what a name without its format selects; None if it is no such name."""
        raise NotImplementedError


class OffsetDirectory(RangesDirectory):
    """Records by offset. It lists the first and the last record, and the range of all."""

    def names(self) -> Iterable[str]:
        now = self.views.partition.offsets
        if now.start < now.stable:
            for bound in sorted(self._bounds(now.start, now.stable)):
                yield str(bound)
            for suffix in FORMATS:
                yield f"{now.start}-{now.stable - 1}.{suffix}"

    def _bounds(self, start: int, end: int) -> set[int]:
        """Return the offsets of the first and the last record between two offsets. At these themselves may be a marker,
        a record of an aborted transaction, or nothing behind a compaction."""
        partition = self.views.partition
        first: int | None = start
        if partition.record(start) is None:
            first = next((int(part.offsets[0]) for part in partition.columns(start, end)), None)
        if first is None:
            return set()
        return {first, end - 1 if partition.record(end - 1) is not None else partition.start_of_last(1)}

    def lookup(self, name: str) -> Entry:
        self.views.writers.await_closing()
        offset = parse_offset(name)
        if offset is None:
            return super().lookup(name)
        record = self.views.record(offset)
        if record is None:
            raise self.missing(name)
        return ValueFile(self.child(name), self.views, record)

    def select(self, stem: str) -> Selection | None:
        one = parse_offset(stem)
        if one is None:
            return parse_offsets(stem)
        return None if self.views.record(one) is None else OffsetSelection(one, one)


class TimeDirectory(RangesDirectory):
    """Records by time. It lists the days that have records."""

    def names(self) -> Iterable[str]:
        for day in periods(self.views, 0, None, DAY_MS):
            yield day_name(day)

    def lookup(self, name: str) -> Entry:
        self.views.writers.await_closing()
        day = parse_day(name)
        if day is not None:
            return DayDirectory(self.child(name), self.views, day)
        return super().lookup(name)

    def select(self, stem: str) -> Selection | None:
        return parse_times(stem)


@dataclass(eq=False)
class DayDirectory(RangesDirectory):
    """The hours of a day, in UTC. It lists those that have records."""

    day: int

    def names(self) -> Iterable[str]:
        for hour in periods(self.views, self.day, self.day + DAY_MS, HOUR_MS):
            for suffix in FORMATS:
                yield f"{(hour - self.day) // HOUR_MS:02d}.{suffix}"

    def select(self, stem: str) -> Selection | None:
        hour = parse_hour(stem)
        start = self.day + (hour or 0) * HOUR_MS
        return None if hour is None else TimeSelection(start, start + HOUR_MS)


def periods(views: PartitionViews, start: int, end: int | None, length: int) -> Iterator[int]:
    """Find the periods of a length, from `start` on, that contain records: with a look-up for each, not a scan."""
    latest = views.partition.offset_for_timestamp(MAX)
    if latest is None:
        return
    while start <= MAX_INT64 and (end is None or start < end):
        found = views.partition.first_shown_at(start)
        if (
            found is None
            or (end is not None and found.timestamp >= end)
            or found.timestamp > latest.timestamp
        ):
            return
        period = found.timestamp - found.timestamp % length
        yield period
        start = period + length
