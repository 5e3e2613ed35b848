"""Rows of a benchmark: what was measured, beside its baseline from the same run, and whether the goal is met."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report.

    work      what was done
    measured  with its unit
    baseline  what it is compared with, with its unit; empty without one
    goal      in words
    met       whether the goal is met; None where there is none
    """

    work: str
    measured: str
    baseline: str
    goal: str
    met: bool | None


def show(title: str, rows: list[Row]) -> None:
    """Print a table."""
    print(f"\n{title}")
    widths = [
        max(len(getattr(row, name)) for row in rows) for name in ("work", "measured", "baseline", "goal")
    ]
    for row in rows:
        cells = (row.work, row.measured, row.baseline, row.goal)
        line = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        print(f"  {line}  {'' if row.met is None else 'met' if row.met else 'MISSED'}".rstrip(), flush=True)


def seconds(work: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(
    ours: Callable[[], float], theirs: Callable[[], float], rounds: int = 7
) -> tuple[float, float, float]:
    """Two rates measured in turn, so that both meet the same noise: medians of ours, of theirs, and of the ratios."""
    pairs = [(ours(), theirs()) for _ in range(rounds)]
    mine, others = (statistics.median(side) for side in zip(*pairs, strict=True))
    return mine, others, statistics.median(a / b for a, b in pairs)
