"""A disk that is full or broken, and a death, at each of the system calls of what changes a group: a position, members.

Each is done and told so, or it failed and nothing is changed: at once, and after a start. No partition has two owners.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from syscalls import Calls

from topicfs import Store
from topicfs.engine.errors import EngineError
from topicfs.engine.groups.groups import Groups, Worker

KEY = ("t", 0)


def worker(groups: Groups) -> Worker:
    member = groups.members("shared")["w1"]
    return Worker(member.name, member.member_id)


ACTIONS: dict[str, Callable[[Groups], object]] = {
    "position": lambda groups: groups.commit("readers", {KEY: 2, ("t", 1): 0}, {KEY: 1, ("t", 1): None}),
    "removal": lambda groups: groups.forget("readers", KEY),
    "group": lambda groups: groups.create("new"),
    "member": lambda groups: groups.join("shared", "w2", ["t"]),
    "sign of life": lambda groups: groups.heartbeat("shared", worker(groups)),
    "farewell": lambda groups: groups.leave("shared", "w1"),
    "position of a member": lambda groups: groups.commit("shared", {("t", 1): 0}, worker=worker(groups)),
}


def prepared(root: Path) -> Path:
    with Store.open(root, create=True) as store:
        store.create_topic("t", 3)
        store.partition("t", 0).append_lines(b"x\n" * 3)
        groups = Groups.of(store)
        for name in ("readers", "shared"):
            groups.create(name)
        groups.commit("readers", {KEY: 1})
        groups.join("shared", "w1", ["t"])
        groups.join("shared", "w3", ["t"])
    return root


def state(groups: Groups) -> dict[str, Any]:
    """Positions, and what each member has, of each group."""
    found = {}
    for name in groups.names():
        members = groups.members(name)
        given = [key for member in members.values() for key in member.given]
        assert len(given) == len(set(given))
        positions = {key: position.offset for key, position in groups.positions(name).items()}
        found[name] = positions, {member.name: sorted(member.given) for member in members.values()}
    return found


def opened(root: Path) -> dict[str, Any]:
    with Store.open(root) as store:
        return state(Groups.of(store))


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize(("number", "lasting"), [(errno.EIO, False), (errno.ENOSPC, True)])
def test_a_change_of_a_group_is_done_or_not_done(
    tmp_path: Path, action: str, number: int, lasting: bool
) -> None:
    root = prepared(tmp_path / "prepared")
    done = shutil.copytree(root, tmp_path / "done")
    calls = Calls()
    with Store.open(done) as store:
        groups = Groups.of(store)
        before = state(groups)
        with calls.patched():
            ACTIONS[action](groups)
        after = state(groups)
    assert opened(done) == after != before
    assert calls.count
    for stop in range(calls.count):
        place = shutil.copytree(root, tmp_path / f"at-{stop}")
        store = Store.open(place)
        groups = Groups.of(store)
        state(groups)
        failed = False
        with Calls(stop, error=number, lasting=lasting).patched():
            try:
                ACTIONS[action](groups)
            except (EngineError, OSError):
                failed = True
        expected = before if failed else after
        assert state(groups) == expected, f"call {stop}"
        store.abandon()
        assert opened(place) == expected, f"call {stop}, after a start"
        shutil.rmtree(place)
