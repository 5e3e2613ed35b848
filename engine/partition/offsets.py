"""The offsets that a partition promises to its readers, as one value that changes in one step."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from topicfs.engine.record import NO_OFFSET, NO_TIMESTAMP


class Isolation(Enum):
    """How far a reader sees.

    LOG_END      all records, replicated or not
    UNCOMMITTED  the records below the high watermark
    COMMITTED    the records below the stable offset, without those of aborted transactions
    """

    LOG_END = "log_end"
    UNCOMMITTED = "read_uncommitted"
    COMMITTED = "read_committed"


@dataclass(frozen=True, slots=True)
class LogOffsets:
    """The offsets of a log. Always start ≤ stable ≤ high_watermark ≤ end.

    start           offset of the first record that may be read
    stable          the stable offset: records below it are replicated and belong to no open transaction
    high_watermark  below it every replica has the records; without other replicas it is the end
    end             offset that the next record gets
    active_base     base offset of the segment in which `end` lies
    end_position    position of `end` in that segment
    """

    start: int
    stable: int
    high_watermark: int
    end: int
    active_base: int
    end_position: int

    def limit(self, isolation: Isolation) -> int:
        """Return the offset behind the last record that a reader with this isolation sees."""
        match isolation:
            case Isolation.LOG_END:
                return self.end
            case Isolation.UNCOMMITTED:
                return self.high_watermark
            case Isolation.COMMITTED:
                return self.stable


@dataclass(frozen=True, slots=True)
class Appended:
    """The result of an append.

    first_offset, last_offset  offsets of its records; those of the original append if it was a duplicate
    max_timestamp              largest timestamp of its records, NO_TIMESTAMP without one
    offset_of_max_timestamp    last offset of the batch that holds it, NO_OFFSET without one
    append_time                append time, if the topic writes it into records; else NO_TIMESTAMP
    duplicate                  whether an idempotent producer repeated an append: nothing was written
    segment_base, position     place of the first batch: base offset of its segment, position in its `.log`
    """

    first_offset: int
    last_offset: int
    max_timestamp: int = NO_TIMESTAMP
    offset_of_max_timestamp: int = NO_OFFSET
    append_time: int = NO_TIMESTAMP
    duplicate: bool = False
    segment_base: int = NO_OFFSET
    position: int = -1
