"""`segments/` and `sealed/<format>/`: each segment as a file of its own."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from topicfs.engine.batch.table import Bytes
from topicfs.engine.errors import ClosedError
from topicfs.engine.files.birth import Birth
from topicfs.engine.segment.segment import Segment
from topicfs.engine.segment.segments import Segments
from topicfs.fs import errors
from topicfs.fs.entry import Directory, Entry, Handle, refuse_writing, version_of
from topicfs.fs.formats import Format
from topicfs.fs.selections import base_name, parse_sealed, sealed_name
from topicfs.fs.tree.parquet import PARQUET, ParquetDirectory
from topicfs.fs.tree.partition_entry import PartitionEntry, range_xattrs, written_ns
from topicfs.fs.views.handle import ViewHandle
from topicfs.fs.views.partition_views import PartitionViews
from topicfs.fs.views.view import View


@dataclass(eq=False)
class OfSegment(PartitionEntry):
    """An entry that shows a segment. To the kernel each `.log` is a file of its own, whatever its name. A segment that
    may still grow and the same segment when it is final are two files as well: only pages of final bytes are kept."""

    segment: Segment

    can_go = True

    @property
    def is_there(self) -> bool:
        partition = self.views.partition
        found = partition.log.snapshot.segments.at(self.segment.base_offset)
        return partition.is_open and found is self.segment and not self.views.is_cut

    @property
    def is_current(self) -> bool:
        return self.is_there

    @property
    def is_final(self) -> bool:
        """Tell whether its bytes can no longer grow."""
        raise NotImplementedError

    @property
    def generation(self) -> Hashable:
        return self._born()[0]

    @property
    def version(self) -> int:
        return version_of(self.views.serial, *self._born(), self.is_final)

    @property
    def fleeting(self) -> bool:  # type: ignore[override]
        # Compaction may replace the segment by another one at any moment.
        return self.views.partition.settings.compact

    def _born(self) -> tuple[Birth, int]:
        try:
            return self.views.born(self.segment)
        except FileNotFoundError:
            raise errors.NotFoundError(f"segment {self.segment.base_offset} was removed") from None

    def mtime_ns(self) -> int:
        return written_ns(self.views, self.segment)


@dataclass(eq=False)
class SegmentFile(OfSegment):
    """A segment in a format. The active one grows; a sealed one never changes."""

    format: Format

    def __post_init__(self) -> None:
        self._found_in = self.views.partition.log.snapshot.segments

    @property
    def is_final(self) -> bool:
        now = self.views.partition.log.snapshot
        following = now.segments.higher(self.segment.base_offset)
        return following is not None and now.stable >= following.base_offset

    @property
    def is_current(self) -> bool:
        # If the segment was active when it was found, the entry would not know its end after a removal.
        return self.segment is not self._found_in.last and super().is_current

    def size(self) -> int:
        self.views.writers.await_closing()
        now = self.views.partition.log.snapshot
        if self.segment not in now.segments:
            now = now.of(self._found_in)
        return self.views.rendered.of(self.segment, self.format).size(now)

    def xattrs(self) -> dict[str, bytes]:
        self.views.writers.await_closing()
        now = self.views.partition.log.snapshot
        following = now.segments.higher(self.segment.base_offset)
        end = now.stable if following is None else min(following.base_offset, now.stable)
        return range_xattrs(self.segment.base_offset, end, self.segment.max_timestamp)

    def open(self, flags: int) -> Handle:
        refuse_writing(self, flags)
        self.views.writers.await_closing()
        final = self.is_final
        try:
            view = View.of_segment(self.views.rendered, self.format, self.segment)
        except ClosedError:
            raise errors.NotFoundError(f"{self.path} was removed") from None
        return ViewHandle(view, final)


class SealedFile(SegmentFile):
    """A sealed segment under its name in `sealed/<format>/`, which changes with the topic's `cleanup.policy`."""

    @property
    def is_current(self) -> bool:
        if not super().is_current:
            return False
        stem = _sealed_stem(self.views, self.views.partition.log.snapshot.segments, self.segment)
        return self.path.endswith(f"/{stem}.{self.format.suffix}")


class RawHandle(Handle):
    """A segment's `.log`, as it is on disk.

    _following  the segment behind it when it was opened
    """

    is_settled = True

    def __init__(self, views: PartitionViews, segment: Segment, final: bool) -> None:
        self._views = views
        self._segment = segment
        self._following = views.partition.log.snapshot.segments.higher(segment.base_offset)
        self.direct_io, self.keep_cache = not final, final

    def size(self) -> int:
        return self._segment.size

    def read(self, position: int, into: Bytes) -> int:
        length = min(into.size, max(0, self._segment.size - position))
        done = self._segment.log.read_into(position, memoryview(into)[:length]) if length else 0
        end = None if self._following is None else self._following.base_offset
        self._views.partition.log.check_uncut(self._views.cuts, end)
        return done

    def release(self) -> None:
        self._segment.unpin()


class RawFile(OfSegment):
    """A segment's `.log`: batches that Kafka's own tools can read."""

    @property
    def is_final(self) -> bool:
        return self.segment is not self.views.partition.log.snapshot.segments.last

    def size(self) -> int:
        return self.segment.size

    def open(self, flags: int) -> Handle:
        refuse_writing(self, flags)
        final = self.is_final
        try:
            self.segment.pin()
        except ClosedError:
            raise errors.NotFoundError(f"{self.path} was removed") from None
        return RawHandle(self.views, self.segment, final)


@dataclass(eq=False)
class SegmentsDirectory(PartitionEntry, Directory):
    """Every segment, in all formats and raw. The active one grows."""

    def names(self) -> Iterable[str]:
        segments = self.views.partition.log.snapshot.segments
        for segment in segments:
            if self._shows(segment):
                for suffix in self._kinds():
                    yield f"{self._stem(segments, segment)}.{suffix}"

    def lookup(self, name: str) -> Entry:
        stem, _, suffix = name.partition(".")
        base, segments = parse_sealed(stem), self.views.partition.log.snapshot.segments
        segment = None if base is None else segments.at(base)
        make = self._kinds().get(suffix)
        if (
            segment is None
            or make is None
            or not self._shows(segment)
            or stem != self._stem(segments, segment)
        ):
            raise self.missing(name)
        return make(self.child(name), self.views, segment)

    def _stem(self, segments: Segments, segment: Segment) -> str:
        """Return a segment's name without the suffix."""
        return base_name(segment.base_offset)

    def _kinds(self) -> Mapping[str, _Maker]:
        """Return what a segment is shown as, by the suffix of a name."""
        return _KINDS

    def _shows(self, segment: Segment) -> bool:
        return True


@dataclass(eq=False)
class SealedFormatDirectory(SegmentsDirectory):
    """The sealed segments in one format. A name exists only when its bytes are final, and there are some."""

    format: Format

    def _kinds(self) -> Mapping[str, _Maker]:
        return {self.format.suffix: partial(SealedFile, format=self.format)}

    def _stem(self, segments: Segments, segment: Segment) -> str:
        return _sealed_stem(self.views, segments, segment)

    def _shows(self, segment: Segment) -> bool:
        now = self.views.partition.log.snapshot
        text = self.views.rendered.of(segment, self.format)
        return text.is_complete(now) and text.size(now) > 0


class SealedDirectory(PartitionEntry, Directory):
    """One directory for each format, with the segments that can no longer change. It is made for Spark."""

    def names(self) -> Iterable[str]:
        return self._directories()

    def lookup(self, name: str) -> Entry:
        return self.made(name, self._directories(), self.views)

    def _directories(self) -> Mapping[str, Callable[[str, PartitionViews], Entry]]:
        parquet = {PARQUET: ParquetDirectory} if self.views.partition.settings.parquet_enable else {}
        return {**_SEALED, **parquet}


def _sealed_stem(views: PartitionViews, segments: Segments, segment: Segment) -> str:
    following = segments.higher(segment.base_offset)
    end = segment.base_offset if following is None else following.base_offset  # removed in the meantime
    return sealed_name(segment.base_offset, end, views.partition.settings.compact)


_Maker = Callable[[str, PartitionViews, Segment], OfSegment]

_KINDS: Final[Mapping[str, _Maker]] = {
    **{fmt.suffix: partial(SegmentFile, format=fmt) for fmt in Format},
    "log": RawFile,
}

_SEALED: Final[Mapping[str, Callable[[str, PartitionViews], Entry]]] = {
    fmt.suffix: partial(SealedFormatDirectory, format=fmt) for fmt in Format
}
