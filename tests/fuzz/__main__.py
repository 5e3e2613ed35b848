"""`make fuzz`: look for so many minutes in each target, or in one of them, for bytes that should not be taken.

The corpus is kept in build/fuzz, and goes on from one search to the next. With KEEP=1 the best of it is written into
tests/fuzz/corpus. A finding ends the search of its target: the bytes are beside the corpus, and are to be added to the
kept corpus together with the repair.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from fuzz_search import distil, run, search

ROOM = Path(__file__).parents[2] / "build" / "fuzz"


def main() -> int:
    if sys.argv[1:2] == ["--search"]:
        search(sys.argv[2], sys.argv[3:])
        return 0
    from fuzz_targets import TARGETS  # noqa: PLC0415 - what a search imports is watched

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="for all targets together")
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(TARGETS)}")
    given = parser.parse_args()
    names = given.targets or list(TARGETS)
    seconds = max(1, round(given.minutes * 60 / len(names)))
    failed, total = [], 0
    for name in names:
        count, words = run(name, seconds, ROOM)
        total += count
        print(f"{name}: {count:,} inputs, {'a fault' if words else 'no fault'}", flush=True)  # noqa: T201
        if words:
            failed.append(name)
            print(words)  # noqa: T201
        elif os.environ.get("KEEP"):
            distil(name, ROOM)
    print(f"{total:,} inputs, faults in: {', '.join(failed) or 'none'}")  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
