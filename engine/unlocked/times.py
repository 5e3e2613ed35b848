"""The parts of a partition that may hold records of some time. What is surely too early or too late is left out.

Time indexes tell what is too early. What is too late is in the files of smallest timestamps, which the daemon makes of
sealed segments.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from topicfs.engine.format.paths import log_file
from topicfs.engine.min_timestamps.file import load
from topicfs.engine.record import MAX_INT64
from topicfs.engine.unlocked.files import Files, time_index
from topicfs.engine.unlocked.offset_range import TimeBounds
from topicfs.engine.unlocked.partitions import TopicPartition


def within_times(
    partition: TopicPartition, views: Path, start: int, end: int, times: TimeBounds
) -> Iterator[tuple[int, int]]:
    """Yield the parts of a span that may hold records of some time. In each segment, the part that is surely too
    early or surely too late is left out. Adjacent parts are joined. `views` is the directory of all partitions'
    views."""
    files = partition.files
    waiting: tuple[int, int] | None = None
    for place in range(max(files.floor(start), 0), len(files.bases)):
        if files.bases[place] >= end:
            break
        begin, stop = start, min(end, files.end_of(place, end))
        start = stop
        if times.last is not None:
            stop = min(stop, _late_from(files, views / partition.name, place, times.last))
        if times.first is not None and begin < stop:
            begin = max(begin, _early_up_to(files, place, times.first))
        if begin >= stop:
            continue
        if waiting is not None and waiting[1] == begin:
            begin = waiting[0]
        elif waiting is not None:
            yield waiting
        waiting = begin, stop
    if waiting is not None:
        yield waiting


def _early_up_to(files: Files, place: int, first: int) -> int:
    """Return the offset below which all records of a segment are earlier than `first`, by its time index. An entry
    says that no record up to its offset is later than its timestamp."""
    index = time_index(files.directory, files.bases[place])
    early = index.count_up_to(0, first - 1)
    if early == index.entries and early and place < len(files.bases) - 1:
        return files.bases[place + 1]
    return index.base + index.at(early - 1)[1] + 1 if early else index.base


def _late_from(files: Files, views: Path, place: int, last: int) -> int:
    """Return the offset from which on all records of a segment are later than `last`, or its end if no file tells.

    A file that covers less than the listed segment of this base belongs to a segment that was made from it later."""
    if place == len(files.bases) - 1:
        return MAX_INT64
    base, following = files.bases[place], files.bases[place + 1]
    known = load(views, files.directory / log_file(base), base)
    if known is None or known.end_offset < following:
        return following
    late = known.all_later_from(last)
    return following if late is None else late
