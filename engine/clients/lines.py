"""Records as lines of jsonl, as the files of a mount take them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Any

from topicfs.engine.record import Record


def lines(records: Iterable[tuple[Record, int | None]]) -> bytes:
    """Return a line for each record. Those that are given with a partition name it."""
    return b"".join(json.dumps(_told(*each)).encode() + b"\n" for each in records)


def _told(record: Record, partition: int | None) -> dict[str, Any]:
    found: dict[str, Any] = {} if partition is None else {"partition": partition}
    if record.timestamp is not None:
        found["timestamp"] = record.timestamp
    found.update([_member("key", record.key), _member("value", record.value)])
    if record.headers:
        found["headers"] = [
            dict([_member("key", name.encode("utf-8", "surrogateescape")), _member("value", value)])
            for name, value in record.headers
        ]
    return found


def _member(name: str, value: bytes | None) -> tuple[str, str | None]:
    if value is None:
        return name, None
    try:
        return name, value.decode()
    except UnicodeDecodeError:
        return f"{name}_base64", base64.b64encode(value).decode()
