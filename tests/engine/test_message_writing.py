"""Kafka's own messages as the coordinators here write them, and the topics that they write them to."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_messages import CASES, record_of

from topicfs import Store
from topicfs.engine.errors import InvalidRecordError
from topicfs.engine.format.messages import Field, Message
from topicfs.engine.messages import reading, writing
from topicfs.engine.messages.topics import OFFSETS, TRANSACTIONS, partition_of
from topicfs.engine.store.internal_topics import numbers


def has_bytes(fields: tuple[Field, ...]) -> bool:
    return any(field.type == "bytes" or has_bytes(field.fields) for field in fields)


WRITTEN = [
    (topic, message, version)
    for topic, message, version in CASES
    if topic in (OFFSETS, TRANSACTIONS) and not has_bytes(message.fields)
]


@pytest.mark.parametrize(
    ("topic", "message", "version"), WRITTEN, ids=[f"{each.name}-{version}" for _, each, version in WRITTEN]
)
@given(st.integers(0, 2**32))
def test_what_is_read_is_written_as_it_was(topic: str, message: Message, version: int, seed: int) -> None:
    key, value, key_json, value_json = record_of(topic, message, version, Random(seed))
    assert message.type is not None
    written = writing.value(topic, message.type, version, value_json["data"])
    assert writing.key(topic, message.type, key_json["data"]) == key
    # Flexible messages may have tagged fields that nobody knows, which are not shown.
    assert written == value or version >= message.flexible
    assert (
        reading.message(topic, key, written) == reading.message(topic, key, value) == (key_json, value_json)
    )


def test_a_members_subscription_is_a_message_inside_a_message() -> None:
    assigned = writing.protocol(
        "ConsumerProtocolAssignment",
        0,
        {"assignedPartitions": [{"topic": "t", "partitions": [0, 1]}], "userData": None},
    )
    member = {
        "memberId": "m", "groupInstanceId": None, "clientId": "c", "clientHost": "h", "rebalanceTimeout": 1,
        "sessionTimeout": 2, "subscription": b"", "assignment": assigned,
    }  # fmt: skip
    value = writing.value(
        OFFSETS,
        2,
        3,
        {
            "protocolType": "consumer", "generation": 1, "protocol": "range", "leader": "m",
            "currentStateTimestamp": 5, "members": [member],
        },
    )  # fmt: skip
    _, found = reading.message(OFFSETS, writing.key(OFFSETS, 2, {"group": "g"}), value)
    assert found is not None
    assert found["data"]["members"][0]["assignment"]["assignedPartitions"] == [
        {"topic": "t", "partitions": [0, 1]}
    ]


def test_what_a_message_cannot_hold_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match="too long"):
        writing.key(TRANSACTIONS, 0, {"transactionalId": "x" * 40_000})
    with pytest.raises(InvalidRecordError, match="null"):
        writing.key(TRANSACTIONS, 0, {"transactionalId": None})
    with pytest.raises(InvalidRecordError, match="version up to 1, found 2"):
        writing.value(TRANSACTIONS, 0, 2, {})


def test_a_tombstone_has_a_key_alone() -> None:
    key = writing.key(TRANSACTIONS, 0, {"transactionalId": "größe"})
    assert reading.message(TRANSACTIONS, key, None) == (
        {"type": 0, "data": {"transactionalId": "größe"}},
        None,
    )
    assert reading.message(TRANSACTIONS, None, b"x") == (None, None)


def test_an_internal_topic_is_made_when_it_is_first_needed(tmp_path: Path) -> None:
    settings = {"transaction.state.log.num.partitions": "3"}
    with Store.open(tmp_path, settings, create=True) as store:
        assert numbers(store, TRANSACTIONS, create=False) == []
        assert numbers(store, TRANSACTIONS, create=True) == [0, 1, 2]
        assert numbers(store, OFFSETS, create=True) == [0]
        assert store.topic_settings(TRANSACTIONS).cleanup_policy_text == "compact"
    with Store.open(tmp_path) as store:
        assert numbers(store, TRANSACTIONS, create=True) == [0, 1, 2]


@pytest.mark.parametrize(
    # The absolute values of Java's `hashCode`: of the third it is negative, of the fourth the smallest number.
    ("name", "of"),
    [("", 0), ("t7", 3651), ("Hello World", 862545276), ("polygenelubricants", 0), ("😀", 1772899)],
)
def test_a_name_leads_to_the_partition_that_a_broker_chooses(name: str, of: int) -> None:
    assert partition_of(name, 50) == of % 50
    assert partition_of(name, 2**31 - 1) == of % (2**31 - 1)
