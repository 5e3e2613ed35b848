"""Rows of a benchmark: what was measured, beside its baseline from the same run, and whether the goal is met."""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final, TypeVar

RESULTS: Final = Path(__file__).parent / "results" / "bench.md"

Group = TypeVar("Group")

_LIBRARIES: Final = ("numpy", "numba", "fusepy", "cramjam", "pyarrow", "pyspark")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report.

    work      what was done
    measured  with its unit
    baseline  what it is compared with, with its unit; empty without one
    goal      in words, behind the ratio
    met       whether the goal is met; None where there is none
    """

    work: str
    measured: str
    baseline: str
    goal: str
    met: bool | None

    @property
    def cells(self) -> tuple[str, ...]:
        """Return what is shown, column by column."""
        return (
            self.work,
            self.measured,
            self.baseline,
            self.goal,
            "" if self.met is None else "met" if self.met else "MISSED",
        )


_COLUMNS: Final = ("work", "measured", "baseline", "ratio (lowest to highest), goal", "")


class Report:
    """The tables of one run.

    _tables  the tables so far, with their titles
    """

    def __init__(self) -> None:
        self._tables: list[tuple[str, list[Row]]] = []

    def show(self, title: str, rows: list[Row]) -> None:
        """Print a table, and keep it."""
        self._tables.append((title, rows))
        print(f"\n{title}")
        widths = [max(map(len, column)) for column in zip(*(row.cells for row in rows), strict=True)]
        for row in rows:
            line = "  ".join(cell.ljust(width) for cell, width in zip(row.cells, widths, strict=True))
            print(f"  {line}".rstrip(), flush=True)

    def save(self, took_s: float) -> None:
        """Write all tables into the results."""
        lines = [
            "# `make bench`, whole",
            "",
            f"{machine()}. It took {took_s / 60:.0f} minutes. Rates in GB/s are in units of 10^9 bytes.",
        ]
        for title, rows in self._tables:
            lines += ["", f"## {title}", "", _line(_COLUMNS), _line(["---"] * len(_COLUMNS))]
            lines += [_line(row.cells) for row in rows]
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text("\n".join(lines) + "\n")


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def chosen(groups: Mapping[str, Group], wanted: list[str]) -> Mapping[str, Group]:
    """Return the groups that are wanted, all without a wish. A name that is none ends the program."""
    unknown = sorted(set(wanted) - set(groups))
    if unknown:
        sys.exit(f"ROWS: expected some of {', '.join(groups)}, found {', '.join(unknown)}")
    return {name: group for name, group in groups.items() if not wanted or name in wanted}


def machine() -> str:
    """Name the machine and the versions of what runs on it."""
    words = Path("/proc/cpuinfo").read_text().split("model name\t: ")
    cores = len(words) - 1
    memory = int(Path("/proc/meminfo").read_text().split()[1]) / (1 << 20)
    libraries = ", ".join(f"{name} {version(name)}" for name in _LIBRARIES)
    return (
        f"{cores} processors ({words[1].splitlines()[0]}), {memory:.0f} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}, {libraries}"
    )


def seconds(work: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ours and theirs, measured in turn, so that both meet the same noise: medians, and the ratios of the pairs.

    ours, theirs, ratio  medians of all rounds
    low, high            the lowest and the highest ratio
    """

    ours: float
    theirs: float
    ratio: float
    low: float
    high: float

    def goal(self, least: float | None = None, most: float | None = None) -> tuple[str, bool | None]:
        """Return the ratio with its spread and goal in words, and whether the goal is met."""
        said = f"{self.ratio:.2f} x ({self.low:.2f} to {self.high:.2f})"
        if least is not None:
            return f"{said}, >= {least} x", self.ratio >= least
        if most is not None:
            return f"{said}, <= {most} x", self.ratio <= most
        return said, None


def compare(ours: Callable[[], float], theirs: Callable[[], float], rounds: int = 7) -> Comparison:
    """Measure two numbers in turn."""
    return compared([(ours(), theirs()) for _ in range(rounds)])


def compared(pairs: list[tuple[float, float]]) -> Comparison:
    """Compare numbers that were measured in turn."""
    mine, others = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratios = [a / b for a, b in pairs]
    return Comparison(mine, others, statistics.median(ratios), min(ratios), max(ratios))


def gigabytes(work: str, found: Comparison, baseline: str, least: float | None = None) -> Row:
    """Make the row of a comparison in GB/s, where more is better."""
    return Row(
        work, f"{found.ours:.2f} GB/s", f"{baseline} {found.theirs:.2f} GB/s".strip(), *found.goal(least)
    )


def microseconds(work: str, found: Comparison, baseline: str, least: float | None = None) -> Row:
    """Make the row of a comparison in calls a second, shown by the time that one call takes."""
    return Row(
        work, f"{1e6 / found.ours:.0f} us", f"{baseline} {1e6 / found.theirs:.0f} us", *found.goal(least)
    )


def limited(work: str, value: float, unit: str, least: float | None = None, most: float | None = None) -> Row:
    """Make the row of a number that is compared with nothing but its goal."""
    digits = 0 if value >= 100 else 2
    shown = f"{value:,.{digits}f} {unit}"
    if least is not None:
        return Row(work, shown, "", f">= {least:g} {unit}", value >= least)
    if most is not None:
        return Row(work, shown, "", f"<= {most:g} {unit}", value <= most)
    return Row(work, shown, "", "", None)
