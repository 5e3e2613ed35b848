"""Assignment: which worker of a group reads which partition. The strategies are Kafka's, by Kafka's names.

range               of each topic, the workers in the order of their names get partitions that follow each other
roundrobin          all partitions, one after the other, go to the workers in turn
cooperative-sticky  as even as can be, and of all such ways the one that moves few partitions: who has one keeps it

Only a worker that has subscribed to a topic gets partitions of it. Nothing here knows time, files or locks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from itertools import cycle
from typing import Final

from topicfs.engine.files.listing import PartitionKey

Subscriptions = Mapping[str, Set[str]]
"""The topics of each worker."""

Partitions = Mapping[str, Sequence[int]]
"""The numbers of each topic's partitions, in order."""

Assignment = dict[str, frozenset[PartitionKey]]
"""The partitions of each worker; the sets have nothing in common."""


STICKY: Final = "cooperative-sticky"


def assign(
    strategy: str,
    subscriptions: Subscriptions,
    partitions: Partitions,
    owned: Mapping[str, Set[PartitionKey]],
) -> Assignment:
    """Return which worker gets which partition. `owned` is what each has now."""
    given: dict[str, set[PartitionKey]] = {name: set() for name in sorted(subscriptions)}
    STRATEGIES[strategy](given, subscriptions, partitions, owned)
    return {name: frozenset(keys) for name, keys in given.items()}


_Given = dict[str, set[PartitionKey]]


def _range(
    given: _Given, subscriptions: Subscriptions, partitions: Partitions, _: Mapping[str, Set[PartitionKey]]
) -> None:
    for topic, numbers in partitions.items():
        names = [name for name in given if topic in subscriptions[name]]
        if not names:
            continue
        each, more = divmod(len(numbers), len(names))
        first = 0
        for at, name in enumerate(names):
            end = first + each + (at < more)
            given[name].update((topic, number) for number in numbers[first:end])
            first = end


def _round_robin(
    given: _Given, subscriptions: Subscriptions, partitions: Partitions, _: Mapping[str, Set[PartitionKey]]
) -> None:
    wanted = set().union(*subscriptions.values()) if subscriptions else set()
    turns = cycle(given)
    for topic in sorted(wanted & partitions.keys()):
        for number in partitions[topic]:
            name = next(turns)
            while topic not in subscriptions[name]:
                name = next(turns)
            given[name].add((topic, number))


def _sticky(
    given: _Given,
    subscriptions: Subscriptions,
    partitions: Partitions,
    owned: Mapping[str, Set[PartitionKey]],
) -> None:
    todo = []
    holders = {key: name for name in given for key in owned.get(name, ())}
    for topic in sorted(partitions):
        if not any(topic in topics for topics in subscriptions.values()):
            continue
        for number in partitions[topic]:
            holder = holders.get((topic, number))
            if holder is not None and topic in subscriptions[holder]:
                given[holder].add((topic, number))
            else:
                todo.append((topic, number))
    for key in todo:
        given[min(_takers(given, subscriptions, key), key=lambda name: len(given[name]))].add(key)
    # Each move makes two shares more even, so there is an end.
    while _move_one(given, subscriptions):
        pass


def _takers(given: _Given, subscriptions: Subscriptions, key: PartitionKey) -> list[str]:
    return [name for name in given if key[0] in subscriptions[name]]


def _move_one(given: _Given, subscriptions: Subscriptions) -> bool:
    """Move one partition from a worker that has at least two more than one that may have it. Return whether there was
    one."""
    order = sorted(given, key=lambda name: len(given[name]))
    for rich in reversed(order):
        for poor in order:
            if len(given[rich]) - len(given[poor]) < 2:
                break
            movable = [key for key in given[rich] if key[0] in subscriptions[poor]]
            if movable:
                key = max(movable)
                given[rich].remove(key)
                given[poor].add(key)
                return True
    return False


STRATEGIES: Final[
    Mapping[str, Callable[[_Given, Subscriptions, Partitions, Mapping[str, Set[PartitionKey]]], None]]
] = {"range": _range, "roundrobin": _round_robin, STICKY: _sticky}
"""The strategies by the names that Kafka's clients give them."""
