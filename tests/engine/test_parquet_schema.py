"""Records as Arrow batches: `topicfs.engine.parquet.schema`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from plain_batches import CODECS, NOW, RECORDS, RECORDS_B, array, batch, batch_of, entries

from topicfs.engine import batch as reading
from topicfs.engine.batch.columns import Columns
from topicfs.engine.batch.compression import compress
from topicfs.engine.errors import CorruptBatchError
from topicfs.engine.format.batch_header import LOG_APPEND_TIME
from topicfs.engine.parquet.schema import FILE_SCHEMA, SCHEMA, batches, timestamp_types_of
from topicfs.engine.record import MAX_INT64, Codec, Record


def columns_of(data: bytes) -> list[Columns]:
    source = array(data)
    return list(reading.columns(source, reading.scan(source)))


def packed(records: list[Record], codec: Codec, base_offset: int) -> bytes:
    times = [record.timestamp or 0 for record in records]
    return batch(
        compress(codec, array(entries(records, times[0]))).tobytes(),
        base_offset=base_offset,
        attributes=codec,
        base_timestamp=times[0],
        max_timestamp=max(times),
        count=len(records),
    )


def as_rows(records: Sequence[Record], base: int) -> list[dict[str, Any]]:
    """What Spark's Kafka source would show of them, but for the time, which is in microseconds."""
    return [
        {
            "topic": "orders",
            "partition": 7,
            "offset": base + place,
            "timestamp": min(record.timestamp or 0, MAX_INT64 // 1000) * 1000,
            "timestampType": 0,
            "key": record.key,
            "value": record.value,
            "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
        }
        for place, record in enumerate(records)
    ]


def rows_of(found: pa.RecordBatch) -> list[dict[str, Any]]:
    found.validate(full=True)
    at = found.schema.get_field_index("timestamp")
    return found.set_column(at, "timestamp", found.column(at).cast(pa.int64())).to_pylist()


@given(records=RECORDS, codec=CODECS)
def test_a_batch_has_every_record_with_all_that_it_has(records: list[Record], codec: Codec) -> None:
    (columns,) = columns_of(packed(records, codec, 40))
    found = batches(columns, "orders", 7)
    assert found.schema == SCHEMA
    assert rows_of(found) == as_rows(records, 40)


def test_names_and_types_are_those_of_sparks_kafka_source() -> None:
    assert {field.name: str(field.type) for field in SCHEMA} == {
        "topic": "string",
        "partition": "int32",
        "offset": "int64",
        "timestamp": "timestamp[us, tz=UTC]",
        "timestampType": "int32",
        "key": "binary",
        "value": "binary",
        "headers": "list<item: struct<key: string, value: binary>>",
    }


def test_a_file_has_the_columns_of_jsonl_but_for_the_one_that_its_path_names() -> None:
    assert FILE_SCHEMA.names == ["topic", "offset", "timestamp", "key", "value", "headers"]


def test_only_the_columns_that_are_asked_for_are_made_in_their_order() -> None:
    (columns,) = columns_of(batch_of(RECORDS_B))
    wanted = pa.schema([SCHEMA.field("value"), SCHEMA.field("offset")])
    assert batches(columns, "orders", 7, wanted).to_pylist() == [
        {"value": b"v1", "offset": 0},
        {"value": b"v2", "offset": 1},
        {"value": None, "offset": 2},
    ]
    with pytest.raises(ValueError, match="no column 'colour', expected one of topic, partition"):
        batches(columns, "orders", 7, pa.schema([pa.field("colour", pa.int32())]))


def test_rows_of_a_chunk_make_a_batch_as_the_whole_does() -> None:
    (columns,) = columns_of(batch_of(RECORDS_B, base_offset=5))
    assert rows_of(batches(columns.rows(1, 3), "orders", 7)) == as_rows(RECORDS_B, 5)[1:]
    assert rows_of(batches(columns.rows(1, 1), "orders", 7)) == []


def test_numbers_are_not_copied() -> None:
    (columns,) = columns_of(batch_of(RECORDS_B))
    buffer = batches(columns, "orders", 7).column("offset").buffers()[1]
    assert buffer.address == columns.offsets.ctypes.data


def test_a_timestamp_that_microseconds_cannot_hold_is_the_last_that_they_can() -> None:
    record = Record(b"v", None, 2**62)
    (columns,) = columns_of(batch_of([record]))
    assert rows_of(batches(columns, "orders", 7))[0]["timestamp"] == MAX_INT64 // 1000 * 1000


def test_a_header_whose_name_is_no_utf8_has_replacement_characters() -> None:
    record = Record(b"v", None, NOW, (("good", b"1"), ("b\udcffd", None)))
    (columns,) = columns_of(batch_of([record]))
    assert batches(columns, "orders", 7).column("headers").to_pylist() == [
        [{"key": "good", "value": b"1"}, {"key": "b\ufffdd", "value": None}]
    ]


def test_each_record_has_the_timestamp_type_of_its_batch() -> None:
    data = b"".join(
        batch_of(RECORDS_B[:2], base_offset=base, attributes=attributes)
        for base, attributes in ((0, 0), (2, LOG_APPEND_TIME), (4, 0))
    )
    source = array(data)
    table = reading.scan(source)
    (columns,) = reading.columns(source, table)
    kinds = timestamp_types_of(columns, table)
    assert kinds.tolist() == [0, 0, 1, 1, 0, 0]
    found = batches(columns, "orders", 7, timestamp_types=kinds)
    assert found.column("timestampType").to_pylist() == [0, 0, 1, 1, 0, 0]
    assert batches(columns, "orders", 7, timestamp_types=1).column("timestampType").to_pylist() == [1] * 6


@pytest.mark.parametrize("name", ["key", "value", "headers"])
@pytest.mark.parametrize(("start", "length"), [(0, 1000), (-1, 2), (2**31 - 1, 2), (99, 2)])
def test_a_span_beyond_its_buffer_is_refused(name: str, start: int, length: int) -> None:
    columns = Columns.empty(np.zeros(100, np.uint8), 1)
    for array_ in columns.arrays:
        array_[:] = 1
    spans = {
        "key": (columns.key_start, columns.key_length),
        "value": (columns.value_start, columns.value_length),
        "headers": (columns.headers_start, columns.headers_length),
    }
    spans[name][0][:], spans[name][1][:] = start, length
    with pytest.raises(CorruptBatchError, match="beyond the bytes"):
        batches(columns, "orders", 7)


@pytest.mark.parametrize("section", [b"\x08\x02a\x01", b"\x02\x08a\x01", b"\x02\x02a\x08", b"\xff\xff"])
def test_headers_that_are_cut_short_are_refused(section: bytes) -> None:
    columns = Columns.empty(array(section), 1)
    for array_ in columns.arrays:
        array_[:] = 0
    columns.headers_length[:] = len(section)
    with pytest.raises(CorruptBatchError, match="beyond the bytes"):
        batches(columns, "orders", 7)
