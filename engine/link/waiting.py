"""Waiting for a cluster on behalf of somebody who may give up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Final, TypeVar

from topicfs.engine.errors import ClusterAwayError

_LOOK_S: Final = 0.2
"""How often a wait looks whether anybody still waits."""

_LAST_S: Final = 2.0
"""How long a question may take that is asked when nobody waits any more."""

T = TypeVar("T")


def answer_of(question: Callable[[], T], is_over: Callable[[], bool]) -> T:
    """Ask a cluster in a thread of its own, and return the answer. ClusterAwayError where `is_over` says, in the
    caller's thread, that nobody waits any more: the question ends by itself. A broker that is frozen, or behind a
    firewall, takes the time of a request, and those that are asked after it as much again."""
    asking = ThreadPoolExecutor(1, "link-question")
    try:
        answer = asking.submit(question)
        # It says so from the beginning where a user's call has to be undone, and in threads that no user waits for.
        end = time.monotonic() + (_LAST_S if is_over() else 0.0)
        while not wait((answer,), _LOOK_S).done:
            if is_over() and time.monotonic() >= end:
                raise ClusterAwayError("the brokers have not answered yet")
        return answer.result()
    finally:
        asking.shutdown(wait=False)


@contextmanager
def in_turn(lock: threading.Lock, is_over: Callable[[], bool]) -> Iterator[None]:
    """Hold a lock that others hold while they wait for a cluster. ClusterAwayError where `is_over` says, in the
    caller's thread, that nobody waits for it any more."""
    end = time.monotonic() + (_LAST_S if is_over() else 0.0)
    while not lock.acquire(timeout=_LOOK_S):
        if is_over() and time.monotonic() >= end:
            raise ClusterAwayError("the brokers have not answered yet to who asked before")
    try:
        yield
    finally:
        lock.release()
