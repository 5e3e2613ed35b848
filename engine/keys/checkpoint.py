"""The checkpoint of a partition's keys: the table as it was when everything below some offset had been put.

    0   8 bytes  "topicky1"
    8   int64    base of the table
    16  int64    offset below which everything was put
    24  int64    slots that are used
    32  int64    of those, the live ones
    40  2 int64  the secret
    56  int64    number of witnesses, then each:
                 2 int64  the slot of a key
                 int64    a hash of the record that was its last one
    …   int64    number of slots, then each: 2 int64

The last 8 bytes are the CRC-32C of all bytes before them; all numbers are little-endian. Witnesses are the newest
records of the table: a log that has lost them, or has others in their places, is not the one that it was made of.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np

from topicfs.engine.batch.table import Longs
from topicfs.engine.kernels.crc import crc32c
from topicfs.engine.kernels.keys import COUNTS, LIVE, SLOT, USED
from topicfs.engine.keys.table import KeyTable

MAGIC: Final = b"topicky1"
_HEAD: Final = struct.Struct("<8sqqqqqqq")
_WITNESS: Final = struct.Struct("<qqq")
_COUNT: Final = struct.Struct("<q")
_CRC: Final = struct.Struct("<Q")
_SLOT_FIELD: Final = 8


class Witness(NamedTuple):
    """A key's last record when the checkpoint was made: the key's slot, and a hash of the record."""

    slot: tuple[int, int]
    digest: int


class Checkpoint(NamedTuple):
    """A table, the offset below which everything was put into it, and the witnesses of its log."""

    table: KeyTable
    next_offset: int
    witnesses: list[Witness]


def encode(checkpoint: Checkpoint) -> bytes:
    """Return a checkpoint as it is stored."""
    table = checkpoint.table
    counts, secret = table.counts, table.secret
    data = b"".join(
        (
            _HEAD.pack(
                MAGIC,
                table.base,
                checkpoint.next_offset,
                int(counts[USED]),
                int(counts[LIVE]),
                int(secret[0]),
                int(secret[1]),
                len(checkpoint.witnesses),
            ),
            *(_WITNESS.pack(*each.slot, each.digest) for each in checkpoint.witnesses),
            _COUNT.pack(table.slots.size // SLOT),
            memoryview(table.slots.astype("<i8", copy=False)),
        )
    )
    return data + _CRC.pack(_checksum(data))


def decode(data: bytes) -> Checkpoint | None:
    """Read a stored checkpoint. Return None if it is damaged."""
    size = len(data) - _CRC.size
    if size < _HEAD.size + _COUNT.size or data[: len(MAGIC)] != MAGIC:
        return None
    if _CRC.unpack_from(data, size)[0] != _checksum(memoryview(data)[:size]):
        return None
    _, base, next_offset, used, live, low, high, witnesses = _HEAD.unpack_from(data)
    at, room = _HEAD.size, size - _HEAD.size - _COUNT.size
    # The checksum tells bytes that have changed, and not what somebody has written there on purpose.
    if not 0 <= witnesses <= room // _WITNESS.size:
        return None
    found = []
    for _ in range(witnesses):
        first, second, digest = _WITNESS.unpack_from(data, at)
        found.append(Witness((first, second), digest))
        at += _WITNESS.size
    (count,) = _COUNT.unpack_from(data, at)
    # A look-up ends at a slot that is free.
    if count * SLOT * _SLOT_FIELD != size - at - _COUNT.size or not 0 <= live <= used < count:
        return None
    slots = np.frombuffer(data, "<i8", count * SLOT, at + _COUNT.size).astype(np.int64)
    counts: Longs = np.zeros(COUNTS, np.int64)
    counts[USED], counts[LIVE] = used, live
    return Checkpoint(KeyTable(base, np.array((low, high), np.int64), slots, counts), next_offset, found)


def _checksum(data: bytes | memoryview) -> int:
    array = np.frombuffer(data, np.uint8)
    return int(crc32c(array, 0, array.size))
