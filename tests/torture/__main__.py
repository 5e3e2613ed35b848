"""`make torture`: random runs until the time is over, or a promise is broken.

python tests/torture [--minutes M] [--seed S] [--rows N] [--environment NAME]
python tests/torture --replay FILE [--outcome FILE]
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import rows as scripts
from other_user import Outcome
from rows import Row
from run import ENVIRONMENTS, draw, run, told
from shrinking import shrink

HERE = Path(__file__).parent
SHRINKING_S = 300.0
AGAIN = 3
"""How often a run that failed once is tried: what hangs on time does not fail each time."""


def main() -> int:
    """Run, and give 1 where a promise is broken."""
    parser = argparse.ArgumentParser(prog="torture")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--rows", type=int, default=60)
    parser.add_argument("--environment", choices=list(ENVIRONMENTS))
    parser.add_argument("--replay", type=Path)
    parser.add_argument("--outcome", type=Path, help="where that of a replay is written down")
    parser.add_argument("--found", type=Path, default=HERE / "found")
    parser.add_argument("--no-shrinking", action="store_true")
    parser.add_argument("--keep-going", action="store_true", help="until the time is over, whatever fails")
    given = parser.parse_args()
    # A run that is ended takes its mounts along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if given.replay:
        outcome = run(scripts.read(given.replay))
        if given.outcome:
            outcome.write(given.outcome)
        print(told(outcome))
        return 1 if outcome.label else 0
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1_000_000)
    print(f"torture with SEED={seed}", flush=True)
    return torture(seed, given)


def torture(seed: int, given: argparse.Namespace) -> int:
    """Run one after the other, and tell the totals at the end, also where somebody ends it."""
    begin = time.monotonic()
    done: Counter[str] = Counter()
    runs = lines = failed = 0
    try:
        while time.monotonic() < begin + given.minutes * 60:
            chance = random.Random(f"{seed}/{runs}")
            environment = given.environment or chance.choice(list(ENVIRONMENTS))
            drawn = draw(chance, environment, given.rows)
            outcome = run(drawn)
            runs += 1
            done += outcome.done
            lines += outcome.lines
            if outcome.label is not None:
                print(f"run {runs - 1} of seed {seed}, on {drawn[0]}: {told(outcome)}", flush=True)
                limit_s = 0 if given.no_shrinking else SHRINKING_S
                found(given.found, f"{seed}-{runs - 1}", drawn, outcome, limit_s)
                failed += 1
                if not given.keep_going:
                    break
    finally:
        minutes = (time.monotonic() - begin) / 60
        print(f"{runs} runs, {done.total()} steps, {lines} lines in {minutes:.0f} minutes, {failed} failed")
        for name, count in sorted(done.items()):
            print(f"  {count:7} {name}")
        sys.stdout.flush()
    return 1 if failed else 0


def found(directory: Path, name: str, drawn: list[Row], outcome: Outcome, limit_s: float) -> None:
    """Make what has failed short, and keep it."""

    def fails(candidate: list[Row]) -> bool:
        return any(run(candidate).label == outcome.label for _ in range(AGAIN))

    short = shrink(drawn, fails, limit_s) if limit_s else drawn
    file = directory / f"{(outcome.label or '').lower()}-{name}.rows"
    scripts.write(file, short, outcome.words.splitlines()[0][:300])
    print(f"{len(short)} of {len(drawn)} rows are enough, kept in {file}:")
    print("".join(f"{row}\n" for row in short), flush=True)


if __name__ == "__main__":
    sys.exit(main())
