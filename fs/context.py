"""The context that the whole tree shares: the store, the views of partitions, the open writers."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from topicfs.engine.errors import EngineError, PartitionNotEmptyError
from topicfs.engine.format.paths import VIEWS, partition_directory
from topicfs.engine.parquet.table import Tables
from topicfs.engine.store.store import Store
from topicfs.fs.appending.handle import Writers
from topicfs.fs.entry import Remembered, Snapshot
from topicfs.fs.inbox.commits import Commits
from topicfs.fs.inbox.topic_inbox import TopicInbox
from topicfs.fs.views.partition_views import PartitionViews
from topicfs.fs.views.read_ahead import ReadAhead
from topicfs.fs.views.rendered_segments import ViewCache

TOPICS: Final = "topics"
"""The directory of all topics, in the root."""

_LONGEST_ATTRIBUTE: Final = 60_000
"""Bytes of an attribute's value, at most: the kernel passes on values of up to 64 KiB."""

_SNAPSHOTS: Final = 32
"""How many generated files are kept between the look-up of a name and its opening; `metrics` may have megabytes."""


@dataclass(slots=True)
class Context:
    """The state of the tree.

    store       the store, with every partition
    view_cache  the view cache, where size maps are kept
    writers     the open writers, and their flusher
    read_ahead  renders the blocks that readers will need next
    batch_size  bytes of lines that make a batch, which is then appended
    tables      the Parquet files of sealed segments
    snapshots   recent contents of generated files
    given_up    tells a waiting call whether its caller has given up; until it is set, a wait ends at once
    refusals    by topic: when a change of its settings was last refused, in milliseconds, and the reason in words; an
                accepted change removes it
    commits     the commits of inboxes in progress
    deleted     called after partitions were deleted
    _views      the views of the partitions that were looked at, by topic and number
    _turns      by topic: a counter of appends without a key, which the partitions take in turn
    _inboxes    the inboxes that were looked at, by topic
    """

    store: Store
    view_cache: ViewCache
    writers: Writers
    batch_size: int
    read_ahead: ReadAhead = field(default_factory=ReadAhead)
    given_up: Callable[[], bool] = lambda: True
    refusals: dict[str, tuple[int, str]] = field(default_factory=dict)
    commits: Commits = field(default_factory=Commits)
    snapshots: Remembered[Snapshot] = field(default_factory=lambda: Remembered(_SNAPSHOTS))
    deleted: Callable[[], None] = lambda: None
    _views: dict[tuple[str, int], PartitionViews] = field(default_factory=dict)
    _turns: dict[str, Iterator[int]] = field(default_factory=dict)
    _inboxes: dict[str, TopicInbox] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    tables: Tables = field(init=False)

    def __post_init__(self) -> None:
        self.tables = Tables(self.store.backing / VIEWS, self.store.descriptors)

    @property
    def lists_all(self) -> bool:
        """Tell whether every view is listed as a file or directory of its own, instead of as a link."""
        return self.store.daemon.list_all_views

    def views(self, topic: str, number: int) -> PartitionViews:
        """Return the views of a partition. UnknownPartitionError if there is no such partition."""
        partition = self.store.partition(topic, number)
        views = self._views.get((topic, number))
        if views is None or views.partition is not partition:
            with self._lock:
                views = self._views.get((topic, number))
                if views is None or views.partition is not partition:
                    views = PartitionViews(partition, self.view_cache, self.writers.linger, self.read_ahead)
                    partition.log.register_reader(views.before_removal)
                    self._views[topic, number] = views
        return views

    def turns(self, topic: str) -> Iterator[int]:
        """Return the counter, shared by all writers of a topic, that says which partition is next."""
        return self._turns.setdefault(topic, itertools.count())

    def inbox(self, topic: str) -> TopicInbox:
        """Return a topic's inbox. UnknownPartitionError if there is no such topic."""
        inbox = self.store.inboxes.of(topic)
        with self._lock:
            found = self._inboxes.get(topic)
            if found is None or found.inbox is not inbox:
                found = self._inboxes[topic] = TopicInbox(
                    self.store,
                    inbox,
                    lambda number: self.views(topic, number),
                    self.turns(topic),
                    self.commits,
                )
            return found

    def note_refusal(self, error: Exception, path: str) -> bool:
        """Have the status of the partition that a path lies in, or of all partitions of its topic, show why something
        was refused. Return False if the path lies in neither."""
        # A text that begins without a slash is no path: the target of a new link may be any text.
        root, first, second = [*path.split("/"), "", ""][:3]
        if root:
            return False
        if first == TOPICS:
            found = [(second, number) for number in self.store.topics().get(second, ())]
        else:
            found = [key for key in self.store.partitions() if partition_directory(*key) == first]
        for each in found:
            # A partition that is offline, or was deleted just now, has no status to show it.
            with contextlib.suppress(EngineError, OSError):
                self.views(*each).writers.note_refusal(error, path)
        return bool(found)

    def looked_at(self) -> list[PartitionViews]:
        """Return the views of the partitions that were looked at."""
        return list(self._views.values())

    def remove_partition(self, topic: str, number: int) -> None:
        """Delete an empty partition. PartitionNotEmptyError if it holds something."""
        self._refuse_waiting_lines(topic, [number])
        self.store.remove_empty(topic, number)
        self._views.pop((topic, number), None)
        self.deleted()

    def remove_topic(self, topic: str) -> None:
        """Delete an empty topic. PartitionNotEmptyError if it holds something."""
        numbers = self.store.topics().get(topic, [])
        self._refuse_waiting_lines(topic, numbers)
        self.store.remove_empty_topic(topic)
        self._forget(topic, numbers)

    def delete_partition(self, topic: str, number: int) -> None:
        """Delete a partition with its records."""
        self.store.delete(topic, number)
        self._views.pop((topic, number), None)
        self.deleted()

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its records."""
        numbers = self.store.topics().get(topic, [])
        self.store.delete_topic(topic)
        self._forget(topic, numbers)

    def _refuse_waiting_lines(self, topic: str, numbers: Iterable[int]) -> None:
        for number in numbers:
            views = self._views.get((topic, number))
            if views is not None and self.writers.hold_lines_for(views.writers):
                raise PartitionNotEmptyError(
                    f"{topic}-{number}: expected no lines on their way into it, found some of an open file"
                )

    def _forget(self, topic: str, numbers: Iterable[int]) -> None:
        self.refusals.pop(topic, None)
        self._inboxes.pop(topic, None)
        for number in numbers:
            self._views.pop((topic, number), None)
        self.deleted()

    def deletions(self) -> bytes:
        """Return the deletions that can be taken back, as JSON, the newest first: as many as fit into an attribute."""
        found: list[bytes] = []
        room = _LONGEST_ATTRIBUTE
        for deletion in self.store.deletions():
            told = json.dumps(deletion.told()).encode()
            room -= len(told) + 2
            if room < 0:
                break
            found.append(told)
        return b"[" + b",\n".join(found) + b"]\n"

    def mtime_ns(self) -> int:
        """Return when partitions last came or went, in nanoseconds."""
        return os.stat(self.store.logs).st_mtime_ns
