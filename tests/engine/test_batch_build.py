"""Building batches: KAFKA_FORMAT 2.1, 2.2, 2.6 (A, B, D), and of KAFKA_CASES A testBasicSerde, testSerdeNoSequence,
testWriteEmptyHeader, buildDefaultRecordBatch*, testWriteEmptyRecordSet, testWriteTransactionalWithInvalidPID,
testWriteIdempotentWithInvalidEpoch/BaseSequence, buildUsingLogAppendTime, buildUsingCreateTime.

Not applying:
* testAppendAtInvalidOffset: builders give offsets themselves; the reader refuses those that do not rise.
* testWriteEndTxnMarkerNon*: a marker is built by one function, always in a transactional control batch.
* testFilterTo*, testEmptyBatchRetention, testEmptyBatchDeletion: compaction, later; `emptied` is tested here.
* testIncrementSequence, testDecrementSequence and sequences of single records: with the producer state.
* Files (testAppendProtectsFromOverflow … testPreallocate*): with the segment.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_batches import (
    CODECS,
    NOW,
    PRODUCER,
    PRODUCERS,
    RECORDS,
    RECORDS_A,
    RECORDS_B,
    TIMES,
    VECTOR_A,
    VECTOR_B,
    VECTOR_C,
    VECTOR_D,
    array,
    batch_of,
    crc_is_right,
    entries,
    header_of,
    records_in,
)

from topicfs.engine import batch as batches
from topicfs.engine.batch import PLAIN, Columns, Shape
from topicfs.engine.batch.columns import records_of
from topicfs.engine.errors import (
    CorruptBatchError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
)
from topicfs.engine.format.batch_header import CONTROL, DELETE_HORIZON, LOG_APPEND_TIME, TRANSACTIONAL
from topicfs.engine.kernels import encode as encoding
from topicfs.engine.kernels.scan import COUNT, LAST_OFFSET, MAX_TIMESTAMP, SIZE
from topicfs.engine.record import MAX_INT32, Codec, Record, TimestampType
from topicfs.engine.segment.walk import NOTHING

APPEND_TIME = Shape(timestamp_type=TimestampType.LOG_APPEND_TIME)


def stamped(batch: np.ndarray[Any, Any], base_offset: int, leader_epoch: int) -> bytes:
    encoding.stamp(batch, 0, base_offset, leader_epoch)
    return batch.tobytes()


def content(batch: np.ndarray[Any, Any]) -> bytes:
    return records_of(batch, batches.scan(batch)[0]).tobytes()


# -- vectors ----------------------------------------------------------------------------------------


def test_one_record_makes_vector_a() -> None:
    assert stamped(batches.from_records(RECORDS_A, 5).data, 0, 0) == VECTOR_A


def test_three_records_of_a_producer_make_vector_b() -> None:
    assert stamped(batches.from_records(RECORDS_B, 5, Shape(**PRODUCER)).data, 5, 9) == VECTOR_B


def test_columns_of_vector_b_make_vector_b() -> None:
    table = batches.scan(array(VECTOR_B))
    (part,) = batches.columns(array(VECTOR_B), table)
    assert stamped(batches.from_columns(part, batches.shape_of(table[0])).data, 5, 9) == VECTOR_B


def test_vector_b_without_its_records_is_vector_d() -> None:
    assert batches.emptied(batches.scan(array(VECTOR_B))[0]).tobytes() == VECTOR_D


def test_an_empty_batch_emptied_again_is_the_same() -> None:
    assert batches.emptied(batches.scan(array(VECTOR_D))[0]).tobytes() == VECTOR_D


# -- from records -----------------------------------------------------------------------------------


@given(RECORDS, PRODUCERS, st.sampled_from(TimestampType))
def test_records_make_the_batch_that_plain_python_makes(
    records: list[Record], producer: dict[str, Any], kind: TimestampType
) -> None:
    made = batches.from_records(records, NOW, Shape(timestamp_type=kind, **producer)).data.tobytes()
    fields = dict(producer)
    attributes = LOG_APPEND_TIME if kind else 0
    if fields.pop("transactional", False):
        attributes |= TRANSACTIONAL
    fields["max_timestamp"] = NOW if kind else max(record.timestamp or 0 for record in records)
    assert made == batch_of(records, attributes=attributes, **fields)


@given(RECORDS, CODECS)
def test_compressed_records_differ_in_codec_size_and_checksum_alone(
    records: list[Record], codec: Codec
) -> None:
    plain = batches.from_records(records, NOW).data
    packed = batches.from_records(records, NOW, Shape(codec)).data
    fields = header_of(plain.tobytes())
    assert crc_is_right(packed.tobytes())
    assert content(packed) == content(plain)
    assert header_of(packed.tobytes()) == fields | {
        "attributes": int(codec),
        "size": packed.size - 12,
        "crc": header_of(packed.tobytes())["crc"],
    }


def test_a_codec_that_makes_records_larger_is_used_all_the_same() -> None:
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4):
        made = batches.from_records([Record(b"v")], NOW, Shape(codec)).data
        assert made.size > batches.from_records([Record(b"v")], NOW).data.size
        assert header_of(made.tobytes())["attributes"] == codec
        assert crc_is_right(made.tobytes())


def test_records_without_a_timestamp_get_now() -> None:
    made = batches.from_records([Record(b"a"), Record(b"b", timestamp=7)], NOW).data
    (part,) = batches.columns(made, batches.scan(made))
    assert part.timestamps.tolist() == [NOW, 7]
    assert header_of(made.tobytes())["max_timestamp"] == NOW


def test_with_create_time_the_largest_timestamp_is_the_records() -> None:
    made = batches.from_records([Record(b"", timestamp=t) for t in (5, 9, -1, 3)], NOW).data
    fields = header_of(made.tobytes())
    assert (fields["base_timestamp"], fields["max_timestamp"]) == (5, 9)


def test_with_append_time_every_record_has_it() -> None:
    made = batches.from_records([Record(b"", timestamp=t) for t in (5, NOW + 9)], NOW, APPEND_TIME).data
    assert header_of(made.tobytes())["max_timestamp"] == NOW
    (part,) = batches.columns(made, batches.scan(made))
    assert part.timestamps.tolist() == [NOW, NOW]


def test_without_a_timestamp_at_all_the_largest_is_none() -> None:
    made = batches.from_records([Record(b"", timestamp=-1)] * 2, NOW).data
    fields = header_of(made.tobytes())
    assert (fields["base_timestamp"], fields["max_timestamp"]) == (-1, -1)


def test_a_timestamp_below_none_is_refused_with_the_indexes() -> None:
    records = [Record(b"", timestamp=t) for t in (-2, 0, -1, -(2**63))]
    with pytest.raises(InvalidTimestampError, match="record 0 has timestamp -2") as caught:
        batches.from_records(records, NOW)
    assert caught.value.indexes == (0, 3)


def test_no_records_make_no_bytes() -> None:
    assert batches.from_records([], NOW, Shape(Codec.GZIP)).data.size == 0


def test_a_header_name_that_is_not_utf_8_keeps_its_bytes() -> None:
    name = b"\xff\xfe\xc3".decode("utf-8", "surrogateescape")
    made = batches.from_records([Record(b"", headers=((name, b"\xff"), ("ключ", None)))], NOW).data
    assert b"\x06\xff\xfe\xc3" in made.tobytes()
    (part,) = batches.columns(made, batches.scan(made))
    assert next(part.records()).headers == ((name, b"\xff"), ("ключ", None))


def test_a_header_name_of_surrogates_that_escape_nothing_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match="surrogates"):
        batches.from_records([Record(b"", headers=(("\ud800", None),))], NOW)


def test_offset_deltas_of_more_than_one_byte_are_right() -> None:
    made = batches.from_records([Record(b"x")] * 20_000, NOW).data
    (part,) = batches.columns(made, batches.scan(made))
    assert (part.offsets == np.arange(20_000)).all()


# -- shapes -----------------------------------------------------------------------------------------


@given(PRODUCERS, CODECS, st.sampled_from(TimestampType))
def test_a_shape_is_read_back_from_its_batch(
    producer: dict[str, Any], codec: Codec, kind: TimestampType
) -> None:
    shape = Shape(codec, timestamp_type=kind, **producer)
    made = batches.from_records(RECORDS_B, NOW, shape).data
    assert batches.shape_of(batches.scan(made)[0]) == shape


@given(RECORDS, PRODUCERS, CODECS)
def test_the_row_of_a_batch_says_what_its_header_says(
    records: list[Record], producer: dict[str, Any], codec: Codec
) -> None:
    shape = Shape(codec, **producer)
    builder = batches.BatchBuilder(MAX_INT32)
    builder.add_lines(array(b"a\nbc\n"), 0, NOW)
    made = (
        batches.from_records(records, NOW, shape),
        batches.from_lines(array(b"one\ntwo\n"), NOW, shape)[0],
        builder.finish(shape, None),
        batches.end_marker(7, 2, batches.ABORT, 3, NOW),
    )
    for each in made:
        if each.data.size:
            assert [each.row.tolist()] == batches.scan(each.data).tolist()


def test_without_a_producer_its_three_fields_are_none() -> None:
    fields = header_of(batches.from_records(RECORDS_A, NOW).data.tobytes())
    assert (fields["producer_id"], fields["producer_epoch"], fields["base_sequence"]) == (-1, -1, -1)


def test_a_base_sequence_at_the_largest_number_is_kept_though_the_batch_wraps() -> None:
    made = batches.from_records(
        RECORDS_B, NOW, Shape(producer_id=1, producer_epoch=0, base_sequence=MAX_INT32)
    ).data
    assert header_of(made.tobytes())["base_sequence"] == MAX_INT32


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"transactional": True}, "needs a producer id"),
        ({"producer_id": 1, "base_sequence": 0}, "needs an epoch, found -1"),
        ({"producer_id": 1, "producer_epoch": 0}, "needs a sequence, found -1"),
        ({"producer_id": 1, "producer_epoch": 0, "base_sequence": -2}, "needs a sequence, found -2"),
    ],
)
def test_half_a_producer_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRecordError, match=reason):
        Shape(**fields)


# -- from lines -------------------------------------------------------------------------------------


def lines_of(data: bytes, shape: Shape = PLAIN, limit: int = MAX_INT32, start: int = 0) -> tuple[bytes, int]:
    made, used = batches.from_lines(array(data), NOW, shape, limit, start)
    return made.data.tobytes(), used


@given(st.lists(st.binary(max_size=80).map(lambda line: line.replace(b"\n", b"")), min_size=1), st.booleans())
def test_lines_are_values_without_key_and_newline(lines: list[bytes], closed: bool) -> None:
    data = b"\n".join(lines) + b"\n" * closed
    expected = data.split(b"\n")
    if not expected[-1]:
        expected.pop()
    made, used = lines_of(data)
    assert used == len(data)
    if expected:
        assert made == batch_of([Record(line, None, NOW) for line in expected])
    else:
        assert made == b""


def test_an_empty_line_is_an_empty_value() -> None:
    assert lines_of(b"\n\n") == (batch_of([Record(b"", None, NOW)] * 2), 2)


def test_a_carriage_return_belongs_to_the_value() -> None:
    assert lines_of(b"a\r\n")[0] == batch_of([Record(b"a\r", None, NOW)])


def test_many_empty_lines_find_room() -> None:
    made, used = lines_of(b"\n" * 70_000)
    assert used == 70_000
    assert header_of(made)["count"] == 70_000
    assert made == batch_of([Record(b"", None, NOW)] * 70_000)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=30), st.integers(70, 500))
def test_batches_of_lines_stay_within_the_limit_and_take_every_line_once(
    lengths: list[int], limit: int
) -> None:
    lines = [bytes([65 + i % 26]) * length for i, length in enumerate(lengths)]
    data = b"".join(line + b"\n" for line in lines)
    found, start = [], 0
    while start < len(data):
        try:
            made, end = lines_of(data, limit=limit, start=start)
        except RecordTooLargeError:
            line = data[start : data.index(b"\n", start)]
            assert len(batch_of([Record(line, None, NOW)])) > limit
            found.append(line)
            start += len(line) + 1
            continue
        assert len(made) <= limit
        assert end > start
        fields = header_of(made)
        taken = data[start:end].split(b"\n")[:-1]
        assert fields["count"] == len(taken)
        if end < len(data):
            next_line = data[end : data.index(b"\n", end)]
            grown = batch_of([Record(line, None, NOW) for line in (*taken, next_line)])
            assert len(grown) > limit, "the next line would have fitted"
        found += taken
        start = end
    assert found == lines


def test_a_line_that_alone_exceeds_the_limit_is_refused() -> None:
    data = b"x" * 100 + b"\nshort\n"
    size = len(batch_of([Record(b"x" * 100, None, NOW)]))
    with pytest.raises(RecordTooLargeError, match=f"exceeds a batch of {size - 1} bytes"):
        lines_of(data, limit=size - 1)
    assert lines_of(data, limit=size)[1] == 101


@pytest.mark.parametrize("limit", [0, 1, 60, 61, 67])
def test_a_limit_too_small_for_any_record_refuses_every_line(limit: int) -> None:
    with pytest.raises(RecordTooLargeError):
        lines_of(b"\n", limit=limit)
    assert lines_of(b"", limit=limit) == (b"", 0)


@given(
    head=st.lists(st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"")), max_size=4),
    lines=st.lists(st.binary(max_size=90).map(lambda line: line.replace(b"\n", b"")), max_size=30),
    size=st.sampled_from([80, 150, 100_000]),
    most=st.sampled_from([0, 400, 1 << 20]),
    codec=st.sampled_from([Codec.NONE, Codec.LZ4]),
)
def test_several_batches_of_lines_lie_in_one_buffer_and_take_every_line_once(
    head: list[bytes], lines: list[bytes], size: int, most: int, codec: Codec
) -> None:
    limit = 200
    before, behind = (array(b"".join(line + b"\n" for line in part)) for part in (head, lines))
    taken, found, offset = 0, [], 7
    while taken < before.size + behind.size:
        made, texts, used = batches.several_from_lines(
            before, behind, taken, NOW, NOW + 1, Shape(codec), min(size, limit), limit, most
        )
        assert made is not None
        assert used == taken + texts.sum()
        assert codec is not Codec.NONE or made.data.size <= max(most, limit)
        assert most or len(made.table) == 1
        alone = [batch.data.copy() for batch in made.each()]
        last = encoding.stamp_batches(made.data, made.table, offset, 3)
        assert made.table.tolist() == batches.scan(made.data).tolist()
        assert last == made.table[-1, LAST_OFFSET]
        again = batches.Batches.joined([batches.Batch(each, batches.scan(each)[0]) for each in alone])
        encoding.stamp_batches(again.data, again.table, offset, 3)
        assert again.data.tobytes() == made.data.tobytes()
        assert again.table.tolist() == made.table.tolist()
        for part in batches.columns(made.data, made.table):
            values = [record.value for record in part.records()]
            assert part.offsets.tolist() == list(range(offset, offset + len(values)))
            assert set(part.timestamps.tolist()) == {NOW}
            offset += len(values)
            found += values
        for row, text in zip(made.table, texts.tolist(), strict=True):
            assert codec is not Codec.NONE or row[SIZE] <= size or row[COUNT] == 1
            assert row[MAX_TIMESTAMP] == NOW + 1
            assert text >= row[COUNT]
        taken = used
    assert found == head + lines


def test_a_line_that_is_too_long_is_not_in_the_batches_before_it() -> None:
    text = array(b"one\n" + b"x" * 300 + b"\ntwo\n")
    made, texts, used = batches.several_from_lines(NOTHING, text, 0, NOW, NOW, PLAIN, 200, 200, 1 << 20)
    assert made is not None
    assert (texts.tolist(), used) == ([4], 4)
    assert batches.several_from_lines(NOTHING, text, 4, NOW, NOW, PLAIN, 200, 200, 1 << 20)[0] is None


def test_lines_behind_the_last_make_no_bytes() -> None:
    assert lines_of(b"a\n", start=2) == (b"", 2)


@given(st.binary(max_size=500), CODECS)
def test_compressed_lines_hold_the_same_records(data: bytes, codec: Codec) -> None:
    packed, used = batches.from_lines(array(data), NOW, Shape(codec))
    plain, _ = batches.from_lines(array(data), NOW)
    assert used == len(data)
    assert packed.data.size == 0 if not data else content(packed.data) == content(plain.data)


# -- from columns -----------------------------------------------------------------------------------


@given(RECORDS, PRODUCERS, CODECS)
def test_columns_make_the_batch_that_their_records_make(
    records: list[Record], producer: dict[str, Any], codec: Codec
) -> None:
    shape = Shape(codec, **producer)
    made = batches.from_records(records, NOW, shape).data
    (part,) = batches.columns(made, batches.scan(made))
    assert batches.from_columns(part, shape).data.tobytes() == made.tobytes()


def test_columns_of_some_rows_are_numbered_from_0() -> None:
    source = array(batch_of(RECORDS_B, base_offset=50))
    (part,) = batches.columns(source, batches.scan(source))
    assert batches.from_columns(part.rows(1, 3), PLAIN).data.tobytes() == batch_of(RECORDS_B[1:])


def test_columns_take_an_append_time() -> None:
    source = array(batch_of(RECORDS_B))
    (part,) = batches.columns(source, batches.scan(source))
    made = batches.from_columns(part, APPEND_TIME, NOW + 77).data.tobytes()
    assert made == batch_of(RECORDS_B, attributes=LOG_APPEND_TIME, max_timestamp=NOW + 77)


def spans(**changes: int) -> Columns:
    """Columns of one record over ten bytes: key [0, 2), value [2, 6), headers [6, 10)."""
    fields = {
        "key_start": 0, "key_length": 2, "value_start": 2, "value_length": 4,
        "headers_start": 6, "headers_length": 4,
    } | changes  # fmt: skip
    one = np.zeros(1, np.int64)
    return Columns(
        array(b"kkvvvv\x02\x02h\x01"), one, one, *(np.array([n], np.int32) for n in fields.values())
    )


def test_columns_without_headers_bytes_have_no_headers() -> None:
    made = batches.from_columns(spans(headers_length=0), PLAIN).data.tobytes()
    assert made == batch_of([Record(b"vvvv", b"kk", 0)])
    assert batches.from_columns(spans(), PLAIN).data.tobytes() == batch_of(
        [Record(b"vvvv", b"kk", 0, (("h", None),))]
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"key_start": -1},
        {"key_start": 9},
        {"key_start": 2**31 - 1},
        {"value_start": -(2**31)},
        {"value_start": 7},
        {"value_length": 9},
        {"headers_start": 7},
        {"headers_start": -1},
        {"headers_length": 5},
    ],
)
def test_columns_with_a_span_outside_their_buffer_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(CorruptBatchError, match="record 0 of 1 has a span outside its buffer of 10 bytes"):
        batches.from_columns(spans(**changes), PLAIN)


# -- kernels refuse what does not fit ---------------------------------------------------------------


@pytest.mark.parametrize(
    "lengths",
    [
        [],
        [1, 1],
        [1, 1, 1],
        [1, 1, 2, 1, 1],
        [1, 1, -1],
        [1, 1, 2**62],
        [1, 1, 2**63 - 1],
        [-2, 1, 0],
        [1, -(2**63), 0],
        [2**63 - 1, 2**63 - 1, 0],
        [5, 5, 0],
        [1, 1, 1, 1, 2**62],
    ],
)
def test_lengths_that_do_not_fit_the_fields_write_nothing(lengths: list[int]) -> None:
    out = np.zeros(200, np.uint8)
    times = np.zeros(1, np.int64)
    assert encoding.encode_records(array(b"abcd"), times, np.array(lengths, np.int64), 0, out, 61) == -1
    assert not out.any()


def test_records_without_room_are_not_written() -> None:
    lengths = np.array([2, 2, 0], np.int64)
    needed = len(entries([Record(b"cd", b"ab", 0)], 0))
    for room in range(needed):
        out = np.zeros(room, np.uint8)
        assert encoding.encode_records(array(b"abcd"), np.zeros(1, np.int64), lengths, 0, out, 0) == -1
        assert not out.any()


@pytest.mark.parametrize(
    ("start", "end", "position"), [(-1, 4, 0), (0, 5, 0), (0, 2**63 - 1, 0), (0, 4, -1), (-(2**63), 4, 0)]
)
def test_lines_outside_their_buffer_are_not_read(start: int, end: int, position: int) -> None:
    out = np.zeros(100, np.uint8)
    assert encoding.encode_lines(array(b"abc\n"), start, end, 0, out, position, 100) == (0, start, position)
    assert not out.any()


# -- emptied ----------------------------------------------------------------------------------------


@given(PRODUCERS, TIMES, st.sampled_from([0, LOG_APPEND_TIME]), st.sampled_from([0, CONTROL]), CODECS)
def test_an_emptied_batch_keeps_offsets_producer_flags_and_largest_timestamp(
    producer: dict[str, Any], time: int, kind: int, control: int, codec: Codec
) -> None:
    fields = dict(producer)
    flags = kind | control | (TRANSACTIONAL if fields.pop("transactional", False) else 0)
    before = batch_of(
        RECORDS_B, base_offset=40, leader_epoch=2, attributes=flags, max_timestamp=time, **fields
    )
    row = batches.scan(array(before))[0].copy()
    row[5] |= int(codec) | DELETE_HORIZON
    made = batches.emptied(row).tobytes()
    assert len(made) == 61
    assert crc_is_right(made)
    changed = {"size": 49, "base_timestamp": -1, "count": 0, "crc": header_of(made)["crc"]}
    assert header_of(made) == header_of(before) | changed
    assert not list(batches.columns(array(made), batches.scan(array(made))))


def test_an_emptied_marker_is_a_control_batch_without_records() -> None:
    made = batches.emptied(batches.scan(array(VECTOR_C))[0]).tobytes()
    assert header_of(made)["attributes"] == TRANSACTIONAL | CONTROL
    assert batches.marker(array(made), batches.scan(array(made))[0]) is None


@given(RECORDS)
def test_what_is_built_is_what_the_plain_reader_reads(records: list[Record]) -> None:
    made = batches.from_records(records, NOW).data.tobytes()
    base = header_of(made)["base_timestamp"]
    expected = [Record(r.value, r.key, r.timestamp, r.headers, offset) for offset, r in enumerate(records)]
    assert list(records_in(made[61:], 0, base)) == expected
