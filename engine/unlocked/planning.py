"""From limits to ranges: which offsets of a topic's partitions are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from operator import attrgetter

from topicfs.engine.errors import InvalidSettingError, OffsetOutOfRangeError, UnknownPartitionError
from topicfs.engine.format.paths import VIEWS
from topicfs.engine.unlocked.limits import Limit, ms_of
from topicfs.engine.unlocked.offset_range import EVERYTHING, OffsetRange, TimeBounds
from topicfs.engine.unlocked.partitions import TopicPartition, found, while_files_change
from topicfs.engine.unlocked.place import Place
from topicfs.engine.unlocked.times import within_times


def partitions_of(place: Place, topic: str) -> list[TopicPartition]:
    """Return the partitions of a topic by their numbers. UnknownPartitionError if there is none."""
    keys = sorted(key for key in place.partitions() if key[0] == topic)
    partitions = list(found(place, keys).values())
    if not partitions:
        raise UnknownPartitionError(f"{place.logs}: expected a topic {topic}, found no partition of it")
    return partitions


def ranges(place: Place, topic: str, start: Limit, end: Limit) -> list[OffsetRange]:
    """Return what a read of a topic from one limit to another has to read, by partition and offset. Offsets outside of
    a partition are an error where that partition was named: OffsetOutOfRangeError."""
    partitions = partitions_of(place, topic)
    for name, limit in (("start", start), ("end", end)):
        _check(partitions, name, limit)
    times = TimeBounds(_moment(start), None if (last := _moment(end)) is None else last - 1)
    planned = []
    for partition in partitions:
        bounds = partition.bounds
        first, behind = (
            _offset(partition, start, bounds.start),
            _offset(partition, end, bounds.end),
        )
        for begin, stop in _spans(place, partition, first, behind, times):
            planned.append(range_of(partition, begin, stop, times))
    return planned


def range_of(partition: TopicPartition, start: int, end: int, times: TimeBounds = EVERYTHING) -> OffsetRange:
    """Return a range of a partition, with the aborted transactions in it."""
    directory = partition.files.directory
    part = OffsetRange(
        partition.topic, partition.number, directory, start, end, 0, (), True, times, partition.topic_id
    )
    return with_aborted(partition, part)


def with_aborted(partition: TopicPartition, part: OffsetRange) -> OffsetRange:
    """Return a range of a partition that knows the aborted transactions in it."""
    late = [each for each in partition.bounds.aborted if each.overlaps(part.start, part.end)]
    aborted = while_files_change(lambda: {*partition.files.aborted(part.start, part.end), *late})
    return replace(part, aborted=tuple(sorted(aborted, key=attrgetter("last_offset"))))


def _spans(
    place: Place, partition: TopicPartition, start: int, end: int, times: TimeBounds
) -> Iterator[tuple[int, int]]:
    if start >= end:
        return
    if times == EVERYTHING:
        yield start, end
    else:
        yield from within_times(partition, place.backing / VIEWS, start, end, times)


def _check(partitions: list[TopicPartition], name: str, limit: Limit) -> None:
    """Raise an error if a limit in offsets cannot be meant."""
    if limit is None or isinstance(limit, (datetime, str)):
        return
    for offset in limit.values() if isinstance(limit, Mapping) else (limit,):
        if not isinstance(offset, int) or offset < 0:
            raise InvalidSettingError(f"{name}: expected an offset from 0 on, found {offset}")
    numbers = [each.number for each in partitions]
    if isinstance(limit, Mapping) and set(limit) != set(numbers):
        raise InvalidSettingError(
            f"{name}: expected an offset for each of the partitions {', '.join(map(str, numbers))}, found "
            f"{', '.join(map(str, sorted(limit))) or 'none'}"
        )


def _moment(limit: Limit) -> int | None:
    return ms_of(limit) if isinstance(limit, (datetime, str)) else None


def _offset(partition: TopicPartition, limit: Limit, otherwise: int) -> int:
    """Return the offset that a limit means in a partition."""
    bounds = partition.bounds
    if isinstance(limit, int):
        # One number for all partitions may lie outside of some of them.
        return min(max(limit, bounds.start), bounds.end)
    if isinstance(limit, Mapping):
        wanted = limit[partition.number]
        if not bounds.start <= wanted <= bounds.end:
            raise OffsetOutOfRangeError(
                f"{partition.name}: expected an offset within {bounds.start} to {bounds.end}, which is what there is, "
                f"found {wanted}"
            )
        return wanted
    return otherwise
