"""The check of one partition: its segments in their order, and what lies beside them in its directory."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from topicfs.engine.errors import CorruptCheckpointError
from topicfs.engine.files.checkpoint import read_lines
from topicfs.engine.files.integers import parse_int32, parse_int64
from topicfs.engine.files.metadata import PartitionMetadata
from topicfs.engine.format.paths import (
    INDEX_SUFFIX,
    LEADER_EPOCHS,
    LOG_SUFFIX,
    PARTITION_METADATA,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    log_file,
    offset_before,
)
from topicfs.engine.verify import segment as segments
from topicfs.engine.verify.finding import Finding, Findings, Kind, Severity, confirmed
from topicfs.engine.verify.producers import Replay, transaction_index
from topicfs.engine.verify.segment import SegmentPiece, SegmentReport

_LOOKS: Final = 3
"""The most looks at a partition whose segments are replaced again and again."""


@dataclass(frozen=True, slots=True)
class PartitionPiece:
    """One partition that is to be checked.

    topic, number  its name
    directory      its directory
    views          directory of what is made from its segments; None where there is none
    growing        whether somebody may have it open
    """

    topic: str
    number: int
    directory: Path
    views: Path | None
    growing: bool

    def segments(self) -> tuple[SegmentPiece, ...]:
        """Return its segments as they are now. There are none where the partition was removed, or cannot be listed."""
        try:
            names = os.listdir(self.directory)
        except OSError:
            return ()
        bases = _offsets(names, LOG_SUFFIX)
        snapshots = _offsets(names, SNAPSHOT_SUFFIX)
        return tuple(
            SegmentPiece(
                self.directory,
                base,
                end,
                tuple(each for each in snapshots if base < each and (end is None or each < end)),
                self.growing,
                self.views,
            )
            for base, end in zip(bases, (*bases[1:], None), strict=False)
        )


@dataclass(slots=True)
class PartitionReport:
    """What was found in one partition.

    piece         the partition
    topic_id      the id of its topic; None without one
    first_offset  base offset of its first segment; None without a segment
    next_offset   the offset behind its last batch
    is_end_known  whether that is the end of the log: damage may hide it
    findings      what is wrong, but for what was found in its segments
    """

    piece: PartitionPiece
    topic_id: str | None = None
    first_offset: int | None = None
    next_offset: int = 0
    is_end_known: bool = True
    findings: list[Finding] = field(default_factory=list)


def _offsets(names: Iterable[str], suffix: str) -> list[int]:
    return sorted(offset for name in names if (offset := offset_before(suffix, name)) is not None)


def check(piece: PartitionPiece, reports: Sequence[SegmentReport]) -> PartitionReport:
    """Check a partition, whose segments were checked already. If something is wrong, and somebody has replaced or
    removed one of them since, they are read again."""
    for _ in range(_LOOKS):
        report = _checked(piece, reports)
        if not report.findings or all(each.is_present for each in reports):
            return report
        reports = [found for each in piece.segments() if (found := segments.check(each)) is not None]
    report.findings = []
    return report


def _checked(piece: PartitionPiece, reports: Sequence[SegmentReport]) -> PartitionReport:
    report = PartitionReport(piece)
    if reports:
        report.first_offset = reports[0].piece.base
        report.next_offset = max(each.gathered.next_offset for each in reports)
        report.is_end_known = reports[-1].gathered.is_end_known
    report.findings = list(confirmed(_Look(report, reports).findings))
    if not piece.directory.exists():
        report.findings = []  # it was removed meanwhile
    return report


class _Look:
    """A look at the files of a partition beside its segments."""

    def __init__(self, report: PartitionReport, segments: Sequence[SegmentReport]) -> None:
        self.report = report
        self.directory = report.piece.directory
        self.segments = segments

    def findings(self) -> tuple[Finding, ...]:
        found = Findings()
        try:
            names = sorted(os.listdir(self.directory))
        except FileNotFoundError:
            return ()
        except OSError as error:
            effect = "its records cannot be read"
            expected = "a directory that can be listed"
            path = self.directory
            return (Finding(Severity.DAMAGE, Kind.DIRECTORY, path, "", expected, str(error), effect),)
        found.extend(self._names(names))
        found.extend(self._metadata())
        found.extend(self._epochs())
        found.extend(self._producers(_offsets(names, SNAPSHOT_SUFFIX)))
        return tuple(found)

    def _names(self, names: Sequence[str]) -> Iterator[Finding]:
        bases = set(_offsets(names, LOG_SUFFIX))
        for suffix, kind in (
            (INDEX_SUFFIX, Kind.OFFSET_INDEX),
            (TIME_INDEX_SUFFIX, Kind.TIME_INDEX),
            (TRANSACTION_INDEX_SUFFIX, Kind.TRANSACTION_INDEX),
        ):
            for base in sorted(set(_offsets(names, suffix)) - bases):
                path = self.directory / f"{base:020d}{suffix}"
                effect = "it belongs to no segment, and is removed at the next start"
                yield Finding(
                    Severity.REPAIRABLE, kind, path, "", f"{base:020d}{LOG_SUFFIX} beside it", "none", effect
                )
        for name in names:
            if name.endswith(SWAP_SUFFIX):
                yield Finding(
                    Severity.REPAIRABLE,
                    Kind.SEGMENT,
                    self.directory / name,
                    "",
                    "no segment that is being put in place",
                    "one that a compaction has left behind",
                    "it is put in place when the store is next opened, and readers of files wait for that",
                )

    def _metadata(self) -> Iterator[Finding]:
        try:
            self.report.topic_id = PartitionMetadata.load(self.directory).topic_id
        except (CorruptCheckpointError, OSError) as error:
            path = self.directory / PARTITION_METADATA
            effect = "the partition cannot be opened before the file is put right or removed"
            yield Finding(Severity.DAMAGE, Kind.METADATA, path, "", "the id of the topic", str(error), effect)

    # -- leader epochs --------------------------------------------------------------------------------

    def _epochs(self) -> Iterator[Finding]:
        path = self.directory / LEADER_EPOCHS

        def said(severity: Severity, at: str, expected: str, found: str, effect: str) -> Finding:
            return Finding(severity, Kind.LEADER_EPOCHS, path, at, expected, found, effect)

        rebuilt = "no record is lost; the epochs are read from the batches at the next start"
        try:
            lines = read_lines(path)
        except (CorruptCheckpointError, OSError) as error:
            yield said(Severity.REPAIRABLE, "", "a checkpoint of leader epochs", str(error), rebuilt)
            return
        entries = []
        for number, fields in enumerate(lines):
            epoch = parse_int32(fields[0]) if len(fields) == 2 else None
            start = parse_int64(fields[1]) if len(fields) == 2 else None
            if epoch is None or start is None or epoch < 0 or start < 0:
                at = f"line {number + 3}"
                yield said(Severity.REPAIRABLE, at, "<epoch> <start offset>", " ".join(fields)[:80], rebuilt)
                return
            entries.append((epoch, start))
        for number, (before, behind) in enumerate(pairwise(entries)):
            if behind[0] <= before[0] or behind[1] <= before[1]:
                at = f"line {number + 4}"
                yield said(Severity.REPAIRABLE, at, f"an entry above {before}", str(behind), rebuilt)
                return
        starts = [start for _, start in entries]
        replicas = "records are read as they are; only replicas of a cluster compare epochs"
        for segment in self.segments:
            for epoch, base, position in segment.gathered.epochs:
                known = bisect_right(starts, base)
                # Entries below the start offset are removed, though the batch may be there, and a log that was cut
                # below it has none.
                if known and entries[known - 1][0] != epoch:
                    yield Finding(
                        Severity.REPAIRABLE,
                        Kind.BATCH,
                        segment.piece.directory / log_file(segment.piece.base),
                        f"batch at position {position} (offset {base})",
                        f"leader epoch {entries[known - 1][0]}, as {LEADER_EPOCHS} says",
                        str(epoch),
                        replicas,
                    )

    # -- producers ------------------------------------------------------------------------------------

    def _producers(self, snapshots: Sequence[int]) -> Iterator[Finding]:
        if not self.segments:
            return
        first = self.segments[0].piece.base
        replay = Replay(self.directory, first == 0)
        waiting = [each for each in snapshots if each >= first]
        reached = first
        for segment in self.segments:
            piece, gathered = segment.piece, segment.gathered
            if piece.base != reached:
                # Of batches that compaction has removed a snapshot still tells.
                replay.forget()
            while waiting and waiting[0] <= piece.base:
                yield from replay.meet(waiting.pop(0))
            path = self.directory / log_file(piece.base)
            if not gathered.is_gapless or gathered.producers is None or piece.base != reached:
                replay.forget()
            reached = gathered.next_offset
            aborted = []
            is_complete = replay.is_known
            for batch, records in gathered.producers or ():
                while waiting and waiting[0] <= batch.base_offset:
                    yield from replay.meet(waiting.pop(0))
                    if not gathered.is_gapless:
                        replay.forget()
                entry = replay.entries.get(batch.producer_id)
                at = f"batch at offset {batch.base_offset}"
                if entry is not None and replay.is_known and batch.producer_epoch < entry.epoch:
                    expected = f"epoch {entry.epoch} or above of producer {batch.producer_id}"
                    effect = "its records are read; an older instance of the producer has written them"
                    found = f"epoch {batch.producer_epoch}"
                    yield Finding(Severity.NOTE, Kind.BATCH, path, at, expected, found, effect)
                ended = replay.take(batch, records)
                if ended is not None:
                    aborted.append(ended)
            if gathered.producers is not None:
                yield from transaction_index(
                    self.directory, piece.base, gathered.next_offset, aborted, is_complete, piece.is_growing
                )
        end = self.segments[-1].gathered.next_offset
        for offset in waiting:
            if offset <= end:
                yield from replay.meet(offset)
            elif self.report.is_end_known and not self.report.piece.growing:
                yield Finding(
                    Severity.DAMAGE,
                    Kind.PRODUCER_SNAPSHOT,
                    self.directory / f"{offset:020d}{SNAPSHOT_SUFFIX}",
                    "",
                    f"the log to reach offset {offset}, where this snapshot was taken",
                    f"its end at {end}",
                    "the log has lost its end, or this file its name; it is removed at the next start",
                )
