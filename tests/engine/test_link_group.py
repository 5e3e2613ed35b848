"""How a group of daemons divides partitions, and what a lease that is over keeps a mirror from."""

from __future__ import annotations

import random
from typing import Any

import pytest
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest, MetadataResponse
from stand_in_broker import StandInBroker

from topicfs.engine.errors import ClusterAwayError
from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.link import group as groups
from topicfs.engine.link.client import ClientSettings
from topicfs.engine.link.connection import Address
from topicfs.engine.link.division import Claim, divided
from topicfs.engine.link.group import Group

TOPICS = frozenset({"a", "b"})
KEYS = frozenset((topic, number) for topic in TOPICS for number in range(5))


def claim(owned: frozenset[PartitionKey] = frozenset(), generation: int = 1) -> Claim:
    return Claim(TOPICS, owned, generation)


def test_all_partitions_are_divided_evenly_among_who_joins_first() -> None:
    given = divided(KEYS, {"x": claim(), "y": claim(), "z": claim()})
    assert sorted(map(len, given.values())) == [3, 3, 4]
    assert frozenset().union(*given.values()) == KEYS


def test_what_one_has_to_give_up_is_given_to_nobody_before_it_has() -> None:
    first = divided(KEYS, {"x": claim(KEYS), "y": claim()})
    assert first["y"] == frozenset()
    assert len(first["x"]) == 5
    second = divided(KEYS, {"x": claim(first["x"], 2), "y": claim(frozenset(), 2)})
    assert second["x"] == first["x"]
    assert second["y"] == KEYS - first["x"]


def test_of_two_who_claim_a_partition_the_later_generation_has_it() -> None:
    given = divided(KEYS, {"frozen": claim(KEYS, 1), "awake": claim(KEYS, 2)})
    assert given["frozen"] == frozenset()
    assert len(given["awake"]) == 5


def test_who_does_not_mirror_a_topic_gets_none_of_it() -> None:
    given = divided(KEYS, {"x": claim(), "y": Claim(frozenset({"a"}), frozenset(), 1)})
    assert {topic for topic, _ in given["y"]} == {"a"}
    assert given["x"] | given["y"] == KEYS


@pytest.mark.parametrize("seed", range(20))
def test_no_partition_ever_has_two_and_soon_each_has_one(seed: int) -> None:
    chance = random.Random(seed)
    held: dict[str, frozenset[PartitionKey]] = {}
    for generation in range(12):
        if generation < 8:
            held = {name: keys for name, keys in held.items() if chance.random() < 0.8}
            held.setdefault(chance.choice("vwxyz"), frozenset())
        given = divided(KEYS, {name: claim(keys, generation) for name, keys in held.items()})
        counted = [key for keys in given.values() for key in keys]
        assert len(counted) == len(set(counted))
        for name, keys in given.items():
            others = frozenset().union(*(each for other, each in held.items() if other != name))
            assert not keys & others - held[name], "nobody is given what another one still has"
        held = given
    assert frozenset().union(*held.values()) == KEYS
    assert max(map(len, held.values())) - min(map(len, held.values())) <= 1


def test_a_lease_ends_before_the_session_does(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(groups, "boot_s", lambda: now)
    group = Group.of("g", ClientSettings(session_timeout_ms=10_000), [Address("127.0.0.1", 1)])
    group._assigned = KEYS
    group._renew(now)
    now = 108.9
    assert group.may_write(("a", 0))
    assert not group.may_write(("c", 0))
    now = 109.1
    assert not group.may_write(("a", 0))
    assert group.given == KEYS, "it is shown on"
    group.close()


def test_a_member_finds_its_coordinator_when_the_brokers_given_at_the_start_are_gone() -> None:
    with StandInBroker.running() as first, StandInBroker.running() as second:

        def tell_both(_: Any, answer: Any) -> None:
            broker = MetadataResponse.MetadataResponseBroker(
                version=12, node_id=2, host="127.0.0.1", port=second.port, rack=None
            )
            answer.brokers = [*answer.brokers, broker]

        def coordinates(_: Any, answer: Any) -> None:
            answer.port = second.port

        first.twist = {MetadataRequest: tell_both, FindCoordinatorRequest: coordinates}
        group = Group.of("g", ClientSettings(), [Address("127.0.0.1", first.port)])
        group.topics, group.wanted = frozenset({"t"}), frozenset({("t", 0)})
        try:
            group.step()
            assert group.given == {("t", 0)}
            first.go()
            second.beats = [16]
            with pytest.raises(ClusterAwayError):
                group.step()
            group.step()
            assert group.error is None
        finally:
            group.close()
