"""Kafka's own messages in plain Python, written from the description in `topicfs.engine.format.messages` alone: random
ones, their bytes, and what a record of them is as JSON."""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Sequence
from random import Random
from typing import Any

from topicfs.engine.format.messages import OF_TOPICS, Field, Message, messages_of, protocols

NUMBERS = {
    "int8": ">b",
    "int16": ">h",
    "uint16": ">H",
    "int32": ">i",
    "int64": ">q",
    "float64": ">d",
    "bool": ">?",
}
METADATA = "__cluster_metadata"
CASES = [
    (topic, message, version)
    for topic in OF_TOPICS
    for message in messages_of(topic)
    if not message.name.endswith("Key")
    for version in range(message.last + 1)
]
"""Each message that is a value, in each version: topic, message, version."""

Json = Any
TEXTS = ("", "readers", "größe", '"\\\n', "\x00\x1f", "😀", "x" * 200)


def record_of(
    topic: str, message: Message, version: int, random: Random
) -> tuple[bytes | None, bytes, Json, Json]:
    """A random record: the bytes of its key and value, and both as JSON."""
    data, encoded = made(message, version, random)
    if topic == METADATA:
        name = "_".join(re.findall("[A-Z][a-z]*", message.name)).upper()
        head = b"\1" + unsigned(message.type or 0) + unsigned(version)
        return None, head + encoded, None, {"type": name, "version": version, "data": data}
    key = next(each for each in messages_of(topic) if each.name == message.name.removesuffix("Value") + "Key")
    key_data, key_bytes = made(key, 0, random)
    return (
        struct.pack(">h", key.type) + key_bytes,
        struct.pack(">h", version) + encoded,
        {"type": key.type, "data": key_data},
        {"version": version, "data": data},
    )


def made(message: Message, version: int, random: Random) -> tuple[Json, bytes]:
    """The content of a random message, and its bytes."""
    return _shape(message.fields, version, version >= message.flexible, random)


def unsigned(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _shape(fields: Sequence[Field], version: int, is_flexible: bool, random: Random) -> tuple[Json, bytes]:
    data: dict[str, Json] = {}
    out, tagged = b"", {}
    is_consumer = False
    for field in fields:
        if not field.first <= version <= field.last or (field.tag is not None and random.random() < 0.5):
            continue
        value, encoded = _field(field, version, is_flexible, is_consumer, random)
        if field.type == "protocol":
            is_consumer = value == "consumer"
        data[field.name] = value
        if field.tag is None:
            out += encoded
        else:
            tagged[field.tag] = encoded
    if is_flexible:
        if random.random() < 0.2:
            tagged[99] = b"of the future"
        out += unsigned(len(tagged))
        for tag, encoded in sorted(tagged.items()):
            out += unsigned(tag) + unsigned(len(encoded)) + encoded
    return data, out


def _field(
    field: Field, version: int, is_flexible: bool, is_consumer: bool, random: Random
) -> tuple[Json, bytes]:
    # Kafka leaves out tagged fields that have their default, which null and zero are.
    is_null = field.may_be_null and field.tag is None and random.random() < 0.3
    if not field.is_array:
        return _value(field, version, is_flexible, is_consumer, is_null, random)
    count = random.randrange(field.tag is not None, 4)
    if is_null:
        return None, _length(None, is_flexible, ">i")
    found = [_value(field, version, is_flexible, is_consumer, False, random) for _ in range(count)]
    return [value for value, _ in found], _length(count, is_flexible, ">i") + b"".join(
        each for _, each in found
    )


def _value(
    field: Field, version: int, is_flexible: bool, is_consumer: bool, is_null: bool, random: Random
) -> tuple[Json, bytes]:
    if field.type == "{}":
        if is_null:
            return None, b"\xff"
        value, encoded = _shape(field.fields, version, is_flexible, random)
        return value, (b"\1" if field.may_be_null and not field.is_array else b"") + encoded
    if field.type in NUMBERS:
        number = _number(field.type, random)
        return number, struct.pack(NUMBERS[field.type], number)
    if field.type == "uuid":
        data = random.randbytes(16)
        return base64.urlsafe_b64encode(data).decode().rstrip("="), data
    wide = ">i" if field.type == "bytes" else ">h"
    if is_null:
        return None, _length(None, is_flexible, wide)
    value, content = _sized(field, is_consumer, random)
    return value, _length(len(content), is_flexible, wide) + content


def _sized(field: Field, is_consumer: bool, random: Random) -> tuple[Json, bytes]:
    if field.type == "protocol":
        text = random.choice(["consumer", "consumer", "connect", ""])
        return text, text.encode()
    if field.type == "string":
        text = random.choice(TEXTS[1:] if field.tag is not None else TEXTS)
        return text, text.encode()
    if is_consumer and field.message is not None:
        message = next(each for each in protocols() if each.name == field.message)
        version = random.randrange(message.last + 1)
        value, encoded = made(message, version, random)
        return value, struct.pack(">h", version) + encoded
    content = random.randbytes(random.randrange(40))
    return base64.b64encode(content).decode(), content


def _number(kind: str, random: Random) -> float | int | bool:
    if kind == "bool":
        return random.random() < 0.5
    if kind == "float64":
        return random.choice([0.0, 0.5, 0.1, 1048576.0, -12.75, 1e15, 123.456])
    bits = 8 * struct.calcsize(NUMBERS[kind])
    low, high = (0, 2**bits) if kind == "uint16" else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    return random.choice([low, high - 1, random.randrange(low, high), 7, 3])


def _length(length: int | None, is_flexible: bool, wide: str) -> bytes:
    if is_flexible:
        return unsigned(0 if length is None else length + 1)
    return struct.pack(wide, -1 if length is None else length)
