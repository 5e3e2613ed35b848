"""Finding the offsets that a query reads, and dividing them among tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from topicfs.engine.errors import InvalidSettingError, OffsetOutOfRangeError, UnknownPartitionError
from topicfs.engine.format.index import Index
from topicfs.engine.spark.options import EARLIEST, LATEST, Key, Limit, Options
from topicfs.engine.unlocked.files import Files, offset_index, time_index
from topicfs.engine.unlocked.offset_range import OffsetRange
from topicfs.engine.unlocked.partitions import TopicPartition, while_files_change
from topicfs.engine.unlocked.place import Place
from topicfs.engine.unlocked.planning import range_of, with_aborted

TASK_BYTES: Final = 128 * 1024 * 1024
"""Bytes of a log that one task reads, unless `minPartitions` asks for more tasks. Spark reads as much of a file."""


def chosen(place: Place, options: Options, missing_ok: bool = False) -> list[Key]:
    """Return the partitions that a query reads. UnknownPartitionError if a named one does not exist, unless
    `missing_ok`."""
    present = place.partitions()
    if not missing_ok:
        refuse_missing_topics(place, options, present)
        absent = sorted((options.assigned or frozenset()).difference(present))
        if absent and not options.streaming:  # a stream waits for it, as one of Spark's Kafka source does
            raise UnknownPartitionError(
                f"{place.logs}: expected a partition {absent[0][0]}-{absent[0][1]}, found none"
            )
    return sorted(filter(options.wants, present))


def refuse_missing_topics(place: Place, options: Options, present: Iterable[Key] | None = None) -> None:
    """Raise UnknownPartitionError if a named topic does not exist among the present partitions, which are listed where
    they are not given."""
    named = options.topics or {topic for topic, _ in options.assigned or ()}
    found = place.partitions() if present is None else present
    missing = sorted(named - {topic for topic, _ in found})
    if missing:
        raise UnknownPartitionError(f"{place.logs}: expected a topic {missing[0]}, found none of this name")


# -- limits -------------------------------------------------------------------------------------------


def resolved(
    partitions: dict[Key, TopicPartition], limit: Limit, name: str, late_is_latest: bool
) -> dict[Key, int]:
    """Return the offset that a limit means in each partition."""
    named = limit.offsets or limit.timestamps
    if named and limit.timestamp is None and set(named) != set(partitions):
        lists = (sorted(set(partitions) - set(named)), sorted(set(named) - set(partitions)))
        left_out, unread = (
            ", ".join(f"{topic}-{number}" for topic, number in each) or "none" for each in lists
        )
        raise InvalidSettingError(
            f"option {name}: expected every partition that is read and no other one, found {left_out} left out, and "
            f"named but not read {unread}"
        )
    return {
        key: _offset(partition, key, limit, name, late_is_latest) for key, partition in partitions.items()
    }


def _offset(partition: TopicPartition, key: Key, limit: Limit, name: str, late_is_latest: bool) -> int:
    bounds = partition.bounds
    moment = limit.timestamp if limit.timestamp is not None else limit.timestamps.get(key)
    if moment is not None:
        reached = while_files_change(lambda: first_at(partition, moment))
        if reached is None and name.startswith("starting") and not late_is_latest:
            raise OffsetOutOfRangeError(
                f"{partition.name}: expected a record from timestamp {moment} on, found none; "
                "startingOffsetsByTimestampStrategy=latest begins at the end then"
            )
        return bounds.end if reached is None else reached
    wanted = limit.offsets.get(key, limit.word)
    if wanted == EARLIEST:
        return bounds.start
    if wanted == LATEST:
        return bounds.end
    # One number for all partitions may lie outside of some of them.
    return wanted if limit.offsets else min(max(wanted, bounds.start), bounds.end)


def first_at(partition: TopicPartition, timestamp: int) -> int | None:
    """Return the first offset with a record that readers see and that is not earlier, or None. The result is exact: see
    `Segment`."""
    # These imports load the kernels.
    from topicfs.engine.partition.timestamps import first_of  # noqa: PLC0415
    from topicfs.engine.unlocked.scan import offset_by_timestamp  # noqa: PLC0415

    files, bounds = partition.files, partition.bounds
    whole = range_of(partition, bounds.start, bounds.end)
    reached = first_of(
        [
            place
            for place, base in enumerate(files.bases)
            if base < bounds.end and files.end_of(place, bounds.end) > bounds.start
        ],
        lambda place: may_reach(files, place, timestamp),
        lambda place: offset_by_timestamp(files.directory, files.bases[place], timestamp, whole),
    )
    return reached if reached is not None and reached < bounds.end else None


def may_reach(files: Files, place: int, timestamp: int) -> bool:
    """Return whether a segment may hold a record that is not earlier. The index of the last segment may be
    incomplete."""
    if place == len(files.bases) - 1:
        return True
    latest = latest_of(files, place)
    return latest is None or latest >= timestamp


def latest_of(files: Files, place: int) -> int | None:
    """Return a sealed segment's largest timestamp, or None if its index has no entry."""
    index = time_index(files.directory, files.bases[place])
    last = index.last()
    return None if last is None else last[0]


# -- tasks --------------------------------------------------------------------------------------------


def checked(partition: TopicPartition, start: int, end: int, options: Options) -> tuple[int, int]:
    """Return the existing part of a range. If records of it are lost, and that is to be an error, raise
    OffsetOutOfRangeError."""
    bounds = partition.bounds
    if bounds.start <= start <= end <= bounds.end:
        return start, end
    if options.fail_on_data_loss:
        raise OffsetOutOfRangeError(
            f"{partition.name}: expected offsets {start} to {end} within {bounds.start} to {bounds.end}, which is what "
            "there is: records were removed, or the topic was made anew. failOnDataLoss=false reads what is left"
        )
    end = min(max(end, bounds.start), bounds.end)
    return min(max(start, bounds.start), end), end


def tasks(
    partitions: dict[Key, TopicPartition], spans: Iterable[tuple[Key, int, int]], options: Options
) -> list[OffsetRange]:
    """Divide the spans of offsets at ends of batches, and return one range for each task."""
    whole = [
        OffsetRange(
            key[0],
            key[1],
            partitions[key].directory,
            start,
            end,
            size(partitions[key].files, start, end),
            (),
            options.fail_on_data_loss,
            options.times,
            partitions[key].topic_id,
        )
        for key, start, end in spans
        if start < end
    ]
    most = TASK_BYTES
    if options.min_partitions is not None:
        most = max(1, min(most, sum(each.size for each in whole) // options.min_partitions))
    parts = [
        part
        for each in whole
        for part in _cut(
            partitions[each.topic, each.number].files, each, most, options.min_partitions is None
        )
    ]
    if options.min_partitions is not None:
        parts = _split(parts, options.min_partitions)
    if options.max_records is not None:
        parts = [piece for part in parts for piece in _shares(part, options.max_records)]
    return [with_aborted(partitions[part.topic, part.number], part) for part in parts]


def size(files: Files, start: int, end: int) -> int:
    """Return the bytes between two offsets, to within about an index interval."""
    return _position(files, end) - _position(files, start)


def _position(files: Files, offset: int) -> int:
    """Return the bytes of all segments before an offset."""
    place = max(files.floor(offset), 0)
    index = offset_index(files.directory, files.bases[place])
    below = index.count_up_to(0, offset - 1 - index.base)
    if below == index.entries and files.end_of(place, offset) == offset:
        return sum(files.sizes[: place + 1])  # behind the last entry: up to the segment's end
    return sum(files.sizes[:place]) + (index.at(below - 1)[1] if below else 0)


def _cut(files: Files, whole: OffsetRange, most: int, even: bool) -> Iterator[OffsetRange]:
    """Yield pieces of at most about `most` bytes. Small segments are read together.

    With `even` there is an even number of them, or one. Cores come in pairs, and all but one would wait for the last of
    three pieces: two cores read four in three quarters of the time."""
    count = max(1, -(-whole.size // most))
    if even and count > 1:
        count += count % 2
    begin, start = _position(files, whole.start), whole.start
    for number in range(1, count):
        at = _offset_at(files, begin + whole.size * number // count)
        if start < at < whole.end:
            yield replace(whole, start=start, end=at, size=whole.size // count)
            start = at
    yield replace(whole, start=start, size=whole.size // count)


def _offset_at(files: Files, position: int) -> int:
    """Return an offset at which a batch begins, near a position in the bytes of all segments."""
    place, before = 0, 0
    while place < len(files.bases) - 1 and before + files.sizes[place] <= position:
        before += files.sizes[place]
        place += 1
    index: Index = offset_index(files.directory, files.bases[place])
    below = index.count_up_to(1, position - before)
    # An entry names the last offset of the batch that begins at its position: the next batch begins behind it.
    return index.base + index.at(below - 1)[0] + 1 if below else index.base


def _split(parts: list[OffsetRange], least: int) -> list[OffsetRange]:
    """Halve the largest parts by their offsets while there are fewer than asked for. Batches at the cuts are then
    read twice."""
    while len(parts) < least:
        largest = max(parts, key=lambda part: part.end - part.start, default=None)
        if largest is None or largest.end - largest.start < 2:
            break
        middle = (largest.start + largest.end) // 2
        at = parts.index(largest)
        parts[at : at + 1] = [
            replace(largest, end=middle, size=largest.size // 2),
            replace(largest, start=middle, size=largest.size // 2),
        ]
    return parts


def _shares(part: OffsetRange, most: int) -> Iterator[OffsetRange]:
    """Yield pieces of about equal size with at most `most` offsets."""
    length = part.end - part.start
    count = -(-length // most)
    for number in range(count):
        start, end = (part.start + length * at // count for at in (number, number + 1))
        yield replace(part, start=start, end=end, size=part.size // count)
