"""Headers of batches, read one by one without a kernel: for the end of a log, where few are to be looked at.

The header is drawn in `topicfs.engine.kernels.scan`, a marker in `topicfs.engine.batch.marker`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from topicfs.engine.errors import CorruptBatchError

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_SIZE_OVERHEAD: Final = 12
_STEP: Final = 4096
_LONGEST_MARKER: Final = 256

TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
ABORT: Final = 0
COMMIT: Final = 1


class Head(NamedTuple):
    """What is asked of a batch: where it lies, its offsets, its largest timestamp, and what kind it is."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    attributes: int
    max_timestamp: int
    producer_id: int


def heads(descriptor: int, position: int, size: int) -> Iterator[Head]:
    """The batches from a position on, as far as they are whole: an append may be under way behind them."""
    while position + _HEADER.size <= size:
        data = os.pread(descriptor, min(_STEP, size - position), position)
        at = 0
        while at + _HEADER.size <= len(data):
            base, length, _, magic, _, attributes, delta, _, latest, producer, _, _, _ = _HEADER.unpack_from(
                data, at
            )
            total = length + _SIZE_OVERHEAD
            if magic != 2 or total < _HEADER.size or delta < 0 or position + at + total > size:
                return
            yield Head(position + at, total, base, base + delta, attributes, latest, producer)
            at += total
        if not at:
            return
        position += at


def marker_kind(descriptor: int, head: Head) -> int | None:
    """ABORT or COMMIT, None where a control batch is something else, or was emptied by compaction."""
    length = min(head.size - _HEADER.size, _LONGEST_MARKER)
    data = os.pread(descriptor, length, head.position + _HEADER.size)
    try:
        at = _behind_varint(data, 0) + 1  # length, then attributes
        at = _behind_varint(data, _behind_varint(data, at))  # timestamp, offset
        at = _behind_varint(data, at)  # length of the key
        kind = int.from_bytes(data[at + 2 : at + 4], "big")
    except IndexError:
        if length:
            raise CorruptBatchError(f"control batch at offset {head.base_offset} holds no marker") from None
        return None
    return kind if kind in (ABORT, COMMIT) else None


def _behind_varint(data: bytes, at: int) -> int:
    while data[at] & 0x80:
        at += 1
    return at + 1
