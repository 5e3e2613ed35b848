"""Producer snapshots: `<offset>.snapshot`, the state of a partition's producers below that offset.

    0   int16   version, always 1                the file, big-endian
    2   uint32  CRC-32C of bytes [6, end)
    6   int32   number of entries
    10  entries, one behind the other, to the end

    0   int64  producer id                       an entry, 46 bytes
    8   int16  epoch, −1 none
    10  int32  last sequence, −1 none
    14  int64  last offset, −1 none: then the producer has no batch
    22  int32  last offset − first offset of the last batch
    26  int64  last timestamp
    34  int32  coordinator epoch, −1 none
    38  int64  first offset of the open transaction, −1 none

Only the last batch of each producer is stored. A snapshot is written as `<name>.tmp` and then renamed, so that
it is never incomplete.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from topicfs.engine.errors import CorruptSnapshotError
from topicfs.engine.format.layout import Layout

VERSION: Final = 1
HEADER: Final = Layout(version="h", checksum="I", count="i")
CHECKED_FROM: Final = 6
ENTRY: Final = Layout(
    producer_id="q",
    epoch="h",
    last_sequence="i",
    last_offset="q",
    offset_delta="i",
    timestamp="q",
    coordinator_epoch="i",
    transaction_first_offset="q",
)


def header_in(path: Path, data: bytes, size: int) -> tuple[int, int]:
    """Return the checksum and the number of entries of a snapshot. `data` begins with the header, `size` is the file's.
    CorruptSnapshotError where version, size and number of entries do not fit."""
    if len(data) < HEADER.size:
        raise CorruptSnapshotError(f"{path}: expected {HEADER.size} bytes, found {len(data)}")
    version, checksum, count = HEADER.struct.unpack_from(data)
    if version != VERSION:
        raise CorruptSnapshotError(f"{path}: expected version {VERSION}, found {version}")
    if size != HEADER.size + count * ENTRY.size:
        entries = (size - HEADER.size) / ENTRY.size
        raise CorruptSnapshotError(f"{path}: expected {count} entries as declared, found {entries:g}")
    return checksum, count
