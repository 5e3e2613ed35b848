"""What all entries of a topic have in common."""

from __future__ import annotations

from dataclasses import dataclass

from topicfs.fs.tree.store_entry import StoreEntry


@dataclass(eq=False)
class TopicEntry(StoreEntry):
    """An entry that shows something of a topic."""

    topic: str
