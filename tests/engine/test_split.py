"""Splitting segments whose offsets go too far above their base, and the crashes on the way.

A follower's segment rolls before such an offset: that is with rolling, in test_roll.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from directory_check import bases, check_directory, check_rebuilt, path_of
from partition_opening import NOW, Known, open_partition, without_fsync

from topicfs.engine import batch as batches
from topicfs.engine.errors import RollError
from topicfs.engine.kernels import encode as encoding
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.split import split
from topicfs.engine.record import MAX_INT32, Record

FAR = MAX_INT32 + 10


@pytest.fixture(autouse=True)
def _fast() -> Iterator[None]:
    with without_fsync():
        yield


def batch_at(offset: int, count: int = 1) -> bytes:
    data = batches.from_records(
        [Record(b"at %d" % (offset + n), timestamp=NOW) for n in range(count)], NOW
    ).data
    encoding.stamp(data, 0, offset, 0)
    return data.tobytes()


def overflowing(directory: Path, offsets: list[int], behind: bytes = b"") -> list[bytes]:
    """A directory with one segment, at base 0, of batches at these offsets. Gives the values."""
    open_partition(directory).close()
    path_of(directory, 0, ".log").write_bytes(b"".join(map(batch_at, offsets)) + behind)
    path_of(directory, 0, ".index").unlink()
    return [b"at %d" % offset for offset in offsets]


def values_of(partition: Partition) -> list[bytes | None]:
    return [record.value for record in partition.records()]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        ([0, 5, FAR, FAR + 5], [0, FAR]),
        ([MAX_INT32, MAX_INT32 + 1], [0, MAX_INT32 + 1]),
        ([FAR, FAR + 1], [FAR]),
        ([1, FAR, 2 * FAR, 2 * FAR + 1, 4 * FAR], [0, FAR, 2 * FAR, 4 * FAR]),
    ],
)
def test_a_segment_with_overflow_becomes_segments_without(
    tmp_path: Path, offsets: list[int], expected: list[int], clean: bool
) -> None:
    directory = tmp_path / "t-0"
    values = overflowing(directory, offsets)
    partition = open_partition(directory, Known(clean=clean), segment_bytes=100_000)
    assert bases(directory) == expected
    assert values_of(partition) == values
    assert partition.end_offset == offsets[-1] + 1
    partition.append(Record(b"after"))
    partition.close()
    check_directory(directory)
    partition = open_partition(directory, Known(clean=True))
    assert values_of(partition) == [*values, b"after"]
    partition.close()


def test_the_parts_indexes_are_those_of_a_rebuild(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    overflowing(directory, [*range(0, 40, 2), *range(FAR, FAR + 40, 3)])
    open_partition(directory, segment_bytes=100_000).log.abandon()
    check_rebuilt(directory, 0, 200, 10485760)
    assert all(path_of(directory, base, ".index").stat().st_size for base in bases(directory))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "behind", [b"garbage", batch_at(FAR + 9)[:-1], bytes(500), batch_at(3), batch_at(FAR + 9) + b"\xff"]
)
def test_what_cannot_be_vouched_for_behind_the_overflow_is_cut_off(
    tmp_path: Path, behind: bytes, clean: bool
) -> None:
    directory = tmp_path / "t-0"
    values = overflowing(directory, [0, 5, FAR], behind)
    if behind.startswith(batch_at(FAR + 9)):
        values.append(b"at %d" % (FAR + 9))
    partition = open_partition(directory, Known(clean=clean), segment_bytes=100_000)
    assert values_of(partition) == values
    partition.append(Record(b"after"))
    partition.close()
    check_directory(directory)


def test_segments_behind_a_split_that_was_cut_are_removed(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    values = overflowing(directory, [0, 5, FAR], b"garbage")
    path_of(directory, FAR + 100, ".log").write_bytes(batch_at(FAR + 100))
    partition = open_partition(directory, segment_bytes=100_000)
    assert bases(directory) == [0, FAR]
    assert values_of(partition) == values
    partition.close()


def test_segments_behind_a_split_that_was_whole_stay(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    values = overflowing(directory, [0, 5, FAR])
    path_of(directory, FAR + 100, ".log").write_bytes(batch_at(FAR + 100))
    partition = open_partition(directory, segment_bytes=100_000)
    assert bases(directory) == [0, FAR, FAR + 100]
    assert values_of(partition) == [*values, b"at %d" % (FAR + 100)]
    partition.close()


def test_parts_are_as_old_as_the_original(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    overflowing(directory, [0, FAR])
    os.utime(path_of(directory, 0, ".log"), (1000, 1000))
    partition = open_partition(directory, segment_bytes=100_000)
    assert [path_of(directory, base, ".log").stat().st_mtime for base in bases(directory)] == [1000, 1000]
    partition.close()


@pytest.mark.parametrize("offsets", [[], [0, 1, 2, MAX_INT32]])
def test_a_segment_without_overflow_is_not_split(tmp_path: Path, offsets: list[int]) -> None:
    directory = tmp_path / "t-0"
    values = overflowing(directory, offsets)
    partition = open_partition(directory, segment_bytes=100_000)
    chain = partition.log.chain
    with pytest.raises(RollError, match="nothing to split"):
        split(chain, chain.segments.first, 0, lambda _: None)
    assert bases(directory) == [0]
    assert not list(directory.glob("*.cleaned"))
    assert values_of(partition) == values
    partition.close()


def test_a_crash_after_any_rename_of_the_split_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `.cleaned` files the split is done anew, without it is completed: the same segments either way."""

    class Crash(BaseException):
        pass

    rename = os.rename
    for stop in range(100):
        directory = tmp_path / f"t-{stop}"
        values = overflowing(directory, [0, 5, FAR, FAR + 5])
        left = stop

        def counted(old: str, new: str) -> None:
            nonlocal left
            if not left:
                raise Crash
            left -= 1
            rename(old, new)

        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", counted)
            try:
                open_partition(directory, segment_bytes=100_000).close()
            except Crash:
                crashed = True
            else:
                crashed = False
        partition = open_partition(directory, segment_bytes=100_000)
        assert values_of(partition) == values
        assert bases(directory) == [0, FAR]
        partition.close()
        check_directory(directory)
        if not crashed:
            break
    assert stop > 8
