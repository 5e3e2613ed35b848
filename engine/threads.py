"""Running tasks in several threads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, wait


def run_all(threads: Executor, tasks: Iterable[Callable[[], object]]) -> None:
    """Run tasks in these threads, and wait for all of them. Where one fails the others are done, and it is raised then.

    Threads take no task any more when their owner has ended them, and when a program's main thread has ended, while its
    others may still commit, and its `atexit` close a store. Then the tasks run here, one after the other."""
    with contextlib.ExitStack() as done:
        begun = []
        for task in tasks:
            try:
                begun.append(threads.submit(task))
            except RuntimeError:
                done.callback(task)
        for each in begun:
            done.callback(each.result)
        wait(begun)
