"""Names of groups and of their members, and the names of the files that stand for them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import unquote

from topicfs.engine.errors import InvalidNameError, shown

_LONGEST_NAME: Final = 249

_LONGEST_FILE_NAME: Final = 1000
"""Bytes: the kernel takes 1,024 for a name, and gives EIO for a directory in which one has more, or none at all.
Kafka's clients may give groups any name."""

_HEAD: Final = 200
_EMPTY: Final = "%"
_HASH: Final = "%~"


def check_name(name: str) -> None:
    """Refuse what cannot be the name of a group or of a member."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= _LONGEST_NAME:
        raise InvalidNameError(
            f"a group or member: expected a name of 1 to {_LONGEST_NAME} bytes in UTF-8, found {shown(name)}"
        )


def escaped(name: str) -> str:
    """Return the name of a file that stands for a group or a member: % for the empty one, and of one that is too long
    the beginning and its hash."""
    if name in (".", ".."):
        return name.replace(".", "%2E")
    whole = name.replace("%", "%25").replace("/", "%2F").replace("\0", "%00").replace("\n", "%0A") or _EMPTY
    if len(whole.encode(errors="surrogateescape")) <= _LONGEST_FILE_NAME:
        return whole
    head = re.sub("%.?$", "", whole[:_HEAD])
    return head + _HASH + hashlib.blake2b(name.encode(), digest_size=16).hexdigest()


def unescaped(name: str) -> str | None:
    """Return the group or member that a file's name stands for; None where that has another name, or only its hash."""
    found = "" if name == _EMPTY else unquote(name)
    return found if escaped(found) == name else None


def named(name: str) -> str:
    """Return the group or member that a file's name stands for. InvalidNameError where that has another name."""
    found = unescaped(name)
    if found is None:
        raise InvalidNameError(f"{shown(name)}: expected a percent sign as %25, and a line's end as %0A")
    return found


def named_among(name: str, known: Callable[[], Iterable[str]]) -> str | None:
    """Return the group or member that a file's name stands for; one whose name has its hash is looked for in all."""
    if _HASH in name:
        return next((each for each in known() if escaped(each) == name), None)
    return unescaped(name)
