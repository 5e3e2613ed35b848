"""Removing the segments of a log that are due by the rules of retention."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from topicfs.engine.partition.cutting import retire
from topicfs.engine.partition.log import Log
from topicfs.engine.retention.rules import Due, Forecast, Reason, due, forecast
from topicfs.engine.segment.segment import Segment

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 64
"""The number of segments that are renamed while the log's lock is held once. This takes some 5 ms, for which appends
wait."""


@dataclass(frozen=True, slots=True)
class Removed:
    """The segments that retention removed, counted.

    by_reason  the number and the bytes of the segments, for each reason that occurred
    """

    by_reason: Mapping[Reason, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, gone: Iterable[Due[Segment]]) -> Removed:
        """Count segments and their bytes."""
        counted: dict[Reason, tuple[int, int]] = {}
        for each in gone:
            segments, size = counted.get(each.reason, (0, 0))
            counted[each.reason] = segments + 1, size + each.segment.size
        return cls(counted)

    @property
    def segments(self) -> int:
        """The number of removed segments."""
        return sum(segments for segments, _ in self.by_reason.values())

    @property
    def bytes(self) -> int:
        """The bytes of their `.log` files."""
        return sum(size for _, size in self.by_reason.values())

    def __add__(self, other: Removed) -> Removed:
        nothing = (0, 0)
        both = {}
        for reason in Reason:
            (a, b), (c, d) = self.by_reason.get(reason, nothing), other.by_reason.get(reason, nothing)
            if a + c:
                both[reason] = a + c, b + d
        return Removed(both)


NOTHING: Final = Removed()


def apply(log: Log, now: int) -> Removed:
    """Remove the segments that are due, with their producer snapshots. Their files are deleted after the delay.

    Sizes and timestamps are read before the lock is taken, as this may read files."""
    announced = log.snapshot.segments
    found = log.with_snapshot(lambda taken: due(taken.segments, taken, log.settings, now))
    if not found:
        return NOTHING
    log.announce_removal([each.segment for each in found])
    with log.lock:
        log.check_open()
        found = due(log.snapshot.segments, log.snapshot, log.settings, now)
        if not found:
            return NOTHING
        if len(found) == len(log.snapshot.segments):
            log.roll()
        if log.snapshot.segments is not announced:
            log.announce_removal([each.segment for each in found])
        counted = Removed.of(found)
        survivor = log.snapshot.segments.higher(found[-1].segment.base_offset)
        assert survivor is not None
        # This comes before any removal: a reader that knows the new start offset reads nothing below it.
        log.raise_start_offset(survivor.base_offset)
    _tell(log, found)
    _remove([each.segment for each in found], log)
    return counted


def next_due(log: Log, now: int) -> Forecast[Segment] | None:
    """Return what retention removes from this log next, to show to people; see `forecast`. It takes no lock."""
    return log.with_snapshot(lambda taken: forecast(taken.segments, taken, log.settings, now))


def _remove(gone: Sequence[Segment], log: Log) -> None:
    for first in range(0, len(gone), _AT_ONCE):
        with log.lock:
            log.check_open()
            segments = log.snapshot.segments
            retire(log, [each for each in gone[first : first + _AT_ONCE] if each in segments])


def _tell(log: Log, found: Sequence[Due[Segment]]) -> None:
    for reason in Reason:
        of_it = [each.segment for each in found if each.reason is reason]
        if of_it:
            size = sum(segment.size for segment in of_it)
            logger.info(
                f"{log.name}: {len(of_it)} segments of {size} bytes removed for their {reason.value}, the "
                f"first at offset {of_it[0].base_offset}, the last at {of_it[-1].base_offset}"
            )
