"""What entries have in common that show something of the store: they change when a partition is made or removed."""

from __future__ import annotations

from dataclasses import dataclass

from topicfs.fs.context import Context
from topicfs.fs.entry import Entry


@dataclass(eq=False)
class StoreEntry(Entry):
    """An entry that shows something of the store.

    context  the context that the tree shares
    """

    context: Context

    def mtime_ns(self) -> int:
        return self.context.mtime_ns()
