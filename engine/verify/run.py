"""The check of a whole log, in several threads: kernels and decompression leave Python's lock."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.format.paths import LOGS, VIEWS, partition_directory
from topicfs.engine.verify import beside
from topicfs.engine.verify import partition as partitions
from topicfs.engine.verify import segment as segments
from topicfs.engine.verify.directory import DirectoryCheck
from topicfs.engine.verify.finding import Finding, Findings, confirmed
from topicfs.engine.verify.partition import PartitionPiece, PartitionReport
from topicfs.engine.verify.segment import SegmentReport

_AHEAD: Final = 2
"""Segments that are read ahead of the first one whose result is waited for, for each thread."""

_MOST_THREADS: Final = 8


@dataclass(slots=True)
class Totals:
    """What was checked.

    partitions, segments, files, bytes, batches, records  their numbers
    seconds   how long it took
    expected  bytes of the segments that were listed, for a report of progress
    """

    partitions: int = 0
    segments: int = 0
    files: int = 0
    bytes: int = 0
    batches: int = 0
    records: int = 0
    seconds: float = 0.0
    expected: int = 0


@dataclass(slots=True)
class Check:
    """The check of a log.

    backing   directory that has `logs/` in it, or a log directory itself
    wanted    says which partitions are checked
    growing   whether somebody may have the log open
    advanced  called with the totals, after each segment
    totals    what was checked so far
    """

    backing: Path
    wanted: Callable[[PartitionKey], bool]
    growing: bool
    advanced: Callable[[Totals], None] = lambda _: None
    totals: Totals = field(default_factory=Totals)

    @property
    def logs(self) -> Path:
        """Return the log directory."""
        logs = self.backing / LOGS
        return logs if logs.is_dir() else self.backing

    def findings(self) -> Iterator[Finding]:
        """Check everything, and yield what is wrong, partition by partition."""
        began = time.monotonic()
        directory = DirectoryCheck.of(self.logs)
        self.totals.files += directory.files
        self.totals.bytes += directory.bytes
        yield from directory.findings
        if self.logs != self.backing:
            yield from confirmed(partial(beside.store, self.backing))
        reports: list[PartitionReport] = []
        pieces = [self._piece(key) for key in sorted(directory.partitions) if self.wanted(key)]
        self.totals.expected += sum(_size(piece.directory) for piece in pieces)
        with ThreadPoolExecutor(_threads(), "verify") as pool:
            try:
                yield from self._partitions(pool, pieces, reports)
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
        yield from directory.compared(reports)
        self.totals.seconds += time.monotonic() - began

    def _piece(self, key: PartitionKey) -> PartitionPiece:
        name = partition_directory(*key)
        views = self.backing / VIEWS / name
        return PartitionPiece(*key, self.logs / name, views if views.is_dir() else None, self.growing)

    def _partitions(
        self, pool: ThreadPoolExecutor, pieces: Collection[PartitionPiece], reports: list[PartitionReport]
    ) -> Iterator[Finding]:
        """Check partitions one after the other, each by several threads; segments of the next ones are read ahead."""
        waiting: deque[tuple[PartitionPiece, Future[SegmentReport | None] | None]] = deque()
        todo = self._segments(pool, pieces)
        done: list[SegmentReport] = []
        findings = Findings()
        while True:
            while len(waiting) < _AHEAD * _threads() and (following := next(todo, None)) is not None:
                waiting.append(following)
            if not waiting:
                return
            piece, future = waiting.popleft()
            if future is not None:
                report = future.result()
                if report is not None:
                    done.append(report)
                    self._add(report)
                    findings.extend(report.findings)
                continue
            whole = partitions.check(piece, done)
            findings.extend(whole.findings)
            findings.extend(confirmed(partial(beside.table, whole, done)))
            findings.extend(confirmed(partial(beside.keys, piece.views)))
            self.totals.partitions += 1
            reports.append(whole)
            yield from findings
            done, findings = [], Findings()

    def _segments(
        self, pool: ThreadPoolExecutor, pieces: Collection[PartitionPiece]
    ) -> Iterator[tuple[PartitionPiece, Future[SegmentReport | None] | None]]:
        """Yield the check of each segment, which has begun then, and None behind those of each partition."""
        for piece in pieces:
            for each in piece.segments():
                yield piece, pool.submit(segments.check, each)
            yield piece, None

    def _add(self, report: SegmentReport) -> None:
        totals = self.totals
        totals.segments += 1
        totals.files += report.files
        totals.bytes += report.bytes
        totals.batches += report.gathered.batches
        totals.records += report.gathered.records
        self.advanced(totals)


def _size(directory: Path) -> int:
    """Return the bytes of a directory's files, for a report of progress: nothing else depends on them."""
    total = 0
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                total += entry.stat(follow_symlinks=False).st_size
    return total


def _threads() -> int:
    return min(_MOST_THREADS, os.cpu_count() or 1)
