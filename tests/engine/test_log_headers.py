"""Walking along the headers of a log without its records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_scan import VECTOR_A, VECTOR_B, batch, table_of

from topicfs.engine.errors import CorruptBatchError
from topicfs.engine.format.paths import log_file
from topicfs.engine.record import now_ms
from topicfs.engine.segment import batch_file
from topicfs.engine.segment.batch_file import BatchFile
from topicfs.engine.segment.descriptors import Descriptors
from topicfs.engine.segment.segment import Segment
from topicfs.engine.segment.settings import SegmentSettings

MANY = VECTOR_A + VECTOR_B + b"".join(batch(100 + at, [at, 7], leader_epoch=3) for at in range(0, 400, 2))


def log_of(directory: Path, data: bytes) -> BatchFile:
    (directory / log_file(0)).write_bytes(data)
    return Segment(directory, 0, SegmentSettings(), now_ms, Descriptors()).log


@pytest.mark.parametrize("chunk", [61, 100, 1000, 65536])
def test_headers_are_those_that_a_scan_of_all_bytes_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    """Also of batches that are larger than what is read at once."""
    monkeypatch.setattr(batch_file, "_HEADERS_CHUNK", chunk)
    log = log_of(tmp_path, MANY)
    assert np.concatenate(list(log.headers(0, len(MANY)))).tolist() == table_of(MANY).tolist()


def test_headers_end_where_a_batch_is_not_whole_while_the_log_grows(tmp_path: Path) -> None:
    data = VECTOR_A + VECTOR_B
    log = log_of(tmp_path, data)
    for size in range(len(data)):
        found = [int(row[0]) for table in log.headers(0, size, growing=True) for row in table]
        assert found == [0] * int(size >= len(VECTOR_A))
    with pytest.raises(CorruptBatchError, match="the bytes end inside a batch"):
        list(log.headers(0, len(data) - 1))


@pytest.mark.parametrize(("at", "value"), [(8, 0x7F), (16, 1), (23, 0xFF), (7, 0)])
def test_a_damaged_header_is_an_error_and_the_end_of_a_log_that_grows(
    tmp_path: Path, at: int, value: int
) -> None:
    data = bytearray(batch(5, [1]) + batch(6, [2]))
    data[len(data) // 2 + at] = value
    log = log_of(tmp_path, bytes(data))
    with pytest.raises(CorruptBatchError):
        list(log.headers(0, len(data)))
    if at != 7:  # an offset that does not rise is no reason to end there
        assert sum(len(table) for table in log.headers(0, len(data), growing=True)) == 1
