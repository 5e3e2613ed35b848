"""A partition's segments, read from its directory: names, sizes, the ends of time indexes.

Nothing is opened for writing, nothing is kept open, and nothing is recovered. Data that a running daemon has only in
memory is not seen: the active segment's latest timestamps, and a start offset above the last checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from topicfs.engine.errors import CorruptSegmentError
from topicfs.engine.files.regular import open_regular, read_regular
from topicfs.engine.format.batch_header import HEADER_SIZE, BatchHeader
from topicfs.engine.format.index import TIME_ENTRY, Index
from topicfs.engine.format.paths import LOG_SUFFIX, log_file, offset_before, time_index_file
from topicfs.engine.partition.loading import Known
from topicfs.engine.partition.offsets import LogOffsets
from topicfs.engine.record import NO_TIMESTAMP


class SegmentOnDisk:
    """One segment, as the directory listing showed it.

    base_offset  base offset from its name
    size         bytes of the `.log`
    modified_ms  time when the `.log` was last written
    _directory   directory of the partition
    _largest     largest timestamp by the time index, None until it is needed
    """

    __slots__ = ("_directory", "_largest", "base_offset", "modified_ms", "size")

    def __init__(self, directory: Path, base_offset: int, size: int, modified_ms: int) -> None:
        self._directory = directory
        self.base_offset = base_offset
        self.size = size
        self.modified_ms = modified_ms
        self._largest: int | None = None

    @property
    def largest_timestamp(self) -> int:
        """Return the largest timestamp by the time index. Without an entry it is the time when the `.log` was last
        written."""
        if self._largest is None:
            found = _last_time(self._directory / time_index_file(self.base_offset))
            self._largest = found if found >= 0 else self.modified_ms
        return self._largest

    def first_batch_timestamp(self) -> int | None:
        """Return the max timestamp of the first batch, or None if there is no batch."""
        path = self._directory / log_file(self.base_offset)
        with read_regular(path) as file:
            header = file.read(HEADER_SIZE)
        if not self.size:
            return None
        if len(header) < HEADER_SIZE:
            raise CorruptSegmentError(
                f"{path}: expected a header of {HEADER_SIZE} bytes, found {len(header)}"
            )
        return BatchHeader.read(header).max_timestamp


def listed(directory: Path) -> list[SegmentOnDisk]:
    """Return the segments, by rising base offset. FileNotFoundError if one is removed during the listing."""
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            base = offset_before(LOG_SUFFIX, entry.name)
            if base is not None:
                status = entry.stat()
                found.append(SegmentOnDisk(directory, base, status.st_size, status.st_mtime_ns // 1_000_000))
    return sorted(found, key=lambda segment: segment.base_offset)


def offsets_of(segments: Sequence[SegmentOnDisk], known: Known) -> LogOffsets:
    """Return the offsets, read from checkpoints and names, of a log without other replicas and open transactions.

    The true end may be higher: only the log itself knows what came after the last checkpoint."""
    first, active = segments[0].base_offset, segments[-1]
    start = max(known.start, first)
    end = max(start, active.base_offset, known.recovery_point, known.high_watermark or 0)
    return LogOffsets(start, end, end, end, active.base_offset, active.size)


def _last_time(path: Path) -> int:
    """Return the last timestamp of a time index, -1 without one."""
    try:
        descriptor = open_regular(path, os.O_RDONLY)
    except FileNotFoundError:
        return NO_TIMESTAMP
    try:
        size = os.fstat(descriptor).st_size
        found = Index(0, TIME_ENTRY, size, lambda at, length: os.pread(descriptor, length, at)).last()
        return NO_TIMESTAMP if found is None else found[0]
    finally:
        os.close(descriptor)
