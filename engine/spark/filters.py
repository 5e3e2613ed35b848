"""The bounds that a query's filters set.

Spark pushes filters down if `spark.sql.python.filterPushdown.enabled` is set: conditions that must all hold. Those
on topic, partition, offset and timestamp become bounds, and are then met exactly. Spark applies the others itself.

This happens only if the option `pushFilters` is true. Spark 4.3 keeps the filters that it pushed last, and applies
them wherever the same DataFrame is used without filters: `df.where("offset >= 40").count()`, and then `df.count()`,
count the same few records. A source cannot detect that. So a DataFrame whose filters are pushed must serve one
query, and only its author can know that.

Nothing here imports pyspark: a filter is identified by the name of its class and its two fields.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from topicfs.engine.record import MAX_INT64

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_NUMBERS: Final = ("partition", "offset")


@dataclass(frozen=True, slots=True)
class TimeBounds:
    """Timestamps in ms, both ends included. None means no bound."""

    first: int | None = None
    last: int | None = None


EVERYTHING: Final = TimeBounds()


@dataclass(slots=True)
class Span:
    """Integers from `first` to `last`, both included. If `among` is not None, only its numbers."""

    first: int = -(2**63)
    last: int = MAX_INT64
    among: frozenset[int] | None = None

    def narrow(self, first: int, last: int) -> None:
        """Keep only the numbers that also lie between `first` and `last`."""
        self.first, self.last = max(self.first, first), min(self.last, last)

    def choose(self, values: Iterable[int]) -> None:
        """Keep only the numbers that are also among these."""
        chosen = frozenset(values)
        self.among = chosen if self.among is None else self.among & chosen
        self.narrow(min(chosen, default=0), max(chosen, default=-1))

    def __contains__(self, value: int) -> bool:
        return self.first <= value <= self.last and (self.among is None or value in self.among)


class Filters:
    """The bounds that a query's filters set.

    topics      names of topics, None for all
    partitions  numbers of partitions
    offsets     offsets of records; `among` is left to Spark
    times       timestamps of records, in ms
    """

    def __init__(self) -> None:
        self.topics: frozenset[str] | None = None
        self.partitions = Span()
        self.offsets = Span()
        self.times = Span()

    @property
    def of_records(self) -> TimeBounds:
        """Return the bounds on timestamps, in the form that a task applies."""
        first = None if self.times.first == -(2**63) else self.times.first
        return TimeBounds(first, None if self.times.last == MAX_INT64 else self.times.last)

    def takes(self, topic: str, number: int) -> bool:
        """Return whether a partition may have wanted records."""
        return (self.topics is None or topic in self.topics) and number in self.partitions

    def push(self, filters: Iterable[Any]) -> list[Any]:
        """Accept the filters that can become bounds. Return the filters that Spark still has to apply."""
        return [each for each in filters if not self._take(each)]

    def _take(self, each: Any) -> bool:
        kind = type(each).__name__
        column = each.attribute[0] if len(getattr(each, "attribute", ())) == 1 else None
        if kind == "IsNotNull":
            return column in ("topic", "partition", "offset", "timestamp", "timestampType")
        value = getattr(each, "value", None)
        if column == "topic":
            return self._take_topic(kind, value)
        if column in _NUMBERS:
            span = self.partitions if column == "partition" else self.offsets
            return self._take_number(span, kind, value, exact=column == "partition")
        return column == "timestamp" and self._take_time(kind, value)

    def _take_topic(self, kind: str, value: object) -> bool:
        if kind in ("EqualTo", "EqualNullSafe") and isinstance(value, str):
            wanted = frozenset([value])
        elif kind == "In" and isinstance(value, (tuple, list)):
            wanted = frozenset(each for each in value if isinstance(each, str))
        else:
            return False
        self.topics = wanted if self.topics is None else self.topics & wanted
        return True

    def _take_number(self, span: Span, kind: str, value: Any, exact: bool) -> bool:
        if kind == "In" and isinstance(value, (tuple, list)):
            numbers = [each for each in value if each is not None]
            if not all(type(each) is int for each in numbers):
                return False
            span.choose(numbers)
            return exact
        return type(value) is int and _bound(span, kind, value, value)

    def _take_time(self, kind: str, value: object) -> bool:
        if not isinstance(value, datetime) or value.tzinfo is None:
            return False
        # Literals have microseconds, records have milliseconds: no record lies between two milliseconds.
        floor, rest = divmod(value - _EPOCH, _MILLISECOND)
        return _bound(self.times, kind, floor, floor + bool(rest))


def _bound(span: Span, kind: str, floor: int, ceiling: int) -> bool:
    """Narrow a span by a comparison with a value. The value is an integer, or lies between two integers."""
    match kind:
        case "EqualTo" | "EqualNullSafe":
            span.narrow(ceiling, floor)
        case "GreaterThan":
            span.narrow(floor + 1, MAX_INT64)
        case "GreaterThanOrEqual":
            span.narrow(ceiling, MAX_INT64)
        case "LessThan":
            span.narrow(-(2**63), ceiling - 1)
        case "LessThanOrEqual":
            span.narrow(-(2**63), floor)
        case _:
            return False
    return True
