"""`<topic>-<n>/`: one partition."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from topicfs.fs.entry import Directory, Entry, FleetingFile, Link
from topicfs.fs.forecast import upkeep
from topicfs.fs.formats import FORMATS, Format
from topicfs.fs.house import House
from topicfs.fs.shown import ShownPartition
from topicfs.fs.tree.logs import CurrentLink, FollowFile, LogFile
from topicfs.fs.tree.of_partition import OfPartition, partition_mtime
from topicfs.fs.tree.ranges import OffsetDirectory, TimeDirectory
from topicfs.fs.tree.segments import SealedDirectory, SegmentsDirectory
from topicfs.fs.tree.start import StartFile

STATUS: Final = "status.json"
VIEWS: Final = "views"
LINKED: Final = (
    *(f"log.{suffix}" for suffix in FORMATS if suffix != Format.TXT.suffix),
    "offset",
    "time",
    "segments",
    "sealed",
)
"""Views of records that `log.txt` has as well."""


class PartitionDirectory(Directory):
    """Everything that can be seen of a partition. `log.txt` has each record once; every other view is listed as a link,
    which tools that go through whole trees do not follow.

    _found  the partition as it was last found; it may have been deleted since
    """

    def __init__(self, path: str, house: House, topic: str, number: int) -> None:
        super().__init__(path)
        self.house = house
        self.topic = topic
        self.number = number
        self._found: ShownPartition | None = None

    @property
    def is_current(self) -> bool:
        return (self.topic, self.number) in self.house.store

    def _shown(self) -> ShownPartition:
        found = self._found
        if found is None or not found.partition.is_open:
            found = self._found = self.house.shown(self.topic, self.number)
        return found

    def mtime_ns(self) -> int:
        return partition_mtime(self._shown())

    def names(self) -> Iterable[str]:
        # Not `follow`: `grep -r`, `cp -a` and `wc *` open all that is listed, and would wait there for ever.
        for kind in ("log", "current"):
            for suffix in FORMATS:
                yield f"{kind}.{suffix}"
        yield from ("offset", "time", "segments", "sealed", "start", STATUS)

    def lookup(self, name: str) -> Entry:
        shown, path = self._shown(), self.child(name)
        if name == VIEWS:
            return ViewsDirectory(path, self.house, shown)
        if name in LINKED:
            return (
                view_of(path, name, self.house, shown)
                if self.house.lists_all
                else ViewLink(path, shown, name)
            )
        match name:
            case "start":
                return StartFile(path, self.house, shown)
            case "status.json":
                return StatusFile(path, self.house, shown)
        kind, _, suffix = name.partition(".")
        fmt = FORMATS.get(suffix)
        if fmt is not None:
            match kind:
                case "log":
                    return LogFile(path, self.house, shown, fmt)
                case "current":
                    return CurrentLink(path, shown, fmt)
                case "follow":
                    return FollowFile(path, self.house, shown, fmt)
        raise self.missing(name)


def view_of(path: str, name: str, house: House, shown: ShownPartition) -> Entry:
    """What a link leads to; its name is one of LINKED."""
    match name:
        case "offset":
            return OffsetDirectory(path, shown)
        case "time":
            return TimeDirectory(path, shown)
        case "segments":
            return SegmentsDirectory(path, shown)
        case "sealed":
            return SealedDirectory(path, shown, house.tables)
    return LogFile(path, house, shown, FORMATS[name.partition(".")[2]])


class ViewLink(OfPartition, Link):
    """Leads to what has the same name in `views`."""

    def __init__(self, path: str, shown: ShownPartition, name: str) -> None:
        super().__init__(path, shown)
        self.name = name

    def target(self) -> str:
        return f"{VIEWS}/{self.name}"


class ViewsDirectory(OfPartition, Directory):
    """What a partition's links lead to; not listed itself."""

    def __init__(self, path: str, house: House, shown: ShownPartition) -> None:
        super().__init__(path, shown)
        self.house = house

    def names(self) -> Iterable[str]:
        return LINKED

    def lookup(self, name: str) -> Entry:
        if name not in LINKED:
            raise self.missing(name)
        return view_of(self.child(name), name, self.house, self.shown)


class StatusFile(OfPartition, FleetingFile):
    """A partition's offsets, sizes, what upkeep does next with it, and its last refusal, as JSON."""

    def __init__(self, path: str, house: House, shown: ShownPartition) -> None:
        super().__init__(path, shown)
        self.house = house
        self.snapshots = house.snapshots

    def content(self) -> bytes:
        partition, log = self.shown.partition, self.shown.partition.log
        now, segments = log.offsets, log.chain.segments
        pinned = [segment for segment in (*segments, *log.chain.doomed_segments) if segment.pins]
        refusal = self.shown.refusal
        cluster = self.house.store.cluster_topic(partition.topic)
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
            "active_segment": log.chain.active.base_offset,
            "log_bytes": segments.size,
            "leader_epoch": log.leader_epoch,
            "producers": len(log.producers),
            "open_transactions": len(log.producers.ongoing),
            "open_logs": self.shown.whole.readers,
            "pinned_segments": len(pinned),
            "pinned_bytes": sum(segment.size for segment in pinned),
            "mended_segments": sum(segment.mended for segment in segments),
            **upkeep(self.house.store, self.shown),
            "parquet": self.house.tables.status(partition),
            "offline": None if log.failure is None else str(log.failure),
            "last_refusal": None
            if refusal is None
            else dict(zip(("timestamp", "reason", "path"), refusal, strict=True)),
        }
        return json.dumps(status, indent=2).encode() + b"\n"
