"""Rows as lines of jsonl, for an inbox: as a topic's jsonl views show them, without what the log gives a record.

    {"value":"v1","key":"k1","partition":0,"timestamp":1700000000000,"headers":[{"key":"h","value":"x"}]}

Whole columns are turned into text at once. Only a batch with bytes that are no UTF-8, or with control characters, is
gone through row by row: the former are base64, in a member whose name says so.
"""

from __future__ import annotations

import base64
import json
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_CONTROL: Final = "[\\x00-\\x1f]"


def lines(rows: pa.RecordBatch) -> bytes:
    """The lines of a batch; its columns are some of value, key, partition, timestamp and headers."""
    if not rows.num_rows:
        return b""
    names = rows.schema.names
    parts: list[Any] = ["{", _member("value", rows.column("value"))]
    if "key" in names:
        parts += [",", _member("key", rows.column("key"))]
    for name in ("partition", "timestamp"):
        if name in names:
            parts.append(_number(name, rows.column(name)))
    if "headers" in names:
        parts.append(_headers(rows.column("headers")))
    joined = pc.binary_join_element_wise(*parts, "}\n", "")
    return b"".join(text.encode() for text in joined.to_pylist())


def _member(name: str, values: pa.Array) -> pa.Array:
    """`"name":"text"` of each value, which is bytes or text."""
    try:
        text = values.cast(pa.string())
    except pa.ArrowInvalid:
        return _one_by_one(name, values)
    if pc.any(pc.match_substring_regex(text, _CONTROL)).as_py():
        return _one_by_one(name, values)
    escaped = pc.replace_substring(pc.replace_substring(text, "\\", "\\\\"), '"', '\\"')
    return pc.fill_null(pc.binary_join_element_wise(f'"{name}":"', escaped, '"', ""), f'"{name}":null')


def _one_by_one(name: str, values: pa.Array) -> pa.Array:
    return pa.array([_token(name, value) for value in values.to_pylist()], pa.string())


def _token(name: str, value: bytes | str | None) -> str:
    text = value
    if isinstance(value, bytes):
        try:
            text = value.decode()
        except UnicodeDecodeError:
            return f'"{name}_base64":"{base64.b64encode(value).decode()}"'
    return f'"{name}":{json.dumps(text, ensure_ascii=False)}'


def _number(name: str, values: pa.Array) -> pa.Array:
    """`,"name":5` of each value, nothing where it is null."""
    if name == "timestamp":
        values = pc.floor(
            pc.divide(values.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).cast(pa.float64()), 1000.0)
        )
        values = values.cast(pa.int64())
    return pc.fill_null(pc.binary_join_element_wise(f',"{name}":', values.cast(pa.string()), ""), "")


def _headers(values: pa.Array) -> pa.Array:
    return pa.array(
        [
            ',"headers":[' + ",".join(_header(**each) for each in headers) + "]" if headers else ""
            for headers in values.to_pylist()
        ],
        pa.string(),
    )


def _header(key: str, value: bytes | None) -> str:
    return f"{{{_token('key', key)},{_token('value', value)}}}"
