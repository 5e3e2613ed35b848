"""A partition's directory as it lies there: read without a lock, beside a daemon that appends, removes and compacts.

Nothing here needs numpy or a kernel: see the package's head. Names are listed twice: who lists a directory while files
in it are renamed may miss some. While a compaction puts its segments in place, which takes milliseconds, it is waited
for; where that was broken off by a crash, the store must be opened once.

    .index      int32 last offset of a batch - base, int32 position of the batch      see engine.segment.offset_index
    .timeindex  int64 timestamp, int32 offset - base                                  see engine.segment.time_index
    .txnindex   int16 version, int64 producer, first, last, last stable offset        see transaction_index
"""

from __future__ import annotations

import os
import struct
import time
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from topicfs.engine.errors import CorruptSegmentError, InvalidNameError
from topicfs.engine.files.names import (
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    index_file,
    log_file,
    offset_of_file,
    time_index_file,
    transaction_index_file,
)

_PATIENCE_S: Final = 5.0
_PAUSE_S: Final = 0.01

_OFFSET_ENTRY: Final = struct.Struct(">ii")
_TIME_ENTRY: Final = struct.Struct(">qi")
_ABORTED_ENTRY: Final = struct.Struct(">hqqqq")


class Aborted(NamedTuple):
    """A transaction that was aborted: whose, the first offset of its records, the offset of its marker."""

    producer_id: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Files:
    """The files of one partition at one moment.

    directory  the partition's
    bases      base offsets of the segments, rising
    sizes      bytes of their `.log` files
    times      when those were last written, in ms
    snapshots  offsets of the producer snapshots, rising
    aborting   bases of the segments that have a transaction index
    """

    directory: Path
    bases: tuple[int, ...]
    sizes: tuple[int, ...]
    times: tuple[int, ...]
    snapshots: tuple[int, ...]
    aborting: tuple[int, ...]

    def floor(self, offset: int) -> int:
        """The place in `bases` of the segment that holds an offset; -1 below the first one."""
        return bisect_right(self.bases, offset) - 1

    def end_of(self, place: int, end: int) -> int:
        """The base of the segment behind, `end` behind the last one."""
        return self.bases[place + 1] if place + 1 < len(self.bases) else end

    def aborted(self, start: int, end: int) -> Iterator[Aborted]:
        """By the transaction indexes, what was aborted with offsets in [start, end)."""
        for base in self.aborting:
            if base < self.bases[max(self.floor(start), 0)]:
                continue
            for _, producer, first, last, _ in _ABORTED_ENTRY.iter_unpack(
                _whole(self.directory / transaction_index_file(base), _ABORTED_ENTRY.size)
            ):
                if first < end and last >= start:
                    yield Aborted(producer, first, last)


def listed(directory: Path) -> Files:
    """The files of a partition. FileNotFoundError where it is none any more."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        names = _names(directory)
        swapping = [name for name in names if name.endswith(SWAP_SUFFIX)]
        if not swapping and _names(directory) == names:
            try:
                return _files(directory, names)
            except FileNotFoundError:
                if not directory.exists():
                    raise
        elif swapping and time.monotonic() > deadline:
            raise CorruptSegmentError(
                f"{directory}: a compaction was broken off while it put {swapping[0]} in place: open the store once, "
                "by mounting it, and it is completed"
            )
        time.sleep(_PAUSE_S)


def _names(directory: Path) -> frozenset[str]:
    wanted = (LOG_SUFFIX, SNAPSHOT_SUFFIX, TRANSACTION_INDEX_SUFFIX, SWAP_SUFFIX)
    return frozenset(name for name in os.listdir(directory) if name.endswith(wanted))


def _files(directory: Path, names: frozenset[str]) -> Files:
    bases = _offsets(names, LOG_SUFFIX)
    found = [os.stat(directory / log_file(base)) for base in bases]
    return Files(
        directory,
        bases,
        tuple(each.st_size for each in found),
        tuple(each.st_mtime_ns // 1_000_000 for each in found),
        _offsets(names, SNAPSHOT_SUFFIX),
        _offsets(names, TRANSACTION_INDEX_SUFFIX),
    )


def _offsets(names: frozenset[str], suffix: str) -> tuple[int, ...]:
    found = []
    for name in names:
        if name.endswith(suffix):
            try:
                found.append(offset_of_file(name))
            except InvalidNameError:
                continue  # no segment's file
    return tuple(sorted(found))


def _whole(path: Path, entry_size: int) -> bytes:
    """The whole entries of a file; nothing where there is none."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return b""
    return data[: len(data) // entry_size * entry_size]


class Index:
    """A sorted file of entries, searched where it lies: some twenty reads of a few bytes.

    A broker gives an active index its full size at once: behind its entries are zeros then, and they do not count."""

    __slots__ = ("_data", "_entry", "base", "entries")

    def __init__(self, base: int, entry: struct.Struct, data: bytes) -> None:
        self.base = base
        self._entry = entry
        self._data = data
        low, high = 0, len(data) // entry.size
        while low < high:
            middle = (low + high) // 2
            if any(data[middle * entry.size : (middle + 1) * entry.size]):
                low = middle + 1
            else:
                high = middle
        self.entries = low

    def at(self, number: int) -> tuple[int, int]:
        """One entry, as it is stored."""
        first, second = self._entry.unpack_from(self._data, number * self._entry.size)
        return first, second

    def count_up_to(self, field: int, limit: int) -> int:
        """How many entries have at most `limit` in a field."""
        low, high = 0, self.entries
        while low < high:
            middle = (low + high) // 2
            if self.at(middle)[field] <= limit:
                low = middle + 1
            else:
                high = middle
        return low


def offset_index(directory: Path, base: int) -> Index:
    """The offset index of a segment: entries of last offset - base and position."""
    return Index(base, _OFFSET_ENTRY, _whole(directory / index_file(base), _OFFSET_ENTRY.size))


def time_index(directory: Path, base: int) -> Index:
    """The time index of a segment: entries of timestamp and offset - base."""
    return Index(base, _TIME_ENTRY, _whole(directory / time_index_file(base), _TIME_ENTRY.size))
