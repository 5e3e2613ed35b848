"""Removing from a log what retention's rules say."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from topicfs.engine.errors import ClosedError
from topicfs.engine.partition.log import Log
from topicfs.engine.retention.rules import Due, Forecast, Reason, due, forecast
from topicfs.engine.segment.segment import Segment
from topicfs.engine.segment.segments import Segments

logger = logging.getLogger(__name__)

T = TypeVar("T")

_AT_ONCE: Final = 64
"""Segments that are renamed under one hold of the log's lock, some 5 ms: appends wait no longer."""


@dataclass(frozen=True, slots=True)
class Removed:
    """What was removed.

    by_reason  segments and bytes of each reason that there was
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
        """How many."""
        return sum(segments for segments, _ in self.by_reason.values())

    @property
    def bytes(self) -> int:
        """Of their `.log` files."""
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
    """Remove the segments that are due, with their producer snapshots; their files go after the delay.

    Sizes and timestamps are read before the lock is taken, as that may need files."""
    announced = log.chain.segments
    found = _while_segments_change(log, lambda segments: due(segments, log.offsets, log.settings, now))
    if not found:
        return NOTHING
    log.announce_removal([each.segment for each in found])
    with log.lock:
        log.check_open()
        found = due(log.chain.segments, log.offsets, log.settings, now)
        if not found:
            return NOTHING
        if len(found) == len(log.chain.segments):
            log.roll()
        if log.chain.segments is not announced:
            log.announce_removal([each.segment for each in found])
        counted = Removed.of(found)
        survivor = log.chain.segments.higher(found[-1].segment.base_offset)
        assert survivor is not None
        # Before anything is removed: a reader that is told of the new start looks for nothing below it.
        log.raise_start_offset(survivor.base_offset)
    _tell(log, found)
    _remove([each.segment for each in found], log)
    return counted


def next_due(log: Log, now: int) -> Forecast[Segment] | None:
    """What retention removes from this log next, for people; see `forecast`. Takes no lock."""
    return _while_segments_change(log, lambda segments: forecast(segments, log.offsets, log.settings, now))


def _while_segments_change(log: Log, look: Callable[[Segments], T]) -> T:
    """What is found in the published list. Without the lock: another change may take a segment meanwhile."""
    while True:
        log.check_open()
        segments = log.chain.segments
        try:
            return look(segments)
        except (ClosedError, FileNotFoundError):
            # Then there is another list. Or the log is gone.
            log.check_open()
            if log.chain.segments is segments:
                raise


def _remove(gone: Sequence[Segment], log: Log) -> None:
    for first in range(0, len(gone), _AT_ONCE):
        with log.lock:
            log.check_open()
            segments = log.chain.segments
            log.retire([each for each in gone[first : first + _AT_ONCE] if each in segments])


def _tell(log: Log, found: Sequence[Due[Segment]]) -> None:
    for reason in Reason:
        of_it = [each.segment for each in found if each.reason is reason]
        if of_it:
            size = sum(segment.size for segment in of_it)
            logger.info(
                f"{log.name}: {len(of_it)} segments of {size} bytes removed for their {reason.value}, the "
                f"first at offset {of_it[0].base_offset}, the last at {of_it[-1].base_offset}"
            )
