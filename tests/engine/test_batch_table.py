"""The batch table of bytes that must be whole batches: KAFKA_FORMAT 0.8, 2.1, 2.3, 2.6, and of KAFKA_CASES A
testInvalidRecordSize, testInvalidCrc, testSetLastOffset, testSetPartitionLeaderEpoch, testSetLogAppendTime.

testSetNoTimestampTypeNotAllowed has nothing to refuse: a timestamp type is one bit here. Bytes that may end
inside a batch (testIterationOverPartialAndTruncation) are a segment's, and tested with it.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_batches import (
    NOW,
    PRODUCER,
    RECORDS_B,
    VECTOR_A,
    VECTOR_B,
    VECTOR_C,
    VECTOR_D,
    array,
    batch,
    batch_of,
    crc_is_right,
    header_of,
    sealed,
)

from topicfs.engine import batch as batches
from topicfs.engine.errors import CorruptBatchError
from topicfs.engine.format.batch_header import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL
from topicfs.engine.kernels import encode as encoding
from topicfs.engine.kernels.scan import (
    ATTRIBUTES,
    BASE_OFFSET,
    COLUMNS,
    COUNT,
    LAST_OFFSET,
    LEADER_EPOCH,
    POSITION,
)

ROWS = {
    VECTOR_A: [0, 70, 0, 0, 0, 0, 1000, 1000, -1, -1, -1, 1, 2],
    VECTOR_B: [0, 97, 5, 7, 9, 0, NOW, NOW + 5, 4000, 3, 7, 3, 2],
    VECTOR_C: [0, 78, 8, 8, 9, TRANSACTIONAL | CONTROL, NOW + 10, NOW + 10, 4000, 3, -1, 1, 2],
    VECTOR_D: [0, 61, 5, 7, 9, 0, -1, NOW + 5, 4000, 3, 7, 0, 2],
}


@pytest.mark.parametrize("vector", ROWS)
def test_a_vector_has_the_row_of_its_header(vector: bytes) -> None:
    assert batches.scan(array(vector)).tolist() == [ROWS[vector]]


def test_batches_one_behind_the_other_have_a_row_each() -> None:
    table = batches.scan(array(b"".join(ROWS)))
    assert table[:, 1:].tolist() == [row[1:] for row in ROWS.values()]
    assert table[:, POSITION].tolist() == [0, 70, 167, 245]


def test_no_bytes_have_no_rows() -> None:
    assert batches.scan(array(b"")).shape == (0, COLUMNS)


@pytest.mark.parametrize("number", [1, 63, 64, 65, 400])
def test_any_number_of_batches_is_scanned(number: int) -> None:
    data = b"".join(batch(base_offset=i, count=0) for i in range(number))
    table = batches.scan(array(data))
    assert table[:, BASE_OFFSET].tolist() == list(range(number))
    assert table[:, POSITION].tolist() == list(range(0, 61 * number, 61))


def test_a_batch_behind_good_ones_is_named_by_its_byte() -> None:
    with pytest.raises(CorruptBatchError, match=r"byte 122 of 183: the checksum"):
        batches.scan(array(VECTOR_D + VECTOR_D + VECTOR_D[:-1] + b"\x01"))


@given(st.integers(0, len(VECTOR_B) - 1), st.integers(1, 255))
def test_any_flipped_byte_that_the_checksum_covers_is_found(at: int, flip: int) -> None:
    damaged = bytearray(VECTOR_B)
    damaged[at] ^= flip
    if at >= 17:
        with pytest.raises(CorruptBatchError, match="checksum"):
            batches.scan(array(damaged))
        if at != 23:  # the last offset delta's sign
            assert len(batches.scan(array(damaged), check=False)) == 1
    elif at in (*range(8), *range(12, 16)) and not damaged[0] & 0x80:
        assert len(batches.scan(array(damaged))) == 1, "offset and leader epoch lie outside the checksum"
    else:
        with pytest.raises(CorruptBatchError):
            batches.scan(array(damaged))


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 13, 14, 48, 2**31 - 12, 2**31 - 1])
def test_an_impossible_size_field_is_refused(size: int) -> None:
    damaged = VECTOR_A[:8] + size.to_bytes(4, "big", signed=True) + VECTOR_A[12:]
    with pytest.raises(CorruptBatchError, match="size field is impossible"):
        batches.scan(array(damaged))


def test_a_size_beyond_the_bytes_is_refused() -> None:
    for end in range(1, len(VECTOR_A)):
        with pytest.raises(CorruptBatchError, match="the bytes end inside a batch"):
            batches.scan(array(VECTOR_A[:end]))


def test_zeroes_are_refused() -> None:
    with pytest.raises(CorruptBatchError, match="size field is impossible"):
        batches.scan(array(bytes(4096)))


def test_up_to_17_bytes_are_the_end_of_a_batch_and_not_judged() -> None:
    for size in range(1, 18):
        with pytest.raises(CorruptBatchError, match="the bytes end inside a batch"):
            batches.scan(array(bytes(size)))
    with pytest.raises(CorruptBatchError, match="size field is impossible"):
        batches.scan(array(bytes(18)))


@pytest.mark.parametrize("magic", [0, 1, 3, 127, -1, -128])
def test_another_magic_is_refused(magic: int) -> None:
    with pytest.raises(CorruptBatchError, match="magic is not 2"):
        batches.scan(array(batch_of(RECORDS_B, magic=magic)))


@pytest.mark.parametrize(("base", "delta"), [(-1, 0), (-(2**63), 0), (0, -1), (5, -(2**31)), (2**63 - 2, 2)])
def test_a_negative_or_overflowing_offset_is_refused(base: int, delta: int) -> None:
    with pytest.raises(CorruptBatchError, match="an offset is negative, beyond 63 bits"):
        batches.scan(array(batch(base_offset=base, last_offset_delta=delta, count=0)))


def test_the_largest_offset_is_accepted() -> None:
    row = batches.scan(array(batch(base_offset=2**63 - 2, last_offset_delta=1, count=0)))[0]
    assert row[LAST_OFFSET] == 2**63 - 1


def test_a_count_is_taken_as_it_stands() -> None:
    assert batches.scan(array(batch(count=-1)))[0, COUNT] == -1


# -- changes to a finished batch --------------------------------------------------------------------


@pytest.mark.parametrize(("base", "epoch"), [(0, 0), (12345, 7), (2**62, 2**31 - 1), (5, -1)])
def test_setting_offset_and_leader_epoch_keeps_the_checksum(base: int, epoch: int) -> None:
    stamped = array(bytearray(VECTOR_B))
    assert encoding.stamp(stamped, 0, base, epoch) == 0
    fields = header_of(stamped.tobytes())
    assert fields == header_of(VECTOR_B) | {"base_offset": base, "leader_epoch": epoch}
    row = batches.scan(stamped)[0]
    assert (row[BASE_OFFSET], row[LAST_OFFSET], row[LEADER_EPOCH]) == (base, base + 2, epoch)


def test_setting_append_time_gives_it_to_every_record_with_a_right_checksum() -> None:
    changed = array(bytearray(batch_of(RECORDS_B, **PRODUCER)))
    assert encoding.restamp(changed, 0, changed.size, LOG_APPEND_TIME, NOW + 99) >= 0
    assert crc_is_right(changed.tobytes())
    table = batches.scan(changed)
    assert table[0, ATTRIBUTES] == LOG_APPEND_TIME
    (part,) = batches.columns(changed, table)
    assert part.timestamps.tolist() == [NOW + 99] * 3


@pytest.mark.parametrize("start", [-1, 37, 98, 2**62])
def test_a_batch_outside_the_buffer_is_not_changed(start: int) -> None:
    kept = array(bytearray(VECTOR_B))
    assert encoding.stamp(kept, start, 1, 1) == -1
    assert encoding.restamp(kept, start, 97, 8, 1) == -1
    assert encoding.write_header(kept, start, 97, *[1] * 10) == -1
    assert encoding.restamp(kept, 0, 98, 8, 1) == -1
    assert encoding.write_header(kept, 0, 98, *[1] * 10) == -1
    assert kept.tobytes() == VECTOR_B


def test_a_sealed_plain_batch_is_the_vector() -> None:
    """The plain writer that other tests lean on agrees with the format's vectors."""
    assert sealed(VECTOR_B) == VECTOR_B
    assert batch_of(RECORDS_B, base_offset=5, leader_epoch=9, **PRODUCER) == VECTOR_B


def test_the_table_does_not_depend_on_what_lies_around_the_bytes() -> None:
    alone = batches.scan(array(VECTOR_B + VECTOR_C))
    for poison in (0x00, 0xFF):
        around = np.full(400, poison, np.uint8)
        around[100 : 100 + len(VECTOR_B + VECTOR_C)] = array(VECTOR_B + VECTOR_C)
        assert (batches.scan(around[100 : 100 + len(VECTOR_B + VECTOR_C)]) == alone).all()
