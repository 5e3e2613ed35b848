"""The mount's root."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from topicfs.engine.errors import InvalidNameError
from topicfs.engine.format.paths import parse_partition_directory
from topicfs.engine.mount_attributes import BACKING, LOG_DIRECTORIES
from topicfs.fs import errors
from topicfs.fs.context import GROUPS, PRODUCERS, TOPICS, TRANSACTIONS, Context
from topicfs.fs.entry import Entry, FleetingFile
from topicfs.fs.tree.deleting import Deleting
from topicfs.fs.tree.groups import GroupsDirectory
from topicfs.fs.tree.partition import PartitionDirectory
from topicfs.fs.tree.producers import ProducersDirectory
from topicfs.fs.tree.store_entry import StoreEntry
from topicfs.fs.tree.topics import TopicsDirectory
from topicfs.fs.tree.transactions import TransactionsDirectory

README = b"""\
Every directory here is a partition of a log; `topics` has the topics' settings.

    cat orders-0/log.txt                       all records, a line each
    tail -f orders-0/log.jsonl                 and those that come, with key, headers and timestamp
    cat orders-0/follow.txt                    those that come from now on; not listed, as it never ends
    echo 'ten apples' >> orders-0/log.txt      append a record
    cat topics/orders/log.txt                  all partitions, merged by time
    cat orders-0/offset/42                     one value, exactly
    cat orders-0/offset/-10.tsv                the last ten
    cat orders-0/time/last-15m.jsonl           the last quarter of an hour
    cat orders-0/time/2026-05-01--2026-05-02.txt
    ls orders-0/sealed/jsonl                   segments that change no more: for Spark
    echo parquet.enable=true > topics/orders/config      then topics/orders/table is a table of Parquet files
    cat orders-0/status.json                   offsets and sizes
    cat topics/orders/config                   its settings, and where each comes from
    echo retention.ms=3600000 > topics/orders/config     change one, without a restart
    echo 500 > orders-0/start                  delete the records below offset 500
    mv clicks.jsonl topics/orders/inbox/       append all of a file's lines, or none
    cp clicks.parquet topics/orders/inbox/     or of its rows
    mkdir transactions/t1                      write transactions/t1/orders-0.jsonl, and others; then append all of
    mv transactions/t1 transactions/t1.commit  it, or none; or rm -r transactions/t1
    cat users-0/keys/ann                       a compacted topic: the newest value of a key; > sets it, rm removes it
    mkdir topics/clicks                        make a topic; `mkdir clicks-1` adds a partition
    rmdir topics/clicks                        remove one that holds no records; `topicfs delete` deletes others
    mkdir groups/readers                       make a consumer group, which remembers how far it has read
    echo earliest > groups/readers/orders-0    its position: an offset, earliest, latest, -15m or a time
    cat groups/readers/orders-0.pending.txt    what it has not read yet
    echo '{"key":"k","value":"v"}' >> topics/clicks/in.jsonl

Formats: txt is the value; tsv is key TAB value, as PostgreSQL's COPY reads it; jsonl has everything.
tsv and jsonl can be appended as they were read. Logs are only appended to: `>`, mv and rm are refused.
All but `log.txt` shows the same records once more, and is a link: grep -r, cp -a and du meet each record once.
A slash behind a link, as in `find orders-0/segments/`, has such tools follow it.
"""


@dataclass(eq=False)
class RootDirectory(Deleting):
    """Partitions, topics, and two files about the store. mkdir creates a partition, rmdir removes an empty one."""

    metrics: Callable[[], bytes]

    permissions = 0o777

    @property
    def is_current(self) -> bool:
        return True

    def xattr(self, name: str) -> bytes | None:
        store = self.context.store
        if name == BACKING:
            return os.fsencode(store.backing)
        if name == LOG_DIRECTORIES:
            return b"\0".join(map(os.fsencode, store.log_directories))
        return super().xattr(name)

    def names(self) -> Iterable[str]:
        yield from self._about_all()
        for topic, number in self.context.store.partitions():
            yield f"{topic}-{number}"

    def lookup(self, name: str) -> Entry:
        path = self.child(name)
        make = self._about_all().get(name)
        if make is not None:
            return make(path, self.context)
        topic, number = self.place_of(name)
        if f"{topic}-{number}" not in self.context.store:
            raise self.missing(name)
        return PartitionDirectory(path, self.context, topic, number)

    def _about_all(self) -> Mapping[str, Callable[[str, Context], Entry]]:
        """Return the entries that are about the whole store, by name."""
        return {
            "README.txt": partial(TextFile, text=lambda: README),
            "metrics": partial(TextFile, text=self.metrics),
            TOPICS: TopicsDirectory,
            GROUPS: GroupsDirectory,
            TRANSACTIONS: TransactionsDirectory,
            PRODUCERS: ProducersDirectory,
        }

    def place_of(self, name: str) -> tuple[str, int]:
        try:
            topic, number, suffix = parse_partition_directory(name)
        except InvalidNameError:
            raise self.missing(name) from None
        if suffix:
            raise self.missing(name)
        return topic, number

    def create_directory(self, name: str) -> None:
        topic, number, suffix = parse_partition_directory(name)
        if suffix or name in self._about_all():
            raise InvalidNameError(f"{name} cannot be a partition: expected <topic>-<number>")
        self.context.store.create(topic, number)

    def remove_directory(self, name: str) -> None:
        if name in self._about_all():
            raise errors.NotSupportedError(f"{self.child(name)} cannot be removed")
        super().remove_directory(name)


@dataclass(eq=False)
class TextFile(StoreEntry, FleetingFile):
    """A text about the whole store."""

    text: Callable[[], bytes]

    def make(self) -> bytes:
        return self.text()
