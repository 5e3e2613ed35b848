"""The rules of retention: which segments it removes now, and which one next. They read no files.

There are three rules, which apply in this order, from the oldest segment on. A rule removes segments as long as it
applies to them; the next rule continues where it stopped:

    start offset  the next segment begins at or below the start offset
    size          without this segment, the others still have retention.bytes
    time          its largest timestamp is more than retention.ms ago

Size and time apply only where cleanup.policy has `delete`. No rule removes a segment that is not completely below the
high watermark, or an empty active segment. An active segment with records must be rolled before it is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, Protocol, TypeVar

from topicfs.engine.partition.offsets import LogOffsets
from topicfs.engine.settings.topic import TopicSettings


class Measured(Protocol):
    """The properties of a segment that the rules use. Timestamps are read last, and only up to the first segment that
    stays."""

    @property
    def base_offset(self) -> int:
        """The first offset that the segment may hold."""

    @property
    def size(self) -> int:
        """The bytes of its `.log`."""

    @property
    def largest_timestamp(self) -> int:
        """The largest timestamp, or the time of the last write if it has none."""


S = TypeVar("S", bound=Measured)


class Reason(Enum):
    """The rule by which a segment is removed."""

    START_OFFSET = "start offset"
    SIZE = "size"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Due(Generic[S]):
    """A segment that is to be removed, with the reason."""

    segment: S
    reason: Reason


@dataclass(frozen=True, slots=True)
class Forecast(Generic[S]):
    """When the oldest segment will be removed, with the present settings. The limit that is reached first removes it.

    segment     the oldest segment
    reason      the reason why it is due now; None if it is not
    at_ms       the time when it becomes too old, in milliseconds since the epoch; None without a time limit
    more_bytes  the bytes that must be appended until it is removed; None without a size limit. For a segment that is
                still active, it is at least this number
    """

    segment: S
    reason: Reason | None
    at_ms: int | None
    more_bytes: int | None


def due(segments: Iterable[S], offsets: LogOffsets, settings: TopicSettings, now: int) -> list[Due[S]]:
    """Return the segments to remove now, the oldest first."""
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
    """Return the next segment to be removed, and when; None if size and time never remove one, or the log is empty."""
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
