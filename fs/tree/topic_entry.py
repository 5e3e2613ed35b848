"""What all entries of a topic have in common: they change when a partition is made or removed."""

from __future__ import annotations

from dataclasses import dataclass

from topicfs.fs.context import Context
from topicfs.fs.entry import Entry


@dataclass(eq=False)
class TopicEntry(Entry):
    """An entry that shows something of a topic."""

    context: Context
    topic: str

    def mtime_ns(self) -> int:
        return self.context.mtime_ns()
