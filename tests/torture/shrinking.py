"""A failing list of rows is made shorter, as long as the same promise is broken: by delta debugging, and then by
smaller numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rows import Row


def shrink(rows: Sequence[Row], fails: Callable[[list[Row]], bool], limit_s: float) -> list[Row]:
    """Leave out rows, the first excepted, and set numbers to 0, where it still fails. It takes about this long."""
    until = time.monotonic() + limit_s
    first, rest = list(rows[:1]), list(rows[1:])

    def still(candidate: list[Row]) -> bool:
        return time.monotonic() < until and fails([*first, *candidate])

    size = max(1, len(rest) // 2)
    while rest:
        at, shorter = 0, False
        while at < len(rest):
            candidate = rest[:at] + rest[at + size :]
            if still(candidate):
                rest, shorter = candidate, True
            else:
                at += size
        if size == 1 and not shorter:
            break
        size = max(1, size // 2)
        if time.monotonic() > until:
            break
    for at, name in enumerate(row.name for row in rest.copy()):
        numbers = rest[at].numbers
        for number in range(len(numbers)):
            smaller = Row(name, (*numbers[:number], 0, *numbers[number + 1 :]))
            candidate = [*rest[:at], smaller, *rest[at + 1 :]]
            if numbers[number] and still(candidate):
                rest, numbers = candidate, smaller.numbers
    return [*first, *rest]
