"""The part of a topic's settings that a segment needs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SegmentSettings:
    """The part of a topic's settings that a segment needs.

    index_interval_bytes  bytes between index entries
    max_index_bytes       size at which an index is full
    segment_bytes         length that a preallocated `.log` gets
    preallocate           whether a new `.log` gets that length at once
    jitter_ms             a segment is rolled at most this much before its time
    read_only             whether its files must not be changed, or opened for writing
    """

    index_interval_bytes: int = 4096
    max_index_bytes: int = 10 * 1024 * 1024
    segment_bytes: int = 1024 * 1024 * 1024
    preallocate: bool = False
    jitter_ms: int = 0
    read_only: bool = False
