"""Headers and markers read without a kernel: they say what the kernels say."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from test_scan import VECTOR_A, VECTOR_B, batch, table_of

from topicfs.engine import batch as batches
from topicfs.engine.batch import ABORT, COMMIT
from topicfs.engine.errors import CorruptBatchError
from topicfs.engine.format.batch_header import HEADER_SIZE, headers, marker_kind
from topicfs.engine.kernels.scan import MAX_TIMESTAMP


@pytest.fixture
def opened(tmp_path: Path) -> int:
    """A file that is empty."""
    return os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)


def test_a_header_is_read_alike_with_and_without_a_kernel(opened: int) -> None:
    data = VECTOR_A + VECTOR_B + b"".join(batch(100 + at, [at, 7], leader_epoch=3) for at in range(0, 400, 2))
    os.pwrite(opened, data, 0)
    rows = []
    for position, each in headers(opened, 0, len(data)):
        offsets = each.base_offset, each.last_offset
        rows.append(
            [position, each.size, *offsets, each.leader_epoch, each.attributes, *each[7:], each.magic]
        )
    assert rows == table_of(data).tolist()
    assert rows[-1][MAX_TIMESTAMP] == 398


def test_headers_end_where_a_batch_is_not_whole(opened: int) -> None:
    data = VECTOR_A + VECTOR_B
    for size in range(len(data)):
        os.pwrite(opened, data, 0)
        assert len(list(headers(opened, 0, size))) == int(size >= len(VECTOR_A))
    for at, value in ((8 + len(VECTOR_A), 0x7F), (16 + len(VECTOR_A), 1), (23 + len(VECTOR_A), 0xFF)):
        damaged = bytearray(data)
        damaged[at] = value
        os.pwrite(opened, damaged, 0)
        assert [position for position, _ in headers(opened, 0, len(data))] == [0]


@pytest.mark.parametrize("kind", [ABORT, COMMIT])
def test_a_marker_is_read_alike_with_and_without_a_kernel(opened: int, kind: int) -> None:
    made = batches.end_marker(4000, 3, kind, 9, 1000).data
    os.pwrite(opened, made.tobytes(), 0)
    ((position, header),) = headers(opened, 0, made.size)
    assert marker_kind(opened, position, header) == kind
    found = batches.marker(made, batches.scan(made)[0])
    assert found is not None
    assert found.kind == kind


def test_a_control_batch_without_a_marker_is_none_or_damaged(opened: int) -> None:
    made = batches.end_marker(4000, 3, ABORT, 9, 1000).data
    emptied = batches.emptied(batches.scan(made)[0])
    os.pwrite(opened, emptied.tobytes(), 0)
    ((position, header),) = headers(opened, 0, emptied.size)
    assert marker_kind(opened, position, header) is None
    os.pwrite(opened, made.tobytes(), 0)
    ((position, header),) = headers(opened, 0, made.size)
    os.pwrite(opened, np.full(made.size - HEADER_SIZE, 0xFF, np.uint8).tobytes(), HEADER_SIZE)
    with pytest.raises(CorruptBatchError, match="offset 0 holds no marker"):
        marker_kind(opened, position, header)
