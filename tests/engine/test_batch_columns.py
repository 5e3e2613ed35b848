"""Reading batches: KAFKA_FORMAT 0.9, 2.1, 2.2, 2.6, and of KAFKA_CASES A testBasicSerde,
testBasicSerdeInvalidHeaderCountTooHigh/TooLow, testInvalidKeySize … testInvalidHeaderValue, testInvalidNumHeaders,
testNullHeaderKey, testUnderflowReadingTimestamp, testInvalidVarlong, testInvalidSizeOfBodyInBytes,
testInvalidRecordCountTooMany/TooLittle*, testAppendAtInvalidOffset (by the reader), testSetLogAppendTime,
testStreamingIteratorConsistency, testSkipKeyValueIteratorCorrectness (the skipping reader is `inspect`),
testBaseTimestampToDeleteHorizonConversion, testRecordTimestampsWithDeleteHorizon, testSearchForTimestamp
(the leader epoch of what is found is the segment's to give).
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_batches import (
    CODECS,
    NOW,
    RECORDS,
    RECORDS_A,
    RECORDS_B,
    VECTOR_A,
    VECTOR_B,
    VECTOR_C,
    VECTOR_D,
    array,
    batch,
    batch_of,
    body,
    entries,
    entry,
    varint,
)

from topicfs.engine import batch as batches
from topicfs.engine.batch.columns import Columns, Inspection, codec_of, unordered_columns
from topicfs.engine.batch.compression import compress
from topicfs.engine.errors import CorruptBatchError
from topicfs.engine.format.batch_header import CONTROL, DELETE_HORIZON, LOG_APPEND_TIME, TRANSACTIONAL
from topicfs.engine.kernels import decode as decoding
from topicfs.engine.kernels.decode import NO_APPEND_TIME
from topicfs.engine.kernels.scan import ATTRIBUTES, BASE_OFFSET, BASE_TIMESTAMP, COUNT, MAX_TIMESTAMP
from topicfs.engine.record import Codec, Record

Read = Callable[[bytes], Any]


def records_of(data: bytes) -> list[Record]:
    source = array(data)
    return [record for part in batches.columns(source, batches.scan(source)) for record in part.records()]


def placed(records: list[Record] | tuple[Record, ...], base: int = 0) -> list[Record]:
    """The records with the offsets that they have in a batch at `base`."""
    return [Record(r.value, r.key, r.timestamp, r.headers, base + i) for i, r in enumerate(records)]


def packed(codec: Codec, stream: bytes, **fields: int) -> bytes:
    """A batch of these record bytes, compressed."""
    attributes = fields.pop("attributes", 0) | codec
    return batch(compress(codec, array(stream)).tobytes(), attributes=attributes, **fields)


def read_columns(data: bytes) -> list[Record]:
    return records_of(data)


def read_unordered(data: bytes) -> list[Record]:
    source = array(data)
    return list(unordered_columns(source, batches.scan(source)[0]).records())


def read_inspect(data: bytes) -> Inspection:
    source = array(data)
    return batches.inspect(source, batches.scan(source)[0])


READERS = pytest.mark.parametrize("read", [read_columns, read_unordered, read_inspect])
EACH_CODEC = pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name.lower())


# -- what is read -----------------------------------------------------------------------------------


def test_vector_a_is_read() -> None:
    assert records_of(VECTOR_A) == placed(RECORDS_A)


def test_vector_b_is_read() -> None:
    assert records_of(VECTOR_B) == placed(RECORDS_B, 5)


@pytest.mark.parametrize("vector", [VECTOR_C, VECTOR_D])
def test_markers_and_empty_batches_have_no_records_for_readers(vector: bytes) -> None:
    assert records_of(vector) == []


def test_a_run_of_plain_batches_is_one_part_without_the_markers() -> None:
    source = array(VECTOR_A + VECTOR_C + VECTOR_D + VECTOR_B)
    (part,) = batches.columns(source, batches.scan(source))
    assert list(part.records()) == placed(RECORDS_A) + placed(RECORDS_B, 5)


@given(st.lists(st.tuples(RECORDS, CODECS, st.booleans()), max_size=5))
def test_records_of_every_batch_are_read_in_order(parts: list[tuple[list[Record], Codec, bool]]) -> None:
    data, expected, base = b"", [], 0
    for records, codec, marked in parts:
        times = [record.timestamp or 0 for record in records]
        data += packed(
            codec, entries(records, times[0]), base_offset=base, base_timestamp=times[0],
            max_timestamp=max(times), count=len(records),
        )  # fmt: skip
        expected += placed(records, base)
        base += len(records)
        if marked:
            data += VECTOR_C
    assert records_of(data) == expected


def test_a_table_may_name_places_from_an_origin() -> None:
    source = array(VECTOR_A + VECTOR_B)
    table = batches.scan(source)
    table[:, 0] += 1_000_000
    (part,) = batches.columns(source, table, 1_000_000)
    assert list(part.records()) == placed(RECORDS_A) + placed(RECORDS_B, 5)
    assert batches.inspect(source, table[1], 1_000_000).null_keys == 1
    assert batches.first_record_at_or_after(source, table[1], 0, 6, 1_000_000) == (NOW + 5, 6)


@READERS
@EACH_CODEC
def test_a_good_batch_is_accepted_by_every_reader(codec: Codec, read: Read) -> None:
    read(packed(codec, entries(RECORDS_B, NOW), base_timestamp=NOW, count=3))


def test_null_and_empty_differ() -> None:
    records = [
        Record(None, None, 0), Record(b"", b"", 0, (("", None), ("", b""))), Record(b"", None, 0), Record(None, b"", 0),
    ]  # fmt: skip
    assert records_of(batch_of(records)) == placed(records)


@pytest.mark.parametrize("length", [-2, -64, -(2**31)])
def test_any_negative_length_of_key_value_or_header_value_is_null(length: int) -> None:
    record = Record(None, None, 0, (("h", None),))
    content = body(record, key_length=length, value_length=length, header_value_length=length)
    assert records_of(batch(entry(content))) == placed([record])


def test_a_header_count_that_is_written_longer_than_needed_is_read() -> None:
    assert records_of(batch(entry(body(RECORDS_A[0])[:-1] + b"\x80\x00"))) == [
        Record(b"v", b"k", 1000, (), 0)
    ]


def test_the_attributes_of_a_record_are_passed_over() -> None:
    assert records_of(batch(entry(b"\xff" + body(RECORDS_A[0])[1:]))) == placed(RECORDS_A)


# -- timestamps -------------------------------------------------------------------------------------


@EACH_CODEC
@pytest.mark.parametrize("largest", [NOW + 99, 0, -1])
def test_append_time_is_every_records_timestamp(codec: Codec, largest: int) -> None:
    data = packed(
        codec, entries(RECORDS_B, NOW), attributes=LOG_APPEND_TIME, base_timestamp=NOW,
        max_timestamp=largest, count=3,
    )  # fmt: skip
    assert [record.timestamp for record in records_of(data)] == [largest] * 3
    assert [record.timestamp for record in read_unordered(data)] == [largest] * 3


@EACH_CODEC
def test_with_a_delete_horizon_timestamps_stay_what_they_were(codec: Codec) -> None:
    horizon = NOW + 86_400_000
    data = packed(
        codec, entries(RECORDS_B, horizon), attributes=DELETE_HORIZON, base_timestamp=horizon,
        max_timestamp=NOW + 5, count=3,
    )  # fmt: skip
    assert records_of(data) == placed(RECORDS_B)
    row = batches.scan(array(data))[0]
    assert row[ATTRIBUTES] & DELETE_HORIZON
    assert row[BASE_TIMESTAMP] == horizon


def test_timestamps_far_below_the_base_are_read() -> None:
    records = [Record(b"", None, time) for time in (2**63 - 1, 0, -1, 2**62)]
    assert [record.timestamp for record in records_of(batch_of(records))] == [2**63 - 1, 0, -1, 2**62]


# -- offsets ----------------------------------------------------------------------------------------


def at_places(*places: int, last: int, count: int | None = None) -> bytes:
    stream = b"".join(entry(body(Record(b"v", None, 0), place)) for place in places)
    return batch(
        stream, base_offset=100, last_offset_delta=last, count=len(places) if count is None else count
    )


def test_offsets_may_have_holes_and_end_below_the_last() -> None:
    assert [record.offset for record in records_of(at_places(2, 3, 7, last=9))] == [102, 103, 107]


@pytest.mark.parametrize("places", [(1, 0), (0, 0), (-1, 0), (0, 3), (0, 2**31 - 1), (-(2**31), 1)])
def test_offsets_that_do_not_rise_within_the_batch_are_refused(places: tuple[int, ...]) -> None:
    with pytest.raises(CorruptBatchError, match="offsets do not rise within the batch's range"):
        records_of(at_places(*places, last=2))
    assert [record.offset for record in read_unordered(at_places(*places, last=2))] == [
        100 + place for place in places
    ]


# -- records that break the format ------------------------------------------------------------------


ONE = Record(b"value", b"key", 1000, (("name", b"header"),))
BROKEN = {
    "key longer than its record": (body(ONE, key_length=1000), "key's length"),
    "key one byte too long": (body(Record(None, b"k", 0), key_length=4), "key's length"),
    "key of the largest length": (body(ONE, key_length=2**31 - 1), "key's length"),
    "value longer than its record": (body(ONE, value_length=1000), "value's length"),
    "value of the largest length": (body(ONE, value_length=2**31 - 1), "value's length"),
    "header name longer than its record": (body(ONE, name_length=1000), "header count or length"),
    "header name of the largest length": (body(ONE, name_length=2**31 - 1), "header count or length"),
    "null header name": (body(ONE, name_length=-1), "header count or length"),
    "header value longer than its record": (body(ONE, header_value_length=1000), "header count or length"),
    "header value of the largest length": (
        body(ONE, header_value_length=2**31 - 1),
        "header count or length",
    ),
    "negative header count": (body(ONE, header_count=-1), "header count or length"),
    "header count beyond the bytes": (body(ONE, header_count=2**31 - 1), "header count or length"),
    "header count too high": (body(ONE, header_count=2), "header count or length"),
    "header count too low": (body(ONE, header_count=0), "differs from its fields"),
    "bytes behind the headers": (body(ONE) + b"\0", "differs from its fields"),
    "no header count": (body(RECORDS_A[0])[:-1], "header count or length"),
    "no body": (b"", "number is cut short"),
    "attributes alone": (b"\0", "number is cut short"),
    "timestamp cut short": (b"\0\x80", "number is cut short"),
    "timestamp of 11 bytes": (b"\0" + b"\x80" * 10 + b"\0" + b"\0\1\1\0", "number is cut short or too long"),
    "offset cut short": (b"\0\0\x80", "number is cut short"),
    "offset of 6 bytes": (b"\0\0" + b"\x80" * 5 + b"\0" + b"\1\1\0", "number is cut short or too long"),
    "key length missing": (b"\0\0\0", "number is cut short"),
    "value length missing": (b"\0\0\0\1", "number is cut short"),
    "value length cut short": (b"\0\0\0\1\x80", "number is cut short"),
}


@READERS
@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_record_that_breaks_the_format_is_refused(case: str, codec: Codec, read: Read) -> None:
    content, reason = BROKEN[case]
    # A good record before it, and one behind: lengths that reach into the neighbour are wrong as well.
    good = [entry(body(Record(b"some bytes", b"k", 0), place)) for place in (0, 2)]
    with pytest.raises(CorruptBatchError, match=f"record 1 of 3, byte [0-9]+: .*{reason}"):
        read(packed(codec, good[0] + entry(content) + good[1], count=3))


@READERS
@pytest.mark.parametrize("length", [-1, -(2**31), 1000, 2**31 - 1])
def test_a_records_length_beyond_the_batch_is_refused(length: int, read: Read) -> None:
    with pytest.raises(CorruptBatchError, match="record's length goes beyond the batch"):
        read(batch(entry(body(ONE), length)))


@READERS
@pytest.mark.parametrize("error", [-2, -1, 1, 2])
def test_a_records_length_that_differs_from_its_fields_is_refused(error: int, read: Read) -> None:
    good = body(ONE)
    with pytest.raises(CorruptBatchError):
        read(batch(entry(good, len(good) + error) + entry(body(ONE, 1)), count=2))


@given(RECORDS, CODECS, st.data())
def test_a_stream_that_is_cut_anywhere_is_refused(records: list[Record], codec: Codec, draw: Any) -> None:
    stream = entries(records, 0)
    cut = draw.draw(st.integers(0, len(stream) - 1))
    data = packed(codec, stream[:cut], count=len(records))
    for read in (read_columns, read_unordered, read_inspect):
        with pytest.raises(CorruptBatchError):
            read(data)


# -- counts -----------------------------------------------------------------------------------------


@READERS
@EACH_CODEC
@pytest.mark.parametrize(
    ("count", "reason"),
    [
        (4, "fewer records than the header declares"),
        (2, "bytes remain behind the declared number"),
        (0, "bytes remain behind the declared number"),
        (-1, "declares -1 records"),
        (-(2**31), "declares -2147483648 records"),
        (2**31 - 1, "declares 2147483647 records: too many for its bytes"),
    ],
)
def test_another_count_than_there_are_records_is_refused(
    codec: Codec, count: int, reason: str, read: Read
) -> None:
    # Values of some bytes, so that a count of 4 is not refused for want of bytes at once.
    stream = entries([Record(b"some bytes", None, 0)] * 3, 0)
    with pytest.raises(CorruptBatchError, match=reason):
        read(packed(codec, stream, last_offset_delta=2**31 - 1, count=count))


@READERS
def test_more_records_than_offsets_are_refused(read: Read) -> None:
    with pytest.raises(CorruptBatchError, match="declares 3 records: too many for its bytes, or for offsets"):
        read(at_places(0, 1, 2, last=1))


@READERS
def test_bytes_in_an_empty_batch_are_refused(read: Read) -> None:
    with pytest.raises(CorruptBatchError, match="bytes remain"):
        read(batch(b"\0", count=0))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_small_batch_that_declares_many_records_takes_little_memory(codec: Codec) -> None:
    data = packed(codec, entries(RECORDS_A, 0), last_offset_delta=2**31 - 1, count=2**31 - 1)
    for read in (read_columns, read_unordered, read_inspect):
        read_inspect(VECTOR_A)
        tracemalloc.start()
        try:
            with pytest.raises(CorruptBatchError):
                read(data)
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_a_codec_that_does_not_exist_is_refused(codec: int) -> None:
    data = batch(entries(RECORDS_A, 0), attributes=codec)
    for read in (read_columns, read_unordered, read_inspect):
        with pytest.raises(CorruptBatchError, match=f"has codec {codec}, expected 0 to 4"):
            read(data)
    with pytest.raises(CorruptBatchError, match=f"has codec {codec}"):
        codec_of(batches.scan(array(data))[0])


@EACH_CODEC
def test_a_damaged_stream_is_refused_by_every_reader(codec: Codec) -> None:
    good = packed(codec, entries(RECORDS_B, NOW), count=3)
    data = batch(good[61:-3], attributes=codec, count=3)
    for read in (read_columns, read_unordered, read_inspect):
        with pytest.raises(CorruptBatchError):
            read(data)


# -- inspection -------------------------------------------------------------------------------------


@given(RECORDS, CODECS)
def test_an_inspection_tells_what_the_records_tell(records: list[Record], codec: Codec) -> None:
    times = [record.timestamp or 0 for record in records]
    data = packed(codec, entries(records, times[0]), base_timestamp=times[0], count=len(records))
    nulls = sum(record.key is None for record in records)
    assert read_inspect(data) == Inspection(min(times), max(times), nulls, True)


def test_holes_are_not_sequential() -> None:
    assert read_inspect(at_places(0, 1, 2, last=2)).sequential
    assert not read_inspect(at_places(1, 2, last=2)).sequential
    assert not read_inspect(at_places(0, 2, last=2)).sequential


def test_an_empty_batch_has_no_timestamps() -> None:
    assert read_inspect(VECTOR_D) == Inspection(-1, -1, 0, True)


def test_a_marker_can_be_inspected() -> None:
    assert read_inspect(VECTOR_C) == Inspection(NOW + 10, NOW + 10, 0, True)


# -- parts of columns -------------------------------------------------------------------------------


def test_columns_between_two_offsets() -> None:
    source = array(at_places(2, 3, 7, last=9))
    (part,) = batches.columns(source, batches.scan(source))
    assert part.between(0, 1000) is part
    for start, end in [(0, 103), (103, 107), (103, 108), (104, 107), (108, 200), (0, 0), (107, 103)]:
        expected = [offset for offset in (102, 103, 107) if start <= offset < end]
        assert part.between(start, end).offsets.tolist() == expected


def test_rows_of_columns_are_their_records() -> None:
    source = array(VECTOR_B)
    (part,) = batches.columns(source, batches.scan(source))
    assert list(part.rows(1, 3).records()) == placed(RECORDS_B, 5)[1:]
    assert len(part.rows(1, 1)) == 0
    assert len(part) == 3


# -- search by timestamp ----------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.SNAPPY])
@pytest.mark.parametrize(
    ("timestamp", "offset", "expected"),
    [
        (0, 0, (NOW, 5)),
        (NOW, 0, (NOW, 5)),
        (NOW + 1, 0, (NOW + 5, 6)),
        (NOW + 5, 0, (NOW + 5, 6)),
        (NOW + 6, 0, None),
        (0, 7, (NOW - 3, 7)),
        (NOW, 7, None),
        (0, 8, None),
    ],
)
def test_the_first_record_at_or_after(
    codec: Codec, timestamp: int, offset: int, expected: tuple[int, int] | None
) -> None:
    data = array(packed(codec, entries(RECORDS_B, NOW), base_offset=5, base_timestamp=NOW, count=3))
    row = batches.scan(data)[0]
    assert batches.first_record_at_or_after(data, row, timestamp, offset) == expected


def test_no_record_of_an_empty_batch_is_found_and_a_marker_counts_as_one() -> None:
    """Kafka too leads to a marker: behind it may be records with earlier times."""
    for vector in (VECTOR_C, VECTOR_D):
        row = batches.scan(array(vector))[0]
        found = batches.first_record_at_or_after(array(vector), row, 0, 0)
        expected = (int(row[MAX_TIMESTAMP]), int(row[BASE_OFFSET])) if row[COUNT] else None
        assert found == expected
        assert batches.first_record_at_or_after(array(vector), row, int(row[MAX_TIMESTAMP]) + 1, 0) is None
    assert {int(batches.scan(array(vector))[0, COUNT]) for vector in (VECTOR_C, VECTOR_D)} == {0, 1}


# -- kernels refuse what lies outside ---------------------------------------------------------------


def decode(start: int, end: int, count: int, row: int = 0, rows: int = 4) -> int:
    found = Columns.empty(array(VECTOR_B), rows)
    status, *_ = decoding.decode(
        found.buffer, start, end, count, 0, -1, 0, NO_APPEND_TIME, *found.arrays, row
    )
    return int(status)


def test_records_of_a_range_are_decoded() -> None:
    assert decode(61, 97, 3) == decoding.GOOD


@pytest.mark.parametrize(
    ("start", "end", "count", "row"),
    [
        (-1, 97, 3, 0),
        (-(2**63), 97, 3, 0),
        (61, 98, 3, 0),
        (61, 2**63 - 1, 3, 0),
        (97, 61, 1, 0),
        (97, 61, 0, 0),
        (61, 97, 5, 0),
        (61, 97, 3, 2),
        (61, 97, 3, -1),
        (61, 97, 2**63 - 1, 0),
        (61, 97, 2**63 - 1, 2**63 - 1),
        (61, 97, -1, 0),
        (61, 61, -1, 0),
    ],
)
def test_a_range_or_rows_outside_are_not_decoded(start: int, end: int, count: int, row: int) -> None:
    assert decode(start, end, count, row) != decoding.GOOD


@pytest.mark.parametrize(("start", "end"), [(-1, 97), (0, 98), (97, 61), (0, 2**63 - 1)])
def test_a_range_outside_is_not_inspected(start: int, end: int) -> None:
    assert decoding.inspect(array(VECTOR_B), start, end, 3, 0)[0] != decoding.GOOD


HEADERS = b"\x04" + b"\x02h\x02x" + b"\x02n\x01"


@pytest.mark.parametrize(
    ("data", "start", "end", "room", "expected"),
    [
        (HEADERS, 0, 8, 8, 2),
        (b"\0", 0, 1, 0, 0),
        (HEADERS, 0, 8, 7, -1),
        (HEADERS, 0, 7, 8, -1),
        (HEADERS + b"\0", 0, 9, 8, -1),
        (HEADERS, -1, 8, 8, -1),
        (HEADERS, 0, 9, 8, -1),
        (HEADERS, 8, 8, 8, -1),
        (HEADERS, 8, 0, 8, -1),
        (b"\x01", 0, 1, 8, -1),
        (b"\x02\x01\x01", 0, 3, 8, -1),
        (b"\x02\x7e\x01", 0, 3, 8, -1),
        (b"\x02\x00\x7e", 0, 3, 8, -1),
        (varint(2**31 - 1) + bytes(20), 0, 25, 100, -1),
    ],
)
def test_headers_outside_or_malformed_are_not_decoded(
    data: bytes, start: int, end: int, room: int, expected: int
) -> None:
    spans = np.full(room, -7, np.int32)
    assert decoding.decode_headers(array(data), start, end, spans) == expected
    if expected == 2:
        assert spans.tolist() == [2, 1, 4, 1, 6, 1, 8, -1]


def test_headers_that_do_not_fit_their_span_are_refused_when_they_are_asked_for() -> None:
    one = np.zeros(1, np.int64)
    spans = [np.array([n], np.int32) for n in (0, -1, 0, -1, 0, 3)]
    with pytest.raises(CorruptBatchError, match="malformed record headers of 3 bytes at byte 0"):
        list(Columns(array(b"\x02\x7e\x01"), one, one, *spans).records())


def test_a_control_batch_with_a_compressed_neighbour_is_passed_over() -> None:
    squeezed = packed(Codec.GZIP, entries(RECORDS_A, 0))
    marked = batch(entries(RECORDS_A, 0), attributes=CONTROL | TRANSACTIONAL | Codec.LZ4)
    assert records_of(marked + squeezed + marked + VECTOR_A) == placed(RECORDS_A) * 2
