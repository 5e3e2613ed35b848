"""The time index.

Cases that do not apply: resizing (testResize), as files are never preallocated.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from topicfs.engine.errors import CorruptIndexError, IndexFullError, InvalidOffsetError, OffsetOverflowError
from topicfs.engine.segment.offset_index import IndexCache
from topicfs.engine.segment.time_index import TimeIndex

BASE = 45
MAX_ENTRIES = 30


@pytest.fixture
def index(tmp_path: Path) -> TimeIndex:
    path = str(tmp_path / "00000000000000000045.timeindex")
    made = TimeIndex(path, BASE, MAX_ENTRIES * 12, IndexCache(1 << 20))
    made.begin()
    return made


def fill(index: TimeIndex, count: int) -> None:
    for number in range(1, count + 1):
        index.maybe_append(number * 10, BASE + number * 10)


def test_an_entry_takes_12_bytes_as_the_format_says(index: TimeIndex) -> None:
    index.maybe_append(2**40, BASE + 7)
    assert TimeIndex.ENTRY_SIZE == 12
    assert Path(index.path).read_bytes() == struct.pack(">qi", 2**40, 7)


def test_lookup_in_an_empty_index_gives_no_timestamp_and_the_base(index: TimeIndex) -> None:
    assert index.lookup(100) == index.last_entry == (-1, BASE)


def test_lookup_gives_the_entry_at_or_before(index: TimeIndex) -> None:
    fill(index, 9)
    assert index.lookup(9) == (-1, BASE)
    assert index.lookup(10) == (10, 55)
    assert index.lookup(25) == (20, 65)
    assert index.lookup(30) == (30, 75)
    assert index.lookup(2**62) == index.last_entry == (90, 135)


def test_one_entry_of_room_is_kept_for_sealing(index: TimeIndex) -> None:
    fill(index, MAX_ENTRIES - 2)
    assert not index.is_full
    fill_one = (MAX_ENTRIES - 1) * 10
    index.maybe_append(fill_one, BASE + fill_one)
    assert index.is_full
    with pytest.raises(IndexFullError):
        index.maybe_append(10_000, BASE + 1000)
    with pytest.raises(InvalidOffsetError):
        index.maybe_append(10_000, BASE, skip_full=True)
    index.maybe_append(10_000, BASE + 1000, skip_full=True)
    assert (index.entries, index.last_entry) == (MAX_ENTRIES, (10_000, BASE + 1000))


def test_an_equal_timestamp_adds_nothing(index: TimeIndex) -> None:
    index.maybe_append(10, BASE + 1)
    index.maybe_append(10, BASE + 2)
    assert index.last_entry == (10, BASE + 1)


def test_batches_without_timestamps_leave_no_entry(index: TimeIndex) -> None:
    index.maybe_append(-1, BASE + 1)
    index.close()
    assert os.path.getsize(index.path) == 0


def test_an_earlier_timestamp_is_refused(index: TimeIndex) -> None:
    index.maybe_append(10, BASE + 1)
    with pytest.raises(ValueError, match="timestamp"):
        index.maybe_append(9, BASE + 2)


def test_an_offset_that_does_not_fit_is_refused(index: TimeIndex) -> None:
    with pytest.raises(OffsetOverflowError):
        index.maybe_append(10, BASE + 2**31)


def test_the_nth_entry_can_be_read_and_none_beyond(index: TimeIndex) -> None:
    fill(index, 3)
    assert [index.entry(number) for number in range(3)] == [(10, 55), (20, 65), (30, 75)]
    with pytest.raises(IndexError):
        index.entry(3)


def test_truncation_to_the_first_entrys_offset_leaves_none(index: TimeIndex) -> None:
    fill(index, 9)
    index.truncate_to(BASE + 10)
    assert (index.entries, index.last_entry) == (0, (-1, BASE))


@pytest.mark.parametrize(("offset", "left"), [(BASE + 91, 9), (BASE + 90, 8), (BASE + 45, 4), (BASE, 0)])
def test_truncation_drops_entries_by_their_offset(index: TimeIndex, offset: int, left: int) -> None:
    fill(index, 9)
    index.truncate_to(offset)
    assert index.entries == left
    assert os.path.getsize(index.path) == 12 * left


def test_closing_and_loading_shows_the_same_entries(index: TimeIndex) -> None:
    fill(index, 5)
    index.close()
    again = TimeIndex(index.path, BASE, index.max_bytes, IndexCache(1 << 20))
    assert [again.entry(number) for number in range(again.entries)] == [
        (number * 10, BASE + number * 10) for number in range(1, 6)
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (struct.pack(">qi", 5, -1), "last offset"),
        (struct.pack(">qiqi", 5, 1, 4, 2), "last timestamp"),
        (bytes(13), "multiple of 12"),
    ],
)
def test_sanity_refuses_what_cannot_be_an_index(index: TimeIndex, content: bytes, message: str) -> None:
    Path(index.path).write_bytes(content)
    with pytest.raises(CorruptIndexError, match=message):
        TimeIndex(index.path, BASE, 360, IndexCache(1 << 20)).sanity_check()


def test_sanity_accepts_a_good_index_and_a_missing_file(index: TimeIndex) -> None:
    index.sanity_check()
    fill(index, 3)
    index.sanity_check()
