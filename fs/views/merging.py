"""The records of several partitions, merged by their timestamps, as lines.

In each partition the order is that of its offsets. A record that is earlier than one before it comes right behind that
one: it counts as if it had the largest timestamp up to there. So the times of each partition rise, and of equal ones
the partition with the lower number comes first.

Lines are made a chunk of each partition at a time, and everything is given that comes before the earliest of the
chunks' ends: what is not read yet is behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from topicfs.engine import batch as batches
from topicfs.engine.batch.table import Bytes, Longs
from topicfs.engine.errors import CorruptBatchError
from topicfs.engine.kernels.scan import LAST_OFFSET
from topicfs.engine.partition.offsets import Isolation
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.reader import read_batches
from topicfs.engine.partition.snapshot import Snapshot
from topicfs.fs.formats import Format, labels_of
from topicfs.fs.kernels.scatter import BAD, scatter

NOTHING: Final = np.zeros(0, np.uint8)

_NO_ROWS: Final = np.zeros(0, np.int64)
_EARLIEST: Final = -(2**63)
_NEWLINE: Final = 10


@dataclass(slots=True)
class Source:
    """One partition of a merge: the part of it that is still to come.

    snapshot   gives the log to read by, in which the segments are readable
    offset     everything below it is loaded
    end        the offset at which it ends
    _latest    the largest timestamp so far
    _text      the lines that are loaded
    _starts, _lengths, _times   of each line: its place in the text, its bytes, and the time by which it is merged
    _chunks    reads on from `offset`; None if it has to begin anew
    """

    partition: Partition
    format: Format
    snapshot: Callable[[], Snapshot]
    offset: int
    end: int
    _latest: int = _EARLIEST
    _text: Bytes = field(default_factory=lambda: NOTHING)
    _starts: Longs = field(default_factory=lambda: _NO_ROWS)
    _lengths: Longs = field(default_factory=lambda: _NO_ROWS)
    _times: Longs = field(default_factory=lambda: _NO_ROWS)
    _chunks: Iterator[tuple[Bytes, Longs, int]] | None = None

    def load(self) -> None:
        """Load lines, if none is loaded and there are more."""
        while not self._times.size and self.offset < self.end:
            if self._chunks is None:
                self._chunks = read_batches(self.snapshot(), self.offset, self.end, Isolation.COMMITTED)
            try:
                chunk = next(self._chunks, None)
                if chunk is not None:
                    self._take(*chunk)
            except BaseException:
                # An iterator that has failed seems to be at its end: the next call begins anew, and fails again.
                self._chunks = None
                raise
            if chunk is None:
                self.offset, self._chunks = self.end, None

    def _take(self, buffer: Bytes, table: Longs, origin: int) -> None:
        first, end = self.offset, self.end
        labels = labels_of(self.partition.topic, self.partition.number)
        size = int(self.format.sizes(buffer, table, origin, labels, first, end).sum())
        text = np.empty(size, np.uint8)
        self.format.render(buffer, table, origin, first, end, text, 0, labels)
        parts = [part.between(first, end) for part in batches.columns(buffer, table, origin)]
        times = np.concatenate([part.timestamps for part in parts]) if parts else _NO_ROWS
        if self.format == Format.TXT:
            # A value may have newlines in it.
            lengths = [np.maximum(part.value_length, 0).astype(np.int64) + 1 for part in parts]
            ends = np.cumsum(np.concatenate(lengths)) if parts else _NO_ROWS
        else:
            ends = np.flatnonzero(text == _NEWLINE) + 1
        if ends.size != times.size or (ends.size and ends[-1] != size):
            raise CorruptBatchError(
                f"{self.partition.name}: {times.size} records from {first} on are {ends.size} lines"
            )
        self.offset = int(table[-1, LAST_OFFSET]) + 1
        if not times.size:
            return
        self._text, self._starts = text, np.concatenate(([0], ends[:-1]))
        self._lengths = ends - self._starts
        self._times = np.maximum(np.maximum.accumulate(times), self._latest)
        self._latest = int(self._times[-1])

    @property
    def bound(self) -> int | None:
        """Return the time of the last line that is loaded, or None if nothing comes behind the lines that are."""
        return int(self._times[-1]) if self.offset < self.end else None

    def before(self, time: int, with_equal: bool) -> int:
        """Return how many lines are loaded that come before a time."""
        return int(np.searchsorted(self._times, time, side="right" if with_equal else "left"))

    @property
    def loaded(self) -> int:
        """Return how many lines are loaded."""
        return int(self._times.size)

    def lines(self, count: int) -> tuple[Longs, Longs]:
        """Return times and lengths of the first lines."""
        return self._times[:count], self._lengths[:count]

    def give(self, count: int, places: Longs, out: Bytes) -> None:
        """Copy the first lines to their places, and drop them."""
        starts, lengths = (np.ascontiguousarray(each[:count]) for each in (self._starts, self._lengths))
        if scatter(self._text, starts, lengths, np.ascontiguousarray(places), out) == BAD:
            raise CorruptBatchError(f"{self.partition.name}: lines do not fit where they were measured")
        self._starts, self._lengths = self._starts[count:], self._lengths[count:]
        self._times = self._times[count:]
        if not self._times.size:
            self._text = NOTHING

    def extend(self, end: int) -> None:
        """Go on to a later end."""
        if end > self.end:
            self.end, self._chunks = end, None


def next_lines(sources: Sequence[Source]) -> Bytes:
    """Return the next lines of all partitions, merged. They are empty at the end."""
    for source in sources:
        source.load()
    bounds = [
        (source.bound, at) for at, source in enumerate(sources) if source.bound is not None and source.loaded
    ]
    if bounds:
        time, last = min(bounds)
        counts = [source.before(time, at <= last) for at, source in enumerate(sources)]
    else:
        counts = [source.loaded for source in sources]
    if not any(counts):
        return NOTHING
    lines = [source.lines(count) for source, count in zip(sources, counts, strict=True)]
    times = np.concatenate([each for each, _ in lines])
    lengths = np.concatenate([each for _, each in lines])
    # The sort is stable: of equal times the partition with the lower number comes first, in its own order.
    order = np.argsort(times, kind="stable")
    places = np.empty(len(order), np.int64)
    ends = np.cumsum(lengths[order])
    places[order] = ends - lengths[order]
    out = np.empty(int(ends[-1]), np.uint8)
    first = 0
    for source, count in zip(sources, counts, strict=True):
        if count:
            source.give(count, places[first : first + count], out)
        first += count
    return out
