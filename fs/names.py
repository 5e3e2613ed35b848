"""The grammar of names: which records a file name means.

    <N>                      offset/42                    the value of one record, exactly
    <A>-<B>.<fmt>            offset/100-199.txt           both ends included, as in an HTTP Range header
    <A>-.<fmt>               offset/100-.jsonl            from A on
    -<N>.<fmt>               offset/-10.txt               the last N
    <T1>--<T2>.<fmt>         time/2026-05-01--2026-05-02T0630Z.txt    from T1 up to, not including, T2
    <T1>--.<fmt>, --<T2>.<fmt>                            from T1 on; up to T2
    last-<N><unit>.<fmt>     time/last-15m.txt            units s, m, h, d, w
    <day>/<HH>.<fmt>         time/2026-05-01/09.txt       an hour, UTC
    <base>.<fmt>             segments/00000000000000000042.txt, also .log: the segment's bytes

Times are ISO 8601, with or without `-` and `:`; a time of day may stop at the hour, the minute or the second,
which may have a fraction. Without a zone they are UTC. Ten or more digits are milliseconds since 1970.
No name that is listed has a colon: Hadoop cannot read such paths.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from engine.record import MAX_INT64

_UNITS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS

_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,18}")
_RANGE: Final = re.compile(r"(0|[1-9][0-9]{0,18})-(0|[1-9][0-9]{0,18})?")
_LAST: Final = re.compile(r"-([1-9][0-9]{0,18})")
_RECENT: Final = re.compile(r"last-([1-9][0-9]{0,9})([smhdw])")
_MILLISECONDS: Final = re.compile(r"[0-9]{10,15}")
_TIME: Final = re.compile(
    r"(?P<year>\d{4})-?(?P<month>\d{2})-?(?P<day>\d{2})"
    r"(?:T(?P<hour>\d{2})(?::?(?P<minute>\d{2})(?::?(?P<second>\d{2})(?:\.(?P<fraction>\d{1,9}))?)?)?)?"
    r"(?P<zone>Z|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)?",
    re.ASCII,
)
_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_HOUR: Final = re.compile(r"[01]\d|2[0-3]", re.ASCII)
_BASE: Final = re.compile(r"[0-9]{20}")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Offsets:
    """Records by offset: from `first` on, up to and including `last`; without a last, all that come."""

    first: int
    last: int | None = None


@dataclass(frozen=True, slots=True)
class Last:
    """The last `count` records that there are when it is opened."""

    count: int


@dataclass(frozen=True, slots=True)
class Times:
    """Records by time, in milliseconds: from `start` on (None: from the beginning), up to, not including, `end`."""

    start: int | None
    end: int | None


@dataclass(frozen=True, slots=True)
class Recent:
    """The records of the last `span_ms` before it is opened."""

    span_ms: int


Selection = Offsets | Last | Times | Recent


def parse_offset(name: str) -> int | None:
    """The offset that a name without a suffix means; None where it means none."""
    if _NUMBER.fullmatch(name) is None or int(name) > MAX_INT64:
        return None
    return int(name)


def parse_offsets(stem: str) -> Selection | None:
    """The records that a name under `offset/` means, its suffix taken off."""
    found = _LAST.fullmatch(stem)
    if found is not None:
        return Last(int(found[1]))
    found = _RANGE.fullmatch(stem)
    if found is None or int(found[1]) > MAX_INT64:
        return None
    last = None if found[2] is None else int(found[2])
    if last is not None and last < int(found[1]):
        return None
    return Offsets(int(found[1]), last)


def parse_times(stem: str) -> Selection | None:
    """The records that a name under `time/` means, its suffix taken off."""
    found = _RECENT.fullmatch(stem)
    if found is not None:
        return Recent(int(found[1]) * _UNITS[found[2]])
    start_text, dashes, end_text = stem.partition("--")
    if not dashes or not (start_text or end_text):
        return None
    start = parse_time(start_text) if start_text else None
    end = parse_time(end_text) if end_text else None
    if (start_text and start is None) or (end_text and end is None):
        return None
    if start is not None and end is not None and end < start:
        return None
    return Times(start, end)


def parse_time(text: str) -> int | None:
    """Milliseconds since 1970 of a time in ISO 8601; None where it is none."""
    if _MILLISECONDS.fullmatch(text) is not None:
        return int(text)
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    try:
        when = datetime(
            int(found["year"]),
            int(found["month"]),
            int(found["day"]),
            int(found["hour"] or 0),
            int(found["minute"] or 0),
            int(found["second"] or 0),
            int((found["fraction"] or "0").ljust(6, "0")[:6]),
            tzinfo=UTC,
        )
    except ValueError:
        return None
    # The zone comes last: in the first and the last year there are times with one that no datetime holds.
    return max(0, (when - _EPOCH - _zone(found["zone"])) // timedelta(milliseconds=1))


def _zone(text: str | None) -> timedelta:
    if text is None or text == "Z":
        return timedelta()
    digits = text[1:].replace(":", "").ljust(4, "0")
    span = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return -span if text[0] == "-" else span


def parse_day(name: str) -> int | None:
    """The first millisecond of a day such as 2026-05-01; None where the name is none."""
    return parse_time(name) if _DAY.fullmatch(name) is not None else None


def parse_hour(stem: str) -> int | None:
    """The hour that a name such as 09 means."""
    return int(stem) if _HOUR.fullmatch(stem) is not None else None


def day_name(milliseconds: int) -> str:
    """The day, as it is listed."""
    return (_EPOCH + timedelta(milliseconds=milliseconds)).strftime("%Y-%m-%d")


def parse_base(stem: str) -> int | None:
    """The base offset in a segment's name, 20 digits."""
    if _BASE.fullmatch(stem) is None or int(stem) > MAX_INT64:
        return None
    return int(stem)


def base_name(base_offset: int) -> str:
    """A segment's name, 20 digits."""
    return f"{base_offset:020d}"
