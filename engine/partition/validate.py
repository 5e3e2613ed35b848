"""A leader validates a batch before it accepts it, and then rewrites what the topic needs.

All records of a batch are checked before any is refused, so that an error names all wrong ones. An accepted batch
keeps its bytes if only its offset, leader epoch, timestamp type or max timestamp change. It is rebuilt if the topic
has another codec, or if its offsets have holes.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from topicfs.engine import batch as batches
from topicfs.engine.batch.columns import Columns, codec_of, unordered_columns
from topicfs.engine.batch.table import Bytes, Longs
from topicfs.engine.errors import (
    CorruptBatchError,
    EngineError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
)
from topicfs.engine.format.batch_header import CONTROL, HEADER_SIZE, LOG_APPEND_TIME
from topicfs.engine.kernels import encode as encoding
from topicfs.engine.kernels.encode import RECORD_OVERHEAD
from topicfs.engine.kernels.scan import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    COUNT,
    LAST_OFFSET,
    MAX_TIMESTAMP,
    PRODUCER_ID,
)
from topicfs.engine.producer.entry import Origin
from topicfs.engine.record import NO_PRODUCER_ID, NO_TIMESTAMP, Codec, TimestampType
from topicfs.engine.settings.topic import TopicSettings

_SHOWN: Final = 3
"""An error message describes at most this many wrong records."""


def batch_limit(settings: TopicSettings) -> int:
    """Return the largest batch to build, before compression. A batch never spans segments, and data that cannot be
    compressed grows a little."""
    limit = min(settings.max_message_bytes, settings.segment_bytes)
    if settings.codec in (None, Codec.NONE):
        return limit
    return limit - min(1024 + limit // 256, limit // 8)


def shape_for(settings: TopicSettings) -> batches.Shape:
    """Return the shape of the batches that are built here for this topic."""
    codec = settings.codec or Codec.NONE
    return batches.Shape(codec, settings.level(codec), settings.message_timestamp_type)


def check_records(
    timestamps: Longs, null_keys: npt.NDArray[np.bool_], settings: TopicSettings, now: int
) -> None:
    """Check the rules for single records: keys on a compacted topic, timestamps within the topic's limits.

    InvalidTimestampError if any timestamp is wrong, else InvalidRecordError. The error names every wrong record."""
    problems: dict[int, str] = {}
    wrong_times = np.zeros(len(timestamps), np.bool_)
    if settings.message_timestamp_type == TimestampType.CREATE_TIME:
        earliest = now - settings.message_timestamp_before_max_ms
        latest = now + settings.message_timestamp_after_max_ms
        wrong_times = (timestamps != NO_TIMESTAMP) & (
            (timestamps < max(earliest, 0)) | (timestamps > min(latest, np.iinfo(np.int64).max))
        )
        for index in np.flatnonzero(wrong_times).tolist():
            problems[index] = (
                f"timestamp {timestamps[index]} is not within {settings.message_timestamp_before_max_ms} ms before "
                f"and {settings.message_timestamp_after_max_ms} ms after {now}"
            )
    if settings.compact:
        for index in np.flatnonzero(null_keys).tolist():
            problems.setdefault(index, "a compacted topic needs a key, found null")
    if problems:
        told = "; ".join(f"record {index}: {problems[index]}" for index in sorted(problems)[:_SHOWN])
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        kind = InvalidTimestampError if wrong_times.any() else InvalidRecordError
        raise kind(
            f"{len(problems)} of {len(timestamps)} records refused: {told}{more}", tuple(sorted(problems))
        )


def first_refused(columns: Columns, settings: TopicSettings, now: int) -> tuple[int, EngineError | None]:
    """Return the number of records before the first one that the topic refuses, and the error for that one."""
    wanted, refusal = len(columns), None
    try:
        check_records(columns.timestamps, columns.key_length < 0, settings, now)
    except InvalidRecordError as error:
        wanted, refusal = min(error.indexes), error
    limit = batch_limit(settings)
    spans = np.maximum(columns.key_length, 0) + np.maximum(columns.value_length, 0) + columns.headers_length
    for row in np.flatnonzero(spans[:wanted] > limit - HEADER_SIZE - RECORD_OVERHEAD).tolist():
        try:
            batches.BatchBuilder(limit).add_columns(columns.rows(row, row + 1))
        except RecordTooLargeError as error:
            return row, error
    return wanted, refusal


def check_size(batch: Bytes, settings: TopicSettings) -> None:
    """Check the size of a batch as it is stored, including its header."""
    if batch.size > settings.max_message_bytes:
        raise RecordTooLargeError(
            f"a batch of {batch.size} bytes exceeds max.message.bytes={settings.max_message_bytes}"
        )


def accept(data: Bytes, settings: TopicSettings, now: int, origin: Origin) -> batches.Batch:
    """Validate one batch from outside, and convert it to what the topic stores. The given bytes are not changed: those
    of the result are a copy."""
    check_size(data, settings)
    table = batches.scan(data)
    if len(table) != 1:
        raise InvalidRecordError(f"an append holds exactly one batch, found {len(table)}")
    row = table[0]
    _check_header(row, origin)
    control = bool(int(row[ATTRIBUTES]) & CONTROL)
    try:
        found = batches.inspect(data, row)
    except CorruptBatchError as error:
        raise InvalidRecordError(f"malformed batch: {error}") from error
    smallest, largest = found.smallest_timestamp, found.largest_timestamp
    claimed = bool(int(row[ATTRIBUTES]) & LOG_APPEND_TIME)
    if claimed:
        smallest = largest = int(row[MAX_TIMESTAMP])
        if settings.message_timestamp_type != TimestampType.CREATE_TIME or largest == NO_TIMESTAMP:
            raise InvalidTimestampError("producers do not set the timestamp type to LogAppendTime")
    if (settings.compact and found.null_keys) or not _within(smallest, largest, settings, now):
        _check_each(data, row, settings, now)
    codec = codec_of(row)
    target = codec if control or settings.codec is None else settings.codec
    # A claimed append time is what readers of the producer's batch saw: each record gets it as its own time.
    if not control and (target != codec or claimed or not found.sequential):
        rebuilt = _rebuilt(data, row, target, settings, now)
        check_size(rebuilt.data, settings)
        return rebuilt
    batch = _restamped(data.copy(), row, largest, settings, now)
    return batches.Batch(batch, batches.scan(batch, check=False)[0])


def _check_header(row: Longs, origin: Origin) -> None:
    if origin != Origin.CLIENT:
        return
    if row[BASE_OFFSET] != 0:
        raise InvalidRecordError(
            f"a batch's offsets are the leader's to give: expected base 0, found {row[BASE_OFFSET]}"
        )
    if int(row[ATTRIBUTES]) & CONTROL:
        raise InvalidRecordError("control batches are not for producers to write")
    if row[COUNT] <= 0 or row[COUNT] != row[LAST_OFFSET] + 1:
        raise InvalidRecordError(
            f"a batch of {row[COUNT]} records must have that count and a last offset delta one below it, "
            f"found {row[LAST_OFFSET]}"
        )
    if row[PRODUCER_ID] != NO_PRODUCER_ID and row[BASE_SEQUENCE] < 0:
        raise InvalidRecordError(f"producer {row[PRODUCER_ID]} sent the sequence {row[BASE_SEQUENCE]}")


def _within(smallest: int, largest: int, settings: TopicSettings, now: int) -> bool:
    """Return whether all timestamps are within the limits. A look at the extremes saves a look at each."""
    if settings.message_timestamp_type != TimestampType.CREATE_TIME:
        return True
    return (
        smallest >= max(0, now - settings.message_timestamp_before_max_ms)
        and largest <= now + settings.message_timestamp_after_max_ms
    )


def _check_each(data: Bytes, row: Longs, settings: TopicSettings, now: int) -> None:
    found = unordered_columns(data, row)
    check_records(found.timestamps, found.key_length < 0, settings, now)


def _rebuilt(data: Bytes, row: Longs, codec: Codec, settings: TopicSettings, now: int) -> batches.Batch:
    shape = batches.shape_of(row)
    append_time = settings.message_timestamp_type == TimestampType.LOG_APPEND_TIME
    shape = batches.Shape(
        codec=codec,
        level=settings.level(codec),
        timestamp_type=settings.message_timestamp_type,
        producer_id=shape.producer_id,
        producer_epoch=shape.producer_epoch,
        base_sequence=shape.base_sequence,
        transactional=shape.transactional,
    )
    return batches.from_columns(unordered_columns(data, row), shape, now if append_time else None)


def _restamped(batch: Bytes, row: Longs, largest: int, settings: TopicSettings, now: int) -> Bytes:
    """Set the timestamp type and max timestamp that the topic needs, if they differ."""
    attributes = int(row[ATTRIBUTES]) & ~LOG_APPEND_TIME
    if settings.message_timestamp_type == TimestampType.LOG_APPEND_TIME:
        attributes |= LOG_APPEND_TIME
        largest = now
    if attributes != row[ATTRIBUTES] or largest != row[MAX_TIMESTAMP]:
        encoding.restamp(batch, 0, batch.size, attributes, largest)
    return batch
