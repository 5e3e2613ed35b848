"""Reading, writing and editing Java properties files.

    # comment, also after '!'
    name=value              or `name: value`, or `name value`
    long = first half \\     a backslash at the line's end: it continues, without the next line's leading blanks
           second half
    \\t \\n \\r \\f \\uXXXX      escapes, in names too; before any other character a backslash is dropped

Bytes are ISO-8859-1; other characters are written as \\uXXXX, those beyond the first Unicode plane as two of them.
If several lines have the same name, the last one counts. A name without a separator has the empty value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from topicfs.engine.errors import CorruptCheckpointError, shown
from topicfs.engine.files.atomic import read_bounded, write_atomically
from topicfs.engine.record import Clock, now_ms

# A file with all settings, and a long comment for each, has some 50 KB.
MAX_BYTES: Final = 1024 * 1024

_BLANKS: Final = " \t\f"
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_ENTRY: Final = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*(?:[=:][ \t\f]*)?(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_SPECIAL: Final = re.compile(r"[^ -~]|[\\=:#!]")
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_CONTROL_NAMES: Final = {control: name for name, control in _CONTROLS.items()}


def read_properties(path: Path) -> dict[str, str]:
    """Return names and values. FileNotFoundError if the file is missing, CorruptCheckpointError for a broken escape."""
    values = {}
    for _, name, value in _entries(path, read_bounded(path, MAX_BYTES, follow=True).decode("iso-8859-1")):
        values[name] = value
    return values


def write_properties(path: Path, values: Mapping[str, str], comment: str = "", clock: Clock = now_ms) -> None:
    """Replace the file's content, durably: the comment, the date, then the values in their order."""
    lines = [f"#{_escaped(line)}" for line in comment.split("\n")]
    lines.append(f"#{_date(clock())}")
    lines.extend(f"{_escaped_name(name)}={_escaped_value(value)}" for name, value in values.items())
    write_atomically(path, "".join(f"{line}\n" for line in lines).encode("ascii"))


def edit_properties(path: Path, changes: Mapping[str, str | None]) -> None:
    """Change values in the file, durably; None removes a name. Other lines and comments stay as they are.

    A missing file counts as an empty one. A broken escape in the file raises CorruptCheckpointError.
    """
    try:
        text = read_bounded(path, MAX_BYTES, follow=True).decode("iso-8859-1")
    except FileNotFoundError:
        text = ""
    lines: list[str | None] = list(_LINE_END.split(text))
    places: dict[str, int] = {}
    for numbers, name, _ in _entries(path, text):
        if name in changes:
            places[name] = numbers.start
            for number in numbers:
                lines[number] = None
    while lines and not lines[-1]:
        lines.pop()
    # After a backslash at the end of the file, an added line would count as its continuation.
    ends = [""] if lines and (lines[-1] or "").endswith("\\") else []
    for name, value in changes.items():
        if value is None:
            continue
        line = f"{_escaped_name(name)}={_escaped_value(value)}"
        if places.get(name, len(lines)) < len(lines):
            lines[places[name]] = line
        else:
            ends.append(line)
    kept = [line for line in (*lines, *ends) if line is not None]
    write_atomically(path, "".join(f"{line}\n" for line in kept).encode("iso-8859-1"))


def _entries(path: Path, text: str) -> Iterator[tuple[range, str, str]]:
    """Give each entry: the range of its lines, counted from 0, its name and its value."""
    for lines, line in _logical_lines(text):
        entry = _ENTRY.fullmatch(line)
        assert entry is not None, "every text has the form: name, optional separator, rest"
        try:
            name, value = _unescaped(entry[1]), _unescaped(entry[2])
        except ValueError as error:
            raise CorruptCheckpointError(f"{path}: line {lines.start + 1}: {error}") from None
        yield lines, name, value


def _logical_lines(text: str) -> Iterator[tuple[range, str]]:
    """Give each line with its continuations joined, and the range of its natural lines. Comments and blank lines are
    left out."""
    first, number, parts = 0, 0, ""
    for number, natural in enumerate(_LINE_END.split(text)):
        line = natural.lstrip(_BLANKS)
        if not parts:
            first = number
            if not line or line[0] in "#!":
                continue
        if (len(line) - len(line.rstrip("\\"))) % 2:
            parts += line[:-1]
            continue
        yield range(first, number + 1), parts + line
        parts = ""
    if parts:
        yield range(first, number + 1), parts


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    # Two escapes may be the two halves (surrogates) of one character.
    return _ESCAPE.sub(_character, text).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _character(escape: re.Match[str]) -> str:
    name = escape[1]
    if name == "u":
        raise ValueError(
            f"expected 4 hexadecimal digits after \\u, found {shown(escape.string[escape.end() :])}"
        )
    if len(name) > 1:
        return chr(int(name[1:], 16))
    return _CONTROLS.get(name, name)


def _escaped_name(text: str) -> str:
    return _SPECIAL.sub(_escape, text).replace(" ", "\\ ")


def _escaped_value(text: str) -> str:
    # Only a blank at the beginning would be read as part of the separator.
    escaped = _SPECIAL.sub(_escape, text)
    return f"\\{escaped}" if escaped.startswith(" ") else escaped


def _escape(special: re.Match[str]) -> str:
    character = special[0]
    if character in "\\=:#!":
        return f"\\{character}"
    if character in _CONTROL_NAMES:
        return f"\\{_CONTROL_NAMES[character]}"
    return _unicode_escape(character)


def _escaped(comment: str) -> str:
    """Return a line of a comment for writing. Comments have no escapes; other characters than ASCII are written as
    \\uXXXX for people to read."""
    return re.sub(r"[^ -~]", lambda found: _unicode_escape(found[0]), comment)


def _unicode_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02X}{units[at + 1]:02X}" for at in range(0, len(units), 2))


def _date(milliseconds: int) -> str:
    """Return a date as Java prints it, `Tue Nov 18 11:37:00 UTC 2025`, in English whatever the locale."""
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    weekday, month = moment.ctime().split()[:2]
    return f"{weekday} {month} {moment:%d %H:%M:%S} UTC {moment:%Y}"
