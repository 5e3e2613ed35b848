"""A listing of a partition's live keys, as of one moment, in the order of their last records.

It goes through the log once, a chunk at a time, and takes the records that are the last of their keys: 1 MiB of the log
is in memory, not the keys. What is set or removed meanwhile changes nothing: the index tells which records have lost
their place since the beginning, 8 bytes each. Positions are offsets, so a listing can go on anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from topicfs.engine.batch.columns import Columns
from topicfs.engine.batch.table import Longs
from topicfs.engine.errors import OffsetOutOfRangeError
from topicfs.engine.keys.index import KeyIndex
from topicfs.engine.keys.table import KeyTable
from topicfs.engine.partition.hold import Hold
from topicfs.engine.partition.offsets import Isolation
from topicfs.engine.partition.reader import read_columns

Chosen = npt.NDArray[np.bool_]
"""Whether each record is meant."""


class _Chunk(NamedTuple):
    """A part of the log that was looked through: its offsets [first, end), and the live records in it."""

    first: int
    end: int
    live: Columns


class KeyListing:
    """The live keys of a partition, while it is open.

    index       the index of keys
    end_offset  the stable offset when it was opened: later records do not count
    start       the first offset when it was opened
    _hold       keeps the segments readable
    _keep       tells which records of a chunk count; None if all do
    _replaced   the offsets of records that were the last of their keys then, and are not any more
    _chunk      what was looked through last; None before the first
    """

    def __init__(self, index: KeyIndex, keep: Callable[[Columns], Chosen] | None = None) -> None:
        self.index = index
        self._keep = keep
        self.end_offset = 0
        self._replaced: list[Longs] = []
        self._chunk: _Chunk | None = None
        # The segments are held first, so that none of what the table says at its beginning is gone.
        self._hold = Hold.take(index.partition.log)
        self.start = self._hold.snapshot.start
        index.open_listing(self)
        if self.end_offset > self._hold.snapshot.stable:
            self._hold.release()
            self._hold = Hold.take(index.partition.log)

    def close(self) -> None:
        """Release the segments."""
        self.index.close_listing(self)
        self._hold.release()

    def note_replaced(self, offsets: Longs) -> None:
        """Note records that are no longer the last ones of their keys."""
        mine = offsets[offsets < self.end_offset]
        if mine.size:
            self._replaced.append(mine)

    def chosen_of(self, table: KeyTable, columns: Columns) -> Columns:
        """Return the live records of a chunk, by the table as it is now, which has those that were replaced before."""
        chosen = table.latest(columns) != 0
        if self._replaced:
            self._replaced = [np.concatenate(self._replaced)]
            chosen |= np.isin(columns.offsets, self._replaced[0])
        if self._keep is not None:
            chosen &= self._keep(columns)
        return columns.take(np.flatnonzero(chosen))

    def keys(self, position: int) -> Iterator[tuple[bytes, int, int]]:
        """Yield key, offset, and the position behind it of the live keys from a position on."""
        while True:
            chunk = self._chunk
            if chunk is None or not chunk.first <= position < chunk.end:
                chunk = self._look_through(position)
                if chunk is None:
                    return
            live = chunk.live.between(position, chunk.end)
            data = memoryview(live.buffer)
            for offset, start, size in zip(
                live.offsets.tolist(), live.key_start.tolist(), live.key_length.tolist(), strict=True
            ):
                yield bytes(data[start : start + size]), offset, offset + 1
            position = chunk.end

    def _look_through(self, position: int) -> _Chunk | None:
        """Look through the log from a position on, up to the end of the chunk in which live keys are found."""
        first = max(position, self.start)
        if first >= self.end_offset:
            return None
        snapshot = self._hold.snapshot
        end = min(self.end_offset, snapshot.limit(Isolation.COMMITTED))
        try:
            for part in read_columns(snapshot, first, end, Isolation.COMMITTED):
                live = self.index.choose(self, part)
                if len(live):
                    self._chunk = _Chunk(first, int(part.offsets[-1]) + 1, live)
                    return self._chunk
        except OffsetOutOfRangeError:
            return None
        return None
