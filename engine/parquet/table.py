"""The list of Parquet files that make up a partition's table, and their paths. This module needs no pyarrow.

    BACKING/views/<partition>/<base>.<inode>-<size>-<mtime>.parquet   visible records of one sealed segment, see
                                                                      engine.format.paths
    BACKING/views/<partition>/parquet.list                            JSON: the files of the table

A file's name identifies the `.log` file that it was made from, so a segment that compaction rewrote gets another file.
The list alone defines the table. It is replaced in one step, and only by a list that reaches as far in the log. So a
table never lacks records while files are rebuilt after a compaction: until then the former list stays.
All of these files can be built again, and may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from bisect import bisect_left, bisect_right
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Final

from topicfs.engine.errors import CorruptError
from topicfs.engine.files.atomic import read_bounded, write_atomically
from topicfs.engine.format.paths import PARQUET_LIST, PARQUET_SUFFIX, TEMPORARY_SUFFIX, made_of
from topicfs.engine.partition.partition import Partition
from topicfs.engine.segment.descriptors import Descriptors, OtherFile
from topicfs.engine.segment.segment import Segment

# About 300 bytes for each segment of a partition.
_LONGEST_LIST: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file of a table, made from one segment.

    name           file name on disk
    base_offset    base offset of the segment
    next_offset    base offset of the next segment: all its records are below
    records        number of visible records; without any there is no file on disk, and none is shown
    size           bytes of the file
    max_timestamp  largest timestamp of the visible records, in milliseconds; -1 without any
    mtime_ns       modification time of the segment's `.log`
    """

    name: str
    base_offset: int
    next_offset: int
    records: int
    size: int
    max_timestamp: int
    mtime_ns: int

    @property
    def generation(self) -> int:
        """Return a number that differs for each `.log` file that had the base offset."""
        return zlib.crc32(self.name.encode())


@dataclass(frozen=True, slots=True)
class PartitionTable:
    """The files of a partition's present table, in the order of offsets.

    topic_id  id of the topic: a later topic with the same name has other records
    files     files of all its segments, also of those without visible records
    """

    topic_id: str | None
    files: tuple[TableFile, ...] = ()

    @property
    def end_offset(self) -> int:
        """Return the offset behind the records of the table, or 0 if it is empty."""
        return self.files[-1].next_offset if self.files else 0


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a file is missing.

    reason    the reason in words
    retry_ms  time of the next attempt
    """

    reason: str
    retry_ms: int


_base_offset = attrgetter("base_offset")


@dataclass(slots=True)
class Tables:
    """The tables of all partitions.

    directory  directory of the tables, with one directory for each partition
    places     open files borrow a place there
    failures   by partition, then by the name that the file would have; "" for the partition as a whole
    made       number of files that were made since the start, and their bytes
    _tables    tables that were asked for, by partition; replaced one by one
    """

    directory: Path
    places: Descriptors = field(default_factory=Descriptors)
    failures: dict[str, dict[str, Failure]] = field(default_factory=dict)
    made: tuple[int, int] = (0, 0)
    _tables: dict[str, PartitionTable] = field(default_factory=dict)

    # -- reading --------------------------------------------------------------------------------------

    def of(self, partition: Partition) -> PartitionTable:
        """Return the published table of a partition, even if it is switched off, or its records were removed from
        the log."""
        table = self._tables.get(partition.name)
        if table is None:
            table = self._tables[partition.name] = self._load(partition.name)
        return table if table.topic_id == partition.topic_id else PartitionTable(partition.topic_id)

    def files(self, partition: Partition) -> tuple[TableFile, ...]:
        """Return the visible files. There are none if tables are switched off, and none of removed segments."""
        if not partition.settings.parquet_enable:
            return ()
        table, first = self.of(partition), partition.log.snapshot.segments.first.base_offset
        gone = bisect_right(table.files, first, key=attrgetter("next_offset"))
        return tuple(file for file in table.files[gone:] if file.records)

    def find(self, partition: Partition, base_offset: int) -> TableFile | None:
        """Return the visible file with exactly this base offset."""
        if not partition.settings.parquet_enable:
            return None
        files, first = self.of(partition).files, partition.log.snapshot.segments.first.base_offset
        at = bisect_left(files, base_offset, key=_base_offset)
        file = files[at] if at < len(files) and files[at].base_offset == base_offset else None
        return file if file is not None and file.records and file.next_offset > first else None

    def open(self, partition: Partition, file: TableFile) -> OtherFile:
        """Open a file for reading. FileNotFoundError if it was removed in the meantime."""
        try:
            return self.places.open_other(self.path(partition.name, file.name), os.O_RDONLY)
        except FileNotFoundError:
            # If somebody deleted the file, the list is read again, and the file is made again.
            self._tables.pop(partition.name, None)
            raise

    def status(self, partition: Partition) -> dict[str, object] | None:
        """Return the status that is shown to people, or None if tables are switched off."""
        if not partition.settings.parquet_enable:
            return None
        files = self.files(partition)
        failures = self.failures.get(partition.name, {})
        return {
            "files": len(files),
            "bytes": sum(file.size for file in files),
            "next_offset": self.of(partition).end_offset,
            "error": next((failure.reason for failure in failures.values()), None),
        }

    def path(self, partition: str, name: str) -> Path:
        """Return the path of a partition's file."""
        return self.directory / partition / name

    # -- changing: one thread only --------------------------------------------------------------------

    def publish(self, partition: Partition, files: tuple[TableFile, ...]) -> None:
        """Make these files the partition's table, durably."""
        table = PartitionTable(partition.topic_id, files)
        content = {"topic_id": table.topic_id, "files": [asdict(file) for file in files]}
        path = self.path(partition.name, PARQUET_LIST)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(content).encode())
        self._tables[partition.name] = table

    def is_there(self, partition: str, file: TableFile) -> bool:
        """Return whether the file is on disk as it was made."""
        if not file.records:
            return True
        try:
            return os.stat(self.path(partition, file.name)).st_size == file.size
        except FileNotFoundError:
            return False

    def remove_others(self, partition: str, keep: set[str]) -> None:
        """Remove a partition's files except these. Readers that have one open can go on."""
        for path in self._on_disk(partition):
            if path.name not in keep:
                path.unlink(missing_ok=True)

    def clear(self, partition: str) -> None:
        """Remove a partition's table."""
        self.failures.pop(partition, None)
        self._tables[partition] = PartitionTable(None)
        # The list is removed first: it must not name files that do not exist.
        self.path(partition, PARQUET_LIST).unlink(missing_ok=True)
        self.remove_others(partition, set())

    def has_files(self, partition: str) -> bool:
        """Return whether any file of a table is on disk."""
        return self.path(partition, PARQUET_LIST).exists() or bool(self._on_disk(partition))

    def _on_disk(self, partition: str) -> list[Path]:
        try:
            names = os.listdir(self.directory / partition)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [
            self.path(partition, name)
            for name in names
            if name.removesuffix(TEMPORARY_SUFFIX).endswith(PARQUET_SUFFIX)
        ]

    def _load(self, partition: str) -> PartitionTable:
        """Return the list from disk, if all the files that it names exist."""
        table = listed_in(self.directory / partition)
        if all(self.is_there(partition, file) for file in table.files):
            return table
        return PartitionTable(None)


def listed_in(directory: Path) -> PartitionTable:
    """Return the table that a partition's directory of views lists, whether its files exist or not. It is empty if
    there is no list, or it cannot be read."""
    with contextlib.suppress(
        FileNotFoundError, NotADirectoryError, CorruptError, ValueError, KeyError, TypeError, RecursionError
    ):
        content = json.loads(read_bounded(directory / PARQUET_LIST, _LONGEST_LIST))
        return PartitionTable(content["topic_id"], tuple(TableFile(**each) for each in content["files"]))
    return PartitionTable(None)


def file_name(segment: Segment) -> tuple[str, int]:
    """Return the name of a segment's file, and the modification time of its `.log`. FileNotFoundError if that was
    removed."""
    status = os.stat(segment.path)
    return made_of(segment.base_offset, status, PARQUET_SUFFIX), status.st_mtime_ns
