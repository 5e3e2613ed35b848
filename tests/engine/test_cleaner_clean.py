"""One clean of one log: KAFKA_FORMAT 8.4-8.8, KAFKA_CASES P. Transactions are in test_cleaner_transactions, groups
in test_cleaner_grouping, the map in test_offset_map; the throttle is in test_cleaner_throttle."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from compacted import DAY, NOW, Cleaning, cleaner, records, several
from directory_check import path_of
from partition_opening import NEVER, Known, open_partition, without_fsync

from topicfs.engine import batch as batches
from topicfs.engine.cleaner import clean, rewrite
from topicfs.engine.errors import CleaningAbortedError, ClosedError, CorruptError
from topicfs.engine.kernels import encode as encoding
from topicfs.engine.partition import cutting
from topicfs.engine.partition.cutting import retire
from topicfs.engine.record import MAX_INT32, Codec, Record

CODECS = ["producer", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture(autouse=True)
def _fast() -> Iterator[None]:
    with without_fsync():
        yield


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[Cleaning]:
    made = Cleaning(tmp_path / "t-0")
    yield made
    if made.partition.log.failure is None:
        made.check()


def filled(topic: Cleaning, count: int = 200, keys: int = 10) -> dict[object, object]:
    """Append records of some keys, over several segments. Gives the last values."""
    pairs = list(several(count, keys))
    for at in range(0, count, 5):
        topic.clock.ms += 10
        topic.put(*pairs[at : at + 5])
    assert len(topic.bases) > 3
    return dict(pairs)


def as_one_group(topic: Cleaning) -> None:
    """Seal what there is, and let a clean make one segment of it: nothing is replaced before the end."""
    topic.partition.roll()
    topic.partition.log.reconfigure(open_settings(topic, segment_bytes=100_000))


# -- what stays -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_of_each_key_the_last_value_stays_at_its_offset(tmp_path: Path, codec: str) -> None:
    topic = Cleaning(tmp_path / "t-0", compression_type=codec)
    expected = filled(topic)
    cleaned = topic.clean()
    assert topic.values() == expected
    assert topic.offsets() == list(range(190, 200))
    assert (cleaned.end_offset, cleaned.records_read, cleaned.records_kept) == (200, 200, 10)
    topic.check()


def test_keys_that_have_newer_records_behind_the_part_that_is_cleaned_stay(topic: Cleaning) -> None:
    topic.put(("a", 1), ("b", 2))
    topic.put(("a", 3))
    topic.partition.roll()
    topic.put(("b", 4))
    topic.clean(roll=False)
    assert topic.pairs() == [(1, "b", 2), (2, "a", 3), (3, "b", 4)]


def test_bytes_read_are_those_of_the_segments(topic: Cleaning) -> None:
    filled(topic)
    topic.partition.roll()
    size = topic.partition.size
    told: list[int] = []
    cleaned = topic.clean(cleaner(throttle=told.append))
    assert cleaned.bytes_read == size
    assert cleaned.bytes_written == topic.partition.size < size
    assert sum(told) == 2 * size + cleaned.bytes_written


def test_records_counts_and_map_use_are_told(topic: Cleaning) -> None:
    topic.put(("a", 1), ("b", 2), ("a", 3))
    topic.put(("b", 4), ("c", 5))
    cleaned = topic.clean(cleaner(keys=9))
    assert (cleaned.records_read, cleaned.records_kept, cleaned.invalid_records) == (5, 3, 0)
    assert cleaned.map_utilization == pytest.approx(0.3)
    assert (cleaned.segments_before, cleaned.segments_after) == (1, 1)


def test_half_of_the_keys_deleted_are_gone_after_their_tombstones(topic: Cleaning) -> None:
    for key in range(20):
        topic.put((key, key))
    for key in range(0, 20, 2):
        topic.put((key, None))
    topic.clean()
    assert topic.values() == {key: key for key in range(1, 20, 2)}
    assert topic.offsets() == [*range(1, 20, 2), *range(20, 30)]
    topic.clock.ms += DAY
    topic.put(("more", 1))
    topic.clean()
    assert topic.offsets() == [*range(1, 20, 2), 30]


def test_records_without_a_key_are_dropped_and_counted(topic: Cleaning) -> None:
    topic.unkeyed(b"x", b"y")
    topic.put(("a", 1))
    topic.unkeyed(b"z")
    cleaned = topic.clean()
    assert topic.pairs() == [(2, "a", 1)]
    assert cleaned.invalid_records == 3


def test_a_second_clean_with_nothing_dirty_changes_nothing(topic: Cleaning) -> None:
    filled(topic)
    topic.clean()
    before = topic.files()
    cleaned = topic.clean(roll=False)
    assert (cleaned.end_offset, cleaned.bytes_read) == (200, 0)
    assert topic.files() == before


def test_a_segment_of_which_everything_stays_is_left_as_it_is(topic: Cleaning) -> None:
    topic.put(("a", 1), ("b", 2))
    topic.partition.roll()
    segment = topic.partition.log.chain.segments.first
    cleaned = topic.clean()
    assert topic.partition.log.chain.segments.first is segment
    assert (cleaned.records_kept, cleaned.segments_after) == (2, 1)


def test_the_last_batch_of_a_round_stays_even_if_it_is_empty(topic: Cleaning) -> None:
    topic.put(("a", 1))
    topic.put(("b", 2))
    topic.unkeyed(b"x", b"y")
    topic.partition.roll()
    topic.put(("a", 3))
    topic.clean(roll=False)
    assert topic.batches() == [(0, 0, 0, 1), (1, 1, 0, 1), (2, 3, 0, 0), (4, 4, 0, 1)]
    empty = path_of(topic.directory, 0, ".log").read_bytes()[-61:]
    assert struct.unpack_from(">q", empty, 27) == (-1,), "base timestamp"
    assert struct.unpack_from(">q", empty, 35) == (NOW,), "max timestamp"
    topic.put(("c", 4))
    topic.clean()
    assert (2, 3, 0, 0) not in topic.batches()


def test_a_clean_whose_every_record_goes_leaves_an_empty_segment_that_reads_over(topic: Cleaning) -> None:
    topic.put(("a", 1))
    topic.partition.roll()
    topic.put(("a", 2))
    topic.partition.roll()
    topic.put(("a", 3))
    # Limits so tight that each segment is a group of its own.
    topic.partition.log.reconfigure(open_settings(topic, segment_index_bytes=12, segment_bytes=100))
    topic.clean()
    assert topic.bases == [0, 1, 2, 3]
    assert topic.pairs() == [(2, "a", 3)]
    assert [r.offset for r in topic.partition.records(1)] == [2]
    assert topic.partition.read(0, 1000).data


def open_settings(topic: Cleaning, **more: object) -> object:
    """The topic's settings with some of them changed."""
    from topicfs.engine.settings.topic import resolve_topic  # noqa: PLC0415 - one use

    names = {**topic.settings, **more}
    return resolve_topic(
        {
            name.replace("_", ".").replace("segment.bytes", "internal.segment.bytes"): str(value)
            for name, value in names.items()
        },
        {},
    )


# -- tombstones -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("timestamp", [NOW - 100 * DAY, NOW, NOW + 100 * DAY])
@pytest.mark.parametrize("codec", ["producer", "zstd"])
def test_a_tombstone_lives_until_its_horizon_whatever_its_own_time(
    tmp_path: Path, timestamp: int, codec: str
) -> None:
    topic = Cleaning(tmp_path / "t-0", compression_type=codec, message_timestamp_after_max_ms=2**62)
    topic.put(("a", 1), at=timestamp)
    topic.put(("b", 2), ("a", None), at=timestamp)
    topic.clock.ms += 5 * DAY
    topic.clean()
    assert topic.pairs() == [(1, "b", 2), (2, "a", None)]
    assert [record.timestamp for record in topic.partition.records()] == [timestamp, timestamp]
    for waited, expected in ((DAY - 1, [1, 2, 3]), (1, [1, 4])):
        topic.clock.ms += waited
        topic.put(("c", 3))
        topic.clean()
        assert topic.offsets() == expected
    topic.check()


def test_the_horizon_is_never_moved_later(topic: Cleaning) -> None:
    topic.put(("a", None), ("b", 1))
    for number in range(3):
        topic.put(("c", number))
        topic.clean()
        header = path_of(topic.directory, 0, ".log").read_bytes()[:61]
        assert struct.unpack_from(">h", header, 21) == (0x40,)
        assert struct.unpack_from(">q", header, 27) == (NOW + DAY,)
        assert topic.partition.record(0) == Record(None, b"a", NOW, (), 0)
        topic.clock.ms += 100


def test_a_batch_that_loses_records_keeps_its_horizon_and_its_times(topic: Cleaning) -> None:
    topic.partition.append(
        [Record(b"1", b"a", NOW - 5), Record(None, b"b", NOW - 3), Record(b"2", b"c", NOW - 9)]
    )
    topic.clean()
    topic.put(("a", 3))
    topic.clock.ms += 50
    topic.clean()
    assert [(r.offset, r.timestamp) for r in topic.partition.records()] == [
        (1, NOW - 3),
        (2, NOW - 9),
        (3, NOW),
    ]
    header = path_of(topic.directory, 0, ".log").read_bytes()[:61]
    assert struct.unpack_from(">qq", header, 27) == (NOW + DAY, NOW - 3)


def test_a_tombstone_waits_for_nothing_where_delete_retention_is_zero(tmp_path: Path) -> None:
    topic = Cleaning(tmp_path / "t-0", delete_retention_ms=0)
    topic.put(("a", 1))
    topic.put(("a", None))
    topic.clean()
    assert topic.pairs() == [(1, "a", None)]
    topic.put(("b", 2))
    topic.clean()
    assert topic.pairs() == [(2, "b", 2)]
    topic.check()


# -- what a batch keeps ---------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", list(Codec))
def test_a_rewritten_batch_keeps_codec_offsets_and_headers(tmp_path: Path, codec: Codec) -> None:
    topic = Cleaning(tmp_path / "t-0")
    headers = (("name", b"value"), ("none", None))
    data = batches.from_records(
        [
            Record(b"1", b"a", NOW),
            Record(b"2" * 500, b"b", NOW + 70, headers),
            Record(b"", b"c", NOW + 20, headers[:1]),
            Record(b"4", b"d", NOW + 10),
        ],
        NOW,
        batches.Shape(codec=codec),
    ).data
    topic.partition.append_batch(data.tobytes())
    topic.put(("a", 5), ("d", 6))
    topic.clean()
    assert list(topic.partition.records(0, 4)) == [
        Record(b"2" * 500, b"b", NOW + 70, headers, 1),
        Record(b"", b"c", NOW + 20, headers[:1], 2),
    ]
    assert topic.batches()[0] == (0, 3, int(codec), 2)
    topic.check()


def test_the_max_timestamp_is_that_of_the_records_that_stay(topic: Cleaning) -> None:
    topic.partition.append(
        [Record(b"1", b"a", NOW + 5), Record(b"2", b"b", NOW + 70), Record(b"3", b"c", NOW + 20)]
    )
    topic.put(("b", 4))
    topic.clean()
    header = path_of(topic.directory, 0, ".log").read_bytes()[:61]
    assert struct.unpack_from(">qq", header, 27) == (NOW + 5, NOW + 20)


def test_a_batch_stamped_at_its_append_keeps_that_time(tmp_path: Path) -> None:
    topic = Cleaning(tmp_path / "t-0", message_timestamp_type="LogAppendTime")
    topic.put(("a", 1), ("b", 2), ("c", 3))
    topic.clock.ms += 100
    topic.put(("a", 4))
    topic.clean()
    assert [(r.offset, r.timestamp) for r in topic.partition.records()] == [
        (1, NOW),
        (2, NOW),
        (3, NOW + 100),
    ]
    assert topic.batches()[0] == (0, 2, 0x08, 2)
    topic.check()


def test_look_ups_by_time_find_what_stayed(topic: Cleaning) -> None:
    filled(topic)
    topic.clean()
    for record in list(topic.partition.records()):
        found = topic.partition.offset_for_timestamp(record.timestamp or 0)
        assert found is not None
        assert (found.timestamp, found.offset) == (
            record.timestamp,
            min(r.offset for r in topic.partition.records() if r.timestamp == record.timestamp),
        )


# -- producers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("crash", [False, True])
def test_a_producers_retry_is_a_duplicate_after_a_clean_even_when_its_batch_became_empty(
    topic: Cleaning, crash: bool
) -> None:
    topic.produce(1, ("a", 1), ("b", 2))
    topic.produce(1, ("c", 3))
    topic.produce(2, ("c", 4))
    topic.put(("a", 5), ("b", 6), ("c", 7))
    topic.clean()
    assert topic.offsets() == [4, 5, 6]
    assert [each for each in topic.batches() if not each[3]] == [(2, 2, 0, 0), (3, 3, 0, 0)]
    topic.reopen(crash)
    topic.sequences = {1: 2, 2: 0}
    assert topic.produce(1, ("c", 3)) == 2
    assert topic.produce(2, ("c", 4)) == 3
    assert topic.partition.end_offset == 7


def test_the_batch_kept_for_a_producer_goes_when_it_has_written_another(topic: Cleaning) -> None:
    topic.produce(1, ("a", 1))
    topic.put(("a", 2))
    topic.clean()
    assert topic.batches() == [(0, 0, 0, 0), (1, 1, 0, 1)]
    topic.produce(1, ("b", 3))
    topic.clean()
    assert topic.batches() == [(1, 1, 0, 1), (2, 2, 0, 1)]
    assert topic.reopen(crash=True).log.producers.producers[1].last_sequence == 1


def test_a_batch_of_a_sequence_used_again_in_a_new_epoch_is_the_one_that_stays(topic: Cleaning) -> None:
    topic.produce(1, ("a", 1))
    topic.put(("a", 2))
    topic.sequences = {}
    topic.produce(1, ("a", 3), epoch=1)
    topic.put(("a", 4))
    topic.clean()
    assert topic.batches() == [(2, 2, 0, 0), (3, 3, 0, 1)]


def test_nothing_is_kept_for_a_producer_that_has_expired(topic: Cleaning) -> None:
    topic.produce(1, ("a", 1))
    topic.put(("a", 2))
    topic.partition.log.producers.expiration_ms = 0
    topic.partition.log.expire_producers(NOW)
    topic.clean()
    assert topic.batches() == [(1, 1, 0, 1)]


# -- how far --------------------------------------------------------------------------------------------


def test_a_map_of_one_key_advances_by_one_key_a_pass(topic: Cleaning) -> None:
    for value, key in enumerate("abab"):
        topic.put((key, value))
    one = cleaner(keys=1)
    assert topic.clean(one).end_offset == 1
    assert topic.offsets() == [0, 1, 2, 3]
    assert topic.clean(one, roll=False).end_offset == 2
    assert topic.offsets() == [0, 1, 2, 3]
    assert topic.clean(one, roll=False).end_offset == 3
    assert topic.offsets() == [1, 2, 3]
    assert topic.clean(one, roll=False).end_offset == 4
    assert topic.offsets() == [2, 3]


def test_a_small_map_needs_more_passes_and_comes_to_the_same_end(topic: Cleaning) -> None:
    expected = filled(topic, keys=30)
    topic.partition.roll()
    small = cleaner(keys=7)
    passes = 0
    while topic.dirty < 200:
        before = topic.dirty
        topic.clean(small, roll=False)
        assert topic.dirty > before
        assert topic.values() == expected
        passes += 1
    assert passes > 5
    assert topic.offsets() == list(range(170, 200))


def test_a_map_that_becomes_full_inside_a_batch_keeps_what_lies_behind(topic: Cleaning) -> None:
    topic.put(("a", 0), ("b", 1), ("a", 2), ("c", 3), ("a", 4))
    cleaned = topic.clean(cleaner(keys=2))
    assert cleaned.end_offset == 2, "even a key that is in the map does not fit any more"
    assert topic.offsets() == [0, 1, 2, 3, 4]
    assert topic.clean(cleaner(keys=2), roll=False).end_offset == 4
    assert topic.offsets() == [1, 2, 3, 4]
    assert topic.clean(cleaner(keys=2), roll=False).end_offset == 5
    assert topic.offsets() == [1, 3, 4]


def test_what_lies_behind_a_full_map_stays_whatever_it_is(topic: Cleaning) -> None:
    topic.put(("a", 1))
    topic.put(("b", None))
    topic.unkeyed(b"x")
    for _ in range(2):
        topic.dirty = 0
        cleaned = topic.clean(cleaner(keys=1), roll=True)
        assert (cleaned.end_offset, cleaned.invalid_records) == (1, 0)
        assert topic.offsets() == [0, 1, 2], "the tombstone's horizon is over, but its key was not looked at"
        topic.clock.ms += 2 * DAY


def test_the_segment_of_the_first_uncleanable_offset_is_left_alone(topic: Cleaning) -> None:
    filled(topic)
    topic.partition.roll()
    middle = topic.bases[3]
    untouched = {name: data for name, data in topic.files().items() if int(name[:20]) >= middle}
    cleaned = topic.clean(until=middle + 1, roll=False)
    assert cleaned.end_offset == middle
    assert {name: data for name, data in topic.files().items() if int(name[:20]) >= middle} == untouched
    assert topic.offsets() == [*range(middle - 10, middle), *range(middle, 200)]


def test_the_active_segment_is_never_cleaned(topic: Cleaning) -> None:
    topic.put(("a", 1))
    topic.put(("a", 2))
    assert topic.clean(until=2**62, roll=False).end_offset == 0
    assert topic.offsets() == [0, 1]


def test_missing_offsets_at_a_segments_end_do_not_stop_the_next_round(topic: Cleaning) -> None:
    for base in (0, 1, 5):
        data = batches.from_records(records([("a", base)], NOW), NOW).data
        encoding.stamp(data, 0, base, 0)
        topic.partition.append_raw(data)
    topic.partition.log.chain.active.seal()
    topic.partition.log._roll(9)  # as a follower rolls for a batch that begins there
    data = batches.from_records(records([("b", 9)], NOW), NOW).data
    encoding.stamp(data, 0, 9, 0)
    topic.partition.append_raw(data)
    assert topic.clean(until=9, roll=False).end_offset == 9
    assert topic.offsets() == [5, 9]
    assert topic.clean().end_offset == 10


# -- sizes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["producer", "zstd"])
def test_a_batch_larger_than_the_buffers_is_cleaned(tmp_path: Path, codec: str) -> None:
    topic = Cleaning(tmp_path / "t-0", compression_type=codec, segment_bytes=2_000_000)
    noise = os.urandom(100_000).hex()
    topic.put(("a", noise), ("b", noise[:50]), ("c", None))
    topic.put(("a", noise[1:]))
    topic.put(("d", 1))
    topic.clean(cleaner(io_buffer=10))
    assert topic.pairs() == [(1, "b", noise[:50]), (2, "c", None), (3, "a", noise[1:]), (4, "d", 1)]
    topic.check()


def test_a_batch_larger_than_max_message_bytes_is_cleaned(tmp_path: Path) -> None:
    topic = Cleaning(tmp_path / "t-0", segment_bytes=5000)
    topic.put(("a", "x" * 900))
    topic.put(("b", "y" * 900))
    topic.put(("a", 1))
    topic.partition.log.reconfigure(open_settings(topic, max_message_bytes=100))
    topic.clean(cleaner(io_buffer=10))
    assert topic.offsets() == [1, 2]
    topic.check()


def test_many_records_that_all_grow_by_their_horizon_fit(tmp_path: Path) -> None:
    topic = Cleaning(tmp_path / "t-0", segment_bytes=5000)
    topic.put(*((key, None) for key in range(150)))
    before = topic.partition.size
    topic.clean(cleaner(io_buffer=8192))
    assert topic.offsets() == list(range(150))
    assert topic.partition.log.chain.segments.first.size >= before + 150 * 3
    topic.check()


def test_a_group_whose_output_is_too_large_for_one_file_goes_on_in_another(
    topic: Cleaning, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewrite, "LARGEST_LOG", 700)
    expected = filled(topic, keys=40)
    topic.partition.roll()
    count = len(topic.bases)
    topic.partition.log.reconfigure(open_settings(topic, segment_bytes=100_000))
    cleaned = topic.clean(roll=False)
    sizes = [segment.size for segment in topic.partition.log.chain.segments]
    assert cleaned.segments_after == len(sizes) - 1 > 1
    assert cleaned.segments_before == count - 1
    assert max(sizes) <= 700
    assert topic.values() == expected


def test_a_cleaned_file_of_a_preallocated_topic_is_as_long_as_what_it_holds(tmp_path: Path) -> None:
    topic = Cleaning(tmp_path / "t-0", preallocate="true")
    filled(topic)
    topic.clean()
    for segment in topic.partition.log.chain.segments.non_active:
        assert segment.path.stat().st_size == segment.size
    topic.partition.close()


def test_segments_take_the_last_ones_date_and_go_on_rising(topic: Cleaning) -> None:
    filled(topic)
    topic.partition.roll()
    for number, segment in enumerate(topic.partition.log.chain.segments.non_active):
        os.utime(segment.path, (0, 1_000_000 + 10 * number))
    last = topic.partition.log.chain.segments.non_active[-1].path.stat().st_mtime_ns
    topic.partition.log.reconfigure(open_settings(topic, segment_bytes=100_000))
    topic.clean(roll=False)
    assert len(topic.bases) == 2
    for suffix in (".log", ".index", ".timeindex"):
        assert path_of(topic.directory, 0, suffix).stat().st_mtime_ns == last


def test_memory_is_bounded_by_the_buffer_not_by_the_segment(topic: Cleaning) -> None:
    filled(topic)
    chunks: list[int] = []
    topic.clean(cleaner(io_buffer=8192, throttle=chunks.append))
    assert max(chunks) <= 4096


# -- bytes that are not what they should be -------------------------------------------------------------


def _flip(data: bytearray, size: int) -> None:
    data[size + 70] ^= 1


def _longer(data: bytearray, size: int) -> None:
    struct.pack_into(">i", data, size + 8, len(data))


def _huge(data: bytearray, size: int) -> None:
    struct.pack_into(">i", data, size + 8, 2**31 - 20)


def _no_size(data: bytearray, size: int) -> None:
    struct.pack_into(">i", data, size + 8, 0)


def _cut(data: bytearray, size: int) -> None:
    del data[-1]


def _falling(data: bytearray, size: int) -> None:
    struct.pack_into(">q", data, size, 0)


def _bad_record(data: bytearray, size: int) -> None:
    data[size + 61] = 0x7E
    end = size + 12 + struct.unpack_from(">i", data, size + 8)[0]
    import google_crc32c  # noqa: PLC0415 - one use

    struct.pack_into(">I", data, size + 17, google_crc32c.value(bytes(data[size + 21 : end])))


@pytest.mark.parametrize("harm", [_flip, _longer, _huge, _no_size, _cut, _falling, _bad_record])
def test_a_damaged_segment_is_an_error_that_names_the_file_and_nothing_changes(
    tmp_path: Path, harm: Callable[[bytearray, int], None]
) -> None:
    topic = Cleaning(tmp_path / "t-0")
    filled(topic)
    topic.partition.close()
    path = path_of(topic.directory, topic.bases[2], ".log")
    data = bytearray(path.read_bytes())
    harm(data, 12 + struct.unpack_from(">i", data, 8)[0])
    path.write_bytes(data)
    topic.partition = open_partition(topic.directory, Known(clean=True), topic.clock, **topic.settings)
    topic.partition.roll()
    before = topic.files()
    for _ in range(2):
        with pytest.raises(CorruptError, match=rf"{path.name}.* position \d+"):
            topic.clean(roll=False)
        assert topic.files() == before
    topic.partition.log.abandon()


# -- broken off -----------------------------------------------------------------------------------------


def aborting_at(call: int) -> Callable[[], None]:
    """A check that aborts at the so-manieth call."""
    calls = [0]

    def check() -> None:
        calls[0] += 1
        if calls[0] > call:
            raise CleaningAbortedError("enough")

    return check


def test_a_clean_that_is_broken_off_leaves_the_log_as_it_was(topic: Cleaning) -> None:
    expected = filled(topic)
    as_one_group(topic)
    before = topic.files()
    call = 0
    while True:
        try:
            topic.clean(check=aborting_at(call), roll=False)
            break
        except CleaningAbortedError:
            assert topic.files() == before
            call += 1
    assert call > 8
    assert topic.values() == expected
    assert topic.offsets() == list(range(190, 200))


def test_segments_removed_meanwhile_stay_removed(topic: Cleaning) -> None:
    filled(topic)
    topic.partition.roll()
    log = topic.partition.log
    topic.partition.log.reconfigure(open_settings(topic, segment_bytes=100_000))
    first = log.chain.segments.first
    called = [0]

    def check() -> None:
        called[0] += 1
        if called[0] == 12:
            with log.lock:
                log.raise_start_offset(log.chain.segments.non_active[2].base_offset)
                retire(log, log.chain.segments.non_active[:2])

    with pytest.raises(CleaningAbortedError, match=r"segments \[0, \d+\] were removed"):
        topic.clean(check=check, roll=False)
    assert str(first.path).endswith(".log.deleted")
    assert not [name for name in topic.files() if name.endswith((".cleaned", ".swap"))]
    assert topic.offsets()[0] == topic.bases[0] == topic.partition.start_offset
    topic.clean(roll=False)
    assert topic.offsets() == list(range(190, 200))


@pytest.mark.parametrize("call", [1, 4, 9, 13])
def test_what_is_truncated_meanwhile_does_not_come_back(topic: Cleaning, call: int) -> None:
    filled(topic)
    as_one_group(topic)
    called = [0]

    def check() -> None:
        called[0] += 1
        if called[0] == call:
            topic.partition.truncate_to(57)
            topic.put(("anew", 1))
            topic.partition.roll()

    with pytest.raises(CleaningAbortedError):
        topic.clean(check=check, roll=False)
    assert topic.offsets() == [*range(55), 57]
    topic.clean(roll=False)
    assert topic.offsets() == [*range(45, 55), 57]


def test_a_segment_that_was_cut_and_sealed_again_is_not_replaced_by_what_was_read_before(
    topic: Cleaning, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(topic)
    as_one_group(topic)
    log = topic.partition.log
    last = log.chain.segments.non_active[-1]
    replace = cutting.replace

    def cut_and_replace(*arguments: Any) -> None:
        topic.partition.truncate_to(198)
        topic.put(("anew", 1))
        topic.partition.roll()
        assert last in log.chain.segments.non_active
        replace(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(clean, "replace", cut_and_replace)
        with pytest.raises(CleaningAbortedError, match="the log was cut"):
            topic.clean(roll=False)
    assert topic.offsets() == [*range(195), 198]
    assert not [name for name in topic.files() if name.endswith(".cleaned")]


def test_a_log_closed_meanwhile_ends_the_clean(topic: Cleaning) -> None:
    filled(topic)
    topic.partition.roll()
    called = [0]

    def check() -> None:
        called[0] += 1
        if called[0] == 7:
            topic.partition.close()

    with pytest.raises(CleaningAbortedError):
        topic.clean(check=check, roll=False)
    assert not [name for name in topic.files() if name.endswith(".cleaned")]
    topic.partition = open_partition(topic.directory, Known(clean=True), topic.clock, **topic.settings)
    assert len(topic.offsets()) == 200


def test_a_closed_log_is_not_cleaned(topic: Cleaning) -> None:
    topic.partition.close()
    with pytest.raises(ClosedError):
        cleaner().clean(topic.partition.log, 0, 1, NOW, lambda: None)
    topic.partition = open_partition(topic.directory, Known(clean=True), topic.clock, **topic.settings)


def test_an_error_while_writing_leaves_the_log_as_it_was(
    topic: Cleaning, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(topic)
    as_one_group(topic)
    before = topic.files()

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space"):
            topic.clean(roll=False)
    assert topic.files() == before
    topic.clean(roll=False)
    assert topic.offsets() == list(range(190, 200))


def test_a_segment_with_offsets_too_far_up_is_split_and_the_next_clean_goes_through(tmp_path: Path) -> None:
    topic = Cleaning(tmp_path / "t-0")
    far = MAX_INT32 + 10
    topic.put(("a", 0))
    topic.partition.roll()
    topic.partition.close()
    data = b""
    for offset in (0, 5, far, far + 5):
        made = batches.from_records(records([(offset % 5, offset)], NOW), NOW).data
        encoding.stamp(made, 0, offset, 0)
        data += made.tobytes()
    path_of(topic.directory, 0, ".log").write_bytes(data)
    for suffix in (".log", ".index", ".timeindex"):
        shutil.move(path_of(topic.directory, 1, suffix), path_of(topic.directory, far + 6, suffix))
    for snapshot in topic.directory.glob("*.snapshot"):
        snapshot.unlink()
    topic.partition = open_partition(topic.directory, Known(clean=True), topic.clock, **topic.settings)
    with pytest.raises(CleaningAbortedError, match="split"):
        topic.clean(roll=False)
    assert topic.bases == [0, far, far + 6]
    assert topic.offsets() == [0, 5, far, far + 5]
    cleaned = topic.clean(roll=False)
    assert cleaned.end_offset == far + 6
    assert topic.offsets() == [5, far + 5] if far % 5 == 0 else [5, far + 5]


# -- under readers --------------------------------------------------------------------------------------


def test_a_hold_goes_on_reading_what_it_was_taken_on(topic: Cleaning) -> None:
    filled(topic)
    topic.partition.roll()
    reading = topic.partition.records()
    seen = [next(reading)]
    topic.clean(roll=False)
    topic.partition.log.remove_due(NEVER)
    seen += reading
    assert [record.offset for record in seen] == list(range(200))
    assert topic.offsets() == list(range(190, 200))
    topic.partition.log.remove_due(NEVER)
    assert not list(topic.directory.glob("*.deleted"))


def test_snapshots_of_segments_that_are_no_more_go_with_them(topic: Cleaning) -> None:
    for number in range(60):
        topic.produce(1, ("a", f"{number}" * 50))
    topic.partition.roll()
    bases = topic.bases
    topic.partition.log.reconfigure(open_settings(topic, segment_bytes=100_000))
    topic.clean(roll=False)
    assert topic.bases == [0, 60]
    assert [path.name[:20] for path in sorted(topic.directory.glob("*.snapshot"))] == [f"{60:020d}"]
    assert len(list(topic.directory.glob("*.snapshot.deleted"))) == len(bases) - 2
    topic.partition.log.remove_due(NEVER)
    assert topic.reopen(crash=True).log.producers.producers[1].last_sequence == 59


def test_who_promised_segments_to_readers_is_told_before_they_leave(topic: Cleaning) -> None:
    filled(topic)
    topic.partition.roll()
    told: list[int] = []
    log = topic.partition.log

    def before_removal(segments: object) -> None:
        for segment in segments:  # type: ignore[attr-defined]
            assert segment in log.chain.segments
            told.append(segment.base_offset)

    log.register_reader(before_removal)
    bases = topic.bases[:-1]
    topic.clean(roll=False)
    assert list(dict.fromkeys(told)) == bases, "twice: before the lock is taken too"
