"""What a log holds: the record, and the few words around it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

Clock = Callable[[], int]
"""Gives milliseconds: since the epoch, or, for waits, by a clock that nobody can set. Tests pass their own."""

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
    """Who set a batch's timestamps: bit 3 of its attributes."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class Codec(IntEnum):
    """How a batch's records are compressed: bits 0-2 of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


@dataclass(frozen=True, slots=True)
class Record:
    """One record, for people who use the library. No hot path goes through it.

    value      bytes, or None: on a compacted topic that deletes the key
    key        bytes, or None
    timestamp  milliseconds since the epoch; None on append means "now"
    headers    pairs of name and bytes or None; a name that is not UTF-8 carries surrogate escapes
    offset     place in the partition; set when read, ignored when appended
    """

    value: bytes | None = None
    key: bytes | None = None
    timestamp: int | None = None
    headers: tuple[Header, ...] = ()
    offset: int = NO_OFFSET


def now_ms() -> int:
    """The wall clock, in milliseconds since the epoch. Of what was, and of records: it may be set, also back."""
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    """A clock that only goes on, in milliseconds since some moment: for waits and intervals."""
    return time.monotonic_ns() // 1_000_000


def steady_beside(clock: Clock) -> Clock:
    """The clock for waits that goes with a clock for records. Who gives one of his own for records moves both by it."""
    return steady_ms if clock is now_ms else clock
