"""`<topic>-<n>/`: one partition."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from topicfs.engine.errors import ClosedError
from topicfs.fs.context import Context
from topicfs.fs.entry import Directory, Entry, FleetingFile, ViewLink
from topicfs.fs.formats import Format
from topicfs.fs.tree.keys import KEYS, KeysDirectory, has_keys
from topicfs.fs.tree.logs import CurrentLink, FollowFile, LogFile
from topicfs.fs.tree.partition_entry import PartitionEntry, offset_xattrs, partition_mtime
from topicfs.fs.tree.ranges import OffsetDirectory, TimeDirectory
from topicfs.fs.tree.segments import SealedDirectory, SegmentsDirectory
from topicfs.fs.tree.start import StartFile
from topicfs.fs.upkeep_status import inbox, link, upkeep
from topicfs.fs.views.partition_views import PartitionViews


@dataclass(eq=False)
class PartitionDirectory(Directory):
    """The directory of a partition. `log.txt` has each record once. Every other view of the same records is listed as a
    link, which tools that go through whole trees do not follow.

    _found  the partition's views as they were last found; the partition may have been deleted since
    """

    context: Context
    topic: str
    number: int
    _found: PartitionViews | None = None

    def catch_up(self) -> None:
        self.context.store.catch_up()
        if self._found is not None:
            self._found.partition.catch_up()

    @property
    def is_current(self) -> bool:
        return (self.topic, self.number) in self.context.store

    def _views(self) -> PartitionViews:
        found = self._found
        if found is None or not found.partition.is_open or found.is_cut:
            found = self._found = self.context.views(self.topic, self.number)
        return found

    def mtime_ns(self) -> int:
        # To list a log directory must not read the end of each log in it.
        written = self.context.store.written_ns(self.topic, self.number) if self._found is None else None
        if written is not None:
            return written
        try:
            return partition_mtime(self._views())
        except ClosedError:
            # It cannot be loaded. It is listed all the same, so that its status can tell why.
            return 0

    def xattr(self, name: str) -> bytes | None:
        return offset_xattrs(self._views()).get(name)

    def names(self) -> Iterable[str]:
        return [*_LISTED, KEYS] if has_keys(self.context, self.topic) else _LISTED

    def lookup(self, name: str) -> Entry:
        try:
            views = self._views()
        except ClosedError as error:
            if name != _STATUS:
                raise
            return OfflineStatusFile(self.child(name), self.context, self.topic, self.number, str(error))
        if name in _LINKED and not self.context.lists_all:
            return PartitionViewLink(self.child(name), views)
        if name == KEYS and views.partition.settings.compact:
            # It is always a link: `rm -r` of a partition must not remove its keys.
            return PartitionViewLink(self.child(name), views)
        return self.made(name, _ENTRIES, views)


class PartitionViewLink(PartitionEntry, ViewLink):
    """A link to the entry of the same name in `views`."""


class ViewsDirectory(PartitionEntry, Directory):
    """The targets of a partition's links. This directory is not listed itself."""

    def names(self) -> Iterable[str]:
        return [*_LINKED, KEYS] if self.views.partition.settings.compact else _LINKED

    def lookup(self, name: str) -> Entry:
        if name == KEYS and self.views.partition.settings.compact:
            return KeysDirectory(self.child(name), self.views)
        if name not in _LINKED:
            raise self.missing(name)
        return self.made(name, _ENTRIES, self.views)


class StatusFile(FleetingFile, PartitionEntry):
    """A partition's offsets and sizes, what upkeep does next with it, what waits in its topic's inbox, and its last
    refusal, as JSON."""

    def make(self) -> bytes:
        self.views.writers.await_closing()
        partition, log = self.views.partition, self.views.partition.log
        now = log.snapshot
        segments = now.segments
        pinned = [segment for segment in (*segments, *log.chain.doomed_segments) if segment.pins]
        refusal = self.views.writers.refusal
        cluster = self.context.store.cluster_topic(partition.topic)
        status = {
            "topic": partition.topic,
            "partition": partition.number,
            "topic_id": partition.topic_id,
            "cluster_partitions": None if cluster is None else cluster.partitions,
            "start_offset": now.start,
            "stable_offset": now.stable,
            "high_watermark": now.high_watermark,
            "end_offset": now.end,
            "recovery_point": partition.recovery_point,
            "segments": len(segments),
            "active_segment": now.active_base,
            "log_bytes": segments.size,
            "leader_epoch": log.leader_epoch,
            "producers": len(log.producers),
            "open_transactions": len(log.producers.ongoing),
            "open_logs": self.views.shared_log.readers,
            "pinned_segments": len(pinned),
            "pinned_bytes": sum(segment.size for segment in pinned),
            "mended_segments": sum(segment.mended for segment in segments),
            **upkeep(self.context.store, self.views),
            "link": link(self.context.store, partition.topic, partition.number),
            "inbox": inbox(self.context.store, partition.topic),
            "parquet": self.context.tables.status(partition),
            "offline": None if log.failure is None else str(log.failure),
            "last_refusal": None
            if refusal is None
            else dict(zip(("timestamp", "reason", "path"), refusal, strict=True)),
        }
        return json.dumps(status, indent=2).encode() + b"\n"


@dataclass(eq=False)
class OfflineStatusFile(FleetingFile):
    """The status of a partition that cannot be loaded: why."""

    context: Context
    topic: str
    number: int
    reason: str

    def make(self) -> bytes:
        status = {"topic": self.topic, "partition": self.number, "offline": self.reason}
        return json.dumps(status, indent=2).encode() + b"\n"


_STATUS: Final = "status.json"

_ENTRIES: Final[Mapping[str, Callable[[str, PartitionViews], Entry]]] = {
    **{f"log.{fmt.suffix}": partial(LogFile, format=fmt) for fmt in Format},
    **{f"current.{fmt.suffix}": partial(CurrentLink, format=fmt) for fmt in Format},
    "offset": OffsetDirectory,
    "time": TimeDirectory,
    "segments": SegmentsDirectory,
    "sealed": SealedDirectory,
    "start": StartFile,
    _STATUS: StatusFile,
    # `follow` is not listed: `grep -r`, `cp -a` and `wc *` open all listed names, and would wait there for ever.
    **{f"follow.{fmt.suffix}": partial(FollowFile, format=fmt) for fmt in Format},
    ViewLink.directory: ViewsDirectory,
}
"""Every name in a partition's directory."""

_LISTED: Final = [name for name in _ENTRIES if not name.startswith(("follow", ViewLink.directory))]

_LINKED: Final = ("log.tsv", "log.jsonl", "offset", "time", "segments", "sealed")
"""The views of records that `log.txt` contains as well."""
