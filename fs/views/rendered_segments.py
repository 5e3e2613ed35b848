"""The rendered segments of one partition, which all its views share, and their size maps in the view cache."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from topicfs.engine.errors import ClosedError, EngineError
from topicfs.engine.format.paths import MAP_SUFFIX, file_of
from topicfs.engine.partition.offsets import Appended
from topicfs.engine.partition.partition import Partition
from topicfs.engine.segment.segment import Segment
from topicfs.fs.formats import Format
from topicfs.fs.views.read_ahead import ReadAhead
from topicfs.fs.views.rendered_segment import RenderedSegment
from topicfs.fs.views.size_map import SizeMap

if TYPE_CHECKING:
    from topicfs.fs.views.view import View

log = logging.getLogger(__name__)

_READ_AT_ONCE: Final = 8
"""How many rendered segments of a partition keep rendered blocks, of up to 4 MiB each."""


class ViewCache(Protocol):
    """A store for data that can be rebuilt, kept from one run to the next. To lose an entry costs only time."""

    def load(self, partition: str, name: str, most: int = ...) -> bytes | None:
        """Return what was saved under this name, or None if there is nothing, or more than `most` bytes."""

    def save(self, partition: str, name: str, data: bytes) -> None:
        """Save data under a name, and replace what was there."""

    def remove(self, partition: str, name: str) -> None:
        """Remove what was saved under this name."""


class RenderedSegments:
    """The rendered segments of one partition.

    partition   the partition whose segments are rendered
    view_cache  where size maps of sealed segments are kept
    read_ahead  renders the blocks that readers will need next
    _rendered   rendered segments by base offset and format; an entry is valid only for the very segment it was made for
    _used       the formats that were asked for
    _saved      the keys of the rendered segments whose map is in the view cache
    open_views  the open views
    _lately     the rendered segments that were read last, the newest at the end; only these keep rendered blocks
    _latest     the newest of them
    """

    def __init__(self, partition: Partition, view_cache: ViewCache, read_ahead: ReadAhead) -> None:
        self.partition = partition
        self.view_cache = view_cache
        self.read_ahead = read_ahead
        self._rendered: dict[tuple[int, str], RenderedSegment] = {}
        self._saved: set[tuple[int, str]] = set()
        self.open_views: set[View] = set()
        self._lately: dict[RenderedSegment, None] = {}
        self._latest: RenderedSegment | None = None
        self._used: set[Format] = set()
        self._lock = threading.Lock()

    def of(self, segment: Segment, fmt: Format) -> RenderedSegment:
        """Return the segment, rendered in a format. A segment that replaced another one is rendered anew."""
        key = (segment.base_offset, fmt.suffix)
        text = self._rendered.get(key)
        if text is not None and text.segment is segment:
            return text
        self._used.add(fmt)
        known = self._load(segment, fmt)
        with self._lock:
            text = self._rendered.get(key)
            if text is None or text.segment is not segment:
                text = self._rendered[key] = RenderedSegment(self.partition, segment, fmt, known)
                if known is None:
                    self._saved.discard(key)
                else:
                    self._saved.add(key)
        return text

    def note(self, appended: Appended, text_size: int) -> None:
        """Map a batch that was appended. Its values, with their newlines, take `text_size` bytes."""
        now = self.partition.log.snapshot
        segment = now.segments.at(appended.segment_base)
        if segment is not None and not appended.duplicate:
            self.of(segment, Format.TXT).note(appended, text_size, now.stable)

    def used(self, text: RenderedSegment) -> None:
        """Note that a rendered segment was read. The one that was read longest ago drops its blocks, or a reader of a
        long log would leave some in each segment."""
        if text is self._latest:
            return
        with self._lock:
            self._latest = text
            self._lately.pop(text, None)
            self._lately[text] = None
            while len(self._lately) > _READ_AT_ONCE:
                oldest = next(iter(self._lately))
                del self._lately[oldest]
                oldest.forget_blocks()

    def keep_for_readers(self) -> None:
        """Have the open views pin the segments that they must still show. It is called before segments are removed,
        because a reader that is idle does not notice what comes and goes."""
        for view in tuple(self.open_views):
            try:
                view.keep_up()
            except (EngineError, OSError) as error:
                # The reader meets the damage itself. It must not stop the removal, nor the pins of the other views.
                log.warning(f"{self.partition.name}: an open view may lack what is removed now: {error}")

    def keep_complete(self, stop: Callable[[], bool]) -> int:
        """Map the sealed segments in the formats that were asked for, and save the maps in the view cache, until `stop`
        says True. Return how many maps were saved."""
        log = self.partition.log
        saved = 0
        for segment in log.snapshot.segments.non_active:
            for fmt in sorted(self._used):
                if stop():
                    return saved
                text = self.of(segment, fmt)
                key = (segment.base_offset, fmt.suffix)
                now = log.snapshot
                if key in self._saved or segment not in now.segments or not text.is_complete(now):
                    continue
                try:
                    text.size(now)
                    identity = self._identity(segment)
                except (ClosedError, FileNotFoundError):
                    identity = None
                if identity is None or text.damaged:
                    # It was removed. Or it is damaged: its map is not saved, as the damage may be repaired later.
                    continue
                self.view_cache.save(self.partition.name, _name(segment, fmt), text.map.encode(identity))
                self._saved.add(key)
                saved += 1
        return saved

    def forget_removed(self) -> None:
        """Drop rendered segments that are gone from the partition, and their maps in the view cache."""
        segments = self.partition.log.snapshot.segments
        with self._lock:
            gone = [(key, text) for key, text in self._rendered.items() if text.segment not in segments]
            for key, _ in gone:
                del self._rendered[key]
                self._saved.discard(key)
        for key, text in gone:
            if segments.at(key[0]) is None:
                self.view_cache.remove(self.partition.name, _name(text.segment, text.format))

    def _load(self, segment: Segment, fmt: Format) -> SizeMap | None:
        if segment is self.partition.log.snapshot.segments.last:
            return None
        data = self.view_cache.load(self.partition.name, _name(segment, fmt))
        identity = None if data is None else self._identity(segment)
        return None if data is None or identity is None else SizeMap.decode(data, identity)

    def _identity(self, segment: Segment) -> tuple[int, int, int] | None:
        """Return size, modification time and inode of a `.log`. None if the segment is gone from the log: after a
        second rewrite, a newer segment has the name of its file, also the name with `.deleted` behind it."""
        try:
            status = os.stat(segment.path)
        except FileNotFoundError:
            return None
        if not segment.log.file.may_be(status):
            return None
        # The order matters: as long as the segment is in the list after the stat, the name is its own.
        if segment not in self.partition.log.snapshot.segments:
            return None
        return status.st_size, status.st_mtime_ns, status.st_ino


def _name(segment: Segment, fmt: Format) -> str:
    return file_of(segment.base_offset, f".{fmt.suffix}{MAP_SUFFIX}")
