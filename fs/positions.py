"""The grammar of positions: what is written to `groups/<group>/<topic>-<n>`.

500                     the first record that is not read yet
earliest, latest        the first record that there is; behind the last one
-15m, -1d12h            the first record that is younger
2026-05-01T06:30        the first record that is not earlier: a time as in names, see `topicfs.fs.selections`
500 if 480              500, if the position is 480
earliest if none        where there is no position yet
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from topicfs.engine.errors import shown
from topicfs.engine.partition.partition import Partition
from topicfs.engine.record import MAX_INT64
from topicfs.fs import errors
from topicfs.fs.selections import RecentSelection, parse_time, parse_times

NONE: Final = "none"
"""What stands for no position."""

_NUMBER: Final = re.compile(r"0*([0-9]{1,19})", re.ASCII)
_LINE: Final = re.compile(r"\s*(\S+)(?:\s+if\s+(\S+))?\s*")


class Wanted(NamedTuple):
    """A position that is to be set.

    place       where it is to be, in the words above
    is_guarded  whether it is to be set only if the position is what is expected
    expected    that offset, None for none
    """

    place: str
    is_guarded: bool = False
    expected: int | None = None


def parse_position(line: str) -> Wanted:
    """Read a line. BadInputError where it is none; whether its place is one, `offset_of` finds out."""
    found = _LINE.fullmatch(line)
    if found is None:
        raise errors.BadInputError(f"expected a position, such as 500 or `500 if 480`, found {shown(line)}")
    place, guard = found[1], found[2]
    if guard is None or guard == NONE:
        return Wanted(place, guard is not None)
    expected = _number(guard)
    if expected is None:
        raise errors.BadInputError(f"expected an offset or {NONE} behind `if`, found {shown(guard)}")
    return Wanted(place, True, expected)


def offset_of(place: str, partition: Partition) -> int:
    """Return the offset that a place stands for now. BadInputError where it stands for none."""
    number = _number(place)
    if number is not None:
        return number
    now = partition.offsets
    if place == "earliest":
        return now.start
    if place == "latest":
        return now.stable
    recent = parse_times(f"last{place}") if place.startswith("-") else None
    if isinstance(recent, RecentSelection):
        return partition.first_offset_at(max(0, partition.log.clock() - recent.span_ms))
    time = parse_time(place)
    if time is not None:
        return partition.first_offset_at(time)
    raise errors.BadInputError(
        f"expected an offset, earliest, latest, an age such as -15m or a time such as 2026-05-01, found {shown(place)}"
    )


def _number(text: str) -> int | None:
    found = _NUMBER.fullmatch(text)
    return None if found is None or int(found[1]) > MAX_INT64 else int(found[1])
