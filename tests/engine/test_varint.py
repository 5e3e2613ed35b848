"""Variable-length integers (KAFKA_FORMAT 2.2; testUnderflowReadingVarlong and testInvalidVarlong of KAFKA_CASES A)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_batches import array, varint

from topicfs.engine.kernels.varint import MALFORMED, decode_varint, encode_varint

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (-2, "03"),
        (63, "7e"),
        (64, "8001"),
        (-64, "7f"),
        (-65, "8101"),
        (8191, "fe7f"),
        (8192, "808001"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
        (2**63 - 1, "feffffffffffffffff01"),
        (-(2**63), "ffffffffffffffffff01"),
    ],
)
def test_a_number_has_the_bytes_that_the_format_gives(value: int, encoded: str) -> None:
    out = np.zeros(12, np.uint8)
    end = encode_varint(out, 1, value)
    assert out[1:end].tobytes().hex() == encoded
    assert not out[end:].any()
    assert decode_varint(out, 1, 64) == (value, end)
    if -(2**31) <= value < 2**31:
        assert decode_varint(out, 1, 32) == (value, end)


@given(INT64)
def test_a_64_bit_number_is_written_as_plain_python_does_and_read_back(value: int) -> None:
    out = np.zeros(10, np.uint8)
    end = encode_varint(out, 0, value)
    assert out[:end].tobytes() == varint(value)
    assert decode_varint(out, 0, 64) == (value, end)


@given(INT32)
def test_a_32_bit_number_takes_at_most_5_bytes_and_is_read_back(value: int) -> None:
    out = np.zeros(5, np.uint8)
    end = encode_varint(out, 0, value)
    assert end <= 5
    assert decode_varint(out, 0, 32) == (value, end)


@given(INT64, st.sampled_from([32, 64]))
def test_a_number_that_is_cut_short_is_malformed(value: int, bits: int) -> None:
    encoded = varint(value)
    for cut in range(len(encoded)):
        assert decode_varint(array(encoded[:cut]), 0, bits) == (0, MALFORMED)


@pytest.mark.parametrize(("bits", "longest"), [(32, 5), (64, 10)])
def test_a_number_of_more_bytes_than_its_kind_may_have_is_malformed(bits: int, longest: int) -> None:
    padded = b"\x80" * (longest - 1) + b"\x00"
    assert decode_varint(array(padded), 0, bits) == (0, longest)
    assert decode_varint(array(b"\x80" + padded), 0, bits) == (0, MALFORMED)
    assert decode_varint(array(b"\xff" * 64), 0, bits) == (0, MALFORMED)


@pytest.mark.parametrize(
    ("bits", "encoded"),
    [
        (32, varint(2**31)),
        (32, varint(-(2**31) - 1)),
        (32, b"\xff\xff\xff\xff\x7f"),
        (64, b"\xff" * 9 + b"\x02"),
        (64, b"\xff" * 9 + b"\x7f"),
    ],
)
def test_a_number_of_more_bits_than_its_kind_has_is_malformed(bits: int, encoded: bytes) -> None:
    assert decode_varint(array(encoded), 0, bits) == (0, MALFORMED)


@pytest.mark.parametrize("position", [-1, -(2**63), 3, 4, 2**63 - 1])
def test_a_position_outside_the_buffer_is_malformed(position: int) -> None:
    assert decode_varint(array(b"\0\0\0"), position, 64) == (0, MALFORMED)
    out = np.zeros(3, np.uint8)
    assert encode_varint(out, position, 1) == MALFORMED
    assert not out.any()


def test_a_number_without_room_is_not_written() -> None:
    out = np.zeros(4, np.uint8)
    assert encode_varint(out, 3, 64) == MALFORMED
    assert encode_varint(out, 2, 64) == 4
    assert out.tobytes().hex() == "00008001"
