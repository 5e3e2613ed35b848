"""Another project's reader and writer of batches agrees with ours: aiokafka, its compiled variant and its plain one.

For snappy, lz4 and zstd aiokafka needs cramjam, as we do. That one library is on both sides is why the frames
themselves are taken apart in test_compression.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from aiokafka import codec as aiokafka_codecs
from aiokafka.record import default_records, memory_records
from aiokafka.record.control_record import ABORT_MARKER, COMMIT_MARKER, ControlRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_batches import (
    CODECS,
    NOW,
    PRODUCERS,
    RECORDS,
    RECORDS_B,
    VECTOR_A,
    VECTOR_B,
    VECTOR_C,
    VECTOR_D,
    array,
)

from topicfs.engine import batch as batches
from topicfs.engine.batch import ABORT, COMMIT, Shape
from topicfs.engine.errors import CorruptBatchError
from topicfs.engine.kernels import encode as encoding
from topicfs.engine.record import Codec, Record, TimestampType

VARIANTS = pytest.mark.parametrize("variant", ["compiled", "plain"])
READERS = {"compiled": default_records.DefaultRecordBatch, "plain": default_records._DefaultRecordBatchPy}
WRITERS = {
    "compiled": default_records.DefaultRecordBatchBuilder,
    "plain": default_records._DefaultRecordBatchBuilderPy,
}
STREAMS = {"compiled": memory_records.MemoryRecords, "plain": memory_records._MemoryRecordsPy}


def test_both_variants_are_there_with_every_codec() -> None:
    assert READERS["compiled"] is not READERS["plain"]
    assert WRITERS["compiled"] is not WRITERS["plain"]
    assert all(
        has()
        for has in (
            aiokafka_codecs.has_gzip,
            aiokafka_codecs.has_snappy,
            aiokafka_codecs.has_lz4,
            aiokafka_codecs.has_zstd,
        )
    )


def theirs(variant: str, data: bytes) -> list[Record]:
    found = READERS[variant](data)
    assert found.validate_crc()
    return [Record(each.value, each.key, each.timestamp, tuple(each.headers), each.offset) for each in found]


def ours(data: bytes | bytearray) -> list[Record]:
    source = array(bytes(data))
    return [record for part in batches.columns(source, batches.scan(source)) for record in part.records()]


def placed(records: list[Record], base: int, time: int | None = None) -> list[Record]:
    return [
        Record(r.value, r.key, r.timestamp if time is None else time, r.headers, base + i)
        for i, r in enumerate(records)
    ]


# -- they read what we write ------------------------------------------------------------------------


@VARIANTS
@given(
    records=RECORDS, codec=CODECS, producer=PRODUCERS, kind=st.sampled_from(TimestampType),
    base=st.integers(0, 2**62), epoch=st.integers(-1, 2**31 - 1),
)  # fmt: skip
def test_they_read_every_batch_that_we_build(
    variant: str,
    records: list[Record],
    codec: Codec,
    producer: dict[str, Any],
    kind: TimestampType,
    base: int,
    epoch: int,
) -> None:
    made = batches.from_records(records, NOW, Shape(codec, timestamp_type=kind, **producer)).data
    encoding.stamp(made, 0, base, epoch)
    data = made.tobytes()
    assert theirs(variant, data) == placed(records, base, NOW if kind else None)
    header = READERS[variant](data)
    assert header.magic == 2
    assert header.compression_type == codec
    assert header.timestamp_type == kind
    assert header.is_transactional == producer.get("transactional", False)
    assert not header.is_control_batch
    assert header.base_offset == base
    assert header.next_offset == base + len(records)
    assert header.producer_id == producer.get("producer_id", -1)
    assert header.producer_epoch == producer.get("producer_epoch", -1)
    assert header.base_sequence == producer.get("base_sequence", -1)
    times = [record.timestamp or 0 for record in records]
    assert header.first_timestamp == times[0]
    assert header.max_timestamp == (NOW if kind else max(times))


@VARIANTS
@pytest.mark.parametrize(
    ("codec", "level"),
    [(Codec.GZIP, 1), (Codec.GZIP, 9), (Codec.LZ4, 1), (Codec.LZ4, 9), (Codec.LZ4, 17), (Codec.ZSTD, -9),
     (Codec.ZSTD, 19), (Codec.SNAPPY, None), (Codec.NONE, None)],
)  # fmt: skip
def test_they_read_large_batches_of_lines_at_every_level(
    variant: str, codec: Codec, level: int | None
) -> None:
    lines = b"".join(b"line %d and more of it\n" % (i * i) for i in range(8000))
    made, used = batches.from_lines(array(lines), NOW, Shape(codec, level))
    assert used == len(lines)
    assert [record.value for record in theirs(variant, made.data.tobytes())] == lines.splitlines()


@VARIANTS
@settings(max_examples=30)
@given(records=RECORDS, codec=CODECS)
def test_they_read_what_we_rebuild_of_columns(variant: str, records: list[Record], codec: Codec) -> None:
    made = batches.from_records(records, NOW).data
    (part,) = batches.columns(made, batches.scan(made))
    data = batches.from_columns(part, Shape(codec)).data.tobytes()
    assert theirs(variant, data) == placed(records, 0)


@VARIANTS
@pytest.mark.parametrize(("kind", "expected"), [(COMMIT, COMMIT_MARKER), (ABORT, ABORT_MARKER)])
def test_they_read_our_markers(variant: str, kind: int, expected: ControlRecord) -> None:
    data = batches.end_marker(9, 1, kind, 3, NOW).data.tobytes()
    header = READERS[variant](data)
    assert header.validate_crc()
    assert header.is_control_batch
    assert header.is_transactional
    (record,) = header
    assert ControlRecord.parse(record.key) == expected


@VARIANTS
def test_they_find_the_same_batches_in_a_stream(variant: str) -> None:
    data = VECTOR_A + VECTOR_B + VECTOR_C + VECTOR_D
    stream = STREAMS[variant](data)
    found = []
    while stream.has_next():
        header = stream.next_batch()
        assert header is not None
        assert header.validate_crc()
        found.append((header.base_offset, header.next_offset - 1, header.crc, header.is_control_batch))
    rows = batches.scan(array(data))
    expected = [
        (
            int(row[2]),
            int(row[3]),
            int.from_bytes(data[row[0] + 17 : row[0] + 21], "big"),
            bool(row[5] & 0x20),
        )
        for row in rows
    ]
    assert found == expected


# -- we read what they write ------------------------------------------------------------------------

# Their compiled builder takes a first timestamp of -1 for none yet, and the next record's for the base.
TIMED = RECORDS.map(
    lambda records: [replace(each, timestamp=max(each.timestamp or 0, 0)) for each in records]
)


def their_batch(variant: str, records: list[Record], codec: Codec, **fields: Any) -> bytearray:
    writer = WRITERS[variant](
        magic=2,
        compression_type=int(codec),
        is_transactional=fields.get("transactional", False),
        producer_id=fields.get("producer_id", -1),
        producer_epoch=fields.get("producer_epoch", -1),
        base_sequence=fields.get("base_sequence", -1),
        batch_size=1 << 24,
    )
    for place, record in enumerate(records):
        added = writer.append(
            place,
            timestamp=record.timestamp,
            key=record.key,
            value=record.value,
            headers=list(record.headers),
        )
        assert added is not None
    return bytearray(writer.build())


@VARIANTS
@given(records=TIMED, codec=CODECS, producer=PRODUCERS)
def test_we_read_every_batch_that_they_build(
    variant: str, records: list[Record], codec: Codec, producer: dict[str, Any]
) -> None:
    data = their_batch(variant, records, codec, **producer)
    assert ours(data) == placed(records, 0)
    row = batches.scan(array(data))[0]
    shape = batches.shape_of(row)
    assert shape == Shape(shape.codec, **producer)
    assert shape.codec in (codec, Codec.NONE), "they leave uncompressed what would not shrink"
    found = batches.inspect(array(data), row)
    times = [record.timestamp or 0 for record in records]
    assert (found.smallest_timestamp, found.largest_timestamp) == (min(times), max(times))
    assert found.sequential


@VARIANTS
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_we_read_their_large_compressed_batches(variant: str, codec: Codec) -> None:
    records = [Record(b"value %d" % i, b"key", NOW + i) for i in range(20_000)]
    data = their_batch(variant, records, codec)
    assert batches.shape_of(batches.scan(array(data))[0]).codec == codec
    assert ours(data) == placed(records, 0)


@VARIANTS
@given(records=TIMED)
def test_plain_batches_of_both_are_the_same_bytes(variant: str, records: list[Record]) -> None:
    made = batches.from_records(records, NOW).data.tobytes()
    assert bytes(their_batch(variant, records, Codec.NONE)) == made


@VARIANTS
def test_a_byte_that_they_find_damaged_we_find_damaged(variant: str) -> None:
    data = their_batch(variant, list(RECORDS_B), Codec.NONE)
    for at in range(21, len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        assert not READERS[variant](bytes(damaged)).validate_crc()
        with pytest.raises(CorruptBatchError, match="checksum"):
            batches.scan(array(damaged))
