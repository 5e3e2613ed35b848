"""Sequences of operations, all states that a crash may leave behind each, and what breaks a promise.

A sequence is done once, and recorded. Only states behind calls of its last operation are looked at: those before are
the states of shorter sequences. Of some of these states, which the seed chooses, the recovery is recorded too, and all
states that a crash in it leaves are looked at.
"""

from __future__ import annotations

import itertools
import logging
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from disk_states import DiskState, Loss, states
from operations import OPERATIONS, InapplicableError, Seen, World, determined, prepare
from promises import History, Step, only, unlike
from recording import Recording
from recovering import Sample, states_of_recovery
from reopening import Outcome, Reopening, without_threads

DEPTH = 3
RECOVERIES = 1
MOST = 150
"""Different states of one recovery that are looked at, of each kind of crash: there may be 10,000."""
STORE = 5
"""So many states of partitions take as long as one of a store."""


_NUMBER = re.compile("[0-9]+")


@dataclass
class Totals:
    """What was looked at.

    sequences     sequences that were done
    inapplicable  sequences that could not be, as there is nothing for one of their operations
    states        states of the disk that a crash may have left
    recoveries    recoveries of some of these states that were recorded
    in_recovery   states that a crash in one of these recoveries may have left: they are counted as states too
    by            the states, by what is lost
    distinct      hashes of those that differ in what was opened of them: equal ones are opened once
    findings      what breaks a promise, each with the first state that shows it
    """

    sequences: int = 0
    inapplicable: int = 0
    states: int = 0
    recoveries: int = 0
    in_recovery: int = 0
    by: Counter[str] = field(default_factory=Counter)
    distinct: set[int] = field(default_factory=set)
    findings: list[str] = field(default_factory=list)

    def add(self, other: Totals) -> None:
        self.sequences += other.sequences
        self.inapplicable += other.inapplicable
        self.states += other.states
        self.recoveries += other.recoveries
        self.in_recovery += other.in_recovery
        self.by += other.by
        self.distinct |= other.distinct
        self.findings += other.findings

    def __str__(self) -> str:
        by = ", ".join(f"{count:,} where {name}" for name, count in sorted(self.by.items()))
        return (
            f"{self.sequences:,} sequences, {self.states:,} states ({by}), {self.in_recovery:,} of them in one of "
            f"{self.recoveries:,} recoveries, {len(self.distinct):,} of them distinct, {len(self.findings)} findings"
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

    place        the directory, which best lies in memory
    recoveries   of how many states of a sequence, at most, the recovery is looked at, of each kind of crash
    most         how many states of each such recovery are looked at, at most, of each kind of crash
    losses       the crashes in the sequence itself that are looked at
    totals       what was looked at
    """

    def __init__(self, place: Path, seed: int, recoveries: int = RECOVERIES) -> None:
        # What is recovered is told of, at length, a thousand times a second.
        logging.disable(logging.CRITICAL)
        self.place = place
        self.seed = seed
        self.recoveries = recoveries
        self.most = MOST
        self.losses: Collection[Loss] = tuple(Loss)
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
        # What is drawn goes by these names, however they were given.
        names = tuple(names)
        try:
            recording, history = self.record(names)
        except InapplicableError:
            self.totals.inapplicable += 1
            return
        self.totals.sequences += 1
        first = history.steps[-2].end if len(history.steps) > 1 else 0
        chance = random.Random(f"{self.seed}/{names}/recovery")
        unclean = {loss: Sample[tuple[DiskState, str]](self.recoveries, chance) for loss in Loss}
        with without_threads():
            for state, outcome, wrong in self.states_of(names, recording, history, first):
                self._count(state)
                for each in (*outcome.wrong, *wrong):
                    self._found(names, _told(state), each)
                for topic, key in outcome.unclean.items():
                    unclean[state.loss].offer(key, (state, topic))
            for sample in unclean.values():
                for state, topic in sample.kept:
                    self._look_at_recovery(names, recording, history, state, topic, chance)

    def _look_at_recovery(
        self,
        names: Sequence[str],
        recording: Recording,
        history: History,
        found: DiskState,
        topic: str,
        chance: random.Random,
    ) -> None:
        """Look at states that a crash leaves in the recovery of a state: of a topic's partition, or of the store."""
        recovery = self._reopening.recovery(found.tree.files, topic)
        if recovery is None:
            return
        self.totals.recoveries += 1
        alone = bool(topic)
        size = self.most if alone else self.most // STORE
        cut = {loss: Sample[tuple[int, DiskState]](size, chance) for loss in Loss}
        for calls, state in states_of_recovery(recording, found, recovery, chance):
            cut[state.loss].offer(self._reopening.key(state.tree, alone), (calls, state))
        uncut = self._reopening.outcome(found.tree, alone).seen
        is_done = found.calls == history.last.end and found.torn is None
        for calls, state in itertools.chain.from_iterable(sample.kept for sample in cut.values()):
            self._count(state)
            self.totals.in_recovery += 1
            outcome = self._reopening.outcome(state.tree, alone)
            dies_twice = found.loss is state.loss is Loss.PROCESS
            check = history.process if dies_twice else history.power
            wrong = list(check(outcome.seen, outcome.whole, is_done))
            if dies_twice or found.loss is Loss.POWER:
                wrong += unlike(outcome.seen, uncut)
            elif calls >= recovery.flushed and (is_done or names[-1] != "truncate"):
                # What a cut that was not finished has left out may come back: the leader's epochs cut it off again.
                parts = {f"{each}-0" for each in recovery.topics}
                wrong += unlike(only(outcome.seen, parts), only(uncut, parts))
            for each in (*outcome.wrong, *wrong):
                self._found(
                    names, f"{_told(found)}, and in its recovery {state.loss.value} behind call {calls}", each
                )

    def _count(self, state: DiskState) -> None:
        self.totals.states += 1
        self.totals.by[state.loss.value] += 1

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
            if state.loss not in self.losses:
                continue
            outcome = self._reopening.outcome(state.tree, alone)
            check = history.process if state.loss is Loss.PROCESS else history.power
            wrong = tuple(check(outcome.seen, outcome.whole, state.calls == history.last.end))
            yield state, outcome, wrong

    def _found(self, names: Sequence[str], crash: str, wrong: str) -> None:
        kind = f"{_NUMBER.sub('', crash)}, {names[-1]}: {wrong[:40]}"
        if kind not in self._said:
            self._said.add(kind)
            self.totals.findings.append(f"{' '.join(names)}: {crash}: {wrong}")


def _told(state: DiskState) -> str:
    return f"{state.loss.value} behind call {state.calls}"
