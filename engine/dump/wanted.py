"""What of the files is wanted, and in which form."""

from __future__ import annotations

from dataclasses import dataclass

from topicfs.engine.record import MAX_INT64

MIN_INT64 = -MAX_INT64 - 1


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of the files is wanted, and in which form.

    records       whether batches are shown with their records
    content       whether these are shown with their keys and values; includes `records`
    metadata      whether records are shown with more than that
    as_json       whether each line is a JSON object
    only_check    whether nothing but problems is shown
    topic         whose messages keys and values are shown as, one of Kafka's own; None: as they are
    max_bytes     how much of a `.log` is looked at; None: all
    first_offset  the lowest wanted offset of a `.log`
    end_offset    the lowest offset behind the wanted ones
    first_time    the lowest wanted timestamp, milliseconds
    end_time      the lowest timestamp behind the wanted ones
    """

    records: bool = False
    content: bool = False
    metadata: bool = True
    as_json: bool = False
    only_check: bool = False
    topic: str | None = None
    max_bytes: int | None = None
    first_offset: int = MIN_INT64
    end_offset: int = MAX_INT64
    first_time: int = MIN_INT64
    end_time: int = MAX_INT64
