"""Keeping the earliest timestamps of a partition's records up to date: a file for each sealed segment.

A segment is read once for this, when it is sealed or compacted and its pages are still in memory. A segment that
existed at the first look at its partition is read only if it was written a short while before: so a large log that
is mounted for the first time is not read completely. Without a file a query reads more, and finds the same.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from topicfs.engine.errors import ClosedError, EngineError
from topicfs.engine.format.paths import MIN_TIMESTAMPS_SUFFIX, TEMPORARY_SUFFIX, made_of
from topicfs.engine.min_timestamps.build import build
from topicfs.engine.min_timestamps.file import load, write
from topicfs.engine.partition.hold import Hold
from topicfs.engine.partition.partition import Partition
from topicfs.engine.record import Clock
from topicfs.engine.segment.segment import Segment
from topicfs.engine.segment.segments import Segments

log = logging.getLogger(__name__)

RECENT_MS: Final = 24 * 3600 * 1000
"""Segments that exist at the first look, and were written longer ago than this, get no file."""

RETRY_MS: Final = 3600 * 1000
"""A failed file is tried again after this time: the disk may then have room, or the segment may be repaired."""


@dataclass(frozen=True, slots=True)
class _Sealed:
    """A sealed segment, and the time when its `.log` was written."""

    segment: Segment
    written_ms: int


@dataclass(slots=True)
class _Known:
    """The knowledge about a partition.

    segments  the list for which everything was done; None before that
    found     names of files that existed at the first look, and were not read yet
    settled   names of files that are valid, or are not to be made
    retry_ms  time of the next attempt after a failure, by name
    """

    segments: Segments | None = None
    found: set[str] = field(default_factory=set)
    settled: set[str] = field(default_factory=set)
    retry_ms: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class MinTimestampsUpkeep:
    """Makes the files of partitions, and removes those of segments that no longer exist. One thread calls it.

    directory  directory of the views of all partitions
    clock      milliseconds since the epoch, as in file times
    steady     milliseconds for waits
    _known     knowledge about each partition, by name
    """

    directory: Path
    clock: Clock
    steady: Clock
    _known: dict[str, _Known] = field(default_factory=dict)

    def bring_up_to_date(
        self, partition: Partition, stop: Callable[[], bool], enough: Callable[[], bool] = lambda: False
    ) -> None:
        """Make missing files and remove those not needed, until `stop` or, between segments, `enough` is true. A
        segment that cannot be read is logged, and does not stop the others."""
        segments = partition.log.snapshot.segments
        known = self._known.get(partition.name)
        if known is not None and known.segments is segments:
            now = self.steady()
            if not any(now >= retry for retry in known.retry_ms.values()):
                return
        sealed = _sealed(segments)
        if known is None:
            known = self._known[partition.name] = self._first_look(partition, sealed)
        self._remove_others(partition, known, sealed)
        for name, each in sealed.items():
            if name in known.settled or self.steady() < known.retry_ms.get(name, 0):
                continue
            if stop() or enough() or not self._settle(partition, known, name, each, stop):
                return
        known.segments = segments

    def forget_others(self, partitions: set[str]) -> None:
        """Forget all partitions except these."""
        for name in self._known.keys() - partitions:
            del self._known[name]

    def _first_look(self, partition: Partition, sealed: dict[str, _Sealed]) -> _Known:
        try:
            names = os.listdir(self.directory / partition.name)
        except (FileNotFoundError, NotADirectoryError):
            names = []
        ours = {name for name in names if name.removesuffix(TEMPORARY_SUFFIX).endswith(MIN_TIMESTAMPS_SUFFIX)}
        known = _Known(found=ours)
        known.settled = {name for name, each in sealed.items() if name not in ours and self._is_old(each)}
        return known

    def _is_old(self, sealed: _Sealed) -> bool:
        return sealed.written_ms < self.clock() - RECENT_MS

    def _remove_others(self, partition: Partition, known: _Known, sealed: dict[str, _Sealed]) -> None:
        for name in (known.settled | known.found) - sealed.keys():
            self._path(partition, name).unlink(missing_ok=True)
        known.settled &= sealed.keys()
        known.found &= sealed.keys()
        known.retry_ms = {name: retry for name, retry in known.retry_ms.items() if name in sealed}

    def _settle(
        self, partition: Partition, known: _Known, name: str, sealed: _Sealed, stop: Callable[[], bool]
    ) -> bool:
        """Handle one file. Return False if that was stopped, or the segment was removed."""
        segment = sealed.segment
        if name in known.found:
            known.found.discard(name)
            whole = load(self.directory / partition.name, segment.path, segment.base_offset) is not None
            if whole or self._is_old(sealed):
                known.settled.add(name)
                return True
        try:
            made = self._make(partition, segment, name, stop)
        except ClosedError:
            return False  # removed, deleted or offline: the next call sees the new state
        except (EngineError, OSError) as error:
            if not _is_sealed(segment, partition.log.snapshot.segments):
                return False
            if name not in known.retry_ms:
                log.error(
                    f"{partition.name}: reads by time do not skip segment {segment.base_offset}: {error}"
                )
            known.retry_ms[name] = self.steady() + RETRY_MS
            return True
        if made:
            known.retry_ms.pop(name, None)
            known.settled.add(name)
        return made

    def _make(self, partition: Partition, segment: Segment, name: str, stop: Callable[[], bool]) -> bool:
        segments = partition.log.snapshot.segments
        if not _is_sealed(segment, segments):
            return False
        end = segments.end_of(segment)
        with Hold.take(partition.log, segment.base_offset, end) as hold:
            if hold.held != [segment]:
                return False
            noted = build(segment, end, stop)
        if noted is None:
            return False
        write(self._path(partition, name), noted)
        return True

    def _path(self, partition: Partition, name: str) -> Path:
        return self.directory / partition.name / name


def _sealed(segments: Segments) -> dict[str, _Sealed]:
    """Return the sealed segments by the names of their files, without segments that were removed."""
    found = {}
    for segment in segments.non_active:
        try:
            status = os.stat(segment.log.path)
        except FileNotFoundError:
            continue
        name = made_of(segment.base_offset, status, MIN_TIMESTAMPS_SUFFIX)
        found[name] = _Sealed(segment, status.st_mtime_ns // 1_000_000)
    return found


def _is_sealed(segment: Segment, segments: Segments) -> bool:
    return segment in segments and segment is not segments.last
