"""A search in several processes, each with a part of the sequences, and states of its own in memory."""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path

from search import Search, Totals

AT_ONCE = 8
"""Sequences that a process does before it tells of them."""

_mine: list[Search] = []
"""The search of this process."""


def search_together(
    place: Path, seed: int, chosen: Sequence[Sequence[str]], jobs: int, until: float
) -> Iterator[Totals]:
    """Yield what was found in parts, until all is done or the time is over. The processes are forked, so that equal
    states have equal hashes in all of them."""
    parts = (chosen[first : first + AT_ONCE] for first in range(0, len(chosen), AT_ONCE))
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(jobs, context, _begin, (place, seed)) as pool:
        waiting: set[Future[Totals]] = {
            pool.submit(_look, part, until) for part in itertools.islice(parts, 2 * jobs)
        }
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
                if time.monotonic() < until and (part := next(parts, None)) is not None:
                    waiting.add(pool.submit(_look, part, until))


def _begin(place: Path, seed: int) -> None:
    _mine.append(Search(place / str(multiprocessing.current_process().pid), seed))


def _look(part: Sequence[Sequence[str]], until: float) -> Totals:
    search = _mine[0]
    search.totals = Totals()
    search.run(part, lambda: time.monotonic() >= until)
    return search.totals
