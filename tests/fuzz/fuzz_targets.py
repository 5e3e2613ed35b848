"""The targets of the search in bytes: each reads bytes that somebody made up, by one of the engine's readers.

A target raises `EngineError` where it refuses the bytes, and anything else where there is a fault: another exception,
two readers that do not agree, what does not come back as it was written, or memory in proportion to a number in the
bytes. It returns what it has found, for the search to tell new bytes from known ones: see `fuzz_search.py`.
"""

from __future__ import annotations

import io
import json
import socket
import struct
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

TESTS: Final = Path(__file__).parents[1]
sys.path += [str(TESTS), *(str(TESTS / folder) for folder in ("engine", "fs"))]

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from fuzz_files import FILES, shape  # noqa: E402 - helpers of other folders
from kafka.protocol.admin import DescribeConfigsRequest  # noqa: E402
from kafka.protocol.consumer import ListOffsetsRequest  # noqa: E402
from kafka.protocol.metadata import MetadataRequest  # noqa: E402
from kafka.protocol.producer import InitProducerIdRequest  # noqa: E402
from plain_batches import VECTOR_A, VECTOR_B, VECTOR_C, VECTOR_D, array, sealed  # noqa: E402
from plain_formats import NOW, copy_fields, records_in, text_of  # noqa: E402
from test_batch_fuzz import check_accepted, placed, read_twice, refused  # noqa: E402

from topicfs.engine import batch as batches  # noqa: E402
from topicfs.engine.batch.compression import compress, decompress  # noqa: E402
from topicfs.engine.batch.table import Bytes  # noqa: E402
from topicfs.engine.cluster import records as metadata  # noqa: E402
from topicfs.engine.cluster.image import Image  # noqa: E402
from topicfs.engine.column_files import files as column_files  # noqa: E402
from topicfs.engine.errors import InvalidNameError  # noqa: E402
from topicfs.engine.format import paths  # noqa: E402
from topicfs.engine.format.messages import OF_TOPICS  # noqa: E402
from topicfs.engine.groups import records as groups  # noqa: E402
from topicfs.engine.link.answer import partitions_of  # noqa: E402
from topicfs.engine.link.client import ClientSettings  # noqa: E402
from topicfs.engine.link.connection import Address, Connection  # noqa: E402
from topicfs.engine.messages import reading  # noqa: E402
from topicfs.engine.record import Codec  # noqa: E402
from topicfs.engine.transactions import log as transactions  # noqa: E402
from topicfs.fs import key_names, positions, selections  # noqa: E402
from topicfs.fs.formats import Format  # noqa: E402

REQUESTS: Final = (
    ListOffsetsRequest[7],
    MetadataRequest[12],
    InitProducerIdRequest[4],
    DescribeConfigsRequest[4],
)
"""The requests whose answers are read as kafka-python does it."""

Target = Callable[[bytes], Any]
_LIMIT: Final = 1 << 20
_OFFSETS, _TRANSACTIONS = "__consumer_offsets", "__transaction_state"


def read_batches(data: bytes) -> Any:
    """The first byte tells whether the size and the checksum are made right, so that what is behind them is reached."""
    rest = data[1:]
    if data[:1] != b"\0" and len(rest) >= 61:
        rest = sealed(rest[:16] + b"\2" + rest[17:])
        check_accepted(rest)
    return [_kind(each) for each in read_twice(rest)]


def _kind(outcome: Any) -> str:
    """What an answer has in common with others."""
    return shape(outcome[1]) if refused(outcome) else type(outcome).__name__


def read_streams(data: bytes) -> Any:
    """A compressed stream, whose codec the first byte names."""
    codec = Codec(1 + data[0] % 4) if data else Codec.GZIP
    found = decompress(codec, array(data[1:]), _LIMIT)
    assert found.size <= _LIMIT
    assert decompress(codec, compress(codec, found), _LIMIT).tobytes() == found.tobytes()
    return found.size.bit_length()


def read_lines(data: bytes) -> Any:
    """Lines, whose format the first byte names: what is taken is what plain Python reads, and is shown as it was."""
    form = list(Format)[data[0] % len(Format)] if data else Format.TXT
    lines = data[1:]
    found = form.parse(placed(lines, at_end=True), NOW)
    records = records_in(found.columns)
    taken = lines[: found.used].removesuffix(b"\n").split(b"\n") if found.used else []
    assert len(taken) == len(records)
    if form == Format.TSV:
        assert [[each.key, each.value] for each in records] == [copy_fields(line) for line in taken]
    if form == Format.JSONL:
        for line, record in zip(taken, records, strict=True):
            _agrees(json.loads(line.decode()), record)
    if records:
        text = text_of(Format.JSONL, batches.from_records(records, NOW).data)
        again = records_in(Format.JSONL.parse(array(text), NOW).columns)
        assert [(r.key, r.value, r.headers) for r in again] == [(r.key, r.value, r.headers) for r in records]
    return len(records).bit_length(), None if found.error is None else found.error.reason


def _agrees(line: dict[str, Any], record: Any) -> None:
    for name, data in (("key", record.key), ("value", record.value)):
        text = line.get(name)
        if isinstance(text, str):
            assert data == text.encode("utf-8", "surrogatepass"), (name, text, data)
    assert "timestamp" not in line or line["timestamp"] is None or record.timestamp == line["timestamp"]


def read_messages(data: bytes) -> Any:
    """A key and a value of one of Kafka's own topics: topic, size of the key, key, value."""
    topics = list(OF_TOPICS)
    topic = topics[data[0] % len(topics)] if data else topics[0]
    size = data[1] if len(data) > 1 else 0
    key, value = data[2 : 2 + size], data[2 + size :] or None
    found = reading.message(topic, key, value)
    if topic == _OFFSETS:
        entry = groups.entry_of(key, value)
        if isinstance(entry, groups.PositionEntry | groups.GroupEntry) and not _is_foreign(entry):
            written = groups.record_of(entry)
            assert groups.entry_of(written.key or b"", written.value) == entry
    if topic == _TRANSACTIONS and found[0] is not None and found[1] is not None:
        said = transactions.read(found[0]["data"]["transactionalId"], found[1]["data"])
        told = reading.message(topic, key, transactions.value_of(said))[1]
        assert told is not None
        # Where there was no transaction, we write that there are no partitions, as a broker does.
        if said.state != transactions.TransactionState.EMPTY:
            again = transactions.read(said.transactional_id, told["data"])
            assert set(again.partitions) == set(said.partitions)
            assert replace(again, partitions=said.partitions) == said
    return tuple(None if each is None else (each.get("type"), each.get("version")) for each in found)


def _is_foreign(entry: groups.PositionEntry | groups.GroupEntry) -> bool:
    """Whether we never write such an entry: a group of others, with members or a name as we have none."""
    return isinstance(entry, groups.GroupEntry) and entry.metadata is not None


def read_metadata(data: bytes) -> Any:
    """Records of `__cluster_metadata`, each behind its size in one byte."""
    found, at = [], 0
    while at < len(data):
        value = data[at + 1 : at + 1 + data[at]]
        at += 1 + data[at]
        record = metadata.read(value)
        _, shown = reading.message("__cluster_metadata", None, value)
        if isinstance(record, metadata.TopicRecord) and shown is not None:
            assert shown["data"]["name"] == record.name
        if record is not None:
            found.append(record)
    image = Image()
    image.apply_all(found)
    return [type(each).__name__ for each in found], len(image.cluster(1).topics)


def read_answers(data: bytes) -> Any:
    """A leader's answer to a fetch. What is said to be its batches lies in it."""
    found = [partitions_of(placed(data, at_end=each), 4) for each in (False, True)]
    assert [str(each) for each in found[0]] == [str(each) for each in found[1]] or found[0]
    sizes = [int(part.records.size) for part in found[1]]
    assert sum(sizes) <= len(data)
    for part in found[1]:
        batches.scan_whole(part.records)
    return [size.bit_length() for size in sizes], [part.error_code for part in found[1]]


def read_brokers(data: bytes) -> Any:
    """A broker's answer to a request, which the first byte names."""
    request = REQUESTS[data[0] % len(REQUESTS) if data else 0]()
    request.with_header(correlation_id=0, client_id="")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = Connection(Address("broker", 1), ours, ClientSettings())
        connection._waiting.append(request)
        body = bytes(4) + data[1:]
        theirs.sendall(struct.pack(">i", len(body)) + body)
        theirs.close()
        return type(connection.receive()).__name__


class Opened:
    """Bytes as an open file."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, position: int, into: Bytes) -> int:
        """Fill the buffer from a position on."""
        found = np.frombuffer(self._data[position : position + into.size], np.uint8)
        into[: found.size] = found
        return int(found.size)


def read_columns(data: bytes) -> Any:
    """A file of Arrow or of Parquet, which the first byte names."""
    kind = COLUMNS[data[0] % len(COLUMNS)] if data else COLUMNS[0]
    rows = [len(rows) for rows in column_files.rows_in(kind, Opened(data[1:]), len(data[1:]))]
    return len(rows), sum(rows).bit_length()


def read_names(data: bytes) -> Any:
    """A name in the tree: what it stands for is the same by the name that is listed for it."""
    text = data.decode("utf-8", "surrogateescape")
    told: list[Any] = [
        selections.parse_offset(text),
        selections.parse_offsets(text),
        selections.parse_times(text),
        selections.parse_period(text),
        selections.parse_hour(text),
        selections.parse_base(text),
        selections.parse_sealed(text),
    ]
    day = selections.parse_day(text)
    if day is not None:
        assert selections.parse_day(selections.day_name(day)) == day
    named = key_names.parse_key_name(key_names.name_of(data))
    assert named is not None
    assert named.key in (data, None)
    assert len(key_names.name_of(data).encode()) <= key_names.MOST
    told.append(key_names.parse_key_name(text))
    try:
        topic, number, suffix = paths.parse_partition_directory(text)
    except InvalidNameError:
        told.append(None)
    else:
        assert suffix or paths.partition_directory(topic, number) == text
    told.append(positions.parse_position(text))
    return [type(each).__name__ for each in told]


def read_file(name: str) -> Target:
    """The target of a file of the backing directory."""
    return FILES[name].check


# -- what a search begins with -----------------------------------------------------------------------------

_LINES: Final = (
    b"\0a\nb\n",
    b"\1k\\tv\tv\\x41\\101\n\\N\t\\N\n",
    b'\2{"key":"k","value":null,"timestamp":7,"partition":1,"headers":[{"key":"h","value":"x"}]}\n',
    b'\2{"key_base64":"AA==","value_base64":"/w==","headers":{"a":"\\ud83d\\ude00"}}\n',
    b'\2{"topic":"t","offset":1,"value":{"a":[1,2,{"b":1e9}]}}\n',
)
_NAMES: Final = (
    b"42", b"100-199", b"-10", b"last-1d12h", b"2026-05-01--2026-05-02T0630Z", b"+10000-01-01", b"1700000000000",
    b"2026-05-01T06:30:00.123+02:00", b"00000000000000000042-00000000000000000050", b"a%3Ab%@none", b"%", b"orders-0",
    b"orders-0.0123456789abcdef0123456789abcdef-delete", b"500 if 480", b"earliest if none", b"\xff\x00%zz",
)  # fmt: skip


COLUMNS: Final = ("arrow", "parquet")


def _column_seeds() -> Iterable[bytes]:
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    table = pa.table(
        {
            "key": pa.array(["k", None, "k"]).dictionary_encode(),
            "value": pa.array([b"one", None, b"three"], pa.binary()),
            "headers": pa.array([[{"key": "a", "value": b"x"}], None, []], headers),
            "timestamp": pa.array([1, 2, None], pa.timestamp("ms")),
        }
    )
    for compression in (None, "lz4", "zstd"):
        for opened in (pa.ipc.new_file, pa.ipc.new_stream):
            sink = io.BytesIO()
            with opened(
                sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)
            ) as writer:
                writer.write_table(table)
            yield b"\0" + sink.getvalue()
        for version in ("1.0", "2.0"):
            sink = io.BytesIO()
            pq.write_table(table, sink, compression=compression or "none", data_page_version=version)
            yield b"\1" + sink.getvalue()


_BROKERS: Final = (
    b"\2\0" + struct.pack(">ihqh", 0, 0, 7, 1) + b"\0",
    b"\0\0" + bytes(4) + b"\2\2t\2" + struct.pack(">ihqqi", 0, 0, 1, 2, 3) + b"\0\0\0",
    b"\1\0" + bytes(4) + b"\1\2c" + bytes(4) + b"\1\0",
    b"\3\0" + bytes(4) + b"\1\0",
)


def _message_seeds() -> Iterable[bytes]:
    for position in (None, groups.Position(7, 8, 1, "m")):
        record = groups.record_of(groups.PositionEntry("g", ("t", 0), position))
        yield _message_seed(_OFFSETS, record.key or b"", record.value or b"")
    member = groups.Member("w", "w-1", 10, frozenset({"t"}), frozenset({("t", 0)}))
    for members in ({}, {"w": member}):
        entry = groups.GroupEntry("g", groups.GroupMetadata(1, "range", 5, members))
        record = groups.record_of(entry)
        yield _message_seed(_OFFSETS, record.key or b"", record.value or b"")
    state = transactions.TransactionState.ONGOING
    said = transactions.Transaction("x", 4, 1, 10, state, (("t", 0), ("t", 1)))
    key = transactions.writing.key(_TRANSACTIONS, 0, {"transactionalId": "x"})
    yield _message_seed(_TRANSACTIONS, key, transactions.value_of(said))


def _message_seed(topic: str, key: bytes, value: bytes) -> bytes:
    return bytes([list(OF_TOPICS).index(topic), len(key)]) + key + value


def _metadata_seeds() -> Iterable[bytes]:
    uuid = bytes(range(16))
    made = (
        b"\1\2\0\2t" + uuid + b"\0",
        b"\1\3\0\0\0\0\0" + uuid + b"\2\0\0\0\1\0",
        b"\1\4\0\2\2t\2n\2v\0",
        b"\1\5\0\0\0\0\0" + uuid + b"\1\2\5\2\0\0\0\1",
        b"\1\x09\0" + uuid + b"\0",
        b"\1\x17\0\0\0",
        b"\1\x18\0\0",
    )
    yield b"".join(bytes([len(each)]) + each for each in made)
    yield from (bytes([len(each)]) + each for each in made)


def _stream_seeds() -> Iterable[bytes]:
    for codec in list(Codec)[1:]:
        for plain in (b"", b"plain text " * 20, bytes(5000)):
            yield bytes([codec - 1]) + compress(codec, array(plain)).tobytes()


def _answer_seeds() -> Iterable[bytes]:
    # Throttling, error, session, one topic, its partition, and tagged fields: see `engine/kernels/fetched.py`.
    part = struct.pack(">ihqqq", 0, 0, 5, 5, 0) + b"\1" + struct.pack(">i", -1)
    for records in (b"", VECTOR_A):
        size = bytes([len(records) + 1])
        head = struct.pack(">ihi", 0, 0, 0)
        yield head + b"\2" + bytes(16) + b"\2" + part + size + records + b"\0\0\0"


TARGETS: Final[dict[str, tuple[Target, tuple[bytes, ...]]]] = {
    "batches": (read_batches, tuple(b"\1" + each for each in (VECTOR_A, VECTOR_B, VECTOR_C, VECTOR_D))),
    "streams": (read_streams, tuple(_stream_seeds())),
    "lines": (read_lines, _LINES),
    "messages": (read_messages, tuple(_message_seeds())),
    "metadata": (read_metadata, tuple(_metadata_seeds())),
    "answers": (read_answers, tuple(_answer_seeds())),
    "brokers": (read_brokers, _BROKERS),
    "columns": (read_columns, tuple(_column_seeds())),
    "names": (read_names, _NAMES),
    **{name: (read_file(name), file.seeds) for name, file in FILES.items()},
}
"""Each target by its name, and the bytes that a search begins with."""
