"""What programs hold of a mount is counted, and comes to nothing where a call fails. FS E21."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from append_bench import full_disk
from tree_bench import APPEND, TreeBench, array, tree_bench

from topicfs.fs.errors import BadInputError, answer
from topicfs.fs.views.handle import ViewHandle


@pytest.fixture
def place(tmp_path: Path) -> Iterator[TreeBench]:
    with tree_bench(tmp_path, max_open_files="3", max_followers="1", max_unfinished_bytes="10") as made:
        made.create()
        yield made


def held(place: TreeBench) -> tuple[int, int, int]:
    found = place.files.context.holdings
    return found.open_files.held, found.followers.held, found.unfinished_bytes.held


def refusal(place: TreeBench, path: str, flags: int = os.O_RDONLY) -> str:
    with pytest.raises(Exception, match=r".") as caught:
        place.files.open(path, flags)
    return errno.errorcode[answer(caught.value).errno]


def test_an_open_that_fails_holds_nothing(place: TreeBench) -> None:
    assert refusal(place, "/t-0/nothing") == "ENOENT"
    assert refusal(place, "/t-0/log.txt", os.O_WRONLY) == "EPERM"
    with mock.patch.object(ViewHandle, "__init__", side_effect=OSError(errno.EIO, "broken")):
        assert refusal(place, "/t-0/log.txt") == "EIO"
    assert held(place) == (0, 0, 0)


@pytest.mark.parametrize("path", ["/t-0/follow.txt", "/topics/t/follow.txt"])
def test_a_follower_is_one_open_file_too(place: TreeBench, path: str) -> None:
    first = place.files.open(path, os.O_RDONLY).handle
    assert held(place) == (1, 1, 0)
    assert refusal(place, path) == "ENFILE"
    assert held(place) == (1, 1, 0)
    place.files.release(first)
    assert held(place) == (0, 0, 0)


def test_each_way_in_which_an_unfinished_line_ends_gives_its_bytes_back(place: TreeBench) -> None:
    handle = place.files.open("/t-0/log.txt", APPEND).handle
    for rest in (b"\n", b"more\nand", b"\n"):
        place.files.write(handle, array(b"begun"))
        place.files.write(handle, array(rest))
        assert held(place)[2] == (3 if rest.endswith(b"and") else 0)
    place.files.write(handle, array(b"last"))
    assert held(place)[2] == 4
    place.files.release(handle)
    assert held(place) == (0, 0, 0)
    assert place.read("/t-0/log.txt") == b"begun\nbegunmore\nandbegun\nlast\n"


def test_bytes_that_found_no_room_are_not_counted(place: TreeBench) -> None:
    handle = place.files.open("/t-0/log.txt", APPEND).handle
    with full_disk(), pytest.raises(OSError, match="space"):
        place.files.write(handle, array(b"begun"))
    assert held(place)[2] == 0
    place.files.release(handle)


def test_refusals_of_groups_are_kept_of_so_many_names(place: TreeBench) -> None:
    for number in range(1500):
        place.files.context.note_refusal(BadInputError("no"), f"/groups/g{number}")
    kept = place.files.context.group_refusals
    assert len(kept) == 1000
    assert "g1499" in kept
