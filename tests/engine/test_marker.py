"""Transaction markers: KAFKA_FORMAT 2.4, 2.6 (C), and of KAFKA_CASES A testReadAndWriteControlBatch,
EndTransactionMarkerTest, testBuildEndTxnMarker.
"""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_batches import (
    NOW,
    VECTOR_B,
    VECTOR_C,
    array,
    batch,
    body,
    crc_is_right,
    entry,
    header_of,
)

from topicfs.engine import batch as batches
from topicfs.engine.batch import ABORT, COMMIT, Marker
from topicfs.engine.batch.compression import compress
from topicfs.engine.errors import CorruptBatchError, InvalidRecordError
from topicfs.engine.format.batch_header import CONTROL, TRANSACTIONAL
from topicfs.engine.kernels import encode as encoding
from topicfs.engine.record import Codec, Record


def read(data: bytes) -> Marker | None:
    return batches.marker(array(data), batches.scan(array(data))[0])


def control(key: bytes | None, value: bytes | None, codec: Codec = Codec.NONE) -> bytes:
    stream = entry(body(Record(value, key, 0)))
    return batch(
        compress(codec, array(stream)).tobytes(),
        attributes=TRANSACTIONAL | CONTROL | codec,
        producer_id=1,
        producer_epoch=0,
    )


def key_of(version: int, kind: int) -> bytes:
    return struct.pack(">hh", version, kind)


def value_of(version: int, epoch: int) -> bytes:
    return struct.pack(">hi", version, epoch)


def test_a_commit_makes_vector_c() -> None:
    made = batches.end_marker(4000, 3, COMMIT, 15, NOW + 10).data
    encoding.stamp(made, 0, 8, 9)
    assert made.tobytes() == VECTOR_C


def test_vector_c_is_a_commit() -> None:
    assert read(VECTOR_C) == Marker(COMMIT, 15)


@given(
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**15 - 1),
    st.sampled_from([ABORT, COMMIT]),
    st.integers(0, 2**31 - 1),
    st.integers(-1, 2**62),
)
def test_a_marker_is_read_as_it_was_made(
    producer: int, epoch: int, kind: int, coordinator_epoch: int, time: int
) -> None:
    made = batches.end_marker(producer, epoch, kind, coordinator_epoch, time).data.tobytes()
    assert read(made) == Marker(kind, coordinator_epoch)
    assert len(made) == 78
    assert crc_is_right(made)
    expected = {
        "base_offset": 0, "size": 66, "leader_epoch": -1, "attributes": 0x30, "last_offset_delta": 0,
        "base_timestamp": time, "max_timestamp": time, "producer_id": producer, "producer_epoch": epoch,
        "base_sequence": -1, "count": 1, "magic": 2, "crc": header_of(made)["crc"],
    }  # fmt: skip
    assert header_of(made) == expected


@pytest.mark.parametrize("kind", [-1, 2, 3, 4, 5, 6, 65535])
def test_only_abort_and_commit_end_a_transaction(kind: int) -> None:
    with pytest.raises(InvalidRecordError, match=rf"0 \(abort\) or 1 \(commit\), found {kind}"):
        batches.end_marker(1, 0, kind, 0, NOW)


@pytest.mark.parametrize("kind", [2, 3, 4, 5, 6, 7, -1, 2**15 - 1])
@pytest.mark.parametrize("value", [value_of(0, 1), b"", None])
def test_other_control_records_are_no_markers(kind: int, value: bytes | None) -> None:
    assert read(control(key_of(0, kind), value)) is None


def test_a_newer_version_with_more_bytes_is_read() -> None:
    assert read(control(key_of(1, COMMIT) + b"more", value_of(1, 7) + b"more")) == Marker(COMMIT, 7)


def test_a_negative_coordinator_epoch_is_read_as_it_stands() -> None:
    assert read(control(key_of(0, ABORT), value_of(0, -1))) == Marker(ABORT, -1)


@pytest.mark.parametrize("key", [None, b"", b"\0", b"\0\0\0", key_of(-1, COMMIT), key_of(-(2**15), ABORT)])
def test_a_short_key_or_one_of_a_negative_version_is_refused(key: bytes | None) -> None:
    with pytest.raises(CorruptBatchError, match=r"control record at offset 0 has the key"):
        read(control(key, value_of(0, 1)))


@pytest.mark.parametrize("value", [None, b"", b"\0\0\0\0\0", value_of(-1, 1), value_of(-(2**15), 1)])
@pytest.mark.parametrize("kind", [ABORT, COMMIT])
def test_a_short_value_or_one_of_a_negative_version_is_refused(value: bytes | None, kind: int) -> None:
    with pytest.raises(CorruptBatchError, match=r"transaction marker at offset 0 has the value"):
        read(control(key_of(0, kind), value))


def test_an_empty_control_batch_holds_no_marker() -> None:
    assert read(batch(attributes=TRANSACTIONAL | CONTROL, count=0)) is None


def test_a_count_that_the_bytes_cannot_hold_is_refused() -> None:
    good = control(key_of(0, COMMIT), value_of(0, 1))
    for count in (-1, 2, 2**31 - 1):
        with pytest.raises(CorruptBatchError):
            read(
                batch(good[61:], attributes=TRANSACTIONAL | CONTROL, count=count, last_offset_delta=2**31 - 1)
            )


def test_a_marker_behind_other_batches_is_read_in_place() -> None:
    source = array(VECTOR_B + VECTOR_C)
    table = batches.scan(source)
    assert batches.marker(source, table[1]) == Marker(COMMIT, 15)
    table[:, 0] += 4096
    assert batches.marker(source, table[1], 4096) == Marker(COMMIT, 15)


def test_reading_a_marker_leaves_the_table_as_it_was() -> None:
    table = batches.scan(array(VECTOR_C))
    before = table.copy()
    batches.marker(array(VECTOR_C), table[0])
    assert (table == before).all()


def test_a_compressed_marker_is_read_though_nobody_writes_one() -> None:
    assert read(control(key_of(0, COMMIT), value_of(0, 3), Codec.GZIP)) == Marker(COMMIT, 3)
