"""Only regular files of a store are opened: no link, FIFO or device that lies where a file was expected."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from partition_opening import without_fsync

from topicfs import Record, Store
from topicfs.engine.errors import EngineError
from topicfs.engine.files.atomic import write_atomically
from topicfs.engine.files.metadata import CleanShutdown
from topicfs.engine.files.regular import NotRegularError, open_regular

SETTINGS = {"server.properties", "t.properties"}
"""Files that may be links, as those who manage settings make them."""


def prepared(root: Path) -> Path:
    """A store with every kind of file."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "server.properties").write_text("log.retention.ms=-1\n")
    with Store.open(root, create=True) as store:
        store.create_topic("t", 1, {"retention.ms": "-1"})
        for number in range(4):
            store.partition("t-0").append(Record(b"%d" % number))
            store.partition("t-0").roll()
        store.partition("t-0").delete_records(1)
        inbox = store.inboxes.of("t")
        inbox.commit("b", [])
        inbox.staging.make_directory(("d",))
    return root


def use(root: Path) -> None:
    """Open, read, append, change and close: what of that does not work fails, but nothing waits."""
    with without_fsync(), contextlib.suppress(EngineError, OSError), Store.open(root) as store:
        for call in (
            lambda: list(store.partition("t-0").records()),
            lambda: store.partition("t-0").append(Record(b"more")),
            lambda: store.partition("t-0").flush(),
            lambda: store.delete_records("t", 0, 2),
            lambda: store.configure("t", {"retention.ms": "5000"}),
            lambda: store.inboxes.of("t").commit("b", []),
            lambda: store.inboxes.of("t").commit("c", []),
        ):
            with contextlib.suppress(EngineError, OSError):
                call()


def ends(task: Callable[[], object]) -> bool:
    thread = threading.Thread(target=task, daemon=True)
    thread.start()
    thread.join(30)
    return not thread.is_alive()


def files(root: Path) -> list[Path]:
    return sorted(path.relative_to(root) for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", ["", ".tmp"])
def test_nothing_is_written_through_a_link_and_nothing_waits_for_a_fifo(
    tmp_path: Path, clean: bool, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    root = prepared(tmp_path / "prepared")
    if not clean:
        CleanShutdown.of(root / "logs").remove()
    names = files(root)
    assert {path.suffix for path in names} >= {".log", ".index", ".timeindex", ".snapshot", ".properties"}
    for number, name in enumerate(names):
        place = shutil.copytree(root, tmp_path / f"link-{number}")
        planted = place / f"{name}{suffix}"
        outside = tmp_path / f"outside-{number}"
        outside.write_bytes((place / name).read_bytes())
        before = outside.stat()
        planted.unlink(missing_ok=True)
        planted.symlink_to(outside)
        use(place)
        after = outside.stat()
        assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns), planted
        assert outside.read_bytes() == (root / name).read_bytes(), planted
        shutil.rmtree(place)
        place = shutil.copytree(root, tmp_path / f"fifo-{number}")
        planted = place / f"{name}{suffix}"
        planted.unlink(missing_ok=True)
        os.mkfifo(planted)
        assert ends(lambda place=place: use(place)), planted
        shutil.rmtree(place)


def test_directories_and_files_of_settings_may_be_links(tmp_path: Path) -> None:
    root = prepared(tmp_path / "prepared")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("logs/t-0", "staging", "topics", "views", "logs", "server.properties"):
        target = elsewhere / name.replace("/", "-")
        (root / name).rename(target)
        (root / name).symlink_to(target)
    (tmp_path / "root").symlink_to(root)
    with Store.open(tmp_path / "root") as store:
        assert [record.value for record in store.partition("t-0").records()] == [b"1", b"2", b"3"]
        store.partition("t-0").append(Record(b"more"))
        assert store.inboxes.of("t").knows("b")
        store.inboxes.of("t").staging.make_directory(("e",))
    assert sorted(os.listdir(elsewhere / "staging" / "t" / "inbox")) == ["d", "e"]
    with Store.open(root) as store:
        assert [record.value for record in store.partition("t-0").records()] == [b"1", b"2", b"3", b"more"]


def test_what_is_no_regular_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("nothing")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "directory").mkdir()
    for name, kind in (
        ("link", "a symbolic link"),
        ("dangling", "a symbolic link"),
        ("fifo", "a FIFO"),
        ("directory", "a directory"),
    ):
        for flags in (os.O_RDONLY, os.O_WRONLY | os.O_CREAT):
            with pytest.raises(NotRegularError, match=f"expected a regular file, found {kind}"):
                open_regular(tmp_path / name, flags)
    os.close(open_regular(tmp_path / "link", os.O_RDONLY, follow=True))
    assert not (tmp_path / "nothing").exists()


def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "link").symlink_to(fifo)
    for path in (fifo, tmp_path / "link", tmp_path):
        with pytest.raises(NotRegularError):
            write_atomically(path, b"content")
    assert fifo.is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fifo", "link"]
