"""The records of `__consumer_offsets` that topicfs writes and reads: positions, and the members of groups.

    position   key OffsetCommitKey: group, topic, partition      value OffsetCommitValue, null when it is removed
    group      key GroupMetadataKey: group                       value GroupMetadataValue, null when it is removed

A group of a newer protocol (consumer, share, streams) has records of other kinds: whose groups these are is noted,
and nothing else of them. Subscriptions and assignments of members are messages of consumers, as Kafka's clients
write them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.messages import writing
from topicfs.engine.messages.reading import message
from topicfs.engine.messages.topics import OFFSETS
from topicfs.engine.record import NO_LEADER_EPOCH, NO_TIMESTAMP, Record

_COMMIT_TYPES: Final = (0, 1)
"""The types of keys of positions: that of Kafka 0.8.2 has the same fields."""

_COMMIT_TYPE: Final = 1
_GROUP_TYPE: Final = 2
_NEWER: Final = {3: "consumer", 11: "share", 17: "streams"}
"""The types of keys that a group of a newer protocol has, once each."""

_COMMIT_VERSION: Final = 3
_GROUP_VERSION: Final = 3
"""The versions that are written: the last ones that every broker since Kafka 2.1, and 2.4, reads."""

_PROTOCOL_VERSION: Final = 1

_CLIENT: Final = "topicfs"
_HOST: Final = "localhost"
_CONSUMER: Final = "consumer"
"""The protocol type of a group whose members are consumers."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far a group has read a partition.

    offset        the first record that it has not read
    committed_ms  when it was committed
    leader_epoch  the leader's epoch of the last record that was read, -1 if nobody told it
    metadata      a text of whoever committed it
    """

    offset: int
    committed_ms: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class Member:
    """A worker of a group.

    name                its name, by which it is known over restarts (`group.instance.id`)
    member_id           a new one at each joining, so that nobody acts for an earlier worker of that name
    session_timeout_ms  how long nobody hears of it before its share is another's
    topics              the topics that it has subscribed to
    given               the partitions that are its own, until it has given them up
    """

    name: str
    member_id: str
    session_timeout_ms: int
    topics: frozenset[str]
    given: frozenset[PartitionKey] = frozenset()


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """The members of a group.

    generation  rises whenever its partitions are divided anew
    strategy    how they are divided; None of a group without members
    since_ms    when it was last changed
    members     by name
    """

    generation: int
    strategy: str | None
    since_ms: int
    members: Mapping[str, Member]


@dataclass(frozen=True, slots=True)
class PositionEntry:
    """A position of a group, or None where it is removed."""

    group: str
    key: PartitionKey
    position: Position | None


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """The members of a group, or None where the group is removed."""

    group: str
    metadata: GroupMetadata | None


@dataclass(frozen=True, slots=True)
class NewerEntry:
    """A group belongs to a newer protocol, or no longer.

    protocol  `consumer`, `share` or `streams`
    """

    group: str
    protocol: str
    is_there: bool


Entry = PositionEntry | GroupEntry | NewerEntry


def position_records(group: str, positions: Mapping[PartitionKey, Position | None]) -> list[Record]:
    """Return the records that commit positions of a group, or remove them. Whoever appends them, also within a
    transaction, does so to the partition of `partition_of`; `Groups` then finds them in the log."""
    return [record_of(PositionEntry(group, key, position)) for key, position in positions.items()]


# -- writing ------------------------------------------------------------------------------------------


def record_of(entry: PositionEntry | GroupEntry) -> Record:
    """Return the record of an entry."""
    if isinstance(entry, GroupEntry):
        key = writing.key(OFFSETS, _GROUP_TYPE, {"group": entry.group})
        return Record(None if entry.metadata is None else _group_value(entry.metadata), key)
    topic, number = entry.key
    key = writing.key(OFFSETS, _COMMIT_TYPE, {"group": entry.group, "topic": topic, "partition": number})
    found = entry.position
    if found is None:
        return Record(None, key)
    fields = {
        "offset": found.offset,
        "leaderEpoch": found.leader_epoch,
        "metadata": found.metadata,
        "commitTimestamp": found.committed_ms,
    }
    return Record(writing.value(OFFSETS, _COMMIT_TYPE, _COMMIT_VERSION, fields), key)


def _group_value(metadata: GroupMetadata) -> bytes:
    members = sorted(metadata.members.values(), key=lambda member: member.name)
    fields = {
        "protocolType": _CONSUMER if members else "",
        "generation": metadata.generation,
        "protocol": metadata.strategy if members else None,
        "leader": members[0].member_id if members else None,
        "currentStateTimestamp": metadata.since_ms,
        "members": [_member_fields(member) for member in members],
    }
    return writing.value(OFFSETS, _GROUP_TYPE, _GROUP_VERSION, fields)


def _member_fields(member: Member) -> dict[str, Any]:
    given: dict[str, list[int]] = {}
    for topic, number in sorted(member.given):
        given.setdefault(topic, []).append(number)
    parts = [{"topic": topic, "partitions": numbers} for topic, numbers in given.items()]
    return {
        "memberId": member.member_id,
        "groupInstanceId": member.name,
        "clientId": _CLIENT,
        "clientHost": _HOST,
        "rebalanceTimeout": member.session_timeout_ms,
        "sessionTimeout": member.session_timeout_ms,
        "subscription": writing.protocol(
            "ConsumerProtocolSubscription",
            _PROTOCOL_VERSION,
            {"topics": sorted(member.topics), "userData": None, "ownedPartitions": parts},
        ),
        "assignment": writing.protocol(
            "ConsumerProtocolAssignment", _PROTOCOL_VERSION, {"assignedPartitions": parts, "userData": None}
        ),
    }


# -- reading ------------------------------------------------------------------------------------------


def entry_of(key: bytes, value: bytes | None) -> Entry | None:
    """Return what a record says; None if it is of no kind that is needed, or no message."""
    found, said = message(OFFSETS, key, value)
    if found is None or (said is None and value is not None):
        return None
    kind, fields = found["type"], found["data"]
    data = None if said is None else said["data"]
    if kind in _COMMIT_TYPES:
        place = (sys.intern(fields["topic"]), fields["partition"])
        return PositionEntry(fields["group"], place, None if data is None else _position(data))
    if kind == _GROUP_TYPE:
        return GroupEntry(fields["group"], None if data is None else _metadata(data))
    if kind in _NEWER:
        return NewerEntry(fields["groupId"], _NEWER[kind], data is not None)
    return None


def _position(data: dict[str, Any]) -> Position:
    epoch = data.get("leaderEpoch", NO_LEADER_EPOCH)
    return Position(data["offset"], data["commitTimestamp"], epoch, data["metadata"])


def _metadata(data: dict[str, Any]) -> GroupMetadata:
    members: dict[str, Member] = {}
    for each in data["members"]:
        name = each.get("groupInstanceId") or each["memberId"]
        subscription, assignment = each["subscription"], each["assignment"]
        # The members of other kinds of groups, such as those of Kafka Connect, have bytes of their own here.
        parts = assignment["assignedPartitions"] if isinstance(assignment, dict) else ()
        members[name] = Member(
            name,
            each["memberId"],
            each["sessionTimeout"],
            frozenset(subscription["topics"] if isinstance(subscription, dict) else ()),
            frozenset((part["topic"], number) for part in parts for number in part["partitions"]),
        )
    since_ms = data.get("currentStateTimestamp", NO_TIMESTAMP)
    return GroupMetadata(data["generation"], data["protocol"], since_ms, members)
