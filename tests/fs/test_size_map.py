"""Where batches begin in a rendering: marks, look-ups, and the form in the view cache."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicfs.engine.batch.table import Longs
from topicfs.engine.kernels.scan import BASE_OFFSET, LAST_OFFSET, POSITION
from topicfs.fs.views import size_map as sizemap
from topicfs.fs.views.size_map import GRAIN, SizeMap

IDENTITY = (1000, 2000, 3000)


def table_of(batches: list[tuple[int, int]], position: int = 0, offset: int = 0) -> tuple[Longs, Longs]:
    """A batch table and sizes, of batches of so many bytes in the `.log` and in the rendering, two records each."""
    table, sizes = np.zeros((len(batches), 13), np.int64), np.zeros(len(batches), np.int64)
    for row, (size, rendered) in enumerate(batches):
        table[row, POSITION], table[row, BASE_OFFSET], table[row, LAST_OFFSET] = position, offset, offset + 1
        sizes[row] = rendered
        position, offset = position + size, offset + 2
    return table, sizes


def filled(batches: list[tuple[int, int]]) -> SizeMap:
    made = SizeMap(0)
    made.add(*table_of(batches))
    return made


def test_a_new_map_has_nothing() -> None:
    made = SizeMap(7)
    assert (made.next_offset, made.rendered, len(made.marks)) == (7, 0, 0)
    assert made.before_rendered(0) == made.before_offset(7) == -1


def test_the_first_batch_is_marked_and_then_one_for_each_grain() -> None:
    made = filled([(GRAIN // 2, 10)] * 9)
    assert made.marks.tolist() == [[GRAIN * n, 20 * n, 4 * n] for n in range(5)]
    assert (made.next_offset, made.rendered) == (18, 90)


def test_a_large_batch_moves_the_next_mark() -> None:
    made = filled([(10, 1), (3 * GRAIN, 1), (10, 1), (GRAIN, 1), (10, 1)])
    assert made.marks[:, 0].tolist() == [0, 10 + 3 * GRAIN, 20 + 4 * GRAIN]


@given(
    st.lists(st.tuples(st.integers(61, 2 * GRAIN), st.integers(0, 500)), min_size=1, max_size=60), st.data()
)
def test_adding_in_parts_or_one_by_one_gives_the_same_map(
    batches: list[tuple[int, int]], data: st.DataObject
) -> None:
    expected = filled(batches)
    table, sizes = table_of(batches)
    cut = data.draw(st.integers(1, len(batches)))
    made = SizeMap(0)
    made.add(table[:cut], sizes[:cut])
    for row in range(cut, len(batches)):
        made.add_one(int(table[row, POSITION]), 2 * row, 2 * row + 1, int(sizes[row]))
    assert made.marks.tolist() == expected.marks.tolist()
    assert (made.next_offset, made.rendered) == (expected.next_offset, expected.rendered)


@given(
    st.lists(st.tuples(st.integers(61, 2 * GRAIN), st.integers(0, 500)), min_size=1, max_size=60), st.data()
)
def test_the_mark_that_is_found_is_the_last_one_before(
    batches: list[tuple[int, int]], data: st.DataObject
) -> None:
    made = filled(batches)
    marks = made.marks.tolist()
    position = data.draw(st.integers(0, made.rendered))
    assert made.before_rendered(position) == max(n for n, mark in enumerate(marks) if mark[1] <= position)
    offset = data.draw(st.integers(0, made.next_offset))
    assert made.before_offset(offset) == max(n for n, mark in enumerate(marks) if mark[2] <= offset)


def test_marks_that_were_given_out_stay_as_they_are() -> None:
    made = filled([(GRAIN, 5)] * 3)
    before = made.marks
    made.add(*table_of([(GRAIN, 5)] * 40, 3 * GRAIN, 6))
    assert before.tolist() == made.marks[:3].tolist()
    assert len(made.marks) == 43


def test_skipping_never_goes_back() -> None:
    made = filled([(10, 1)])
    made.skip_to(50)
    made.skip_to(20)
    assert (made.next_offset, made.rendered) == (50, 1)


# -- stored -------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(61, 2 * GRAIN), st.integers(0, 500)), max_size=30))
def test_what_was_stored_is_there_again(batches: list[tuple[int, int]]) -> None:
    made = filled(batches) if batches else SizeMap(0)
    found = SizeMap.decode(made.encode(IDENTITY), IDENTITY)
    assert found is not None
    assert found.marks.tolist() == made.marks.tolist()
    assert (found.next_offset, found.rendered) == (made.next_offset, made.rendered)


@pytest.mark.parametrize("changed", range(3))
def test_the_map_of_another_file_is_none(changed: int) -> None:
    other = tuple(each + (n == changed) for n, each in enumerate(IDENTITY))
    assert SizeMap.decode(filled([(10, 1)]).encode(IDENTITY), other) is None  # type: ignore[arg-type]


@given(st.integers(0, 10**6), st.integers(1, 255))
def test_a_changed_byte_makes_it_none(place: int, change: int) -> None:
    data = bytearray(filled([(GRAIN, 7)] * 5).encode(IDENTITY))
    data[place % len(data)] ^= change
    assert SizeMap.decode(bytes(data), IDENTITY) is None


def test_every_cut_and_every_addition_makes_it_none() -> None:
    data = filled([(GRAIN, 7)] * 3).encode(IDENTITY)
    assert all(SizeMap.decode(data[:length], IDENTITY) is None for length in range(len(data)))
    assert SizeMap.decode(data + b"\0", IDENTITY) is None
    assert SizeMap.decode(data + bytes(24), IDENTITY) is None


@given(st.binary(max_size=200), st.integers(-(2**63), 2**63 - 1))
def test_a_count_that_does_not_fit_its_bytes_is_never_believed(rest: bytes, count: int) -> None:
    """With a right checksum: a map that somebody made."""
    body = sizemap._HEADER.pack(sizemap.MAGIC, *IDENTITY, 5, 5, count) + rest
    data = body + sizemap._CRC.pack(sizemap.crc32c(np.frombuffer(body, np.uint8), 0, len(body)))
    found = SizeMap.decode(data, IDENTITY)
    assert (found is not None) == (len(rest) == 24 * count)


@given(st.binary(max_size=200))
def test_any_bytes_are_none(data: bytes) -> None:
    assert SizeMap.decode(data, IDENTITY) is None
