"""A partition's directory, read without a lock, beside a daemon that appends, removes and compacts.

Nothing here needs numpy or a kernel: see the top of the package. Names are listed twice, because a listing may miss
files that are renamed at the same time. If a compaction is just putting its segments in place, which takes
milliseconds, the listing waits. If a crash interrupted that, the store must be opened once.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from topicfs.engine.errors import CorruptSegmentError
from topicfs.engine.format.index import OFFSET_ENTRY, TIME_ENTRY, Index
from topicfs.engine.format.paths import (
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    index_file,
    log_file,
    offset_before,
    time_index_file,
    transaction_index_file,
)
from topicfs.engine.format.transaction_index import NOT_KNOWN, AbortedTransaction, aborted_in

_PATIENCE_S: Final = 5.0
_PAUSE_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Files:
    """The files of one partition at one moment.

    directory  directory of the partition
    bases      base offsets of the segments, rising
    sizes      bytes of their `.log` files
    snapshots  offsets of the producer snapshots, rising
    aborting   bases of the segments that have a transaction index
    """

    directory: Path
    bases: tuple[int, ...]
    sizes: tuple[int, ...]
    snapshots: tuple[int, ...]
    aborting: tuple[int, ...]

    def floor(self, offset: int) -> int:
        """Return the index in `bases` of the segment that holds an offset; -1 below the first one."""
        return bisect_right(self.bases, offset) - 1

    def end_of(self, place: int, end: int) -> int:
        """Return the base of the next segment, or `end` for the last one."""
        return self.bases[place + 1] if place + 1 < len(self.bases) else end

    def aborted(self, start: int, end: int) -> Iterator[AbortedTransaction]:
        """Yield the aborted transactions with offsets in [start, end), from the transaction indexes."""
        for base in self.aborting:
            if base >= self.bases[max(self.floor(start), 0)]:
                path = self.directory / transaction_index_file(base)
                content = _content(path)
                if len(content) == NOT_KNOWN:
                    raise CorruptSegmentError(
                        f"{path}: the disk was full when the store was opened: make room, and open it again"
                    )
                found = aborted_in(content)
                yield from (each for each in found if each.overlaps(start, end))


def listed(directory: Path) -> Files:
    """Return the files of a partition. FileNotFoundError if the partition does not exist any more."""
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
    return Files(
        directory,
        bases,
        tuple(os.stat(directory / log_file(base)).st_size for base in bases),
        _offsets(names, SNAPSHOT_SUFFIX),
        _offsets(names, TRANSACTION_INDEX_SUFFIX),
    )


def _offsets(names: frozenset[str], suffix: str) -> tuple[int, ...]:
    return tuple(sorted(found for name in names if (found := offset_before(suffix, name)) is not None))


def _content(path: Path) -> bytes:
    """Return the bytes of a file, or no bytes if there is no file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def offset_index(directory: Path, base: int) -> Index:
    """Return the offset index of a segment: entries of last offset - base and position."""
    return Index.of(base, OFFSET_ENTRY, _content(directory / index_file(base)))


def time_index(directory: Path, base: int) -> Index:
    """Return the time index of a segment: entries of timestamp and offset - base."""
    return Index.of(base, TIME_ENTRY, _content(directory / time_index_file(base)))
