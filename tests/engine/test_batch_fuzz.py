"""Damaged and crafted batches: every reader gives a result or one of the engine's errors, and reads nothing else.

Each case is read twice, once with its first byte right behind a page that may not be touched and once with its
last byte right before one, in bytes of different values: a reader that leaves its bytes ends the process or
tells the two apart. What a reader accepts is compared with the plain reader's result, which believes every length.

`HYPOTHESIS_PROFILE=thorough` looks for longer. Streams of each codec are fuzzed in test_compression too.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from plain_batches import (
    CODECS,
    NOW,
    RECORDS,
    RECORDS_B,
    VECTOR_A,
    VECTOR_B,
    VECTOR_C,
    VECTOR_D,
    array,
    batch,
    body,
    entries,
    entry,
    records_in,
    sealed,
    varint,
)

from topicfs.engine import batch as batches
from topicfs.engine.batch.columns import Columns, records_of, unordered_columns
from topicfs.engine.batch.compression import compress, decompress
from topicfs.engine.errors import CorruptBatchError, InvalidRecordError
from topicfs.engine.format.batch_header import CODEC_MASK, CONTROL, LOG_APPEND_TIME
from topicfs.engine.kernels import decode as decoding
from topicfs.engine.kernels import scan as scanning
from topicfs.engine.kernels.decode import NO_APPEND_TIME
from topicfs.engine.kernels.scan import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    COLUMNS,
    COUNT,
    LAST_OFFSET,
    MAX_TIMESTAMP,
    POSITION,
    SIZE,
)
from topicfs.engine.record import Codec, Record

Bytes = npt.NDArray[np.uint8]

THOROUGH: Final = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
MODEST: Final = settings(max_examples=3000 if THOROUGH else 150)

PAGE: Final = mmap.PAGESIZE
ROOM: Final = 64 * PAGE


def _fenced() -> mmap.mmap:
    """Memory between two pages that may be neither read nor written."""
    memory = mmap.mmap(-1, ROOM + 2 * PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for page in (address, address + PAGE + ROOM):
        if protect(page, PAGE, 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    return memory


FENCED: Final = _fenced()


def placed(data: bytes, at_end: bool) -> Bytes:
    """The bytes, beside one of the closed pages. Placing others overwrites them."""
    room = np.frombuffer(FENCED, np.uint8, ROOM, PAGE)
    assert len(data) <= ROOM
    room[: len(data) + 64] = 0x00
    room[-len(data) - 64 :] = 0xFF
    inside = room[ROOM - len(data) :] if at_end else room[: len(data)]
    inside[:] = array(data)
    return inside


def attempt(read: Callable[[], Any], *allowed: type[Exception]) -> Any:
    """What a reader gives, or the error that it may raise. Others pass."""
    try:
        return read()
    except (CorruptBatchError, *allowed) as error:
        return type(error).__name__, str(error)


def refused(outcome: Any) -> bool:
    return isinstance(outcome, tuple) and len(outcome) == 2 and outcome[0] == "CorruptBatchError"


def read_all(buffer: Bytes, check: bool) -> list[Any]:
    """What every reader makes of the bytes."""
    table = attempt(lambda: batches.scan(buffer, check))
    if refused(table):
        return [table]
    found: list[Any] = [table.tolist()]
    found.append(attempt(lambda: [list(part.records()) for part in batches.columns(buffer, table)]))
    for row in table:
        found += [
            attempt(lambda row=row: batches.inspect(buffer, row)),
            attempt(lambda row=row: list(unordered_columns(buffer, row).records())),
            attempt(lambda row=row: batches.marker(buffer, row)),
            attempt(lambda row=row: batches.first_record_at_or_after(buffer, row, NOW, 3)),
            attempt(lambda row=row: batches.shape_of(row), InvalidRecordError),
            batches.emptied(row).tobytes(),
        ]
    return found


def read_twice(data: bytes, check: bool = True) -> list[Any]:
    """What every reader makes of the bytes, wherever they lie."""
    found = read_all(placed(data, at_end=False), check)
    assert read_all(placed(data, at_end=True), check) == found
    return found


def wrapped(value: int) -> int:
    """A sum as 64 bits hold it."""
    return (value + 2**63) % 2**64 - 2**63


def check_accepted(data: bytes) -> None:
    """What the readers accept of one batch is what the plain reader reads, and lies within its bytes."""
    source = array(data)
    table = attempt(lambda: batches.scan(source))
    if refused(table) or len(table) != 1:
        return
    row = table[0]
    parts = attempt(lambda: list(batches.columns(source, table)))
    inspection = attempt(lambda: batches.inspect(source, row))
    loose = attempt(lambda: unordered_columns(source, row))
    assert refused(inspection) == refused(loose)
    if refused(loose):
        assert refused(parts) or int(row[ATTRIBUTES]) & CONTROL or not row[COUNT]
        return
    stream = records_of(source, row).tobytes()
    append_time = int(row[MAX_TIMESTAMP]) if int(row[ATTRIBUTES]) & LOG_APPEND_TIME else None
    expected = [
        Record(
            each.value,
            each.key,
            wrapped(each.timestamp or 0) if append_time is None else append_time,
            each.headers,
            wrapped(each.offset),
        )
        for each in records_in(stream, int(row[BASE_OFFSET]), int(row[BASE_TIMESTAMP]))
    ]
    assert len(expected) == row[COUNT]
    assert list(loose.records()) == expected
    for start, length in (
        (loose.key_start, loose.key_length),
        (loose.value_start, loose.value_length),
        (loose.headers_start, loose.headers_length),
    ):
        assert (start >= 0).all()
        assert (start.astype(np.int64) + np.maximum(length, 0) <= loose.buffer.size).all()
        assert (length >= -1).all()
    assert inspection.null_keys == sum(each.key is None for each in expected)
    offsets = [each.offset for each in expected]
    rises = all(a < b for a, b in zip([row[BASE_OFFSET] - 1, *offsets], offsets, strict=False))
    if refused(parts):
        assert not rises or offsets[-1] > row[LAST_OFFSET]
    elif not int(row[ATTRIBUTES]) & CONTROL:
        assert [record for part in parts for record in part.records()] == expected
        assert rises
        rebuilt = batches.from_columns(loose, batches.PLAIN).data
        again = unordered_columns(rebuilt, batches.scan(rebuilt)[0])
        assert [(r.key, r.value, r.headers, r.timestamp) for r in again.records()] == [
            (r.key, r.value, r.headers, r.timestamp) for r in expected
        ]


# -- strategies -------------------------------------------------------------------------------------

LIES: Final = st.sampled_from(
    [
        -(2**31),
        -(2**31) + 1,
        -65536,
        -3,
        -2,
        -1,
        0,
        1,
        2,
        3,
        7,
        63,
        64,
        127,
        128,
        8192,
        2**30,
        2**31 - 2,
        2**31 - 1,
    ]
)
LONG_LIES: Final = LIES | st.sampled_from([-(2**63), -(2**62), 2**32, 2**62, 2**63 - 2, 2**63 - 1])
NUMBERS: Final = LONG_LIES.map(varint) | st.sampled_from(
    [
        b"\x80",
        b"\xff" * 4,
        b"\xff" * 5,
        b"\x80" * 9 + b"\x01",
        b"\xff" * 9 + b"\x7f",
        b"\xff" * 11,
        b"\x80\x00",
    ]
)
CRUMBS: Final = st.one_of(NUMBERS, NUMBERS, st.binary(max_size=4))


@st.composite
def damaged(draw: st.DrawFn, data: bytes, most: int = 4) -> bytes:
    """The bytes with some of them changed, cut, inserted or repeated."""
    made = bytearray(data)
    for _ in range(draw(st.integers(1, most))):
        at = draw(st.integers(0, len(made)))
        match draw(st.sampled_from(["flip", "flip", "set", "cut", "drop", "insert", "repeat"])):
            case "flip" if at < len(made):
                made[at] ^= 1 << draw(st.integers(0, 7))
            case "set" if at < len(made):
                made[at] = draw(st.integers(0, 255))
            case "cut":
                del made[at:]
            case "drop":
                del made[at : at + draw(st.integers(1, 4))]
            case "insert":
                made[at:at] = draw(CRUMBS)
            case "repeat":
                made[at:at] = made[at : at + draw(st.integers(1, 30))]
    return bytes(made)


@st.composite
def damaged_batches(draw: st.DrawFn) -> bytes:
    """A batch damaged in its records, in its stream, or in its header, whose size and checksum are right."""
    records = draw(RECORDS)
    codec = draw(CODECS)
    stream = entries(records, NOW)
    where = draw(st.sampled_from(["records", "stream", "header"]))
    if where == "records":
        stream = draw(damaged(stream))
    stream = compress(codec, array(stream)).tobytes()
    if where == "stream":
        stream = draw(damaged(stream))
    control = draw(st.sampled_from([0, 0, 0, CONTROL]))
    made = batch(stream, base_offset=3, attributes=codec | control, base_timestamp=NOW, count=len(records))
    if where == "header":
        header = bytearray(made[:61])
        for _ in range(draw(st.integers(1, 4))):
            header[draw(st.integers(0, 60))] = draw(st.integers(0, 255))
        header[16] = 2
        made = bytes(header) + made[61:]
    return sealed(made)


@st.composite
def crafted_batches(draw: st.DrawFn) -> bytes:
    """A batch of lies: counts, offsets and lengths that no writer gives, with a right size and checksum."""
    parts = []
    for place in range(draw(st.integers(0, 4))):
        match draw(st.sampled_from(["good", "lengths", "crumbs", "loose"])):
            case "good":
                content = body(RECORDS_B[place % 3], place, NOW)
            case "lengths":
                lies = ["key_length", "value_length", "header_count", "name_length", "header_value_length"]
                told = draw(st.dictionaries(st.sampled_from(lies), LIES, max_size=2))
                content = body(RECORDS_B[2], place, NOW, **told)
            case "crumbs":
                content = b"\0" + b"".join(draw(st.lists(CRUMBS, max_size=8)))
            case _:
                parts += draw(st.lists(CRUMBS, max_size=4))
                continue
        length = draw(st.none() | LIES | st.integers(len(content) - 2, len(content) + 2))
        parts.append(entry(content, length))
    codec = draw(st.sampled_from([0, 0, 0, *Codec, 5, 6, 7]))
    stream = b"".join(parts)
    if codec in list(Codec) and draw(st.booleans()):
        stream = compress(Codec(codec), array(stream)).tobytes()
    return batch(
        stream,
        base_offset=draw(st.sampled_from([0, 0, 5, -1, 2**62, 2**63 - 1, -(2**63)])),
        attributes=codec | draw(st.sampled_from([0, 0, 0x08, 0x10, 0x20, 0x30, 0x40, 0x7F80, -0x8000])),
        last_offset_delta=draw(st.just(len(parts)) | LIES),
        base_timestamp=draw(LONG_LIES),
        max_timestamp=draw(LONG_LIES),
        producer_id=draw(LONG_LIES),
        producer_epoch=draw(st.sampled_from([-(2**15), -1, 0, 2**15 - 1])),
        base_sequence=draw(LIES),
        count=draw(st.integers(0, 5) | LIES),
    )


# -- every reader -----------------------------------------------------------------------------------


@MODEST
@given(st.binary(max_size=400), st.booleans())
@example(b"", True)
@example(bytes(400), False)
@example(b"\xff" * 400, False)
def test_random_bytes(data: bytes, check: bool) -> None:
    read_twice(data, check)


@MODEST
@given(st.binary(max_size=200), st.integers(0, 3))
def test_random_bytes_with_a_header_that_passes(data: bytes, records: int) -> None:
    made = bytearray(bytes(61) + data)
    made[21:61] = (data + bytes(40))[:40]
    made[16] = 2
    made[23:27] = struct.pack(">i", records)
    made[57:61] = struct.pack(">i", records)
    read_twice(sealed(made))
    check_accepted(sealed(made))


@MODEST
@given(st.data())
def test_damaged_bytes_whose_checksum_is_not_repaired(draw: Any) -> None:
    data = draw.draw(damaged(VECTOR_A + VECTOR_B + VECTOR_C + VECTOR_D))
    read_twice(data)
    read_twice(data, check=False)


@settings(MODEST, max_examples=MODEST.max_examples * 2)
@given(damaged_batches())
def test_damaged_batches_whose_checksum_is_right(data: bytes) -> None:
    read_twice(data)
    check_accepted(data)


@settings(MODEST, max_examples=MODEST.max_examples * 2)
@given(crafted_batches())
def test_crafted_batches(data: bytes) -> None:
    read_twice(data)
    check_accepted(data)


@MODEST
@given(st.lists(crafted_batches() | damaged_batches() | st.sampled_from([VECTOR_A, VECTOR_C]), max_size=4))
def test_crafted_batches_one_behind_the_other(parts: list[bytes]) -> None:
    read_twice(b"".join(parts))


@MODEST
@given(crafted_batches(), st.data())
def test_crafted_batches_that_are_cut(data: bytes, draw: Any) -> None:
    read_twice(data[: draw.draw(st.integers(0, len(data)))])


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.SNAPPY])
def test_every_cut_of_the_records(codec: Codec) -> None:
    stream = entries(RECORDS_B, NOW)
    for cut in range(len(stream)):
        data = batch(compress(codec, array(stream[:cut])).tobytes(), attributes=codec, count=3)
        table, columns, *_ = read_twice(data)
        assert len(table) == 1
        assert refused(columns)


@pytest.mark.parametrize("value", [0x00, 0x01, 0x02, 0x03, 0x7E, 0x7F, 0x80, 0xFE, 0xFF])
def test_every_byte_of_the_records_with_an_extreme_value(value: int) -> None:
    for at in range(61, len(VECTOR_B)):
        data = sealed(VECTOR_B[:at] + bytes([value]) + VECTOR_B[at + 1 :])
        read_twice(data)
        check_accepted(data)


# -- kernels ----------------------------------------------------------------------------------------


@MODEST
@given(
    st.sampled_from([VECTOR_A + VECTOR_B, VECTOR_C * 3, b"", bytes(100)]),
    LONG_LIES,
    LONG_LIES,
    st.integers(0, 4),
)
def test_scan_of_any_range(data: bytes, start: int, end: int, rows: int) -> None:
    outcomes = []
    for at_end in (False, True):
        table = np.full((rows, COLUMNS), -99, np.int64)
        found, used, status = scanning.scan(placed(data, at_end), start, end, 0, 1, table)
        assert 0 <= found <= rows
        assert 0 <= used <= max(len(data), 0)
        assert (table[found:] == -99).all()
        assert status in range(7)
        outcomes.append((found, used, status, table[:found].tolist()))
    assert outcomes[0] == outcomes[1]


@MODEST
@given(st.binary(max_size=60), LONG_LIES, LONG_LIES, st.integers(0, 40))
def test_headers_of_any_range(data: bytes, start: int, end: int, room: int) -> None:
    outcomes = []
    for at_end in (False, True):
        spans = np.zeros(room + 8, np.int32)
        inside = spans[4 : 4 + room]
        count = decoding.decode_headers(placed(data, at_end), start, end, inside)
        assert -1 <= 4 * count <= room or count == -1
        assert not spans[:4].any()
        assert not spans[4 + room :].any()
        for name, name_size, value, value_size in inside[: 4 * max(count, 0)].reshape(-1, 4).tolist():
            assert 0 <= name <= name + name_size <= len(data)
            assert 0 <= value <= value + max(value_size, 0) <= len(data)
        outcomes.append((count, spans.tolist()))
    assert outcomes[0] == outcomes[1]


@MODEST
@given(st.lists(CRUMBS, max_size=20), LONG_LIES, LONG_LIES, LONG_LIES, LONG_LIES)
@example([], 0, 0, 2**63 - 1, 2**63 - 1)
def test_records_of_any_range_and_count(
    crumbs: list[bytes], start: int, end: int, count: int, row: int
) -> None:
    data = b"".join(crumbs)
    for at_end in (False, True):
        buffer = placed(data, at_end)
        found = Columns.empty(buffer, 3)
        status, index, _ = decoding.decode(
            buffer, start, end, count, 0, -1, 0, NO_APPEND_TIME, *found.arrays, row
        )
        assert status in (decoding.GOOD, *decoding.PROBLEMS)
        assert 0 <= index <= 3
        assert decoding.inspect(buffer, start, end, min(count, 1000), 0)[0] in (0, *decoding.PROBLEMS)


def test_negative_counts_do_not_move_rows_of_other_batches() -> None:
    source = array(batch(count=-1, last_offset_delta=0) + VECTOR_A)
    table = batches.scan(source)
    found = Columns.empty(source, 2)
    status, *_ = decoding.decode_batches(source, 0, table, 0, *found.arrays, 0)
    assert status != decoding.GOOD


# -- memory -----------------------------------------------------------------------------------------


@MODEST
@given(crafted_batches())
def test_memory_follows_the_bytes_and_not_what_they_declare(data: bytes) -> None:
    source = array(data)
    table = attempt(lambda: batches.scan(source))
    if refused(table):
        return
    tracemalloc.start()
    try:
        read_all(source, True)
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_bomb_of_headers_is_refused_at_the_limit(codec: Codec) -> None:
    stream = compress(codec, array(entry(b"\0\0\0\1\1" + varint(2**20) + bytes(2 << 20))))
    with pytest.raises(CorruptBatchError, match=f"more than {1 << 20}"):
        decompress(codec, stream, 1 << 20)
    row = batches.scan(array(batch(stream.tobytes(), attributes=codec)))[0]
    source = array(batch(stream.tobytes(), attributes=codec))
    with pytest.raises(CorruptBatchError, match=f"more than {1 << 20}"):
        records_of(source, row, limit=1 << 20)
    assert row[POSITION] == 0
    assert row[SIZE] == source.size
    assert int(row[ATTRIBUTES]) & CODEC_MASK == codec
