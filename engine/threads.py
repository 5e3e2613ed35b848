"""Running tasks in several threads."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, wait


def start(thread: threading.Thread) -> None:
    """Start a thread. OSError with ENOMEM where none can be had, as where there is no memory for its stack."""
    try:
        thread.start()
    except RuntimeError as error:
        raise OSError(errno.ENOMEM, f"{thread.name}: {error}") from error


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
