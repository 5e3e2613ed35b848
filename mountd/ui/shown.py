"""Keys and values as a page shows them.

They are somebody else's bytes. What is shown of them is text in which nothing moves a cursor, turns a line around or
poses as something else; the templates escape what HTML would read.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import unicodedata
from dataclasses import dataclass
from typing import Any, Final

EXCERPT: Final = 400
"""Characters of a key or value in a table."""

WHOLE: Final = 256 << 10
"""Characters of a key or value on a page of its own."""

_DUMP_BYTES: Final = 1024
_ROW: Final = 16
_EXCERPT_BYTES: Final = 24
_INDENTED: Final = 64 << 10
_INVISIBLE: Final = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp")
_JOINERS: Final = "\u200c\u200d"
"""Invisible too, but parts of words and of emoji."""

_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


@dataclass(frozen=True, slots=True)
class Part:
    """A key or a value.

    kind    null, text, json or binary
    text    the text; of bytes that are no text, lines of hexadecimal digits
    size    the number of its bytes
    is_cut  whether there is more of it than the text has
    """

    kind: str
    text: str
    size: int = 0
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Shown:
    """A record.

    headers  names and values
    is_head  whether it was too large to be read to its end
    """

    offset: int
    timestamp: int
    key: Part
    value: Part
    headers: tuple[tuple[Part, Part], ...] = ()
    is_head: bool = False


def shown(line: bytes, most: int) -> Shown:
    """Return the record of a line of jsonl, with so many characters of its key, value and headers."""
    found = json.loads(line)
    return Shown(
        found["offset"],
        found["timestamp"],
        _part(found, "key", most),
        _part(found, "value", most),
        tuple((_part(each, "key", EXCERPT), _part(each, "value", most)) for each in found["headers"]),
    )


def holds(line: bytes, words: str) -> bool:
    """Tell whether a record has these words in its key, its value or a header."""
    found = json.loads(line)
    each: Any
    parts = [found.get("key"), found.get("value")]
    for each in found["headers"]:
        parts += [each.get("key"), each.get("value")]
    return any(
        words in (part if isinstance(part, str) else json.dumps(part, ensure_ascii=False))
        for part in parts
        if part is not None
    )


def clean(text: str, keep: str = "") -> str:
    r"""Return a text in which what is invisible is shown, as in \x1b, except for what is in `keep`."""
    return "".join(
        char
        if char in keep or char in _JOINERS or unicodedata.category(char) not in _INVISIBLE
        else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text
    )


def indented(text: str) -> str | None:
    """Return JSON with a line for each member, its words as they are; None where the text is no object or list."""
    if len(text) > _INDENTED or text.strip()[:1] not in ("{", "["):
        return None
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    out: list[str] = []
    depth = 0
    tokens = _TOKEN.findall(text)
    for at, token in enumerate(tokens):
        if token in "}]":
            depth -= 1
            if tokens[at - 1] not in "{[":
                out.append("\n" + "  " * depth)
        out.append(token)
        if token == ":":
            out.append(" ")
        elif token == "," or (token in "{[" and tokens[at + 1] not in "}]"):
            depth += token != ","
            out.append("\n" + "  " * depth)
        elif token in "{[":
            depth += 1
    return "".join(out)


def _part(found: dict[str, Any], name: str, most: int) -> Part:
    coded = found.get(f"{name}_base64")
    if isinstance(coded, str):
        size = len(coded) * 3 // 4 - coded[-2:].count("=")
        try:
            data = base64.b64decode(coded[: _DUMP_BYTES * 4 // 3 // 4 * 4])
        except binascii.Error:
            data = b""
        if most <= EXCERPT:
            return Part("binary", data[:_EXCERPT_BYTES].hex(" "), size, size > _EXCERPT_BYTES)
        return Part("binary", dump(data), size, len(data) < size)
    value = found.get(name)
    if value is None:
        return Part("null", "null")
    if isinstance(value, str):
        return Part(
            "text",
            clean(value[:most], "\n\t" if most > EXCERPT else ""),
            len(value.encode()),
            len(value) > most,
        )
    text = json.dumps(value, ensure_ascii=False)
    return Part("json", clean(text[:most]), len(text.encode()), len(text) > most)


def dump(data: bytes) -> str:
    """Return bytes as hexadecimal digits, with the letters among them behind."""
    lines = []
    for at in range(0, len(data), _ROW):
        row = data[at : at + _ROW]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in row)
        lines.append(f"{at:04x}  {row.hex(' '):<{3 * _ROW}} {letters}")
    return "\n".join(lines)
