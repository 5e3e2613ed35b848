"""The Parquet files of a partition's table that can be read in place of its segments, found without an open store.

A file takes the place of a segment if it was made from the `.log` that has the segment's name now, if that segment
holds as much as the file says, and if all of that may be read. A list may be older than the segments: what it lacks,
and what was compacted since, is read from the segments.

An open descriptor keeps a file readable when the table is replaced. So a query names its files by their descriptors.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from topicfs.engine.files.regular import NotRegularError, open_regular
from topicfs.engine.format.paths import PARQUET_SUFFIX, log_file, made_of
from topicfs.engine.parquet.table import TableFile, listed_in
from topicfs.engine.unlocked.partitions import TopicPartition


@dataclass(frozen=True, slots=True)
class PresentFile:
    """A file that holds the records at the offsets [start, end).

    path  path of its descriptor; None if there are no records
    """

    start: int
    end: int
    path: str | None


def present(partition: TopicPartition, views: Path, most: int, held: ExitStack) -> Iterator[PresentFile]:
    """Yield the files that take the place of segments, in the order of offsets, at most so many that are open. `views`
    is the directory of all partitions' views. The files stay open until `held` is closed."""
    files, bounds = partition.files, partition.bounds
    table = listed_in(views / partition.name)
    if table.topic_id != partition.topic_id:
        return
    opened = 0
    for file in table.files:
        place = files.floor(file.base_offset)
        if place < 0 or files.bases[place] != file.base_offset or files.end_of(place, -1) != file.next_offset:
            continue
        if not bounds.start <= file.base_offset <= file.next_offset <= bounds.end:
            continue
        if not _is_of(files.directory, file):
            continue
        if not file.records:
            yield PresentFile(file.base_offset, file.next_offset, None)
        elif opened < most:
            descriptor = _open(views / partition.name / file.name, file.size)
            if descriptor is not None:
                held.callback(os.close, descriptor)
                opened += 1
                yield PresentFile(file.base_offset, file.next_offset, f"/proc/self/fd/{descriptor}")


def _is_of(directory: Path, file: TableFile) -> bool:
    """Return whether a file was made from the `.log` as it is now."""
    try:
        status = os.stat(directory / log_file(file.base_offset))
    except FileNotFoundError:
        return False
    return made_of(file.base_offset, status, PARQUET_SUFFIX) == file.name


def _open(path: Path, size: int) -> int | None:
    """Return a descriptor of a file with this size, or None if there is none."""
    try:
        descriptor = open_regular(path, os.O_RDONLY)
    except (FileNotFoundError, NotRegularError):
        return None
    if os.fstat(descriptor).st_size == size:
        return descriptor
    os.close(descriptor)
    return None
