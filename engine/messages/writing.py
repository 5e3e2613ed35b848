"""Writing Kafka's own messages: the bytes of keys and values, from the tables in `topicfs.engine.format.messages`.

    key("__transaction_state", 0, {"transactionalId": "t1"})
    value("__transaction_state", 0, 1, {"producerId": 7, …})

The fields are those of the JSON that `topicfs.engine.messages.reading` gives. A field that has a tag may be left out:
it is then not written. Any other field that a version has must be there.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

from topicfs.engine.errors import InvalidRecordError
from topicfs.engine.format.messages import Field, Message, messages_of, protocols

_NUMBERS: Final = {
    "bool": struct.Struct(">?"),
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "uint16": struct.Struct(">H"),
    "int32": struct.Struct(">i"),
    "int64": struct.Struct(">q"),
    "float64": struct.Struct(">d"),
}
_INT16: Final = _NUMBERS["int16"]
_INT32: Final = _NUMBERS["int32"]
_STRINGS: Final = ("string", "protocol")
_KEY_VERSION: Final = 0
_UUID_BYTES: Final = 16

Fields = Mapping[str, Any]
"""The fields of a message or a structure, by name."""


def key(topic: str, kind: int, fields: Fields) -> bytes:
    """Return the key of a record of one of Kafka's own topics. `kind` is the number of its type."""
    return _INT16.pack(kind) + _message(_found(topic, kind, "Key"), _KEY_VERSION, fields)


def value(topic: str, kind: int, version: int, fields: Fields) -> bytes:
    """Return the value of a record of one of Kafka's own topics, in a version of its message."""
    return _INT16.pack(version) + _message(_found(topic, kind, "Value"), version, fields)


def protocol(name: str, version: int, fields: Fields) -> bytes:
    """Return the bytes of a message that other messages hold, such as `ConsumerProtocolAssignment`."""
    message = next(each for each in protocols() if each.name == name)
    return _INT16.pack(version) + _message(message, version, fields)


@cache
def _found(topic: str, kind: int, suffix: str) -> Message:
    return next(each for each in messages_of(topic) if each.type == kind and each.name.endswith(suffix))


def _message(message: Message, version: int, fields: Fields) -> bytes:
    if not 0 <= version <= message.last:
        raise InvalidRecordError(f"{message.name}: expected a version up to {message.last}, found {version}")
    out = bytearray()
    _put_fields(out, message.fields, version, version >= message.flexible, fields)
    return bytes(out)


def _put_fields(
    out: bytearray, table: Sequence[Field], version: int, is_flexible: bool, fields: Fields
) -> None:
    tagged: list[tuple[int, bytes]] = []
    for field in table:
        if not field.first <= version <= field.last:
            continue
        if field.tag is None:
            _put(out, field, version, is_flexible, fields[field.name])
        elif field.name in fields:
            inner = bytearray()
            _put(inner, field, version, is_flexible, fields[field.name])
            tagged.append((field.tag, bytes(inner)))
    if is_flexible:
        _put_unsigned(out, len(tagged))
        for tag, data in sorted(tagged):
            _put_unsigned(out, tag)
            _put_unsigned(out, len(data))
            out += data


def _put(out: bytearray, field: Field, version: int, is_flexible: bool, value: Any) -> None:
    if value is None and not field.may_be_null:
        raise InvalidRecordError(f"{field.name}: expected {field.type}, found null")
    if not field.is_array:
        _put_one(out, field, version, is_flexible, value)
        return
    _put_length(out, None if value is None else len(value), is_flexible, _INT32)
    for each in value or ():
        if field.type == "{}":
            _put_fields(out, field.fields, version, is_flexible, each)
        else:
            _put_one(out, field, version, is_flexible, each)


def _put_one(out: bytearray, field: Field, version: int, is_flexible: bool, value: Any) -> None:
    number = _NUMBERS.get(field.type)
    if number is not None:
        out += number.pack(value)
    elif field.type in _STRINGS:
        data = None if value is None else value.encode()
        _put_length(out, None if data is None else len(data), is_flexible, _INT16)
        out += data or b""
    elif field.type == "bytes":
        _put_length(out, None if value is None else len(value), is_flexible, _INT32)
        out += value or b""
    elif field.type == "uuid":
        data = base64.urlsafe_b64decode(value + "==")
        if len(data) != _UUID_BYTES:
            raise InvalidRecordError(f"{field.name}: expected a uuid, found {value!r}")
        out += data
    else:
        if field.may_be_null:
            out += _NUMBERS["int8"].pack(-1 if value is None else 1)
        if value is not None:
            _put_fields(out, field.fields, version, is_flexible, value)


def _put_length(out: bytearray, length: int | None, is_flexible: bool, fixed: struct.Struct) -> None:
    if is_flexible:
        _put_unsigned(out, 0 if length is None else length + 1)
    else:
        try:
            out += fixed.pack(-1 if length is None else length)
        except struct.error:
            raise InvalidRecordError(f"a text of {length} bytes is too long for Kafka's messages") from None


def _put_unsigned(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
