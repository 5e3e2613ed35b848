"""From an offset on, how early the records of one sealed segment are.

    BACKING/views/<partition>/<base>.<inode>-<size>-<mtime>.earliest     see engine.format.paths; big-endian

    0   4 bytes  magic, "tfea"
    4   int16    version, always 1
    6   uint32   CRC-32C of bytes [10, end)
    10  int64    end offset: where the next segment began when the file was made
    18  int32    number of entries
    22  entries, one behind the other, to the end

    0   int64  timestamp                         an entry, 12 bytes
    8   int32  offset - base

An entry says: from this offset on, up to the end offset, no record is earlier than this timestamp. Timestamps and
offsets rise strictly. Where no record follows, the timestamp is the largest that there is.

It is the mirror image of a `.timeindex`. It decides what is not read, so a file that is not exactly as it was written
counts as none. It is believed only beside the very `.log` file that it was made of. Who listed the segments before may
meet another generation of that file behind this check: a compaction leaves some of the records, at their offsets and
with their timestamps, so what was true of all of them is true of those.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Final

import google_crc32c

from topicfs.engine.errors import CorruptError
from topicfs.engine.files.atomic import read_bounded, write_atomically
from topicfs.engine.format.paths import MIN_TIMESTAMPS_SUFFIX, made_of

_MAGIC: Final = b"tfea"
_VERSION: Final = 1
_HEADER: Final = struct.Struct(">4shIqi")
_CHECKED_FROM: Final = 10
_ENTRY: Final = struct.Struct(">qi")

# There is one for each MiB or so: of a segment of 2 GiB some 24 KiB.
_LONGEST: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class MinTimestamps:
    """What a file says.

    base_offset  of the segment
    end_offset   it tells of the records below
    entries      (timestamp, offset - base), both rising
    """

    base_offset: int
    end_offset: int
    entries: tuple[tuple[int, int], ...]

    def all_later_from(self, timestamp: int) -> int | None:
        """From this offset on every record is later than a timestamp; None where that is not known of any."""
        place = bisect_right(self.entries, timestamp, key=itemgetter(0))
        return self.base_offset + self.entries[place][1] if place < len(self.entries) else None


def load(directory: Path, log: Path, base_offset: int) -> MinTimestamps | None:
    """What is known of a `.log` as it is now, from a partition's directory of views; None without a good file."""
    try:
        name = made_of(base_offset, os.stat(log), MIN_TIMESTAMPS_SUFFIX)
        return _unpacked(read_bounded(directory / name, _LONGEST), base_offset)
    except (OSError, CorruptError):
        # Without it more is read: whatever the reason is, it must not end a query.
        return None


def write(path: Path, noted: MinTimestamps) -> None:
    """Put it in place whole. Not synced: what a power cut takes is found to be damaged, and made again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, _packed(noted), sync=False)


def _packed(noted: MinTimestamps) -> bytes:
    entries = b"".join(_ENTRY.pack(*entry) for entry in noted.entries)
    data = bytearray(_HEADER.pack(_MAGIC, _VERSION, 0, noted.end_offset, len(noted.entries)) + entries)
    struct.pack_into(">I", data, _CHECKED_FROM - 4, google_crc32c.value(bytes(data[_CHECKED_FROM:])))
    return bytes(data)


def _unpacked(data: bytes, base_offset: int) -> MinTimestamps | None:
    if len(data) < _HEADER.size:
        return None
    magic, version, crc, end_offset, count = _HEADER.unpack_from(data)
    entries = data[_HEADER.size :]
    if (magic, version) != (_MAGIC, _VERSION) or crc != google_crc32c.value(data[_CHECKED_FROM:]):
        return None
    if len(entries) != count * _ENTRY.size:
        return None
    return MinTimestamps(base_offset, end_offset, tuple(_ENTRY.iter_unpack(entries)))
