"""Small compressed batches in plain form: `topicfs.engine.batch.plain`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_batches import CODECS, RECORDS, array, batch, entries

from topicfs.engine import batch as batches
from topicfs.engine.batch import plain as plaining
from topicfs.engine.batch.compression import compress
from topicfs.engine.batch.plain import plain
from topicfs.engine.batch.table import scan
from topicfs.engine.errors import CorruptBatchError
from topicfs.engine.format.batch_header import CONTROL
from topicfs.engine.kernels.scan import COUNT
from topicfs.engine.record import Codec, Record

KINDS = st.tuples(RECORDS, CODECS, st.booleans())
"""Records, their codec, and whether the batch is a control batch, which is passed over."""


def packed(kinds: list[tuple[list[Record], Codec, bool]]) -> bytes:
    data, base = b"", 0
    for records, codec, control in kinds:
        times = [record.timestamp or 0 for record in records]
        data += batch(
            compress(codec, array(entries(records, times[0]))).tobytes(),
            base_offset=base,
            attributes=codec | (CONTROL if control else 0),
            base_timestamp=times[0],
            max_timestamp=max(times),
            count=len(records),
        )
        base += len(records)
    return data


def records_of(data: bytes) -> list[Record]:
    source = array(data)
    return [record for part in batches.columns(source, scan(source)) for record in part.records()]


@given(kinds=st.lists(KINDS, min_size=1, max_size=8), most=st.integers(1, 500), large=st.integers(60, 500))
def test_records_are_the_same_in_plain_form(
    kinds: list[tuple[list[Record], Codec, bool]], most: int, large: int
) -> None:
    data = packed(kinds)
    source = array(data)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plaining, "_LARGE", large)
        found = [
            record
            for buffer, table, origin in plain(source, scan(source), 0, most)
            for part in batches.columns(buffer, table, origin)
            for record in part.records()
        ]
    assert found == records_of(data)


def test_small_batches_become_one_buffer_and_plain_ones_are_not_copied() -> None:
    records = [Record(b"value", timestamp=1)] * 3
    source = array(packed([(records, Codec.LZ4, False)] * 5))
    ((buffer, table, origin),) = plain(source, scan(source), 0, 1 << 20)
    assert (len(table), origin) == (5, 0)
    assert len(list(batches.columns(buffer, table, origin))) == 1
    plainly = array(packed([(records, Codec.NONE, False)] * 5))
    ((buffer, _, _),) = plain(plainly, scan(plainly), 0, 1 << 20)
    assert buffer is plainly


def test_too_many_records_for_the_decompressed_bytes_are_refused() -> None:
    records = [Record(b"value", timestamp=1)] * 3
    source = array(packed([(records, Codec.LZ4, False)] * 2))
    table = scan(source)
    table[1, COUNT] = 3_000
    with pytest.raises(CorruptBatchError, match="too many for its bytes"):
        [list(batches.columns(*each)) for each in plain(source, table, 0, 1 << 20)]
