"""Dividing a cluster's partitions among the daemons of a group: each keeps what it has, as far as all have alike.

What one daemon must give up for another is given to nobody in that generation: it gives it up first, and the next
generation gives it on. So no partition has two daemons, and all others go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.groups.assignment import STICKY, assign


@dataclass(frozen=True, slots=True)
class Claim:
    """What a member of the group says when it joins.

    topics      the topics that it mirrors
    owned       the partitions that it works on
    generation  the generation that gave it those: of two who claim a partition the later one has it
    """

    topics: frozenset[str]
    owned: frozenset[PartitionKey]
    generation: int


def divided(
    partitions: Collection[PartitionKey], claims: Mapping[str, Claim]
) -> dict[str, frozenset[PartitionKey]]:
    """Return what each member is to work on from now on. What is missing in it has to be given up by a member first."""
    owners = _owners(partitions, claims)
    wanted = _balanced(partitions, claims, owners)
    return {
        member: frozenset(key for key in keys if owners.get(key, member) == member)
        for member, keys in wanted.items()
    }


def _owners(partitions: Collection[PartitionKey], claims: Mapping[str, Claim]) -> dict[PartitionKey, str]:
    """Return who has each partition now."""
    owners: dict[PartitionKey, str] = {}
    # The latest generation is entered last. Of two in one generation, which cannot be, any.
    for member, claim in sorted(claims.items(), key=lambda each: (each[1].generation, each[0])):
        for key in claim.owned.intersection(partitions):
            if key[0] in claim.topics:
                owners[key] = member
    return owners


def _balanced(
    partitions: Collection[PartitionKey], claims: Mapping[str, Claim], owners: Mapping[PartitionKey, str]
) -> Mapping[str, frozenset[PartitionKey]]:
    """Return what each member is to have once others have given it up: as even as can be, with few moves."""
    numbers: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        numbers.setdefault(topic, []).append(number)
    owned: dict[str, set[PartitionKey]] = {member: set() for member in claims}
    for key, member in owners.items():
        owned[member].add(key)
    topics = {member: claim.topics for member, claim in claims.items()}
    return assign(STICKY, topics, numbers, owned)
