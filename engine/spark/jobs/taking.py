"""Taking rows of an import's files, in Spark's tasks: strictly, so that no row changes, or becomes null, unnoticed.

Each row keeps the place that it comes from. A row that cannot be taken is kept too, with the reason: it stops the
import later, or is put aside. Lines of JSON are parsed here and not by Spark, which turns what it does not know into
nulls, and numbers into text.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from topicfs.engine.batch.table import Longs
from topicfs.engine.record import MAX_INT64

FILE, START, ROW = "source_file", "source_start", "source_row"
REFUSED, TEXT = "refused", "refused_text"

PLACE: Final = [(FILE, pa.string()), (START, pa.int64()), (ROW, pa.int64())]
"""Where a row comes from: the URI of its file, the byte where the part begins that one task reads, and the number of
the row in that part, counted from 0."""

_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TAKEN: Final[pa.Schema] = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", _HEADERS),
        ("partition", pa.int32()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("offset", pa.int64()),
        *PLACE,
        (REFUSED, pa.string()),
        (TEXT, pa.binary()),
    ]
)
"""The columns of what was read. `offset` serves to sort. A row that was refused has a reason, and its text."""

PLACE_NAMES: Final = (FILE, START, ROW, REFUSED, TEXT)
"""The columns that are no record's."""

_TEXTS: Final = [(name, pa.string()) for name in ("key", "value", "key_base64", "value_base64")]
_MEMBERS: Final[pa.Schema] = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        *_TEXTS,
        ("headers", pa.list_(pa.struct(_TEXTS))),
    ]
)
"""The members of a line of JSON, as the views of a topic write them. `topic` and `offset` mean nothing here."""

_LATEST_MS: Final = MAX_INT64 // 1000


class Places:
    """Counts the rows of each part of a file, in one task, which reads part after part."""

    def __init__(self) -> None:
        self._part: tuple[str, int] | None = None
        self._count = 0

    def rows(self, batch: pa.RecordBatch) -> Longs:
        """Return the number of each row in its part of its file."""
        numbers = np.empty(batch.num_rows, np.int64)
        files = batch.column(FILE).dictionary_encode()
        codes, starts = files.indices.to_numpy(zero_copy_only=False), batch.column(START).to_numpy()
        changes = np.flatnonzero((np.diff(codes) != 0) | (np.diff(starts) != 0)) + 1
        borders = [0, *changes.tolist(), batch.num_rows]
        for first, end in pairwise(borders):
            if first == end:
                continue
            part = files.dictionary[int(codes[first])].as_py(), int(starts[first])
            if part != self._part:
                self._part, self._count = part, 0
            numbers[first:end] = np.arange(self._count, self._count + end - first)
            self._count += end - first
        return numbers


def numbered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give rows that Spark has made, whose columns are some of TAKEN, with their places and all columns."""
    places = Places()
    for batch in batches:
        rows = places.rows(batch)
        held = {name: batch.column(name) for name in batch.schema.names}
        held.setdefault(ROW, pa.array(rows))
        yield _taken(held, batch.num_rows)


def json_lines(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Parse lines of JSON. The column `partition` is that of a directory `partition=<n>`, if there are such."""
    places = Places()
    for batch in batches:
        batch = batch.append_column(ROW, pa.array(places.rows(batch)))  # noqa: PLW2901 - the same rows
        lines = pc.binary_length(pc.ascii_trim_whitespace(_as_text(batch.column("line"))))
        yield from _parsed(batch.filter(pc.greater(lines, 0)))


def _parsed(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Parse some lines; where that fails, each half by itself. So a bad line costs no more than a few tries."""
    if not batch.num_rows:
        return
    try:
        yield _objects(batch)
    except (pa.ArrowInvalid, ValueError) as error:
        if batch.num_rows == 1:
            text = batch.column("line")[0].as_py()
            yield _refused(batch, _reason(text, error), text)
            return
        half = batch.num_rows // 2
        yield from _parsed(batch.slice(0, half))
        yield from _parsed(batch.slice(half))


def _objects(batch: pa.RecordBatch) -> pa.RecordBatch:
    lines = [line.strip() for line in batch.column("line").to_pylist()]
    # Together they are parsed as one text: each must be an object by itself.
    if not all(line.startswith(b"{") and line.endswith(b"}") for line in lines):
        raise ValueError("expected an object in a line")
    data = b"\n".join(lines)
    table = pyarrow.json.read_json(
        pa.BufferReader(data),
        pyarrow.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        pyarrow.json.ParseOptions(explicit_schema=_MEMBERS, unexpected_field_behavior="error"),
    )
    if table.num_rows != len(lines):
        raise ValueError("expected one object in a line")
    table.validate(full=True)
    held: dict[str, Any] = {name: _whole(table.column(name)) for name in _MEMBERS.names}
    for row in np.flatnonzero(_unset(held["value"]) & _unset(held["value_base64"])).tolist():
        members = json.loads(lines[row])
        if "value" not in members and "value_base64" not in members:
            raise ValueError("expected a member value, which may be null, found none")
    times = held["timestamp"]
    if pc.any(pc.greater(pc.abs_checked(times), _LATEST_MS)).as_py():
        raise ValueError(f"expected a timestamp of at most {_LATEST_MS}")
    named = held["partition"]
    if "partition" in batch.schema.names:
        above = batch.column("partition")
        if pc.any(pc.not_equal(named, above)).as_py():
            raise ValueError("expected the partition of the directory, found another one")
        named = pc.coalesce(named, above)
    columns = {
        "key": _bytes(held["key"], held["key_base64"]),
        "value": _bytes(held["value"], held["value_base64"]),
        "headers": _headers(held["headers"]),
        "partition": named,
        "timestamp": pc.multiply(times, 1000).cast(pa.timestamp("us", "UTC")),
        "offset": held["offset"],
        **{name: batch.column(name) for name, _ in PLACE},
    }
    return _taken(columns, batch.num_rows)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _unset(values: pa.Array) -> Any:
    return values.is_null().to_numpy(zero_copy_only=False)


def _bytes(plain: pa.Array, coded: pa.Array) -> pa.Array:
    """Return what either of two members gives: text as it is, or base64."""
    if coded.null_count == len(coded):
        return plain.cast(pa.binary())
    if (~_unset(plain) & ~_unset(coded)).any():
        raise ValueError("expected text or base64, found both")
    found = zip(plain.cast(pa.binary()).to_pylist(), coded.to_pylist(), strict=True)
    return pa.array(
        [text if code is None else base64.b64decode(code, validate=True) for text, code in found], pa.binary()
    )


def _headers(lists: pa.Array) -> pa.Array:
    each = lists.flatten()
    if _unset(each).any():
        raise ValueError("expected an object in headers, found null")
    names = _bytes(*(pc.struct_field(each, name) for name in ("key", "key_base64")))
    if names.null_count:
        raise ValueError("expected a key in each header, found none")
    values = _bytes(*(pc.struct_field(each, name) for name in ("value", "value_base64")))
    # A header's key may be any bytes, in spite of its type in Spark.
    structs = pa.StructArray.from_arrays([_as_text(names), values], fields=list(_HEADERS.value_type))
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int32)
    ends = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
    return pa.ListArray.from_arrays(pa.array(ends), structs, mask=lists.is_null()).cast(_HEADERS)


def _as_text(values: pa.Array) -> pa.Array:
    """Return bytes as a string column, whatever they are."""
    return pc.cast(values, options=pc.CastOptions(pa.string(), allow_invalid_utf8=True))


def _reason(text: bytes, error: Exception) -> str:
    """Return in words why a line is refused. The parser does not tell the name of a member that it does not know."""
    try:
        found = json.loads(text)
    except ValueError as malformed:
        return f"expected JSON: {malformed}"
    if not isinstance(found, dict):
        return f"expected an object, found {type(found).__name__}"
    if unknown := sorted(found.keys() - set(_MEMBERS.names)):
        return f"expected the members {', '.join(_MEMBERS.names)}, found {', '.join(unknown)}"
    return str(error).removeprefix("JSON parse error: ").removesuffix(" in row 0")


def _refused(batch: pa.RecordBatch, reason: str, text: bytes) -> pa.RecordBatch:
    """Return one row as it is kept when it was refused."""
    held = {name: batch.column(name) for name, _ in PLACE}
    return _taken({**held, REFUSED: pa.array([reason]), TEXT: pa.array([text], pa.binary())}, 1)


def _taken(held: dict[str, Any], count: int) -> pa.RecordBatch:
    return pa.record_batch(
        [
            held[field.name].cast(field.type) if field.name in held else pa.nulls(count, field.type)
            for field in TAKEN
        ],
        schema=TAKEN,
    )
