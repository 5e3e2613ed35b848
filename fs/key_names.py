"""The names of keys in `keys/`: a key's bytes, with `%` and two hexadecimal digits for those that a name cannot have.

apples                      the key `apples`
user%3A42                   `user:42`; a colon may be there as it is, but none is listed
%2Ehidden                   `.hidden`; names of keys do not begin with `.` or `_`
%                           the empty key
long…%~<32 digits>          a key whose name would be longer than 255 bytes: its beginning, and its hash
apples%@500                 `apples`, if its last record has offset 500
apples%@none                `apples`, if it is not there
"""

from __future__ import annotations

import hashlib
import re
from typing import Final, NamedTuple

from topicfs.engine.record import MAX_INT64, NO_OFFSET

MOST: Final = 255
"""Bytes of a name, at most, as everywhere."""

_HEAD: Final = 200
"""Bytes of the beginning of a long key's name, at most."""

_EMPTY: Final = "%"
_HASH: Final = "%~"
_AT: Final = "%@"
_NONE: Final = "none"

_ESCAPED: Final = re.compile("^[._]|[\x00-\x1f%/:\x7f\udc80-\udcff]")
_ESCAPE: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
_HASHED: Final = re.compile(r".*%~[0-9a-f]{32}", re.DOTALL)
_OFFSET: Final = re.compile(r"0|[1-9][0-9]{0,18}")


class KeyName(NamedTuple):
    """What a name stands for.

    stem      the name without what is expected
    key       the key; None where the name has its hash
    expected  the offset that its last record has to have; NO_OFFSET if the key must not be there; None if any will do
    """

    stem: str
    key: bytes | None
    expected: int | None


def name_of(key: bytes) -> str:
    """Return the name of a key."""
    name = _ESCAPED.sub(_escape, key.decode("utf-8", "surrogateescape")) or _EMPTY
    if len(name) <= MOST // 4 or len(name.encode()) <= MOST:
        return name
    head = name.encode()[:_HEAD].decode(errors="ignore")
    # No escape is cut in two.
    head = re.sub("%.?$", "", head)
    return head + _HASH + hashlib.blake2b(key, digest_size=16).hexdigest()


def parse_key_name(name: str) -> KeyName | None:
    """Return what a name stands for; None if it is no name of a key."""
    stem, separator, told = name.rpartition(_AT)
    expected: int | None = None
    if separator:
        if told == _NONE:
            expected = NO_OFFSET
        elif _OFFSET.fullmatch(told) and int(told) <= MAX_INT64:
            expected = int(told)
        else:
            return None
    else:
        stem = name
    if not stem or stem[0] in "._":
        return None
    if stem == _EMPTY:
        return KeyName(stem, b"", expected)
    if _HASHED.fullmatch(stem):
        return KeyName(stem, None, expected)
    raw = stem.encode("utf-8", "surrogateescape")
    if raw.count(b"%") != len(_ESCAPE.findall(raw)):
        return None
    key = _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), raw)
    return KeyName(stem, key, expected)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"%{code - 0xDC00 if code >= 0xDC80 else code:02X}"
