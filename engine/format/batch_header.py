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

import os
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from topicfs.engine.errors import CorruptBatchError

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

_STEP: Final = 4096
_LONGEST_MARKER: Final = 256


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


def size_of(head: bytes | memoryview) -> int:
    """Return the size in bytes of the batch that begins with these bytes. Only the size field is read."""
    return int.from_bytes(head[8:SIZE_OVERHEAD], "big") + SIZE_OVERHEAD


def headers(descriptor: int, position: int, size: int) -> Iterator[tuple[int, BatchHeader]]:
    """Give the position and header of each complete batch in a file from a position on. It ends at an incomplete one,
    as an append may be under way. It uses no kernel, and is meant for the few batches at the end of a log."""
    while position + HEADER_SIZE <= size:
        data = os.pread(descriptor, min(_STEP, size - position), position)
        at = 0
        while at + HEADER_SIZE <= len(data):
            found = BatchHeader.read(data, at)
            is_whole = found.size >= HEADER_SIZE and position + at + found.size <= size
            if found.magic != MAGIC or found.last_offset_delta < 0 or not is_whole:
                return
            yield position + at, found
            at += found.size
        if not at:
            return
        position += at


def marker_kind(descriptor: int, position: int, header: BatchHeader) -> int | None:
    """Return ABORT or COMMIT; None where a control batch is of another kind, or was emptied by compaction."""
    length = min(header.size - HEADER_SIZE, _LONGEST_MARKER)
    data = os.pread(descriptor, length, position + HEADER_SIZE)
    try:
        at = _behind_varint(data, 0) + 1  # length, then attributes
        at = _behind_varint(data, _behind_varint(data, at))  # timestamp, offset
        _, kind = MARKER_KEY.unpack_from(data, _behind_varint(data, at))  # length of the key
    except (IndexError, struct.error):
        if length:
            raise CorruptBatchError(f"control batch at offset {header.base_offset} holds no marker") from None
        return None
    return kind if kind in (ABORT, COMMIT) else None


def _behind_varint(data: bytes, at: int) -> int:
    while data[at] & 0x80:
        at += 1
    return at + 1
