"""Which file a name means."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from topicfs.engine.files import birth as births
from topicfs.engine.files.birth import Birth, birth


def test_it_stays_when_a_file_grows_and_is_renamed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"")
    before = birth(path)
    assert before.inode == path.stat().st_ino
    assert before.made_ns == 0 or abs(before.made_ns - time.time_ns()) < 10_000_000_000
    path.write_bytes(b"more")
    os.utime(path, (1, 1))
    path.rename(tmp_path / "b")
    assert birth(tmp_path / "b") == before


def test_a_file_that_is_made_again_is_another_one(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"")
    if not birth(path).made_ns:
        pytest.skip("this file system does not tell when a file was made")
    found = set()
    for _ in range(20):
        found.add(birth(path))
        path.unlink()
        # File systems tell times by the clock's tick.
        time.sleep(0.011)
        path.write_bytes(b"")
    assert len(found) == 20


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        birth(tmp_path / "missing")


def test_where_the_system_cannot_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(births, "_statx", None)
    assert birth(tmp_path) == Birth(tmp_path.stat().st_ino, 0)
