"""Parsing integers by the rules of Kafka's files: ASCII digits with an optional sign, nothing else.

Python's own `int` also accepts underscores, spaces and digits of other scripts, and refuses very long texts.
"""

from __future__ import annotations

import re
from typing import Final

from topicfs.engine.record import MAX_INT32, MAX_INT64

# Leading zeros are not in the group, so that the converted text is never longer than that of an int64.
_INTEGER: Final = re.compile(r"([+-]?)0*([0-9]{1,19})")


def parse_int32(text: str) -> int | None:
    """Return the number, or None where the text is not a signed 32-bit integer."""
    return _parse(text, MAX_INT32)


def parse_int64(text: str) -> int | None:
    """Return the number, or None where the text is not a signed 64-bit integer."""
    return _parse(text, MAX_INT64)


def _parse(text: str, highest: int) -> int | None:
    found = _INTEGER.fullmatch(text)
    if found is None:
        return None
    value = -int(found[2]) if found[1] == "-" else int(found[2])
    return value if -highest - 1 <= value <= highest else None
