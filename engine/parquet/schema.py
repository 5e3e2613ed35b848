"""The columns of a record in Arrow, and the batches that hold them. Parquet files and Spark's data source use them.

    topic          string
    partition      int32
    offset         int64
    timestamp      timestamp[us, UTC]   Spark's own unit: milliseconds times 1,000, limited to the type's range
    timestampType  int32                0 set by the producer, 1 time of the append
    key, value     binary, or null      unchanged bytes, which need not be text. CAST(value AS STRING) reads them
    headers        list<struct<key: string, value: binary>>; null where there are none

Names and types are those of Spark's Kafka source, so that jobs work unchanged. Names and order are those of jsonl. A
record without a timestamp has -1 ms, there as here. A header's name that is not UTF-8 is shown with replacement
characters, because an Arrow string must be UTF-8.

A Parquet file (`FILE_SCHEMA`) has no `partition`: that is in the path, `partition=<n>/`, and pyarrow, and so pandas,
refuses a table whose files have a column that is also in their path. It has no `timestampType`, as jsonl has none:
that is a setting of the topic.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from topicfs.engine.batch.columns import Columns
from topicfs.engine.batch.table import Bytes, Ints, Longs
from topicfs.engine.errors import CorruptBatchError
from topicfs.engine.format.batch_header import LOG_APPEND_TIME
from topicfs.engine.kernels import gather as gathering
from topicfs.engine.kernels.scan import ATTRIBUTES, LAST_OFFSET
from topicfs.engine.record import MAX_INT64

_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])

SCHEMA: Final[pa.Schema] = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(_HEADER)),
    ]
)
"""All columns."""

TABLE_SCHEMA: Final[pa.Schema] = pa.schema([field for field in SCHEMA if field.name != "timestampType"])
"""The columns of a topic's table: those of its files, and the partition from their paths."""

FILE_SCHEMA: Final[pa.Schema] = pa.schema([field for field in TABLE_SCHEMA if field.name != "partition"])
"""The columns of a Parquet file."""

_MOST_MS: Final = MAX_INT64 // 1000

NO_HEADERS_SIZE: Final = 1


def batches(
    columns: Columns,
    topic: str,
    partition: int,
    schema: pa.Schema = SCHEMA,
    timestamp_types: Ints | int = 0,
) -> pa.RecordBatch:
    """Return the records as one batch, with the columns of `schema` in its order. Any columns of SCHEMA can be asked
    for.

    `timestamp_types` is one type for all records, or one for each: see `timestamp_types_of`."""
    arrays = [_array(field.name, columns, topic, partition, timestamp_types) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def timestamp_types_of(columns: Columns, table: Longs) -> Ints:
    """Return the timestamp type of each record, from the batches in `table`."""
    kinds = (table[:, ATTRIBUTES] & LOG_APPEND_TIME != 0).astype(np.int32)
    return np.asarray(kinds[np.searchsorted(table[:, LAST_OFFSET], columns.offsets)], np.int32)


def _array(name: str, columns: Columns, topic: str, partition: int, timestamp_types: Ints | int) -> pa.Array:
    rows = len(columns)
    match name:
        case "topic":
            return pa.repeat(pa.scalar(topic, pa.string()), rows)
        case "partition":
            return pa.repeat(pa.scalar(partition, pa.int32()), rows)
        case "offset":
            return pa.Array.from_buffers(pa.int64(), rows, [None, _buffer(columns.offsets)], 0)
        case "timestamp":
            return pa.Array.from_buffers(
                SCHEMA.field(name).type, rows, [None, _buffer(_microseconds(columns.timestamps))], 0
            )
        case "timestampType":
            return pa.array(np.broadcast_to(np.asarray(timestamp_types, np.int32), rows))
        case "key":
            return _spans(columns.buffer, columns.key_start, columns.key_length, pa.binary())
        case "value":
            return _spans(columns.buffer, columns.value_start, columns.value_length, pa.binary())
        case "headers":
            return _headers(columns)
    raise ValueError(f"a record has no column {name!r}, expected one of {', '.join(SCHEMA.names)}")


def microseconds(timestamp: int) -> int:
    """Return a timestamp in the unit of its column."""
    return min(max(timestamp, -_MOST_MS), _MOST_MS) * 1000


def room(size: int) -> Bytes:
    """Return a buffer of so many bytes from Arrow's memory, which goes back to it when nothing refers to it any more.

    Large arrays of numpy are new pages each time: reading a column of values took twice the processor time by them."""
    return np.frombuffer(pa.allocate_buffer(size), np.uint8)


def _microseconds(timestamps: Longs) -> Longs:
    found = room(timestamps.nbytes).view(np.int64)
    np.clip(timestamps, -_MOST_MS, _MOST_MS, out=found)
    return np.multiply(found, 1000, out=found)


def _buffer(array: Bytes | Ints | Longs) -> pa.Buffer:
    return pa.py_buffer(np.ascontiguousarray(array))


def _spans(buffer: Bytes, start: Ints, length: Ints, kind: pa.DataType) -> pa.Array:
    """Return an array of the bytes or text at these spans."""
    rows = len(start)
    positions, validity = room(4 * (rows + 1)).view(np.int32), np.zeros((rows + 7) // 8, np.uint8)
    total, nulls = gathering.measure(buffer, start, length, positions, validity)
    _raise_if_bad(total, rows)
    data = room(total)
    _raise_if_bad(gathering.gather(buffer, start, length, positions, data), rows)
    bits = _buffer(validity) if nulls else None
    return pa.Array.from_buffers(kind, rows, [bits, _buffer(positions), _buffer(data)], nulls)


def _headers(columns: Columns) -> pa.Array:
    kind, rows = SCHEMA.field("headers").type, len(columns)
    starts, lengths = columns.headers_start, columns.headers_length
    if not rows or int(lengths.max()) <= NO_HEADERS_SIZE:
        return pa.nulls(rows, kind)
    positions, validity = np.empty(rows + 1, np.int32), np.zeros((rows + 7) // 8, np.uint8)
    count = gathering.count_headers(columns.buffer, starts, lengths, positions, validity)
    _raise_if_bad(count, rows)
    name_start, name_length, value_start, value_length = np.empty((4, count), np.int32)
    found = gathering.header_spans(
        columns.buffer, starts, lengths, name_start, name_length, value_start, value_length
    )
    _raise_if_bad(found, rows)
    names = _text(_spans(columns.buffer, name_start, name_length, pa.string()))
    values = _spans(columns.buffer, value_start, value_length, pa.binary())
    pairs = pa.StructArray.from_arrays([names, values], fields=list(_HEADER))
    return pa.Array.from_buffers(kind, rows, [_buffer(validity), _buffer(positions)], -1, children=[pairs])


def _text(names: pa.Array) -> pa.Array:
    """Return the names. Names that are not UTF-8 get replacement characters. They are very rare."""
    try:
        names.validate(full=True)
    except pa.ArrowInvalid:
        raw = pa.Array.from_buffers(pa.binary(), len(names), names.buffers(), 0)
        return pa.array([name.decode("utf-8", "replace") for name in raw.to_pylist()], pa.string())
    return names


def _raise_if_bad(status: int, rows: int) -> None:
    if status < 0:
        raise CorruptBatchError(
            f"{rows} records: a span, or their headers, go beyond the bytes that hold them"
        )
