"""A segment that is cut: recovery of what a crash left, and truncation."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from patience import ended
from segment_bench import MAX_INT32, SegmentBench, add, bases, check_lookups, segment_bench
from test_scan import batch

from topicfs.engine.errors import (
    OffsetOutOfRangeError,
    OffsetOverflowError,
)
from topicfs.engine.kernels.scan import BASE_OFFSET, SIZE
from topicfs.engine.segment.segment import Segment


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[SegmentBench]:
    yield from segment_bench(tmp_path)


# -- recovery -------------------------------------------------------------------------------------------


def filled(bench: SegmentBench, count: int = 100) -> Segment:
    segment = bench.create(0, max_index_bytes=10_000)
    for number in range(count):
        add(segment, batch(number, [1000 + 10 * number]))
    segment.close()
    return segment


@pytest.mark.parametrize("extension", [".index", ".timeindex"])
@pytest.mark.parametrize("kind", ["garbage", "zeros", "missing", "odd"])
def test_recovery_rebuilds_a_broken_index(bench: SegmentBench, extension: str, kind: str) -> None:
    segment = filled(bench)
    path = Path(segment.path_of(extension))
    good = path.read_bytes()
    broken = {"garbage": os.urandom(5000), "zeros": bytes(10_000), "missing": b"", "odd": good + b"abc"}
    path.write_bytes(broken[kind])
    if kind == "missing":
        path.unlink()
    again = bench.load(segment)
    assert again.recover(lambda *_: None) == 0
    assert path.read_bytes() == good
    for number in range(100):
        found = again.position_of(number)
        assert found is not None
        assert found[2] == number
        assert again.finder.offset_by_timestamp(1000 + 10 * number, 0) == (1000 + 10 * number, number, 0)


def test_recovery_makes_the_indexes_that_appending_made(bench: SegmentBench) -> None:
    chosen = random.Random(5)
    segment = bench.create(0, index_interval_bytes=300, max_index_bytes=100_000)
    for number in range(200):
        add(segment, batch(number, [chosen.randrange(10_000)], value=bytes(chosen.randrange(400))))
    segment.close()
    paths = [Path(segment.path_of(".index")), Path(segment.path_of(".timeindex"))]
    before = [path.read_bytes() for path in paths]
    bench.load(segment).recover(lambda *_: None)
    assert [path.read_bytes() for path in paths] == before


def test_recovery_keeps_exactly_the_batches_before_a_corrupt_one(bench: SegmentBench) -> None:
    chosen = random.Random(11)
    for _ in range(10):
        segment = filled(bench, 50)
        size = segment.path.stat().st_size // 50
        first_bad = chosen.randrange(50)
        with open(segment.path, "r+b") as file:
            file.seek(first_bad * size + chosen.randrange(size))
            file.write(os.urandom(60 * size))
            file.truncate(50 * size)
        again = bench.load(segment)
        assert again.recover(lambda *_: None) == (50 - first_bad) * size
        assert bases(again) == list(range(first_bad))
        assert again.path.stat().st_size == again.size == first_bad * size
        assert again.next_offset() == first_bad
        again.delete()


@pytest.mark.parametrize("tail", [bytes(5000), b"x", batch(2)[:-1], batch(1), batch(0)])
def test_recovery_cuts_what_is_no_batch_of_the_segment(
    bench: SegmentBench, tail: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    segment = filled(bench, 2)
    size = segment.path.stat().st_size
    with open(segment.path, "ab") as file:
        file.write(tail)
    again = bench.load(segment)
    assert again.recover(lambda *_: None) == len(tail)
    assert (bases(again), again.size) == ([0, 1], size)
    assert f"{len(tail)} of {size + len(tail)} bytes cut off at position {size}" in caplog.text


def test_recovery_refuses_a_good_batch_too_far_above_the_base_and_cuts_nothing(bench: SegmentBench) -> None:
    segment = bench.create(5)
    segment.close()
    data = batch(5) + batch(6 + MAX_INT32)
    segment.path.write_bytes(data)
    again = bench.load(segment)
    with pytest.raises(OffsetOverflowError, match=f"found {6 + MAX_INT32}"):
        again.recover(lambda *_: None)
    assert bases(again) == [5, 6 + MAX_INT32]
    assert again.path.read_bytes() == data


def test_recovery_of_a_batch_below_the_base_keeps_nothing(bench: SegmentBench) -> None:
    segment = bench.create(10)
    segment.close()
    segment.path.write_bytes(batch(9))
    again = bench.load(segment)
    assert again.recover(lambda *_: None) == len(batch(9))
    assert again.size == 0


def test_recovery_shows_every_good_batch_once(bench: SegmentBench) -> None:
    segment = filled(bench, 30)
    seen: list[int] = []
    bytes_seen = []

    def visit(buffer: np.ndarray, table: np.ndarray) -> None:
        seen.extend(table[:, BASE_OFFSET].tolist())
        assert buffer.size == table[:, SIZE].sum()
        bytes_seen.append(buffer.tobytes())

    bench.load(segment).recover(visit)
    assert seen == list(range(30))
    assert b"".join(bytes_seen) == segment.path.read_bytes()


def test_recovery_of_a_good_segment_leaves_its_mtime(bench: SegmentBench) -> None:
    segment = filled(bench, 3)
    os.utime(segment.path, (9, 9))
    bench.load(segment).recover(lambda *_: None)
    assert segment.path.stat().st_mtime == 9


def test_recovery_adds_the_final_time_entry(bench: SegmentBench) -> None:
    segment = filled(bench, 3)
    Path(segment.time_index.path).unlink()
    again = bench.load(segment)
    again.recover(lambda *_: None)
    assert bench.load(segment).time_index.last_entry == (1020, 2)


def test_an_error_of_the_visitor_comes_out_and_the_segment_can_be_emptied(bench: SegmentBench) -> None:
    segment = filled(bench, 3)
    again = bench.load(segment)

    def visit(*_: object) -> None:
        raise OffsetOverflowError("visitor")

    with pytest.raises(OffsetOverflowError, match="visitor"):
        again.recover(visit)
    assert again.truncate_to(0) == 3 * len(batch(0, [1000]))
    assert again.path.stat().st_size == 0
    add(again, batch(0))
    assert bases(again) == [0]


def test_recovery_crosses_chunks_and_grows_for_large_batches(bench: SegmentBench) -> None:
    segment = bench.create(index_interval_bytes=1000, max_index_bytes=10**6)
    for number, length in enumerate((3_000_000, 3_000_000, 10, 5_000_000, 10)):
        add(segment, batch(number, value=bytes(length)))
    segment.close()
    again = bench.load(segment)
    assert again.recover(lambda *_: None) == 0
    check_lookups(again)


# -- truncation -----------------------------------------------------------------------------------------


def test_truncating_the_last_batch_again_and_again_leaves_the_previous(bench: SegmentBench) -> None:
    segment = bench.create(40)
    offset = 40
    for _ in range(30):
        add(segment, batch(offset, [1]), batch(offset + 1, [1]))
        assert segment.truncate_to(offset + 1) > 0
        assert segment.next_offset() == offset + 1
        assert segment.position_of(offset + 1) is None
        offset += 1
    assert bases(segment) == list(range(40, 70))


def test_truncating_at_a_hole_removes_the_later_batch(bench: SegmentBench) -> None:
    segment = bench.create(40)
    first = batch(40, [1, 1])
    add(segment, first, batch(50))
    assert segment.truncate_to(45) == len(batch(50))
    assert (segment.size, bases(segment)) == (len(first), [40])


def test_truncating_inside_a_batch_removes_it_whole(bench: SegmentBench) -> None:
    segment = bench.create(0)
    add(segment, batch(0), batch(1, [1, 1, 1]))
    segment.truncate_to(2)
    assert bases(segment) == [0]


def test_truncating_beyond_the_end_removes_nothing(bench: SegmentBench) -> None:
    segment = bench.create(0)
    add(segment, batch(0))
    assert segment.truncate_to(99) == 0
    assert bases(segment) == [0]


def test_a_reopened_empty_segment_survives_truncation_beyond_its_end(bench: SegmentBench) -> None:
    segment = bench.reopen(bench.create(0))
    bench.clock.ms += 10**9
    segment.truncate_to(57)
    assert not segment.offset_index.is_full
    assert not segment.time_index.is_full
    assert not segment.should_roll(1024, bench.clock.ms, 100, bench.clock.ms, 10**9, 1000)
    assert segment.should_roll(1024, bench.clock.ms, 2**31, bench.clock.ms, 10**9, 1000)


def test_truncating_to_nothing_starts_the_clock_again(bench: SegmentBench) -> None:
    segment = bench.create(40)
    bench.clock.ms += 500
    add(segment, batch(40, [1000]), batch(41, [1000]))
    segment.truncate_to(0)
    assert segment.time_waited(bench.clock.ms, 10**12) == 0
    assert (segment.created_ms, segment.first_batch_timestamp()) == (bench.clock.ms, None)
    assert not segment.offset_index.is_full
    assert (segment.offset_index.entries, segment.time_index.entries, segment.size) == (0, 0, 0)
    add(segment, batch(40, [7]))
    assert (bases(segment), segment.first_batch_timestamp(), segment.max_timestamp) == ([40], 7, 7)


def test_the_largest_timestamp_is_found_again_after_truncation(bench: SegmentBench) -> None:
    one = len(batch(0, [0]))
    segment = bench.create(40, index_interval_bytes=2 * one - 1)
    for offset in range(40, 70):
        add(segment, batch(offset, [offset]))
    # Two batches fit the interval, so every second one behind the first has an entry.
    assert segment.time_index.entries == 14
    segment.truncate_to(41)
    assert segment.time_index.entries == 0
    assert (segment.max_timestamp, segment.offset_of_max_timestamp, segment.largest_timestamp) == (40, 40, 40)
    assert segment.next_offset() == 41


def test_the_largest_timestamp_behind_the_last_time_entry_counts_after_truncation(
    bench: SegmentBench,
) -> None:
    segment = bench.create(0, index_interval_bytes=10**6)
    add(segment, batch(0, [5]), batch(1, [900]), batch(2, [900]), batch(3, [30]), batch(4, [1000]))
    segment.truncate_to(4)
    assert (segment.max_timestamp, segment.offset_of_max_timestamp) == (900, 1)


def test_a_truncated_sealed_segment_takes_appends(bench: SegmentBench) -> None:
    segment = bench.create(0, index_interval_bytes=0)
    add(segment, *(batch(number, [number]) for number in range(10)))
    segment.seal()
    again = bench.load(segment)
    again.truncate_to(5)
    add(again, *(batch(number, [number]) for number in range(5, 9)))
    check_lookups(again)
    assert bases(bench.reopen(again)) == list(range(9))


def test_reads_beside_truncations_see_old_bytes_or_fewer(bench: SegmentBench) -> None:
    segment = bench.create(0, index_interval_bytes=0, max_index_bytes=10**5)
    one = len(batch(0))
    add(segment, *(batch(number) for number in range(200)))
    stop = threading.Event()
    wrong: list[BaseException] = []

    def read() -> None:
        while not stop.is_set():
            try:
                for offset in (0, 50, 199):
                    found = segment.position_of(offset)
                    if found is not None:
                        assert found[3] == offset
                        assert len(segment.log.read(0, 10**6)) % one == 0
            except OffsetOutOfRangeError:
                pass
            except Exception as error:  # noqa: BLE001  a thread's failure must reach the test
                wrong.append(error)

    threads = [threading.Thread(target=read, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(30):
        segment.truncate_to(20)
        add(segment, *(batch(number) for number in range(20, 200)))
    stop.set()
    ended(*threads)
    assert wrong == []
