"""The order of locks that is looked at in all tests: that of engine/CONCURRENCY.md, of all locks that there are."""

from __future__ import annotations

import ast
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lock_order
import pytest
from lock_order import Watched

ROOT = Path(__file__).parents[1]
_KINDS = ("Lock", "RLock", "Condition")


@pytest.fixture
def first_and_last() -> Iterator[tuple[Watched, Watched]]:
    """Two locks in their order."""
    yield Watched(threading.RLock(), "Store._guard"), Watched(threading.RLock(), "Log.lock")
    lock_order.violations.clear()


@pytest.fixture(autouse=True)
def _nothing_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_order, "_seen", set())


def _made(tree: ast.AST, owner: str = "") -> Iterator[str]:
    """The locks that some code makes."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if any(_makes(each) for each in ast.walk(node.value)):
                yield f"{owner}{target.attr if isinstance(target, ast.Attribute) else ast.unparse(target)}"
        yield from _made(node, f"{node.name}." if isinstance(node, ast.ClassDef) else owner)


def _makes(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in _KINDS and ast.unparse(node.value) == "threading"


def test_each_lock_of_the_code_has_its_place_on_the_page() -> None:
    files = [file for layer in ("engine", "fs", "mountd") for file in (ROOT / layer).rglob("*.py")]
    made = sorted(name for file in files for name in _made(ast.parse(file.read_text())))
    assert made == sorted(lock_order.ranks())


def test_locks_are_taken_in_their_order(first_and_last: tuple[Watched, Watched]) -> None:
    first, last = first_and_last
    with first, last, first:
        pass
    assert lock_order.violations == []


def test_a_lock_that_is_taken_against_the_order_is_noted_once_with_its_place(
    first_and_last: tuple[Watched, Watched],
) -> None:
    first, last = first_and_last
    for _ in range(2):
        with last, first:
            pass
    (noted,) = lock_order.violations
    assert noted.startswith("Store._guard is taken inside Log.lock: test_lock_order.py")


def test_two_locks_of_one_kind_have_no_order(first_and_last: tuple[Watched, Watched]) -> None:
    with first_and_last[1], Watched(threading.Lock(), "Log.lock"):
        pass
    assert len(lock_order.violations) == 1


def test_who_holds_the_guard_may_take_the_locks_of_many_partitions(
    first_and_last: tuple[Watched, Watched],
) -> None:
    guard, log = first_and_last
    with guard, log, Watched(threading.Lock(), "Log.lock"), Watched(threading.Lock(), "Slot.lock"):
        pass
    assert lock_order.violations == []
    with log, Watched(threading.Lock(), "Slot.lock"):
        pass
    assert len(lock_order.violations) == 1


def test_who_only_tries_waits_for_nobody(first_and_last: tuple[Watched, Watched]) -> None:
    first, last = first_and_last
    with last:
        assert first.acquire(blocking=False)
        first.release()
    assert lock_order.violations == []


def test_another_thread_may_let_go_of_a_lock() -> None:
    lock = Watched(threading.Lock(), "LineQueue._lock")
    lock.acquire()
    thread = threading.Thread(target=lock.release)
    thread.start()
    thread.join()
    assert lock_order.held() == []
    assert not lock.locked()


def test_who_waits_for_a_condition_does_not_hold_its_lock() -> None:
    lock = Watched(threading.RLock(), "Claims._changed")
    condition = threading.Condition(lock)
    seen: list[Any] = []

    def wake() -> None:
        with condition:
            condition.notify_all()

    thread = threading.Thread(target=wake)
    with lock, condition:
        thread.start()
        assert condition.wait(60)
        seen += lock_order.held()
    thread.join()
    assert seen == [lock]
    assert lock_order.held() == []


def test_a_call_that_waits_for_others_is_noted_where_a_lock_is_held(
    first_and_last: tuple[Watched, Watched],
) -> None:
    call = lock_order.without_locks(len)
    assert call("four") == 4
    assert lock_order.violations == []
    with first_and_last[0]:
        assert call("four") == 4
    assert lock_order.violations[0].startswith("len is called inside Store._guard: ")
