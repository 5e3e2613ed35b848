"""The context that the whole tree shares: the store, the views of partitions, the open writers."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from topicfs.engine.errors import EngineError, PartitionNotEmptyError
from topicfs.engine.format.paths import VIEWS, partition_directory
from topicfs.engine.groups.groups import Groups
from topicfs.engine.keys.index import KeyIndex
from topicfs.engine.parquet.table import Tables
from topicfs.engine.store.new_topic import NewTopic
from topicfs.engine.store.store import Store
from topicfs.fs.appending.linger import Linger
from topicfs.fs.appending.write_behind import WriteBehind
from topicfs.fs.entry import FleetingFile, Remembered
from topicfs.fs.holdings import Holdings
from topicfs.fs.inbox.commits import Commits
from topicfs.fs.inbox.topic_inbox import TopicInbox
from topicfs.fs.transactions.producer_files import ProducerFiles
from topicfs.fs.transactions.staged import StagedTransactions
from topicfs.fs.transactions.staged_positions import StagedPositions
from topicfs.fs.views.partition_views import PartitionViews
from topicfs.fs.views.read_ahead import ReadAhead
from topicfs.fs.views.rendered_segments import ViewCache

TOPICS: Final = "topics"
"""The directory of all topics, in the root."""

GROUPS: Final = "groups"
"""The directory of all consumer groups, in the root."""

PRODUCERS: Final = "producers"
"""The directory of named producers, in the root."""

TRANSACTIONS: Final = "transactions"
"""The directory of transactions, in the root."""

_LONGEST_ATTRIBUTE: Final = 60_000
"""Bytes of an attribute's value, at most: the kernel passes on values of up to 64 KiB."""

_MOST_REFUSALS: Final = 1000
"""How many names of groups have their last refusal kept."""

_SNAPSHOTS: Final = 32
"""How many generated files are kept between the look-up of a name and its opening; `metrics` may have megabytes."""


@dataclass(slots=True)
class Context:
    """The state of the tree.

    store       the store, with every partition
    view_cache  the view cache, where size maps are kept
    linger      the flusher, which knows how long lines wait
    read_ahead  renders the blocks that readers will need next
    write_behind  appends large writes, after their writers were answered
    batch_size  bytes of lines that make a batch, which is then appended
    holdings    what programs hold of the mount
    transactions  the transactions that were begun by mkdir
    tables      the Parquet files of sealed segments
    snapshots   recent contents of generated files
    given_up    tells a waiting call whether its caller has given up; until it is set, a wait ends at once
    refusals    by topic: when a change of its settings was last refused, in milliseconds, and the reason in words; an
                accepted change removes it
    groups      the consumer groups
    group_refusals  by the name of a group's directory: its last refusal, as status.json shows it
    commits     the commits of inboxes in progress
    overtaken   called after partitions were deleted, and where that has failed halfway, and after a log was cut
    _views      the views of the partitions that were looked at, by topic and number
    _turns      by topic: a counter of appends without a key, which the partitions take in turn
    _inboxes    the inboxes that were looked at, by topic
    _producers  the files of named producers, by name
    """

    store: Store
    view_cache: ViewCache
    read_ahead: ReadAhead = field(default_factory=ReadAhead)
    write_behind: WriteBehind = field(default_factory=WriteBehind)
    given_up: Callable[[], bool] = lambda: True
    refusals: dict[str, tuple[int, str]] = field(default_factory=dict)
    group_refusals: dict[str, dict[str, object]] = field(default_factory=dict)
    commits: Commits = field(default_factory=Commits)
    snapshots: Remembered[FleetingFile] = field(default_factory=lambda: Remembered(_SNAPSHOTS))
    overtaken: Callable[[], None] = lambda: None
    _views: dict[tuple[str, int], PartitionViews] = field(default_factory=dict)
    _turns: dict[str, Iterator[int]] = field(default_factory=dict)
    _inboxes: dict[str, TopicInbox] = field(default_factory=dict)
    _producers: dict[str, ProducerFiles] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    groups: Groups = field(init=False)
    tables: Tables = field(init=False)
    linger: Linger = field(init=False)
    transactions: StagedTransactions = field(init=False)
    batch_size: int = field(init=False)
    holdings: Holdings = field(init=False)

    def __post_init__(self) -> None:
        self.linger = Linger(self.store.daemon.linger_ms, self.store.steady)
        self.batch_size = self.store.daemon.batch_size
        self.holdings = Holdings.of(self.store.daemon)
        self.groups = Groups.of(self.store)
        self.transactions = StagedTransactions(
            self.store, self.commits, self.turns, StagedPositions(self.store, self._await_closing)
        )
        self.tables = Tables(self.store.backing / VIEWS, self.store.descriptors)

    @property
    def lists_all(self) -> bool:
        """Tell whether every view is listed as a file or directory of its own, instead of as a link."""
        return self.store.daemon.list_all_views

    def _await_closing(self, topic: str, number: int) -> None:
        self.views(topic, number).writers.await_closing()

    def views(self, topic: str, number: int) -> PartitionViews:
        """Return the views of a partition. UnknownPartitionError if there is no such partition."""
        partition = self.store.partition(topic, number)
        views = self._views.get((topic, number))
        if views is None or views.partition is not partition or views.is_cut:
            with self._lock:
                views = self._views.get((topic, number))
                if views is None or views.partition is not partition or views.is_cut:
                    views = PartitionViews(partition, self)
                    partition.log.register_reader(views.before_removal)
                    partition.log.register_cut(self.overtaken)
                    self._views[topic, number] = views
        return views

    def batch_size_for(self, flags: int) -> int:
        """Return how many bytes of lines may gather for a file that is opened: none if each write is brought onto the
        disk, so that its error is about its own lines."""
        return 0 if flags & os.O_DSYNC else self.batch_size

    def turns(self, topic: str) -> Iterator[int]:
        """Return the counter, shared by all writers of a topic, that says which partition is next."""
        return self._turns.setdefault(topic, itertools.count())

    def inbox(self, topic: str) -> TopicInbox:
        """Return a topic's inbox. UnknownPartitionError if there is no such topic."""
        inbox = self.store.inboxes.of(topic)
        with self._lock:
            found = self._inboxes.get(topic)
            if found is None or found.inbox is not inbox:
                found = TopicInbox(inbox, self.commits, self.store, self.turns(topic), self.inbox)
                self._inboxes[topic] = found
            return found

    def producer_files(self, name: str) -> ProducerFiles:
        """Return the files of a named producer."""
        with self._lock:
            found = self._producers.get(name)
            if found is None:
                found = self._producers[name] = ProducerFiles(name, self.store, self.commits, self.turns)
            return found

    def note_refusal(self, error: Exception, path: str) -> bool:
        """Have the status of the partition that a path lies in, or of all partitions of its topic, show why something
        was refused. Return False if the path lies in neither."""
        # A text that begins without a slash is no path: the target of a new link may be any text.
        root, first, second, third = [*path.split("/"), "", "", ""][:4]
        if root:
            return False
        if first == GROUPS:
            # Whoever may write there chooses the names.
            if len(self.group_refusals) >= _MOST_REFUSALS and second not in self.group_refusals:
                self.group_refusals.pop(next(iter(self.group_refusals), second), None)
            self.group_refusals[second] = {
                "timestamp": self.store.clock(),
                "reason": str(error),
                "path": path,
            }
            return True
        if first == TRANSACTIONS:
            self.transactions.note_refusal(second, error)
            return True
        if first == TOPICS:
            found = [(second, number) for number in self.store.topics().get(second, ())]
        else:
            name = third if first == PRODUCERS else first
            found = [key for key in self.store.partitions() if partition_directory(*key) == name]
        for each in found:
            # A partition that is offline, or was deleted just now, has no status to show it.
            with contextlib.suppress(EngineError, OSError):
                self.views(*each).writers.note_refusal(error, path)
        return bool(found)

    def looked_at(self) -> list[PartitionViews]:
        """Return the views of the partitions that were looked at."""
        return list(self._views.values())

    def key_indexes(self) -> list[KeyIndex]:
        """Return the indexes of keys that are in use."""
        return [
            index
            for views in self.looked_at()
            if (index := views.known_keys) is not None and views.partition.is_open
        ]

    def create_topic(self, topic: NewTopic) -> None:
        """Create a topic: in the Kafka cluster that is linked, where the settings say so, or here."""
        remote = self.store.links.remote
        if remote is None or not remote.create(topic):
            self.store.create_topic(topic.topic, topic.partitions, topic.settings or None)

    def delete(self, topic: str, number: int | None = None, only_empty: bool = False) -> None:
        """Delete a partition, or without a number a topic, with its records. With `only_empty`, PartitionNotEmptyError
        if it holds something."""
        numbers = self.store.topics().get(topic, []) if number is None else [number]
        for each in numbers if only_empty else ():
            views = self._views.get((topic, each))
            if views is not None and views.writers.holds_lines:
                raise PartitionNotEmptyError(
                    f"{topic}-{each}: expected no lines on their way into it, found some of an open file"
                )
        if only_empty:
            self._delete_in_cluster(topic, number)
        try:
            if number is None:
                self.store.delete_topic(topic, only_empty)
                self.refusals.pop(topic, None)
                self._inboxes.pop(topic, None)
            else:
                self.store.delete(topic, number, only_empty)
            for each in numbers:
                self._views.pop((topic, each), None)
        finally:
            # Where the disk refuses to delete one partition of a topic, those before it are gone.
            self.overtaken()

    def _delete_in_cluster(self, topic: str, number: int | None) -> None:
        """Delete a topic without records in the cluster that it mirrors, where that is linked and the settings say so.
        PolicyViolationError where it is to stay there."""
        linked, remote = self.store.links.topic(topic), self.store.links.remote
        if linked is not None and remote is not None:
            self.store.check_empty(topic, number)
            remote.delete(linked, number)

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
        return max(os.stat(logs).st_mtime_ns for logs in self.store.log_directories)
