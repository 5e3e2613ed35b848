"""What the name of a topic or a partition stands for, as commands take it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

TOPICS: Final = "topics"
"""The directory of all topics, in the tree; before a name it says that the topic is meant."""

GROUPS: Final = "groups"
"""The directory of all consumer groups, in the tree."""


class UnknownNameError(Exception):
    """A name stands for nothing, or for two things; the message says what to write."""


@dataclass(frozen=True, slots=True)
class Target:
    """The topic or partition that a name stands for.

    topic   the topic
    number  the number of one partition; None for the whole topic
    """

    topic: str
    number: int | None

    @property
    def name(self) -> str:
        """Return the name, as it is in the tree."""
        return self.topic if self.number is None else f"{self.topic}-{self.number}"

    @property
    def title(self) -> str:
        """Return what it is, with its name."""
        return f"the topic {self.topic}" if self.number is None else f"the partition {self.name}"

    def numbers(self, topics: Mapping[str, Sequence[int]]) -> Sequence[int]:
        """Return the numbers of its partitions."""
        return topics[self.topic] if self.number is None else [self.number]


def found(name: str, topics: Mapping[str, Sequence[int]]) -> Target:
    """Return the topic or partition that a name stands for."""
    if name.startswith(f"{TOPICS}/"):
        topic = name.removeprefix(f"{TOPICS}/").rstrip("/")
        if topic not in topics:
            raise UnknownNameError(f"there is no topic {topic}{_nearest(topic, topics)}")
        return Target(topic, None)
    is_path = name.startswith("./")
    name = name.removeprefix("./").rstrip("/")
    topic, _, digits = name.rpartition("-")
    partition = Target(topic, int(digits)) if digits.isdecimal() and digits.isascii() else None
    is_partition = partition is not None and partition.number in topics.get(topic, ())
    if name in topics and is_partition and not is_path:
        raise UnknownNameError(
            f"{name} is a topic, and also a partition of {topic}: write {TOPICS}/{name} for the topic, ./{name} for "
            "the partition"
        )
    if name in topics and not is_path:
        return Target(name, None)
    if partition is None or not is_partition:
        raise UnknownNameError(f"there is no topic and no partition {name}{_nearest(name, topics)}")
    return partition


def _nearest(name: str, topics: Mapping[str, Sequence[int]]) -> str:
    """Return which name may have been meant; nothing where none is like it."""
    topic = name.rpartition("-")[0]
    if numbers := topics.get(topic):
        return f": the last partition of {topic} is {numbers[-1]}"
    import difflib  # noqa: PLC0415 - most names are there

    close = difflib.get_close_matches(name, topics, n=1)
    return f": did you mean {close[0]}?" if close else ""
