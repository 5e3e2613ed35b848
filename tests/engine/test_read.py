"""Reading by offset: KAFKA_FORMAT 6, KAFKA_CASES K.

Not here:
* What compaction leaves, as it is a later issue: gaps are made by a follower's appends instead.
* High watermark metadata after a roll (testHighWatermarkMetadataUpdatedAfterSegmentRoll): the published
  offsets carry a position for the end only; test_roll checks that one.
* The time index that a follower builds (testBuildTimeIndexWhenNotAssigningOffsets), and look-ups by time:
  test_timestamps.
* Readers beside an appender, and testReadCommittedWithConcurrentHighWatermarkUpdates: test_concurrent.
"""

from __future__ import annotations

import pytest
from partition_bench import NOW, Bench, bases_of, batch, values
from plain_batches import HEADER

from topicfs.engine.errors import CorruptBatchError, OffsetOutOfRangeError
from topicfs.engine.partition.offsets import Isolation
from topicfs.engine.partition.partition import Partition
from topicfs.engine.record import Record

LOG_END, UNCOMMITTED, COMMITTED = Isolation.LOG_END, Isolation.UNCOMMITTED, Isolation.COMMITTED


def offsets_in(data: bytes) -> list[int]:
    """The base offsets of the whole batches in a slice."""
    found, at = [], 0
    while at + HEADER.size <= len(data):
        base, size = HEADER.unpack_from(data, at)[:2]
        if at + 12 + size > len(data):
            break
        found.append(base)
        at += 12 + size
    return found


def sparse(bench: Bench, **settings: object) -> Partition:
    """A partition with records at 0, 5, 10 … 195, in several segments."""
    partition = bench.open(segment_bytes=1000, index_interval_bytes=200, **settings)
    for base in range(0, 200, 5):
        partition.append_raw(batch(1, base=base))
    assert len(bases_of(partition)) > 2
    return partition


# -- positions ------------------------------------------------------------------------------------------


def test_every_offset_reads_from_its_own_batch(bench: Bench) -> None:
    partition = bench.open(segment_bytes=1000, index_interval_bytes=200)
    for _ in range(40):
        partition.append_batch(batch(2))
    for offset in range(80):
        for most in (1, 100, 1000):
            fetch = partition.read(offset, most)
            assert HEADER.unpack_from(fetch.data)[0] == offset // 2 * 2
            assert fetch.offset == offset


def test_offsets_in_a_gap_read_from_the_next_batch(bench: Bench) -> None:
    partition = sparse(bench)
    for offset in range(196):
        fetch = partition.read(offset, 1)
        assert HEADER.unpack_from(fetch.data)[0] == -(-offset // 5) * 5


def test_a_gap_at_a_segments_end_reads_from_the_next_segment(bench: Bench) -> None:
    partition = sparse(bench)
    _, second, *_ = partition.log.chain.segments
    fetch = partition.read(second.base_offset - 1, 100)
    assert (fetch.segment_base, fetch.position) == (second.base_offset, 0)
    assert offsets_in(fetch.data) == [second.base_offset]


def test_a_gap_before_the_end_reads_nothing(bench: Bench) -> None:
    partition = bench.open()
    partition.append_raw(batch(5))
    bench.truncate(3)  # cuts the whole batch: the end stays at 3, behind a gap
    assert partition.end_offset == 3
    assert partition.read(0, 100).data == partition.read(2, 100).data == b""
    assert list(partition.records()) == []


def test_an_offset_within_a_batch_reads_the_whole_batch(bench: Bench) -> None:
    partition = bench.open(compression_type="gzip")
    partition.append_batch(batch(2))
    partition.append_batch(batch(2))
    assert offsets_in(partition.read(1, 10_000).data) == [0, 2]
    assert [record.offset for record in partition.records(1)] == [1, 2, 3]


def test_a_read_never_crosses_segments(bench: Bench) -> None:
    partition = sparse(bench)
    first, second, *_ = partition.log.chain.segments
    fetch = partition.read(0, 1_000_000)
    assert len(fetch.data) == first.size
    assert (fetch.segment_base, fetch.position) == (0, 0)
    assert partition.read(second.base_offset, 1_000_000).segment_base == second.base_offset


def test_a_read_is_a_slice_of_the_file(bench: Bench) -> None:
    partition = sparse(bench)
    for offset, most in ((0, 300), (35, 500), (120, 150)):
        fetch = partition.read(offset, most)
        path = bench.directory / f"{fetch.segment_base:020d}.log"
        assert path.read_bytes()[fetch.position : fetch.position + len(fetch.data)] == fetch.data
        assert len(fetch.data) <= most


# -- sizes ----------------------------------------------------------------------------------------------


def test_a_limit_that_is_too_small_gives_the_first_batch_if_asked_for(bench: Bench) -> None:
    partition = bench.open()
    for _ in range(3):
        partition.append_batch(batch(3))
    size = len(batch(3))
    for most in (0, 1, size - 1, size):
        fetch = partition.read(3, most)
        assert (offsets_in(fetch.data), len(fetch.data), fetch.first_batch_incomplete) == ([3], size, False)


def test_a_limit_that_is_too_small_cuts_the_first_batch_otherwise(bench: Bench) -> None:
    partition = bench.open()
    partition.append_batch(batch(3))
    fetch = partition.read(0, 0, at_least_one=False)
    assert fetch.data == b""
    fetch = partition.read(0, 1, at_least_one=False)
    assert (len(fetch.data), fetch.first_batch_incomplete) == (1, True)
    size = len(batch(3))
    assert partition.read(0, size - 1, at_least_one=False).first_batch_incomplete
    assert not partition.read(0, size, at_least_one=False).first_batch_incomplete


def test_the_last_batch_of_a_read_may_be_cut_off(bench: Bench) -> None:
    partition = bench.open()
    for _ in range(3):
        partition.append_batch(batch(3))
    size = len(batch(3))
    fetch = partition.read(0, 2 * size + 7)
    assert (len(fetch.data), offsets_in(fetch.data), fetch.first_batch_incomplete) == (
        2 * size + 7,
        [0, 3],
        False,
    )


def test_a_negative_limit_is_an_error(bench: Bench) -> None:
    partition = bench.open()
    with pytest.raises(ValueError, match="-1"):
        partition.read(0, -1)


# -- bounds ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", list(Isolation))
def test_only_offsets_from_the_start_to_the_end_can_be_read(bench: Bench, isolation: Isolation) -> None:
    partition = bench.open()
    partition.restart_at(1024)
    partition.append_batch(batch(1))
    assert offsets_in(partition.read(1024, 1000, isolation).data) == [1024]
    assert partition.read(1025, 1000, isolation).data == b""
    for offset in (0, 1023, 1026, 2**62, -1):
        with pytest.raises(OffsetOutOfRangeError):
            partition.read(offset, 1000, isolation)
        with pytest.raises(OffsetOutOfRangeError):
            list(partition.records(offset, offset + 1, isolation))


def test_an_empty_partition_reads_nothing_at_its_end(bench: Bench) -> None:
    partition = bench.open()
    fetch = partition.read(0, 1000)
    assert (fetch.data, fetch.segment_base, fetch.position) == (b"", 0, 0)
    assert list(partition.records()) == []
    with pytest.raises(OffsetOutOfRangeError):
        partition.read(1, 1000)


def marked(bench: Bench, mark: int, **settings: object) -> Partition:
    """A partition of 9 records in 3 segments, with a high watermark of its own."""
    partition = bench.open(lone=False, **settings)
    for _ in range(3):
        partition.append_batch(batch(3))
        if partition.end_offset < 9:
            partition.roll()
    partition.log.set_high_watermark(mark)
    return partition


@pytest.mark.parametrize(("mark", "shown"), [(0, 0), (1, 0), (3, 3), (5, 3), (6, 6), (9, 9)])
@pytest.mark.parametrize("isolation", [UNCOMMITTED, COMMITTED])
def test_the_high_watermark_bounds_what_readers_see(
    bench: Bench, mark: int, shown: int, isolation: Isolation
) -> None:
    partition = marked(bench, mark)
    seen: list[int] = []
    offset = 0
    while data := partition.read(offset, 10_000, isolation).data:
        seen += offsets_in(data)
        offset = seen[-1] + 3
    assert seen == list(range(0, shown, 3))
    assert [record.offset for record in partition.records(isolation=isolation)] == list(
        range(min(shown, mark))
    )


def test_the_log_end_is_read_by_those_who_ask_for_it(bench: Bench) -> None:
    partition = marked(bench, 0)
    assert [record.offset for record in partition.records(isolation=LOG_END)] == list(range(9))
    assert offsets_in(partition.read(6, 10_000, LOG_END).data) == [6]


@pytest.mark.parametrize("isolation", [UNCOMMITTED, COMMITTED])
@pytest.mark.parametrize("offset", [3, 4, 6, 8, 9])
def test_an_offset_at_or_above_the_bound_reads_nothing(
    bench: Bench, isolation: Isolation, offset: int
) -> None:
    partition = marked(bench, 3)
    assert partition.read(offset, 1000, isolation).data == b""
    with pytest.raises(OffsetOutOfRangeError):
        partition.read(10, 1000, isolation)


def test_the_stable_offset_bounds_who_wants_committed_data_only(bench: Bench) -> None:
    partition = bench.open()
    partition.append_batch(batch(3))
    partition.append_batch(batch(2, producer=1, transactional=True))
    partition.append_batch(batch(1))
    assert partition.stable_offset == 3
    assert offsets_in(partition.read(0, 10_000, COMMITTED).data) == [0]
    assert offsets_in(partition.read(0, 10_000, UNCOMMITTED).data) == [0, 3, 5]
    assert partition.read(3, 10_000, COMMITTED).data == partition.read(5, 10_000, COMMITTED).data == b""


def test_records_below_a_start_within_a_batch_are_left_to_the_client(bench: Bench) -> None:
    partition = bench.open()
    partition.append_batch(batch(5))
    partition.delete_records(3)
    assert offsets_in(partition.read(3, 1000).data) == [0]
    assert [record.offset for record in partition.records()] == [3, 4]
    with pytest.raises(OffsetOutOfRangeError):
        partition.read(2, 1000)


# -- the high watermark ---------------------------------------------------------------------------------


def test_the_high_watermark_begins_at_the_start_and_stays_when_something_is_appended(bench: Bench) -> None:
    partition = bench.open(lone=False)
    assert partition.high_watermark == 0
    partition.append_batch(batch(3))
    assert (partition.high_watermark, partition.end_offset) == (0, 3)


def test_the_high_watermark_is_cut_to_what_the_log_holds(bench: Bench) -> None:
    partition = marked(bench, 2)
    partition.log.set_high_watermark(100)
    assert partition.high_watermark == 9
    partition.log.set_high_watermark(-5)
    assert partition.high_watermark == 0
    partition.log.set_high_watermark(9)
    partition.log.raise_start_offset(4)
    partition.log.set_high_watermark(2)
    assert partition.high_watermark == 4


def test_raising_the_high_watermark_never_lowers_it_and_refuses_what_is_not_there(bench: Bench) -> None:
    partition = marked(bench, 3)
    partition.log.raise_high_watermark(2)
    assert partition.high_watermark == 3
    partition.log.raise_high_watermark(7)
    assert partition.high_watermark == 7
    with pytest.raises(OffsetOutOfRangeError):
        partition.log.raise_high_watermark(10)
    assert partition.high_watermark == 7


def test_truncation_lowers_the_high_watermark_and_a_restart_moves_it(bench: Bench) -> None:
    partition = marked(bench, 7)
    bench.truncate(8)
    assert partition.high_watermark == 7
    bench.truncate(5)
    assert (partition.high_watermark, partition.end_offset) == (5, 5)
    partition.restart_at(22)
    assert (partition.start_offset, partition.high_watermark, partition.end_offset) == (22, 22, 22)


def test_a_lone_partition_shows_what_is_appended_at_once(bench: Bench) -> None:
    partition = bench.open()
    partition.append_batch(batch(3))
    assert partition.high_watermark == partition.stable_offset == partition.end_offset == 3


# -- records --------------------------------------------------------------------------------------------


def test_records_come_back_as_they_were_appended(bench: Bench) -> None:
    partition = bench.open(segment_bytes=500)
    sent = [
        Record(b"value", b"key", NOW, (("name", b"x"), ("null", None), ("", b""))),
        Record(None, b"", NOW + 1),
        Record(b"", None, NOW - 1),
        Record(bytes(range(256)), "ü".encode(), NOW, (("\udcff", b"\0"),)),
    ]
    for record in sent:
        partition.append(record)
    got = list(partition.records())
    expected = [Record(r.value, r.key, r.timestamp, r.headers, at) for at, r in enumerate(sent)]
    assert got == expected


@pytest.mark.parametrize(
    ("start", "end"), [(0, 9), (1, 8), (4, 5), (3, 6), (5, 5), (8, 100), (None, 2), (7, None)]
)
def test_a_range_of_records_is_cut_at_both_ends(bench: Bench, start: int | None, end: int | None) -> None:
    partition = bench.open(segment_bytes=200)
    for _ in range(3):
        partition.append(values(3))
    read = [record.offset for record in partition.records(start, end)]
    assert read == list(range(start or 0, min(9, 9 if end is None else end)))


def test_what_lies_before_a_batch_that_reaches_over_the_end_is_read_first(bench: Bench) -> None:
    """regression: a last offset that damage had raised hid the batches before it too"""
    partition = bench.open()
    for _ in range(3):
        partition.append(values(2))
    partition.roll()
    log = bench.directory / f"{0:020}.log"
    sound = log.read_bytes()
    at = 2 * len(sound) // 3 + 23
    read: list[int | None] = []

    def walk() -> None:
        read.extend(record.offset for record in partition.records(0, 6))

    log.write_bytes(sound[:at] + b"\x00\x00\xff\xff" + sound[at + 4 :])
    with pytest.raises(CorruptBatchError, match="expected offsets below 6"):
        walk()
    assert read == [0, 1, 2, 3]
    log.write_bytes(sound)


def test_columns_come_in_chunks_that_make_up_the_range(bench: Bench) -> None:
    partition = bench.open(segment_bytes=300)
    for _ in range(10):
        partition.append_batch(batch(2))
    chunks = list(partition.columns(3, 17))
    assert len(chunks) > 1
    assert [offset for part in chunks for offset in part.offsets.tolist()] == list(range(3, 17))


def test_size_counts_the_bytes_of_all_segments(bench: Bench) -> None:
    partition = bench.open(segment_bytes=200)
    for _ in range(5):
        partition.append_batch(batch(2))
    assert partition.size == 5 * len(batch(2))
    assert partition.size == sum(path.stat().st_size for path in bench.directory.glob("*.log"))
