"""Finding the offset that belongs to a time.

-1  latest: behind the last record that the reader may see
-2  earliest: the start offset
-3  the first record that has the largest timestamp
-4  earliest on this machine: the start offset, as nothing is stored elsewhere
-5  latest that is stored elsewhere: none, as nothing is stored elsewhere
≥0  the first record that is not earlier

A broker's look-up, which `find` is, may lead to a marker or to an aborted record. What views and Spark read begins and
ends at records that are shown: `first_shown`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from topicfs.engine import batch as batches
from topicfs.engine.batch.table import Longs
from topicfs.engine.kernels.scan import LEADER_EPOCH, MAX_TIMESTAMP
from topicfs.engine.partition.epochs import LeaderEpochs
from topicfs.engine.partition.offsets import Isolation
from topicfs.engine.partition.reader import check_end, shown
from topicfs.engine.partition.snapshot import Snapshot
from topicfs.engine.record import MAX_INT64, NO_LEADER_EPOCH, NO_OFFSET, NO_TIMESTAMP
from topicfs.engine.segment.segment import Segment

LATEST: Final = -1
EARLIEST: Final = -2
MAX: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a look-up by time: timestamp of the record (NO_TIMESTAMP for a bound), offset, leader epoch."""

    timestamp: int
    offset: int
    leader_epoch: int


def find(snapshot: Snapshot, epochs: LeaderEpochs, timestamp: int, isolation: Isolation) -> Found | None:
    """Return the record that `timestamp` leads to, or None if this reader may see no such record."""
    limit = snapshot.limit(isolation)
    match timestamp:
        case -1:
            return Found(NO_TIMESTAMP, limit, _epoch(epochs.latest_epoch))
        case -2 | -4:
            return Found(NO_TIMESTAMP, snapshot.start, _epoch(epochs.epoch_for_offset(snapshot.start)))
        case -5:
            return Found(NO_TIMESTAMP, NO_OFFSET, NO_LEADER_EPOCH)
        case -3:
            found = _largest(snapshot)
        case _ if timestamp >= 0:
            segment = snapshot.segments.first_not_before(timestamp)
            found = None if segment is None else first_in(snapshot, segment, timestamp)
        case _:
            raise ValueError(f"timestamp {timestamp}: expected -5 or more")
    return found if found is not None and found.offset < limit else None


def first_in(
    snapshot: Snapshot, segment: Segment, timestamp: int, among: Callable[[Longs], Longs] = lambda rows: rows
) -> Found | None:
    """Return the first record of a segment, from the start offset on, that is not earlier than `timestamp`. `among`
    leaves out batches that do not count."""
    record = segment.finder.offset_by_timestamp(timestamp, snapshot.start, among)
    batch = None if record is None else segment.position_of(record[1])
    if record is None or batch is None:
        return None
    check_end(snapshot, segment, batch[2], batch[3])
    return Found(*record)


def first_shown(snapshot: Snapshot, timestamp: int) -> Found | None:
    """Return the first record that readers see and that is not earlier."""
    if timestamp > MAX_INT64:
        return None
    segments = snapshot.segments
    first = segments.first_not_before(timestamp)
    found = first_of(
        () if first is None else segments.from_base(first.base_offset),
        lambda segment: segment.largest_timestamp >= timestamp,
        lambda segment: first_in(
            snapshot,
            segment,
            timestamp,
            lambda rows: shown(segments, segment, rows, Isolation.COMMITTED),
        ),
    )
    return found if found is not None and found.offset < snapshot.stable else None


def first_offset(snapshot: Snapshot, timestamp: int) -> int:
    """Return the offset of the first record that is not earlier. It is the stable offset if readers see no such
    record."""
    found = first_shown(snapshot, timestamp)
    return snapshot.stable if found is None else found.offset


def first_of(
    segments: Iterable[S], may_reach: Callable[[S], bool], look: Callable[[S], T | None]
) -> T | None:
    """Return what is found in the first segment that has a record not earlier than some time.

    A segment may seem to reach that time and have no such record: the record lies below the start offset, or
    compaction has removed every record of the batch, or the batch is a marker. A broker's look-up ends there, and so
    does `find`."""
    found = (look(segment) for segment in segments if may_reach(segment))
    return next((each for each in found if each is not None), None)


def _epoch(epoch: int | None) -> int:
    return NO_LEADER_EPOCH if epoch is None else epoch


def _largest(snapshot: Snapshot) -> Found | None:
    best = None
    for segment in snapshot.segments:
        if best is None or segment.max_timestamp > best.max_timestamp:
            best = segment
    if best is None or best.max_timestamp < 0:
        return None
    largest = best.max_timestamp
    found = best.position_of(best.offset_of_max_timestamp)
    if found is None:
        return None
    for buffer, table in best.log.batches(found[0]):
        for at in (table[:, MAX_TIMESTAMP] == largest).nonzero()[0].tolist():
            origin = int(table[0, 0])
            record = batches.first_record_at_or_after(buffer, table[at], largest, snapshot.start, origin)
            if record is not None:
                return Found(*record, int(table[at, LEADER_EPOCH]))
    return None
