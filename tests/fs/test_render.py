"""Records → lines, and their sizes. FS "Formats": what each format writes, for any bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_formats import (
    COPY_ESCAPES,
    LABELS,
    NOW,
    PARTITION,
    RECORDS,
    TOPIC,
    array,
    batch_of,
    copy_fields,
    line_of,
    lines_of,
    placed,
    rendered,
    text_of,
)

from topicfs.engine import batch as batches
from topicfs.engine.errors import CorruptBatchError
from topicfs.engine.format.batch_header import HEADER_SIZE
from topicfs.engine.kernels import decode as decoding
from topicfs.engine.kernels.scan import BASE_TIMESTAMP, COUNT, POSITION, SIZE
from topicfs.engine.record import Record
from topicfs.fs.formats import Format
from topicfs.fs.kernels import render as rendering
from topicfs.fs.kernels import sizes as sizing

EACH_FORMAT = pytest.mark.parametrize("fmt", list(Format), ids=lambda fmt: fmt.suffix)
PREFIX = array(b'{"topic":"orders","partition":3,"offset":')


def refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def strict(line: bytes) -> Any:
    """A line by two strict readers, which must agree."""
    found = json.loads(line.decode(), parse_constant=refuse_constant)
    assert orjson.loads(line) == found
    return found


# -- what a line looks like ---------------------------------------------------------------------------


def test_txt_is_the_value_and_a_newline() -> None:
    assert (
        text_of(Format.TXT, batch_of([Record(b"v1", b"k"), Record(b"a\nb"), Record(b"")])) == b"v1\na\nb\n\n"
    )


def test_a_null_value_is_an_empty_line_of_txt() -> None:
    assert text_of(Format.TXT, batch_of([Record(None, b"k"), Record(b"v")])) == b"\nv\n"


def test_tsv_is_key_tab_value() -> None:
    assert text_of(Format.TSV, batch_of([Record(b"v", b"k"), Record(b"", b"")])) == b"k\tv\n\t\n"


def test_null_is_told_from_its_letters_in_tsv() -> None:
    records = [Record(None, None), Record(b"\\N", b"N")]
    assert text_of(Format.TSV, batch_of(records)) == b"\\N\t\\N\nN\t\\\\N\n"


@pytest.mark.parametrize("byte", range(256))
def test_tsv_escapes_what_copy_escapes_and_leaves_every_other_byte(byte: int) -> None:
    expected = COPY_ESCAPES.get(byte, bytes([byte]))
    assert text_of(Format.TSV, batch_of([Record(bytes([byte]), b"k")])) == b"k\t" + expected + b"\n"


def test_jsonl_has_its_members_in_this_order() -> None:
    record = Record(b"v1", b"k1", NOW, (("h", b"x"), ("n", None)))
    assert text_of(Format.JSONL, batch_of([record], 5)) == (
        b'{"topic":"orders","partition":3,"offset":5,"timestamp":1700000000000,"key":"k1","value":"v1",'
        b'"headers":[{"key":"h","value":"x"},{"key":"n","value":null}]}\n'
    )


def test_headers_are_always_there_and_null_is_null() -> None:
    assert text_of(Format.JSONL, batch_of([Record(None, None, -1)])) == (
        b'{"topic":"orders","partition":3,"offset":0,"timestamp":-1,"key":null,"value":null,"headers":[]}\n'
    )


def test_bytes_that_are_not_utf8_are_base64_under_another_name() -> None:
    record = Record(b"\xff\xfe", b"\xc0", 0, (("\udcff", b"a\x80"),))
    assert text_of(Format.JSONL, batch_of([record])).endswith(
        b',"key_base64":"wA==","value_base64":"//4=","headers":[{"key_base64":"/w==","value_base64":"YYA="}]}\n'
    )


@pytest.mark.parametrize("byte", range(128))
def test_each_ascii_byte_is_json_and_only_what_must_be_is_escaped(byte: int) -> None:
    text = text_of(Format.JSONL, batch_of([Record(bytes([byte]), None, 0)]))
    assert strict(text)["value"] == chr(byte)
    assert text == line_of(Format.JSONL, Record(bytes([byte]), None, 0, (), 0))


@pytest.mark.parametrize(
    "data",
    [b"\x80", b"\xbf", b"\xc0\x80", b"\xc1\xbf", b"\xc2", b"\xc2\x7f", b"\xc2\xc0", b"\xe0\x9f\xbf", b"\xe1\x80",
     b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xef\xbf", b"\xf0\x8f\xbf\xbf", b"\xf1\x80\x80", b"\xf4\x90\x80\x80",
     b"\xf5\x80\x80\x80", b"\xff", b"\xe1\x80\xc0", b"\xf1\x80\x80\x7f", b"\xf1\x80\x41\x80"],
)  # fmt: skip
@pytest.mark.parametrize(
    "around", [(b"", b""), (b"x", b""), (b"", b"x" * 40), (b"x" * 15, b""), (b"x\xc3\xa9" * 9, b"")]
)
def test_what_is_not_utf8_is_told_wherever_it_stands(data: bytes, around: tuple[bytes, bytes]) -> None:
    record = Record(around[0] + data + around[1], None, 0)
    text = text_of(Format.JSONL, batch_of([record]))
    assert b'"value_base64":"' in text
    assert text == lines_of(Format.JSONL, placed([record]))


@pytest.mark.parametrize("character", "\x7f\x80߿ࠀ\ud7ff\ue000￿\U00010000\U0010ffff\u2028")
def test_the_bounds_of_utf8_are_kept_as_they_are(character: str) -> None:
    record = Record((character * 3).encode(), None, 0)
    assert f'"value":"{character * 3}"'.encode() in text_of(Format.JSONL, batch_of([record]))


@pytest.mark.parametrize("number", [0, 9, 10, 99, 100, 10**18, 10**18 - 1, 2**62, 2**63 - 2])
def test_offsets_and_timestamps_of_any_size(number: int) -> None:
    found = strict(text_of(Format.JSONL, batch_of([Record(b"", None, number)], number)))
    assert (found["offset"], found["timestamp"]) == (number, number)


@pytest.mark.parametrize("number", [-1, -9, -10, -(10**18), -(2**63) + 1, -(2**63)])
def test_a_negative_timestamp_in_a_batch_is_shown_as_it_is(number: int) -> None:
    data = batch_of([Record(b"", None, 0)])
    table = batches.scan(data)
    table[0, BASE_TIMESTAMP] = number
    text = rendered(Format.JSONL, data, table, 0, 0, 1, TOPIC, PARTITION)
    assert strict(text.tobytes())["timestamp"] == number
    assert Format.JSONL.sizes(data, table, 0, LABELS)[0] == text.size


@EACH_FORMAT
@pytest.mark.parametrize("special", [b"\\", b'"', b"\n", b"\0", b"\xff", "é".encode()])
@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 31, 32, 33, 50])
def test_a_byte_that_needs_care_is_found_at_every_place(fmt: Format, special: bytes, length: int) -> None:
    """The value is the last thing of its buffer, or others follow: steps of 16 bytes are not always possible."""
    values = [b"x" * at + special + b"y" * (length - at) for at in range(length + 1)]
    records = [
        Record(value, value, 0, ((value.decode("utf-8", "surrogateescape"), value),)) for value in values
    ]
    assert text_of(fmt, batch_of(records)) == lines_of(fmt, placed(records))
    for record in records:
        assert text_of(fmt, batch_of([Record(record.value, None, 0)])) == lines_of(
            fmt, placed([Record(record.value, None, 0)])
        )


@given(RECORDS)
def test_lines_are_what_the_description_says(records: list[Record]) -> None:
    data = batch_of(records, 1000)
    for fmt in Format:
        assert text_of(fmt, data) == lines_of(fmt, placed(records, 1000))


@given(RECORDS)
def test_strict_readers_of_json_accept_any_bytes(records: list[Record]) -> None:
    lines = text_of(Format.JSONL, batch_of(records)).split(b"\n")
    assert lines.pop() == b""
    assert [strict(line)["offset"] for line in lines] == list(range(len(records)))


@given(RECORDS)
def test_copy_reads_back_keys_and_values(records: list[Record]) -> None:
    lines = text_of(Format.TSV, batch_of(records)).split(b"\n")[:-1]
    assert [copy_fields(line) for line in lines] == [[record.key, record.value] for record in records]


# -- which records ------------------------------------------------------------------------------------


@given(st.lists(RECORDS, min_size=1, max_size=3), st.integers(0, 20), st.integers(0, 20))
def test_only_the_offsets_asked_for_are_shown(parts: list[list[Record]], first: int, end: int) -> None:
    made, expected = [], []
    for records in parts:
        made.append(batch_of(records, len(expected)))
        expected += placed(records, len(expected))
    data = np.concatenate(made)
    for fmt in Format:
        assert text_of(fmt, data, first, end) == lines_of(fmt, expected[first:end])


def test_records_behind_the_first_that_is_not_asked_for_are_not_looked_at() -> None:
    data = batch_of([Record(b"good")] * 4)
    data[-8:] = 0xFF
    table = batches.scan(data, check=False)
    assert rendered(Format.TXT, data, table, 0, 0, 2, TOPIC, PARTITION).tobytes() == b"good\ngood\n"
    with pytest.raises(CorruptBatchError):
        rendered(Format.TXT, data, table, 0, 0, 4, TOPIC, PARTITION)


# -- room ---------------------------------------------------------------------------------------------


@EACH_FORMAT
def test_a_line_is_written_whole_or_not_at_all(fmt: Format) -> None:
    records = [Record(b"v" * size, b"k\t\xff", NOW, (("h", b"\0"), ("n", None))) for size in (0, 5, 40, 1)]
    data = batch_of(records)
    table = batches.scan(data)
    lines = [line_of(fmt, record) for record in placed(records)]
    whole = b"".join(lines)
    ends = np.cumsum([len(line) for line in lines])
    for room in range(len(whole) + 1):
        guarded = np.full(room + 32, 0xA5, np.uint8)
        status, _, index, _, position = rendering.render(
            int(fmt), data, 0, table, 0, 2**62, PREFIX, guarded[:room], 0
        )
        done = int(np.searchsorted(ends, room, side="right"))
        assert position == sum(map(len, lines[:done]))
        assert guarded[:position].tobytes() == whole[:position]
        assert (guarded[room:] == 0xA5).all()
        assert (status, index) == ((rendering.NO_ROOM, done) if done < len(lines) else (decoding.GOOD, 0))


LARGE = {
    "escapes": Record(b"\0" * 300, b"\x1f" * 300, -(2**62)),
    "backslashes": Record(b"\\" * 300, b"\t" * 300, 2**62),
    "base64": Record(b"\xff", b"\xff", 2**62),
    "base64 behind escapes": Record(b"\0" * 300 + b"\xff", b"\0" * 300 + b"\xff", 2**62),
    "base64 behind escapes in headers": Record(
        b"", None, 2**62, (("\0" * 300 + "\udcff", b"\0" * 300 + b"\xff"),)
    ),
    "empty headers": Record(None, None, 2**62, (("", None),) * 300),
    "short headers": Record(b"", b"", 2**62, (("\udcff", b"\xff"),) * 300),
    "escaped headers": Record(b"\xff", None, 2**62, (("\0", b"\0"),) * 300),
}


@EACH_FORMAT
@pytest.mark.parametrize("case", LARGE)
def test_a_line_that_grows_much_is_never_written_behind_the_end(fmt: Format, case: str) -> None:
    """What a line could take at most decides whether its size is computed: it must not be too little."""
    data = batches.from_records([Record(b"", None, 0), replace(LARGE[case], timestamp=0)], NOW).data
    table = batches.scan(data)
    table[0, BASE_TIMESTAMP] = LARGE[case].timestamp or 0
    size = int(fmt.sizes(data, table, 0, LABELS).sum())
    for room in (*range(max(0, size - 40), size), size):
        guarded = np.full(room + 4096, 0xA5, np.uint8)
        status, *_, position = rendering.render(int(fmt), data, 0, table, 0, 2, PREFIX, guarded[:room], 0)
        assert (guarded[room:] == 0xA5).all()
        assert (status == decoding.GOOD) == (room == size)
        assert position == size or status == rendering.NO_ROOM


@EACH_FORMAT
@pytest.mark.parametrize("position", [-1, 11, -(2**63), 2**63 - 1])
def test_a_position_outside_the_output_has_no_room(fmt: Format, position: int) -> None:
    data = batch_of([Record(b"v")])
    out = np.zeros(10, np.uint8)
    with pytest.raises(ValueError, match="does not fit into 10 bytes"):
        fmt.render(data, batches.scan(data), 0, 0, 1, out, position, LABELS)
    assert not out.any()


# -- damage -------------------------------------------------------------------------------------------


@EACH_FORMAT
@pytest.mark.parametrize(
    ("column", "value"),
    [(POSITION, 1), (POSITION, -1), (POSITION, 2**40), (POSITION, -(2**40)), (SIZE, 2**31), (SIZE, 0),
     (SIZE, HEADER_SIZE), (SIZE, HEADER_SIZE + 3), (COUNT, 2**31 - 1), (COUNT, 1), (COUNT, -1), (COUNT, 4)],
)  # fmt: skip
def test_a_table_that_does_not_fit_its_bytes_is_corrupt(fmt: Format, column: int, value: int) -> None:
    data = batch_of([Record(b"some value", b"key")] * 3)
    table = batches.scan(data)
    table[0, column] = value
    with pytest.raises(CorruptBatchError):
        fmt.sizes(data, table, 0, LABELS)
    with pytest.raises(CorruptBatchError):
        fmt.render(data, table, 0, 0, 10, np.empty(1000, np.uint8), 0, LABELS)


@given(st.binary(max_size=120), st.integers(-1, 8))
def test_any_bytes_give_lines_or_an_error_and_both_kernels_agree(stream: bytes, count: int) -> None:
    data = array(stream)
    table = np.zeros((1, 13), np.int64)
    table[0] = -HEADER_SIZE, HEADER_SIZE + data.size, 0, 1000, 0, 0, 0, 0, -1, -1, -1, count, 2
    for fmt in Format:
        sizes = np.zeros(1, np.int64)
        sized = sizing.sizes(int(fmt), data, 0, table, 0, 2**62, PREFIX.size, sizes)
        out = np.empty(20 * len(stream) + 2000, np.uint8)
        *rendered, position = rendering.render(int(fmt), data, 0, table, 0, 2**62, PREFIX, out, 0)
        assert list(sized) == rendered
        if sized[0] == decoding.GOOD:
            assert position == sizes[0]


@given(RECORDS, st.data())
def test_a_batch_with_a_changed_byte_gives_lines_or_an_error(records: list[Record], draw: Any) -> None:
    data = batch_of(records).copy()
    at = draw.draw(st.integers(HEADER_SIZE, data.size - 1))
    data[at] = draw.draw(st.integers(0, 255))
    table = batches.scan(data, check=False)
    for fmt in Format:
        try:
            size = int(fmt.sizes(data, table, 0, LABELS).sum())
        except CorruptBatchError:
            with pytest.raises(CorruptBatchError):
                rendered(fmt, data, table, 0, 0, 2**62, TOPIC, PARTITION)
        else:
            assert rendered(fmt, data, table, 0, 0, 2**62, TOPIC, PARTITION).size == size


def test_an_error_says_which_record_of_which_batch() -> None:
    data = batch_of([Record(b"good")] * 3, 70)
    table = batches.scan(data)
    table[0, COUNT] = 4
    with pytest.raises(CorruptBatchError, match=r"batch at offset 70, record 3 of 4, byte [0-9]+: fewer"):
        Format.TXT.sizes(data, table, 0, LABELS)


@EACH_FORMAT
def test_sizes_for_more_batches_than_there_is_place_for_are_refused(fmt: Format) -> None:
    data = batch_of([Record(b"v")])
    out = np.empty(0, np.int64)
    assert sizing.sizes(int(fmt), data, 0, batches.scan(data), 0, 1, 0, out)[0] == decoding.BAD_LENGTH
