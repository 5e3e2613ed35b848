"""A cluster's metadata log, made byte by byte, for topics a, b and c."""

from __future__ import annotations

import base64
import struct
from pathlib import Path

from partition_opening import open_partition

from topicfs import Record
from topicfs.engine.format.paths import METADATA_LOG

IDS = {name: bytes([number + 1]) * 16 for number, name in enumerate(("a", "b", "c"))}


def uvarint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def text(words: str | None) -> bytes:
    return b"\0" if words is None else uvarint(len(words.encode()) + 1) + words.encode()


def frame(kind: int, *fields: bytes, version: int = 0) -> bytes:
    return uvarint(1) + uvarint(kind) + uvarint(version) + b"".join(fields) + b"\0"


def topic(name: str) -> bytes:
    return frame(2, text(name), IDS[name])


def partition(name: str, number: int) -> bytes:
    rest = text("")[:1] * 4 + struct.pack(">iii", 1, 0, 0)
    return frame(3, struct.pack(">i", number), IDS[name], rest, version=1)


def changed(name: str, number: int, replicas: int | None) -> bytes:
    """A change of a partition: its leader, and its replicas unless None."""
    leader = bytes([1, 4]) + struct.pack(">i", 7)
    array = b"" if replicas is None else uvarint(replicas + 1) + struct.pack(">i", 7) * replicas
    tagged = [leader] if replicas is None else [leader, bytes([2]) + uvarint(len(array)) + array]
    fields = struct.pack(">i", number) + IDS[name] + uvarint(len(tagged)) + b"".join(tagged)
    return uvarint(1) + uvarint(5) + uvarint(0) + fields


def setting(kind: int, resource: str, name: str, value: str | None) -> bytes:
    return frame(4, bytes([kind]), text(resource), text(name), text(value))


def removed(name: str) -> bytes:
    return frame(9, IDS[name])


BEGIN, END, ABORT = frame(23, b"\0"), frame(24), frame(25, b"\0")
NO_OP = frame(20)


def shown(name: str) -> str:
    return base64.urlsafe_b64encode(IDS[name]).rstrip(b"=").decode()


def write(logs: Path, *values: bytes, start: int = 0) -> Path:
    """A metadata log with a record for each value; gives its directory."""
    directory = logs / METADATA_LOG
    with open_partition(directory, segment_bytes=1 << 20) as log:
        if start:
            log.restart_at(start)
        for value in values:
            log.append(Record(value))
    return directory
