"""A disk that is full or broken at each of the system calls of what changes a store by command: topics that are made,
settings, the start offset.

Each is done and told so, or it is told that it failed and nothing is changed: at once, and after a start.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from syscalls import Calls

from topicfs import Record, Store
from topicfs.engine.errors import EngineError

ACTIONS: dict[str, Callable[[Store], object]] = {
    "start": lambda store: store.delete_records("t", 0, 2),
    "start, all": lambda store: store.delete_records("t", 0, -1),
    "settings": lambda store: store.configure("t", {"retention.ms": "5000", "segment.ms": None}),
    "first settings": lambda store: store.configure("u", {"retention.ms": "5000"}),
    "partition": lambda store: store.create("t", 2),
    "topic": lambda store: store.create_topic("new", 2),
    "topic with settings": lambda store: store.create_topic("new", 2, {"retention.ms": "5000"}),
}


def prepared(root: Path) -> Path:
    with Store.open(root, create=True) as store:
        store.create_topic("t", 2, {"segment.ms": "9000"})
        store.create_topic("u", 1)
        for _ in range(3):
            store.partition("t", 0).append(Record(b"x"))
        store.partition("t", 0).flush()
    return root


def state(store: Store) -> dict[str, Any]:
    """What holds of it all."""
    return {
        "topics": store.topics(),
        "start": {key: store.partition(*key).start_offset for key in store.partitions()},
        "settings": {
            topic: [each for each in store.explain(topic) if each.source == "topic"]
            for topic in store.topics()
        },
    }


def opened(root: Path) -> dict[str, Any]:
    with Store.open(root) as store:
        return state(store)


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize(
    ("number", "lasting"), [(errno.EIO, False), (errno.ENOSPC, True), (errno.ENOSPC, False)]
)
def test_a_control_write_is_done_or_not_done(tmp_path: Path, action: str, number: int, lasting: bool) -> None:
    root = prepared(tmp_path / "prepared")
    done = shutil.copytree(root, tmp_path / "done")
    calls = Calls()
    with Store.open(done) as store:
        before = state(store)
        with calls.patched():
            ACTIONS[action](store)
        after = state(store)
    assert opened(done) == after != before
    for stop in range(0, calls.count):
        place = shutil.copytree(root, tmp_path / f"at-{stop}")
        store = Store.open(place)
        failed = False
        with Calls(stop, error=number, lasting=lasting).patched():
            try:
                ACTIONS[action](store)
            except (EngineError, OSError):
                failed = True
        expected = before if failed else after
        assert state(store) == expected, f"call {stop}"
        store.abandon()
        assert opened(place) == expected, f"call {stop}, after a start"
        shutil.rmtree(place)
