"""The file that says how early the records of one sealed segment are, from an offset on.

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
offsets rise strictly. If no record follows, the timestamp is the largest possible one.

It is the mirror image of a `.timeindex`. It decides which records are not read, so a file that is not exactly as it
was written is ignored. It is trusted only beside the same `.log` file that it was made from. A reader that listed the
segments before may find another generation of that file after this check. A compaction keeps some of the records, at
their offsets and with their timestamps, so what was true of all records is true of the remaining ones.
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

# There is about one entry for each MiB: about 24 KiB for a segment of 2 GiB.
_LONGEST: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class MinTimestamps:
    """The content of a file.

    base_offset  base offset of the segment
    end_offset   the entries cover the records below this offset
    entries      (timestamp, offset - base), both rising
    """

    base_offset: int
    end_offset: int
    entries: tuple[tuple[int, int], ...]

    def all_later_from(self, timestamp: int) -> int | None:
        """Return the offset from which on every record is later than a timestamp, or None if no such offset is
        known."""
        place = bisect_right(self.entries, timestamp, key=itemgetter(0))
        return self.base_offset + self.entries[place][1] if place < len(self.entries) else None

    def none_earlier_from(self, offset: int) -> int | None:
        """Return a timestamp that no record from an offset on is earlier than, or None below the first entry."""
        place = bisect_right(self.entries, offset - self.base_offset, key=itemgetter(1))
        return self.entries[place - 1][0] if place else None


def load(directory: Path, log: Path, base_offset: int) -> MinTimestamps | None:
    """Return the content of the file for a `.log` as it is now, or None without a valid file. `directory` is the
    partition's directory of views."""
    try:
        name = made_of(base_offset, os.stat(log), MIN_TIMESTAMPS_SUFFIX)
        return _unpacked(read_bounded(directory / name, _LONGEST), base_offset)
    except (OSError, CorruptError):
        # Without the file more is read. No reason for its absence may end a query.
        return None


def write(path: Path, noted: MinTimestamps) -> None:
    """Write the file and put it in place in one step. It is not synced: damage by a power cut is detected, and the
    file is made again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, _packed(noted), durable=False)


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
