"""The definition of a setting: its name, the values that it takes, and how their text is read and written.

Texts are read as Kafka reads them: blanks around them are dropped, booleans are `true` and `false` in upper or lower
case, lists are separated by commas, numbers are plain digits without units. An empty text is an empty list.
"""

from __future__ import annotations

import difflib
import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from topicfs.engine.errors import InvalidSettingError, shown
from topicfs.engine.files.integers import parse_int32, parse_int64
from topicfs.engine.record import MAX_INT32, MAX_INT64

Value = bool | int | float | str | tuple[str, ...]


class ValueKind(Enum):
    """The type of a setting's value. The enum's values are the words for it in messages."""

    BOOL = "true or false"
    INT = "a whole number of 32 bits"
    LONG = "a whole number of 64 bits"
    DOUBLE = "a number"
    STRING = "one"
    LIST = "a list, separated by commas,"


Range = tuple[float, float]

_LIMITS: Final[dict[ValueKind, Range]] = {
    ValueKind.INT: (-MAX_INT32 - 1, MAX_INT32),
    ValueKind.LONG: (-MAX_INT64 - 1, MAX_INT64),
    ValueKind.DOUBLE: (-sys.float_info.max, sys.float_info.max),
}
_BLANKS: Final = "".join(map(chr, range(33)))
_COMMA: Final = re.compile(r"[ \t\n\v\f\r]*,[ \t\n\v\f\r]*")
_DECIMAL: Final = re.compile(r"[+-]?([0-9]{1,400}\.?[0-9]{0,400}|\.[0-9]{1,400})([eE][+-]?[0-9]{1,5})?")


@dataclass(frozen=True, slots=True)
class Synonym:
    """A daemon-wide setting that gives a topic setting its default.

    name    the name in server.properties
    factor  the number by which a value is multiplied to get the topic setting's unit: 3600000 from hours to ms
    """

    name: str
    factor: int = 1


@dataclass(frozen=True, slots=True)
class Setting:
    """The definition of one setting.

    name      the name, which is Kafka's
    kind      the type of the value, which says how the text is read
    default   the value if nobody sets it; None: then it has no value
    doc       one line of description for people
    ranges    the ranges of numbers that are allowed, both ends included; none: any number of the kind
    choices   the strings, or items of a list, that are allowed; none: any
    synonyms  for a topic setting: the daemon's settings that give its default, the first one that is set counts
    effect    False: it is accepted and checked, because Kafka's files have it, but has no effect on one machine
    """

    name: str
    kind: ValueKind
    default: Value | None
    doc: str
    ranges: tuple[Range, ...] = ()
    choices: tuple[str, ...] = ()
    synonyms: tuple[Synonym, ...] = ()
    effect: bool = True

    def parse(self, text: str) -> Value:
        """Return the value of the text. InvalidSettingError, with the allowed values, where it has none."""
        value = _value(self.kind, text.strip(_BLANKS))
        if value is None or not self._allows(value):
            raise InvalidSettingError(f"{self.name}: expected {self.allowed()}, found {shown(text)}")
        return value

    def allowed(self) -> str:
        """Return the allowed values, in words."""
        if self.choices:
            return f"{self.kind.value} of {', '.join(self.choices)}"
        if not self.ranges:
            return self.kind.value
        return f"{self.kind.value}, {' or '.join(map(self._range, self.ranges))}"

    def _allows(self, value: Value) -> bool:
        if isinstance(value, tuple):
            return not self.choices or all(item in self.choices for item in value)
        if isinstance(value, str):
            return not self.choices or value in self.choices
        return not self.ranges or any(low <= value <= high for low, high in self.ranges)

    def _range(self, limits: Range) -> str:
        low, high = limits
        lowest, highest = _LIMITS[self.kind]
        if low == high:
            return f"{low}"
        if high >= highest:
            return f"at least {low}"
        return f"at most {high}" if low <= lowest else f"{low} to {high}"


def text_of(value: Value) -> str:
    """Return the text that is read as this value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def refuse_unknown(
    level: str, names: Iterable[str], known: Mapping[str, Setting], hints: Mapping[str, str]
) -> None:
    """Raise InvalidSettingError for the first unknown name, with a hint or the known name that is closest."""
    for name in names:
        if name in known:
            continue
        message = f"unknown {level} setting {shown(name)}"
        if name in hints:
            raise InvalidSettingError(f"{message}: {hints[name]}")
        close = difflib.get_close_matches(name[:100], known, n=1)
        raise InvalidSettingError(f"{message}: did you mean {close[0]}?" if close else message)


def _value(kind: ValueKind, text: str) -> Value | None:
    if kind is ValueKind.BOOL:
        return {"true": True, "false": False}.get(text.lower())
    if kind is ValueKind.INT:
        return parse_int32(text)
    if kind is ValueKind.LONG:
        return parse_int64(text)
    if kind is ValueKind.DOUBLE:
        number = float(text) if _DECIMAL.fullmatch(text) else math.inf
        return number if math.isfinite(number) else None
    if kind is ValueKind.LIST:
        return tuple(_COMMA.split(text)) if text else ()
    return text
