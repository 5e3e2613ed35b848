"""The texts of one partition's segments, shared by all views of it, and their size maps on the shelf."""

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
"""Texts of a partition that keep rendered bytes: up to 4 MiB each."""


class ViewCache(Protocol):
    """Where rebuildable things are kept from one run to the next; losing any of them costs time only."""

    def load(self, partition: str, name: str) -> bytes | None:
        """What was saved under this name; None where there is nothing."""

    def save(self, partition: str, name: str, data: bytes) -> None:
        """Keep it, in place of what was there."""

    def remove(self, partition: str, name: str) -> None:
        """Forget it."""


class RenderedSegments:
    """The texts of one partition.

    partition  whose
    view_cache  where size maps of sealed segments are kept
    read_ahead  renders what readers will want next
    _rendered  by base offset and format; an entry counts only for the very segment that it was made for
    _used      formats that were looked at
    _saved     of which texts the map is on the shelf
    views      the open views
    _lately    the texts that were read last, the latest at the end: only they keep rendered bytes
    _latest    the last one of them
    """

    def __init__(
        self, partition: Partition, view_cache: ViewCache, read_ahead: ReadAhead | None = None
    ) -> None:
        self.partition = partition
        self.view_cache = view_cache
        self.read_ahead = read_ahead or ReadAhead()
        self._rendered: dict[tuple[int, str], RenderedSegment] = {}
        self._saved: set[tuple[int, str]] = set()
        self.open_views: set[View] = set()
        self._lately: dict[RenderedSegment, None] = {}
        self._latest: RenderedSegment | None = None
        self._used: set[Format] = set()
        self._lock = threading.Lock()

    def of(self, segment: Segment, fmt: Format) -> RenderedSegment:
        """The segment in a format. Another segment that took its place has another text."""
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
        """A batch was appended, whose values with their newlines are `text_size` bytes long."""
        log = self.partition.log
        segment = log.chain.segments.at(appended.segment_base)
        if segment is not None and not appended.duplicate:
            self.of(segment, Format.TXT).note(appended, text_size, log.offsets)

    def used(self, text: RenderedSegment) -> None:
        """Note that a text was read. Others then let go of their rendered bytes: a reader of a long log would leave
        some in each segment."""
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
        """Have the open views pin what they promised to show. Who removes segments calls this before: a reader
        that rests does not notice what comes and goes."""
        for view in tuple(self.open_views):
            try:
                view.keep_up()
            except (EngineError, OSError) as error:
                # Damage that its reader meets by himself: it keeps neither the others' segments nor upkeep waiting.
                log.warning(f"{self.partition.name}: an open view may lack what is removed now: {error}")

    def keep_complete(self, stop: Callable[[], bool]) -> int:
        """Map the sealed segments in the formats that were looked at, and put the maps on the shelf, until told to
        stop. Gives how many were put there."""
        log = self.partition.log
        saved = 0
        for segment in log.chain.segments.non_active:
            for fmt in sorted(self._used):
                if stop():
                    return saved
                text = self.of(segment, fmt)
                key = (segment.base_offset, fmt.suffix)
                segments, offsets = log.chain.segments, log.offsets
                if key in self._saved or segment not in segments or not text.is_complete(segments, offsets):
                    continue
                try:
                    text.size(segments, offsets)
                    identity = self._identity(segment)
                except (ClosedError, FileNotFoundError):
                    identity = None
                if identity is None or text.damaged:
                    # Removed meanwhile. Or whoever asks next looks anew: the damage may have been repaired.
                    continue
                self.view_cache.save(self.partition.name, _name(segment, fmt), text.map.encode(identity))
                self._saved.add(key)
                saved += 1
        return saved

    def forget_removed(self) -> None:
        """Let go of texts whose segments are gone from the partition, and of their maps on the shelf."""
        segments = self.partition.log.chain.segments
        with self._lock:
            gone = [(key, text) for key, text in self._rendered.items() if text.segment not in segments]
            for key, _ in gone:
                del self._rendered[key]
                self._saved.discard(key)
        for key, text in gone:
            if segments.at(key[0]) is None:
                self.view_cache.remove(self.partition.name, _name(text.segment, text.format))

    def _load(self, segment: Segment, fmt: Format) -> SizeMap | None:
        if segment is self.partition.log.chain.segments.last:
            return None
        data = self.view_cache.load(self.partition.name, _name(segment, fmt))
        identity = None if data is None else self._identity(segment)
        return None if data is None or identity is None else SizeMap.decode(data, identity)

    def _identity(self, segment: Segment) -> tuple[int, int, int] | None:
        """Of its `.log`; None where it is gone from the log: a segment that was rewritten more than once has its file's
        name, also with `.deleted` behind it."""
        try:
            status = os.stat(segment.path)
        except FileNotFoundError:
            return None
        # Looked at after that: as long as it is in the list, its name is its own.
        if segment not in self.partition.log.chain.segments:
            return None
        return status.st_size, status.st_mtime_ns, status.st_ino


def _name(segment: Segment, fmt: Format) -> str:
    return file_of(segment.base_offset, f".{fmt.suffix}{MAP_SUFFIX}")
