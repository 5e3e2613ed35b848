"""Keeping a partition's table up to date: it has a file for each segment that can no longer change."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from topicfs.engine.errors import ClosedError, EngineError
from topicfs.engine.parquet.table import Failure, PartitionTable, TableFile, Tables, file_name
from topicfs.engine.parquet.write import Stopped, write_file
from topicfs.engine.partition import reader
from topicfs.engine.partition.hold import Hold
from topicfs.engine.partition.offsets import Isolation
from topicfs.engine.partition.partition import Partition
from topicfs.engine.record import Clock
from topicfs.engine.segment.segment import Segment
from topicfs.engine.segment.segments import Segments

log = logging.getLogger(__name__)

RETRY_MS: Final = 60_000
"""A failed file is tried again after this time: the disk may then have room, or the segment may be repaired."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """The state of a partition when everything was done.

    segments  the list of segments
    sealed    how many of them were complete
    table     the published table
    """

    segments: Segments
    sealed: int
    table: PartitionTable


@dataclass(slots=True)
class TableUpkeep:
    """Makes the files of tables, and removes those that are not needed. One thread calls it.

    tables  the tables that it updates
    clock   milliseconds, for waits
    _made   files that are not published yet, by partition and name
    _seen   state of each partition when everything was done
    """

    tables: Tables
    clock: Clock
    _made: dict[str, dict[str, TableFile]] = field(default_factory=dict)
    _seen: dict[str, _Seen] = field(default_factory=dict)

    def bring_up_to_date(self, partition: Partition, stop: Callable[[], bool]) -> None:
        """Make missing files, publish complete lists and remove files that are not needed, until told to stop."""
        taken = partition.log.snapshot
        segments = taken.segments
        sealed = [
            (segment, following.base_offset)
            for segment, following in pairwise(segments)
            if taken.stable >= following.base_offset
        ]
        failures = self.tables.failures.get(partition.name, {})
        due = any(self.clock() >= failure.retry_ms for failure in failures.values())
        if (
            self._seen.get(partition.name) == _Seen(segments, len(sealed), self.tables.of(partition))
            and not due
        ):
            return
        try:
            done = self._make_missing(partition, sealed, stop)
            if done:
                self._tidy(partition)
        except (ClosedError, FileNotFoundError):
            if partition.log.snapshot.segments is segments:
                raise
            return  # removed or rewritten in the meantime: the next call sees the new state
        if done:
            self._seen[partition.name] = _Seen(segments, len(sealed), self.tables.of(partition))

    def _make_missing(
        self, partition: Partition, sealed: list[tuple[Segment, int]], stop: Callable[[], bool]
    ) -> bool:
        """Make missing files. Return whether all segments were handled."""
        name, before = partition.name, self.tables.of(partition)
        known = {file.name: file for file in before.files} | self._made.get(name, {})
        # A truncation may have removed the log's end: then no list reaches as far as before.
        reach = min(before.end_offset, sealed[-1][1]) if sealed else 0
        ready: list[TableFile] = []
        if not sealed and before.files:
            self.tables.publish(partition, ())
        for segment, end in sealed:
            if stop():
                return False
            try:
                file = self._file(partition, segment, end, known, stop)
            except Stopped:
                return False
            if file is not None:
                ready.append(file)
            if end >= reach and tuple(ready) != self.tables.of(partition).files:
                self.tables.publish(partition, tuple(ready))
        return True

    def _file(
        self,
        partition: Partition,
        segment: Segment,
        end: int,
        known: dict[str, TableFile],
        stop: Callable[[], bool],
    ) -> TableFile | None:
        """Return a segment's file, and make it if it is missing. Return None if it cannot be made for now."""
        name, mtime_ns = file_name(segment)
        file = known.get(name)
        if file is not None and self.tables.is_there(partition.name, file):
            return file
        failures = self.tables.failures.setdefault(partition.name, {})
        failure = failures.get(name)
        if failure is not None and self.clock() < failure.retry_ms:
            return None
        wanted = TableFile(name, segment.base_offset, end, 0, 0, -1, mtime_ns)
        try:
            file = self._write(partition, segment, wanted, stop)
        except (EngineError, OSError) as error:
            if segment not in partition.log.snapshot.segments:
                raise FileNotFoundError(f"{segment} was removed") from error
            failures[name] = Failure(f"segment {segment.base_offset}: {error}", self.clock() + RETRY_MS)
            log.error(f"{partition.name}: no Parquet file of segment {segment.base_offset}: {error}")
            return None
        failures.pop(name, None)
        self._made.setdefault(partition.name, {})[name] = file
        count, size = self.tables.made
        self.tables.made = count + 1, size + file.size
        return file

    def _write(
        self, partition: Partition, segment: Segment, wanted: TableFile, stop: Callable[[], bool]
    ) -> TableFile:
        start, end = wanted.base_offset, wanted.next_offset
        with Hold.take(partition.log, start, end) as hold:
            if hold.held != [segment]:
                raise FileNotFoundError(f"{segment} was removed")
            return write_file(
                self.tables.path(partition.name, wanted.name),
                reader.read_columns(hold.snapshot, start, end, Isolation.COMMITTED),
                partition.topic,
                partition.number,
                wanted,
                stop,
            )

    def _tidy(self, partition: Partition) -> None:
        """Forget, and remove from disk, all files that do not belong to the table."""
        name = partition.name
        keep = {file.name for file in self.tables.of(partition).files}
        self._made.pop(name, None)
        self.tables.remove_others(name, keep)
        present = {file_name(segment)[0] for segment in partition.log.snapshot.segments.non_active}
        left = {key: each for key, each in self.tables.failures.get(name, {}).items() if key in present}
        if left:
            self.tables.failures[name] = left
        else:
            self.tables.failures.pop(name, None)
