"""The batch table: what headers say, and where a buffer stops being whole, good batches.

`batch` and `table_of` build input for the tests of segments too, byte by byte, not with the engine's builder.
"""

from __future__ import annotations

import struct

import google_crc32c
import numpy as np
import numpy.typing as npt
import pytest

from topicfs.engine.kernels import scan as scanning
from topicfs.engine.kernels.scan import (
    BAD_CRC,
    BAD_MAGIC,
    BAD_OFFSETS,
    BAD_SIZE,
    COLUMNS,
    DONE,
    FULL,
    PARTIAL,
    POSITION,
    PROBLEMS,
    SIZE,
    scan,
)

VECTOR_A = bytes.fromhex(
    "00000000000000000000003a0000000002716a618900000000000000000000000003e800000000000003e8ffffffffffffffff"
    "ffffffffffff0000000110000000026b027600"
)
VECTOR_B = bytes.fromhex(
    "0000000000000005000000550000000902f2a0a8ce0000000000020000018bcfe568000000018bcfe568050000000000000fa0"
    "0003000000070000000314000000046b310476310010000a0201047632001e000504046b33010402680278026e01"
)


def varint(value: int) -> bytes:
    folded = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while folded >= 0x80:
        out.append(folded & 0x7F | 0x80)
        folded >>= 7
    return bytes([*out, folded])


def batch(
    offset: int,
    timestamps: list[int] | None = None,
    *,
    value: bytes = b"value",
    last_delta: int | None = None,
    leader_epoch: int = 0,
) -> bytes:
    """One uncompressed batch: a record for each timestamp, at offsets that follow one another."""
    timestamps = [1000] if timestamps is None else timestamps
    records = b""
    for delta, timestamp in enumerate(timestamps):
        body = b"\0" + varint(timestamp - timestamps[0]) + varint(delta) + varint(-1)
        body += varint(len(value)) + value + varint(0)
        records += varint(len(body)) + body
    count = len(timestamps)
    if last_delta is None:
        last_delta = count - 1
    checked = struct.pack(">hiqqqhii", 0, last_delta, timestamps[0], max(timestamps), -1, -1, -1, count)
    checked += records
    crc = google_crc32c.value(checked)
    return struct.pack(">qiibI", offset, len(checked) + 9, leader_epoch, 2, crc) + checked


def table_of(data: bytes, rows: int = 4096) -> npt.NDArray[np.int64]:
    table = np.empty((rows, COLUMNS), np.int64)
    found, consumed, status = scan(np.frombuffer(data, np.uint8), 0, len(data), 0, 1, table)
    assert (consumed, status) == (len(data), DONE)
    return table[:found].copy()


def scanned(data: bytes, rows: int = 8, check: int = 1) -> tuple[int, int, int]:
    table = np.empty((rows, COLUMNS), np.int64)
    return scan(np.frombuffer(data, np.uint8), 0, len(data), 0, check, table)


def test_every_column_holds_its_field_of_the_header() -> None:
    table = table_of(VECTOR_A + VECTOR_B)
    assert table[0].tolist() == [0, 70, 0, 0, 0, 0, 1000, 1000, -1, -1, -1, 1, 2]
    timestamps = [1700000000000, 1700000000005]
    assert table[1].tolist() == [70, 97, 5, 7, 9, 0, *timestamps, 4000, 3, 7, 3, 2]


def test_attributes_are_unsigned() -> None:
    data = bytearray(VECTOR_A)
    data[21:23] = b"\xff\xff"
    table = np.empty((1, COLUMNS), np.int64)
    scan(np.frombuffer(data, np.uint8), 0, 70, 0, 0, table)
    assert table[0, scanning.ATTRIBUTES] == 0xFFFF


def test_positions_count_from_the_position_argument() -> None:
    data = b"??" + VECTOR_A + VECTOR_B
    table = np.empty((2, COLUMNS), np.int64)
    assert scan(np.frombuffer(data, np.uint8), 2, len(data), 998, 1, table) == (2, 167, DONE)
    assert table[:, POSITION].tolist() == [1000, 1070]


def test_no_bytes_are_done() -> None:
    assert scanned(b"") == (0, 0, DONE)


@pytest.mark.parametrize("cut", [1, 17, 18, 61, 69])
def test_a_batch_that_is_cut_off_is_partial(cut: int) -> None:
    assert scanned(VECTOR_B + VECTOR_A[:cut]) == (1, 97, PARTIAL)


def test_a_full_table_stops_before_the_next_batch() -> None:
    assert scanned(VECTOR_A + VECTOR_B, rows=1) == (1, 70, FULL)


def test_a_table_that_is_just_large_enough_is_not_full() -> None:
    assert scanned(VECTOR_A, rows=1) == (1, 70, DONE)


@pytest.mark.parametrize("size", [0, -1, 13, -(2**31), 2**31 - 12, 14, 48])
def test_a_size_that_no_batch_has_is_refused(size: int) -> None:
    bad = VECTOR_A[:8] + struct.pack(">i", size) + VECTOR_A[12:]
    assert scanned(VECTOR_B + bad) == (1, 97, BAD_SIZE)


def test_a_zero_filled_tail_has_a_bad_size() -> None:
    assert scanned(VECTOR_A + bytes(100)) == (1, 70, BAD_SIZE)


@pytest.mark.parametrize("magic", [0, 1, 3, 255])
def test_any_magic_but_2_is_refused_even_where_the_batch_is_cut_off(magic: int) -> None:
    bad = VECTOR_A[:16] + bytes([magic]) + VECTOR_A[17:]
    assert scanned(VECTOR_B + bad) == (1, 97, BAD_MAGIC)
    assert scanned(VECTOR_B + bad[:20]) == (1, 97, BAD_MAGIC)


@pytest.mark.parametrize("place", [17, 21, 40, 69])
def test_a_flipped_byte_is_a_bad_checksum(place: int) -> None:
    bad = bytearray(VECTOR_A)
    bad[place] ^= 1
    assert scanned(VECTOR_B + bytes(bad)) == (1, 97, BAD_CRC)


def test_checksums_are_left_alone_without_check() -> None:
    bad = VECTOR_A[:69] + b"?"
    assert scanned(bad, check=0) == (1, 70, DONE)


def test_base_offset_and_leader_epoch_lie_outside_the_checksum() -> None:
    assert scanned(struct.pack(">q", 77) + VECTOR_A[8:12] + struct.pack(">i", 8) + VECTOR_A[16:])[2] == DONE


@pytest.mark.parametrize("offset", [-1, -(2**63), 2**63 - 1])
def test_an_offset_that_is_negative_or_overflows_is_refused(offset: int) -> None:
    bad = struct.pack(">q", offset) + batch(0, [1, 2])[8:]
    assert scanned(VECTOR_B + bad) == (1, 97, BAD_OFFSETS)


def test_a_negative_last_offset_delta_is_refused() -> None:
    assert scanned(VECTOR_B + batch(9, last_delta=-1)) == (1, 97, BAD_OFFSETS)


def test_a_range_outside_the_buffer_reads_nothing() -> None:
    data = np.frombuffer(VECTOR_A, np.uint8)
    table = np.empty((1, COLUMNS), np.int64)
    for start, end in ((-1, 70), (0, 71), (50, 40)):
        assert scan(data, start, end, 0, 1, table) == (0, 0, PARTIAL)
    assert scan(data, 0, 70, 0, 1, np.empty((1, COLUMNS - 1), np.int64)) == (0, 0, PARTIAL)


def test_random_bytes_behind_a_batch_never_count_as_one() -> None:
    random = np.random.default_rng(1)
    for length in range(0, 400, 7):
        data = VECTOR_A + random.integers(0, 256, length, np.uint8).tobytes()
        rows, consumed, status = scanned(data)
        assert (rows, consumed) == (1, 70)
        assert status == DONE if length == 0 else status in PROBLEMS


def test_sizes_add_up_to_what_was_consumed() -> None:
    data = b"".join(batch(3 * number, [5, 6, 7], value=bytes(number)) for number in range(50))
    assert table_of(data)[:, SIZE].sum() == len(data)
