"""A store that is opened read-only follows the partitions that another process makes and removes, in several log
directories too."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from cluster_metadata import changed, partition, shown, topic, write
from lock_order import another_thread
from partition_opening import without_fsync

from topicfs import Record, Store
from topicfs.engine.errors import ClosedError, UnknownPartitionError
from topicfs.engine.format.paths import HIGH_WATERMARKS, PARTITION_METADATA
from topicfs.engine.partition import following
from topicfs.engine.store import checkpoints, partitions


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(following, "_AGAIN_S", 0.0)
    monkeypatch.setattr(partitions, "_AGAIN_S", 0.0)
    monkeypatch.setattr(checkpoints, "_LOOK_S", 0.0)
    with without_fsync():
        yield


def values(store: Store, name: str) -> list[bytes | None]:
    store.catch_up()
    return [record.value for record in store.partition(name).records()]


def test_topics_that_are_made_deleted_and_made_again_are_the_present_ones(tmp_path: Path) -> None:
    with Store.open(tmp_path, create=True) as store, Store.open(tmp_path, read_only=True) as reader:
        assert reader.partitions() == []
        store.create("a", 0).append(Record(b"first"))
        assert values(reader, "a-0") == [b"first"]
        identity = reader.partition("a-0").topic_id
        store.delete_topic("a")
        with pytest.raises(UnknownPartitionError):
            values(reader, "a-0")
        assert reader.partitions() == []
        store.create("a", 0).append(Record(b"second"))
        assert values(reader, "a-0") == [b"second"]
        assert reader.partition("a-0").topic_id != identity
        store.delete_topic("a")
        store.create("a", 0).append(Record(b"third"))
        held = reader.partition("a-0")
        assert [record.value for record in held.records()] == [b"third"], (
            "without a look at the log directory"
        )


def test_a_partition_that_is_deleted_between_look_up_and_load_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Or it is the one that was made again meanwhile."""
    birth = partitions.birth
    meanwhile: Callable[[], object]

    def deleted_just_before(directory: Path) -> object:
        monkeypatch.setattr(partitions, "birth", birth)
        with another_thread():
            meanwhile()
        return birth(directory)

    def made_again() -> None:
        store.delete_topic("b")
        store.create("b", 0).append(Record(b"second"))

    with Store.open(tmp_path, create=True) as store:
        for name in ("a", "b"):
            store.create(name, 0).append(Record(b"first"))
        with Store.open(tmp_path, read_only=True) as reader:
            caplog.clear()
            meanwhile = partial(store.delete_topic, "a")
            monkeypatch.setattr(partitions, "birth", deleted_just_before)
            with pytest.raises(UnknownPartitionError):
                reader.partition("a-0")
            assert reader.partitions() == [("b", 0)]
            meanwhile = made_again
            monkeypatch.setattr(partitions, "birth", deleted_just_before)
            assert [record.value for record in reader.partition("b-0").records()] == [b"second"]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_start_offsets_follow_their_checkpoint(tmp_path: Path) -> None:
    with Store.open(tmp_path, create=True) as store, Store.open(tmp_path, read_only=True) as reader:
        written = store.create("a", 0)
        written.append([Record(b"%d" % number) for number in range(5)])
        assert len(values(reader, "a-0")) == 5
        store.delete_records("a", 0, 3)
        assert values(reader, "a-0") == [b"3", b"4"]
        assert reader.partition("a-0").start_offset == 3


def test_a_partition_that_could_not_be_loaded_is_tried_again_when_its_directory_changes(
    tmp_path: Path,
) -> None:
    with Store.open(tmp_path, create=True) as store:
        store.create("a", 0).append(Record(b"one"))
        store.abandon()
    metadata = tmp_path / "logs" / "a-0" / PARTITION_METADATA
    good = metadata.read_bytes()
    metadata.write_bytes(b"what?")
    with Store.open(tmp_path, read_only=True) as reader:
        with pytest.raises(ClosedError, match="offline"):
            reader.partition("a-0")
        metadata.unlink()
        metadata.write_bytes(good)
        assert values(reader, "a-0") == [b"one"]


def test_a_look_at_one_partition_asks_for_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(tmp_path, create=True) as store:
        for number in range(60):
            store.create("a", number).append(Record(b"one"))
    for path in (tmp_path / "logs", *(tmp_path / "logs").iterdir()):
        os.utime(path, (1, 1))
    with Store.open(tmp_path, read_only=True) as reader:
        for number in range(60):
            reader.partition("a", number)
        asked: list[str] = []
        stat, listdir, scandir = os.stat, os.listdir, os.scandir
        monkeypatch.setattr(os, "stat", lambda path, **more: asked.append(str(path)) or stat(path, **more))
        monkeypatch.setattr(os, "listdir", lambda path: asked.append(f"list {path}") or listdir(path))
        monkeypatch.setattr(os, "scandir", lambda path: asked.append(f"list {path}") or scandir(path))
        reader.catch_up()
        reader.partition("a-7").catch_up()
        monkeypatch.undo()
    logs = str(tmp_path / "logs")
    partition_7 = [f"{logs}/a-7", f"{logs}/a-7/{0:020d}.log"]
    checkpoint_files = [f"{logs}/{name}" for name in os.listdir(logs) if name.endswith("-checkpoint")]
    assert {*asked} <= {logs, *partition_7, *checkpoint_files}
    assert len(asked) < 20


# -- several log directories ----------------------------------------------------------------------------


def disks(tmp_path: Path) -> tuple[Path, Path]:
    """Two log directories of one broker: a-0 in one, a-1 in the other, where a-0 is moving to."""
    with Store.open(tmp_path / "store", create=True) as store:
        for number in range(2):
            store.create("a", number).append(Record(b"in %d" % number))
        store.abandon()
    one, two = tmp_path / "store" / "logs", tmp_path / "two"
    two.mkdir()
    (one / "a-1").rename(two / "a-1")
    shutil.copytree(one / "a-0", two / f"a-0.{'0' * 32}-future")
    return one, two


def test_the_partitions_of_several_log_directories_are_shown_together(tmp_path: Path) -> None:
    one, two = disks(tmp_path)
    with Store.open(one, read_only=True, others=[two]) as reader:
        assert reader.partitions() == [("a", 0), ("a", 1)]
        assert (values(reader, "a-0"), values(reader, "a-1")) == ([b"in 0"], [b"in 1"])
        # The move ends, as a broker ends it.
        (one / "a-0").rename(one / f"a-0.{'0' * 32}-delete")
        (two / f"a-0.{'0' * 32}-future").rename(two / "a-0")
        assert values(reader, "a-0") == [b"in 0"]
        assert reader.partition("a-0").directory == two / "a-0"
        (two / "a-1").rename(one / "a-1")
        assert values(reader, "a-1") == [b"in 1"]


def test_a_partition_in_two_log_directories_is_named_and_that_of_the_first_is_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = disks(tmp_path)
    (two / f"a-0.{'0' * 32}-future").rename(two / "a-0")
    with caplog.at_level(logging.ERROR), Store.open(one, read_only=True, others=[two]) as reader:
        assert values(reader, "a-0") == [b"in 0"]
        assert reader.partition("a-0").directory == one / "a-0"
        reader.catch_up()
    assert caplog.messages == [f"a-0 is in {one} and in {two}: that in {one} is shown"]


# -- replicas -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [1, 3])
def test_of_a_partition_with_replicas_elsewhere_the_checkpointed_high_watermark_is_the_end(
    tmp_path: Path, replicas: int
) -> None:
    with Store.open(tmp_path / "store", create=True) as store:
        written = store.create("a", 0)
        for number in range(5):
            written.append(Record(b"%d" % number))
        store.abandon()
    logs = tmp_path / "store" / "logs"
    (logs / "a-0" / PARTITION_METADATA).write_text(f"version: 0\ntopic_id: {shown('a')}")
    write(logs, topic("a"), partition("a", 0), changed("a", 0, replicas))
    (logs / HIGH_WATERMARKS).write_text("0\n1\na 0 2\n")
    with Store.open(logs, read_only=True) as reader:
        assert len(values(reader, "a-0")) == (5 if replicas == 1 else 2)
        (logs / HIGH_WATERMARKS).write_text("0\n1\na 0 4\n")
        assert len(values(reader, "a-0")) == (5 if replicas == 1 else 4)


def test_a_topic_that_comes_later_has_the_settings_of_the_metadata_then(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store", create=True) as store:
        written = store.create("a", 0)
        for number in range(5):
            written.append(Record(b"%d" % number))
        store.abandon()
    logs = tmp_path / "store" / "logs"
    (logs / "a-0" / PARTITION_METADATA).write_text(f"version: 0\ntopic_id: {shown('a')}")
    (logs / "a-0").rename(tmp_path / "a-0")
    with Store.open(logs, read_only=True) as reader:
        assert reader.partitions() == []
        write(logs, topic("a"), partition("a", 0), changed("a", 0, 2))
        (tmp_path / "a-0").rename(logs / "a-0")
        assert values(reader, "a-0") == []
        (logs / HIGH_WATERMARKS).write_text("0\n1\na 0 4\n")
        assert len(values(reader, "a-0")) == 4
