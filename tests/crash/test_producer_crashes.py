"""A process that dies, or whose disk is full or broken, at each of the system calls of a named producer's append.

Whatever call is the last one: tried again under its sequence after the next start, the file is there once.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
from pathlib import Path

import pytest
from directory_check import check_directory
from syscalls import Calls, Crash, sample
from test_inbox_crashes import column

from topicfs import Store
from topicfs.engine.errors import DuplicateSequenceError, EngineError

STRIDE = 2


def append(store: Store, sequence: int) -> bool:
    producers = store.producers
    try:
        producers.append(producers.holder("p"), "t", 0, sequence, [column(2)])
    except DuplicateSequenceError:
        return False
    return True


def prepared(root: Path) -> Path:
    with Store.open(root, create=True) as store:
        store.create_topic("t", 1)
        store.producers.init("p")
        assert append(store, 0)
    return root


def attempt(root: Path, calls: Calls) -> bool:
    """An append that fails, in a store that ends as a crash ends it. Whether it was told that it is done."""
    store = Store.open(root)
    told = False
    try:
        with calls.patched(), contextlib.suppress(Crash, EngineError, OSError):
            told = append(store, 2)
    finally:
        store.abandon()
    return told


def check(root: Path, told: bool) -> None:
    with Store.open(root) as store:
        found = store.producers.next_sequence("p", "t", 0)
        assert found in (2, 4)
        assert found == 4 or not told
        assert append(store, 2) == (found == 2)
        assert not append(store, 2)
        assert not append(store, 0)
        assert len(list(store.partition("t", 0).records())) == 4
    check_directory(root / "logs/t-0")


@pytest.mark.parametrize(
    ("number", "torn"), [(None, False), (None, True), (errno.EIO, False), (errno.ENOSPC, False)]
)
def test_what_is_tried_again_after_a_crash_or_an_error_at_any_call_is_there_once(
    tmp_path: Path, number: int | None, torn: bool
) -> None:
    root = prepared(tmp_path / "prepared")
    counted = Calls()
    attempt(shutil.copytree(root, tmp_path / "counted"), counted)
    assert counted.count >= 3
    for stop in sample(counted.count + 1, STRIDE, torn):
        place = shutil.copytree(root, tmp_path / f"at-{stop}")
        check(place, attempt(place, Calls(stop, torn, number)))
        shutil.rmtree(place)
