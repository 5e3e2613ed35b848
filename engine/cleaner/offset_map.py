"""The offset map of a clean: for each key in the dirty part of a log, its last offset there.

Keys are stored by their hashes, 24 bytes each whatever their length: see `topicfs.engine.kernels.hash`.
"""

from __future__ import annotations

import contextlib

import numpy as np

from topicfs.engine.batch.table import Bytes, Longs
from topicfs.engine.cleaner.decompress import decompressed, refuse
from topicfs.engine.kernels import hash as hashing
from topicfs.engine.kernels.decode import GOOD
from topicfs.engine.kernels.hash import COMPRESSED, FULL, RING, RING_SIZE, SLOT
from topicfs.engine.kernels.scan import POSITION
from topicfs.engine.record import NO_OFFSET

SLOT_BYTES = 8 * SLOT
_MOST_SLOTS = 2**31 - 1
_BITMAP_SHARE = 32
"""The bitmap takes at most this part of the table's memory, a 32nd: with 128 MiB it reaches 33 million offsets."""


class OffsetMap:
    """The last offset of each key.

    capacity       most keys that fit
    size           keys that it holds
    latest_offset  everything up to this offset was put; -1 for nothing
    secret         two numbers without which nobody can predict the slot of a key
    slots          part of the table that is used
    ring           buffer in which hashes wait for their slots to be fetched
    outdated       a bit for each offset from `base` on: its key was put again. It may not reach as far as the map
    base           first offset of the bitmap
    _memory        all slots: the system gives the memory page by page, at the first use of a page. Empty if there
                   was too little memory at the last attempt
    _length        length of `_memory` in numbers, when it is not empty
    """

    __slots__ = (
        "_length",
        "_memory",
        "base",
        "capacity",
        "latest_offset",
        "outdated",
        "ring",
        "secret",
        "size",
        "slots",
    )

    def __init__(self, slots: int, capacity: int, secret: Longs) -> None:
        self.capacity = capacity
        self.secret = secret
        self.ring = np.zeros(RING_SIZE, np.int64)
        self._length = slots * SLOT
        self._memory = self.slots = np.zeros(self._length, np.int64)
        self.outdated = np.zeros(0, np.uint8)
        self.base = 0
        self.size = 0
        self.latest_offset = NO_OFFSET

    @classmethod
    def create(cls, memory: int, load_factor: float, secret: bytes) -> OffsetMap:
        """Return an empty map of at most `memory` bytes. At most the part `load_factor` of its slots is used."""
        slots = min(memory // SLOT_BYTES, _MOST_SLOTS)
        if slots * load_factor <= 1 or load_factor > 1:
            raise ValueError(
                f"an offset map of {memory} bytes with a load factor of {load_factor}: expected room for more than "
                f"one key at {SLOT_BYTES} bytes a slot, and a factor of at most 1"
            )
        if len(secret) != 2 * 8:
            raise ValueError(f"an offset map's secret: expected 16 bytes, found {len(secret)}")
        return cls(slots, int(slots * load_factor), np.frombuffer(secret, np.int64).copy())

    @property
    def utilization(self) -> float:
        """Return the used part of the slots."""
        return self.size * SLOT / self._length

    def expect(self, start: int, count: int) -> None:
        """Prepare the empty map for the keys of `count` offsets from `start` on. Few keys are kept close together:
        in the CPU's caches, and in little memory. MemoryError if there is too little."""
        if not self._memory.size:
            self._memory = np.zeros(self._length, np.int64)
        self.slots = self._memory[: SLOT * max(2 * count, RING)]
        most = self._memory.nbytes // _BITMAP_SHARE
        self.outdated = np.zeros(min(-(-count // 8), most), np.uint8)
        self.base = start

    def clear(self) -> None:
        """Forget everything, and free the memory."""
        if self.size:
            # New pages of zeros are cheaper than zeros written over old ones. Two tables at once would be too large.
            self._memory = self.slots = np.zeros(0, np.int64)
            with contextlib.suppress(MemoryError):  # `expect` asks again
                self._memory = np.zeros(self._length, np.int64)
        self.slots = self._memory
        self.outdated = np.zeros(0, np.uint8)
        self.size = 0
        self.latest_offset = NO_OFFSET

    def get(self, key: bytes) -> int:
        """Return the offset that a key was last put with, or -1 if it was not put."""
        return int(hashing.get(np.frombuffer(key, np.uint8), self.secret, self.slots))

    def put(self, key: bytes, offset: int) -> bool:
        """Put one key. Return False, and do nothing, if the map is full."""
        if self.size >= self.capacity:
            return False
        added = int(
            hashing.put(
                np.frombuffer(key, np.uint8), offset, self.secret, self.slots, self.outdated, self.base
            )
        )
        if added < 0:
            return False
        self.size += added
        self.latest_offset = offset
        return True

    def put_batches(self, buffer: Bytes, table: Longs, skipped: Bytes, start: int, where: str) -> bool:
        """Put the records with keys from offset `start` on, of the data batches that are not `skipped` (a byte for
        each batch).

        Return False if the map became full: `latest_offset` says how far it came. `where` is for messages."""
        origin = int(table[0, POSITION])
        first = 0
        while first < len(table):
            status, row, index, at = self._put(buffer, origin, table, first, skipped, start)
            if status == COMPRESSED:
                plain, one = decompressed(buffer, table[row], origin, where)
                status, _, index, at = self._put(plain, 0, one, 0, skipped[row : row + 1], start)
                if status == GOOD:
                    first = row + 1
                    continue
            if status == FULL:
                return False
            if status != GOOD:
                refuse(status, table[row], index, at, where)
            first = row
        return True

    def _put(
        self, buffer: Bytes, origin: int, table: Longs, first: int, skipped: Bytes, start: int
    ) -> tuple[int, int, int, int]:
        status, row, index, at, self.size, self.latest_offset = hashing.put_batches(
            buffer,
            origin,
            table,
            first,
            skipped,
            start,
            self.secret,
            self.slots,
            self.size,
            self.capacity,
            self.latest_offset,
            self.ring,
            self.outdated,
            self.base,
        )
        return status, row, index, at
