"""The record, which is what a log holds, and the constants and clocks that go with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

Clock = Callable[[], int]
"""A clock in milliseconds: since the epoch, or for waits, by a clock that nobody can set. Tests pass their own."""

Header = tuple[str, bytes | None]

NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_LEADER_EPOCH: Final = -1
NO_OFFSET: Final = -1

MAX_INT32: Final = 2**31 - 1
MAX_INT64: Final = 2**63 - 1


class TimestampType(IntEnum):
    """The source of a batch's timestamps, the producer or the append: bit 3 of its attributes."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class Codec(IntEnum):
    """The compression of a batch's records: bits 0-2 of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


@dataclass(frozen=True, slots=True)
class Record:
    """One record, for users of the library. No hot path uses it.

    value      bytes, or None, which deletes the key on a compacted topic
    key        bytes, or None
    timestamp  milliseconds since the epoch; None on append means "now"
    headers    pairs of a name, and bytes or None; a name that is not UTF-8 has surrogate escapes
    offset     the position in the partition; set when read, ignored when appended
    """

    value: bytes | None = None
    key: bytes | None = None
    timestamp: int | None = None
    headers: tuple[Header, ...] = ()
    offset: int = NO_OFFSET


def now_ms() -> int:
    """Return the wall clock in milliseconds since the epoch, for times of records and events. It may be set back."""
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    """Return a clock that never goes back, in milliseconds since some moment: for waits and intervals."""
    return time.monotonic_ns() // 1_000_000


def steady_beside(clock: Clock) -> Clock:
    """Return the clock for waits that goes with a clock for records: `steady_ms` for `now_ms`, else the same clock."""
    return steady_ms if clock is now_ms else clock
