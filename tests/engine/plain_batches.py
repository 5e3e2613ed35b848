"""Record batches in plain Python, written from the format alone: what the engine's batches are compared with.

Each field of a batch or record can be given as it should not be, so that damaged batches are built here too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import google_crc32c
import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from topicfs.engine.record import MAX_INT32, Codec, Header, Record

HEADER = struct.Struct(">qiibIhiqqqhii")
FIELDS = (
    "base_offset", "size", "leader_epoch", "magic", "crc", "attributes", "last_offset_delta",
    "base_timestamp", "max_timestamp", "producer_id", "producer_epoch", "base_sequence", "count",
)  # fmt: skip

NOW = 1_700_000_000_000
PRODUCER = {"producer_id": 4000, "producer_epoch": 3, "base_sequence": 7}

VECTOR_A = bytes.fromhex(
    "00000000000000000000003a0000000002716a618900000000000000000000000003e800000000000003e8ffffffffffffffff"
    "ffffffffffff0000000110000000026b027600"
)
VECTOR_B = bytes.fromhex(
    "0000000000000005000000550000000902f2a0a8ce0000000000020000018bcfe568000000018bcfe568050000000000000fa0"
    "0003000000070000000314000000046b310476310010000a0201047632001e000504046b33010402680278026e01"
)
VECTOR_C = bytes.fromhex(
    "000000000000000800000042000000090263571fca0030000000000000018bcfe5680a0000018bcfe5680a0000000000000fa0"
    "0003ffffffff000000012000000008000000010c00000000000f00"
)
VECTOR_D = bytes.fromhex(
    "00000000000000050000003100000009027001c89a000000000002ffffffffffffffff0000018bcfe568050000000000000fa0"
    "00030000000700000000"
)
RECORDS_A = (Record(b"v", b"k", 1000),)
RECORDS_B = (
    Record(b"v1", b"k1", NOW),
    Record(b"v2", None, NOW + 5),
    Record(None, b"k3", NOW - 3, (("h", b"x"), ("n", None))),
)


def array(data: bytes | bytearray) -> npt.NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)


# -- writing ----------------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    folded = value << 1 if value >= 0 else (-value << 1) - 1
    groups = [folded & 0x7F]
    while folded := folded >> 7:
        groups.append(folded & 0x7F)
    return bytes(group | 0x80 for group in groups[:-1]) + bytes(groups[-1:])


def field(data: bytes | None, length: int | None = None) -> bytes:
    """A length and its bytes; `length` says another one than the true."""
    true = -1 if data is None else len(data)
    return varint(true if length is None else length) + (data or b"")


def body(
    record: Record,
    place: int = 0,
    base_timestamp: int = 0,
    key_length: int | None = None,
    value_length: int | None = None,
    header_count: int | None = None,
    name_length: int | None = None,
    header_value_length: int | None = None,
) -> bytes:
    """What follows a record's length. The lengths, where they are given, are lies."""
    parts = [b"\0", varint((record.timestamp or 0) - base_timestamp), varint(place)]
    parts += [field(record.key, key_length), field(record.value, value_length)]
    parts.append(varint(len(record.headers) if header_count is None else header_count))
    for name, value in record.headers:
        parts += [
            field(name.encode("utf-8", "surrogateescape"), name_length),
            field(value, header_value_length),
        ]
    return b"".join(parts)


def entry(content: bytes, length: int | None = None) -> bytes:
    """A record of its body."""
    return varint(len(content) if length is None else length) + content


def entries(records: Sequence[Record], base_timestamp: int) -> bytes:
    return b"".join(entry(body(each, place, base_timestamp)) for place, each in enumerate(records))


def sealed(batch: bytes | bytearray, size: bool = True) -> bytes:
    """The same batch with the size field and checksum that its bytes ask for."""
    done = bytearray(batch)
    if size:
        struct.pack_into(">i", done, 8, len(done) - 12)
    struct.pack_into(">I", done, 17, google_crc32c.value(bytes(done[21:])))
    return bytes(done)


def batch(
    stream: bytes = b"",
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    magic: int = 2,
    attributes: int = 0,
    last_offset_delta: int | None = None,
    base_timestamp: int = 0,
    max_timestamp: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    count: int = 1,
) -> bytes:
    """A batch around these record bytes, with the right size and checksum."""
    if last_offset_delta is None:
        last_offset_delta = max(count - 1, 0)
    return sealed(
        HEADER.pack(
            base_offset, 0, leader_epoch, magic, 0, attributes, last_offset_delta,
            base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, count,
        )
        + stream
    )  # fmt: skip


def batch_of(records: Sequence[Record], **fields: int) -> bytes:
    """The plain batch that these records make; `fields` are those of `batch`."""
    times = [record.timestamp or 0 for record in records]
    fields = {
        "base_timestamp": times[0],
        "max_timestamp": max(times),
        "count": len(records),
    } | fields
    return batch(entries(records, fields["base_timestamp"]), **fields)


# -- reading ----------------------------------------------------------------------------------------


def header_of(data: bytes) -> dict[str, int]:
    return dict(zip(FIELDS, HEADER.unpack_from(data), strict=True))


def crc_is_right(data: bytes) -> bool:
    return header_of(data)["crc"] == google_crc32c.value(bytes(data[21:]))


def _number(data: bytes, at: int) -> tuple[int, int]:
    folded = shift = 0
    while True:
        folded |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return (folded >> 1) ^ -(folded & 1), at
        shift += 7


def _field(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _number(data, at)
    return (None, at) if length < 0 else (data[at : at + length], at + length)


def records_in(stream: bytes, base_offset: int, base_timestamp: int) -> Iterator[Record]:
    """The records of a good stream; it believes every length."""
    at = 0
    while at < len(stream):
        length, at = _number(stream, at)
        end = at + length
        delta, at = _number(stream, at + 1)
        place, at = _number(stream, at)
        key, at = _field(stream, at)
        value, at = _field(stream, at)
        count, at = _number(stream, at)
        headers: list[Header] = []
        for _ in range(count):
            name, at = _field(stream, at)
            assert name is not None
            header_value, at = _field(stream, at)
            headers.append((name.decode("utf-8", "surrogateescape"), header_value))
        assert at == end
        yield Record(value, key, base_timestamp + delta, tuple(headers), base_offset + place)


# -- strategies -------------------------------------------------------------------------------------

TIMES = st.one_of(st.just(-1), st.integers(0, 10), st.integers(NOW - 1000, NOW + 1000), st.integers(0, 2**62))
FIELD = st.none() | st.binary(max_size=20) | st.binary(min_size=60, max_size=140)
NAMES = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
HEADERS = st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=12)), max_size=4).map(tuple)
RECORD = st.builds(Record, value=FIELD, key=FIELD, timestamp=TIMES, headers=HEADERS)
RECORDS = st.lists(RECORD, min_size=1, max_size=12)
CODECS = st.sampled_from(list(Codec))
PRODUCERS = st.fixed_dictionaries(
    {
        "producer_id": st.integers(0, 2**63 - 1),
        "producer_epoch": st.integers(0, 2**15 - 1),
        "base_sequence": st.integers(0, MAX_INT32),
        "transactional": st.booleans(),
    }
) | st.just({})
