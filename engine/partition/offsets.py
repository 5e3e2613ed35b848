"""What a partition promises its readers, as one value that changes in one step."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from topicfs.engine.record import NO_OFFSET, NO_TIMESTAMP


class Isolation(Enum):
    """How far a reader sees.

    LOG_END      everything written, replicated or not
    UNCOMMITTED  up to the high watermark
    COMMITTED    up to the stable offset, without the records of aborted transactions
    """

    LOG_END = "log_end"
    UNCOMMITTED = "read_uncommitted"
    COMMITTED = "read_committed"


@dataclass(frozen=True, slots=True)
class LogOffsets:
    """start ≤ stable ≤ high_watermark ≤ end, always.

    start           the first record that may be read
    stable          below every open transaction
    high_watermark  below it every replica has the records; without other replicas, the end
    end             the next record's
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
        """Behind the last record that a reader with this isolation sees."""
        match isolation:
            case Isolation.LOG_END:
                return self.end
            case Isolation.UNCOMMITTED:
                return self.high_watermark
            case Isolation.COMMITTED:
                return self.stable


@dataclass(frozen=True, slots=True)
class Appended:
    """What became of an append.

    first_offset, last_offset  of its records; of the original where it was a duplicate
    max_timestamp              of its records, NO_TIMESTAMP without one
    offset_of_max_timestamp    last offset of the batch that holds it, NO_OFFSET without one
    append_time                NO_TIMESTAMP unless the topic stamps records with it
    duplicate                  an idempotent producer's repetition: nothing was written
    segment_base, position     where the first batch lies: base offset of its segment, place in its `.log`
    """

    first_offset: int
    last_offset: int
    max_timestamp: int = NO_TIMESTAMP
    offset_of_max_timestamp: int = NO_OFFSET
    append_time: int = NO_TIMESTAMP
    duplicate: bool = False
    segment_base: int = NO_OFFSET
    position: int = -1
