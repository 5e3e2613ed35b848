"""Lines of kcat -J as batches of rows. `topicfs.engine.arrow.exporting` writes such lines, and shows one.

    topic, offset, tstype, broker   passed over
    partition                       a whole number
    ts                              milliseconds
    headers                         name, value, name, value …; a value may be null
    key, payload                    text, in which bytes that are not UTF-8 stand as they are, or null

pyarrow parses them, whole blocks at a time: 1.3 us of a processor for a record of 100 bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO, Final

import numpy as np
import pyarrow as pa
import pyarrow.json

from topicfs.engine.errors import InvalidRecordError

_BLOCK: Final = 16 * 1024 * 1024
"""Bytes that are parsed at once, so also those of a line, at most."""

_LINES: Final = pa.schema(
    {
        "topic": pa.binary(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "tstype": pa.binary(),
        "ts": pa.int64(),
        "broker": pa.int64(),
        "headers": pa.list_(pa.binary()),
        "key": pa.binary(),
        "payload": pa.binary(),
    }
)
_BLANKS: Final = b" \t\r"
_OTHER_BEGIN: Final = re.compile(rb"[ \t\r]*[^ \t\r\n{]")
_OTHER_LINE: Final = re.compile(rb"\n[ \t\r]*[^ \t\r\n{]")
"""The begin of a line that is no object, at the begin of some bytes and behind it."""

_HEADER: Final = [pa.field("key", pa.binary()), pa.field("value", pa.binary())]


def batches(lines: BinaryIO) -> Iterator[pa.RecordBatch]:
    """Yield the records of kcat's lines, in order, with the columns that an inbox takes. InvalidRecordError for what is
    none of its lines."""
    passed = 0
    try:
        for batch in _parsed(lines):
            yield _rows(batch)
            passed += batch.num_rows
    except (pa.ArrowInvalid, InvalidRecordError) as error:
        raise InvalidRecordError(
            f"behind line {passed}: expected lines of kcat -J, with the members {', '.join(_LINES.names)}, of which "
            f"key and payload are text or null, in up to {_BLOCK} bytes: {error}"
        ) from None


def _parsed(lines: BinaryIO) -> Iterator[pa.RecordBatch]:
    first = lines.read(1)
    if not first:
        return  # pyarrow takes no empty file
    options = pa.json.ParseOptions(explicit_schema=_LINES, unexpected_field_behavior="error")
    with pa.PythonFile(_Begun(first, lines), "r") as source:
        yield from pa.json.open_json(source, pa.json.ReadOptions(block_size=_BLOCK), options)


class _Begun:
    """A file of which the first byte was read, as pyarrow reads it. InvalidRecordError for a line that does not begin
    an object: where a block of lines begins with null, pyarrow would end the process."""

    closed = False

    def __init__(self, first: bytes, rest: BinaryIO) -> None:
        self._first = first
        self._rest = rest
        self._is_line_due = True

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        first, self._first = self._first, b""
        data = first + self._rest.read(size if size < 0 else size - len(first))
        if _OTHER_LINE.search(data) or (self._is_line_due and _OTHER_BEGIN.match(data)):
            raise InvalidRecordError("expected an object in each line")
        told = data.rstrip(_BLANKS)
        self._is_line_due = told.endswith(b"\n") if told else self._is_line_due
        return data

    def close(self) -> None:
        """Leave the file open: it is not this object's."""


def _rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    if np.logical_and.reduce([each.is_null().to_numpy(zero_copy_only=False) for each in batch.columns]).any():
        raise InvalidRecordError("expected a record, found an object without any member")
    columns = {name: batch.column(name) for name in ("partition", "key", "headers")}
    columns["headers"] = _pairs(columns["headers"])
    return pa.record_batch({**columns, "timestamp": batch.column("ts"), "value": batch.column("payload")})


def _pairs(lists: pa.ListArray) -> pa.Array:
    """Return lists of names and values, in turn, as lists of pairs."""
    lengths = lists.value_lengths().fill_null(0).to_numpy()
    if (lengths % 2).any():
        raise InvalidRecordError("headers: expected as many values as names")
    flat = lists.flatten()
    names, values = (flat.take(pa.array(np.arange(first, len(flat), 2))) for first in (0, 1))
    if names.null_count:
        raise InvalidRecordError("headers: expected text as a name, found null")
    ends = np.append(np.int32(0), np.cumsum(lengths // 2, dtype=np.int32))
    return pa.ListArray.from_arrays(
        pa.array(ends), pa.StructArray.from_arrays([names, values], fields=_HEADER)
    )
