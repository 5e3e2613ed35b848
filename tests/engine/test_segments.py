"""The list of a partition's segments."""

from __future__ import annotations

from pathlib import Path

import pytest

from topicfs.engine.segment.descriptors import Descriptors
from topicfs.engine.segment.segment import Segment
from topicfs.engine.segment.segments import Segments
from topicfs.engine.segment.settings import SegmentSettings

DESCRIPTORS = Descriptors(4)


def segment(base: int, size: int = 10, largest: int = 0) -> Segment:
    made = Segment(Path("/nowhere"), base, SegmentSettings(), lambda: 0, DESCRIPTORS, size)
    made.finder.largest = (largest, base)
    return made


def listed(*bases: int) -> Segments:
    return Segments.of(segment(base) for base in bases)


def base_of(found: Segment | None) -> int | None:
    return None if found is None else found.base_offset


def bases(segments: Segments) -> list[int]:
    return [each.base_offset for each in segments]


def test_segments_come_in_order_of_their_bases() -> None:
    segments = listed(20, 0, 10)
    assert bases(segments) == [0, 10, 20]
    assert (segments.first.base_offset, segments.last.base_offset, len(segments)) == (0, 20, 3)
    assert [each.base_offset for each in segments.non_active] == [0, 10]
    assert [each.base_offset for each in segments.last_two] == [10, 20]


def test_an_empty_list_has_nothing() -> None:
    segments = Segments()
    assert (len(segments), segments.size, segments.non_active, segments.last_two) == (0, 0, (), ())
    assert segments.floor(5) is segments.lower(5) is segments.higher(5) is segments.at(5) is None
    assert segments.first_not_before(0) is None
    assert segments.range(0, 10) == ()
    for name in ("first", "last"):
        with pytest.raises(IndexError):
            getattr(segments, name)


def test_two_segments_with_one_base_are_refused() -> None:
    with pytest.raises(ValueError, match="different base"):
        listed(3, 3)


@pytest.mark.parametrize(
    ("offset", "floor", "lower", "higher", "at"),
    [
        (-1, None, None, 5, None),
        (5, 5, None, 10, 5),
        (7, 5, 5, 10, None),
        (10, 10, 5, 20, 10),
        (20, 20, 10, None, 20),
        (2**62, 20, 20, None, None),
    ],
)
def test_neighbours_of_an_offset(
    offset: int, floor: int | None, lower: int | None, higher: int | None, at: int | None
) -> None:
    segments = listed(5, 10, 20)
    assert base_of(segments.floor(offset)) == floor
    assert base_of(segments.lower(offset)) == lower
    assert base_of(segments.higher(offset)) == higher
    assert base_of(segments.at(offset)) == at


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (5, 10, [5]),
        (6, 11, [5, 10]),
        (10, 10, []),
        (0, 100, [5, 10, 20]),
        (0, 5, []),
        (19, 20, [10]),
        (25, 30, [20]),
    ],
)
def test_a_range_includes_the_floor_of_its_start(start: int, end: int, expected: list[int]) -> None:
    assert [each.base_offset for each in listed(5, 10, 20).range(start, end)] == expected


def test_a_range_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(ValueError, match="expected an end from 9 on"):
        listed(5).range(9, 8)


def test_segments_from_a_base_on() -> None:
    segments = listed(5, 10, 20)
    assert [each.base_offset for each in segments.from_base(10)] == [10, 20]
    assert [each.base_offset for each in segments.from_base(11)] == [20]
    assert segments.from_base(21) == ()


def test_the_size_may_exceed_31_bits() -> None:
    assert Segments.of(segment(base, 2**31 - 1) for base in range(3)).size == 3 * (2**31 - 1)


def test_changes_make_another_list_and_leave_the_old_one() -> None:
    segments = listed(0, 10)
    more = segments.with_replaced((), [segment(20)])
    assert (bases(segments), bases(more)) == ([0, 10], [0, 10, 20])
    less = more.with_replaced([more.first], ())
    assert (bases(more), bases(less)) == ([0, 10, 20], [10, 20])
    assert bases(more.with_replaced(list(more), ())) == []


def test_replacing_tells_segments_apart_by_identity() -> None:
    segments = listed(0, 10, 20)
    old = (segments.floor(0), segments.floor(10))
    new = segment(0)
    replaced = segments.with_replaced([each for each in old if each is not None], [new])
    assert bases(replaced) == [0, 20]
    assert replaced.first is new
    assert new in replaced
    assert old[0] not in replaced


def test_a_time_leads_to_the_first_segment_that_reaches_it() -> None:
    largest = (100, 50, 300, 200, 250)
    segments = Segments.of(segment(number, 1, each) for number, each in enumerate(largest))
    for timestamp in range(0, 320, 10):
        expected = next((number for number, each in enumerate(largest) if each >= timestamp), None)
        assert base_of(segments.first_not_before(timestamp)) == expected


def test_the_active_segments_timestamps_are_looked_at_every_time() -> None:
    segments = Segments.of([segment(0, 1, 10), segment(1, 1, 20)])
    assert segments.first_not_before(30) is None
    segments.last.finder.largest = (30, 1)
    assert base_of(segments.first_not_before(30)) == 1


def test_sealed_segments_are_asked_once_for_their_timestamps(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    original = Segment.largest_timestamp.fget
    assert original is not None

    def largest(self: Segment) -> int:
        asked.append(self.base_offset)
        result: int = original(self)
        return result

    monkeypatch.setattr(Segment, "largest_timestamp", property(largest))
    segments = Segments.of(segment(number, 1, number) for number in range(5))
    for _ in range(3):
        segments.first_not_before(2)
    assert asked == [0, 1, 2, 3]
    asked.clear()
    grown = segments.with_replaced((), [segment(9, 1, 9)])
    assert base_of(grown.first_not_before(3)) == 3
    assert asked == [4]


def test_times_are_right_after_segments_were_removed_and_replaced() -> None:
    segments = Segments.of(segment(number, 1, each) for number, each in enumerate((500, 100, 200, 300)))
    assert base_of(segments.first_not_before(150)) == 0
    without = segments.with_replaced([segments.first], ())
    assert base_of(without.first_not_before(150)) == 2
    cut = segments.with_replaced(segments.range(1, 10)[1:], ())
    assert base_of(cut.first_not_before(150)) == 0
    replaced = without.with_replaced([without.first], [segment(1, 1, 160)])
    assert base_of(replaced.first_not_before(150)) == 1


def test_times_are_right_when_a_truncation_makes_a_sealed_segment_active_again() -> None:
    segments = Segments.of(segment(number, 1, 100 * (number + 1)) for number in range(4))
    assert base_of(segments.first_not_before(200)) == 1
    cut = segments.with_replaced(segments.range(2, 10), ())
    cut.last.finder.largest = (150, 1)
    assert cut.first_not_before(200) is None
    assert base_of(cut.first_not_before(150)) == 1
