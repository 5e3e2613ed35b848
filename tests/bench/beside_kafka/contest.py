"""The same work done by topicfs and by Kafka's tools, in turn: seconds, processor seconds and memory of both sides."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

TICKS: Final = os.sysconf("SC_CLK_TCK")
PAGE: Final = os.sysconf("SC_PAGE_SIZE")
ROUNDS: Final = 5
_DROP: Final = Path("/proc/sys/vm/drop_caches")


@dataclass(frozen=True, slots=True)
class Taken:
    """The cost of some work, once.

    seconds    from its begin to its end
    cpu_s      processor seconds of the tool and of the servers behind it; None where they were not looked at
    memory_mb  resident memory of the tool at its most, and of the servers at the end; None as above
    """

    seconds: float
    cpu_s: float | None = None
    memory_mb: float | None = None


@dataclass(frozen=True, slots=True)
class Way:
    """One way to do the work.

    name  the tool
    do    does it once; gets the number of the round, which is -1 where nothing is counted
    """

    name: str
    do: Callable[[int], Taken]

    @classmethod
    def command(cls, name: str, command: str, *servers: int) -> Self:
        """Run a shell command, whose tools are served by these processes."""
        return cls(name, lambda number: run(command, servers))


@dataclass(frozen=True, slots=True)
class Result:
    """What one way took, in all rounds."""

    name: str
    rounds: tuple[Taken, ...]

    @property
    def seconds(self) -> float:
        return statistics.median(taken.seconds for taken in self.rounds)

    @property
    def spread(self) -> tuple[float, float]:
        return min(taken.seconds for taken in self.rounds), max(taken.seconds for taken in self.rounds)

    @property
    def cpu_s(self) -> float | None:
        found = [taken.cpu_s for taken in self.rounds if taken.cpu_s is not None]
        return statistics.median(found) if found else None

    @property
    def memory_mb(self) -> float | None:
        found = [taken.memory_mb for taken in self.rounds if taken.memory_mb is not None]
        return max(found) if found else None


@dataclass(frozen=True, slots=True)
class Contest:
    """The results of one piece of work.

    work   what was done
    ours   topicfs
    others its rivals
    goal   how many times as fast as each of them it is to be, or by their names; None where there is no goal
    amount bytes that were moved, or None: then only seconds are shown
    """

    work: str
    ours: Result
    others: tuple[Result, ...]
    goal: float | Mapping[str, float] | None
    amount: int | None = None

    def goal_beside(self, other: Result) -> float | None:
        return self.goal.get(other.name) if isinstance(self.goal, Mapping) else self.goal

    def ratio(self, other: Result) -> float:
        return other.seconds / self.ours.seconds


@dataclass(slots=True)
class Contests:
    """All contests of a run, as they are measured and told."""

    done: list[Contest] = field(default_factory=list)

    def hold(
        self,
        work: str,
        ours: Way,
        others: Sequence[Way],
        goal: float | Mapping[str, float] | None,
        *,
        rounds: int = ROUNDS,
        amount: int | None = None,
        warm: bool = True,
        before: Callable[[], object] | None = None,
    ) -> None:
        """Do the work in each way in turn, round by round. `warm` does all of it once before; `before` comes before
        each that counts."""
        ways = (ours, *others)
        if warm:
            for way in ways:
                way.do(-1)
        taken: dict[str, list[Taken]] = {way.name: [] for way in ways}
        for number in range(rounds):
            for way in ways:
                if before is not None:
                    before()
                taken[way.name].append(way.do(number))
        results = [Result(way.name, tuple(taken[way.name])) for way in ways]
        self.add(Contest(work, results[0], tuple(results[1:]), goal, amount))

    def add(self, contest: Contest) -> None:
        self.done.append(contest)
        print(f"\n{contest.work}")
        for result in (contest.ours, *contest.others):
            print("  " + "  ".join(cells(contest, result)[1:]).rstrip(), flush=True)


def cells(contest: Contest, result: Result) -> list[str]:
    """One line of the table."""
    low, high = result.spread
    rate = "" if contest.amount is None else f"{contest.amount / result.seconds / 1e6:,.0f} MB/s"
    verdict = ""
    if result is not contest.ours:
        ratio = contest.ratio(result)
        verdict = f"{ratio:.1f} x"
        goal = contest.goal_beside(result)
        if goal is not None:
            verdict += f", goal {goal:g} x: {'met' if ratio >= goal else 'MISSED'}"
    return [
        contest.work,
        result.name,
        f"{shown(result.seconds)} ({shown(low)} to {shown(high)})",
        rate,
        "" if result.cpu_s is None else f"{result.cpu_s:.2f} s",
        "" if result.memory_mb is None else f"{result.memory_mb:,.0f} MB",
        verdict,
    ]


def shown(seconds: float) -> str:
    """A time in the unit in which it has few digits."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"


# -- measuring ----------------------------------------------------------------------------------------


_RUN: Final = """
import os, sys, time
null = os.open(os.devnull, os.O_RDWR)
actions = [(os.POSIX_SPAWN_DUP2, null, 0), (os.POSIX_SPAWN_DUP2, null, 1)]
start = time.perf_counter()
pid = os.posix_spawn("/bin/sh", ["sh", "-c", sys.argv[1]], os.environ, file_actions=actions)
_, status, used = os.wait4(pid, 0)
print(time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3)
sys.exit(os.waitstatus_to_exitcode(status))
"""
"""Runs a shell command from a small process: the largest memory of a command includes what it was forked from."""


def run(command: str, servers: Sequence[int] = ()) -> Taken:
    """Run a shell command, whose tools are served by these processes."""
    before = sum(map(cpu_of, servers))
    done = subprocess.run(
        [sys.executable, "-S", "-c", _RUN, command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}: ended with {done.returncode}: {done.stderr[-2000:]}"
    seconds, cpu, memory = map(float, done.stdout.split())
    cpu += sum(map(cpu_of, servers)) - before
    return Taken(seconds, cpu, memory + sum(map(memory_of, servers)))


def cpu_of(pid: int) -> float:
    """Processor seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_of(pid: int) -> float:
    """MB of memory that a process holds now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / 1e6


def tree(pid: int) -> list[int]:
    """A process and all that it has started."""
    found = [pid]
    for each in found:
        with suppress(FileNotFoundError):
            for task in Path(f"/proc/{each}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def may_be_cold() -> bool:
    """Whether the page cache can be emptied here."""
    return os.access(_DROP, os.W_OK)


def cold() -> None:
    """Empty the page cache."""
    os.sync()
    _DROP.write_text("3")
