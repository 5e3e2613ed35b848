"""The check of the files of a log directory: what is in it, and what it says of its partitions as a whole."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from topicfs.engine.errors import CorruptCheckpointError, InvalidNameError
from topicfs.engine.files.atomic import read_bounded
from topicfs.engine.files.checkpoint import OffsetCheckpoint
from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.files.metadata import MAX_BYTES, MetaProperties
from topicfs.engine.format.paths import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    META_PROPERTIES,
    NOT_PARTITIONS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    parse_partition_directory,
)
from topicfs.engine.record import now_ms
from topicfs.engine.verify.finding import Finding, Kind, Severity
from topicfs.engine.verify.partition import PartitionReport

_UNREADABLE: Final[Mapping[str, str]] = {
    RECOVERY_POINTS: "no record is lost; at the next start all segments are checked",
    LOG_STARTS: "records below a start offset come back, as far as their segments are there",
    HIGH_WATERMARKS: "no record is lost; the high watermarks are found anew",
    CLEANER_OFFSETS: "no record is lost; compaction begins at the start of each log",
}

_BEYOND: Final[Mapping[str, tuple[Severity, str]]] = {
    RECOVERY_POINTS: (Severity.DAMAGE, "records that were safely on disk are not there any more"),
    LOG_STARTS: (Severity.DAMAGE, "all records of the partition are deleted at the next start"),
    HIGH_WATERMARKS: (
        Severity.REPAIRABLE,
        "it is lowered to the log's end at the next start; that may have been lost",
    ),
    CLEANER_OFFSETS: (Severity.REPAIRABLE, "no record is lost; compaction begins at the start of the log"),
}


@dataclass(slots=True)
class DirectoryCheck:
    """The check of a log directory. Its checkpoints are read before the segments, so that a running daemon's are
    never ahead of what was seen of its logs.

    logs        the directory
    partitions  the live partitions in it
    findings    what is wrong, but for offsets that lie outside of their logs
    files       number of files that were read
    bytes       their bytes
    _offsets    by file name: offsets of the partitions
    """

    logs: Path
    partitions: list[PartitionKey] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    files: int = 0
    bytes: int = 0
    _offsets: dict[str, dict[PartitionKey, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, logs: Path) -> DirectoryCheck:
        """Read the directory and the files in it."""
        check = cls(logs)
        check._list()
        for name in _UNREADABLE:
            check._read(name)
        check._identity()
        return check

    def _say(
        self, severity: Severity, kind: Kind, path: Path, expected: str, found: str, effect: str
    ) -> None:
        self.findings.append(Finding(severity, kind, path, "", expected, found, effect))

    def _count(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.bytes += path.stat().st_size
            self.files += 1

    def _list(self) -> None:
        with os.scandir(self.logs) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
        for name in names:
            if name in NOT_PARTITIONS:
                continue
            try:
                topic, number, suffix = parse_partition_directory(name)
            except InvalidNameError as error:
                effect = "the log directory cannot be opened before it is moved away"
                self._say(
                    Severity.DAMAGE,
                    Kind.DIRECTORY,
                    self.logs / name,
                    "a partition's name",
                    str(error),
                    effect,
                )
            else:
                if not suffix:
                    self.partitions.append((topic, number))

    def _read(self, name: str) -> None:
        path = self.logs / name
        try:
            self._offsets[name] = OffsetCheckpoint(path).read()
            self._count(path)
        except (CorruptCheckpointError, OSError) as error:
            self._say(
                Severity.REPAIRABLE, Kind.CHECKPOINT, path, "a checkpoint", str(error), _UNREADABLE[name]
            )

    def _identity(self) -> None:
        path = self.logs / META_PROPERTIES
        try:
            MetaProperties.load_or_create(self.logs, now_ms, read_only=True)
            self._count(path)
        except (CorruptCheckpointError, OSError) as error:
            effect = "the log directory cannot be opened before the file is put right"
            self._say(
                Severity.DAMAGE, Kind.METADATA, path, "the ids of the log directory", str(error), effect
            )
        path = self.logs / CLEAN_SHUTDOWN
        try:
            json.loads(read_bounded(path, MAX_BYTES))
            self._count(path)
        except FileNotFoundError:
            pass
        except (ValueError, RecursionError, CorruptCheckpointError, OSError) as error:
            effect = (
                "the last stop counts as clean whatever is in the file; the epoch of the broker is not known"
            )
            self._say(Severity.NOTE, Kind.METADATA, path, "a line of JSON", str(error), effect)

    # -- behind the partitions ------------------------------------------------------------------------

    def compared(self, reports: Collection[PartitionReport]) -> Iterator[Finding]:
        """Compare the offsets with the logs, and the topic ids with each other."""
        ids: dict[str, PartitionReport] = {}
        for report in reports:
            piece = report.piece
            if report.first_offset is not None and report.is_end_known and piece.directory.exists():
                yield from self._ranges(report)
            if report.topic_id is None:
                continue
            other = ids.setdefault(piece.topic, report)
            if other.topic_id != report.topic_id and other.piece.directory.exists():
                yield Finding(
                    Severity.DAMAGE,
                    Kind.METADATA,
                    piece.directory / PARTITION_METADATA,
                    "",
                    f"topic id {other.topic_id}, as in {other.piece.directory.name}",
                    str(report.topic_id),
                    "one of the partitions belongs to another topic of this name",
                )

    def _ranges(self, report: PartitionReport) -> Iterator[Finding]:
        key = report.piece.topic, report.piece.number
        end = report.next_offset
        for name, offsets in self._offsets.items():
            offset = offsets.get(key)
            if offset is None or offset <= end or self._now(name, key) != offset:
                continue
            severity, effect = _BEYOND[name]
            yield Finding(
                severity,
                Kind.CHECKPOINT,
                self.logs / name,
                report.piece.directory.name,
                f"an offset up to the end of the log, {end}",
                str(offset),
                effect,
            )

    def _now(self, name: str, key: PartitionKey) -> int | None:
        """Return an offset as it is on disk now. It is another one where the partition was cut, or made anew."""
        try:
            return OffsetCheckpoint(self.logs / name).read().get(key)
        except (CorruptCheckpointError, OSError):
            return None
