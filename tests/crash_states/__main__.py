"""`make crash-states`: the states that crashes leave behind sequences of operations, until the time is over.

python tests/crash_states [--minutes M] [--seed S] [--depth D] [--jobs J]
python tests/crash_states --only "append fsync compact" --seed S

Short sequences come first, then those of the full depth, in an order that the seed chooses.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from search import DEPTH, Search, Totals, chosen
from several_processes import search_together

MEMORY = Path("/dev/shm")
"""A tree of files is written hundreds of times a second: in memory, where there is some."""
TOLD_EACH_S = 30.0


def main() -> int:
    """Search, and give 1 where a promise is broken."""
    parser = argparse.ArgumentParser(prog="crash_states")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--depth", type=int, default=DEPTH)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", help="one sequence: its operations, with blanks between them")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1_000_000)
    print(f"crash states with SEED={seed}", flush=True)
    with tempfile.TemporaryDirectory(
        prefix="crash-states-", dir=MEMORY if MEMORY.is_dir() else None
    ) as place:
        if given.only:
            search = Search(Path(place), seed)
            search.run([given.only.split()])
            totals = search.totals
        else:
            totals = together(Path(place), seed, given.depth, given.jobs, given.minutes * 60)
    for finding in totals.findings if given.only else ():
        print(finding)
    print(totals)
    return 1 if totals.findings else 0


def together(place: Path, seed: int, depth: int, jobs: int, seconds: float) -> Totals:
    """Search in several processes, and tell now and then how far it is."""
    totals = Totals()
    told = time.monotonic()
    for part in search_together(place, seed, chosen(seed, depth), jobs, time.monotonic() + seconds):
        for finding in part.findings:
            print(finding, flush=True)
        totals.add(part)
        if time.monotonic() - told > TOLD_EACH_S:
            told = time.monotonic()
            print(totals, flush=True)
    return totals


if __name__ == "__main__":
    sys.exit(main())
