"""What a leader asks of a batch, and what it makes of it: KAFKA_FORMAT 5.2 and 5.3, KAFKA_CASES H.

Not here:
* The lines on followers, on null values and on what an append reports: test_append.
* Message formats 0 and 1, and conversions between formats: the scan refuses them, see test_scan.
* A last offset below the base offset, (−3, 3), is refused by the scan already: CorruptBatchError, as for a
  wrong checksum.
"""

from __future__ import annotations

import cramjam
import numpy as np
import pytest
from partition_bench import CONTROL, NOW, TRANSACTIONAL, Bench, batch, marker, topic_settings, values
from plain_batches import batch as plain_batch
from plain_batches import batch_of, entries, entry, header_of, records_in, sealed
from plain_batches import body as record_body

from topicfs.engine import batch as batches
from topicfs.engine.batch.compression import compress, decompress
from topicfs.engine.errors import (
    CorruptBatchError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
)
from topicfs.engine.kernels.scan import LAST_OFFSET
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.validate import accept
from topicfs.engine.producer.entry import Origin
from topicfs.engine.record import Codec, Record

CODECS = {"gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}
LOG_APPEND_TIME = 0x08
HOUR = 3_600_000


def squeezed(records: list[Record], codec: Codec, level: int | None = None, **fields: int) -> bytes:
    """A compressed batch of records."""
    plain = entries(records, records[0].timestamp or 0)
    stream = plain if codec is Codec.NONE else bytes(compress(codec, np.frombuffer(plain, np.uint8), level))
    times = [record.timestamp or 0 for record in records]
    fields = {"max_timestamp": max(times), "count": len(records)} | fields
    attributes = fields.pop("attributes", 0) | codec
    return plain_batch(stream, base_timestamp=times[0], attributes=attributes, **fields)


def accepted(
    data: bytes, now: int = NOW, origin: Origin = Origin.CLIENT, **settings: object
) -> batches.Batch:
    return accept(np.frombuffer(data, np.uint8), topic_settings(**settings), now, origin)


def plain_records(data: bytes) -> list[Record]:
    """The records of one batch, by the format alone."""
    header = header_of(data)
    stream = decompress(Codec(header["attributes"] & 7), np.frombuffer(data, np.uint8)[61:])
    return list(records_in(bytes(stream), header["base_offset"], header["base_timestamp"]))


# -- the shape of an append -----------------------------------------------------------------------------


@pytest.mark.parametrize("codec", list(Codec))
def test_an_append_of_two_batches_is_refused(bench: Bench, codec: Codec) -> None:
    partition = bench.open()
    with pytest.raises(InvalidRecordError, match="exactly one batch"):
        partition.append_batch(squeezed(values(1), codec) * 2)
    assert partition.end_offset == 0


def test_a_batch_without_records_is_refused(bench: Bench) -> None:
    partition = bench.open()
    with pytest.raises(InvalidRecordError):
        partition.append_batch(plain_batch(b"", count=0))
    with pytest.raises(InvalidRecordError):
        partition.append_batch(b"")
    assert partition.end_offset == 0


@pytest.mark.parametrize(("last", "count"), [(0, 3), (15, 3), (5, 6), (1, 2), (0, 1), (2, -3), (2, 0)])
def test_a_count_that_fits_neither_offsets_nor_records_is_refused(last: int, count: int) -> None:
    with pytest.raises(InvalidRecordError):
        accepted(batch_of(values(3), last_offset_delta=last, count=count))


def test_a_last_offset_below_the_base_is_refused() -> None:
    with pytest.raises((InvalidRecordError, CorruptBatchError)):
        accepted(batch_of(values(3), last_offset_delta=-3))


def test_a_count_that_fits_is_accepted() -> None:
    assert accepted(batch_of(values(3))).row[LAST_OFFSET] == 2


@pytest.mark.parametrize("codec", list(Codec))
def test_bytes_behind_the_last_record_are_refused(codec: Codec) -> None:
    stream = entries(values(2), NOW) + b"\0"
    if codec is not Codec.NONE:
        stream = bytes(compress(codec, np.frombuffer(stream, np.uint8), None))
    with pytest.raises(InvalidRecordError, match="malformed"):
        accepted(plain_batch(stream, base_timestamp=NOW, max_timestamp=NOW, count=2, attributes=codec))


def test_a_malformed_record_is_refused() -> None:
    stream = entry(record_body(Record(b"v", b"k", NOW), 0, NOW, key_length=100))
    with pytest.raises(InvalidRecordError, match="malformed"):
        accepted(plain_batch(stream, base_timestamp=NOW, max_timestamp=NOW))


def test_a_batch_must_begin_at_offset_zero() -> None:
    with pytest.raises(InvalidRecordError, match="base 0"):
        accepted(batch(2, base=1))


def test_a_wrong_checksum_is_refused(bench: Bench) -> None:
    partition = bench.open()
    data = bytearray(batch(2))
    data[-1] ^= 1
    with pytest.raises(CorruptBatchError):
        partition.append_batch(data)
    assert partition.end_offset == 0


def test_a_batch_above_the_limit_is_refused_and_one_at_it_is_not() -> None:
    data = batch(5)
    accepted(data, max_message_bytes=len(data))
    with pytest.raises(RecordTooLargeError):
        accepted(data, max_message_bytes=len(data) - 1)


def test_the_limit_holds_for_the_compressed_size() -> None:
    data = squeezed([Record(b"x" * 10_000, timestamp=NOW)], Codec.ZSTD)
    accepted(data, max_message_bytes=1000)


def test_the_limit_holds_again_for_a_batch_that_was_rebuilt() -> None:
    data = squeezed([Record(b"x" * 10_000, timestamp=NOW)], Codec.ZSTD)
    with pytest.raises(RecordTooLargeError):
        accepted(data, max_message_bytes=1000, compression_type="uncompressed")


@pytest.mark.parametrize("sequence", [-1, -2, -(2**31)])
def test_a_producer_without_a_sequence_is_refused(sequence: int) -> None:
    with pytest.raises(InvalidRecordError):
        accepted(batch(1, producer=1324, epoch=10, sequence=sequence))


# -- control batches ------------------------------------------------------------------------------------


def test_control_batches_of_clients_are_refused(bench: Bench) -> None:
    partition = bench.open()
    with pytest.raises(InvalidRecordError, match="control"):
        partition.append_batch(marker(1, commit=True))
    assert partition.end_offset == 0


def test_a_coordinators_control_batch_stays_uncompressed(bench: Bench) -> None:
    partition = bench.open(compression_type="gzip")
    partition.append_batch(marker(1, commit=True), Origin.COORDINATOR)
    assert partition.read(0, 1000).data == sealed(marker(1, commit=True, leader_epoch=0))


def test_a_coordinator_may_give_a_batch_any_base_offset_and_no_sequence(bench: Bench) -> None:
    partition = bench.open()
    appended = partition.append_batch(batch(2, base=50), Origin.COORDINATOR)
    assert (appended.first_offset, appended.last_offset) == (0, 1)
    assert [record.offset for record in partition.records()] == [0, 1]


def test_a_control_batch_with_a_displaced_record_does_not_become_data(bench: Bench) -> None:
    partition = bench.open()
    key, value = b"\0\0\0\1", bytes(6)
    stream = entry(record_body(Record(value, key, NOW), 5, NOW))
    data = plain_batch(
        stream,
        attributes=TRANSACTIONAL | CONTROL,
        base_timestamp=NOW,
        max_timestamp=NOW,
        producer_id=1,
        producer_epoch=0,
    )
    with pytest.raises((InvalidRecordError, CorruptBatchError)):
        partition.append_batch(data, Origin.COORDINATOR)
    assert partition.end_offset == 0


# -- timestamps -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", list(Codec))
def test_with_log_append_time_every_record_gets_the_time_of_the_append(bench: Bench, codec: Codec) -> None:
    partition = bench.open(message_timestamp_type="LogAppendTime")
    sent = squeezed(values(3, timestamp=5), codec)
    appended = partition.append_batch(sent)
    now = bench.clock()
    assert (appended.max_timestamp, appended.offset_of_max_timestamp, appended.append_time) == (now, 2, now)
    stored = partition.read(0, 10_000).data
    header = header_of(stored)
    assert (header["attributes"], header["max_timestamp"]) == (codec | LOG_APPEND_TIME, now)
    assert header["base_timestamp"] == 5
    assert stored[61:] == sent[61:]
    assert [record.timestamp for record in partition.records()] == [now] * 3


@pytest.mark.parametrize("codec", list(CODECS))
def test_with_log_append_time_a_batch_that_is_recompressed_gets_it_too(bench: Bench, codec: str) -> None:
    partition = bench.open(message_timestamp_type="LogAppendTime", compression_type=codec)
    appended = partition.append_batch(batch(3, timestamp=5))
    now = bench.clock()
    assert (appended.max_timestamp, appended.offset_of_max_timestamp, appended.append_time) == (now, 2, now)
    header = header_of(partition.read(0, 10_000).data)
    assert (header["attributes"], header["max_timestamp"]) == (CODECS[codec] | LOG_APPEND_TIME, now)
    assert [record.timestamp for record in partition.records()] == [now] * 3


def test_with_log_append_time_records_and_lines_get_it_too(bench: Bench) -> None:
    partition = bench.open(message_timestamp_type="LogAppendTime")
    partition.append(Record(b"r", timestamp=5))
    partition.append_lines(b"line")
    assert [record.timestamp for record in partition.records()] == [bench.clock()] * 2


@pytest.mark.parametrize("codec", list(Codec))
def test_with_create_time_the_largest_timestamp_is_set_right(bench: Bench, codec: Codec) -> None:
    partition = bench.open()
    records = [Record(b"%d" % at, timestamp=NOW + time) for at, time in enumerate((0, 9, 4))]
    sent = squeezed(records, codec, max_timestamp=NOW + 5000)
    appended = partition.append_batch(sent)
    assert (appended.max_timestamp, appended.offset_of_max_timestamp, appended.append_time) == (
        NOW + 9,
        2,
        -1,
    )
    stored = partition.read(0, 10_000).data
    assert header_of(stored)["max_timestamp"] == NOW + 9
    assert stored[61:] == sent[61:]


@pytest.mark.parametrize("codec", list(Codec))
def test_records_without_timestamps_stay_so(bench: Bench, codec: Codec) -> None:
    partition = bench.open()
    appended = partition.append_batch(squeezed(values(2, timestamp=-1), codec))
    assert (appended.max_timestamp, appended.offset_of_max_timestamp) == (-1, -1)
    assert [record.timestamp for record in partition.records()] == [-1, -1]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("off", [-1001, 2001])
def test_a_timestamp_outside_the_limits_is_refused_with_its_index(codec: Codec, off: int) -> None:
    data = squeezed([*values(1), Record(b"late", timestamp=NOW + off), *values(1)], codec)
    limits = {"message_timestamp_before_max_ms": 1000, "message_timestamp_after_max_ms": 2000}
    with pytest.raises(InvalidTimestampError) as caught:
        accepted(data, **limits)
    assert caught.value.indexes == (1,)


@pytest.mark.parametrize("off", [-1000, 2000])
def test_a_timestamp_at_the_limit_is_accepted(off: int) -> None:
    limits = {"message_timestamp_before_max_ms": 1000, "message_timestamp_after_max_ms": 2000}
    accepted(batch([Record(b"v", timestamp=NOW + off)]), **limits)


def test_the_limits_hold_for_records_and_for_the_default_hour(bench: Bench) -> None:
    partition = bench.open()
    now = bench.clock()
    partition.append(Record(b"v", timestamp=now + HOUR))
    with pytest.raises(InvalidTimestampError) as caught:
        partition.append([Record(b"v", timestamp=now), Record(b"v", timestamp=now + HOUR + 1)])
    assert (caught.value.indexes, partition.end_offset) == ((1,), 1)


def test_the_limits_do_not_hold_for_log_append_time() -> None:
    data = batch([Record(b"v", timestamp=NOW + 10 * HOUR), Record(b"v", timestamp=0)])
    accepted(data, message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms=1)


def test_a_record_without_a_timestamp_is_within_every_limit() -> None:
    data = batch([Record(b"v", timestamp=-1)])
    accepted(data, message_timestamp_before_max_ms=0, message_timestamp_after_max_ms=0)


@pytest.mark.parametrize("timestamp", [-2, -(2**62)])
def test_other_negative_timestamps_are_refused(bench: Bench, timestamp: int) -> None:
    with pytest.raises(InvalidTimestampError):
        accepted(batch([Record(b"v", timestamp=NOW), Record(b"v", timestamp=timestamp)]))
    partition = bench.open()
    with pytest.raises(InvalidTimestampError):
        partition.append([Record(b"v"), Record(b"v", timestamp=timestamp)])
    assert partition.end_offset == 0


@pytest.mark.parametrize(
    ("settings", "timestamp"),
    [
        ({"message_timestamp_type": "LogAppendTime"}, NOW),
        ({"message_timestamp_type": "LogAppendTime"}, -1),
        ({}, -1),
    ],
)
def test_a_producer_must_not_claim_log_append_time(settings: dict[str, object], timestamp: int) -> None:
    with pytest.raises(InvalidTimestampError):
        accepted(batch_of([Record(b"v", timestamp=timestamp)], attributes=LOG_APPEND_TIME), **settings)


def test_a_claimed_append_time_within_the_limits_becomes_the_time_of_each_record(bench: Bench) -> None:
    partition = bench.open()
    sent = batch_of(values(2, timestamp=7), attributes=LOG_APPEND_TIME, max_timestamp=NOW)
    partition.append_batch(sent)
    header = header_of(partition.read(0, 1000).data)
    assert (header["attributes"], header["max_timestamp"]) == (0, NOW)
    assert [record.timestamp for record in partition.records()] == [NOW, NOW]


@pytest.mark.parametrize("off", [-1001, 2001])
def test_a_claimed_append_time_outside_the_limits_is_refused(off: int) -> None:
    data = batch_of(values(2), attributes=LOG_APPEND_TIME, max_timestamp=NOW + off)
    limits = {"message_timestamp_before_max_ms": 1000, "message_timestamp_after_max_ms": 2000}
    with pytest.raises(InvalidTimestampError):
        accepted(data, **limits)


# -- keys -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_compacted_topic_refuses_records_without_a_key_and_names_them(codec: Codec, policy: str) -> None:
    keyed = Record(b"v", b"k", NOW)
    bare = Record(b"v", None, NOW)
    with pytest.raises(InvalidRecordError) as caught:
        accepted(squeezed([bare, keyed, bare, Record(b"v", b"", NOW)], codec), cleanup_policy=policy)
    assert caught.value.indexes == (0, 2)
    assert not isinstance(caught.value, InvalidTimestampError)


def test_a_compacted_topic_refuses_lines_and_records_without_a_key(bench: Bench) -> None:
    partition = bench.open(cleanup_policy="compact")
    for append in (
        lambda: partition.append_lines(b"a\nb"),
        lambda: partition.append([Record(b"v", b"k"), Record(b"v")]),
    ):
        with pytest.raises(InvalidRecordError):
            append()
    partition.append([Record(b"v", b"k"), Record(None, b"k")])
    assert partition.end_offset == 2


def test_wrong_keys_and_wrong_timestamps_are_told_together_as_a_timestamp_error() -> None:
    records = [Record(b"v", None, NOW), Record(b"v", b"k", NOW + 2 * HOUR), Record(b"v", b"k", NOW)]
    with pytest.raises(InvalidTimestampError) as caught:
        accepted(batch(records), cleanup_policy="compact")
    assert caught.value.indexes == (0, 1)


def test_the_message_tells_of_three_records_at_most() -> None:
    with pytest.raises(InvalidRecordError, match="5 of 5 records") as caught:
        accepted(batch(5), cleanup_policy="compact")
    assert caught.value.indexes == (0, 1, 2, 3, 4)
    message = str(caught.value)
    assert "record 2" in message
    assert "record 3" not in message


# -- offsets and codecs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", ["producer", "zstd", "uncompressed"])
@pytest.mark.parametrize("codec", list(Codec))
def test_offsets_follow_one_another_from_the_end_on(bench: Bench, codec: Codec, kept: str) -> None:
    partition = bench.open(compression_type=kept)
    partition.append_batch(batch(3))
    appended = partition.append_batch(squeezed(values(4), codec))
    assert (appended.first_offset, appended.last_offset) == (3, 6)
    assert [record.offset for record in partition.records()] == list(range(7))
    assert [record.value for record in partition.records(3)] == [b"v0", b"v1", b"v2", b"v3"]


def test_offsets_with_holes_are_given_anew(bench: Bench) -> None:
    partition = bench.open()
    parts = [entry(record_body(Record(b"%d" % place, None, NOW), place, NOW)) for place in (0, 2, 1)]
    partition.append_batch(plain_batch(b"".join(parts), base_timestamp=NOW, max_timestamp=NOW, count=3))
    assert [(record.offset, record.value) for record in partition.records()] == [
        (0, b"0"),
        (1, b"2"),
        (2, b"1"),
    ]


@pytest.mark.parametrize("codec", list(Codec))
def test_the_producers_codec_and_bytes_are_kept(bench: Bench, codec: Codec) -> None:
    partition = bench.open()
    sent = squeezed(values(9), codec)
    partition.append_batch(sent)
    stored = bytearray(partition.read(0, 10_000).data)
    stored[12:16] = sent[12:16]
    assert stored == sent


@pytest.mark.parametrize(("codec", "levels"), [("gzip", (1, 9)), ("lz4", (1, 12)), ("zstd", (1, 15))])
def test_another_level_of_the_same_codec_keeps_the_bytes(codec: str, levels: tuple[int, int]) -> None:
    records = [Record(bytes(range(at % 50)) * 20, timestamp=NOW) for at in range(50)]
    sent = squeezed(records, CODECS[codec], levels[0])
    settings = {"compression_type": codec, f"compression_{codec}_level": levels[1]}
    assert accepted(sent, **settings).data.tobytes() == sent


@pytest.mark.parametrize("target", ["uncompressed", *CODECS])
@pytest.mark.parametrize("codec", list(Codec))
def test_another_codec_is_what_the_topic_asks_for(codec: Codec, target: str) -> None:
    wanted = CODECS.get(target, Codec.NONE)
    records = [Record(b"v%d" % at, b"k", NOW + at, (("h", b"x"), ("n", None))) for at in range(20)]
    producer = {"producer_id": 7, "producer_epoch": 3, "base_sequence": 11, "attributes": TRANSACTIONAL}
    sent = squeezed(records, codec, **producer)
    stored = accepted(sent, compression_type=target).data.tobytes()
    header, before = header_of(stored), header_of(sent)
    assert header["attributes"] == wanted | TRANSACTIONAL
    for name in (
        "producer_id",
        "producer_epoch",
        "base_sequence",
        "count",
        "last_offset_delta",
        "max_timestamp",
    ):
        assert header[name] == before[name]
    assert plain_records(stored) == plain_records(sent)
    assert (stored == sent) == (wanted == codec)


def test_a_gzip_batch_can_be_read_by_others(bench: Bench) -> None:
    partition: Partition = bench.open(compression_type="gzip")
    partition.append_batch(batch(5))
    stored = partition.read(0, 10_000).data
    assert bytes(cramjam.gzip.decompress(stored[61:])) == entries(values(5), NOW)


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises((InvalidRecordError, CorruptBatchError)):
        accepted(batch_of(values(1), attributes=5))
