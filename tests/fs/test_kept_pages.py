"""What the kernel keeps is known as long as its segment is there, and no longer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from furnished import Furnished, furnished, lines, remove_below


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Furnished]:
    with furnished(tmp_path) as made:
        yield made


def test_files_of_removed_segments_are_forgotten_once_they_are_closed(place: Furnished) -> None:
    shown = place.create()
    handles = []
    for base in range(3):
        lines(shown.partition, b"line")
        shown.partition.roll()
        handles.append(place.files.open(f"/t-0/sealed/txt/{base:020d}.txt", os.O_RDONLY))
    assert all(handle.keep_cache for handle in handles)
    remove_below(shown.partition, 2)
    place.files.release(handles[0].handle)
    place.files.keep_maps()
    assert [path.rpartition("/")[2] for path in shown.kept._kept] == [f"{base:020d}.txt" for base in (1, 2)]
    place.files.release(handles[1].handle)
    place.files.release(handles[2].handle)
    place.files.keep_maps()
    assert [path.rpartition("/")[2] for path in shown.kept._kept] == [f"{2:020d}.txt"]
    assert place.files.open(f"/t-0/sealed/txt/{2:020d}.txt", os.O_RDONLY).keep_cache
