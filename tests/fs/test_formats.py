"""Formats over batches: compressed, with append times, control batches, holes; and back: what is read out is
appended to equal records."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_formats import (
    CODECS,
    LABELS,
    NOW,
    PARTITION,
    RECORDS,
    TOPIC,
    Bytes,
    array,
    batch_of,
    lines_of,
    placed,
    records_in,
    rendered,
    text_of,
)

from topicfs.engine import batch as batches
from topicfs.engine.batch.build import write_header
from topicfs.engine.errors import CorruptBatchError
from topicfs.engine.format.batch_header import HEADER_SIZE
from topicfs.engine.kernels.encode import encode_columns, stamp
from topicfs.engine.kernels.scan import ATTRIBUTES, POSITION
from topicfs.engine.record import Codec, Record, TimestampType
from topicfs.fs.formats import Format, labels_of

EACH_FORMAT = pytest.mark.parametrize("fmt", list(Format), ids=lambda fmt: fmt.suffix)
EACH_CODEC = pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name.lower())


def at_offset(data: Bytes, offset: int) -> Bytes:
    stamp(data, 0, offset, 0)
    return data


def test_a_suffix_is_a_files_ending() -> None:
    assert [fmt.suffix for fmt in Format] == ["txt", "tsv", "jsonl"]


# -- batches of every kind ----------------------------------------------------------------------------


@EACH_FORMAT
@EACH_CODEC
def test_records_are_shown_whatever_compresses_them(fmt: Format, codec: Codec) -> None:
    records = [Record(b"v%d" % i, b"k", NOW + i, (("h", b"x"),)) for i in range(5)]
    assert text_of(fmt, batch_of(records, 7, codec)) == lines_of(fmt, placed(records, 7))


@given(st.lists(st.tuples(RECORDS, CODECS, st.booleans()), max_size=3))
def test_batches_of_all_kinds_one_behind_the_other(parts: list[tuple[list[Record], Codec, bool]]) -> None:
    made, expected, base = [np.empty(0, np.uint8)], [], 0
    for records, codec, marked in parts:
        made.append(batch_of(records, base, codec))
        expected += placed(records, base)
        base += len(records)
        if marked:
            made.append(at_offset(batches.end_marker(1, 0, batches.COMMIT, 0, NOW).data, base))
            base += 1
    data = np.concatenate(made)
    for fmt in Format:
        assert text_of(fmt, data) == lines_of(fmt, expected)


@EACH_FORMAT
@EACH_CODEC
@pytest.mark.parametrize("append_time", [NOW + 99, -1])
def test_append_time_is_every_records_timestamp(fmt: Format, codec: Codec, append_time: int) -> None:
    shape = batches.Shape(codec=codec, timestamp_type=TimestampType.LOG_APPEND_TIME)
    records = [Record(b"a", None, 5), Record(b"b", None, 6)]
    expected = [Record(b"a", None, append_time, (), 0), Record(b"b", None, append_time, (), 1)]
    assert text_of(fmt, batches.from_records(records, append_time, shape).data) == lines_of(fmt, expected)


@EACH_FORMAT
@pytest.mark.parametrize("kind", [batches.ABORT, batches.COMMIT])
def test_control_batches_show_nothing(fmt: Format, kind: int) -> None:
    assert text_of(fmt, batches.end_marker(1, 0, kind, 0, NOW).data) == b""


@EACH_FORMAT
def test_batches_that_the_table_leaves_out_are_not_shown(fmt: Format) -> None:
    """As a reader leaves out those of aborted transactions."""
    shape = batches.Shape(producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    aborted = at_offset(batches.from_records([Record(b"no")], NOW, shape).data, 1)
    marker = at_offset(batches.end_marker(1, 0, batches.ABORT, 0, NOW).data, 2)
    data = np.concatenate([batch_of([Record(b"a")]), aborted, marker, batch_of([Record(b"b")], 3)])
    table = batches.scan(data)[[0, 3]]
    text = rendered(fmt, data, table, 0, 0, 10, TOPIC, PARTITION)
    assert text.tobytes() == lines_of(fmt, [*placed([Record(b"a")]), *placed([Record(b"b")], 3)])
    assert fmt.sizes(data, table, 0, LABELS).sum() == text.size


@EACH_FORMAT
def test_an_emptied_batch_shows_nothing(fmt: Format) -> None:
    empty = batches.emptied(batches.scan(batch_of([Record(b"v")] * 3, 5))[0])
    data = np.concatenate([empty, batch_of([Record(b"v")], 8)])
    assert text_of(fmt, data) == lines_of(fmt, placed([Record(b"v")], 8))


def with_holes(places: list[int]) -> Bytes:
    """A batch at 100 of ten offsets, of which compaction left these."""
    source = batches.from_records([Record(b"v%d" % place, b"k", NOW + place) for place in places], NOW).data
    (found,) = batches.columns(source, batches.scan(source))
    out = np.empty(source.size + 100, np.uint8)
    _, end = encode_columns(
        found.buffer, np.array(places) + 100, *found.arrays[1:], 100, NOW, out, HEADER_SIZE
    )
    write_header(
        out[:end], base_offset=100, attributes=0, last_offset_delta=9, base_timestamp=NOW, max_timestamp=NOW + 9,
        producer_id=-1, producer_epoch=-1, base_sequence=-1, count=len(places),
    )  # fmt: skip
    return out[:end]


@EACH_FORMAT
def test_offsets_with_holes_are_shown_as_they_are(fmt: Format) -> None:
    data = with_holes([1, 4, 8])
    expected = [Record(b"v%d" % place, b"k", NOW + place, (), 100 + place) for place in (1, 4, 8)]
    assert text_of(fmt, data) == lines_of(fmt, expected)
    for first, end, views in [
        (104, 108, [1]),
        (102, 109, [1, 2]),
        (105, 108, []),
        (0, 101, []),
        (109, 200, []),
    ]:
        assert text_of(fmt, data, first, end) == lines_of(fmt, [expected[i] for i in views])


@pytest.mark.parametrize("places", [[4, 1], [1, 1], [1, 10], [-1, 2]])
def test_offsets_that_do_not_rise_within_the_batch_are_corrupt(places: list[int]) -> None:
    with pytest.raises(CorruptBatchError, match="offsets do not rise"):
        text_of(Format.TXT, with_holes(places))


@EACH_FORMAT
@EACH_CODEC
def test_a_table_may_name_places_from_an_origin(fmt: Format, codec: Codec) -> None:
    data = np.concatenate([batch_of([Record(b"a")], 0, codec), batch_of([Record(b"b")], 1)])
    table = batches.scan(data)
    table[:, POSITION] += 1_000_000
    text = rendered(fmt, data, table, 1_000_000, 0, 2, TOPIC, PARTITION)
    assert text.tobytes() == lines_of(fmt, placed([Record(b"a"), Record(b"b")]))
    assert fmt.sizes(data, table, 1_000_000, LABELS).sum() == text.size


@EACH_FORMAT
def test_a_table_need_not_be_contiguous_and_is_left_as_it_is(fmt: Format) -> None:
    data = np.concatenate([batch_of([Record(b"%d" % i)], i, Codec(i % 3)) for i in range(6)])
    table = batches.scan(data)
    before = table.copy()
    expected = lines_of(fmt, [Record(b"%d" % i, None, NOW, (), i) for i in (0, 2, 4)])
    assert rendered(fmt, data, table[::2], 0, 0, 9, TOPIC, PARTITION).tobytes() == expected
    assert (table == before).all()


def test_a_compressed_batch_that_is_not_asked_for_is_not_decompressed() -> None:
    damaged = batch_of([Record(b"v")], 0, Codec.ZSTD)
    damaged[HEADER_SIZE:] = 0
    data = np.concatenate([damaged, batch_of([Record(b"w")], 1)])
    table = batches.scan(data, check=False)
    assert rendered(Format.TXT, data, table, 0, 1, 2, TOPIC, PARTITION).tobytes() == b"w\n"
    assert Format.TXT.sizes(data, table, 0, LABELS, 1, 2).tolist() == [0, 2]
    with pytest.raises(CorruptBatchError, match="zstd"):
        rendered(Format.TXT, data, table, 0, 0, 2, TOPIC, PARTITION)


@EACH_FORMAT
def test_a_codec_that_does_not_exist_is_corrupt(fmt: Format) -> None:
    data = batch_of([Record(b"v")])
    table = batches.scan(data)
    table[0, ATTRIBUTES] = 5
    with pytest.raises(CorruptBatchError, match="codec 5"):
        fmt.sizes(data, table, 0, LABELS)


@pytest.mark.parametrize(("topic", "partition"), [("a", 0), ("a" * 249, 2**31 - 1), ("Orders.v-1_x", 10)])
def test_jsonl_names_its_topic_and_partition(topic: str, partition: int) -> None:
    data = batch_of([Record(b"v")])
    table = batches.scan(data)
    text = rendered(Format.JSONL, data, table, 0, 0, 1, topic, partition).tobytes()
    found = json.loads(text)
    assert (found["topic"], found["partition"]) == (topic, partition)
    assert Format.JSONL.sizes(data, table, 0, labels_of(topic, partition)).tolist() == [len(text)]


# -- back ---------------------------------------------------------------------------------------------


def appended(fmt: Format, text: bytes, now: int = NOW) -> list[Record]:
    """What these lines become as records of a batch."""
    found = fmt.parse(array(text), now)
    assert found.error is None
    assert found.used == len(text)
    made = batches.from_columns(found.columns, batches.PLAIN).data
    assert batches.inspect(made, batches.scan(made)[0]).sequential
    return [record for part in batches.columns(made, batches.scan(made)) for record in records_in(part)]


@given(RECORDS)
def test_what_jsonl_reads_out_is_appended_to_equal_records(records: list[Record]) -> None:
    assert appended(Format.JSONL, text_of(Format.JSONL, batch_of(records), check=False)) == placed(records)


@given(RECORDS, CODECS)
def test_batches_of_records_that_went_through_jsonl_are_the_same_bytes(
    records: list[Record], codec: Codec
) -> None:
    data = batch_of(records, 0, codec)
    found = Format.JSONL.parse(array(text_of(Format.JSONL, data, check=False)), NOW)
    again = at_offset(batches.from_columns(found.columns, batches.Shape(codec=codec)).data, 0)
    assert again.tobytes() == data.tobytes()
    assert set(found.partitions.tolist()) == {PARTITION}


@given(RECORDS)
def test_what_tsv_reads_out_is_appended_to_equal_keys_and_values(records: list[Record]) -> None:
    text = text_of(Format.TSV, batch_of(records), check=False)
    assert appended(Format.TSV, text, 77) == [
        Record(record.value, record.key, 77, (), offset) for offset, record in enumerate(records)
    ]


@given(st.lists(st.binary(max_size=30).map(lambda data: data.replace(b"\n", b"")), min_size=1, max_size=6))
def test_what_txt_reads_out_is_appended_to_equal_values(values: list[bytes]) -> None:
    text = text_of(Format.TXT, batch_of([Record(value) for value in values]), check=False)
    assert [record.value for record in appended(Format.TXT, text)] == values


def test_txt_makes_the_same_batch_as_lines_do() -> None:
    lines = array(b"a\n\nlonger\nlast")
    by_lines, _ = batches.from_lines(lines, NOW)
    by_columns = batches.from_columns(Format.TXT.parse(lines, NOW).columns, batches.PLAIN).data
    assert by_columns.tobytes() == by_lines.data.tobytes()
