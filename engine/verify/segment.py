"""The check of one segment: its batches, and its indexes against them.

The segment is read once, without a lock. Where something is wrong it is read once more after a moment, and what both
looks have found is told: whoever appends, compacts or removes at the same time makes no fault.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from topicfs.engine.batch.table import Bytes
from topicfs.engine.errors import CorruptSegmentError, OldFormatError
from topicfs.engine.files.regular import open_regular
from topicfs.engine.format.batch_header import HEADER_SIZE, SIZE_OVERHEAD
from topicfs.engine.format.paths import MIN_TIMESTAMPS_SUFFIX, index_file, log_file, made_of, time_index_file
from topicfs.engine.kernels.scan import (
    BAD_MAGIC,
    BASE_OFFSET,
    COLUMNS,
    DONE,
    FULL,
    PARTIAL,
    PROBLEMS,
    scan,
)
from topicfs.engine.min_timestamps.file import load
from topicfs.engine.record import MAX_INT32, MAX_INT64
from topicfs.engine.segment.batch_file import BatchFile
from topicfs.engine.segment.descriptors import Descriptors, PinnedFile, read_exactly_into
from topicfs.engine.segment.walk import walk
from topicfs.engine.unlocked.files import listed
from topicfs.engine.verify import finding
from topicfs.engine.verify.batches import BatchesCheck, Gathered
from topicfs.engine.verify.finding import Finding, Findings, Kind, Severity
from topicfs.engine.verify.indexes import MinTimestampsCheck, OffsetIndexCheck, TimeIndexCheck

CHUNK: Final = 4 * 1024 * 1024
"""Bytes of a `.log` that are read at once, unless one batch is larger."""

_LOOKS: Final = 10
"""The most looks at a segment that somebody replaces or cuts again and again."""

_MOST_HOLES: Final = 64
"""The most places of a segment behind which the next batch is searched."""

_MOST_TRIED: Final = 4096
"""The most entries of an index at which the next batch behind damage is searched."""

Fill = Callable[[int, memoryview], None]
"""Fills a buffer from a position of the file on."""


@dataclass(frozen=True, slots=True)
class SegmentPiece:
    """One segment that is to be checked.

    directory  directory of its partition
    base       its base offset
    end        base offset of the next segment, None for the last one
    cuts       offsets in it at which the state of producers has to be known, rising
    growing    whether somebody may append to the last segment
    views      directory of what is made from the partition's segments; None where there is none
    """

    directory: Path
    base: int
    end: int | None
    cuts: tuple[int, ...] = ()
    growing: bool = False
    views: Path | None = None

    @property
    def is_growing(self) -> bool:
        """Whether somebody may append to this segment."""
        return self.growing and self.end is None


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """What was found in one segment.

    piece     the segment
    identity  device and inode of its `.log`; None where that could not be opened
    size      bytes of its `.log`
    files     number of files that were read
    bytes     their bytes
    gathered  what the check of the partition needs
    findings  what is wrong
    """

    piece: SegmentPiece
    identity: tuple[int, int] | None
    size: int
    files: int
    bytes: int
    gathered: Gathered
    findings: tuple[Finding, ...]

    @property
    def is_present(self) -> bool:
        """Whether the `.log` is still the one that was read."""
        try:
            status = os.stat(self.piece.directory / log_file(self.piece.base))
        except OSError:
            return False
        return self.identity in (None, (status.st_dev, status.st_ino))


class _ReplacedError(Exception):
    """The segment was replaced, cut or removed while it was read."""


def check(piece: SegmentPiece) -> SegmentReport | None:
    """Check a segment. None where it was removed, or another one has taken its place, before it could be read."""
    report = None
    for look in range(_LOOKS):
        if look:
            time.sleep(finding.PAUSE_S)
            found = _listed_anew(piece)
            if found is None:
                return None
            piece = found
        try:
            latest = _Look(piece).report()
        except _ReplacedError:
            report = None
            continue
        if report is not None and latest.identity == report.identity:
            seen = set(report.findings)
            return replace(latest, findings=tuple(each for each in latest.findings if each in seen))
        if not latest.findings:
            return latest
        report = latest
    return report


def _listed_anew(piece: SegmentPiece) -> SegmentPiece | None:
    """Return the piece as it is now, None if it is gone."""
    try:
        bases = listed(piece.directory).bases
    except (FileNotFoundError, CorruptSegmentError):
        # A compaction that was broken off is a finding of the partition; the segments are as they are.
        return piece if (piece.directory / log_file(piece.base)).exists() else None
    if piece.base not in bases:
        return None
    at = bases.index(piece.base)
    return replace(piece, end=bases[at + 1] if at + 1 < len(bases) else None)


class _Look:
    """One look at a segment.

    piece         the segment
    path          its `.log`
    findings      what is wrong
    files, bytes  number of files that were read, and their bytes
    _tried        bytes that were read in search of batches behind damage
    """

    def __init__(self, piece: SegmentPiece) -> None:
        self.piece = piece
        self.path = piece.directory / log_file(piece.base)
        self.findings = Findings()
        self._tried = 0
        self.files = 0
        self.bytes = 0

    def report(self) -> SegmentReport:
        """Read the segment."""
        piece = self.piece
        # Index files come first: what is appended meanwhile is in the log, and not yet in them.
        offsets, times = self._indexes()
        batches = BatchesCheck(
            self.path, piece.base, MAX_INT64 if piece.end is None else piece.end, piece.cuts
        )
        size, identity = 0, None
        try:
            with self._opened() as descriptor:
                status = os.fstat(descriptor)
                size, identity = status.st_size, (status.st_dev, status.st_ino)
                self._count(size)
                if size > MAX_INT32:
                    self._say(
                        Kind.SEGMENT, "", f"at most {MAX_INT32} bytes", str(size), "it cannot be opened"
                    )
                    size = MAX_INT32
                self._walk(partial(_fill, descriptor, self.path), size, batches, offsets, times)
                if not os.path.samestat(status, os.stat(self.path)):
                    raise _ReplacedError
        except FileNotFoundError:
            raise _ReplacedError from None
        except CorruptSegmentError:
            raise _ReplacedError from None  # cut short since its size was read
        except OSError as error:
            self._say(Kind.SEGMENT, "", "a file that can be read", str(error), "its records cannot be read")
        return SegmentReport(
            piece, identity, size, self.files, self.bytes, batches.gathered, tuple(self.findings)
        )

    def _count(self, size: int) -> None:
        self.files += 1
        self.bytes += size

    def _count_file(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):  # it was replaced since it was read
            self._count(path.stat().st_size)

    def _say(
        self,
        kind: Kind,
        at: str,
        expected: str,
        found: str,
        effect: str,
        severity: Severity = Severity.DAMAGE,
        path: Path | None = None,
    ) -> None:
        self.findings.add(Finding(severity, kind, path or self.path, at, expected, found, effect))

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        descriptor = open_regular(self.path, os.O_RDONLY)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    # -- indexes --------------------------------------------------------------------------------------

    def _indexes(self) -> tuple[OffsetIndexCheck | None, TimeIndexCheck | None]:
        """Return the checks of both indexes; None for one that is not there or cannot be read."""
        piece = self.piece
        offsets = times = None
        offset_path = piece.directory / index_file(piece.base)
        time_path = piece.directory / time_index_file(piece.base)
        try:
            offsets = OffsetIndexCheck(piece.directory, piece.base)
        except FileNotFoundError:
            self._missing(Kind.OFFSET_INDEX, offset_path, "the segment is recovered at the next start")
        except OSError as error:
            self._unreadable(Kind.OFFSET_INDEX, offset_path, error)
        try:
            times = TimeIndexCheck(piece.directory, piece.base)
        except FileNotFoundError:
            self._missing(Kind.TIME_INDEX, time_path, "look-ups by time read more of the log")
        except OSError as error:
            self._unreadable(Kind.TIME_INDEX, time_path, error)
        for each in (offsets, times):
            if each is not None:
                self._count_file(each.path)
                self.findings.extend(each.findings)
                if each.has_zeros and piece.end is not None:
                    self._say(
                        each.kind,
                        "",
                        "an index of a sealed segment without zeros at its end",
                        "zeros behind its entries",
                        "no record is lost; they are left out when the file is read, and cut off when it is written",
                        Severity.REPAIRABLE,
                        each.path,
                    )
        return offsets, times

    def _missing(self, kind: Kind, path: Path, effect: str) -> None:
        # The index files of an active segment are created with their first entries.
        if self.piece.end is not None:
            self._say(kind, "", "an index", "none", f"no record is lost; {effect}", Severity.REPAIRABLE, path)

    def _unreadable(self, kind: Kind, path: Path, error: OSError) -> None:
        self._say(
            kind,
            "",
            "a file that can be read",
            str(error),
            "look-ups fail, or read more",
            Severity.REPAIRABLE,
            path,
        )

    def _min_timestamps(self) -> MinTimestampsCheck | None:
        """Return the check of the file that says how early records are; None where there is no valid one."""
        piece = self.piece
        if piece.views is None:
            return None
        try:
            path = piece.views / made_of(piece.base, os.stat(self.path), MIN_TIMESTAMPS_SUFFIX)
        except FileNotFoundError:
            return None
        noted = load(piece.views, self.path, piece.base)
        if noted is not None:
            self._count_file(path)
            return MinTimestampsCheck(path, noted)
        if path.exists():
            self._say(
                Kind.MIN_TIMESTAMPS,
                "",
                "what was written, by its checksum",
                "something else",
                "no record is lost; queries by time read more, and the file is made again",
                Severity.REPAIRABLE,
                path,
            )
        return None

    # -- batches --------------------------------------------------------------------------------------

    def _walk(
        self,
        fill: Fill,
        size: int,
        batches: BatchesCheck,
        offsets: OffsetIndexCheck | None,
        times: TimeIndexCheck | None,
    ) -> None:
        piece = self.piece
        position, holes = 0, 0
        earliest = self._min_timestamps()
        while True:
            status = DONE
            for buffer, table, status in walk(fill, position, size, False, CHUNK, reuse=True):
                if status != FULL or not len(table):
                    break
                good, findings = batches.take(buffer, table)
                self.findings.extend(findings)
                position += buffer.size
                if offsets is not None:
                    self.findings.extend(offsets.take(table, good, position))
                if times is not None:
                    self.findings.extend(times.take(table, good))
                if earliest is not None:
                    self.findings.extend(earliest.take(table, batches.earliest))
            if position >= size or status == DONE:
                break
            resumed = None
            if holes < _MOST_HOLES and offsets is not None:
                resumed = self._resumed(fill, offsets, position, size, batches.gathered.next_offset)
            if self._broken(fill, position, status, resumed, size):
                batches.gathered.is_gapless = batches.gathered.is_end_known = False
            if times is not None:
                times.is_known = False
            if resumed is None:
                break
            position, holes = resumed, holes + 1
        is_whole = position >= size
        if offsets is not None:
            self.findings.extend(offsets.finish(size, piece.is_growing))
        if times is not None:
            times.is_known = times.is_known and is_whole
            next_offset = batches.gathered.next_offset
            self.findings.extend(times.finish(next_offset, piece.is_growing, piece.end is not None))

    def _broken(self, fill: Fill, position: int, status: int, resumed: int | None, size: int) -> bool:
        """Add the finding about bytes that are no batch, up to where the next one was found. Return whether records are
        lost there: what was never appended completely is not."""
        end = size if resumed is None else resumed
        is_tail = resumed is None and self.piece.end is None
        if is_tail and (status == PARTIAL or not _is_filled(fill, position, size)):
            if self.piece.growing:
                return False  # what is just being written, or the room that was made for it
            self._say(
                Kind.BATCH,
                f"position {position} of {size}",
                "a whole batch, or the end of the file",
                PROBLEMS[PARTIAL] if status == PARTIAL else "zeros",
                "an append that was never completed; it is cut off at the next start",
                Severity.REPAIRABLE,
            )
            return False
        found = PROBLEMS[status]
        if status == BAD_MAGIC:
            file = BatchFile(PinnedFile(str(self.path), Descriptors()), self.piece.base, size)
            try:
                file.check_format(position)
            except OldFormatError as error:
                found = str(error)
            finally:
                file.file.release()
        self._say(
            Kind.BATCH,
            f"position {position} of {size}",
            "a batch",
            found,
            f"the records in the {end - position} bytes up to position {end} cannot be read",
        )
        return True

    def _resumed(
        self, fill: Fill, offsets: OffsetIndexCheck, position: int, size: int, next_offset: int
    ) -> int | None:
        """Return the position of the next good batch that the offset index names behind a position; None where it names
        none."""
        places = np.unique(offsets.positions)
        for place in places[np.searchsorted(places, position, side="right") :][:_MOST_TRIED].tolist():
            if place + HEADER_SIZE > size:
                break
            head = np.empty(HEADER_SIZE, np.uint8)
            fill(place, memoryview(head))
            total = int.from_bytes(head[8:SIZE_OVERHEAD].tobytes(), "big") + SIZE_OVERHEAD
            # All tries together read no more than the file has: an index may name one large batch again and again.
            if not HEADER_SIZE <= total <= size - place or self._tried + total > size:
                continue
            self._tried += total
            buffer: Bytes = np.empty(total, np.uint8)
            fill(place, memoryview(buffer))
            table = np.empty((1, COLUMNS), np.int64)
            rows, _, _ = scan(buffer, 0, total, place, 1, table)
            if rows and table[0, BASE_OFFSET] >= next_offset:
                return int(place)
        return None


def _fill(descriptor: int, path: Path, position: int, into: memoryview) -> None:
    read_exactly_into(descriptor, position, into, str(path))


def _is_filled(fill: Fill, position: int, size: int) -> bool:
    """Return whether anything but zeros follows."""
    buffer = np.empty(min(CHUNK, size - position), np.uint8)
    while position < size:
        part = buffer[: min(buffer.size, size - position)]
        fill(position, memoryview(part))
        if part.any():
            return True
        position += part.size
    return False
