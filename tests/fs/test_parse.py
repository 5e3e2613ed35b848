"""Lines → records. FS "Formats": what tsv and jsonl accept, and what they refuse with which words.

A literal newline behind a backslash, which COPY still reads, does not apply: lines are split at newlines first.
COPY's end-of-data line \\. does not either: it has no TAB, and is refused.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_formats import AWKWARD, NOW, array, copy_fields, records_in

from topicfs.engine.errors import EngineError, RecordTooLargeError
from topicfs.engine.record import Record
from topicfs.fs.formats import MAX_LINES, Format, InputError, Parsed
from topicfs.fs.kernels import parse as parsing
from topicfs.fs.kernels import reasons
from topicfs.fs.kernels.parse import NO_PARTITION


def parse(fmt: Format, lines: bytes) -> list[Record]:
    """The records of lines that are all good."""
    found = fmt.parse(array(lines), NOW)
    if found.error is not None:
        raise found.error
    assert found.used == len(lines)
    return records_in(found.columns)


def refused(fmt: Format, lines: bytes) -> InputError:
    """What is wrong with the first line."""
    found = fmt.parse(array(lines), NOW)
    assert found.error is not None
    assert found.error.line == 1
    assert (len(found.columns), len(found.partitions), found.used) == (0, 0, 0)
    return found.error


def one(line: bytes) -> Record:
    (record,) = parse(Format.JSONL, line)
    return record


# -- lines --------------------------------------------------------------------------------------------


LINES = {Format.TXT: b"v", Format.TSV: b"k\tv", Format.JSONL: b'{"key":"k","value":"v"}'}
EACH_FORMAT = pytest.mark.parametrize("fmt", list(Format), ids=lambda fmt: fmt.suffix)


@EACH_FORMAT
def test_each_line_is_a_record_with_or_without_a_last_newline(fmt: Format) -> None:
    key = None if fmt == Format.TXT else b"k"
    expected = [Record(b"v", key, NOW, (), offset) for offset in range(3)]
    assert parse(fmt, (LINES[fmt] + b"\n") * 3) == expected
    assert parse(fmt, (LINES[fmt] + b"\n") * 2 + LINES[fmt]) == expected
    assert parse(fmt, b"") == []


def test_an_empty_line_of_txt_is_an_empty_value() -> None:
    assert [record.value for record in parse(Format.TXT, b"\n\na\n\nb")] == [b"", b"", b"a", b"", b"b"]


@given(st.lists(st.binary(max_size=20).map(lambda data: data.replace(b"\n", b"")), max_size=8))
def test_txt_takes_any_byte_but_the_newline(values: list[bytes]) -> None:
    assert [record.value for record in parse(Format.TXT, b"".join(v + b"\n" for v in values))] == values


@pytest.mark.parametrize("fmt", [Format.TSV, Format.JSONL], ids=lambda fmt: fmt.suffix)
def test_what_comes_before_the_bad_line_is_kept_and_the_rest_is_not(fmt: Format) -> None:
    good, bad = LINES[fmt] + b"\n", b"bad\n"
    found = fmt.parse(array(good * 2 + bad + good), NOW)
    assert [record.value for record in records_in(found.columns)] == [b"v", b"v"]
    assert found.used == 2 * len(good)
    assert found.error is not None
    assert found.error.line == 3
    assert str(found.error).startswith(f"line 3, byte {found.error.position}: ")
    assert isinstance(found.error, EngineError)


def test_more_lines_than_their_places_can_count_are_refused_at_once() -> None:
    lines = np.broadcast_to(np.uint8(10), MAX_LINES + 1)
    for fmt in Format:
        with pytest.raises(RecordTooLargeError, match=f"expected up to {MAX_LINES}"):
            fmt.parse(lines, NOW)


# -- tsv ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        (b"k\tv", b"k", b"v"),
        (b"\t", b"", b""),
        (b"\\N\t\\N", None, None),
        (b"\\\\N\t\\N", b"\\N", None),
        (b"\\Nx\tx\\N", b"Nx", b"xN"),
        (b"\\b\\f\\n\\r\\t\\v\t\\\\", b"\b\f\n\r\t\v", b"\\"),
        (b"\\x41\\x4a\\x4A\t\\x4\\x4g\\xg\\x", b"AJJ", b"\x04\x04gxgx"),
        (b"\\x414\t\\xFF", b"A4", b"\xff"),
        (b"\\0\\1\\12\\101\t\\1012\\8\\777\\400", b"\0\1\nA", b"A28\xff\0"),
        (b'\\.\\a\\"\t\\ ', b'.a"', b" "),
        (b"a\\\tb\tc", b"a\tb", b"c"),
        (b"\b\f\v\0\xff\xc3\t\x7f ", b"\b\f\v\0\xff\xc3", b"\x7f "),
        (b"k" * 50 + b"\t" + b"v" * 50, b"k" * 50, b"v" * 50),
    ],
)
def test_tsv_escapes_are_read_as_copy_reads_them(line: bytes, key: bytes, value: bytes | None) -> None:
    (record,) = parse(Format.TSV, line + b"\n")
    assert (record.key, record.value) == (key, value)
    assert copy_fields(line) == [key, value]


@pytest.mark.parametrize(
    ("line", "position", "reason"),
    [
        (b"", 1, "expected a TAB"),
        (b"no tab", 7, "expected a TAB"),
        (b"\\.", 3, "expected a TAB"),
        (b"a\\\tb", 5, "expected a TAB"),
        (b"k\tv\t", 4, "found another"),
        (b"\t\t", 2, "found another"),
        (b"k\tv\r", 4, "carriage return"),
        (b"k\r\tv", 2, "carriage return"),
        (b"k\tv\\", 4, "backslash ends the line"),
        (b"k\\", 2, "backslash ends the line"),
    ],
)
@pytest.mark.parametrize("end", [b"", b"\n", b"\nk\tv\n", b"\n\n\\\n"])
def test_a_wrong_line_of_tsv_is_refused_where_it_is_wrong(
    line: bytes, position: int, reason: str, end: bytes
) -> None:
    error = refused(Format.TSV, line + (end or (b"\n" if not line else b"")))
    assert error.position == position
    assert reason in error.reason


@given(st.lists(st.sampled_from([b"\\", b"x", b"N", b"n", b"4", b"7", b"\t", b"a", b"\xff"]), max_size=12))
def test_a_line_of_tsv_is_read_as_an_independent_reader_of_copy_does(parts: list[bytes]) -> None:
    line = b"".join(parts)
    found = Format.TSV.parse(array(line + b"\n"), NOW)
    unpaired = (len(line) - len(line.rstrip(b"\\"))) % 2 == 1
    if unpaired or len(fields := copy_fields(line)) != 2:
        assert found.error is not None
    else:
        (record,) = records_in(found.columns)
        assert [record.key, record.value] == fields


# -- jsonl: what is accepted --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "record"),
    [
        (b'{"value":"v"}', Record(b"v", None, NOW)),
        (b'{"value":null}', Record(None, None, NOW)),
        (b'{"value":"","key":""}', Record(b"", b"", NOW)),
        (b'{"key":null,"value":"v"}', Record(b"v", None, NOW)),
        (b' \t\r{ "value" : "v" , "key":\t"k" } \r', Record(b"v", b"k", NOW)),
        (b'{"value":"v","timestamp":5}', Record(b"v", None, 5)),
        (b'{"value":"v","timestamp":-1}', Record(b"v", None, -1)),
        (b'{"value":"v","timestamp":-0}', Record(b"v", None, 0)),
        (b'{"value":"v","timestamp":9223372036854775807}', Record(b"v", None, 2**63 - 1)),
        (b'{"value":"v","timestamp":null}', Record(b"v", None, NOW)),
        (b'{"value_base64":"/w==","key_base64":""}', Record(b"\xff", b"", NOW)),
        (b'{"value_base64":"\\/w\\u003d="}', Record(b"\xff", None, NOW)),
        (b'{"value_base64":null,"key_base64":null}', Record(None, None, NOW)),
        (b'{"\\u0076alu\\u0065":"v"}', Record(b"v", None, NOW)),
        (b'{"topic":"t","offset":9,"partition":2,"value":"v"}', Record(b"v", None, NOW)),
        (b'{"topic":null,"offset":null,"partition":null,"value":"v"}', Record(b"v", None, NOW)),
        (b'{"value":"v","headers":[]}', Record(b"v", None, NOW)),
        (b'{"value":"v","headers":{ }}', Record(b"v", None, NOW)),
        (b'{"value":"v","headers":null}', Record(b"v", None, NOW)),
        (b'{"value":"v","headers":[{"key":"h","value":"x"}]}', Record(b"v", None, NOW, (("h", b"x"),))),
        (b'{"headers":[ { "value" : null , "key" : "" } ],"value":"v"}', Record(b"v", None, NOW, (("", None),))),
        (
            b'{"value":"v","headers":[{"key_base64":"/w==","value_base64":"AP8="},{"key":"\\n","value":""}]}',
            Record(b"v", None, NOW, (("\udcff", b"\0\xff"), ("\n", b""))),
        ),
        (
            b'{"value":"v","headers":{"h":"x", "n" : null,"h":"\\u00e9"}}',
            Record(b"v", None, NOW, (("h", b"x"), ("n", None), ("h", "é".encode()))),
        ),
    ],
)  # fmt: skip
def test_jsonl_accepts(line: bytes, record: Record) -> None:
    assert one(line) == Record(record.value, record.key, record.timestamp, record.headers, 0)


def test_a_partition_is_given_where_a_line_names_one() -> None:
    lines = b'{"value":"a","partition":7}\n{"value":"b"}\n{"value":"c","partition":2147483647}\n'
    assert Format.JSONL.parse(array(lines), NOW).partitions.tolist() == [7, NO_PARTITION, 2**31 - 1]
    assert Format.TSV.parse(array(b"k\tv\n"), NOW).partitions.tolist() == [NO_PARTITION]


@pytest.mark.parametrize("count", [1, 63, 64, 127, 128, 8191, 8192])
def test_any_number_of_headers(count: int) -> None:
    expected = tuple((str(i), None if i % 2 else b"x" * (i % 70)) for i in range(count))
    pairs = [(name, None if value is None else value.decode()) for name, value in expected]
    assert one(json.dumps({"headers": dict(pairs), "value": ""}).encode()).headers == expected
    listed = [{"value": value, "key": name} for name, value in pairs]
    assert one(json.dumps({"headers": listed, "value": ""}).encode()).headers == expected


@given(st.text(st.characters(codec="utf-8"), max_size=60), st.booleans())
def test_strings_are_what_another_writer_of_json_meant(text: str, ascii_only: bool) -> None:
    line = json.dumps({"value": text, "key": text, "headers": {text: text}}, ensure_ascii=ascii_only)
    data = text.encode()
    assert one(line.encode()) == Record(data, data, NOW, ((text, data),), 0)


@given(st.binary(max_size=200))
def test_base64_is_what_another_writer_meant(data: bytes) -> None:
    text = base64.b64encode(data).decode()
    line = {"value_base64": text, "key_base64": text, "headers": [{"key_base64": text, "value_base64": text}]}
    name = data.decode("utf-8", "surrogateescape")
    assert one(json.dumps(line).encode()) == Record(data, data, NOW, ((name, data),), 0)


@pytest.mark.parametrize("letter", '"\\/bfnrt')
def test_each_short_escape_is_read(letter: str) -> None:
    line = f'{{"value":"\\{letter}"}}'.encode()
    assert one(line).value == json.loads(line)["value"].encode()


# -- jsonl: what is refused ---------------------------------------------------------------------------


REFUSED = [
    (b'{"key":{"type":1,"data":{}},"value":null}', 8, "expected a string or null, found an object"),
    (b'{"key":null,"value":{"version":3}}', 21, "is appended as tsv or base64"),
    (b"", 1, "empty line"),
    (b"  ", 3, "empty line"),
    (b"[]", 1, "expected an object, found '[]'"),
    (b'"v"', 1, "expected an object"),
    (b"null", 1, "expected an object"),
    (b'\xef\xbb\xbf{"value":"v"}', 1, "expected an object"),
    (b"{", 2, "expected a member's name in quotes, found the end of the line"),
    (b'{"value":"v"', 13, "expected a comma or the end"),
    (b'{"value":"v",}', 14, "expected a member's name"),
    (b'{,"value":"v"}', 2, "expected a member's name"),
    (b'{value:"v"}', 2, "expected a member's name"),
    (b"{'value':'v'}", 2, "expected a member's name"),
    (b'{"value"}', 9, "expected a colon"),
    (b'{"value" "v"}', 10, "expected a colon"),
    (b'{"value":}', 10, "expected a string or null"),
    (b'{"value":"v"}}', 14, "expected nothing behind the object, found '}'"),
    (b'{"value":"v"} {"value":"v"}', 15, "expected nothing behind"),
    (b'{"value":"v" "key":"k"}', 14, "expected a comma"),
    (b'{"value":5}', 10, "expected a string or null, found '5}'"),
    (b'{"value":{"a":1}}', 10, "expected a string or null"),
    (b'{"value":["a"]}', 10, "expected a string or null"),
    (b'{"value":true}', 10, "expected a string or null"),
    (b'{"value":nul}', 10, "expected a string or null"),
    (b'{"value":nullx}', 14, "expected a comma"),
    (b'{"key":1,"value":"v"}', 8, "expected a string or null"),
    (b'{}', 1, "value is missing"),
    (b' {"key":"k"}', 2, "value is missing"),
    (b'{"valve":"v"}', 2, 'unknown member "valve"'),
    (b'{"Value":"v"}', 2, 'unknown member "Value"'),
    (b'{"":"v"}', 2, 'unknown member ""'),
    (b'{"a_long_name_that_nobody_has_ever_seen":1}', 2, 'unknown member "a_long_name_that_nobody…'),
    (b'{"value":"v","value":"w"}', 14, 'a second member "value"'),
    (b'{"value":"v","value_base64":"dg=="}', 14, 'a second member "value_base64"'),
    (b'{"key_base64":"dg==","key":null,"value":""}', 22, 'a second member "key"'),
    (b'{"offset":1,"offset":1,"value":""}', 13, 'a second member "offset"'),
    (b'{"value":"v}', 10, "not closed"),
    (b'{"value":"v\\"}', 10, "not closed"),
    (b'{"value":"v\\', 10, "not closed"),
    (b'{"value', 2, "not closed"),
    (b'{"value":"a\tb"}', 12, "control character"),
    (b'{"value":"a\0b"}', 12, "control character"),
    (b'{"value":"a\\qb"}', 12, "no escape of JSON"),
    (b'{"value":"a\\u12g4"}', 12, "no escape of JSON"),
    (b'{"value":"a\\u12', 12, "no escape of JSON"),
    (b'{"value":"\\ud800"}', 11, "surrogate"),
    (b'{"value":"\\udc00"}', 11, "surrogate"),
    (b'{"value":"\\ud800\\u0041"}', 11, "surrogate"),
    (b'{"value":"\\ud800\\ud800"}', 11, "surrogate"),
    (b'{"value":"\\ud800\\udc0"}', 11, "surrogate"),
    (b'{"value":"\\ud800x"}', 11, "surrogate"),
    (b'{"value":"\\ud800', 11, "surrogate"),
    (b'{"value":"a\xff"}', 12, "not UTF-8"),
    (b'{"value":"\xed\xa0\x80"}', 11, "not UTF-8"),
    (b'{"value":"\xc3', 11, "not UTF-8"),
    (b'{"value_base64":"dg="}', 17, "not base64"),
    (b'{"value_base64":"dg"}', 17, "not base64"),
    (b'{"value_base64":"d==="}', 17, "not base64"),
    (b'{"value_base64":"===="}', 17, "not base64"),
    (b'{"value_base64":"dh=="}', 17, "not base64"),
    (b'{"value_base64":"dg==dg=="}', 17, "not base64"),
    (b'{"value_base64":"d-_="}', 17, "not base64"),
    (b'{"value_base64":"dg\\n="}', 17, "not base64"),
    (b'{"timestamp":1.5,"value":""}', 14, "whole number"),
    (b'{"timestamp":1e3,"value":""}', 14, "whole number"),
    (b'{"timestamp":01,"value":""}', 14, "whole number"),
    (b'{"timestamp":-,"value":""}', 14, "whole number"),
    (b'{"timestamp":+1,"value":""}', 14, "whole number"),
    (b'{"timestamp":"1","value":""}', 14, "whole number"),
    (b'{"timestamp":NaN,"value":""}', 14, "whole number"),
    (b'{"timestamp":9223372036854775808,"value":""}', 14, "whole number"),
    (b'{"timestamp":99999999999999999999999,"value":""}', 14, "whole number"),
    (b'{"timestamp":-2,"value":""}', 14, "expected a timestamp"),
    (b'{"timestamp":1x,"value":""}', 15, "expected a comma"),
    (b'{"partition":-1,"value":""}', 14, "expected a partition"),
    (b'{"partition":2147483648,"value":""}', 14, "expected a partition"),
    (b'{"offset":"5","value":""}', 11, "whole number"),
    (b'{"topic":5,"value":""}', 10, "expected a string"),
    (b'{"headers":5,"value":""}', 12, "expected headers"),
    (b'{"headers":"h","value":""}', 12, "expected headers"),
    (b'{"headers":[["h","x"]],"value":""}', 13, "expected a header as an object"),
    (b'{"headers":[{}],"value":""}', 13, "a header has no key"),
    (b'{"headers":[{"value":"x"}],"value":""}', 13, "a header has no key"),
    (b'{"headers":[{"key":"h"}],"value":""}', 13, "a header has no value"),
    (b'{"headers":[{"key":null,"value":"x"}],"value":""}', 20, "a header has no key"),
    (b'{"headers":[{"key":"h","value":5}],"value":""}', 32, "expected a string or null"),
    (b'{"headers":[{"key":"h","offset":5}],"value":""}', 24, 'unknown member "offset"'),
    (b'{"headers":[{"key":"h","key_base64":""}],"value":""}', 24, 'a second member "key_base64"'),
    (b'{"headers":[{"key_base64":"-","value":""}],"value":""}', 27, "not base64"),
    (b'{"headers":[{"key":"h","value_base64":"-"}],"value":""}', 39, "not base64"),
    (b'{"headers":[{"key":"h","value":"x"},],"value":""}', 37, "expected a header"),
    (b'{"headers":[{"key":"h","value":"x"}', 36, "expected a comma"),
    (b'{"headers":[{"key":"h","value":"x"}},"value":""}', 36, "expected a comma"),
    (b'{"headers":{"h":5},"value":""}', 17, "expected a string or null"),
    (b'{"headers":{"h"},"value":""}', 16, "expected a colon"),
    (b'{"headers":{5:"h"},"value":""}', 13, "expected a member's name"),
    (b'{"headers":{"h":"x",},"value":""}', 21, "expected a member's name"),
    (b'{"headers":{"h":"x"],"value":""}', 20, "expected a comma"),
    (b'{"headers":[', 13, "expected a header"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "position", "reason"), REFUSED)
def test_a_wrong_line_of_jsonl_is_refused_where_it_is_wrong(line: bytes, position: int, reason: str) -> None:
    for end in (b"\n", b'\n{"value":"v"}\n', b"\n\n\\\xff\n"):
        error = refused(Format.JSONL, line + end)
        assert (error.position, reason in error.reason) == (position, True), error
    if line:
        assert refused(Format.JSONL, line).position == position


def test_every_reason_is_given_by_some_line() -> None:
    given_reasons = {refused(Format.JSONL, line + b"\n").reason for line, _, _ in REFUSED}
    given_reasons |= {refused(Format.TSV, line).reason for line in (b"\n", b"\t\t", b"\r", b"\\")}
    for words in reasons.REASONS.values():
        assert any(said.startswith(words) for said in given_reasons), words


@pytest.mark.parametrize("line", [line for line, _, _ in REFUSED if line])
def test_a_refused_line_cut_anywhere_never_passes_for_a_good_one(line: bytes) -> None:
    for cut in range(1, len(line)):
        found = Format.JSONL.parse(array(line[:cut]), NOW)
        if found.error is None:
            json.loads(line[:cut])


# -- any bytes ----------------------------------------------------------------------------------------


PIECES = st.one_of(
    AWKWARD,
    st.sampled_from(
        [b"{", b"}", b"[", b"]", b":", b",", b'"', b"null", b"\\u", b"d800", b"00e9", b"5", b"-1", b"=", b"dg==",
         b'"value":', b'"key":', b'"headers":', b'"value_base64":', b'"timestamp":', b'"v"', b'{"value":"v"}\n']
    ),
)  # fmt: skip


def guarded_parse(fmt: Format, lines: bytes) -> Parsed:
    """Parse from the middle of an array into exactly the room that the rule gives, between guards."""
    source = array(b"\\" * 32 + lines + b'"' * 32)
    rows = lines.count(b"\n") + 1
    spans = np.zeros((parsing.SPANS_ROWS, rows), np.int32)
    timestamps, partitions = np.zeros(rows, np.int64), np.zeros(rows, np.int32)
    room = len(lines) if fmt == Format.TSV else 2 * len(lines) + parsing.SLACK
    guarded = np.full(room + 64, 0xA5, np.uint8)
    out = guarded[32 : 32 + room]
    if fmt == Format.TSV:
        status, good, _, at, used = parsing.parse_tsv(source, 32, 32 + len(lines), out, spans)
    else:
        status, good, _, at, used = parsing.parse_jsonl(
            source, 32, 32 + len(lines), NOW, out, timestamps, partitions, spans
        )
    assert status != reasons.NO_ROOM
    assert 32 <= at <= 32 + len(lines)
    assert (guarded[:32] == 0xA5).all()
    assert (guarded[-32:] == 0xA5).all()
    found = fmt.parse(array(lines), NOW)
    assert (found.error is None) == (status == reasons.GOOD)
    assert (len(found.columns), found.columns.buffer.tobytes()) == (good, out[:used].tobytes())
    return found


@given(st.binary(max_size=60) | st.lists(PIECES, max_size=14).map(b"".join))
def test_any_bytes_give_records_or_an_error_within_bounds(lines: bytes) -> None:
    for fmt in (Format.TSV, Format.JSONL):
        found = guarded_parse(fmt, lines)
        assert len(list(found.columns.records())) == len(found.columns)
        if found.error is None:
            assert len(found.columns) == lines.count(b"\n") + (not lines.endswith(b"\n") and lines != b"")
        else:
            assert found.error.line == len(found.columns) + 1
            assert lines[: found.used].count(b"\n") == len(found.columns)


@given(st.lists(PIECES, max_size=8).map(b"".join))
def test_a_line_that_is_accepted_is_json(tail: bytes) -> None:
    line = (b'{"value":"v"' + tail).split(b"\n")[0]
    found = Format.JSONL.parse(array(line), NOW)
    if found.error is None:
        assert "value" in {name.removesuffix("_base64") for name in json.loads(line.decode())}


def changed(line: bytes, at: int, byte: int) -> bytes:
    return line[: at % len(line)] + bytes([byte]) + line[at % len(line) + 1 :]


@given(st.integers(0, 200), st.integers(0, 255), st.sampled_from([line for line, _, _ in REFUSED if line]))
def test_a_changed_byte_does_no_harm(at: int, byte: int, line: bytes) -> None:
    guarded_parse(Format.JSONL, changed(line, at, byte))


HUNGRY: list[Any] = [
    {"value": "", "headers": {"": ""}},
    {"value": "", "headers": {str(i): "" for i in range(300)}},
    {"value": "", "headers": [{"key": "", "value": None}] * 300},
    {"value": "x" * 64, "headers": {"n" * 64: "v" * 64}},
    {"value_base64": "", "headers": [{"key_base64": "", "value_base64": ""}] * 100},
    {"value_base64": "AAAA" * 30, "headers": [{"key_base64": "AAAA" * 2100, "value_base64": "AAAA" * 21}]},
]


@pytest.mark.parametrize("members", HUNGRY)
def test_the_rule_for_room_holds_for_lines_that_become_large(members: Any) -> None:
    line = json.dumps(members, separators=(",", ":")).encode()
    assert guarded_parse(Format.JSONL, line).error is None
    assert guarded_parse(Format.JSONL, (line + b"\n") * 20).error is None


def test_too_little_room_is_told_and_nothing_is_written_behind_it() -> None:
    lines = b'{"key":"k","value_base64":"AAAA","headers":{"name":"text"}}\n' * 2
    whole = int(parsing.SLACK + 2 * len(lines))
    for room in range(whole):
        guarded = np.full(room + 32, 0xA5, np.uint8)
        status, good, _, _, used = parsing.parse_jsonl(
            array(lines), 0, len(lines), NOW, guarded[:room],
            np.zeros(2, np.int64), np.zeros(2, np.int32), np.zeros((6, 2), np.int32),
        )  # fmt: skip
        assert (guarded[room:] == 0xA5).all()
        assert used <= room
        assert (status == reasons.GOOD) == (good == 2)
        assert status in (reasons.GOOD, reasons.NO_ROOM)


def test_too_few_rows_are_told() -> None:
    spans = np.zeros((6, 1), np.int32)
    out = np.empty(1000, np.uint8)
    assert parsing.parse_tsv(array(b"\t\n\t\n"), 0, 4, out, spans)[:3] == (reasons.NO_ROOM, 1, 2)
    lines = array(b'{"value":""}\n' * 2)
    one_row = (np.zeros(1, np.int64), np.zeros(1, np.int32), spans)
    assert parsing.parse_jsonl(lines, 0, 26, 0, out, *one_row)[:3] == (reasons.NO_ROOM, 1, 13)
