"""Rows as lines of jsonl for an inbox, as a topic's jsonl views show them, but without the fields that the log adds.

    {"value":"v1","key":"k1","partition":0,"timestamp":1700000000000,"headers":[{"key":"h","value":"x"}]}

Complete columns are turned into text at once. Only values that are not UTF-8, or have control characters, are handled
one by one. Values that are not UTF-8 become base64, in a member whose name says so.
"""

from __future__ import annotations

import base64
import json
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from topicfs.engine.errors import InvalidRecordError

_PLAIN: Final = r"\A[\x20-\x{d7ff}\x{e000}-\x{10ffff}]*\z"
"""UTF-8 without control characters. Other bytes do not match: the pattern is matched by the bytes of the characters.
Without the gap, a shorter path through the pattern would also accept overlong forms."""

_TEXT: Final = pa.large_string()


def lines(rows: pa.RecordBatch) -> bytes:
    """Return the lines of a batch whose columns are some of value, key, partition, timestamp and headers."""
    if not rows.num_rows:
        return b""
    names = rows.schema.names
    parts: list[Any] = ["{", _member("value", rows.column("value"))]
    if "key" in names:
        parts += [",", _member("key", rows.column("key"))]
    if "partition" in names:
        parts.append(_number("partition", rows.column("partition")))
    if "timestamp" in names:
        parts.append(_number("timestamp", _milliseconds(rows.column("timestamp"))))
    if "headers" in names:
        parts.append(_headers(rows.column("headers")))
    return _bytes(_joined(*parts, "}\n"))


def _joined(*parts: pa.Array | str) -> pa.Array:
    """Join the parts of each row to one text, null if one of the parts is null. Positions in the texts have 64 bits
    here: the texts may together be larger than the 2 GB that limit the values of a batch."""
    texts = (pa.scalar(part, _TEXT) if isinstance(part, str) else part for part in parts)
    return pc.binary_join_element_wise(*texts, pa.scalar("", _TEXT))


def _bytes(texts: pa.Array) -> bytes:
    """Return all texts, one behind the other, as they lie in Arrow's buffer."""
    _, places, data = texts.buffers()
    first, end = np.frombuffer(places, np.int64)[[texts.offset, texts.offset + len(texts)]]
    return bytes(memoryview(data)[first:end])


def _member(name: str, values: pa.Array) -> pa.Array:
    """Return `"name":"text"` for each value, which is bytes or text."""
    trusting = pc.CastOptions(target_type=_TEXT, allow_invalid_utf8=True)
    text = values.cast(options=trusting)
    is_plain = pc.match_substring_regex(text, _PLAIN)
    odd = np.flatnonzero(pc.invert(is_plain).fill_null(False).to_numpy(zero_copy_only=False))
    if odd.size:
        text = pc.if_else(is_plain, text, None)
    escaped = pc.replace_substring(pc.replace_substring(text, "\\", "\\\\"), '"', '\\"')
    members = pc.fill_null(_joined(f'"{name}":"', escaped, '"'), f'"{name}":null')
    if not odd.size:
        return members
    mask = np.zeros(len(values), bool)
    mask[odd] = True
    tokens = [_token(name, value) for value in values.take(pa.array(odd)).to_pylist()]
    return pc.replace_with_mask(members, pa.array(mask), pa.array(tokens, _TEXT))


def _token(name: str, value: bytes | str) -> str:
    text = value
    if isinstance(value, bytes):
        try:
            text = value.decode()
        except UnicodeDecodeError:
            return f'"{name}_base64":"{base64.b64encode(value).decode()}"'
    return f'"{name}":{json.dumps(text, ensure_ascii=False)}'


def _milliseconds(values: pa.Array) -> pa.Array:
    micros = values.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    whole = micros.fill_null(0).to_numpy(zero_copy_only=False) // 1000
    return pc.if_else(micros.is_valid(), pa.array(whole), None)


def _number(name: str, values: pa.Array) -> pa.Array:
    """Return `,"name":5` for each value, or nothing for null."""
    return pc.fill_null(_joined(f',"{name}":', values.cast(_TEXT)), "")


def _headers(values: pa.Array) -> pa.Array:
    """Return `,"headers":[…]` for each list, or nothing if it is null or empty."""
    headers = values.flatten()
    names = pc.struct_field(headers, 0)
    if names.null_count:
        raise InvalidRecordError("expected a key in each header, found null")
    listed = _joined("{", _member("key", names), ",", _member("value", pc.struct_field(headers, 1)), "}")
    counts = pc.fill_null(pc.list_value_length(values), 0)
    ends = np.cumsum(counts.to_numpy(zero_copy_only=False), dtype=np.int64)
    lists = pa.LargeListArray.from_arrays(pa.array(np.concatenate([np.zeros(1, np.int64), ends])), listed)
    joined = _joined(',"headers":[', pc.binary_join(lists, pa.scalar(",", _TEXT)), "]")
    return pc.if_else(pc.greater(counts, 0), joined, pa.scalar("", _TEXT))
