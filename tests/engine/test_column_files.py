"""Files of Arrow and Parquet: their records in small pieces, and words for what is damaged, too large or no record."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from random import Random
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partition_opening import NOW

from topicfs.engine.batch.table import Bytes
from topicfs.engine.column_files import pages, source, stream
from topicfs.engine.column_files.files import is_whole, rows_in
from topicfs.engine.errors import InvalidRecordError
from topicfs.engine.inbox.rows import Rows

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
MIB = 1 << 20
Columns = dict[str, pa.Array]


class Memory:
    """A file in memory."""

    def __init__(self, data: bytes) -> None:
        self.data = np.frombuffer(data, np.uint8)

    def read(self, position: int, into: Bytes) -> int:
        assert position >= 0
        part = self.data[position : position + into.size]
        into[: part.size] = part
        return int(part.size)


def read(kind: str, data: bytes) -> Iterator[Rows]:
    return rows_in(kind, Memory(data), len(data))


def values(kind: str, data: bytes) -> list[bytes | None]:
    return [record.value for rows in read(kind, data) for record in rows.columns.records()]


def parquet(table: pa.Table, **options: Any) -> bytes:
    made = io.BytesIO()
    pq.write_table(table, made, **options)
    return made.getvalue()


def arrow(table: pa.Table, new: Callable[..., Any] = pa.ipc.new_file, codec: str | None = None) -> bytes:
    made = io.BytesIO()
    with new(made, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(table, max_chunksize=1000)
    return made.getvalue()


def orders(count: int = 40) -> pa.Table:
    numbers = range(count)
    return pa.table(
        {
            "value": [None if number % 7 == 3 else f"value {number}" for number in numbers],
            "key": [b"k%d" % (number % 3) for number in numbers],
            "headers": pa.array(
                [[{"key": "h", "value": b"x"}] * (number % 3) for number in numbers], HEADERS
            ),
            "timestamp": pa.array([NOW * 1000 + number for number in numbers], pa.timestamp("us")),
            "partition": pa.array([number % 2 for number in numbers], pa.int32()),
        }
    )


PLAIN = {"use_dictionary": False, "compression": "none"}
DELTAS = {
    "value": "DELTA_BYTE_ARRAY",
    "key": "DELTA_LENGTH_BYTE_ARRAY",
    "timestamp": "DELTA_BINARY_PACKED",
    "partition": "DELTA_BINARY_PACKED",
}


def every_form(table: pa.Table) -> list[tuple[str, bytes]]:
    coded = table.set_column(1, "key", table["key"].dictionary_encode())
    views = table.set_column(0, "value", table["value"].cast(pa.string_view()))
    return [
        ("parquet", parquet(table, **PLAIN)),
        ("parquet", parquet(table, compression="zstd", row_group_size=17)),
        ("parquet", parquet(table, compression="snappy", data_page_version="2.0", store_schema=False)),
        ("parquet", parquet(table, compression="gzip", use_dictionary=False, column_encoding=DELTAS)),
        ("parquet", parquet(table, use_deprecated_int96_timestamps=True, data_page_size=64)),
        ("arrow", arrow(table)),
        ("arrow", arrow(coded, codec="lz4")),
        ("arrow", arrow(coded, pa.ipc.new_stream)),
        ("arrow", arrow(views, codec="zstd")),
        ("arrow", arrow(views, pa.ipc.new_stream)),
    ]


FORMS = every_form(orders())


def test_every_form_holds_equal_records() -> None:
    table = orders(3000)
    expected = None
    for kind, data in every_form(table):
        found = list(read(kind, data))
        records = [
            (record.value, record.key, record.timestamp, record.headers)
            for rows in found
            for record in rows.columns.records()
        ]
        assert [number for rows in found for number in rows.partitions] == table["partition"].to_pylist()
        assert expected in (None, records)
        expected = records
    assert expected is not None
    assert expected[2] == (b"value 2", b"k2", NOW, (("h", b"x"), ("h", b"x")))
    assert expected[3] == (None, b"k0", NOW, ())


@pytest.mark.parametrize("new", [pa.ipc.new_file, pa.ipc.new_stream])
def test_files_without_rows_are_read(new: Callable[..., Any]) -> None:
    schema = pa.schema([("value", pa.string())])
    assert values("arrow", arrow(schema.empty_table(), new)) == []
    assert values("parquet", parquet(schema.empty_table())) == []
    with pytest.raises(InvalidRecordError, match="the column value is missing"):
        values("parquet", parquet(pa.schema([("key", pa.string())]).empty_table()))


def test_columns_that_the_log_adds_are_passed_over_and_any_other_is_refused() -> None:
    kept = {"value": ["x"], "offset": [7], "topic": ["t"], "timestampType": [0]}
    assert values("parquet", parquet(pa.table(kept))) == [b"x"]
    assert values("arrow", arrow(pa.table(kept))) == [b"x"]
    for columns, words in (
        ({"value": ["x"], "colour": ["blue"]}, "unknown column colour: expected columns among key, value"),
        ({"value": ["x"], "Key": ["k"]}, "unknown column Key"),
        ({"key": ["x"]}, "the column value is missing: a tombstone is a row in which it is null"),
        ({"value": [7]}, "column value: expected text or bytes, found int64"),
        ({"value": ["x"], "key": [1.5]}, "column key: expected text or bytes, found double"),
        ({"value": ["x"], "timestamp": ["now"]}, "column timestamp: expected a timestamp, or a whole number"),
        ({"value": ["x"], "partition": ["1"]}, "column partition: expected a whole number, found string"),
        ({"value": ["x"], "headers": ["h"]}, "column headers: expected a list of structs of key and value"),
        ({"value": ["x"], "headers": [[{"key": "h"}]]}, "column headers: expected a list of structs"),
    ):
        for kind, data in (("parquet", parquet(pa.table(columns))), ("arrow", arrow(pa.table(columns)))):
            with pytest.raises(InvalidRecordError, match=words):
                values(kind, data)
    twice = pa.Table.from_arrays([pa.array(["x"]), pa.array(["y"])], ["value", "value"])
    for kind, data in (("parquet", parquet(twice)), ("arrow", arrow(twice))):
        with pytest.raises(InvalidRecordError, match="a second column value"):
            values(kind, data)


def test_a_row_that_is_refused_is_named_by_its_number_in_the_file() -> None:
    partitions = [0] * 70_000
    partitions[65_432] = -1
    table = pa.table({"value": ["x"] * 70_000, "partition": partitions})
    for kind, data in (("parquet", parquet(table, row_group_size=9000)), ("arrow", arrow(table))):
        with pytest.raises(InvalidRecordError, match=r"^row 65433: expected a partition of at least 0"):
            values(kind, data)


# -- damage -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "data"), FORMS)
def test_a_file_that_is_cut_anywhere_is_refused(kind: str, data: bytes) -> None:
    for end in {*range(0, len(data), 41), *range(len(data) - 40, len(data))}:
        with pytest.raises(InvalidRecordError, match="damaged, or not all of it has come"):
            values(kind, data[:end])
        assert not is_whole(kind, Memory(data[:end]), end)


def test_only_files_tell_by_their_end_that_they_are_whole() -> None:
    for kind, data in FORMS:
        assert is_whole(kind, Memory(data), len(data)) == (kind == "parquet" or data.startswith(b"ARROW1"))
    assert not is_whole("arrow", Memory(b"ARROW1"), 6)
    assert not is_whole("parquet", Memory(b""), 0)


def test_what_is_another_format_is_refused() -> None:
    for kind, other in (
        ("arrow", parquet(orders())),
        ("parquet", arrow(orders())),
        ("arrow", b'{"value":"x"}\n'),
    ):
        with pytest.raises(InvalidRecordError, match="damaged, or not all of it has come"):
            values(kind, other)


PATCHES = (b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff", b"\x00\x00\x00\x80", b"\x00\x00\x00\x10")


@given(st.sampled_from(FORMS), st.randoms(use_true_random=False), st.integers(1, 4))
def test_damaged_bytes_give_other_values_or_a_refusal_and_never_end_the_process(
    form: tuple[str, bytes], random: Random, patches: int
) -> None:
    kind, data = form[0], bytearray(form[1])
    for _ in range(patches):
        at = random.randrange(len(data))
        patch = random.choice(
            (bytes([random.randrange(256)]), bytes([data[at] ^ 1 << random.randrange(8)]), *PATCHES)
        )
        data[at : at + len(patch)] = patch[: len(data) - at]
    try:
        found = sum(len(list(rows.columns.records())) for rows in read(kind, bytes(data)))
    except InvalidRecordError:
        return
    assert found <= 1000


# -- sizes --------------------------------------------------------------------------------------------


def test_a_small_file_that_unpacks_to_much_is_read_in_small_pieces() -> None:
    long = pa.scalar(b"x" * MIB)
    coded = pa.DictionaryArray.from_arrays(pa.array(np.zeros(20_000, np.int32)), pa.array([long.as_py()]))
    data = parquet(pa.table({"value": coded}))
    assert len(data) < 100_000
    found = [rows.columns for rows in read("parquet", data)]
    assert sum(int(columns.value_length.sum()) for columns in found) == 20_000 * MIB
    assert {columns.buffer.size for columns in found} == {MIB}
    same = {"use_dictionary": False, "write_statistics": False, "compression": "zstd"}
    values_150 = pa.table({"value": pa.repeat(long, 150)})
    fixed_150 = pa.table({"value": pa.repeat(long, 150).cast(pa.binary(MIB))})
    for data in (
        parquet(values_150, **same),
        parquet(values_150, **same, column_encoding={"value": "DELTA_BYTE_ARRAY"}),
        parquet(fixed_150, **same),
    ):
        assert len(data) < MIB
        sizes = [(len(rows), rows.columns.buffer.size) for rows in read("parquet", data)]
        assert sum(rows for rows, _ in sizes) == 150
        assert max(size for _, size in sizes) <= 65 * MIB


LIMITED: tuple[ModuleType, ...] = (pages, source, stream)


@pytest.mark.parametrize("codec", ["zstd", None])
def test_what_must_be_in_memory_as_a_whole_and_is_too_large_is_refused(
    monkeypatch: pytest.MonkeyPatch, codec: str | None
) -> None:
    for module in LIMITED:
        monkeypatch.setattr(module, "LARGEST", 100_000)
    large, small = pa.table({"value": ["x" * 200_000]}), pa.table({"value": ["x" * 20_000]})
    coded = pa.table({"value": large["value"].dictionary_encode()})
    for table in (large, coded):
        for new in (pa.ipc.new_file, pa.ipc.new_stream):
            with pytest.raises(InvalidRecordError, match="expected up to 100000 bytes in a batch of rows"):
                values("arrow", arrow(table, new, codec))
    with pytest.raises(InvalidRecordError, match="expected a page of up to 100000 bytes"):
        values("parquet", parquet(large, compression=codec or "none", use_dictionary=False))
    assert values("arrow", arrow(small, codec=codec)) == [b"x" * 20_000]
    assert values("parquet", parquet(small, compression=codec or "none")) == [b"x" * 20_000]


def test_headers_that_unpack_to_too_much_are_refused() -> None:
    names = pa.array(["x" * MIB]).cast(pa.string())
    repeated = pa.DictionaryArray.from_arrays(pa.array(np.zeros(1000, np.int32)), names)
    pairs = pa.StructArray.from_arrays([repeated, pa.array([b""] * 1000)], ["key", "value"])
    headers = pa.ListArray.from_arrays(pa.array(range(1001), pa.int32()), pairs)
    table = pa.table({"value": ["x"] * 1000, "headers": headers})
    for kind, data in (("parquet", parquet(table)), ("arrow", arrow(table))):
        with pytest.raises(InvalidRecordError, match="expected up to 268435456 bytes of headers"):
            values(kind, data)


def test_lengths_are_not_believed() -> None:
    """A length of 2^40 where there is none: nobody asks for the memory."""
    table = pa.table({"value": ["x" * 1000]})
    packed = bytearray(arrow(table, codec="zstd"))
    at = packed.index((1000).to_bytes(8, "little") + b"\x28\xb5\x2f\xfd")  # before the magic of zstd
    packed[at : at + 8] = (1 << 40).to_bytes(8, "little")
    with pytest.raises(
        InvalidRecordError, match="expected up to 268435456 bytes in a batch of rows, found 1099511"
    ):
        values("arrow", bytes(packed))
    plain = bytearray(arrow(table))
    told = plain.index(b"ARROW1", 8) - 4
    plain[told : told + 4] = (1 << 30).to_bytes(4, "little")
    with pytest.raises(InvalidRecordError, match="damaged"):
        values("arrow", bytes(plain))
