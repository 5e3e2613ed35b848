"""Which segments retention removes, and which goes next: rules over what is known of segments, without files.

From the oldest segment on, by three rules in this order. A rule takes segments as long as they fall under it;
the next one goes on where it stopped:

    start offset  the next segment begins at or below the start offset
    size          without the segment the others still have retention.bytes
    time          its largest timestamp is more than retention.ms ago

Size and time hold only where cleanup.policy has `delete`. No rule takes what is not wholly below the high
watermark, or an empty active segment. Where an active segment with records is taken, it is to be rolled first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, Protocol, TypeVar

from topicfs.engine.partition.offsets import LogOffsets
from topicfs.engine.settings.topic import TopicSettings


class Measured(Protocol):
    """What the rules ask of a segment. They ask for timestamps last, and not beyond the first that stays."""

    @property
    def base_offset(self) -> int:
        """The first offset that may lie in it."""

    @property
    def size(self) -> int:
        """Bytes of its `.log`."""

    @property
    def largest_timestamp(self) -> int:
        """Largest timestamp, or when it was last written where it has none."""


S = TypeVar("S", bound=Measured)


class Reason(Enum):
    """Why a segment goes."""

    START_OFFSET = "start offset"
    SIZE = "size"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Due(Generic[S]):
    """A segment that is to be removed, and why."""

    segment: S
    reason: Reason


@dataclass(frozen=True, slots=True)
class Forecast(Generic[S]):
    """The oldest segment that is there: when it goes, as things stand. Whichever comes first, removes it.

    segment     the oldest one
    reason      why it is due now; None where it is not
    at_ms       when its time is over, in milliseconds since the epoch; None without a limit of time
    more_bytes  it goes when so many bytes more have been appended; None without a limit of size. Of a segment that
                is still active: at least so many
    """

    segment: S
    reason: Reason | None
    at_ms: int | None
    more_bytes: int | None


def due(segments: Iterable[S], offsets: LogOffsets, settings: TopicSettings, now: int) -> list[Due[S]]:
    """The segments to remove now, the oldest first."""
    every = tuple(segments)
    uppers = [segment.base_offset for segment in every[1:]]
    found: list[Due[S]] = []

    def take(reason: Reason, falls_under: Callable[[S], bool]) -> None:
        while len(found) < len(every):
            at = len(found)
            last = at == len(uppers)
            upper = offsets.end if last else uppers[at]
            if offsets.high_watermark < upper or (last and not every[at].size) or not falls_under(every[at]):
                return
            found.append(Due(every[at], reason))

    take(Reason.START_OFFSET, lambda _: len(found) < len(uppers) and uppers[len(found)] <= offsets.start)
    if settings.delete and settings.retention_bytes >= 0:
        excess = sum(segment.size for segment in every[len(found) :]) - settings.retention_bytes

        def is_excess(segment: S) -> bool:
            nonlocal excess
            excess -= segment.size
            return excess >= 0

        take(Reason.SIZE, is_excess)
    if settings.delete and settings.retention_ms >= 0:
        take(Reason.TIME, lambda segment: now - segment.largest_timestamp > settings.retention_ms)
    return found


def forecast(
    segments: Iterable[S], offsets: LogOffsets, settings: TopicSettings, now: int
) -> Forecast[S] | None:
    """The next segment to go; None where none ever goes by size or time, or there is nothing in the log."""
    every = tuple(segments)
    now_due = due(every, offsets, settings, now)
    if now_due:
        return Forecast(now_due[0].segment, now_due[0].reason, None, None)
    if not every or not settings.delete or (len(every) == 1 and not every[0].size):
        return None
    first = every[0]
    at_ms = more_bytes = None
    if settings.retention_ms >= 0:
        at_ms = first.largest_timestamp + settings.retention_ms + 1
    if settings.retention_bytes >= 0:
        more_bytes = settings.retention_bytes + first.size - sum(segment.size for segment in every)
    if at_ms is None and more_bytes is None:
        return None
    return Forecast(first, None, at_ms, more_bytes)
