"""Finding the offsets that a query reads, and dividing them among tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Final, TypeVar

from topicfs.engine.errors import InvalidSettingError, OffsetOutOfRangeError, UnknownPartitionError
from topicfs.engine.files.listing import Listing
from topicfs.engine.files.metadata import PartitionMetadata
from topicfs.engine.format.index import Index
from topicfs.engine.format.paths import log_file
from topicfs.engine.min_timestamps.file import load
from topicfs.engine.record import MAX_INT64
from topicfs.engine.spark.bounds import Bounds, Tails, seen, told
from topicfs.engine.spark.files import Files, listed, offset_index, time_index
from topicfs.engine.spark.offset_range import OffsetRange, TimeBounds
from topicfs.engine.spark.options import EARLIEST, LATEST, Key, Limit, Options
from topicfs.engine.spark.place import Place

TASK_BYTES: Final = 128 * 1024 * 1024
"""Bytes of a log that one task reads, unless `minPartitions` asks for more tasks. Spark reads as much of a file."""

_TRIES: Final = 20

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TopicPartition:
    """A partition at the time when a query is planned.

    files     its segments
    bounds    the offsets in them that may be read
    topic_id  id of its topic; None if it has none, and in a batch query, which needs none
    """

    topic: str
    number: int
    files: Files
    bounds: Bounds
    topic_id: str | None

    @property
    def name(self) -> str:
        """Return `<topic>-<number>`."""
        return f"{self.topic}-{self.number}"


def chosen(place: Place, options: Options, missing_ok: bool = False) -> list[Key]:
    """Return the partitions that a query reads. UnknownPartitionError if a named one does not exist, unless
    `missing_ok`."""
    present = Listing.of(place.logs).partitions
    if not missing_ok:
        _refuse_missing(set(present), options, place)
    return sorted(filter(options.wants, present))


def found(place: Place, keys: Iterable[Key], tails: Tails | None = None) -> dict[Key, TopicPartition]:
    """Return these partitions, without deleted ones. `tails` keeps what a stream knows of the ends of logs from one
    call to the next."""
    partitions = {}
    for key in keys:
        partition = _while_files_change(partial(_found, place, key, tails))
        if partition is not None:
            partitions[key] = partition
    return partitions


def _refuse_missing(present: set[Key], options: Options, place: Place) -> None:
    """Raise UnknownPartitionError if a named topic does not exist, or in a batch query a named partition. A stream
    waits for the partition, as one of Spark's Kafka source does."""
    assigned = options.assigned or frozenset()
    named = options.topics or {topic for topic, _ in assigned}
    missing = sorted(named - {topic for topic, _ in present})
    if missing:
        raise UnknownPartitionError(f"{place.logs}: expected a topic {missing[0]}, found no partition of it")
    absent = sorted(assigned - present)
    if absent and not options.streaming:
        raise UnknownPartitionError(
            f"{place.logs}: expected a partition {absent[0][0]}-{absent[0][1]}, found none"
        )


def _found(place: Place, key: Key, tails: Tails | None) -> TopicPartition | None:
    topic, number = key
    directory = place.logs / f"{topic}-{number}"
    # If the topic is made again in the meantime, its new offsets come with the old id, and the next look shows that.
    topic_id = None if tails is None else PartitionMetadata.load(directory).topic_id
    bounds = told(place, topic, number)
    try:
        files = listed(directory)
    except FileNotFoundError:
        return None  # deleted in the meantime
    if bounds is None:
        bounds, tail = seen(
            place, files, topic, number, None if tails is None else tails.get((key, topic_id))
        )
        if tails is not None and tail is not None:
            tails[key, topic_id] = tail
    return TopicPartition(topic, number, files, bounds, topic_id)


def _while_files_change(look: Callable[[], T]) -> T:
    """Call `look`, and call it again if a file was removed during the call."""
    for _ in range(_TRIES):
        try:
            return look()
        except FileNotFoundError:
            continue
    return look()


# -- limits -------------------------------------------------------------------------------------------


def resolved(
    partitions: dict[Key, TopicPartition], limit: Limit, name: str, late_is_latest: bool
) -> dict[Key, int]:
    """Return the offset that a limit means in each partition."""
    named = limit.offsets or limit.timestamps
    if named and limit.timestamp is None and set(named) != set(partitions):
        both = sorted(set(named) ^ set(partitions))
        raise InvalidSettingError(
            f"option {name}: expected every partition that is read and no other one, found a difference in "
            f"{', '.join(f'{topic}-{number}' for topic, number in both)}"
        )
    return {
        key: _offset(partition, key, limit, name, late_is_latest) for key, partition in partitions.items()
    }


def _offset(partition: TopicPartition, key: Key, limit: Limit, name: str, late_is_latest: bool) -> int:
    bounds = partition.bounds
    moment = limit.timestamp if limit.timestamp is not None else limit.timestamps.get(key)
    if moment is not None:
        reached = _while_files_change(lambda: first_at(partition, moment))
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
    """Return the first offset with a record that is not earlier, or None. The result is exact: see `Segment`."""
    # These imports load the kernels.
    from topicfs.engine.partition.timestamps import first_of  # noqa: PLC0415
    from topicfs.engine.spark.scan import offset_by_timestamp  # noqa: PLC0415

    files, bounds = partition.files, partition.bounds
    reached = first_of(
        [
            place
            for place, base in enumerate(files.bases)
            if base < bounds.end and files.end_of(place, bounds.end) > bounds.start
        ],
        lambda place: may_reach(files, place, timestamp),
        lambda place: offset_by_timestamp(files.directory, files.bases[place], timestamp, bounds.start),
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
            partitions[key].files.directory,
            start,
            end,
            _size(partitions[key].files, start, end),
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
    parts = [part for each in whole for part in _cut(partitions[each.topic, each.number].files, each, most)]
    if options.min_partitions is not None:
        parts = _split(parts, options.min_partitions)
    if options.max_records is not None:
        parts = [piece for part in parts for piece in _shares(part, options.max_records)]
    return [_with_aborted(partitions[part.topic, part.number], part) for part in parts]


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


def _with_aborted(partition: TopicPartition, part: OffsetRange) -> OffsetRange:
    late = [each for each in partition.bounds.aborted if each.overlaps(part.start, part.end)]
    aborted = _while_files_change(lambda: {*partition.files.aborted(part.start, part.end), *late})
    return replace(part, aborted=tuple(sorted(aborted, key=attrgetter("last_offset"))))


def _size(files: Files, start: int, end: int) -> int:
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


def _cut(files: Files, whole: OffsetRange, most: int) -> Iterator[OffsetRange]:
    """Yield pieces of about `most` bytes. Small segments are read together."""
    count = max(1, -(-whole.size // most))
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
