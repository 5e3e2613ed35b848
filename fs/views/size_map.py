"""Size maps: where the batches of a segment begin in its rendered bytes.

A mark is kept for about every 64 KiB of the `.log`: position in the file, rendered position, offset.
To find a rendered position takes a bisection over the marks, then a look at the batches behind one of them.

A map is stored once the segment is sealed and all of it is visible:

    0   8 bytes  "topicfs2"
    8   int64    size of the `.log`
    16  int64    its modification time, in nanoseconds
    24  int64    its inode
    32  int64    offset behind the last record
    40  int64    rendered bytes
    48  int64    number of marks, then each: position, rendered position, offset (int64, little-endian)

The last 8 bytes are the CRC-32C of all bytes before them. A map that does not match its `.log` is made anew.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from topicfs.engine.batch.table import Longs
from topicfs.engine.kernels.crc import crc32c
from topicfs.engine.kernels.scan import BASE_OFFSET, LAST_OFFSET, POSITION

MAGIC: Final = b"topicfs2"
_HEADER: Final = struct.Struct("<8sqqqqqq")
_CRC: Final = struct.Struct("<Q")

GRAIN: Final = 64 * 1024
"""Bytes of the `.log` between marks. A random read renders that many bytes, which takes some 30 us for txt."""


class SizeMap:
    """The marks of one segment in one format.

    next_offset  everything below this offset is mapped
    rendered     bytes of the rendered segment, as far as it is mapped
    _marks       int64[n, 3]: position in the `.log`, rendered position, offset of the batch there; only the first
                 `_count` rows are valid, and they never change
    """

    __slots__ = ("_count", "_last", "_marks", "next_offset", "rendered")

    def __init__(self, base_offset: int) -> None:
        self.next_offset = base_offset
        self.rendered = 0
        self._marks = np.empty((8, 3), np.int64)
        self._count = 0
        self._last = -GRAIN

    def add(self, table: Longs, sizes: Longs) -> None:
        """Map the batches of `table`, which follow what is mapped and take `sizes` rendered bytes each."""
        ends = np.cumsum(sizes)
        positions = table[:, POSITION]
        at = 0
        while at < len(table):
            self._mark(
                int(positions[at]), self.rendered + int(ends[at] - sizes[at]), int(table[at, BASE_OFFSET])
            )
            at = max(at + 1, int(np.searchsorted(positions, self._last + GRAIN)))
        self.next_offset = int(table[-1, LAST_OFFSET]) + 1
        self.rendered += int(ends[-1])

    def add_one(self, position: int, base_offset: int, last_offset: int, size: int) -> None:
        """Map one batch, which follows what is mapped."""
        self._mark(position, self.rendered, base_offset)
        self.next_offset = last_offset + 1
        self.rendered += size

    def _mark(self, position: int, rendered: int, offset: int) -> None:
        if position < self._last + GRAIN:
            return
        if self._count == len(self._marks):
            grown = np.empty((2 * self._count, 3), np.int64)
            grown[: self._count] = self._marks
            self._marks = grown
        self._marks[self._count] = position, rendered, offset
        self._count += 1
        self._last = position

    def skip_to(self, offset: int) -> None:
        """Note that everything below `offset` is mapped: markers and aborted records take no rendered bytes."""
        self.next_offset = max(self.next_offset, offset)

    # -- look-ups -------------------------------------------------------------------------------------

    @property
    def marks(self) -> Longs:
        """Return all valid marks."""
        return self._marks[: self._count]

    def before_rendered(self, position: int) -> int:
        """Return the last mark at or before a rendered position, or -1 if there is none."""
        return int(np.searchsorted(self.marks[:, 1], position, side="right")) - 1

    def before_offset(self, offset: int) -> int:
        """Return the last mark whose batch begins at or before an offset, or -1 if there is none."""
        return int(np.searchsorted(self.marks[:, 2], offset, side="right")) - 1

    # -- storing --------------------------------------------------------------------------------------

    def encode(self, identity: tuple[int, int, int]) -> bytes:
        """Return the map as it is stored. `identity` is size, modification time and inode of the `.log`."""
        head = _HEADER.pack(MAGIC, *identity, self.next_offset, self.rendered, self._count)
        data = head + self.marks.astype("<i8").tobytes()
        return data + _CRC.pack(crc32c(np.frombuffer(data, np.uint8), 0, len(data)))

    @classmethod
    def decode(cls, data: bytes, identity: tuple[int, int, int]) -> SizeMap | None:
        """Read a stored map. Return None if it is damaged, or belongs to another `.log`."""
        if len(data) < _HEADER.size + _CRC.size:
            return None
        body = len(data) - _CRC.size
        magic, size, modified, inode, next_offset, rendered, count = _HEADER.unpack_from(data)
        if (
            magic != MAGIC
            or (size, modified, inode) != identity
            or count < 0
            or body != _HEADER.size + 24 * count
            or crc32c(np.frombuffer(data, np.uint8), 0, body) != _CRC.unpack_from(data, body)[0]
        ):
            return None
        found = cls(next_offset)
        found.rendered = rendered
        found._marks = np.frombuffer(data, "<i8", 3 * count, _HEADER.size).reshape(count, 3).astype(np.int64)
        found._count = count
        return found


def described_by(data: bytes) -> tuple[int, int, int] | None:
    """Return the identity of the `.log` that a stored map describes, whether the map is damaged or not; None where the
    bytes are no map."""
    if len(data) < _HEADER.size or not data.startswith(MAGIC):
        return None
    _, size, modified, inode, *_ = _HEADER.unpack_from(data)
    return size, modified, inode
