"""A partition cut into pieces, with what is known of the records in each without reading them.

A query that looks for few records reads the pieces that may hold them. Bounds come from the indexes, and from the files
of smallest timestamps; where these are missing, a piece has no bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from topicfs.engine.format.index import Index
from topicfs.engine.format.paths import log_file
from topicfs.engine.min_timestamps.file import MinTimestamps, load
from topicfs.engine.unlocked.files import Files, offset_index, time_index
from topicfs.engine.unlocked.offset_range import TimeBounds
from topicfs.engine.unlocked.partitions import TopicPartition

PIECE_BYTES: Final = 16 * 1024 * 1024
"""Bytes of a piece of a segment: some milliseconds to read."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The offsets [start, end) of a partition, all in one segment.

    times  bounds of the records' timestamps
    """

    partition: TopicPartition
    start: int
    end: int
    times: TimeBounds


def by_segment(partition: TopicPartition, views: Path, start: int, end: int) -> Iterator[Piece]:
    """Yield a piece for each segment of a span. `views` is the directory of all partitions' views."""
    files = partition.files
    for place in range(max(files.floor(start), 0), len(files.bases)):
        begin, stop = max(start, files.bases[place]), min(end, files.end_of(place, end))
        if begin < stop:
            known = _Known.of(partition, views, place)
            yield Piece(partition, begin, stop, known.between(begin, stop))


def cut(piece: Piece, views: Path) -> Iterator[Piece]:
    """Yield a piece in parts of some PIECE_BYTES."""
    files = piece.partition.files
    place = max(files.floor(piece.start), 0)
    index = offset_index(files.directory, files.bases[place])
    known = _Known.of(piece.partition, views, place)
    start = piece.start
    for position in range(PIECE_BYTES, files.sizes[place], PIECE_BYTES):
        below = index.count_up_to(1, position)
        # An entry names the last offset of the batch that begins at its position: the next batch begins behind it.
        end = index.base + index.at(below - 1)[0] + 1 if below else index.base
        if start < end < piece.end:
            yield Piece(piece.partition, start, end, known.between(start, end))
            start = end
    yield Piece(piece.partition, start, piece.end, known.between(start, piece.end))


@dataclass(frozen=True, slots=True)
class _Known:
    """What files tell of the timestamps in one segment.

    index     its time index: an entry says that no record up to its offset is later than its timestamp
    sealed    whether the index is complete
    earliest  from which offset on no record is earlier than a timestamp; None where that is not known
    """

    index: Index
    sealed: bool
    earliest: MinTimestamps | None

    @classmethod
    def of(cls, partition: TopicPartition, views: Path, place: int) -> _Known:
        files: Files = partition.files
        base, sealed = files.bases[place], place < len(files.bases) - 1
        index = time_index(files.directory, base)
        earliest = load(views / partition.name, files.directory / log_file(base), base) if sealed else None
        if earliest is not None and earliest.end_offset < files.bases[place + 1]:
            earliest = None  # of a segment that was made from the listed one later
        return cls(index, sealed, earliest)

    def between(self, start: int, end: int) -> TimeBounds:
        """Return the bounds of the timestamps at the offsets [start, end)."""
        return TimeBounds(self._first(start), self._last(end - 1 - self.index.base))

    def _first(self, start: int) -> int | None:
        return None if self.earliest is None else self.earliest.none_earlier_from(start)

    def _last(self, delta: int) -> int | None:
        behind = self.index.count_up_to(1, delta - 1)
        if behind == self.index.entries:
            behind -= 1 if self.sealed else 0
        if not 0 <= behind < self.index.entries:
            return None
        return self.index.at(behind)[0]
