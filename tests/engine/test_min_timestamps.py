"""How early records are: the kernel, and the files in which it is noted for sealed segments."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partition_opening import NOW, open_partition
from plain_batches import CODECS, RECORD, RECORDS, array, batch, entries

from topicfs.engine import batch as batches
from topicfs.engine.batch.compression import compress
from topicfs.engine.errors import CorruptBatchError
from topicfs.engine.format.batch_header import CONTROL, LOG_APPEND_TIME
from topicfs.engine.format.paths import MIN_TIMESTAMPS_SUFFIX, made_of
from topicfs.engine.kernels.min_timestamps import min_timestamp_record, min_timestamps
from topicfs.engine.min_timestamps.build import build, min_timestamp_in
from topicfs.engine.min_timestamps.file import MinTimestamps, load, write
from topicfs.engine.partition.partition import Partition
from topicfs.engine.record import Codec, Record

LARGEST = 2**63 - 1
TIMES = st.sampled_from([-1, 0, NOW - 5, NOW, NOW + 7])


def never() -> bool:
    return False


def encoded(records: Sequence[Record], codec: Codec, base_offset: int, attributes: int, latest: int) -> bytes:
    base_timestamp = (records[0].timestamp or 0) if records else -1
    return batch(
        compress(codec, array(entries(records, base_timestamp))).tobytes() if records else b"",
        base_offset=base_offset,
        attributes=attributes | codec,
        last_offset_delta=max(len(records) - 1, 0),
        base_timestamp=base_timestamp,
        max_timestamp=latest,
        count=len(records),
    )


# -- the kernel ---------------------------------------------------------------------------------------

BATCH = st.tuples(st.lists(RECORD, max_size=6), CODECS, st.sampled_from([0, 0, 0, LOG_APPEND_TIME]), TIMES)


@given(st.lists(BATCH, min_size=1, max_size=8), st.integers(0, 5))
def test_the_least_timestamp_is_that_of_the_earliest_record(
    made: list[tuple[list[Record], Codec, int, int]], before: int
) -> None:
    data, times = b"", []
    for number, (records, codec, attributes, latest) in enumerate(made):
        data += encoded(records, codec, 10 * number, attributes, latest)
        times += [latest if attributes else record.timestamp or 0 for record in records]
    table = batches.scan(array(data))
    table[:, 0] += before  # where the chunk lies in its file
    assert min_timestamp_in(array(data), table) == min(times, default=LARGEST)


def test_a_marker_counts_with_the_time_of_its_header() -> None:
    """Its one record is not looked into."""
    data = batch(b"no record", attributes=CONTROL, base_timestamp=5, max_timestamp=7)
    assert min_timestamp_in(array(data), batches.scan(array(data))) == 7


@given(RECORDS, st.data())
def test_bytes_that_are_no_records_are_refused_or_read_as_records_are(
    records: list[Record], data: st.DataObject
) -> None:
    stream = bytearray(entries(records, NOW))
    at = data.draw(st.integers(0, len(stream) - 1))
    stream[at] = data.draw(st.integers(0, 255))
    made = batch(bytes(stream), base_timestamp=NOW, count=len(records))
    table = batches.scan(array(made))
    try:
        held = [each for part in batches.columns(array(made), table) for each in part.timestamps.tolist()]
    except CorruptBatchError:
        held = None
    try:
        found = min_timestamp_in(array(made), table)
    except CorruptBatchError:
        assert held is None
    else:
        assert held is None or found == min(held)


@pytest.mark.parametrize("count", [-1, 1, 3, 2**31 - 1])
def test_a_wrong_count_is_refused(count: int) -> None:
    stream = entries([Record(b"a", b"k", NOW), Record(b"b", b"k", NOW)], NOW)
    for codec in (Codec.NONE, Codec.ZSTD):
        packed = compress(codec, array(stream)).tobytes()
        made = array(batch(packed, attributes=codec, base_timestamp=NOW, count=count, last_offset_delta=1))
        with pytest.raises(CorruptBatchError):
            min_timestamp_in(made, batches.scan(made))


def test_no_byte_outside_the_range_is_read() -> None:
    stream = array(entries([Record(b"a", b"k", NOW)], NOW))
    for start, end in ((-1, stream.size), (0, stream.size + 1)):
        status, *_ = min_timestamp_record(stream, start, end, 1, NOW)
        assert status != 0
    made = array(batch(stream.tobytes(), base_timestamp=NOW))
    for origin in (-1, 1):
        status, *_ = min_timestamps(made, origin, batches.scan(made), 0)
        assert status != 0
    for cut in range(stream.size):
        status, *_ = min_timestamp_record(np.ascontiguousarray(stream[:cut]), 0, cut, 1, NOW)
        assert status != 0


# -- a segment ----------------------------------------------------------------------------------------


def filled(directory: Path, times: Sequence[int], codec: str = "uncompressed") -> Partition:
    """A partition with one sealed segment: a batch of two records for each time, the second one not later."""
    partition = open_partition(directory, segment_bytes=1 << 20, compression_type=codec)
    for at in times:
        partition.append([Record(b"x" * 50, b"k", at), Record(b"y" * 50, b"k", at - 1)])
    partition.roll()
    return partition


@given(st.lists(st.integers(0, 30).map(lambda at: NOW + at), min_size=1, max_size=12), st.integers(1, 500))
def test_from_an_offset_on_everything_is_later(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], chunk: int
) -> None:
    with filled(tmp_path_factory.mktemp("log") / "t-0", times) as partition:
        segments = partition.log.chain.segments
        found = build(segments.first, segments.last.base_offset, never, chunk)
        held = [(record.offset, record.timestamp or 0) for record in partition.records()]
    assert found is not None
    for before, after in itertools.pairwise(found.entries):
        assert before[0] < after[0]
        assert before[1] < after[1]
    for at in range(NOW - 2, NOW + 32):
        first = found.all_later_from(at)
        later = [offset for offset, time in held if first is not None and offset >= first and time <= at]
        assert later == []
        if chunk < 100:  # a batch each: nothing that could be said is left out
            behind = max((offset for offset, time in held if time <= at), default=-1) + 1
            assert first == (None if behind == len(held) else -(-behind // 2) * 2)


def test_a_segment_of_no_records_is_later_than_everything(tmp_path: Path) -> None:
    assert MinTimestamps(5, 9, ((LARGEST, 0),)).all_later_from(LARGEST - 1) == 5
    assert MinTimestamps(5, 9, ()).all_later_from(0) is None


def test_a_build_that_is_told_to_stop_gives_nothing(tmp_path: Path) -> None:
    with filled(tmp_path / "t-0", [NOW, NOW + 1]) as partition:
        assert build(partition.log.chain.segments.first, 4, lambda: True) is None


# -- the file -----------------------------------------------------------------------------------------

SOME = MinTimestamps(7, 4000, ((-1, 0), (NOW, 17), (LARGEST, 2**31 - 1)))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / f"{7:020d}.log"
    path.write_bytes(b"records")
    return path


def put(log: Path, known: MinTimestamps = SOME) -> Path:
    path = log.parent / "views" / made_of(7, log.stat(), MIN_TIMESTAMPS_SUFFIX)
    write(path, known)
    return path


def loaded(log: Path) -> MinTimestamps | None:
    return load(log.parent / "views", log, 7)


@pytest.mark.parametrize("known", [SOME, MinTimestamps(7, 8, ()), MinTimestamps(7, 9, ((0, 0),))])
def test_what_is_written_is_read(log: Path, known: MinTimestamps) -> None:
    path = put(log, known)
    assert loaded(log) == known
    assert os.listdir(path.parent) == [path.name]


def test_the_bytes_are_as_the_format_says(log: Path) -> None:
    data = put(log).read_bytes()
    assert data[:6] == b"tfea\x00\x01"
    assert data[10:34] == b"".join(
        number.to_bytes(size, "big", signed=True) for number, size in ((4000, 8), (3, 4), (-1, 8), (0, 4))
    )
    assert len(data) == 22 + 3 * 12


def test_a_file_with_any_byte_changed_counts_as_none(log: Path) -> None:
    path = put(log)
    data = path.read_bytes()
    for at, bit in itertools.product(range(len(data)), (1, 0x80)):
        path.write_bytes(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
        assert loaded(log) is None, at
    path.write_bytes(data)
    assert loaded(log) == SOME


def test_a_file_that_is_cut_off_or_has_more_counts_as_none(log: Path) -> None:
    path = put(log)
    data = path.read_bytes()
    for content in (
        *(data[:size] for size in range(len(data))),
        data + b"\0",
        data + data[-12:],
        bytes(len(data)),
    ):
        path.write_bytes(content)
        assert loaded(log) is None
    os.truncate(path, 1 << 40)
    assert loaded(log) is None
    path.unlink()
    assert loaded(log) is None
    path.mkdir()
    assert loaded(log) is None


def test_it_is_believed_only_beside_the_very_log_it_was_made_of(log: Path) -> None:
    put(log)
    status = log.stat()
    other = log.with_name("other")
    other.write_bytes(b"records")
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    log.rename(log.with_name("kept"))
    other.rename(log)
    assert loaded(log) is None, "another inode"
    log.unlink()
    assert loaded(log) is None, "gone"
    log.with_name("kept").rename(log)
    assert loaded(log) == SOME
    os.utime(log, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert loaded(log) is None, "written since"
