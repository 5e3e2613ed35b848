"""Reading Kafka's own messages: the fields of keys and values, by the kernels that show them as JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from topicfs.engine.kernels.messages import measure, topic_of, write_key, write_value
from topicfs.engine.kernels.varint import MALFORMED

Message = dict[str, Any]
"""A key, `{"type": …, "data": {…}}`, or a value, `{"version": …, "data": {…}}`."""


def message(topic: str, key: bytes | None, value: bytes | None) -> tuple[Message | None, Message | None]:
    """Return the key and value of a record; None for one that is null, or no message of this topic."""
    keyed, valued = key or b"", value or b""
    # A byte behind it: a null value has a place too.
    data = np.frombuffer(keyed + valued + b"\0", np.uint8)
    key_length = -1 if key is None else len(keyed)
    value_length = -1 if value is None else len(valued)
    number, start = topic_of(topic), len(keyed)
    key_size, value_size = measure(number, data, 0, key_length, start, value_length)
    found_key = found_value = None
    if key_size != MALFORMED:
        out = np.empty(key_size, np.uint8)
        write_key(number, data, 0, key_length, out, 0)
        found_key = json.loads(out.tobytes())
    if value_size != MALFORMED:
        out = np.empty(value_size, np.uint8)
        write_value(number, data, 0, start, value_length, out, 0)
        found_value = json.loads(out.tobytes())
    return found_key, found_value
