"""Membership: who belongs to a group, and what each of its workers has. Nothing here knows time, files or locks.

A partition has one owner at most. So one that is to move is given to its new owner only when the old one has given it
up, by its next sign of life (`gave_up`), by leaving, or by being silent for its session timeout. Until then it is still
in what the old one was given; what it is to give up is what it was given and the target does not say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.groups.assignment import Assignment, Partitions, assign
from topicfs.engine.groups.records import GroupMetadata, Member

NOTHING: frozenset[PartitionKey] = frozenset()


def with_member(metadata: GroupMetadata, member: Member, strategy: str, now_ms: int) -> GroupMetadata:
    """Return the group with a member that joins, or subscribes to other topics."""
    return replace(
        metadata, strategy=strategy, since_ms=now_ms, members={**metadata.members, member.name: member}
    )


def without_members(metadata: GroupMetadata, names: set[str], now_ms: int) -> GroupMetadata:
    """Return the group without members that have left it. The last one takes the strategy along."""
    members = {name: member for name, member in metadata.members.items() if name not in names}
    return replace(
        metadata, strategy=metadata.strategy if members else None, since_ms=now_ms, members=members
    )


def target_of(
    metadata: GroupMetadata, topics: Mapping[str, frozenset[str]], partitions: Partitions
) -> Assignment:
    """Return what each member is to have. `topics` is what each has subscribed to."""
    if metadata.strategy is None:
        return {}
    owned = {name: member.given for name, member in metadata.members.items()}
    return assign(metadata.strategy, topics, partitions, owned)


def divided(metadata: GroupMetadata, target: Assignment, now_ms: int) -> GroupMetadata:
    """Return the next generation of the group, in which each member has what the target says and nobody else has."""
    found = replace(metadata, generation=metadata.generation + 1, since_ms=now_ms)
    return settled(found, target)


def gave_up(metadata: GroupMetadata, name: str, target: Assignment) -> GroupMetadata:
    """Return the group after a sign of life of a member, which works on nothing that it was to give up any more."""
    member = metadata.members[name]
    left = replace(member, given=member.given & target.get(name, NOTHING))
    if left == member:
        return metadata
    return settled(replace(metadata, members={**metadata.members, name: left}), target)


def settled(metadata: GroupMetadata, target: Assignment) -> GroupMetadata:
    """Return the group in which each member also has those of its partitions that nobody else has."""
    held = NOTHING.union(*(member.given for member in metadata.members.values()))
    members = {
        name: replace(member, given=member.given | (target.get(name, NOTHING) - held))
        for name, member in metadata.members.items()
    }
    return replace(metadata, members=members)
