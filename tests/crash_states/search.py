"""Sequences of operations, all states that a crash may leave behind each, and what breaks a promise.

A sequence is done once, and recorded. Only states behind calls of its last operation are looked at: those before are
the states of shorter sequences.
"""

from __future__ import annotations

import itertools
import logging
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from disk_states import DiskState, Loss, states
from operations import OPERATIONS, InapplicableError, Seen, World, determined, prepare
from promises import History, Step
from recording import Recording
from reopening import Outcome, Reopening, without_threads

DEPTH = 3


@dataclass
class Totals:
    """What was looked at.

    sequences     sequences that were done
    inapplicable  sequences that could not be, as there is nothing for one of their operations
    states        states of the disk that a crash may have left
    by            the same, by what is lost
    distinct      hashes of those that differ in what was opened of them: equal ones are opened once
    findings      what breaks a promise, each with the first state that shows it
    """

    sequences: int = 0
    inapplicable: int = 0
    states: int = 0
    by: Counter[str] = field(default_factory=Counter)
    distinct: set[int] = field(default_factory=set)
    findings: list[str] = field(default_factory=list)

    def add(self, other: Totals) -> None:
        self.sequences += other.sequences
        self.inapplicable += other.inapplicable
        self.states += other.states
        self.by += other.by
        self.distinct |= other.distinct
        self.findings += other.findings

    def __str__(self) -> str:
        by = ", ".join(f"{count:,} where {name}" for name, count in sorted(self.by.items()))
        return (
            f"{self.sequences:,} sequences, {self.states:,} states ({by}), {len(self.distinct):,} of them distinct, "
            f"{len(self.findings)} findings"
        )


def sequences(length: int, names: Iterable[str] = OPERATIONS) -> list[tuple[str, ...]]:
    """All sequences of this length."""
    return list(itertools.product(names, repeat=length))


def chosen(seed: int, depth: int = DEPTH) -> list[tuple[str, ...]]:
    """All sequences up to a depth: the short ones first, and those of one length in an order that the seed chooses."""
    chance = random.Random(seed)
    found = []
    for length in range(1, depth + 1):
        of_length = sequences(length)
        chance.shuffle(of_length)
        found += of_length
    return found


class Search:
    """Does sequences in a directory of its own, and looks at their states.

    place    the directory, which best lies in memory
    totals   what was looked at
    """

    def __init__(self, place: Path, seed: int) -> None:
        # What is recovered is told of, at length, a thousand times a second.
        logging.disable(logging.CRITICAL)
        self.place = place
        self.seed = seed
        self.totals = Totals()
        self._prepared = place / "prepared"
        self._reopening = Reopening(place / "reopened")
        self._said: set[str] = set()
        place.mkdir(parents=True, exist_ok=True)
        with determined():
            prepare(self._prepared)

    def run(self, names: Iterable[Sequence[str]], is_over: Callable[[], bool] = lambda: False) -> None:
        """Look at these sequences, until it is over."""
        for each in names:
            if is_over():
                break
            self.look(each)
        self.totals.distinct |= self._reopening.news()

    def look(self, names: Sequence[str]) -> None:
        """Do one sequence, and look at all states that a crash in its last operation leaves."""
        try:
            recording, history = self.record(names)
        except InapplicableError:
            self.totals.inapplicable += 1
            return
        self.totals.sequences += 1
        first = history.steps[-2].end if len(history.steps) > 1 else 0
        with without_threads():
            for state, outcome, wrong in self.states_of(names, recording, history, first):
                self.totals.states += 1
                self.totals.by[state.loss.value] += 1
                for each in (*outcome.wrong, *wrong):
                    self._found(names, state, each)

    def record(self, names: Sequence[str]) -> tuple[Recording, History]:
        """Do a sequence, and record it."""
        root = self.place / "recorded"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(self._prepared, root)
        recording = Recording.of(root)
        steps = []
        with recording.running(), determined():
            world = World.open(root)
            try:
                before = Seen.of(world.store)
                for name in names:
                    OPERATIONS[name].work(world)
                    after = Seen.of(world.store)
                    steps.append(Step(name, len(recording.calls), before, after))
                    before = after
            finally:
                world.store.abandon()
        recording.check()
        return recording, History(steps, world.sequences)

    def states_of(
        self, names: Sequence[str], recording: Recording, history: History, first: int
    ) -> Iterator[tuple[DiskState, Outcome, tuple[str, ...]]]:
        """Yield each state of the last operation, what becomes of it, and which promises it breaks."""
        alone = all(OPERATIONS[name].alone for name in names)
        chance = random.Random(f"{self.seed}/{names}")
        for state in states(recording, first, chance):
            if state.calls > history.last.end:
                break
            outcome = self._reopening.outcome(state.tree, alone)
            check = history.process if state.loss is Loss.PROCESS else history.power
            wrong = tuple(check(outcome.seen, outcome.whole, state.calls == history.last.end))
            yield state, outcome, wrong

    def _found(self, names: Sequence[str], state: DiskState, wrong: str) -> None:
        kind = f"{state.loss.value}, {' '.join(names[-1:])}: {wrong[:40]}"
        if kind not in self._said:
            self._said.add(kind)
            told = f"{' '.join(names)}: {state.loss.value} behind call {state.calls}: {wrong}"
            self.totals.findings.append(told)
