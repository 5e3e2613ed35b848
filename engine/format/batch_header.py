"""The header of a batch, and the marker of a control batch.

    header, 61 bytes, big-endian                            the checksum covers [21, end)
    0   int64  base offset          23  int32  last offset delta     51  int16  producer epoch
    8   int32  size after here      27  int64  base timestamp        53  int32  base sequence
    12  int32  leader epoch         35  int64  max timestamp         57  int32  count of records
    16  int8   magic, always 2      43  int64  producer id           61  …      records, see `kernels.encode`
    17  uint32 CRC-32C
    21  int16  attributes: bits 0-2 codec, 3 timestamp type, 4 transactional, 5 control, 6 delete horizon

    marker: the one record of a control batch, which ends a transaction
    key    int16 version, int16 kind: 0 abort, 1 commit; a partition ignores other kinds
    value  int16 version, int32 coordinator epoch; a newer version may be longer

Kernels read the same bytes by the offsets that are drawn here.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE: Final = _HEADER.size
SIZE_OVERHEAD: Final = 12  # offset and size field, which the size does not count
HEAD_TO_MAGIC: Final = 17  # bytes before a batch can be told from garbage
MIN_SIZE_FIELD: Final = 14
CHECKED_FROM: Final = 21
MAGIC: Final = 2

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40

MARKER_KEY: Final = struct.Struct(">hh")
MARKER_VALUE: Final = struct.Struct(">hi")
ABORT: Final = 0
COMMIT: Final = 1


class BatchHeader(NamedTuple):
    """The fields of a header, as they are stored."""

    base_offset: int
    size_field: int
    leader_epoch: int
    magic: int
    checksum: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @classmethod
    def read(cls, data: bytes | memoryview, at: int = 0) -> BatchHeader:
        """Return the header at a position; struct.error where there are too few bytes."""
        return cls(*_HEADER.unpack_from(data, at))

    @property
    def size(self) -> int:
        """The size of the whole batch in bytes."""
        return self.size_field + SIZE_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    def row(self, position: int) -> tuple[int, ...]:
        """Return the row of a batch table, see `kernels.scan`, of the batch at a position."""
        return (
            position,
            self.size,
            self.base_offset,
            self.last_offset,
            self.leader_epoch,
            self.attributes & 0xFFFF,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.record_count,
            self.magic,
        )


def size_of(head: bytes | memoryview) -> int:
    """Return the size in bytes of the batch that begins with these bytes. Only the size field is read."""
    return int.from_bytes(head[8:SIZE_OVERHEAD], "big") + SIZE_OVERHEAD
