"""`<topic>-<n>/`: one partition."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from topicfs.fs.context import Context
from topicfs.fs.entry import Directory, Entry, FleetingFile, Link
from topicfs.fs.formats import FORMATS, Format
from topicfs.fs.tree.logs import CurrentLink, FollowFile, LogFile
from topicfs.fs.tree.partition_entry import PartitionEntry, offset_xattrs, partition_mtime
from topicfs.fs.tree.ranges import OffsetDirectory, TimeDirectory
from topicfs.fs.tree.segments import SealedDirectory, SegmentsDirectory
from topicfs.fs.tree.start import StartFile
from topicfs.fs.upkeep_status import upkeep
from topicfs.fs.views.partition_views import PartitionViews

STATUS: Final = "status.json"
VIEWS: Final = "views"
LINKED: Final = (
    *(f"log.{suffix}" for suffix in FORMATS if suffix != Format.TXT.suffix),
    "offset",
    "time",
    "segments",
    "sealed",
)
"""The views of records that `log.txt` contains as well."""


class PartitionDirectory(Directory):
    """The directory of a partition. `log.txt` has each record once. Every other view of the same records is listed as a
    link, which tools that go through whole trees do not follow.

    _found  the partition's views as they were last found; the partition may have been deleted since
    """

    def __init__(self, path: str, context: Context, topic: str, number: int) -> None:
        super().__init__(path)
        self.context = context
        self.topic = topic
        self.number = number
        self._found: PartitionViews | None = None

    @property
    def is_current(self) -> bool:
        return (self.topic, self.number) in self.context.store

    def _views(self) -> PartitionViews:
        found = self._found
        if found is None or not found.partition.is_open:
            found = self._found = self.context.views(self.topic, self.number)
        return found

    def mtime_ns(self) -> int:
        return partition_mtime(self._views())

    def xattr(self, name: str) -> bytes | None:
        return offset_xattrs(self._views()).get(name)

    def names(self) -> Iterable[str]:
        # `follow` is not listed: `grep -r`, `cp -a` and `wc *` open all listed names, and would wait there for ever.
        for kind in ("log", "current"):
            for suffix in FORMATS:
                yield f"{kind}.{suffix}"
        yield from ("offset", "time", "segments", "sealed", "start", STATUS)

    def lookup(self, name: str) -> Entry:
        views, path = self._views(), self.child(name)
        if name == VIEWS:
            return ViewsDirectory(path, self.context, views)
        if name in LINKED:
            return (
                view_of(path, name, self.context, views)
                if self.context.lists_all
                else ViewLink(path, views, name)
            )
        match name:
            case "start":
                return StartFile(path, self.context, views)
            case "status.json":
                return StatusFile(path, self.context, views)
        kind, _, suffix = name.partition(".")
        fmt = FORMATS.get(suffix)
        if fmt is not None:
            match kind:
                case "log":
                    return LogFile(path, self.context, views, fmt)
                case "current":
                    return CurrentLink(path, views, fmt)
                case "follow":
                    return FollowFile(path, self.context, views, fmt)
        raise self.missing(name)


def view_of(path: str, name: str, context: Context, views: PartitionViews) -> Entry:
    """Return the entry that a link leads to. Its name is one of LINKED."""
    match name:
        case "offset":
            return OffsetDirectory(path, views)
        case "time":
            return TimeDirectory(path, views)
        case "segments":
            return SegmentsDirectory(path, views)
        case "sealed":
            return SealedDirectory(path, views, context.tables)
    return LogFile(path, context, views, FORMATS[name.partition(".")[2]])


class ViewLink(PartitionEntry, Link):
    """A link to the entry of the same name in `views`."""

    def __init__(self, path: str, views: PartitionViews, name: str) -> None:
        super().__init__(path, views)
        self.name = name

    def target(self) -> str:
        return f"{VIEWS}/{self.name}"


class ViewsDirectory(PartitionEntry, Directory):
    """The targets of a partition's links. This directory is not listed itself."""

    def __init__(self, path: str, context: Context, views: PartitionViews) -> None:
        super().__init__(path, views)
        self.context = context

    def names(self) -> Iterable[str]:
        return LINKED

    def lookup(self, name: str) -> Entry:
        if name not in LINKED:
            raise self.missing(name)
        return view_of(self.child(name), name, self.context, self.views)


class StatusFile(PartitionEntry, FleetingFile):
    """A partition's offsets and sizes, what upkeep does next with it, and its last refusal, as JSON."""

    def __init__(self, path: str, context: Context, views: PartitionViews) -> None:
        super().__init__(path, views)
        self.context = context
        self.snapshots = context.snapshots

    def content(self) -> bytes:
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
            "parquet": self.context.tables.status(partition),
            "offline": None if log.failure is None else str(log.failure),
            "last_refusal": None
            if refusal is None
            else dict(zip(("timestamp", "reason", "path"), refusal, strict=True)),
        }
        return json.dumps(status, indent=2).encode() + b"\n"
