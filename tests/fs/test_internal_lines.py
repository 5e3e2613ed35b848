"""Lines of Kafka's own topics in jsonl: messages of Kafka's as objects, everything else as in other topics."""

from __future__ import annotations

import json
import struct
from random import Random

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_formats import NOW, array, batch_of, rendered
from plain_messages import CASES, record_of

from topicfs.engine import batch as batches
from topicfs.engine.format.messages import Message
from topicfs.engine.kernels import decode as decoding
from topicfs.engine.record import Codec, Record
from topicfs.fs.formats import Format, labels_of
from topicfs.fs.kernels import render as rendering

OFFSETS = "__consumer_offsets"
KEY = struct.pack(">hh1sh1si", 1, 1, b"g", 1, b"t", 0)
VALUE = struct.pack(">hqihq", 3, 5, -1, 0, 9)
HEAD = b'{"topic":"__consumer_offsets","partition":0,"offset":0,"timestamp":1700000000000,'
SHOWN_KEY = b'"key":{"type":1,"data":{"group":"g","topic":"t","partition":0}}'
SHOWN_VALUE = b'"value":{"version":3,"data":{"offset":5,"leaderEpoch":-1,"metadata":"","commitTimestamp":9}}'


def lines(
    records: list[Record], topic: str = OFFSETS, fmt: Format = Format.JSONL, codec: Codec = Codec.NONE
) -> bytes:
    """The lines of one batch, which have the size that was measured before."""
    data = batch_of(records, 0, codec)
    return rendered(fmt, data, batches.scan(data), 0, 0, len(records), topic, 0).tobytes()


@pytest.mark.parametrize("codec", list(Codec))
def test_a_message_is_an_object(codec: Codec) -> None:
    found = lines([Record(VALUE, KEY, NOW, (("h", b"x"),))], codec=codec)
    assert found == HEAD + SHOWN_KEY + b"," + SHOWN_VALUE + b',"headers":[{"key":"h","value":"x"}]}\n'


def test_null_stays_null() -> None:
    assert lines([Record(None, KEY, NOW)]) == HEAD + SHOWN_KEY + b',"value":null,"headers":[]}\n'
    assert lines([Record(b"v", None, NOW)]) == HEAD + b'"key":null,"value":"v","headers":[]}\n'


def test_what_is_no_message_is_shown_as_in_other_topics() -> None:
    for value in (VALUE + b"\0", VALUE[:-1], b"\0\5" + VALUE[2:], b"text"):
        (found,) = map(json.loads, lines([Record(value, KEY, NOW)]).splitlines())
        (other,) = map(json.loads, lines([Record(value, KEY, NOW)], "orders").splitlines())
        assert [found.get(name) for name in ("value", "value_base64")] == [
            other.get(name) for name in ("value", "value_base64")
        ]
        assert found["key"]["type"] == 1
    unknown = [Record(VALUE, KEY[:-1], NOW)]
    assert lines(unknown).replace(b"__consumer_offsets", b"orders") == lines(unknown, "orders")


def test_txt_and_tsv_have_the_bytes() -> None:
    for fmt in (Format.TXT, Format.TSV):
        assert lines([Record(VALUE, KEY, NOW)], OFFSETS, fmt) == lines(
            [Record(VALUE, KEY, NOW)], "orders", fmt
        )


@given(
    st.lists(st.tuples(st.sampled_from(CASES), st.integers(0, 2**32), st.binary(max_size=3)), max_size=5),
    st.integers(0, 40),
)
def test_each_line_is_valid_json_whatever_is_in_the_record(
    made: list[tuple[tuple[str, Message, int], int, bytes]], cut: int
) -> None:
    for topic in {case[0] for case, *_ in made}:
        records = []
        for (each, message, version), seed, end in made:
            key, value, *_ = record_of(each, message, version, Random(seed))
            records += [Record(value, key, NOW), Record(value[: len(value) - cut] + end, key, NOW)]
        found = lines(records, topic).splitlines()
        assert [orjson.loads(line)["offset"] for line in found] == list(range(len(records)))


def test_a_line_is_written_whole_or_not_at_all() -> None:
    records = [Record(VALUE, KEY, NOW), Record(VALUE + b"\0", KEY, NOW), Record(None, KEY, NOW)]
    data, whole, labels = batch_of(records), lines(records), labels_of(OFFSETS, 0)
    ends = np.cumsum([len(line) + 1 for line in whole.splitlines()])
    for room in range(len(whole) + 1):
        guarded = np.full(room + 32, 0xA5, np.uint8)
        status, *_, position = rendering.render(
            int(Format.JSONL) + labels.messages,
            data,
            0,
            batches.scan(data),
            0,
            9,
            labels.prefix,
            guarded[:room],
            0,
        )
        done = int(np.searchsorted(ends, room, side="right"))
        assert position == (ends[done - 1] if done else 0)
        assert guarded[:position].tobytes() == whole[:position]
        assert (guarded[room:] == 0xA5).all()
        assert status == (decoding.GOOD if done == len(records) else rendering.NO_ROOM)


def test_a_line_that_is_shown_as_an_object_is_refused_when_it_is_appended() -> None:
    error = Format.JSONL.parse(array(lines([Record(VALUE, KEY, NOW)])), NOW).error
    assert error is not None
    assert "appended as tsv or base64" in error.reason
