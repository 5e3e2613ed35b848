"""Rules that decide whether a log is compacted, and which part of it. They use facts about segments, not files.

    start of the log      first dirty             first uncleanable        end
    |  clean: compacted   |  cleanable            |  later: open transactions, too young, active
         before                                      segment

The first dirty offset is where the last compaction ended. A segment that holds an uncleanable offset is not
touched at all. The log is eligible if the cleanable bytes are more than min.cleanable.dirty.ratio of clean
and cleanable ones together, or if a record among them has waited longer than max.compaction.lag.ms.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol

from topicfs.engine.partition.log import Log
from topicfs.engine.partition.offsets import LogOffsets
from topicfs.engine.record import MAX_INT64
from topicfs.engine.retention.rules import Measured
from topicfs.engine.settings.topic import TopicSettings

_base_offset = attrgetter("base_offset")


class Dated(Measured, Protocol):
    """The facts about a segment that the rules need."""

    def first_batch_timestamp(self) -> int | None:
        """Return the max timestamp of its first batch, or None if there is no batch."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """The assessment of a log for compaction.

    first_dirty        offset where the compaction would begin
    first_uncleanable  offset where it would end: the base of the first segment that is not touched
    clean_bytes        bytes of segments that begin below first_dirty
    cleanable_bytes    bytes of segments that would be read; a segment that is partly clean counts in both
    must_compact       whether a record has waited longer than max.compaction.lag.ms
    eligible           whether the log is to be compacted now
    why_not            why it is not eligible, in words; empty if it is
    next_eligible_ms   when it will be eligible if nothing is appended; None if that is not known, or never
    checkpoint_is_off  whether the checkpoint lies outside the log, and has to be set to first_dirty
    """

    first_dirty: int
    first_uncleanable: int
    clean_bytes: int
    cleanable_bytes: int
    must_compact: bool
    eligible: bool
    why_not: str
    next_eligible_ms: int | None
    checkpoint_is_off: bool

    @property
    def total_bytes(self) -> int:
        """Return the clean and cleanable bytes together."""
        return self.clean_bytes + self.cleanable_bytes

    @property
    def ratio(self) -> float:
        """Return the dirty part of the log, 0 to 1."""
        return self.cleanable_bytes / self.total_bytes if self.total_bytes else 0.0


def look(log: Log, checkpointed: int | None, now: int) -> Candidate:
    """Assess a log for compaction. `checkpointed` is where the last compaction ended. No lock is taken."""
    return log.with_snapshot(lambda taken: assess(taken.segments, taken, log.settings, checkpointed, now))


def assess(
    segments: Iterable[Dated],
    offsets: LogOffsets,
    settings: TopicSettings,
    checkpointed: int | None,
    now: int,
) -> Candidate:
    """Assess segments for compaction. The last of them is active."""
    every = tuple(segments)
    is_off = checkpointed is not None and not offsets.start <= checkpointed <= offsets.end
    first_dirty = offsets.start if checkpointed is None or is_off else checkpointed
    dirty = _reaching(every[:-1], first_dirty, every[-1].base_offset)
    young = _first_young(dirty, settings, now)
    bound = min(offsets.stable, every[-1].base_offset)
    if young is not None:
        bound = min(bound, young.base_offset)
    touched = _reaching(every[:-1], max(first_dirty, bound), every[-1].base_offset)
    first_uncleanable = touched[0].base_offset if touched else every[-1].base_offset
    cleanable = [segment for segment in dirty if segment.base_offset < first_uncleanable]
    clean_bytes = sum(segment.size for segment in every if segment.base_offset < first_dirty)
    cleanable_bytes = sum(segment.size for segment in cleanable)
    oldest_ms = _oldest(dirty, settings)
    must_compact = bool(
        cleanable_bytes and oldest_ms is not None and oldest_ms < now - settings.max_compaction_lag_ms
    )
    total = clean_bytes + cleanable_bytes
    is_filthy = cleanable_bytes > 0 and cleanable_bytes / total > settings.min_cleanable_dirty_ratio
    eligible = settings.compact and (is_filthy or must_compact)
    why_not, next_ms = "", None
    if not settings.compact:
        why_not = "cleanup.policy is without compact"
    elif not eligible:
        why_not, next_ms = _why_not(cleanable_bytes, total, oldest_ms, young, offsets, every, settings)
    return Candidate(
        first_dirty,
        first_uncleanable,
        clean_bytes,
        cleanable_bytes,
        must_compact,
        eligible,
        why_not,
        next_ms,
        is_off,
    )


def _reaching(sealed: Sequence[Dated], offset: int, active_base: int) -> Sequence[Dated]:
    """Return the sealed segments from the one that may hold an offset on."""
    if offset >= active_base:
        return ()
    return sealed[max(0, bisect_right(sealed, offset, key=_base_offset) - 1) :]


def _first_young(dirty: Sequence[Dated], settings: TopicSettings, now: int) -> Dated | None:
    """Return the first segment with a record that min.compaction.lag.ms still protects."""
    lag = settings.min_compaction_lag_ms
    if lag <= 0:
        return None
    return next((segment for segment in dirty if segment.largest_timestamp > now - lag), None)


def _oldest(dirty: Sequence[Dated], settings: TopicSettings) -> int | None:
    """Return the earliest timestamp of the first batches in the dirty segments. It is read only if it is needed."""
    if settings.max_compaction_lag_ms == MAX_INT64:
        return None
    times = (segment.first_batch_timestamp() for segment in dirty)
    return min((time for time in times if time is not None and time > 0), default=None)


def _why_not(
    cleanable_bytes: int,
    total: int,
    oldest_ms: int | None,
    young: Dated | None,
    offsets: LogOffsets,
    every: Sequence[Dated],
    settings: TopicSettings,
) -> tuple[str, int | None]:
    """Return why a compacted topic's log is not eligible, and when it will be."""
    if not cleanable_bytes:
        if young is not None:
            lag = settings.min_compaction_lag_ms
            return f"the oldest dirty segment is younger than {lag} ms", young.largest_timestamp + lag
        if offsets.stable < every[-1].base_offset:
            return f"offset {offsets.stable} belongs to an open transaction or is not replicated", None
        return "everything but the active segment is compacted", None
    least = settings.min_cleanable_dirty_ratio
    why = f"{cleanable_bytes / total:.2f} of the log is dirty, not more than {least:.2f}"
    return why, None if oldest_ms is None else oldest_ms + settings.max_compaction_lag_ms + 1
