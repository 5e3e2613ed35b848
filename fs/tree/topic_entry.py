"""What all entries of a topic have in common: they change when a partition is made or removed."""

from __future__ import annotations

from topicfs.fs.context import Context
from topicfs.fs.entry import Entry


class TopicEntry(Entry):
    """An entry that shows something of a topic."""

    def __init__(self, path: str, context: Context, topic: str) -> None:
        super().__init__(path)
        self.context = context
        self.topic = topic

    def mtime_ns(self) -> int:
        return self.context.mtime_ns()
