"""A topic as one file: beside a merge in plain Python, from any position, and as records come."""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_bench import TreeBench, tree_bench

from topicfs import Record
from topicfs.engine.errors import CorruptBatchError
from topicfs.fs import errors

MIB = 1 << 20


def expected(bench: TreeBench, count: int, name: str = "jsonl") -> bytes:
    """The lines of all partitions, merged in plain Python."""
    lines = []
    for number in range(count):
        partition, latest = bench.views("t", number).partition, -(2**63)
        for record in partition.records():
            latest = max(latest, record.timestamp or 0)
            lines.append(
                (latest, number, record.offset, bench.read(f"/t-{number}/offset/{record.offset}.{name}"))
            )
    return b"".join(line for *_, line in sorted(lines, key=lambda line: line[:3]))


def read_at(bench: TreeBench, handle: int, position: int, size: int) -> bytes:
    into = np.zeros(size, np.uint8)
    return into[: bench.files.read(handle, position, into)].tobytes()


records = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 30), st.binary(max_size=8), st.booleans()), max_size=60
)


@settings(deadline=None)
@given(rows=records, positions=st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_all_records_come_in_the_order_of_time_from_any_position(
    rows: list[tuple[int, int, bytes, bool]],
    positions: list[float],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with tree_bench(tmp_path_factory.mktemp("merged")) as bench:
        for number in range(3):
            bench.create("t", number)
        for number, time, value, rolls in rows:
            partition = bench.views("t", number).partition
            partition.append(Record(value, timestamp=1000 + time))
            if rolls:
                partition.roll()
        for name in ("txt", "tsv", "jsonl"):
            whole = expected(bench, 3, name)
            assert bench.read(f"/topics/t/log.{name}") == whole
            for part in positions:
                position = int(part * len(whole))
                handle = bench.files.open(f"/topics/t/log.{name}", os.O_RDONLY).handle
                assert read_at(bench, handle, position, 50) == whole[position : position + 50]
                assert read_at(bench, handle, 0, 20) == whole[:20]
                bench.files.release(handle)


def test_long_logs_are_merged_chunk_by_chunk(tmp_path: Path) -> None:
    with tree_bench(tmp_path, log_segment_bytes=str(4 * MIB)) as bench:
        draw = random.Random(3)
        for number in range(3):
            views = bench.create("t", number)
            for first in range(0, 12):
                views.partition.append(
                    [
                        Record(
                            b"%d %d %s" % (number, row, b"x" * 200),
                            timestamp=first * 1000 + row + draw.randrange(9),
                        )
                        for row in range(1000 if number else 300)
                    ]
                )
        latest = [-1] * 3
        lines = []
        for number in range(3):
            for record in bench.views("t", number).partition.records():
                latest[number] = max(latest[number], record.timestamp or 0)
                lines.append((latest[number], number, record.offset, record.value))
        whole = b"".join((value or b"") + b"\n" for *_, value in sorted(lines))
        size = bench.files.getattr("/topics/t/log.txt", None).size
        assert size == len(whole)
        handle = bench.files.open("/topics/t/log.txt", os.O_RDONLY).handle
        for position in (size - 100, 0, size // 2, size // 2 + 128 * 1024, 7 * MIB // 2, size - 1):
            assert read_at(bench, handle, position, 5000) == whole[position : position + 5000]
        bench.files.release(handle)


def test_an_open_file_shows_the_moment_at_which_it_was_opened(tmp_path: Path) -> None:
    with tree_bench(tmp_path) as bench:
        for number in range(2):
            bench.create("t", number).partition.append(Record(b"old %d" % number, timestamp=1000 + number))
        handle = bench.files.open("/topics/t/log.txt", os.O_RDONLY).handle
        bench.views("t", 0).partition.append(Record(b"new", timestamp=900))
        assert read_at(bench, handle, 0, 100) == b"old 0\nold 1\n"
        assert bench.read("/topics/t/log.txt") == b"old 0\nnew\nold 1\n"
        bench.files.release(handle)


def test_beside_damage_the_lines_are_right_or_an_error(tmp_path: Path) -> None:
    """regression: after EIO the lines of another place were given."""
    with tree_bench(tmp_path) as bench:
        for number in range(2):
            partition = bench.create("t", number).partition
            for first in range(0, 6000, 100):
                partition.append(
                    [
                        Record(b"%d %d %s" % (number, row, b"x" * 300), timestamp=1000 + row)
                        for row in range(first, first + 100)
                    ]
                )
        whole = bench.read("/topics/t/log.txt")
        handle = bench.files.open("/topics/t/log.txt", os.O_RDONLY).handle
        follower = bench.files.open("/topics/t/follow.txt", os.O_RDONLY).handle
        path = Path(bench.views("t", 1).partition.log.snapshot.segments.last.log.path)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        step, good = 50_000, []
        for position in range(0, len(whole), step):
            for _ in range(2):
                try:
                    assert read_at(bench, handle, position, step) == whole[position : position + step]
                    good.append(position)
                except CorruptBatchError:
                    assert good[-1] < len(whole) // 2
        assert good[-1] > len(whole) - step
        bench.files.release(handle)
        bench.views("t", 1).partition.append(Record(b"x" * 300, timestamp=9000))
        with path.open("r+b") as file:
            file.seek(-10, os.SEEK_END)
            file.write(b"!")
        for _ in range(2):
            with pytest.raises(CorruptBatchError):
                read_at(bench, follower, 0, 100)
        bench.files.release(follower)


def test_a_follower_gets_what_comes_to_any_partition_merged_as_far_as_it_is_there(tmp_path: Path) -> None:
    with tree_bench(tmp_path) as bench:
        for number in range(2):
            bench.create("t", number).partition.append(Record(b"old", timestamp=1000))
        handle = bench.files.open("/topics/t/follow.txt", os.O_RDONLY).handle
        bench.views("t", 1).partition.append(Record(b"second", timestamp=3000))
        bench.views("t", 0).partition.append(Record(b"first", timestamp=2000))
        assert read_at(bench, handle, 0, 100) == b"first\nsecond\n"
        bench.views("t", 0).partition.append(Record(b"late", timestamp=1500))
        assert read_at(bench, handle, 13, 100) == b"late\n"
        with pytest.raises(errors.TryAgainError):
            read_at(bench, handle, 18, 100)
        bench.files.release(handle)
        assert not bench.views("t", 0).partition.log._waiters.listeners


def test_a_follower_gets_all_records_of_a_partition_that_is_made_later(tmp_path: Path) -> None:
    with tree_bench(tmp_path) as bench:
        bench.create("t", 1).partition.append(Record(b"old", timestamp=1000))
        handle = bench.files.open("/topics/t/follow.txt", os.O_RDONLY).handle
        bench.create("t", 0).partition.append(Record(b"first", timestamp=2000))
        bench.views("t", 1).partition.append(Record(b"second", timestamp=2000))
        assert read_at(bench, handle, 0, 100) == b"first\nsecond\n"
        bench.views("t", 0).partition.append(Record(b"third", timestamp=3000))
        assert read_at(bench, handle, 13, 100) == b"third\n"
        bench.files.release(handle)
        assert not bench.views("t", 0).partition.log._waiters.listeners


def test_threads_that_read_one_follower_get_each_byte_once(tmp_path: Path) -> None:
    with tree_bench(tmp_path) as bench, ThreadPoolExecutor() as pool:
        for number in range(2):
            bench.create("t", number)
        handle = bench.files.open("/topics/t/follow.txt", os.O_RDONLY).handle
        whole = [b"%06d" % number for number in range(40_000)]
        for first in range(0, len(whole), 1000):
            part = [Record(value, timestamp=1000 + first) for value in whole[first : first + 1000]]
            bench.views("t", first // 1000 % 2).partition.append(part)

        def taken() -> list[bytes]:
            found = []
            with suppress(errors.TryAgainError):
                while True:
                    # As long as a line: no line is divided between two threads.
                    found.append(read_at(bench, handle, 0, 7))
            return found

        parts = [pool.submit(taken) for _ in range(4)]
        assert sorted(line for part in parts for line in part.result()) == [value + b"\n" for value in whole]
        bench.files.release(handle)


def test_writing_is_refused_with_the_name_of_the_file_that_takes_lines(tmp_path: Path) -> None:
    with tree_bench(tmp_path) as bench:
        bench.create("t", 0)
        for flags in (os.O_WRONLY | os.O_APPEND, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):
            with pytest.raises(errors.AppendOnlyError, match=r"append to /topics/t/in\.txt"):
                bench.files.open("/topics/t/log.txt", flags)
