"""The formats in plain Python, written from their description alone: what the kernels are compared with."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from topicfs.engine import batch as batches
from topicfs.engine.batch.columns import Columns
from topicfs.engine.batch.table import Longs
from topicfs.engine.kernels.encode import stamp
from topicfs.engine.record import MAX_INT64, Codec, Header, Record
from topicfs.fs.formats import Format, labels_of

Bytes = npt.NDArray[np.uint8]

NOW = 1_700_000_000_000
TOPIC, PARTITION = "orders", 3
LABELS = labels_of(TOPIC, PARTITION)


def array(data: bytes | bytearray) -> Bytes:
    return np.frombuffer(data, np.uint8)


# -- batches ------------------------------------------------------------------------------------------


def batch_of(records: Sequence[Record], base_offset: int = 0, codec: Codec = Codec.NONE) -> Bytes:
    """One batch of these records from `base_offset` on."""
    made = batches.from_records(records, NOW, batches.Shape(codec=codec)).data
    stamp(made, 0, base_offset, 0)
    return made


def placed(records: Sequence[Record], base_offset: int = 0) -> list[Record]:
    """The records as they are read from a batch at `base_offset`."""
    return [
        Record(r.value, r.key, NOW if r.timestamp is None else r.timestamp, r.headers, base_offset + i)
        for i, r in enumerate(records)
    ]


def rendered(
    fmt: Format, data: Bytes, table: Longs, origin: int, first: int, end: int, topic: str, partition: int
) -> Bytes:
    """The records in [first, end) of these batches, in an array of their size."""
    sizes = fmt.sizes(data, table, origin, labels_of(topic, partition), first, end)
    out = np.empty(int(sizes.sum()), np.uint8)
    assert fmt.render(data, table, origin, first, end, out, 0, labels_of(topic, partition)) == out.size
    return out


def text_of(
    fmt: Format, data: Bytes, first_offset: int = 0, end_offset: int = MAX_INT64, check: bool = True
) -> bytes:
    """The text of batches; `check`: sizes and rendering into an array that fits exactly agree with it."""
    table = batches.scan(data)
    text = rendered(fmt, data, table, 0, first_offset, end_offset, TOPIC, PARTITION)
    if check:
        sizes = fmt.sizes(data, table, 0, LABELS, first_offset, end_offset)
        assert sizes.sum() == text.size
        guarded = np.full(text.size + 64, 0xA5, np.uint8)
        position = 32
        for row, size in zip(table, sizes, strict=True):
            behind = fmt.render(
                data, row.reshape(1, -1), 0, first_offset, end_offset,
                guarded[: 32 + text.size], position, LABELS,
            )  # fmt: skip
            assert behind == position + size
            position = behind
        assert guarded[32:-32].tobytes() == text.tobytes()
        assert (guarded[:32] == 0xA5).all()
        assert (guarded[-32:] == 0xA5).all()
    return text.tobytes()


def records_in(columns: Columns) -> list[Record]:
    return list(columns.records())


# -- writing ------------------------------------------------------------------------------------------


COPY_ESCAPES = {8: b"\\b", 9: b"\\t", 10: b"\\n", 11: b"\\v", 12: b"\\f", 13: b"\\r", 92: b"\\\\"}


def copy_field(data: bytes | None) -> bytes:
    if data is None:
        return b"\\N"
    return b"".join(COPY_ESCAPES.get(byte, bytes([byte])) for byte in data)


def json_member(name: str, data: bytes | None) -> tuple[str, str | None]:
    if data is None:
        return name, None
    try:
        return name, data.decode()
    except UnicodeDecodeError:
        return f"{name}_base64", base64.b64encode(data).decode()


def json_header(header: Header) -> dict[str, Any]:
    name, value = header
    return dict([json_member("key", name.encode("utf-8", "surrogateescape")), json_member("value", value)])


def line_of(fmt: Format, record: Record) -> bytes:
    """The line that a record becomes."""
    if fmt == Format.TXT:
        return (record.value or b"") + b"\n"
    if fmt == Format.TSV:
        return copy_field(record.key) + b"\t" + copy_field(record.value) + b"\n"
    members: dict[str, Any] = {"topic": TOPIC, "partition": PARTITION, "offset": record.offset}
    members["timestamp"] = record.timestamp
    members |= dict([json_member("key", record.key), json_member("value", record.value)])
    members["headers"] = [json_header(header) for header in record.headers]
    # json leaves DEL and what is beyond ASCII bare, and writes short escapes where there are some, as we do.
    return json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def lines_of(fmt: Format, records: Sequence[Record]) -> bytes:
    return b"".join(line_of(fmt, record) for record in records)


# -- reading ------------------------------------------------------------------------------------------


COPY_LETTERS = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
COPY_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|(.))", re.DOTALL)


def _copy_escape(found: re.Match[bytes]) -> bytes:
    octal, digits, other = found.groups()
    if octal is not None:
        return bytes([int(octal, 8) & 0xFF])
    if digits is not None:
        return bytes([int(digits, 16)])
    return COPY_LETTERS.get(other, other)


def copy_value(raw: bytes) -> bytes | None:
    """What a field of COPY's text format stands for. Null is told before a backslash is looked at."""
    return None if raw == b"\\N" else COPY_ESCAPE.sub(_copy_escape, raw)


def copy_fields(line: bytes) -> list[bytes | None]:
    """The fields of a row of COPY's text format; a TAB behind a backslash is data."""
    raw = re.findall(rb"((?:[^\\\t]|\\.)*)(?:\t|$)", line + b"\t", re.DOTALL)[:-1]
    return [copy_value(field) for field in raw]


# -- strategies ---------------------------------------------------------------------------------------


TIMES = st.one_of(st.just(-1), st.integers(0, 10), st.integers(NOW - 1000, NOW + 1000), st.integers(0, 2**62))
AWKWARD = st.sampled_from(
    [b"\\", b'"', b"\t", b"\n", b"\r", b"\0", b"\x1f", b" ", b"\x7f", b"\x80", b"\xff", b"\xc0", "é".encode(),
     "\u2028".encode(), "\ud7ff\ue000\uffff".encode(), "😀\U0010ffff".encode(), b"\xed\xa0\x80", b"\\N", b"N",
     b"\xf4\x90\x80\x80", b"plain text that is longer than one step"]
)  # fmt: skip
DATA = st.one_of(
    st.binary(max_size=40), st.text(max_size=40).map(str.encode), st.lists(AWKWARD, max_size=12).map(b"".join)
)
FIELD = st.none() | DATA
NAME = DATA.map(lambda data: data.decode("utf-8", "surrogateescape"))
HEADERS = st.lists(st.tuples(NAME, FIELD), max_size=3).map(tuple)
RECORD = st.builds(Record, value=FIELD, key=FIELD, timestamp=TIMES, headers=HEADERS)
RECORDS = st.lists(RECORD, min_size=1, max_size=6)
CODECS = st.sampled_from(list(Codec))
