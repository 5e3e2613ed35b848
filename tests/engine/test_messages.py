"""Kafka's own messages as JSON: each message in each version, and whatever bytes are in their place."""

from __future__ import annotations

import json
import struct
from random import Random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from plain_messages import CASES, Json, record_of, unsigned

from topicfs.engine.format.messages import OF_TOPICS, Message
from topicfs.engine.kernels.messages import MALFORMED, NONE, measure, topic_of, write_key, write_value

OFFSETS = "__consumer_offsets"
METADATA = "__cluster_metadata"
COMMIT_KEY = struct.pack(">hh1sh1si", 1, 1, b"g", 1, b"t", 0)
GUARD = 64


def json_of(topic: str, key: bytes | None, value: bytes | None) -> tuple[Json, Json]:
    """What the kernels make of a record: key and value, "none" for what is no message. What they write has the size
    that they told before, and nothing behind it is touched."""
    data = np.frombuffer(b"before" + (key or b"") + (value or b"") + b"\x01behind", np.uint8)
    key_length = -1 if key is None else len(key)
    value_length = -1 if value is None else len(value)
    start = 6 + max(key_length, 0)
    number = topic_of(topic)
    sizes = measure(number, data, 6, key_length, start, value_length)
    found = []
    for is_value, size in enumerate(sizes):
        if size == MALFORMED:
            found.append("none")
            continue
        out = np.full(size + GUARD, 0xA5, np.uint8)
        exact = out[:size]
        end = (
            write_value(number, data, 6, start, value_length, exact, 0)
            if is_value
            else write_key(number, data, 6, key_length, exact, 0)
        )
        assert end == size
        assert (out[size:] == 0xA5).all()
        found.append(json.loads(exact.tobytes()))
    return found[0], found[1]


@pytest.mark.parametrize(
    ("topic", "message", "version"), CASES, ids=[f"{each.name}-{version}" for _, each, version in CASES]
)
@given(st.integers(0, 2**32))
def test_each_message_is_shown_with_the_names_of_its_fields(
    topic: str, message: Message, version: int, seed: int
) -> None:
    key, value, key_json, value_json = record_of(topic, message, version, Random(seed))
    assert json_of(topic, key, value) == (key_json or "none", value_json)


@given(st.sampled_from(CASES), st.integers(0, 2**32), st.data())
def test_a_message_that_is_cut_short_or_goes_on_is_none(
    case: tuple[str, Message, int], seed: int, data: st.DataObject
) -> None:
    topic, message, version = case
    key, value, key_json, _ = record_of(topic, message, version, Random(seed))
    wrong = value[: data.draw(st.integers(0, len(value) - 1))] if data.draw(st.booleans()) else value + b"\0"
    assert json_of(topic, key, wrong) == (key_json or "none", "none")
    if key is not None:
        assert json_of(topic, key[:-1], value) == json_of(topic, key + b"\0", value) == ("none", "none")


@given(
    st.sampled_from(CASES),
    st.integers(0, 2**32),
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 255))),
)
def test_a_damaged_message_is_none_or_valid_json(
    case: tuple[str, Message, int], seed: int, changes: list[tuple[int, int]]
) -> None:
    topic, message, version = case
    key, value, *_ = record_of(topic, message, version, Random(seed))
    damaged = bytearray((key or b"") + value)
    for at, byte in changes:
        damaged[at % len(damaged)] = byte
    length = len(key or b"")
    json_of(topic, None if key is None else bytes(damaged[:length]), bytes(damaged[length:]))


@given(
    st.sampled_from(sorted(OF_TOPICS)),
    st.none() | st.binary(max_size=60),
    st.none() | st.binary(max_size=200),
)
@example(OFFSETS, b"\0\1", b"")
def test_any_bytes_are_none_or_valid_json(topic: str, key: bytes | None, value: bytes | None) -> None:
    json_of(topic, key, value)


def test_a_length_beyond_the_message_is_not_believed() -> None:
    value = struct.pack(">hqi", 3, 5, -1) + struct.pack(">h", 2**15 - 1)
    assert json_of(OFFSETS, COMMIT_KEY, value)[1] == "none"
    members = struct.pack(">hhi", 3, 0, 4) + struct.pack(">hhqi", 0, 0, 9, 2**31 - 1)
    assert json_of(OFFSETS, struct.pack(">hh", 2, 0), members)[1] == "none"


def test_a_version_or_a_type_that_is_not_known_is_none() -> None:
    commit = struct.pack(">qih", 5, -1, 0) + struct.pack(">q", 9)
    assert json_of(OFFSETS, COMMIT_KEY, struct.pack(">h", 3) + commit)[1] != "none"
    for version in (-1, 5, 2**15 - 1):
        assert json_of(OFFSETS, COMMIT_KEY, struct.pack(">h", version) + commit)[1] == "none"
    for kind in (-1, 9, 18, 24, 2**15 - 1):
        assert json_of(OFFSETS, struct.pack(">hh1s", kind, 1, b"g"), b"\0\0") == ("none", "none")


def test_a_null_value_is_none() -> None:
    assert json_of(OFFSETS, COMMIT_KEY, None) == (
        {"type": 1, "data": {"group": "g", "topic": "t", "partition": 0}},
        "none",
    )


def test_text_that_is_not_utf_8_makes_no_message() -> None:
    assert json_of(OFFSETS, COMMIT_KEY.replace(b"t", b"\xff"), None) == ("none", "none")


def group(subscription: bytes, protocol: bytes = b"consumer") -> bytes:
    """The value of a group with one member."""
    member = struct.pack(">hhhi", 0, 0, 0, 6000) + struct.pack(">i", len(subscription)) + subscription
    return (
        struct.pack(f">hh{len(protocol)}sihhi", 0, len(protocol), protocol, 1, -1, -1, 1)
        + member
        + struct.pack(">i", 0)
    )


def test_what_a_member_says_is_shown_as_bytes_where_it_is_no_message_of_consumers() -> None:
    """More is written of a message than its bytes take as base64, before it turns out to be none."""
    topics = struct.pack(">hi", 0, 40) + struct.pack(">h", 0) * 40
    whole = topics + struct.pack(">i", -1)
    key = struct.pack(">hh", 2, 0)
    for subscription, protocol, is_message in (
        (whole, b"consumer", True),
        (whole, b"connect", False),
        (whole + b"\0", b"consumer", False),
        (topics + b"\0", b"consumer", False),
        (b"\0\4" + whole[2:], b"consumer", False),
        (b"", b"consumer", False),
        (b"\0", b"consumer", False),
    ):
        _, value = json_of(OFFSETS, key, group(subscription, protocol))
        shown = value["data"]["members"][0]["subscription"]
        assert (shown == {"topics": [""] * 40, "userData": None}) if is_message else isinstance(shown, str)


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0.5, 0.5), (0.1, 0.1), (-12.25, -12.25), (1e7, 1e7), (2.0**53 - 1, 2.0**53 - 1), (2.0**53, None),
     (1 / 3, None), (float("inf"), None), (float("nan"), None), (5e-324, None)],
)  # fmt: skip
def test_a_fraction_is_shown_exactly_or_not_at_all(number: float, shown: float | None) -> None:
    value = b"\1" + unsigned(14) + b"\0" + b"\1" + b"\2k" + struct.pack(">d", number) + b"\0\0"
    found = json_of(METADATA, None, value)[1]
    assert found == "none" if shown is None else found["data"]["value"] == shown


def test_tags_rise() -> None:
    """A field that came twice would be a name that comes twice."""
    start = struct.pack(">iq", 1, 2)
    change = b"\1" + unsigned(17) + b"\0" + start
    assert json_of(METADATA, None, change + b"\1" + b"\0\1\1")[1]["data"]["fenced"] == 1
    assert json_of(METADATA, None, change + b"\2" + b"\0\1\1" * 2)[1] == "none"


def test_topics_of_others_have_no_messages() -> None:
    assert topic_of("orders") == NONE
    data = np.frombuffer(COMMIT_KEY, np.uint8)
    assert measure(NONE, data, 0, data.size, 0, 0) == (MALFORMED, MALFORMED)


@pytest.mark.parametrize(
    "span", [(-1, 1, 0, 0), (0, 100, 0, 0), (0, 0, 5, 100), (2**63 - 1, 1, 0, 0), (0, 2**63 - 1, 0, 0)]
)
def test_spans_outside_the_buffer_are_none(span: tuple[int, int, int, int]) -> None:
    assert measure(1, np.zeros(10, np.uint8), *span) == (MALFORMED, MALFORMED)
