"""The segments of a partition, as its directory shows them, and their drawing on the axes of offset and time.

A log of thousands of segments is drawn by its newest: each tells its times by two small reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from topicfs.engine.errors import CorruptSegmentError, EngineError
from topicfs.engine.partition.offsets import LogOffsets
from topicfs.engine.partition.on_disk import SegmentOnDisk, listed
from topicfs.engine.record import now_ms
from topicfs.engine.retention.rules import due
from topicfs.engine.settings.topic import resolve_topic
from topicfs.mountd.tree import RefusedError

MOST: Final = 200
"""Segments that are drawn."""

WIDTH: Final = 1000
"""The width of the drawing, in its own units."""

_MOST_ASKED: Final = 1000
"""Of how many segments retention is asked what it would remove now: for each a time is read."""

_LEAST: Final = 1.5
_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class SegmentSeen:
    """A segment.

    base, end   its offsets: the first, and that of the next segment
    size        bytes of its `.log`
    first_ms    the largest timestamp of its first batch, which is near its first; None without records
    last_ms     its largest timestamp, by its index
    is_active   whether it is the one that is written
    goes        why retention removes it next, or when; empty where it stays
    is_dirty    whether compaction would clean records in it
    """

    base: int
    end: int
    size: int
    first_ms: int | None
    last_ms: int | None
    is_active: bool
    goes: str = ""
    is_dirty: bool = False


@dataclass(frozen=True, slots=True)
class Box:
    """A segment in the drawing.

    x, width    on the axis of offsets
    at, lasts   on the axis of times; None where it has no time
    shade       0 to 3, by its bytes for each offset
    """

    segment: SegmentSeen
    x: float
    width: float
    at: float | None
    lasts: float
    shade: int

    @property
    def ribbon(self) -> str:
        """Return the corners of what joins its two places."""
        at = self.at or 0.0
        return f"{self.x:.1f},62 {self.x + self.width:.1f},62 {at + self.lasts:.1f},130 {at:.1f},130"


@dataclass(frozen=True, slots=True)
class Drawing:
    """The drawing of a partition's segments.

    boxes           the segments
    start_x         where the start offset is, on the axis of offsets
    stable_x        where the first open transaction is; None without one
    offsets, times  the ticks: places and numbers
    left            how many older segments are not drawn
    """

    boxes: Sequence[Box]
    start_x: float
    stable_x: float | None
    offsets: Sequence[tuple[float, int]]
    times: Sequence[tuple[float, int]]
    left: int


def seen(
    directory: Path, status: Mapping[str, Any], config: Callable[[], Mapping[str, str]]
) -> tuple[list[SegmentSeen], int]:
    """Return the newest segments of a partition, and how many there are before them. `config` gives its topic's
    settings. RefusedError where its directory cannot be read: a mount may show what its backing directory does not."""
    for _ in range(_TRIES):
        try:
            return _seen(directory, status, config)
        except FileNotFoundError:
            continue  # one was removed or replaced meanwhile
        except (OSError, EngineError) as error:
            raise RefusedError(f"{directory}: {error}") from None
    return [], 0


def _seen(
    directory: Path, status: Mapping[str, Any], config: Callable[[], Mapping[str, str]]
) -> tuple[list[SegmentSeen], int]:
    every = listed(directory)
    left = max(0, len(every) - MOST)
    segments = every[left:]
    if not segments:
        return [], left
    going = _going(every, status, config)
    active, last_end = segments[-1], max(status.get("end_offset", 0), segments[-1].base_offset)
    ends = [after.base_offset for _, after in pairwise(segments)] + [last_end]
    cleaning = status.get("cleaning") or {}
    dirty = (
        range(cleaning.get("from_offset", 0), cleaning.get("to_offset", 0))
        if cleaning.get("eligible")
        else range(0)
    )
    found = []
    for segment, end in zip(segments, ends, strict=True):
        try:
            first = segment.first_batch_timestamp()
        except CorruptSegmentError:
            first = None
        last = None if first is None or first < 0 else segment.largest_timestamp
        is_active = segment is active
        base = segment.base_offset
        found.append(
            SegmentSeen(
                base,
                end,
                segment.size,
                first if last is not None else None,
                last,
                is_active,
                going.get(base, ""),
                bool(range(max(base, dirty.start), min(end, dirty.stop))),
            )
        )
    return found, left


def _going(
    every: Sequence[SegmentOnDisk], status: Mapping[str, Any], config: Callable[[], Mapping[str, str]]
) -> dict[int, str]:
    """Return what retention does next with which segments, by their base offsets."""
    removal = status.get("next_removal")
    if removal is None:
        return {}
    if not removal["reason"]:
        return {removal["segment"]: "retention removes it next"}
    found = {removal["segment"]: removal["reason"]}
    if len(every) <= _MOST_ASKED:
        start, stable, mark, end = (
            status[name] for name in ("start_offset", "stable_offset", "high_watermark", "end_offset")
        )
        offsets = LogOffsets(start, stable, mark, end, every[-1].base_offset, every[-1].size)
        dues = due(every, offsets, resolve_topic(config(), {}), now_ms())
        found |= {each.segment.base_offset: each.reason.value for each in dues}
    return {base: f"retention removes it now, for {reason}" for base, reason in found.items()}


def drawn(segments: Sequence[SegmentSeen], left: int, status: Mapping[str, Any]) -> Drawing | None:
    """Draw them to scale; None without any."""
    if not segments:
        return None
    first, end = segments[0].base, max(segments[-1].end, segments[0].base + 1)
    timed = [segment for segment in segments if segment.first_ms is not None and segment.last_ms is not None]
    begin_ms = min((min(each.first_ms or 0, each.last_ms or 0) for each in timed), default=0)
    end_ms = max((max(each.first_ms or 0, each.last_ms or 0) for each in timed), default=1)

    def x(offset: int) -> float:
        return WIDTH * (min(max(offset, first), end) - first) / (end - first)

    def t(ms: int) -> float:
        return WIDTH * (ms - begin_ms) / max(1, end_ms - begin_ms)

    densities = [each.size / max(1, each.end - each.base) for each in segments]
    most = max(*densities, 1e-9)
    boxes = []
    for segment, density in zip(segments, densities, strict=True):
        place, width = x(segment.base), max(_LEAST, x(segment.end) - x(segment.base))
        at, lasts = None, 0.0
        if segment.first_ms is not None and segment.last_ms is not None:
            low, high = sorted((segment.first_ms, segment.last_ms))
            at, lasts = t(low), max(_LEAST, t(high) - t(low))
            at = min(at, WIDTH - lasts)
        boxes.append(
            Box(segment, min(place, WIDTH - width), width, at, lasts, min(3, int(4 * density / most)))
        )
    stable = status.get("stable_offset", end)
    return Drawing(
        boxes,
        x(status.get("start_offset", first)),
        x(stable) if stable < status.get("end_offset", stable) else None,
        [(WIDTH * part / 4, first + (end - first) * part // 4) for part in range(5)],
        [(WIDTH * part / 4, begin_ms + (end_ms - begin_ms) * part // 4) for part in range(5)]
        if timed
        else [],
        left,
    )
