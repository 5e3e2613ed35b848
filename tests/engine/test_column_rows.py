"""Rows in Arrow as records: whatever bytes and types are in them, all come through or are refused."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partition_opening import NOW

from topicfs import Record
from topicfs.engine.column_files.rows import rows_of
from topicfs.engine.errors import InvalidRecordError
from topicfs.engine.inbox.rows import NO_PARTITION

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

# Every length of UTF-8 and what is nearly UTF-8: cut off, overlong, surrogates, beyond the last character.
PIECES = [b"a", b'"', b"\\", b"\n", b"\x00", b"\x1f", b"\x7f", "ü€😀\u2028\ud7ff\ue000\U0010ffff".encode()]
PIECES += [b"\xff", b"\x80", b"\xc3", b"\xe2\x82", b"\xc0\x80", b"\xed\xa0\x80", b"\xf0\x80\x80\x80"]
PIECES += [b"\xf4\x90\x80\x80", b"\xe0\x80\x80"]
some_bytes = st.one_of(st.lists(st.sampled_from(PIECES), max_size=4).map(b"".join), st.binary(max_size=6))
some_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
headers = st.lists(st.tuples(some_text, st.none() | some_bytes), max_size=3)
rows = st.tuples(
    st.none() | some_bytes,
    st.none() | some_bytes,
    st.none() | st.integers(0, 5),
    st.none() | st.integers(0, 25 * 10**16),
    st.none() | headers,
)
VALUES = (
    pa.binary(),
    pa.string(),
    pa.large_binary(),
    pa.large_string(),
    pa.binary_view(),
    pa.string_view(),
    pa.dictionary(pa.int16(), pa.binary()),
    pa.dictionary(pa.int8(), pa.large_binary()),
)


def as_kind(values: list[bytes | None], kind: pa.DataType) -> pa.Array:
    """Bytes in a type, which as text need not be UTF-8."""
    made = pa.array(values, pa.binary())
    if pa.types.is_dictionary(kind):
        return made.cast(kind.value_type).dictionary_encode().cast(kind)
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    if not text:
        return made.cast(kind)
    wide = {
        pa.string(): pa.binary(),
        pa.large_string(): pa.large_binary(),
        pa.string_view(): pa.binary_view(),
    }[kind]
    raw = made.cast(wide)
    return pa.Array.from_buffers(kind, len(values), raw.buffers(), raw.null_count)


def batch(records: list[tuple[Any, ...]], kind: pa.DataType = VALUES[0]) -> pa.RecordBatch:
    """As Spark gives it to a writer, or as others have it."""
    value, key, partition, micros, listed = zip(*records, strict=True)
    return pa.RecordBatch.from_arrays(
        [
            as_kind(list(value), kind),
            as_kind(list(key), kind),
            pa.array(partition, pa.int32()),
            pa.array(micros, pa.int64()).cast(pa.timestamp("us", "UTC")),
            pa.array(listed, HEADERS),
        ],
        ["value", "key", "partition", "timestamp", "headers"],
    )


@given(st.lists(rows, min_size=1, max_size=8), st.integers(0, 7), st.sampled_from(VALUES))
def test_columns_hold_each_row(records: list[tuple[Any, ...]], skipped: int, kind: pa.DataType) -> None:
    skipped = min(skipped, len(records) - 1)
    found = rows_of(batch(records, kind).slice(skipped))
    expected = [
        Record(value, key, NOW if micros is None else micros // 1000, tuple(listed or ()), place)
        for place, (value, key, _, micros, listed) in enumerate(records[skipped:])
    ]
    assert list(found.dated(NOW).records()) == expected
    named = [NO_PARTITION if each[2] is None else each[2] for each in records[skipped:]]
    assert found.partitions.tolist() == named


def one(value: Any = b"x", **columns: pa.Array) -> pa.RecordBatch:
    """A row without any of the columns but these."""
    return pa.RecordBatch.from_pydict({"value": pa.array([value]), **columns})


def test_what_is_not_there_is_null() -> None:
    assert list(rows_of(one()).dated(NOW).records()) == [Record(b"x", None, NOW, (), 0)]
    assert list(rows_of(one(None)).dated(NOW).records()) == [Record(None, None, NOW, (), 0)]
    assert len(rows_of(batch([(b"x", None, None, None, None)]).slice(1))) == 0


@pytest.mark.parametrize("wide", [False, True])
def test_headers_may_be_a_map_or_a_long_list_or_of_a_dictionary(wide: bool) -> None:
    pairs = [[("h", b"1"), ("", None)], None, [], [("ü", b"")]]
    asked = [
        pa.array(pairs, pa.map_(pa.string(), pa.binary())),
        pa.array(
            [
                each and [dict(zip(("value", "key"), (value, key), strict=True)) for key, value in each]
                for each in pairs
            ],
            (pa.large_list if wide else pa.list_)(
                pa.struct([("value", pa.large_binary()), ("key", pa.dictionary(pa.int32(), pa.string()))])
            ),
        ),
    ]
    for headers in asked:
        values = pa.array([b"x"] * len(pairs))
        found = rows_of(pa.record_batch({"value": values, "headers": headers}).slice(1)).columns.records()
        assert [record.headers for record in found] == [tuple(each or ()) for each in pairs[1:]]


def test_headers_that_could_not_be_written_are_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where names and values together have more bytes than a position can count."""
    values = pa.record_batch({"value": [b"v"], "headers": pa.array([[{"key": "k", "value": b"h"}]], HEADERS)})
    assert len(rows_of(values)) == 1
    monkeypatch.setattr("topicfs.engine.column_files.rows.sections.write", lambda *_: -1)
    with pytest.raises(InvalidRecordError, match="a header goes beyond the 2 bytes"):
        rows_of(values)


@pytest.mark.parametrize("header", [None, {"key": None, "value": b"x"}])
def test_a_header_without_a_key_is_refused_in_words(header: dict[str, Any] | None) -> None:
    with pytest.raises(InvalidRecordError, match="expected a key in each header, found null") as refused:
        rows_of(
            batch([(b"x",) + (None,) * 4, (b"x", None, None, None, [{"key": "h", "value": None}, header])])
        )
    assert refused.value.indexes == (1,)


@pytest.mark.parametrize(
    ("kind", "given", "milliseconds"),
    [
        (pa.timestamp("s"), 7, 7000),
        (pa.timestamp("ms", "Europe/Berlin"), 7, 7),
        (pa.timestamp("us"), 7999, 7),
        (pa.timestamp("ns"), 7_999_999, 7),
        (pa.timestamp("us"), -1, -1),
        (pa.int64(), 7, 7),
        (pa.uint16(), 7, 7),
        (pa.int64(), -1, -1),
    ],
)
def test_times_are_whole_milliseconds_rounded_down(kind: pa.DataType, given: int, milliseconds: int) -> None:
    plain = pa.int64() if pa.types.is_timestamp(kind) else kind
    times = pa.array([None, given], plain).cast(kind)
    found = rows_of(pa.record_batch({"value": pa.array([b"x", b"y"]), "timestamp": times}))
    assert found.dated(NOW).timestamps.tolist() == [NOW, milliseconds]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("timestamp", pa.array([None, 0, -2], pa.int64())),
        ("timestamp", pa.array([None, 0, 1 << 62]).cast(pa.timestamp("s"))),
        ("timestamp", pa.array([None, 0, -1]).cast(pa.timestamp("s"))),
        ("partition", pa.array([None, 0, -1])),
        ("partition", pa.array([None, 0, 1 << 31])),
    ],
)
def test_numbers_that_no_record_can_have_are_refused_with_their_row(name: str, wrong: pa.Array) -> None:
    values = pa.array([b"x"] * 3)
    with pytest.raises(InvalidRecordError, match=f"expected a {name}") as refused:
        rows_of(pa.record_batch({"value": values, name: wrong}))
    assert refused.value.indexes == (2,)
    assert len(rows_of(pa.record_batch({"value": values, name: wrong}).slice(0, 2))) == 2


def test_values_of_a_dictionary_are_not_repeated() -> None:
    many = pa.DictionaryArray.from_arrays(pa.array([0] * 10_000, pa.int32()), pa.array([b"x" * 1_000_000]))
    found = rows_of(pa.record_batch({"value": many}))
    assert found.columns.buffer.size == 1_000_000
    assert found.columns.value_length.sum(dtype=int) == 10_000_000_000
