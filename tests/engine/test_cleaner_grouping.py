"""Which segments a clean makes one of: KAFKA_FORMAT 8.5, KAFKA_CASES P."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from compacted import Cleaning
from directory_check import path_of
from partition_opening import Known, open_partition, without_fsync

from topicfs.engine import batch as batches
from topicfs.engine.cleaner.grouping import grouped
from topicfs.engine.kernels import encode as encoding
from topicfs.engine.record import MAX_INT32, Record
from topicfs.engine.segment.segment import Segment

HUGE = 2**31 - 1


@pytest.fixture(autouse=True)
def _fast() -> Iterator[None]:
    with without_fsync():
        yield


def sealed(directory: Path, offsets: list[list[int]], bases: list[int] | None = None) -> list[Segment]:
    """Segments that hold a batch at each of these offsets; `bases` where they are not the first ones."""
    topic = Cleaning(directory, index_interval_bytes=0)
    log = topic.partition.log
    for number, each in enumerate(offsets):
        base = bases[number] if bases else each[0]
        if base > log.chain.active.base_offset:
            with log.lock:
                log._roll(base)
        for offset in each:
            data = batches.from_records([Record(b"value", b"key", 1)], 1).data
            encoding.stamp(data, 0, offset, 0)
            topic.partition.append_raw(data)
    last = max([0, *(offset for each in offsets for offset in each), *(bases or ())])
    with log.lock:
        log._roll(last + 1)
    return list(log.chain.segments.non_active)


def shape(groups: list[list[Segment]]) -> list[list[int]]:
    return [[segment.base_offset for segment in group] for group in groups]


def test_with_huge_limits_everything_is_one_group(tmp_path: Path) -> None:
    segments = sealed(tmp_path / "t-0", [[0, 1], [2, 3], [4, 5], [6]])
    assert shape(grouped(segments, 7, HUGE, HUGE)) == [[0, 2, 4, 6]]


def test_with_tiny_limits_every_segment_is_a_group(tmp_path: Path) -> None:
    segments = sealed(tmp_path / "t-0", [[0, 1], [2, 3], [4, 5], [6]])
    assert shape(grouped(segments, 7, 1, HUGE)) == [[0], [2], [4], [6]]
    assert shape(grouped(segments, 7, HUGE, 1)) == [[0], [2], [4], [6]]


def test_a_group_holds_as_much_log_as_a_segment_may(tmp_path: Path) -> None:
    segments = sealed(tmp_path / "t-0", [[0], [1], [2], [3], [4]])
    size = segments[0].size
    assert shape(grouped(segments, 5, 3 * size, HUGE)) == [[0, 1, 2], [3, 4]]
    assert shape(grouped(segments, 5, 3 * size - 1, HUGE)) == [[0, 1], [2, 3], [4]]


def test_a_group_holds_as_much_of_each_index_as_a_segment_may(tmp_path: Path) -> None:
    segments = sealed(tmp_path / "t-0", [[0, 1, 2], [3, 4, 5], [6, 7, 8]])
    offsets = segments[0].offset_index
    assert offsets.entries == 2
    assert shape(grouped(segments, 9, HUGE, 32)) == [[0, 3], [6]]
    assert shape(grouped(segments, 9, HUGE, 31)) == [[0], [3], [6]]
    times = segments[0].time_index
    assert times.entries == 1
    assert shape(grouped(segments, 9, HUGE, 8 * 6)) == [[0, 3, 6]]


def test_offsets_of_a_group_are_never_further_apart_than_an_index_can_say(tmp_path: Path) -> None:
    segments = sealed(tmp_path / "t-0", [[0], [MAX_INT32 - 1], [MAX_INT32], [MAX_INT32 + 1]])
    assert shape(grouped(segments, MAX_INT32 + 2, HUGE, HUGE)) == [
        [0, MAX_INT32 - 1, MAX_INT32],
        [MAX_INT32 + 1],
    ]


def test_the_last_offset_is_estimated_by_where_the_next_segment_begins(tmp_path: Path) -> None:
    segments = sealed(tmp_path / "t-0", [[0], [1], [2]])
    assert shape(grouped(segments, MAX_INT32 + 1, HUGE, HUGE)) == [[0, 1, 2]]
    assert shape(grouped(segments, MAX_INT32 + 2, HUGE, HUGE)) == [[0, 1], [2]]


def test_empty_segments_join_whatever_their_offset(tmp_path: Path) -> None:
    bases = [0, 10, 3 * MAX_INT32, 5 * MAX_INT32]
    segments = sealed(tmp_path / "t-0", [[0], [], [], []], bases)
    assert shape(grouped(segments, 6 * MAX_INT32, HUGE, HUGE)) == [bases]


def test_an_index_that_was_lost_does_not_hide_how_far_offsets_go(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    segments = sealed(directory, [[0], [10, MAX_INT32], [MAX_INT32 + 1]])
    path_of(directory, 10, ".index").write_bytes(b"")
    path_of(directory, 10, ".timeindex").write_bytes(b"")
    partition = open_partition(directory, Known(clean=True))
    segments = list(partition.log.chain.segments.non_active)
    assert shape(grouped(segments, MAX_INT32 + 2, HUGE, HUGE)) == [[0, 10], [MAX_INT32 + 1]]


def test_no_segments_make_no_group() -> None:
    assert grouped([], 0, HUGE, HUGE) == []
