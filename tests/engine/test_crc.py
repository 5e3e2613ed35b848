"""CRC-32C (KAFKA_FORMAT 2.1, 2.6)."""

from __future__ import annotations

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_batches import array

from topicfs.engine.kernels.crc import crc32c


def test_the_check_value_of_the_polynomial() -> None:
    assert crc32c(array(b"123456789"), 0, 9) == 0xE3069283


@given(st.binary(max_size=200), st.data())
def test_a_range_has_the_checksum_of_its_bytes_alone(data: bytes, draw: st.DataObject) -> None:
    end = draw.draw(st.integers(0, len(data)))
    start = draw.draw(st.integers(0, end))
    assert crc32c(array(data), start, end) == google_crc32c.value(data[start:end])


@pytest.mark.parametrize(
    ("start", "end"), [(-1, 3), (0, 5), (3, 2), (5, 5), (0, 2**63 - 1), (-(2**63), 2), (4, -(2**63))]
)
def test_a_range_outside_the_buffer_has_none(start: int, end: int) -> None:
    assert crc32c(array(b"abcd"), start, end) == -1
