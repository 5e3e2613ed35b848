"""Rows on their way into a log, as lines for an inbox and as columns: whatever bytes are in them, all come through."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partition_opening import NOW

from topicfs.engine.errors import InvalidRecordError
from topicfs.engine.spark.arrow_columns import columns_of
from topicfs.engine.spark.lines import lines

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

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
    st.none() | st.integers(-(10**15), 25 * 10**16),
    st.none() | headers,
)


def batch(records: list[tuple[Any, ...]]) -> pa.RecordBatch:
    """As Spark gives it to a writer."""
    value, key, partition, micros, listed = zip(*records, strict=True)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(value, pa.binary()),
            pa.array(key, pa.binary()),
            pa.array(partition, pa.int32()),
            pa.array(micros, pa.int64()).cast(pa.timestamp("us", "UTC")),
            pa.array(listed, HEADERS),
        ],
        ["value", "key", "partition", "timestamp", "headers"],
    )


def member(name: str, found: dict[str, Any]) -> bytes | None:
    """What a member says, in either of its forms."""
    if f"{name}_base64" in found:
        assert name not in found
        data = base64.b64decode(found[f"{name}_base64"], validate=True)
        with pytest.raises(UnicodeDecodeError):
            data.decode()
        return data
    text = found[name]
    return None if text is None else text.encode()


def record(line: bytes) -> tuple[Any, ...]:
    """A line, as a reader of JSON has it."""
    found = json.loads(line)
    listed = [(each["key"], member("value", each)) for each in found.get("headers", [])]
    assert found.get("headers") != [], "no headers are no member"
    return (
        member("value", found),
        member("key", found),
        found.get("partition"),
        found.get("timestamp"),
        listed,
    )


@given(st.lists(rows, min_size=1, max_size=8), st.integers(0, 7))
def test_a_reader_of_json_gets_each_row_back(records: list[tuple[Any, ...]], skipped: int) -> None:
    skipped = min(skipped, len(records) - 1)
    made = lines(batch(records).slice(skipped))
    assert made.endswith(b"\n")
    expected = [
        (value, key, partition, None if micros is None else micros // 1000, listed or [])
        for value, key, partition, micros, listed in records[skipped:]
    ]
    assert [record(line) for line in made.split(b"\n")[:-1]] == expected


@given(st.lists(rows, min_size=1, max_size=8), st.integers(0, 7))
def test_columns_hold_each_row(records: list[tuple[Any, ...]], skipped: int) -> None:
    skipped = min(skipped, len(records) - 1)
    found = columns_of(batch(records).slice(skipped), NOW).records()
    expected = [
        (value, key, NOW if micros is None else micros // 1000, tuple(listed or ()))
        for value, key, _, micros, listed in records[skipped:]
    ]
    assert [(each.value, each.key, each.timestamp, each.headers) for each in found] == expected


def test_only_rows_that_need_it_are_base64() -> None:
    made = lines(batch([(b"plain", b"k", None, None, None), (b"\xff", "ü".encode(), None, None, None)]))
    assert made == '{"value":"plain","key":"k"}\n{"value_base64":"/w==","key":"ü"}\n'.encode()


def test_no_rows_are_no_lines() -> None:
    assert lines(batch([(b"x", None, None, None, None)]).slice(1)) == b""


@pytest.mark.parametrize("header", [None, {"key": None, "value": b"x"}])
def test_a_header_without_a_key_is_refused_in_words(header: dict[str, Any] | None) -> None:
    arrived = batch([(b"x", None, None, None, [{"key": "h", "value": None}, header])])
    for taken in (lines, lambda found: columns_of(found, 0)):
        with pytest.raises(InvalidRecordError, match="expected a key in each header, found null"):
            taken(arrived)


def test_a_time_before_the_epoch_is_rounded_down() -> None:
    moment = EPOCH - timedelta(microseconds=1)
    arrived = pa.RecordBatch.from_pydict(
        {"value": pa.array([b"x"]), "timestamp": pa.array([moment], pa.timestamp("us", "UTC"))}
    )
    assert lines(arrived) == b'{"value":"x","timestamp":-1}\n'
