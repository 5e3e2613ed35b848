"""The offset index, and what both indexes share.

Cases that do not apply: an index that was closed and reopened is not full, since files are never preallocated
and the limit is the settings', not the file's length (testReopen, last part).
"""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest

from topicfs.engine.errors import CorruptIndexError, IndexFullError, InvalidOffsetError, OffsetOverflowError
from topicfs.engine.segment.offset_index import IndexCache, OffsetIndex

BASE = 45


@pytest.fixture
def cache() -> IndexCache:
    return IndexCache(1 << 20)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "00000000000000000045.index")


def new(path: str, max_bytes: int, cache: IndexCache) -> OffsetIndex:
    made = OffsetIndex(path, BASE, max_bytes, cache)
    made.begin()
    return made


@pytest.fixture
def index(path: str, cache: IndexCache) -> OffsetIndex:
    return new(path, 30 * 8, cache)


def reopened(index: OffsetIndex, cache: IndexCache) -> OffsetIndex:
    return OffsetIndex(index.path, index.base_offset, index.max_bytes, cache)


def all_entries(index: OffsetIndex) -> list[tuple[int, int]]:
    return [index.entry(number) for number in range(index.entries)]


def test_lookup_in_an_empty_index_gives_the_base(index: OffsetIndex) -> None:
    assert index.lookup(0) == index.lookup(BASE) == index.lookup(10**12) == (BASE, 0)
    assert index.last_offset == BASE


def test_lookup_below_the_first_entry_gives_the_base(index: OffsetIndex) -> None:
    index.append(BASE + 5, 100)
    assert index.lookup(BASE + 4) == index.lookup(-1) == (BASE, 0)


def test_lookup_gives_every_entry_its_position_and_others_the_entry_below(
    path: str, cache: IndexCache
) -> None:
    index = new(path, 8000, cache)
    chosen = random.Random(7)
    offsets = sorted(chosen.sample(range(BASE + 1, BASE + 20_000), 1000))
    for number, offset in enumerate(offsets):
        index.append(offset, number * 10)
    for each in (index, reopened(index, cache)):
        for number, offset in enumerate(offsets):
            assert each.lookup(offset) == (offset, number * 10)
            following = offsets[number + 1] if number + 1 < len(offsets) else offset + 100
            assert each.lookup(chosen.randrange(offset, following)) == (offset, number * 10)


def test_entries_are_stored_as_the_format_says(index: OffsetIndex, path: str) -> None:
    index.append(BASE + 1, 2)
    index.append(BASE + 2**31 - 1, 2**31 - 1)
    assert Path(path).read_bytes() == struct.pack(">iiii", 1, 2, 2**31 - 1, 2**31 - 1)


def test_the_nth_entry_can_be_read_and_none_beyond(index: OffsetIndex) -> None:
    for number in range(4):
        index.append(BASE + 51 + number, number)
    assert all_entries(index) == [(BASE + 51 + number, number) for number in range(4)]
    for number in (4, -1):
        with pytest.raises(IndexError):
            index.entry(number)


def test_append_to_a_full_index_is_refused(index: OffsetIndex) -> None:
    for number in range(30):
        assert not index.is_full
        index.append(BASE + number + 1, number)
    assert index.is_full
    with pytest.raises(IndexFullError):
        index.append(BASE + 100, 100)


@pytest.mark.parametrize("offset", [BASE + 51, BASE + 50])
def test_append_of_an_offset_that_does_not_rise_is_refused(index: OffsetIndex, offset: int) -> None:
    index.append(BASE + 51, 0)
    with pytest.raises(InvalidOffsetError):
        index.append(offset, 1)


@pytest.mark.parametrize("offset", [BASE - 1, BASE + 2**31])
def test_append_of_an_offset_that_does_not_fit_is_refused(index: OffsetIndex, offset: int) -> None:
    with pytest.raises(OffsetOverflowError):
        index.append(offset, 1)


def test_the_first_entry_may_be_the_base_offset(index: OffsetIndex) -> None:
    index.append(BASE, 0)
    index.sanity_check()
    assert index.lookup(BASE) == (BASE, 0)


@pytest.mark.parametrize(
    ("start", "size", "expected"),
    [(0, 5, 1), (0, 10, 1), (0, 22, 2), (0, 23, 2), (10, 24, 3), (37, 1, None), (0, 100, None)],
)
def test_upper_bound_is_the_first_entry_at_or_behind_the_position(
    index: OffsetIndex, start: int, size: int, expected: int | None
) -> None:
    for number, position in enumerate((0, 10, 23, 37)):
        index.append(BASE + number, position)
    found = index.upper_bound(start, size)
    assert found == (None if expected is None else index.entry(expected))


def test_upper_bound_of_an_empty_index_is_none(index: OffsetIndex) -> None:
    assert index.upper_bound(0, 5) is None


def test_close_trims_and_reopening_shows_the_same_entries(
    index: OffsetIndex, path: str, cache: IndexCache
) -> None:
    index.append(51, 10)
    index.append(52, 20)
    index.close()
    assert os.path.getsize(path) == 16
    again = reopened(index, cache)
    assert all_entries(again) == [(51, 10), (52, 20)]
    assert again.last_offset == 52
    again.append(53, 30)
    again.close()
    assert all_entries(reopened(index, cache)) == [(51, 10), (52, 20), (53, 30)]


@pytest.mark.parametrize(("offset", "left"), [(12 + BASE, 9), (10 + BASE, 9), (9 + BASE, 8), (5 + BASE, 4)])
def test_truncation_keeps_the_entries_below(index: OffsetIndex, path: str, offset: int, left: int) -> None:
    for number in range(1, 10):
        index.append(BASE + number, number)
    index.truncate_to(offset)
    assert all_entries(index) == [(BASE + number, number) for number in range(1, left + 1)]
    assert os.path.getsize(path) == 8 * left
    index.append(BASE + 10, 10)
    assert index.lookup(BASE + 10) == (BASE + 10, 10)


def test_truncation_between_entries_keeps_the_lower_one(index: OffsetIndex) -> None:
    index.append(BASE + 10, 1)
    index.append(BASE + 20, 2)
    index.truncate_to(BASE + 15)
    assert all_entries(index) == [(BASE + 10, 1)]


def test_truncation_of_everything_leaves_an_empty_index_that_takes_appends(
    index: OffsetIndex, path: str
) -> None:
    index.append(BASE + 1, 1)
    index.keep(0)
    assert (index.entries, index.last_offset, os.path.getsize(path)) == (0, BASE, 0)
    index.append(BASE + 1, 7)
    assert index.lookup(BASE + 1) == (BASE + 1, 7)


def test_a_lookup_that_began_before_a_truncation_keeps_its_entries(index: OffsetIndex) -> None:
    for number in range(1, 4):
        index.append(BASE + number, number)
    data, entries = index.view()
    before = data[: entries * 8].tobytes()
    index.truncate_to(BASE + 1)
    index.append(BASE + 9, 99)
    assert data[: entries * 8].tobytes() == before


def test_odd_trailing_bytes_do_not_count_and_are_cut_before_the_first_append(
    path: str, cache: IndexCache
) -> None:
    Path(path).write_bytes(struct.pack(">ii", 1, 10) + b"odd")
    index = OffsetIndex(path, BASE, 80, cache)
    assert all_entries(index) == [(BASE + 1, 10)]
    index.append(BASE + 2, 20)
    assert Path(path).read_bytes() == struct.pack(">iiii", 1, 10, 2, 20)


def test_trim_cuts_odd_bytes_and_leaves_a_good_file_untouched(path: str, cache: IndexCache) -> None:
    Path(path).write_bytes(struct.pack(">ii", 1, 10) + b"odd")
    OffsetIndex(path, BASE, 80, cache).trim()
    assert os.path.getsize(path) == 8
    os.utime(path, (1, 1))
    OffsetIndex(path, BASE, 80, cache).trim()
    assert os.stat(path).st_mtime == 1


def test_sanity_refuses_lengths_that_are_not_whole_entries(path: str, cache: IndexCache) -> None:
    Path(path).write_bytes(bytes(9))
    with pytest.raises(CorruptIndexError, match="multiple of 8"):
        OffsetIndex(path, BASE, 80, cache).sanity_check()


def test_sanity_refuses_a_last_offset_below_the_base(path: str, cache: IndexCache) -> None:
    Path(path).write_bytes(struct.pack(">ii", -1, 0))
    with pytest.raises(CorruptIndexError, match="last offset"):
        OffsetIndex(path, BASE, 80, cache).sanity_check()


def test_a_file_that_is_far_too_long_is_not_loaded(path: str, cache: IndexCache) -> None:
    with open(path, "wb") as file:
        file.truncate(256 * 1024 * 1024 + 8)
    with pytest.raises(CorruptIndexError, match="at most"):
        OffsetIndex(path, BASE, 80, cache).lookup(50)


def test_an_index_without_a_file_is_empty_and_reading_it_creates_none(path: str, cache: IndexCache) -> None:
    index = OffsetIndex(path, BASE, 80, cache)
    assert index.lookup(99) == (BASE, 0)
    assert not index.exists()


@pytest.mark.parametrize("operation", [OffsetIndex.flush, OffsetIndex.close])
def test_an_active_index_without_entries_has_a_file_after_flush_and_close(
    index: OffsetIndex, operation
) -> None:
    assert not index.exists()
    operation(index)
    assert os.path.getsize(index.path) == 0


def test_room_for_less_than_one_entry_is_refused(path: str, cache: IndexCache) -> None:
    with pytest.raises(ValueError, match="room for one entry"):
        new(path, 7, cache)


def test_rename_and_delete_follow_the_file(index: OffsetIndex, tmp_path: Path) -> None:
    index.append(BASE + 1, 1)
    index.rename(str(tmp_path / "moved"))
    index.append(BASE + 2, 2)
    assert (tmp_path / "moved").stat().st_size == 16
    index.delete()
    index.delete()
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_entries_as_they_were(
    index: OffsetIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.append(BASE + 1, 1)

    def no_space(*_: object) -> int:
        raise OSError(28, "no space left")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", no_space)
        with pytest.raises(OSError, match="no space"):
            index.append(BASE + 2, 2)
    assert all_entries(index) == [(BASE + 1, 1)]
    index.append(BASE + 3, 3)
    assert all_entries(index) == [(BASE + 1, 1), (BASE + 3, 3)]


def test_sealed_indexes_share_a_bounded_cache(tmp_path: Path) -> None:
    cache = IndexCache(3 * (800 + 256))
    indexes = []
    for number in range(6):
        path = tmp_path / f"{number}.index"
        path.write_bytes(b"".join(struct.pack(">ii", each + 1, each + number) for each in range(100)))
        indexes.append(OffsetIndex(str(path), 0, 8000, cache))
    for each in (*range(6), *range(6)):
        assert indexes[each].lookup(50) == (50, 49 + each)
        assert cache.total <= cache.limit
    assert sum(index.cached is not None for index in indexes) == 3


def test_an_index_that_is_used_outlives_others_in_the_cache(tmp_path: Path) -> None:
    cache = IndexCache(3 * (8 + 256))
    indexes = []
    for number in range(10):
        path = tmp_path / f"{number}.index"
        path.write_bytes(struct.pack(">ii", 1, number))
        indexes.append(OffsetIndex(str(path), 0, 800, cache))
    for index in indexes:
        index.lookup(1)
        indexes[0].lookup(1)
        assert indexes[0].cached is not None


def test_an_active_index_is_never_given_up(path: str, tmp_path: Path) -> None:
    cache = IndexCache(1)
    index = new(path, 800, cache)
    index.append(BASE + 1, 1)
    other = tmp_path / "other"
    other.write_bytes(bytes(80))
    OffsetIndex(str(other), 0, 800, cache).lookup(0)
    assert index.cached is not None
    index.seal()
    assert index.cached is None
    assert index.lookup(BASE + 1) == (BASE + 1, 1)
