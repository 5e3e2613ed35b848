"""Whether locks are taken in the order that engine/CONCURRENCY.md writes down: looked at in each test, in its own
process and in its daemons.

`watch` is called before anything of topicfs is imported. From then on the locks that topicfs makes note which others
their thread holds, and one that is taken against the order becomes an entry of `violations`: it fails the test, or in a
daemon it is an error in the log, which does that too. With LOCK_PAUSES=<seed> threads sometimes sleep for a moment
before they take a lock and after they let go of it: what may go wrong between two threads goes wrong more often then.
"""

from __future__ import annotations

import dataclasses
import linecache
import logging
import os
import random
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

PAGE: Final = Path(__file__).parents[1] / "engine/CONCURRENCY.md"
_CODE: Final = re.compile(r"`((?:\w+\.)?\w+)`")
_MADE: Final = re.compile(r"(\w+)(?::[^=]+)? = threading\.")
_PAUSE_S: Final = 0.002
_LATE_S: Final = 0.05

GUARD: Final = "Store._guard"
WITH_GUARD: Final = frozenset({"Slot.lock", "Flusher.lock", "Log.lock", "Deletions._lock"})
"""Locks that whoever holds the store's guard may take in any order, and several of a kind: nobody else holds more than
one partition's."""

SEVERAL: Final = frozenset({"Inbox._lock"})
"""Locks of which one thread may hold several of a kind, which it takes in an order of their own, as the page says."""

HANDED_ON: Final = "LineQueue._lock"
APPENDING: Final = frozenset({"AppendHandle._lock", HANDED_ON})
"""A writer leaves its queue's lock to the thread that appends behind it, and goes on: it only seems to hold it then."""

violations: list[str] = []
_seen: set[tuple[str, str]] = set()
_thread = threading.local()
_log = logging.getLogger("topicfs.locks")
_random = random.Random()
_pauses = False


def rows() -> Iterator[list[str]]:
    """The names of the locks in each row of the page's table, in its order."""
    table = PAGE.read_text().partition("## Locks, in the order")[2].partition("\n## ")[0]
    for line in table.splitlines():
        if line.startswith("| ") and not line.startswith("| lock |"):
            yield _CODE.findall(re.sub(r"\(.*?\)", "", line.split("|")[1]))


def ranks() -> dict[str, int]:
    """The row of each lock."""
    return {name: row for row, names in enumerate(rows()) for name in names}


def check(locks: list[Any], name: str, rank: int) -> None:
    """Look at a lock that is taken while others are held."""
    for other in locks:
        pair = other.name, name
        if pair in _seen:
            continue
        is_below = other.rank < rank or (other.rank == rank and other.name != name)
        if not is_below and WITH_GUARD.issuperset(pair) and any(each.name == GUARD for each in locks):
            continue
        if other.name == name and name in SEVERAL:
            continue
        if other.name == HANDED_ON and name in APPENDING:
            continue
        _seen.add(pair)
        if not is_below:
            report(f"{name} is taken inside {other.name}")


def without_locks(call: Callable[..., Any], but: str = "") -> Callable[..., Any]:
    """Have it noted if a thread with a lock, other than `but`, makes a call that waits for others."""

    def checked(*arguments: Any) -> Any:
        names = [each.name for each in held() if each.name != but]
        if names:
            report(f"{call.__name__} is called inside {names[-1]}")
        return call(*arguments)

    return checked


def report(words: str) -> None:
    """Note a violation, with where it is."""
    stack = " < ".join(
        f"{Path(at.filename).name}:{at.lineno} {at.name}"
        for at in reversed(traceback.extract_stack())
        if at.filename != __file__
    )
    violations.append(f"{words}: {stack[:2000]}")
    _log.error(violations[-1])


def held() -> list[Any]:
    """The locks that this thread holds, in the order in which it took them."""
    try:
        return _thread.locks  # type: ignore[no-any-return]
    except AttributeError:
        _thread.locks = []
        return _thread.locks  # type: ignore[no-any-return]


@contextmanager
def another_thread() -> Iterator[None]:
    """For what a test does here in the place of another thread, which has none of this one's locks."""
    mine = held()
    _thread.locks = []
    try:
        yield
    finally:
        _thread.locks = mine


class Watched:
    """A lock that notes who holds it. `threading.Condition` uses the methods that begin with an underscore.

    name   its class and attribute
    rank   its row on the page
    _lock  the lock itself
    _by    the list of the thread that took it: another thread may let go of it
    _deep  how often that thread holds it
    """

    __slots__ = ("_by", "_deep", "_lock", "name", "rank")

    def __init__(self, lock: Any, name: str) -> None:
        self._lock = lock
        self.name = name
        self.rank = _ranks.get(name, -1)
        self._by: list[Any] | None = None
        self._deep = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        mine = held()
        if self._by is not mine:
            if mine and blocking:
                check(mine, self.name, self.rank)
            if _pauses:
                _pause()
        if not self._lock.acquire(blocking, timeout):
            return False
        self._deep += 1
        if self._deep == 1:
            self._by = mine
            mine.append(self)
        return True

    def release(self) -> None:
        self._deep -= 1
        if self._deep == 0:
            self._let_go()
        self._lock.release()
        if _pauses:
            _pause()

    def _let_go(self) -> None:
        by, self._by = self._by, None
        if by is not None:
            by.remove(self)

    def locked(self) -> bool:
        return self._lock.locked()  # type: ignore[no-any-return]

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    def _is_owned(self) -> bool:
        return self._by is held()

    def _release_save(self) -> tuple[Any, int]:
        deep, self._deep = self._deep, 0
        self._let_go()
        return self._lock._release_save(), deep

    def _acquire_restore(self, saved: tuple[Any, int]) -> None:
        self._lock._acquire_restore(saved[0])
        self._deep = saved[1]
        self._by = held()
        self._by.append(self)


def _pause() -> None:
    if _random.random() < 0.05:
        time.sleep(_random.random() * _PAUSE_S)


def late(call: Callable[..., Any]) -> Callable[..., Any]:
    """Have a call that nobody waits for begin later where LOCK_PAUSES is given: a test that expects its effect at once
    fails so on each machine, and not on a busy one alone."""

    def made(*arguments: Any) -> Any:
        if _pauses:
            time.sleep(_random.random() * _LATE_S)
        return call(*arguments)

    return made


def _name(frame: FrameType) -> str | None:
    """The class and attribute of a lock that is made there; None if it is not one of topicfs."""
    if not frame.f_globals.get("__name__", "").startswith("topicfs."):
        return None
    code = frame.f_code
    if code.co_filename == "<string>":
        # The generated __init__ of a dataclass. Each has one lock.
        owner = type(frame.f_locals["self"])
        (name,) = [each.name for each in dataclasses.fields(owner) if each.default_factory in _makers]
        return f"{owner.__name__}.{name}"
    made = _MADE.search(linecache.getline(code.co_filename, frame.f_lineno))
    assert made is not None, f"a lock without a name at {code.co_filename}:{frame.f_lineno}"
    owner_name = code.co_qualname.split(".")[0]
    return made[1] if owner_name == "<module>" else f"{owner_name}.{made[1]}"


_makers: list[Any] = []
_reentrant: Final = threading.RLock
_ranks: dict[str, int] = {}


def _maker(make: Callable[[], Any]) -> Callable[[], Any]:
    def made() -> Any:
        name = _name(sys._getframe(1))
        return make() if name is None else Watched(make(), name)

    _makers.append(made)
    return made


class WatchedCondition(threading.Condition):
    """A condition with such a lock."""

    def __init__(self, lock: Any = None) -> None:
        name = None if lock is not None else _name(sys._getframe(1))
        super().__init__(lock if name is None else Watched(_reentrant(), name))


def pause_as_told() -> None:
    """Have threads of this process sleep at locks, where LOCK_PAUSES tells so."""
    global _pauses  # noqa: PLW0603 - one of the process
    seed = os.environ.get("LOCK_PAUSES")
    if seed is not None:
        _pauses = True
        _random.seed(f"{seed} {os.getpid()}")


def watch() -> None:
    """Watch the locks that are made from now on."""
    assert not any(name.startswith("topicfs.") for name in sys.modules), "topicfs has made locks already"
    _ranks.update(ranks())
    pause_as_told()
    os.register_at_fork(after_in_child=pause_as_told)
    threading.Lock = _maker(threading.Lock)  # type: ignore[misc,assignment]
    threading.RLock = _maker(threading.RLock)  # type: ignore[misc,assignment]
    _makers.append(WatchedCondition)
    threading.Condition = WatchedCondition  # type: ignore[misc]
