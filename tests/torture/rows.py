"""What a run does: a list of rows, each the name of a step and some numbers. All that a step chooses, it chooses by
its numbers, so a list of rows can be run again, kept in a file, and made shorter."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

NUMBERS: Final = 12
HIGHEST: Final = 9999

T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """A step.

    name     of the function that does it
    numbers  what it chooses by; those that are missing are 0
    """

    name: str
    numbers: tuple[int, ...] = ()

    def __str__(self) -> str:
        return json.dumps([self.name, *self.numbers])


class Numbers:
    """The numbers of a row, taken one after the other."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self._left = iter(numbers)

    def below(self, limit: int) -> int:
        """A number from 0 on."""
        return next(self._left, 0) % limit

    def pick(self, choices: Sequence[T]) -> T:
        """One of them; the first one by the number 0."""
        return choices[self.below(len(choices))]


def draw(chance: random.Random, steps: Mapping[str, float], count: int) -> list[Row]:
    """Draw rows at random, each step as often as its weight says."""
    names = chance.choices(list(steps), list(steps.values()), k=count)
    return [Row(name, tuple(chance.randrange(HIGHEST) for _ in range(NUMBERS))) for name in names]


def write(file: Path, rows: Iterable[Row], words: str) -> None:
    """Keep rows in a file, with words of what they found in front."""
    said = "".join(f"# {line}\n" for line in words.splitlines())
    file.write_text(said + "".join(f"{row}\n" for row in rows))


def read(file: Path) -> list[Row]:
    """Read rows that were kept."""
    lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    return [Row(name, tuple(numbers)) for name, *numbers in map(json.loads, lines)]


Step = Callable[[Any, Numbers], None]


class Table:
    """Steps of one kind: a workload, a fault or a way of reading is one function in one of these.

    steps    by their names
    weights  how often each is drawn, beside the others
    """

    def __init__(self) -> None:
        self.steps: dict[str, Step] = {}
        self.weights: dict[str, float] = {}

    def row(self, weight: float = 1) -> Callable[[Step], Step]:
        """Put a function into the table."""

        def put(step: Step) -> Step:
            self.steps[step.__name__] = step
            self.weights[step.__name__] = weight
            return step

        return put
