"""The table of a partition's keys: for each key the offset of its last record, 24 bytes a key at most."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from topicfs.engine.batch.columns import Columns
from topicfs.engine.batch.table import Bytes, Ints, Longs
from topicfs.engine.errors import CorruptBatchError
from topicfs.engine.kernels import keys as kernels
from topicfs.engine.kernels.keys import BAD, COUNTS, LIVE, PLACES, REPLACED, SLOT, TOMBSTONE, USED

LOAD_FACTOR: Final = 0.85
"""The part of the slots that is used at most. A key that is not there is then found missing after some 22 slots, which
lie side by side."""

GROWTH: Final = 1.25
"""How much larger a table becomes that is full: with it a key takes 19 to 24 bytes. While it grows there are both."""

LEAST_SLOTS: Final = 1024


class Place(NamedTuple):
    """The last record of a key: its offset, and whether it is a tombstone."""

    offset: int
    is_tombstone: bool


class KeyTable:
    """The last record of each key.

    base     no offset is below it
    secret   two numbers without which nobody can make keys whose hashes collide
    slots    the slots, as `topicfs.engine.kernels.keys` draws them; replaced when the table grows
    counts   what the kernels count
    """

    __slots__ = ("base", "counts", "secret", "slots")

    def __init__(self, base: int, secret: Longs, slots: Longs, counts: Longs) -> None:
        self.base = base
        self.secret = secret
        self.slots = slots
        self.counts = counts

    @classmethod
    def create(cls, base: int) -> KeyTable:
        """Return an empty table for offsets from `base` on."""
        secret = np.frombuffer(os.urandom(16), np.int64).copy()
        return cls(base, secret, np.zeros(SLOT * LEAST_SLOTS, np.int64), np.zeros(COUNTS, np.int64))

    @property
    def live(self) -> int:
        """Return how many keys have a last record that is no tombstone."""
        return int(self.counts[LIVE])

    @property
    def nbytes(self) -> int:
        """Return the bytes of memory that the slots take."""
        return self.slots.nbytes

    def find(self, key: bytes) -> Place | None:
        """Return the last record of a key, or None if there is none."""
        state = kernels.find(np.frombuffer(key, np.uint8), self.secret, self.slots)
        return self._place(state) if state else None

    def _place(self, state: int) -> Place:
        return Place((state & PLACES) - 1 + self.base, bool(state & TOMBSTONE))

    def put(self, columns: Columns, start: int) -> Iterator[Longs]:
        """Put records, by rising offset. Keys whose last record is below `start` may be forgotten. Yield the offsets of
        records that are not the last of their keys any more."""
        done = 0
        while done < len(columns):
            part = columns.rows(done, len(columns))
            replaced = np.empty(len(part), np.int64)
            most = int(self.slots.size // SLOT * LOAD_FACTOR)
            put = kernels.put(
                *_keys_of(part), self.base, self.secret, self.slots, most, self.counts, replaced
            )
            if put == BAD:
                raise CorruptBatchError(
                    f"offsets {part.offsets[0]} to {part.offsets[-1]}: a key goes beyond its batch, or an offset "
                    f"is not within {PLACES} of {self.base}"
                )
            yield replaced[: self.counts[REPLACED]]
            done += put
            if done < len(columns):
                self._grow(start)

    def _grow(self, start: int) -> None:
        """Make room for more keys: first that of tombstones and of what was removed, then a larger table."""
        wanted = max(LEAST_SLOTS, int(self.live * GROWTH / LOAD_FACTOR) + 1)
        fresh = np.zeros(SLOT * wanted, np.int64)
        moved = kernels.move(self.slots, fresh, max(1, start - self.base + 1))
        assert moved != BAD, f"{self.live} live keys of {self.counts[USED]} do not fit into {wanted} slots"
        self.slots = fresh
        self.counts[USED] = self.counts[LIVE] = moved

    def latest(self, columns: Columns) -> Bytes:
        """Return a byte for each record: 1 where it is the last of its key and no tombstone."""
        chosen = np.zeros(len(columns), np.uint8)
        if kernels.choose_latest(*_keys_of(columns), self.base, self.secret, self.slots, chosen) == BAD:
            raise CorruptBatchError(f"offset {columns.offsets[0]}: a key goes beyond its batch")
        return chosen

    def newest(self, count: int) -> list[tuple[int, int]]:
        """Return the slots, as two numbers, of the keys whose last records are the newest: at most `count`."""
        states = self.slots[1::SLOT]
        used = np.flatnonzero(states)
        if len(used) > count:
            places = states[used] & PLACES
            used = used[np.argpartition(places, len(used) - count)[-count:]]
        return [(int(self.slots[SLOT * slot]), int(states[slot])) for slot in used.tolist()]

    def place_in(self, slot: tuple[int, int]) -> Place:
        """Return the record that a slot names."""
        return self._place(slot[1] & (2 * TOMBSTONE - 1))


def _keys_of(columns: Columns) -> tuple[Bytes, Longs, Ints, Ints, Ints]:
    """Return what the kernels need of records, as arrays without gaps."""
    return (
        columns.buffer,
        np.ascontiguousarray(columns.offsets),
        np.ascontiguousarray(columns.key_start),
        np.ascontiguousarray(columns.key_length),
        np.ascontiguousarray(columns.value_length),
    )
