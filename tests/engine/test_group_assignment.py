"""Assignment of partitions to the workers of a group: each strategy as Kafka's clients have it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicfs.engine.groups.assignment import STRATEGIES, assign

TWO = {"a": [0, 1, 2], "b": [0, 1, 2]}


def shares(strategy: str, *names: str) -> dict[str, list[tuple[str, int]]]:
    """The shares of workers that have subscribed to both topics."""
    found = assign(strategy, {name: {"a", "b"} for name in names}, TWO, {})
    return {name: sorted(keys) for name, keys in found.items()}


def test_range_gives_the_first_workers_one_more_of_each_topic() -> None:
    assert shares("range", "w1", "w2") == {
        "w1": [("a", 0), ("a", 1), ("b", 0), ("b", 1)],
        "w2": [("a", 2), ("b", 2)],
    }


def test_round_robin_goes_on_over_topics() -> None:
    assert shares("roundrobin", "w1", "w2") == {
        "w1": [("a", 0), ("a", 2), ("b", 1)],
        "w2": [("a", 1), ("b", 0), ("b", 2)],
    }


def test_sticky_moves_only_what_a_new_worker_needs() -> None:
    before = assign("cooperative-sticky", {"w1": {"a", "b"}, "w2": {"a", "b"}}, TWO, {})
    after = assign("cooperative-sticky", {name: {"a", "b"} for name in ("w1", "w2", "w3")}, TWO, before)
    assert sorted(map(len, after.values())) == [2, 2, 2]
    assert after["w1"] < before["w1"]
    assert after["w2"] < before["w2"]


def test_sticky_leaves_shares_as_they_are_when_a_worker_goes() -> None:
    before = assign("cooperative-sticky", {name: {"a", "b"} for name in ("w1", "w2", "w3")}, TWO, {})
    after = assign("cooperative-sticky", {name: {"a", "b"} for name in ("w1", "w3")}, TWO, before)
    assert after["w1"] > before["w1"]
    assert after["w3"] > before["w3"]


NAMES = st.sampled_from(["w1", "w2", "w3", "w4"])
TOPICS = st.sets(st.sampled_from(["a", "b", "c"]))


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(
    subscriptions=st.dictionaries(NAMES, TOPICS),
    counts=st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(1, 7)),
    earlier=st.dictionaries(NAMES, TOPICS),
)
def test_each_wanted_partition_has_one_owner_who_subscribed_to_it(
    strategy: str, subscriptions: dict[str, set[str]], counts: dict[str, int], earlier: dict[str, set[str]]
) -> None:
    partitions = {topic: list(range(count)) for topic, count in sorted(counts.items())}
    before = assign(strategy, earlier, partitions, {})
    found = assign(strategy, subscriptions, partitions, before)
    assert found.keys() == subscriptions.keys()
    given = [key for keys in found.values() for key in keys]
    wanted = set().union(*subscriptions.values())
    assert sorted(given) == sorted(
        (t, n) for t, numbers in partitions.items() if t in wanted for n in numbers
    )
    assert all(topic in subscriptions[name] for name, keys in found.items() for topic, _ in keys)
    if strategy == "cooperative-sticky" and len({frozenset(each) for each in subscriptions.values()}) == 1:
        sizes = list(map(len, found.values()))
        assert max(sizes) - min(sizes) <= 1
    if strategy == "cooperative-sticky":
        assert assign(strategy, subscriptions, partitions, found) == found
