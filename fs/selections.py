"""The grammar of names: which records a file name selects.

    <N>                      offset/42                    the value of one record, exactly
    <N>.<fmt>                offset/42.jsonl              that record
    <A>-<B>.<fmt>            offset/100-199.txt           both ends included, as in an HTTP Range header
    <A>-.<fmt>               offset/100-.jsonl            from A on
    -<N>.<fmt>               offset/-10.txt               the last N records
    <T1>--<T2>.<fmt>         time/2026-05-01--2026-05-02T0630Z.txt    from T1 up to, not including, T2
    <T1>--.<fmt>, --<T2>.<fmt>                            from T1 on; up to T2
    <T>.<fmt>                time/2026-05-01.txt          the year, month, day, hour, minute or second that T names
    last-<N><unit>….<fmt>    time/last-15m.txt            units w, d, h, m, s, each once, as in last-1d12h
    <day>/<HH>.<fmt>         time/2026-05-01/09.txt       an hour, UTC
    <base>.<fmt>             segments/00000000000000000042.txt, also .log: the segment's bytes
    <base>-<end>.<fmt>       below sealed/ and table/ of a compacted log; the end is the next segment's base

Times are ISO 8601, with or without `-` and `:`. A time may stop at the year, at the month (which needs its `-`), or at
any smaller unit. A second may have a fraction. Times without a zone are UTC. A year above 9999 has a `+` before it, as
in +10000-01-01. Ten or more digits are milliseconds since 1970. No listed name has a colon, because Hadoop cannot read
such paths.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from typing import Final

from topicfs.engine.record import MAX_INT64

_UNITS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS

_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,18}")
_RANGE: Final = re.compile(r"(0|[1-9][0-9]{0,18})-(0|[1-9][0-9]{0,18})?")
_LAST: Final = re.compile(r"-([1-9][0-9]{0,18})")
_RECENT: Final = re.compile("last-" + "".join(rf"(?:([1-9][0-9]{{0,9}}){unit})?" for unit in "wdhms"))
_MILLISECONDS: Final = re.compile(r"[0-9]{10,19}")
_LATER_YEAR: Final = r"\+[1-9]\d{4,8}"
_ZONE: Final = r"(?P<zone>Z|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)?"
_TIME: Final = re.compile(
    rf"(?:(?P<year>\d{{4}})-?(?P<month>\d{{2}})-?(?P<day>\d{{2}})"
    rf"|(?P<later_year>{_LATER_YEAR})-(?P<later_month>\d{{2}})-(?P<later_day>\d{{2}}))"
    r"(?:T(?P<hour>[01]\d|2[0-3])(?::?(?P<minute>[0-5]\d)(?::?(?P<second>[0-5]\d)(?:\.(?P<fraction>\d{1,9}))?)?)?)?"
    + _ZONE,
    re.ASCII,
)
_MONTHS: Final = re.compile(rf"(?P<year>\d{{4}}|{_LATER_YEAR})(?:-(?P<month>\d{{2}}))?", re.ASCII)
_DAY: Final = re.compile(rf"(?:\d{{4}}|{_LATER_YEAR})-\d{{2}}-\d{{2}}", re.ASCII)
_HOUR: Final = re.compile(r"[01]\d|2[0-3]", re.ASCII)
_BASE: Final = re.compile(r"[0-9]{20}")
_EPOCH: Final = date(1970, 1, 1).toordinal()

_CYCLE_YEARS: Final = 400
_CYCLE_DAYS: Final = 146_097
"""The calendar repeats, day for day, after so many years. `date` ends at the year 9999, but timestamps go further."""

_CYCLE_START: Final = 2000
_CYCLE_FIRST: Final = date(_CYCLE_START, 1, 1).toordinal()


@dataclass(frozen=True, slots=True)
class OffsetSelection:
    """Records by offset: from `first` to `last`, both included; without a `last`, also all that will come."""

    first: int
    last: int | None = None


@dataclass(frozen=True, slots=True)
class LastSelection:
    """The last `count` records at the time of the look-up."""

    count: int


@dataclass(frozen=True, slots=True)
class TimeSelection:
    """Records by time in milliseconds: from `start` (None: from the beginning) up to `end`, which is not included."""

    start: int | None
    end: int | None


@dataclass(frozen=True, slots=True)
class RecentSelection:
    """The records of the last `span_ms` before the open, and those that will come."""

    span_ms: int


Selection = OffsetSelection | LastSelection | TimeSelection | RecentSelection


def parse_offset(name: str) -> int | None:
    """Return the offset that a name without a suffix stands for; None if it stands for none."""
    if _NUMBER.fullmatch(name) is None or int(name) > MAX_INT64:
        return None
    return int(name)


def parse_offsets(stem: str) -> Selection | None:
    """Return the records that a name under `offset/`, without its suffix, stands for; None if it stands for none."""
    found = _LAST.fullmatch(stem)
    if found is not None:
        return LastSelection(int(found[1]))
    found = _RANGE.fullmatch(stem)
    if found is None or int(found[1]) > MAX_INT64:
        return None
    last = None if found[2] is None else int(found[2])
    if last is not None and last < int(found[1]):
        return None
    return OffsetSelection(int(found[1]), last)


def parse_times(stem: str) -> Selection | None:
    """Return the records that a name under `time/`, without its suffix, stands for; None if it stands for none."""
    found = _RECENT.fullmatch(stem)
    if found is not None and any(found.groups()):
        return RecentSelection(
            sum(int(number or 0) * _UNITS[unit] for number, unit in zip(found.groups(), "wdhms", strict=True))
        )
    start_text, dashes, end_text = stem.partition("--")
    if not dashes:
        period = parse_period(stem)
        return None if period is None else TimeSelection(*period)
    if not (start_text or end_text):
        return None
    start = parse_time(start_text) if start_text else None
    end = parse_time(end_text) if end_text else None
    if (start_text and start is None) or (end_text and end is None):
        return None
    if start is not None and end is not None and end < start:
        return None
    return TimeSelection(start, end)


def parse_time(text: str) -> int | None:
    """Return the milliseconds since 1970 of a time, in ISO 8601 or as digits; None if it is no time."""
    if _MILLISECONDS.fullmatch(text) is not None:
        return int(text) if int(text) <= MAX_INT64 else None
    found = _parse(text)
    return None if found is None else found[0]


def parse_period(text: str) -> tuple[int, int] | None:
    """Return the first millisecond of the year, month, day, hour, minute or second that a text in ISO 8601 names, and
    the one behind its last. None if it names none."""
    found = _parse(text)
    return None if found is None or found[1] is None else (found[0], found[1])


def _parse(text: str) -> tuple[int, int | None] | None:
    """Return the first millisecond of a time, and the one behind its last, which is None if it has a fraction."""
    found = _MONTHS.fullmatch(text)
    if found is not None:
        year, month = int(found["year"]), found["month"]
        first = _day(year, int(month or 1), 1)
        after = _day(year + 1, 1, 1) if month in (None, "12") else _day(year, int(month) + 1, 1)
        return _between(first * DAY_MS, after * DAY_MS) if first is not None and after is not None else None
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    day = _day(*(int(found[name] or found[f"later_{name}"]) for name in ("year", "month", "day")))
    if day is None:
        return None
    start, length = day * DAY_MS, DAY_MS
    for name, unit in (("hour", HOUR_MS), ("minute", 60_000), ("second", 1_000)):
        if found[name] is not None:
            start, length = start + int(found[name]) * unit, unit
    start -= _zone(found["zone"])
    if found["fraction"] is None:
        return _between(start, start + length)
    start += int(found["fraction"].ljust(3, "0")[:3])
    return (max(0, start), None) if start <= MAX_INT64 else None


def _between(start: int, end: int) -> tuple[int, int] | None:
    """Move times before 1970 to 1970. Return None for what begins later than a timestamp can be."""
    return (max(0, start), max(0, end)) if start <= MAX_INT64 else None


def _day(year: int, month: int, day: int) -> int | None:
    """Return the days since 1970; None if the calendar has no such day."""
    cycles, rest = divmod(year - _CYCLE_START, _CYCLE_YEARS)
    try:
        found = date(_CYCLE_START + rest, month, day)
    except ValueError:
        return None
    return None if year < 1 else found.toordinal() + cycles * _CYCLE_DAYS - _EPOCH


def _zone(text: str | None) -> int:
    """Return how far a zone is ahead of UTC, in milliseconds."""
    if text is None or text == "Z":
        return 0
    digits = text[1:].replace(":", "").ljust(4, "0")
    span = int(digits[:2]) * HOUR_MS + int(digits[2:]) * 60_000
    return -span if text[0] == "-" else span


def parse_day(name: str) -> int | None:
    """Return the first millisecond of a day such as 2026-05-01; None if the name is no day."""
    return parse_time(name) if _DAY.fullmatch(name) is not None else None


def parse_hour(stem: str) -> int | None:
    """Return the hour that a name such as 09 stands for; None if it is no hour."""
    return int(stem) if _HOUR.fullmatch(stem) is not None else None


def day_name(milliseconds: int) -> str:
    """Return the name under which a day is listed."""
    cycles, rest = divmod(milliseconds // DAY_MS + _EPOCH - _CYCLE_FIRST, _CYCLE_DAYS)
    found = date.fromordinal(_CYCLE_FIRST + rest)
    year = found.year + cycles * _CYCLE_YEARS
    return f"{year:04d}{found:-%m-%d}" if year <= 9999 else f"+{year}{found:-%m-%d}"


def parse_base(stem: str) -> int | None:
    """Return the base offset in a segment's name of 20 digits; None if it is no such name."""
    if _BASE.fullmatch(stem) is None or int(stem) > MAX_INT64:
        return None
    return int(stem)


def base_name(base_offset: int) -> str:
    """Return a segment's name: the base offset in 20 digits."""
    return f"{base_offset:020d}"


def sealed_name(base_offset: int, end_offset: int, compacted: bool) -> str:
    """Return the name of a segment that can change no more, save by compaction. In a compacted log the name has the end
    too: a clean puts records of other segments into one, and who takes each name once has to find them."""
    return base_name(base_offset) + (f"-{base_name(end_offset)}" if compacted else "")


def parse_sealed(stem: str) -> int | None:
    """Return the base offset in either form of `sealed_name`; None if it is no such name. The caller compares the
    whole name with the segment's."""
    return parse_base(stem.partition("-")[0])
