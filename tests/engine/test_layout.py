"""The version of a store's layout: written once, upgraded where it is old, refused where it is newer."""

from __future__ import annotations

from pathlib import Path

import pytest

from topicfs.engine.errors import NewerLayoutError
from topicfs.engine.files.metadata import CleanShutdown
from topicfs.engine.store.store import Store


def filled(backing: Path) -> Path:
    """Make a store with a record, stop it, and return the file with the version of its layout."""
    with Store.open(backing, create=True) as store:
        store.create("orders").append_lines(b"one\n")
    return backing / "layout.properties"


def test_a_new_store_says_which_version_its_layout_has(tmp_path: Path) -> None:
    assert filled(tmp_path / "store").read_text().endswith("\nversion=1\n")


def test_a_store_from_before_there_were_versions_is_opened_and_gets_one(tmp_path: Path) -> None:
    file = filled(tmp_path / "store")
    file.unlink()
    with Store.open(tmp_path / "store") as store:
        assert [record.value for record in store.partition("orders", 0).records()] == [b"one"]
    assert file.read_text().endswith("\nversion=1\n")


def test_a_store_of_this_version_is_opened_without_writing_it_again(tmp_path: Path) -> None:
    file = filled(tmp_path / "store")
    before = file.stat()
    Store.open(tmp_path / "store").close()
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize("version", ["2", "next", "0", "-1", "99999999999"])
def test_a_store_of_a_newer_version_is_refused_and_stays_as_it_was(tmp_path: Path, version: str) -> None:
    file = filled(tmp_path / "store")
    file.write_text(f"version={version}\n")
    with pytest.raises(
        NewerLayoutError, match=f"expected 1 or less, found '{version}'.*open it with that one"
    ):
        Store.open(tmp_path / "store")
    assert file.read_text() == f"version={version}\n"
    assert CleanShutdown.of(tmp_path / "store" / "logs").exists()


@pytest.mark.parametrize("content", ["", "version=\n", "# comment\n"])
def test_a_store_whose_version_is_lost_is_refused_with_what_can_be_done(tmp_path: Path, content: str) -> None:
    file = filled(tmp_path / "store")
    file.write_text(content)
    with pytest.raises(NewerLayoutError, match=r"found none: the file is empty or damaged.*remove it"):
        Store.open(tmp_path / "store")
    assert file.read_text() == content
    file.unlink()
    with Store.open(tmp_path / "store") as store:
        assert [record.value for record in store.partition("orders", 0).records()] == [b"one"]


def test_the_logs_of_a_newer_version_can_be_read(tmp_path: Path) -> None:
    filled(tmp_path / "store").write_text("version=2\n")
    with Store.open(tmp_path / "store", read_only=True) as store:
        assert [record.value for record in store.partition("orders", 0).records()] == [b"one"]
