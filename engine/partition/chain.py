"""The segments of one partition: the list as its writer knows it, and the files behind it.

A change makes a new list, which the log then shows to readers by its snapshot. Readers keep the list that they took.
The files of segments that leave the list are renamed to `.deleted` at once, and `remove_due` removes them after a
delay. Files that a reader has pinned stay until the reader unpins them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from operator import attrgetter
from pathlib import Path

from topicfs.engine.errors import ClosedError
from topicfs.engine.files.atomic import sync_directory
from topicfs.engine.format.paths import (
    CLEANED_SUFFIX,
    SWAP_SUFFIX,
    index_file,
    log_file,
    time_index_file,
    transaction_index_file,
)
from topicfs.engine.record import Clock, steady_beside
from topicfs.engine.segment.descriptors import Descriptors
from topicfs.engine.segment.segment import Segment
from topicfs.engine.segment.segments import Segments
from topicfs.engine.segment.settings import SegmentSettings
from topicfs.engine.settings.topic import TopicSettings

log = logging.getLogger(__name__)

_base_offset = attrgetter("base_offset")


def segment_settings(settings: TopicSettings, read_only: bool = False) -> SegmentSettings:
    """Return the settings of a topic that a segment needs."""
    return SegmentSettings(
        index_interval_bytes=settings.index_interval_bytes,
        max_index_bytes=settings.segment_index_bytes,
        preallocate=settings.preallocate,
        segment_bytes=settings.segment_bytes,
        jitter_ms=min(settings.segment_jitter_ms, settings.segment_ms),
        read_only=read_only,
    )


def publish_nothing() -> None:
    """Used before a log is open: it has no readers."""


class Chain:
    """The segments of one partition.

    directory  the directory of the partition
    settings   the settings of segments that are created from now on
    segments   the list, by rising base offset; the last one is active
    doomed     segments and files renamed to `.deleted`, with the time of their removal by the steady clock
    steady     gives a time that nobody can set, for delays
    """

    __slots__ = ("clock", "descriptors", "directory", "doomed", "segments", "settings", "steady")

    def __init__(
        self,
        directory: Path,
        settings: SegmentSettings,
        clock: Clock,
        descriptors: Descriptors,
        steady: Clock | None = None,
    ) -> None:
        self.directory = directory
        self.settings = settings
        self.clock = clock
        self.steady = steady_beside(clock) if steady is None else steady
        self.descriptors = descriptors
        self.segments = Segments()
        self.doomed: list[tuple[int, Segment | Path]] = []

    @property
    def active(self) -> Segment:
        """Return the segment that appends go to."""
        return self.segments.last

    @property
    def doomed_segments(self) -> list[Segment]:
        """Return segments that are no longer in the list, but whose files still exist."""
        return [what for _, what in list(self.doomed) if isinstance(what, Segment)]

    # -- coming ---------------------------------------------------------------------------------------

    def load(self, base_offset: int) -> Segment:
        """Return a segment whose file exists. It is not opened, and not yet in the list."""
        return Segment(self.directory, base_offset, self.settings, self.clock, self.descriptors)

    def create(self, base_offset: int, suffix: str = "") -> Segment:
        """Return a new, empty segment that is not yet in the list. Old files with its names are removed."""
        self._make_room(base_offset, suffix)
        return Segment.create(
            self.directory, base_offset, self.settings, self.clock, self.descriptors, suffix
        )

    def _make_room(self, base_offset: int, suffix: str) -> None:
        for name in (log_file, index_file, time_index_file, transaction_index_file):
            path = self.directory / (name(base_offset) + suffix)
            if path.exists():
                log.warning(f"{path}: left over where a new segment begins, removed")
                path.unlink()

    def add(self, segments: Iterable[Segment]) -> None:
        """Add segments to the list."""
        self.segments = self.segments.with_replaced((), tuple(segments))

    # -- going ----------------------------------------------------------------------------------------

    def drop(self, segments: Collection[Segment]) -> None:
        """Remove segments from the list. Their files stay as they are until `doom`."""
        if segments:
            self.segments = self.segments.with_replaced(segments, ())

    def doom(self, segments: Iterable[Segment], delay_ms: int) -> None:
        """Rename the files of removed segments to `.deleted`, and have them removed after the delay."""
        for segment in segments:
            self._doom(segment, delay_ms)

    def remove(self, segments: Collection[Segment], delay_ms: int) -> None:
        """Remove segments from the list, and their files after the delay, before anybody reads the log."""
        self.drop(segments)
        self.doom(segments, delay_ms)

    def recreate(self, segment: Segment, delay_ms: int) -> None:
        """Replace an empty segment by a new one. The old files are removed after the delay."""
        # The list keeps the old one until the new one exists: readers always find a last segment.
        self._doom(segment, delay_ms)
        self.segments = self.segments.with_replaced((segment,), (self.create(segment.base_offset),))

    def replace(
        self,
        old: Collection[Segment],
        new: Iterable[Segment],
        delay_ms: int,
        publish: Callable[[], None] = publish_nothing,
    ) -> None:
        """Replace old segments by finished `.cleaned` ones, so that a crash at any step leaves either the old or the
        new ones. Their names are durable when the directory is synced next. The caller does that, without the lock if
        it has one.

        Recovery drops `.cleaned` segments, and completes a swap where all of them are `.swap`. So the swap names are
        given from the highest base down, and `.cleaned` names that are left show that the swap had not begun. The new
        names are durable before an old segment loses its name: a file system may save names in another order than they
        were given, and a `.deleted` name beside a `.cleaned` one would be neither state. For the same reason the old
        names are durably gone before `.swap` falls off: an old segment beside the new one, without a name that tells of
        the swap, would have the same records once more. `publish` shows the new list to readers, before an old file
        gets another name."""
        come = sorted(new, key=_base_offset)
        for segment in reversed(come):
            segment.change_suffix(CLEANED_SUFFIX, SWAP_SUFFIX)
        sync_directory(self.directory)
        self.segments = self.segments.with_replaced(old, tuple(come))
        publish()
        self.doom(old, delay_ms)
        sync_directory(self.directory)
        for segment in come:
            segment.change_suffix(SWAP_SUFFIX, "")

    def _doom(self, segment: Segment, delay_ms: int) -> None:
        segment.mark_deleted()
        self.doomed.append((self.steady() + delay_ms, segment))

    def doom_file(self, path: Path, delay_ms: int) -> None:
        """Schedule the removal of a file that was renamed to `.deleted`, after the delay."""
        self.doomed.append((self.steady() + delay_ms, path))

    def remove_due(self, now: int) -> int:
        """Remove the files whose delay is over and that no reader has pinned. Return how many were removed."""
        due = [doomed for doomed in list(self.doomed) if doomed[0] <= now]
        removed = 0
        for entry in due:
            what = entry[1]
            if isinstance(what, Segment):
                if what.pins:
                    continue
                what.delete()
            else:
                what.unlink(missing_ok=True)
            self.doomed.remove(entry)
            removed += 1
        return removed

    # -- keeping --------------------------------------------------------------------------------------

    def sync(self, segment: Segment) -> None:
        """fsync a segment's files, by their names: an appender may seal it and close its descriptors at any moment."""
        try:
            segment.log.file.sync()
            for index in segment.finder.indexes:
                index.sync()
            segment.transactions.flush()
        except (ClosedError, FileNotFoundError):
            # It was removed in the meantime: then nothing of it needs to be kept.
            if segment in self.segments:
                raise

    def close(self) -> None:
        """Close every segment: write final time entries, and cut indexes and logs to their true size."""
        for segment in self.segments:
            segment.close()

    def abandon(self) -> None:
        """Close every file, and leave it as it is."""
        for segment in self.segments:
            segment.abandon()
