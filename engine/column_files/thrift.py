"""Thrift's compact protocol, in which Parquet has its footer and the headers of its pages.

    struct   fields, each 4 bits step from the last number (0: the number follows), 4 bits kind; at the end 0
    list     4 bits count (15: it follows), 4 bits kind; items

Only wanted fields are kept: a mapping of their numbers to `int` or `bytes`, to what is wanted of a struct, or to a list
of the one thing that is wanted of each item.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Wanted = Any
_SKIP: Final[Mapping[int, Wanted]] = {}
_DEEPEST: Final = 32
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _STRUCT = 1, 2, 3, 7, 8, 12
_INTEGERS: Final = (4, 5, 6)
_LISTS: Final = (9, 10)
_MAP: Final = 11


class MalformedError(Exception):
    """The bytes are no struct, or end within it."""


def read(data: bytes, wanted: Mapping[int, Wanted]) -> tuple[dict[int, Any], int]:
    """Return the wanted fields of the struct that the bytes begin with, by their numbers, and where it ends."""
    try:
        return _struct(data, 0, wanted, 0)
    except IndexError:
        raise MalformedError(f"a struct goes beyond {len(data)} bytes") from None


def _struct(data: bytes, at: int, wanted: Mapping[int, Wanted], depth: int) -> tuple[dict[int, Any], int]:
    fields: dict[int, Any] = {}
    number = 0
    while data[at]:
        step, kind = data[at] >> 4, data[at] & 15
        at += 1
        if step:
            number += step
        else:
            number, at = _signed(data, at)
        if kind in (_TRUE, _FALSE):
            continue
        value, at = _value(data, at, kind, wanted.get(number, _SKIP), depth)
        if number in wanted:
            _check_kind(value, wanted[number])
            fields[number] = value
    return fields, at + 1


def _check_kind(value: Any, wanted: Wanted) -> None:
    if not isinstance(value, wanted if isinstance(wanted, type) else type(wanted)):
        raise MalformedError("a field of another kind")


def _value(data: bytes, at: int, kind: int, wanted: Wanted, depth: int) -> tuple[Any, int]:
    if depth > _DEEPEST:
        raise MalformedError("structs that are too deep")
    if kind in (_TRUE, _FALSE, _BYTE):  # true and false have a byte of their own in lists
        return data[at], at + 1
    if kind in _INTEGERS:
        return _signed(data, at)
    if kind == _DOUBLE:
        return None, _inside(data, at + 8)
    if kind == _BINARY:
        size, at = _unsigned(data, at)
        return data[at : at + size], _inside(data, at + size)
    if kind == _STRUCT:
        return _struct(data, at, wanted if isinstance(wanted, dict) else _SKIP, depth + 1)
    if kind in _LISTS:
        return _list(data, at, wanted, depth + 1)
    if kind == _MAP:
        return _map(data, at, depth + 1)
    raise MalformedError(f"a field of kind {kind}")


def _list(data: bytes, at: int, wanted: Wanted, depth: int) -> tuple[Any, int]:
    count, kind = data[at] >> 4, data[at] & 15
    at += 1
    if count == 15:
        count, at = _unsigned(data, at)
    _inside(data, at + count)  # each item has a byte at least
    items = []
    each = wanted[0] if isinstance(wanted, list) else _SKIP
    for _ in range(count):
        item, at = _value(data, at, kind, each, depth)
        if isinstance(wanted, list):
            _check_kind(item, each)
            items.append(item)
    return items, at


def _map(data: bytes, at: int, depth: int) -> tuple[None, int]:
    count, at = _unsigned(data, at)
    if count:
        kinds = data[at]
        at = _inside(data, at + 1 + count) - count
        for _ in range(count):
            _, at = _value(data, at, kinds >> 4, _SKIP, depth)
            _, at = _value(data, at, kinds & 15, _SKIP, depth)
    return None, at


def _inside(data: bytes, at: int) -> int:
    if at > len(data):
        raise IndexError
    return at


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at += 1
        if not data[at - 1] & 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise MalformedError("a number of more than 64 bits")


def _signed(data: bytes, at: int) -> tuple[int, int]:
    value, at = _unsigned(data, at)
    return (value >> 1) ^ -(value & 1), at
