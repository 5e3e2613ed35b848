"""Appending: KAFKA_FORMAT 5.1, 5.3, 5.4, KAFKA_CASES I, and of H the lines on the follower and on what an
append reports.

Not here:
* I: snapshots that go with retention or compaction (testRetentionDeletesProducerStateSnapshots,
  testLogStartOffsetMovementDeletesSnapshots, testCompactionDeletesProducerStateSnapshots): later issues.
  Compacted batches are here as a follower gets them.
* I: snapshots missing or beyond the end when a partition is loaded: tests of loading.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest
from partition_bench import NOW, Bench, bases_of, batch, marker, values
from patience import ended
from plain_batches import batch as plain_batch
from plain_batches import body as record_body
from plain_batches import entry, header_of

from topicfs.engine.errors import (
    ClosedError,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    OffsetsOutOfOrderError,
    OutOfOrderSequenceError,
    RecordBatchTooLargeError,
    RecordTooLargeError,
    UnexpectedAppendOffsetError,
)
from topicfs.engine.kernels.scan import SIZE
from topicfs.engine.partition.offsets import Appended
from topicfs.engine.partition.partition import Producer
from topicfs.engine.producer.entry import Origin
from topicfs.engine.record import Record

MAX_INT32 = 2**31 - 1


def fields(appended: Appended) -> tuple[int, int, bool]:
    return appended.first_offset, appended.last_offset, appended.duplicate


# -- what an append gives -------------------------------------------------------------------------------


def test_appends_get_consecutive_offsets_and_report_them(bench: Bench) -> None:
    partition = bench.open()
    assert fields(partition.append_batch(batch(3))) == (0, 2, False)
    assert fields(partition.append(values(2))) == (3, 4, False)
    assert fields(partition.append_lines(b"a\nb\n\nc")) == (5, 8, False)
    assert partition.end_offset == 9
    assert [record.value for record in partition.records(5)] == [b"a", b"b", b"", b"c"]


def test_a_single_record_may_be_given_without_a_list(bench: Bench) -> None:
    partition = bench.open()
    assert fields(partition.append(Record(b"v"))) == (0, 0, False)
    assert next(partition.records()).timestamp == bench.clock()


def test_an_append_reports_the_largest_timestamp_and_the_last_offset_of_its_batch(bench: Bench) -> None:
    partition = bench.open()
    appended = partition.append([Record(b"a", timestamp=NOW + 5), Record(b"b", timestamp=NOW)])
    assert (appended.max_timestamp, appended.offset_of_max_timestamp, appended.append_time) == (
        NOW + 5,
        1,
        -1,
    )


def test_first_offset_is_reported_right_after_a_roll(bench: Bench) -> None:
    partition = bench.open(segment_bytes=200)
    partition.append_batch(batch(5))
    partition.append_batch(batch(5))
    partition.append_batch(batch(5))
    assert len(bases_of(partition)) > 1
    partition.roll()
    assert fields(partition.append_batch(batch(5))) == (15, 19, False)


def test_null_values_and_missing_timestamps_are_appended(bench: Bench) -> None:
    partition = bench.open()
    appended = partition.append([Record(None, None, -1), Record(None, b"k", -1)])
    assert (appended.max_timestamp, appended.offset_of_max_timestamp) == (-1, -1)
    assert [(r.value, r.key, r.timestamp) for r in partition.records()] == [
        (None, None, -1),
        (None, b"k", -1),
    ]


@pytest.mark.parametrize("nothing", [[], ()])
def test_an_append_of_no_records_is_refused(bench: Bench, nothing: list[Record]) -> None:
    partition = bench.open()
    with pytest.raises(ValueError, match="at least one"):
        partition.append(nothing)
    with pytest.raises(ValueError, match="at least one"):
        partition.append_lines(b"")
    with pytest.raises(ValueError, match="at least one"):
        partition.append_raw(b"")
    assert partition.end_offset == 0


def test_records_that_do_not_fit_one_batch_are_appended_as_several(bench: Bench) -> None:
    partition = bench.open(max_message_bytes=400)
    records = [Record(b"x" * 100, timestamp=NOW + at % 7) for at in range(20)]
    appended = partition.append(records)
    assert fields(appended) == (0, 19, False)
    assert appended.max_timestamp == NOW + 6
    assert [record.value for record in partition.records()] == [record.value for record in records]


def test_one_record_that_is_too_large_keeps_all_others_out(bench: Bench) -> None:
    partition = bench.open(max_message_bytes=400)
    with pytest.raises(RecordTooLargeError):
        partition.append([Record(b"x" * 200), Record(b"x" * 200), Record(b"x" * 500)])
    assert partition.end_offset == 0


def test_lines_before_one_that_is_too_large_are_kept(bench: Bench) -> None:
    partition = bench.open(max_message_bytes=400)
    with pytest.raises(RecordTooLargeError):
        partition.append_lines(b"a\nb\n" + b"x" * 500 + b"\nc\n")
    assert [record.value for record in partition.records()] == [b"a", b"b"]


def test_the_leader_stamps_its_epoch_into_every_batch(bench: Bench) -> None:
    partition = bench.open()
    partition.append_batch(batch(leader_epoch=99))
    partition.log.become_leader(72)
    partition.append_batch(batch(leader_epoch=3))
    partition.append(values(1))
    partition.append_lines(b"line")
    epochs = [
        row[4]
        for segment in partition.log.chain.segments
        for _, t in segment.log.batches()
        for row in t.tolist()
    ]
    assert epochs == [0, 72, 72, 72]
    assert partition.log.epochs.entries == ((0, 0), (72, 1))


def test_a_batch_that_was_appended_leaves_the_callers_bytes_alone(bench: Bench) -> None:
    partition = bench.open()
    partition.append_batch(batch(4))
    data = bytearray(batch(4))
    partition.append_batch(data)
    assert data == batch(4)


def test_appends_after_the_close_are_refused(bench: Bench) -> None:
    partition = bench.open()
    partition.append_batch(batch())
    partition.close()
    for append in (
        lambda: partition.append_batch(batch()),
        lambda: partition.append(values(1)),
        lambda: partition.append_raw(batch(base=1)),
        lambda: partition.read(0, 100),
        lambda: list(partition.records()),
    ):
        with pytest.raises(ClosedError):
            append()
    bench.partition = None


def test_two_appenders_at_once_each_get_offsets_of_their_own(bench: Bench) -> None:
    partition = bench.open(segment_bytes=4000, index_interval_bytes=100)
    given: dict[str, list[Appended]] = {"a": [], "b": [], "c": []}

    def run(name: str) -> None:
        for number in range(100):
            given[name].append(partition.append(Record(b"%s%d" % (name.encode(), number), timestamp=NOW)))

    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in given]
    for thread in threads:
        thread.start()
    ended(*threads)
    stored = {record.offset: record.value for record in partition.records()}
    assert sorted(stored) == list(range(300))
    for name, appends in given.items():
        offsets = [appended.first_offset for appended in appends]
        assert offsets == sorted(offsets)
        assert [stored[offset] for offset in offsets] == [b"%s%d" % (name.encode(), at) for at in range(100)]


# -- as a follower --------------------------------------------------------------------------------------


def test_a_follower_takes_offsets_epochs_and_bytes_as_they_are(bench: Bench) -> None:
    partition = bench.open()
    data = batch(2, base=3, leader_epoch=4) + batch(1, base=10, leader_epoch=6)
    assert fields(partition.append_raw(data)) == (3, 10, False)
    assert partition.read(0, 10_000).data == data
    assert [record.offset for record in partition.records()] == [3, 4, 10]
    assert partition.log.epochs.entries == ((4, 3), (6, 10))


@pytest.mark.parametrize("bases", [(5, 3), (5, 5), (0, 1)])
def test_a_follower_refuses_offsets_that_do_not_rise(bench: Bench, bases: tuple[int, int]) -> None:
    partition = bench.open()
    with pytest.raises(OffsetsOutOfOrderError):
        partition.append_raw(b"".join(batch(2, base=base) for base in bases))
    assert partition.end_offset == 0


def test_a_follower_refuses_offsets_below_the_end_and_names_them(bench: Bench) -> None:
    partition = bench.open()
    partition.append_batch(batch(5))
    with pytest.raises(UnexpectedAppendOffsetError) as caught:
        partition.append_raw(batch(2, base=3) + batch(2, base=7))
    assert (caught.value.first_offset, caught.value.last_offset) == (3, 8)
    assert partition.end_offset == 5


def test_an_empty_follower_refuses_offsets_below_its_start(bench: Bench) -> None:
    partition = bench.open()
    partition.restart_at(7)
    with pytest.raises(UnexpectedAppendOffsetError) as caught:
        partition.append_raw(batch(4, base=3))
    assert (caught.value.first_offset, caught.value.last_offset) == (3, 6)
    assert fields(partition.append_raw(batch(1, base=8))) == (8, 8, False)


def test_a_follower_takes_a_batch_that_the_leader_would_find_too_large(bench: Bench) -> None:
    partition = bench.open(max_message_bytes=100)
    with pytest.raises(RecordTooLargeError):
        partition.append_batch(batch(20))
    assert fields(partition.append_raw(batch(20))) == (0, 19, False)


@pytest.mark.parametrize("by", ["leader", "follower"])
def test_an_append_larger_than_a_segment_is_refused(bench: Bench, by: str) -> None:
    partition = bench.open(segment_bytes=200)
    appends = {
        "leader": lambda: partition.append_batch(batch(30)),
        "follower": lambda: partition.append_raw(batch(10) + batch(10, base=10)),
    }
    with pytest.raises(RecordBatchTooLargeError):
        appends[by]()
    assert (partition.end_offset, bases_of(partition)) == (0, [0])


def test_a_follower_learns_epochs_from_batches(bench: Bench) -> None:
    partition = bench.open()
    partition.append_raw(batch(leader_epoch=42))
    assert partition.log.epochs.entries == ((42, 0),)
    partition.append_raw(batch(base=1, leader_epoch=42) + batch(base=2, leader_epoch=43))
    assert partition.log.epochs.entries == ((42, 0), (43, 2))


def test_a_follower_asks_for_no_sequence(bench: Bench) -> None:
    partition = bench.open()
    partition.append_raw(batch(producer=1, sequence=0))
    partition.append_raw(batch(producer=1, sequence=7, base=1))
    assert partition.log.producers.producers[1].last_sequence == 7


def test_a_follower_tracks_every_producer_of_one_append(bench: Bench) -> None:
    partition = bench.open()
    parts = [
        batch(2, producer=1, epoch=0, sequence=0, base=0),
        batch(1, producer=2, epoch=3, sequence=5, base=2),
        batch(1, producer=1, epoch=0, sequence=2, base=3),
        batch(1, base=4),
        batch(1, producer=4, epoch=0, sequence=0, base=5),
    ]
    partition.append_raw(b"".join(parts))
    known = partition.log.producers.producers
    assert {pid: (each.epoch, each.last_sequence) for pid, each in known.items()} == {
        1: (0, 2),
        2: (3, 5),
        4: (0, 0),
    }


def test_duplicates_in_one_follower_append_are_taken_as_they_are(bench: Bench) -> None:
    partition = bench.open()
    repeated = [batch(2, producer=1, sequence=0, base=base) for base in (0, 2, 4)]
    assert fields(partition.append_raw(b"".join(repeated))) == (0, 5, False)
    assert fields(partition.append_raw(batch(2, producer=1, sequence=0, base=6))) == (6, 7, False)


def test_an_empty_compacted_batch_still_tells_the_last_sequence(bench: Bench) -> None:
    partition = bench.open()
    header = header_of(batch(2, producer=1))
    kept = (
        "base_offset",
        "last_offset_delta",
        "max_timestamp",
        "producer_id",
        "producer_epoch",
        "base_sequence",
    )
    partition.append_raw(plain_batch(base_timestamp=-1, count=0, **{name: header[name] for name in kept}))
    assert (partition.end_offset, partition.log.producers.producers[1].last_sequence) == (2, 1)
    assert fields(partition.append_batch(batch(1, producer=1, sequence=2))) == (2, 2, False)


def test_a_compacted_batch_with_holes_tells_the_last_sequence_of_its_header(bench: Bench) -> None:
    partition = bench.open()
    left = entry(record_body(Record(b"v", b"k", NOW), 1, NOW))
    producer = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}
    partition.append_raw(
        plain_batch(left, base_timestamp=NOW, max_timestamp=NOW, count=1, last_offset_delta=4, **producer)
    )
    assert [record.offset for record in partition.records()] == [1]
    assert (partition.end_offset, partition.log.producers.producers[1].last_sequence) == (5, 4)
    assert fields(partition.append_batch(batch(5, producer=1, sequence=0))) == (0, 4, True)


# -- duplicates and sequences ---------------------------------------------------------------------------


def test_a_repeated_tail_batch_gives_the_original_offsets_and_writes_nothing(bench: Bench) -> None:
    partition = bench.open()
    partition.append_batch(batch(2))
    first = partition.append_batch(batch(3, producer=1, timestamp=NOW + 9))
    size = partition.size
    again = partition.append_batch(batch(3, producer=1, timestamp=NOW + 9))
    assert fields(first) == (2, 4, False)
    assert fields(again) == (2, 4, True)
    assert again.max_timestamp == NOW + 9
    assert (partition.end_offset, partition.size) == (5, size)


def test_each_of_the_last_five_batches_is_a_duplicate_and_the_sixth_is_not(bench: Bench) -> None:
    partition = bench.open()
    for sequence in range(0, 12, 2):
        partition.append_batch(batch(2, producer=1, sequence=sequence))
    for sequence in range(2, 12, 2):
        expected = (sequence, sequence + 1, True)
        assert fields(partition.append_batch(batch(2, producer=1, sequence=sequence))) == expected
    with pytest.raises(OutOfOrderSequenceError):
        partition.append_batch(batch(2, producer=1, sequence=0))
    assert partition.end_offset == 12


@pytest.mark.parametrize(("sequence", "count"), [(0, 2), (1, 3), (1, 2), (2, 3), (0, 5)])
def test_a_batch_that_repeats_only_a_part_is_out_of_order(bench: Bench, sequence: int, count: int) -> None:
    partition = bench.open()
    partition.append_batch(batch(4, producer=1))
    with pytest.raises(OutOfOrderSequenceError):
        partition.append_batch(batch(count, producer=1, sequence=sequence))
    assert partition.end_offset == 4


def test_a_jump_in_sequence_is_out_of_order(bench: Bench) -> None:
    partition = bench.open()
    partition.append_batch(batch(1, producer=1))
    with pytest.raises(OutOfOrderSequenceError):
        partition.append_batch(batch(1, producer=1, sequence=2))
    assert fields(partition.append_batch(batch(1, producer=1, sequence=1))) == (1, 1, False)


def test_an_old_producer_epoch_is_refused(bench: Bench) -> None:
    partition = bench.open()
    partition.append_batch(batch(1, producer=1, epoch=5))
    with pytest.raises(InvalidProducerEpochError):
        partition.append_batch(batch(1, producer=1, epoch=4))
    assert partition.end_offset == 1


def test_a_new_epoch_begins_at_sequence_zero(bench: Bench) -> None:
    partition = bench.open()
    partition.append_batch(batch(3, producer=1, epoch=5))
    with pytest.raises(OutOfOrderSequenceError):
        partition.append_batch(batch(1, producer=1, epoch=6, sequence=3))
    assert fields(partition.append_batch(batch(1, producer=1, epoch=6))) == (3, 3, False)


def test_an_unknown_producer_begins_at_any_sequence(bench: Bench) -> None:
    partition = bench.open()
    assert fields(partition.append_batch(batch(1, producer=1, sequence=10))) == (0, 0, False)


def test_sequences_continue_at_zero_behind_the_largest(bench: Bench) -> None:
    partition = bench.open()
    partition.append_batch(batch(2, producer=1, sequence=MAX_INT32 - 2))
    partition.append_batch(batch(3, producer=1, sequence=MAX_INT32))
    assert partition.log.producers.producers[1].last_sequence == 1
    assert fields(partition.append_batch(batch(3, producer=1, sequence=MAX_INT32))) == (2, 4, True)
    assert fields(partition.append_batch(batch(1, producer=1, sequence=2))) == (5, 5, False)


def test_a_producer_known_by_a_marker_only_begins_at_zero(bench: Bench) -> None:
    partition = bench.open()
    partition.append_batch(marker(1, commit=True, epoch=3), Origin.COORDINATOR)
    with pytest.raises(OutOfOrderSequenceError):
        partition.append_batch(batch(1, producer=1, epoch=3, sequence=1))
    assert fields(partition.append_batch(batch(1, producer=1, epoch=3))) == (1, 1, False)


def test_a_write_outside_an_open_transaction_is_refused(bench: Bench) -> None:
    partition = bench.open()
    partition.append_batch(batch(1, producer=1, transactional=True))
    with pytest.raises(InvalidTransactionStateError):
        partition.append_batch(batch(1, producer=1, sequence=1))
    assert partition.end_offset == 1


def test_records_of_a_producer_that_span_batches_continue_their_sequence(bench: Bench) -> None:
    partition = bench.open(max_message_bytes=350)
    records = [Record(b"x" * 100, timestamp=NOW) for _ in range(6)]
    assert fields(partition.append(records, Producer(1, 0, MAX_INT32 - 2))) == (0, 5, False)
    assert fields(partition.append(records, Producer(1, 0, MAX_INT32 - 2))) == (0, 5, True)
    assert partition.log.producers.producers[1].last_sequence == 2


def test_a_duplicate_is_known_after_a_clean_stop_and_after_a_crash(bench: Bench) -> None:
    partition = bench.open()
    partition.append_batch(batch(2, producer=1))
    partition = bench.reopen()
    assert fields(partition.append_batch(batch(2, producer=1))) == (0, 1, True)
    partition = bench.crash()
    assert fields(partition.append_batch(batch(2, producer=1))) == (0, 1, True)


def test_a_refused_batch_may_have_caused_a_roll(bench: Bench) -> None:
    partition = bench.open(segment_bytes=200)
    partition.append_batch(batch(10, producer=1))
    assert fields(partition.append_batch(batch(10, producer=1))) == (0, 9, True)
    assert (bases_of(partition), partition.end_offset) == ([0, 10], 10)


# -- snapshots ------------------------------------------------------------------------------------------


def test_data_without_a_producer_moves_the_snapshot_offset(bench: Bench) -> None:
    partition = bench.open()
    partition.append_batch(batch(1))
    partition.log.producers.take_snapshot(fsync=False)
    assert bench.names(".snapshot") == ["1.snapshot"]


def test_a_roll_takes_a_snapshot_at_the_new_base_and_a_flush_deletes_none(bench: Bench) -> None:
    partition = bench.open()
    for sequence in range(3):
        partition.append_batch(batch(1, producer=1, sequence=sequence))
        partition.roll()
    assert bench.names(".snapshot") == ["1.snapshot", "2.snapshot", "3.snapshot"]
    partition.flush()
    assert bench.names(".snapshot") == ["1.snapshot", "2.snapshot", "3.snapshot"]


def test_the_snapshot_of_a_roll_on_append_holds_the_state_before_the_append(bench: Bench) -> None:
    partition = bench.open(segment_bytes=200)
    partition.append_batch(batch(10, producer=1))
    partition.append_batch(batch(10, producer=2, epoch=5))
    assert bench.names(".snapshot") == ["10.snapshot"]  # what it holds is compared by the check of each test
    assert bases_of(partition) == [0, 10]


def test_rolling_an_empty_active_segment_keeps_the_snapshot_at_its_base(bench: Bench) -> None:
    partition = bench.open()
    partition.append_batch(batch(1, producer=1))
    partition.roll()
    partition.roll()
    assert "1.snapshot" in bench.names(".snapshot")


def test_a_truncation_drops_later_snapshots_and_reloads_an_earlier_one(bench: Bench) -> None:
    partition = bench.open()
    for sequence in range(4):
        partition.append_batch(batch(1, producer=1, sequence=sequence))
        partition.append_batch(batch(1, producer=2, sequence=sequence))
        partition.roll()
    assert bench.names(".snapshot") == ["2.snapshot", "4.snapshot", "6.snapshot", "8.snapshot"]
    bench.truncate(5)
    assert partition.log.producers.latest_snapshot_offset == 5
    assert {pid: e.last_sequence for pid, e in partition.log.producers.producers.items()} == {1: 2, 2: 1}
    assert fields(partition.append_batch(batch(1, producer=2, sequence=2))) == (5, 5, False)


def test_a_truncation_without_snapshots_replays_from_the_start(bench: Bench) -> None:
    partition = bench.open()
    for sequence in range(4):
        partition.append_batch(batch(1, producer=1, sequence=sequence))
    assert bench.names(".snapshot") == []
    bench.truncate(2)
    assert partition.log.producers.producers[1].last_sequence == 1


def test_full_truncation_leaves_no_producer_and_no_snapshot(bench: Bench) -> None:
    partition = bench.open()
    for sequence in range(2):
        partition.append_batch(batch(1, producer=1, sequence=sequence))
        partition.roll()
    partition.restart_at(29)
    assert (bench.names(".snapshot"), len(partition.log.producers)) == ([], 0)
    assert partition.log.producers.map_end_offset == 29
    bench.history = False


def test_idle_producers_are_forgotten(bench: Bench) -> None:
    partition = bench.open(expiration_ms=1000)
    partition.append_batch(batch(1, producer=1, timestamp=bench.clock()))
    bench.clock.advance(999)
    assert partition.log.expire_producers(bench.clock()) == 0
    bench.clock.advance(1)
    assert partition.log.expire_producers(bench.clock()) == 1
    assert fields(partition.append_batch(batch(1, producer=1, sequence=9))) == (1, 1, False)
    bench.history = False


def test_deleting_records_keeps_producers(bench: Bench) -> None:
    partition = bench.open()
    partition.append_batch(batch(2, producer=1))
    partition.roll()
    partition.append_batch(batch(2, producer=2))
    assert partition.delete_records(2) == 2
    assert sorted(partition.log.producers.producers) == [1, 2]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_lines_that_cannot_be_compressed_stay_within_the_largest_batch(bench: Bench, codec: str) -> None:
    limit = 64 * 1024
    partition = bench.open(max_message_bytes=limit, compression_type=codec)
    noise = np.random.default_rng(7).integers(11, 256, 4 * limit, np.uint8)
    noise[499::500] = ord("\n")
    partition.append_lines(noise)
    sizes = [int(size) for _, table in partition.log.chain.active.log.batches() for size in table[:, SIZE]]
    assert len(sizes) > 4
    assert max(sizes) <= limit
