"""The grammar of names under offset/, time/ and segments/: every form, and what is none."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicfs.engine.record import MAX_INT64
from topicfs.fs import selections as names
from topicfs.fs.selections import LastSelection, OffsetSelection, RecentSelection, TimeSelection

DAY = datetime(2026, 5, 1, tzinfo=UTC)


def ms(when: datetime) -> int:
    return int(when.timestamp() * 1000)


# -- offsets ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 1, 42, 10**18, MAX_INT64])
def test_a_number_is_an_offset(offset: int) -> None:
    assert names.parse_offset(str(offset)) == offset


@pytest.mark.parametrize(
    "name", ["", "-1", "+1", "01", "00", " 1", "1 ", "1\n", "1.txt", "0x1", "1_000", "1e3", "٣", "²",
    str(MAX_INT64 + 1), "9" * 30]
)  # fmt: skip
def test_other_spellings_of_a_number_are_none(name: str) -> None:
    assert names.parse_offset(name) is None


@pytest.mark.parametrize(
    ("stem", "meant"),
    [
        ("100-199", OffsetSelection(100, 199)),
        ("7-7", OffsetSelection(7, 7)),
        ("0-", OffsetSelection(0)),
        ("100-", OffsetSelection(100)),
        (f"{MAX_INT64}-", OffsetSelection(MAX_INT64)),
        ("-10", LastSelection(10)),
        ("-1", LastSelection(1)),
    ],
)
def test_ranges_of_offsets_read_like_an_http_range(stem: str, meant: names.Selection) -> None:
    assert names.parse_offsets(stem) == meant


@pytest.mark.parametrize(
    "stem", ["", "-", "--", "5", "9-8", "-0", "-01", "01-2", "1-02", "1-2-3", "1--2", "a-b", "1-2 ", "1-2\n",
    f"{MAX_INT64 + 1}-", "٣-٤", "-٣"]
)  # fmt: skip
def test_no_range_of_offsets(stem: str) -> None:
    assert names.parse_offsets(stem) is None


# -- times --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("2026-05-01", DAY),
        ("20260501", DAY),
        ("2026-05-01T06", DAY + timedelta(hours=6)),
        ("2026-05-01T06Z", DAY + timedelta(hours=6)),
        ("2026-05-01T0630Z", DAY + timedelta(hours=6, minutes=30)),
        ("2026-05-01T06:30Z", DAY + timedelta(hours=6, minutes=30)),
        ("20260501T063015", DAY + timedelta(hours=6, minutes=30, seconds=15)),
        ("2026-05-01T06:30:15.5", DAY + timedelta(hours=6, minutes=30, seconds=15.5)),
        ("2026-05-01T063015.123456789Z", DAY + timedelta(hours=6, minutes=30, seconds=15, milliseconds=123)),
        ("2026-05-01T06+02", DAY + timedelta(hours=4)),
        ("2026-05-01T06+0230", DAY + timedelta(hours=3, minutes=30)),
        ("2026-05-01T06:00-05:30", DAY + timedelta(hours=11, minutes=30)),
        ("2024-02-29", datetime(2024, 2, 29, tzinfo=UTC)),
        ("2026-05", DAY),
        ("2026", datetime(2026, 1, 1, tzinfo=UTC)),
    ],
)
def test_times_are_iso_8601(text: str, when: datetime) -> None:
    assert names.parse_time(text) == ms(when)


def test_ten_or_more_digits_are_milliseconds() -> None:
    assert names.parse_time("1700000000000") == 1_700_000_000_000
    assert names.parse_time("1700000000") == 1_700_000_000
    assert names.parse_time(str(MAX_INT64)) == MAX_INT64
    assert names.parse_time(str(MAX_INT64 + 1)) is None
    assert names.parse_time("1" * 20) is None


def test_times_before_1970_are_the_beginning() -> None:
    assert names.parse_time("1969-12-31") == 0
    assert names.parse_time("1970-01-01T00+01") == 0


@pytest.mark.parametrize(
    "text",
    ["", "202", "20260", "202605", "2026-", "2026-13", "2026-00", "0000", "2026-5", "2026Z", "2026-05Z", "+2026-05-01",
     "10000-01-01", "+010000-01-01", "+1000", "+9999999999-01-01", "+10000-02-30",
     "+292278995-01-01", "2026-13-01", "2026-02-29", "2026-05-32", "0000-01-01", "2026-05-01T24",
     "2026-05-01T",
     "2026-05-01T06:60", "2026-05-01T06:30:60", "2026-05-01T06:30:15.", "2026-05-01 06", "2026-05-01T06+24",
     "2026-05-01T06+0260", "2026-05-01T06+99:99", "2026-05-01t06", "2026-05-01T06z", "٢٠٢٦-٠٥-٠١",
     "2026-05-01\n"],
)  # fmt: skip
def test_no_time(text: str) -> None:
    assert names.parse_time(text) is None


@pytest.mark.parametrize("text", ["9999-12-31T23-23:59", "0001-01-01T00+23:59", "9999-12-31T235959.999Z"])
def test_the_first_and_the_last_year_do_not_overflow(text: str) -> None:
    found = names.parse_time(text)
    assert found is not None
    assert found >= 0


@pytest.mark.parametrize(
    ("stem", "meant"),
    [
        ("2026-05-01--2026-05-02", TimeSelection(ms(DAY), ms(DAY + timedelta(days=1)))),
        ("2026-05-01--2026-05-01", TimeSelection(ms(DAY), ms(DAY))),
        ("2026-05-01--", TimeSelection(ms(DAY), None)),
        ("--2026-05-01", TimeSelection(None, ms(DAY))),
        ("1700000000000--1700000000001", TimeSelection(1_700_000_000_000, 1_700_000_000_001)),
        (
            "2026-05-01T00-0500--2026-05-01T00-0600",
            TimeSelection(ms(DAY) + 5 * 3_600_000, ms(DAY) + 6 * 3_600_000),
        ),
        ("last-15m", RecentSelection(15 * 60_000)),
        ("last-1s", RecentSelection(1000)),
        ("last-2h", RecentSelection(7_200_000)),
        ("last-3d", RecentSelection(3 * 86_400_000)),
        ("last-1w", RecentSelection(7 * 86_400_000)),
        ("last-1d12h", RecentSelection(36 * 3_600_000)),
        ("last-1w2d3h4m5s", RecentSelection(((9 * 24 + 3) * 60 + 4) * 60_000 + 5_000)),
        ("last-90m30s", RecentSelection(5_430_000)),
        ("2026-05-01", TimeSelection(ms(DAY), ms(DAY + timedelta(days=1)))),
        ("20260501", TimeSelection(ms(DAY), ms(DAY + timedelta(days=1)))),
        ("2026-05", TimeSelection(ms(DAY), ms(DAY + timedelta(days=31)))),
        (
            "2026-12",
            TimeSelection(ms(datetime(2026, 12, 1, tzinfo=UTC)), ms(datetime(2027, 1, 1, tzinfo=UTC))),
        ),
        ("2024", TimeSelection(ms(datetime(2024, 1, 1, tzinfo=UTC)), ms(datetime(2025, 1, 1, tzinfo=UTC)))),
        ("2026-05-01T06", TimeSelection(ms(DAY) + 6 * 3_600_000, ms(DAY) + 7 * 3_600_000)),
        ("2026-05-01T06+02", TimeSelection(ms(DAY) + 4 * 3_600_000, ms(DAY) + 5 * 3_600_000)),
        ("2026-05-01T06:30Z", TimeSelection(ms(DAY) + 390 * 60_000, ms(DAY) + 391 * 60_000)),
        ("2026-05-01T063015", TimeSelection(ms(DAY) + 23_415_000, ms(DAY) + 23_416_000)),
        ("2026-05--2026-06", TimeSelection(ms(DAY), ms(DAY + timedelta(days=31)))),
        ("1969", TimeSelection(0, 0)),
    ],
)
def test_ranges_of_times(stem: str, meant: names.Selection) -> None:
    assert names.parse_times(stem) == meant


@pytest.mark.parametrize(
    "stem", ["", "-", "--", "2026-05-01T06:30:15.5", "1700000000000", "last-", "last-1h1d", "last-1h1h", "last-1d12",
             "last-1d0h", "2026-05-02--2026-05-01", "2026-05-01--x", "x--2026-05-01",
    "2026-05-01---", "last-0m", "last-15", "last-m",
             "last--1m", "last-1y", "last-1M", "last-٣m", "last-99999999999d",
             "2026-05-01--2026-05-02--2026-05-03"]
)  # fmt: skip
def test_no_range_of_times(stem: str) -> None:
    assert names.parse_times(stem) is None


@given(
    st.datetimes(datetime(1970, 1, 2), datetime(9999, 12, 30)),  # noqa: DTZ001 - the zone is added
    st.integers(-23 * 60, 23 * 60),
    st.booleans(),
)
def test_what_isoformat_writes_is_understood(when: datetime, minutes: int, colons: bool) -> None:
    zoned = when.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    text = zoned.isoformat(timespec="milliseconds")
    text = text if colons else text.replace(":", "")
    # The milliseconds are cut off in the zone's own time, as the text has them.
    expected = (zoned - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    assert names.parse_time(text) == max(0, expected)


@pytest.mark.parametrize(("name", "day"), [("2026-05-01", ms(DAY)), ("1970-01-01", 0)])
def test_a_day_is_listed_as_it_is_read(name: str, day: int) -> None:
    assert names.parse_day(name) == day
    assert names.day_name(day) == names.day_name(day + names.DAY_MS - 1) == name


@given(st.integers(0, MAX_INT64))
def test_every_time_has_a_day_that_is_read_as_it_is_listed(time: int) -> None:
    name = names.day_name(time)
    day = names.parse_day(name)
    assert day is not None
    assert day <= time < day + names.DAY_MS
    assert names.parse_times(name) == TimeSelection(day, day + names.DAY_MS)
    if time < ms(datetime(9999, 12, 31, tzinfo=UTC)):
        assert name == (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time)).strftime("%Y-%m-%d")
    else:
        assert re.fullmatch(r"\+\d{5,9}-\d\d-\d\d", name) or time < 253402300800000


def test_days_beyond_the_year_9999() -> None:
    assert names.day_name(253402300799999) == "9999-12-31"
    assert names.day_name(253402300800000) == "+10000-01-01"
    # As `datetime64` of numpy has it.
    assert names.day_name(MAX_INT64) == "+292278994-08-17"
    assert names.parse_time("+10000-01-01T00:00:01") == 253402300801000


@pytest.mark.parametrize("name", ["", "20260501", "2026-5-1", "2026-05-01T00", "2026-02-30",
"2026-05-01.txt", "٢٠٢٦-٠٥-٠١"])  # fmt: skip
def test_no_day(name: str) -> None:
    assert names.parse_day(name) is None


def test_hours_have_two_digits() -> None:
    assert [names.parse_hour(f"{hour:02d}") for hour in range(24)] == list(range(24))
    assert [names.parse_hour(name) for name in ("", "0", "24", "99", "1a", "001", "1٣")] == [None] * 7


# -- segments -----------------------------------------------------------------------------------------------


@given(st.integers(0, MAX_INT64))
def test_a_segments_name_is_its_base_offset(base: int) -> None:
    assert names.parse_base(names.base_name(base)) == base


def test_a_sealed_segment_has_its_end_in_the_name_where_the_log_is_compacted() -> None:
    assert names.sealed_name(5, 30, compacted=False) == f"{5:020d}"
    assert names.sealed_name(5, 30, compacted=True) == f"{5:020d}-{30:020d}"
    for compacted in (False, True):
        assert names.parse_sealed(names.sealed_name(5, 30, compacted)) == 5
    assert names.parse_sealed("5-30") is None


@pytest.mark.parametrize("stem", ["", "0", "42",
"0" * 19, "0" * 21, "9" * 20, "-" + "0" * 19, "٠" * 20, "0" * 19 + "x"])  # fmt: skip
def test_no_segments_name(stem: str) -> None:
    assert names.parse_base(stem) is None


# -- any text -----------------------------------------------------------------------------------------------


@given(
    st.text(alphabet="0123456789-:TZ+.lastmhdw٣ \n\udc80", max_size=30)
    | st.text(max_size=20)
    | st.from_regex(names._TIME, fullmatch=True)
)
def test_any_name_is_understood_or_is_none(text: str) -> None:
    for parse in (names.parse_offset, names.parse_day, names.parse_base, names.parse_hour, names.parse_time):
        found = parse(text)
        assert found is None or 0 <= found < 2**63
    for stem in (text, f"{text}--", f"--{text}", f"{text}--{text}"):
        offsets, times = names.parse_offsets(stem), names.parse_times(stem)
        assert offsets is None or isinstance(offsets, OffsetSelection | LastSelection)
        assert times is None or isinstance(times, TimeSelection | RecentSelection)
