"""What all entries of a topic have in common: they are as old as the latest coming or going of a partition."""

from __future__ import annotations

from topicfs.fs.entry import Entry
from topicfs.fs.house import House


class OfTopic(Entry):
    """An entry that shows something of a topic."""

    def __init__(self, path: str, house: House, topic: str) -> None:
        super().__init__(path)
        self.house = house
        self.topic = topic

    def mtime_ns(self) -> int:
        return self.house.mtime_ns()
