"""Creating, deleting and cutting partitions: KAFKA_FORMAT 1.2 and 9, KAFKA_CASES M and N about the manager."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from store_bench import SMALL, StoreBench, checked_store_bench, some, values

from topicfs import Partition, Record
from topicfs.engine.errors import (
    ClosedError,
    InconsistentTopicIdError,
    InvalidNameError,
    InvalidSettingError,
    PartitionExistsError,
    PolicyViolationError,
    UnknownPartitionError,
)
from topicfs.engine.files.metadata import PartitionMetadata
from topicfs.engine.files.properties import read_properties
from topicfs.engine.partition import slot
from topicfs.engine.store import partitions as loading

ID, OTHER_ID = "Q1Rz8vWkS3yTb0nNfXk4Ag", "R1Rz8vWkS3yTb0nNfXk4Ag"
DELAY = 60_000
OWN_DELAY = 90_000


@pytest.fixture
def store_bench(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[StoreBench]:
    with checked_store_bench(tmp_path / "backing", caplog) as made:
        made.open()
        yield made


def topic_id(store_bench: StoreBench, name: str) -> str | None:
    return PartitionMetadata.load(store_bench.logs / name).topic_id


# -- creating ---------------------------------------------------------------------------------------


def test_a_created_partition_has_its_topic_id_on_disk_before_anything_is_appended(
    store_bench: StoreBench,
) -> None:
    partition = store_bench.store.create("orders", topic_id=ID)
    assert topic_id(store_bench, "orders-0") == partition.topic_id == ID


def test_the_partitions_of_a_topic_share_one_id(store_bench: StoreBench) -> None:
    store_bench.store.create_topic("orders", 3)
    store_bench.reopen().create("orders", 5)
    store_bench.store.create("other")
    ids = {topic_id(store_bench, f"orders-{number}") for number in (0, 1, 2, 5)}
    assert len(ids) == 1
    assert None not in ids
    assert topic_id(store_bench, "other-0") not in ids


def test_another_topic_id_than_the_topics_is_refused(store_bench: StoreBench) -> None:
    store_bench.store.create("orders", topic_id=ID)
    with pytest.raises(InconsistentTopicIdError):
        store_bench.store.create("orders", 1, topic_id=OTHER_ID)
    store_bench.store.create("orders", 1, topic_id=ID)
    assert store_bench.names() == ["orders-0", "orders-1"]


def test_a_topic_id_that_is_none_creates_nothing(store_bench: StoreBench) -> None:
    with pytest.raises(InvalidNameError):
        store_bench.store.create("orders", overrides={"retention.ms": "5"}, topic_id="short")
    assert store_bench.names() == []
    assert list((store_bench.root / "topics").iterdir()) == []


def test_a_partition_that_exists_cannot_be_created(store_bench: StoreBench) -> None:
    store_bench.store.create("orders")
    with pytest.raises(PartitionExistsError):
        store_bench.store.create("orders")
    with pytest.raises(PartitionExistsError):
        store_bench.store.create_topic("orders")
    with pytest.raises(PartitionExistsError):
        store_bench.reopen().create("orders", 0)


@pytest.mark.parametrize(
    ("topic", "number"), [("a/b", 0), ("..", 0), ("", 0), ("a", -1), ("__cluster_metadata", 0)]
)
def test_a_name_that_cannot_be_is_refused(store_bench: StoreBench, topic: str, number: int) -> None:
    with pytest.raises(InvalidNameError):
        store_bench.store.create(topic, number)
    assert store_bench.names() == []


def test_create_topic_makes_as_many_partitions_as_num_partitions_says(store_bench: StoreBench) -> None:
    store_bench.reopen({"num.partitions": "3"})
    assert [partition.name for partition in store_bench.store.create_topic("a")] == ["a-0", "a-1", "a-2"]
    assert len(store_bench.store.create_topic("b", 2)) == 2
    with pytest.raises(InvalidSettingError, match="at least 1"):
        store_bench.store.create_topic("c", 0)
    assert store_bench.store.topics() == {"a": [0, 1, 2], "b": [0, 1]}


def test_a_topic_of_more_partitions_than_kafkas_controller_makes_at_once_is_refused(
    store_bench: StoreBench,
) -> None:
    with pytest.raises(InvalidSettingError, match="at most 10000, found 100000000"):
        store_bench.store.create_topic("orders", 100_000_000)
    assert "orders" not in store_bench.store.topics()


def test_overrides_of_a_new_topic_are_written_and_hold(store_bench: StoreBench) -> None:
    partition = store_bench.store.create("orders", overrides={"retention.ms": "5"})
    assert partition.settings.retention_ms == 5
    assert read_properties(store_bench.root / "topics" / "orders.properties") == {"retention.ms": "5"}
    assert store_bench.reopen().partition("orders-0").settings.retention_ms == 5


def test_overrides_for_a_topic_that_exists_must_be_those_that_it_has(store_bench: StoreBench) -> None:
    store_bench.store.create("orders", overrides={"retention.ms": "5"})
    for wanted in ({}, {"retention.ms": "6"}, {"retention.ms": "5", "segment.ms": "9"}):
        with pytest.raises(InvalidSettingError, match="orders"):
            store_bench.store.create("orders", 1, wanted)
    store_bench.store.create("orders", 1, {"retention.ms": "5"})
    assert store_bench.store.create("orders", 2).settings.retention_ms == 5


@pytest.mark.parametrize("overrides", [{"retention.mss": "5"}, {"retention.ms": "five"}])
def test_bad_overrides_create_nothing(store_bench: StoreBench, overrides: dict[str, str]) -> None:
    with pytest.raises(InvalidSettingError, match="retention"):
        store_bench.store.create("orders", overrides=overrides)
    assert store_bench.names() == []
    assert list((store_bench.root / "topics").iterdir()) == []


def test_settings_left_from_an_earlier_topic_are_replaced_by_overrides(store_bench: StoreBench) -> None:
    store_bench.store.create("orders", overrides={"retention.ms": "5"})
    store_bench.store.delete("orders-0")
    assert (
        store_bench.store.create("orders", overrides={"segment.ms": "9"}).settings.retention_ms == 604_800_000
    )
    store_bench.store.delete("orders-0")
    assert store_bench.store.create("orders", overrides={}).settings.segment_ms == 604_800_000
    assert list((store_bench.root / "topics").iterdir()) == []


def test_settings_that_were_there_before_the_topic_hold(store_bench: StoreBench) -> None:
    store_bench.store.close()
    store_bench.file("topics/orders.properties", "retention.ms=5\n")
    assert store_bench.open().create("orders").settings.retention_ms == 5


def test_the_longest_topic_is_created_deleted_and_listed(store_bench: StoreBench) -> None:
    topic = "x" * 249
    some(store_bench.store.create(topic))
    assert store_bench.reopen().topics() == {topic: [0]}
    with pytest.raises(InvalidSettingError, match="249"):
        store_bench.store.configure(topic, {"retention.ms": "5"})
    store_bench.store.delete_topic(topic)
    (name,) = store_bench.names()
    assert len(name) <= 255
    store_bench.now += DELAY
    assert store_bench.reopen().upkeep.remove_due(store_bench.now + DELAY) == 1
    assert store_bench.names() == []


def test_the_longest_topic_with_settings_of_its_own_is_created(store_bench: StoreBench) -> None:
    topic = "x" * 240
    assert store_bench.store.create(topic, overrides={"retention.ms": "5"}).settings.retention_ms == 5
    assert store_bench.reopen().topic_settings(topic).retention_ms == 5


def test_a_creation_that_fails_leaves_nothing_and_can_be_tried_again(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Partition:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(loading, "load", fail)
        with pytest.raises(OSError, match="No space"):
            store_bench.store.create("orders", overrides={"retention.ms": "5"})
    assert "orders-0" not in store_bench.store
    assert all(name.endswith("-delete") for name in store_bench.names())
    assert list((store_bench.root / "topics").iterdir()) == []
    store_bench.store.create("orders")
    store_bench.store.upkeep.run_due()
    assert store_bench.names() == ["orders-0"]


def test_a_crash_within_a_creation_leaves_what_the_next_opening_removes(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(PartitionMetadata, "maybe_flush", kill)
        with pytest.raises(Killed):
            store_bench.store.create("orders")
    assert len(store_bench.names()) == 1
    store = store_bench.crash()
    assert store.partitions() == []
    store.upkeep.remove_due(store_bench.now + DELAY)
    assert store_bench.names() == []


# -- deleting ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("loaded", [True, False])
def test_a_deleted_partition_is_gone_at_once_and_its_files_after_the_delay(
    store_bench: StoreBench, loaded: bool
) -> None:
    partition = store_bench.store.create("orders", overrides={"file.delete.delay.ms": str(OWN_DELAY)})
    some(partition)
    if not loaded:
        store_bench.reopen()
    store_bench.store.delete("orders", 0)
    assert store_bench.store.partitions() == []
    with pytest.raises(UnknownPartitionError):
        store_bench.store.partition("orders-0")
    for use in (
        lambda: partition.append(Record(b"x")),
        lambda: values(partition),
        lambda: partition.read(0, 100),
    ):
        with pytest.raises(ClosedError):
            use()
    (name,) = store_bench.names()
    assert name.startswith("orders-0.")
    assert name.endswith("-delete")
    store_bench.now += OWN_DELAY - 1
    store_bench.store.upkeep.run_due()
    assert store_bench.names() == [name]
    store_bench.now += 1
    store_bench.store.upkeep.run_due()
    assert store_bench.names() == []


def test_a_deletion_that_waited_when_the_store_was_closed_is_done_after_the_next_opening(
    store_bench: StoreBench,
) -> None:
    some(store_bench.store.create("orders"))
    store_bench.store.delete("orders-0")
    store = store_bench.reopen()
    assert store.partitions() == []
    assert store.upkeep.remove_due() == 0
    assert store.upkeep.remove_due(store_bench.now + DELAY) == 1
    assert store_bench.names() == []


def test_a_store_without_deletion_delay_closes_cleanly(store_bench: StoreBench) -> None:
    store_bench.reopen({"log.segment.delete.delay.ms": "0"})
    some(store_bench.store.create("orders"))
    store_bench.store.delete("orders-0")
    store_bench.store.close()
    assert store_bench.marker.exists()
    assert store_bench.open({"log.segment.delete.delay.ms": "0"}).upkeep.remove_due() == 1
    assert store_bench.names() == []


@pytest.mark.parametrize("loaded", [True, False])
def test_the_checkpoints_forget_a_deleted_partition_at_once(store_bench: StoreBench, loaded: bool) -> None:
    for topic in ("orders", "other"):
        some(store_bench.store.create(topic, overrides=SMALL))
        store_bench.store.partition(topic, 0).delete_records(1)
    store_bench.store.close()
    store_bench.file("logs/cleaner-offset-checkpoint", "0\n2\norders 0 3\nother 0 4\n")
    store_bench.open()
    if loaded:
        store_bench.store.partition("orders-0")
    store_bench.store.delete("orders-0")
    assert store_bench.recovery_points == {"other-0": 10}
    assert store_bench.starts == {"other-0": 1}
    assert store_bench.high_watermarks == {"other-0": 10}
    assert store_bench._checkpoint("cleaner-offset-checkpoint") == {"other-0": 4}


def test_a_partition_created_under_a_deleted_ones_name_is_empty_also_after_a_crash(
    store_bench: StoreBench,
) -> None:
    some(store_bench.store.create("orders"))
    store_bench.store.partition("orders-0").delete_records(7)
    store_bench.reopen()
    store_bench.store.delete("orders-0")
    some(store_bench.store.create("orders"), 3)
    partition = store_bench.crash().partition("orders-0")
    assert (partition.start_offset, partition.end_offset) == (0, 3)
    store_bench.store.upkeep.remove_due(store_bench.now + DELAY)
    assert len(values(partition)) == 3


def test_a_checkpoint_that_cannot_be_written_keeps_a_new_partition_from_finding_the_old_ones_entry(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_bench.warnings = True
    some(store_bench.store.create("orders"))
    store_bench.store.partition("orders-0").delete_records(7)
    store_bench.reopen()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("topicfs.engine.files.checkpoint.write_atomically", fail)
        store_bench.store.delete("orders-0")
        assert store_bench.starts == {"orders-0": 7}
        with pytest.raises(OSError, match="No space"):
            store_bench.store.create("orders")
    assert store_bench.store.create("orders").start_offset == 0
    assert store_bench.starts == {}


def test_nothing_is_deleted_while_delete_topic_enable_is_false(store_bench: StoreBench) -> None:
    store_bench.store.create("orders", overrides={"retention.ms": "5"})
    store_bench.reopen({"delete.topic.enable": "false"})
    for delete in (
        lambda: store_bench.store.delete_topic("orders"),
        lambda: store_bench.store.delete("orders-0"),
    ):
        with pytest.raises(PolicyViolationError, match=r"delete\.topic\.enable"):
            delete()
    assert store_bench.names() == ["orders-0"]


def test_delete_topic_deletes_its_partitions_and_its_settings(store_bench: StoreBench) -> None:
    store_bench.store.create_topic("orders", 3, {"retention.ms": "5"})
    store_bench.store.create("other", overrides={"retention.ms": "6"})
    store_bench.store.delete_topic("orders")
    assert store_bench.store.topics() == {"other": [0]}
    assert [path.name for path in (store_bench.root / "topics").iterdir()] == ["other.properties"]
    assert store_bench.store.create("orders").settings.retention_ms == 604_800_000


def test_what_is_not_there_cannot_be_deleted(store_bench: StoreBench) -> None:
    with pytest.raises(UnknownPartitionError):
        store_bench.store.delete("orders-0")
    with pytest.raises(UnknownPartitionError):
        store_bench.store.delete_topic("orders")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE])
def test_a_partition_that_could_not_be_loaded_for_want_of_room_is_there_when_there_is_some(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store_bench.warnings = True
    some(store_bench.store.create("orders"))
    store_bench.reopen()
    monkeypatch.setattr(slot, "RETRY_S", 0)
    asked: list[bool] = []

    def fail(*arguments: Any) -> Partition:
        asked.append(arguments[5].clean)
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as broken:
        broken.setattr(loading, "load", fail)
        for _ in range(2):
            with pytest.raises(ClosedError, match="offline"):
                store_bench.store.partition("orders-0")
    assert asked == [True, False], "what a load has left half done is recovered"
    assert values(store_bench.store.partition("orders-0"))


def test_a_partition_that_could_not_be_loaded_for_another_reason_stays_offline(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_bench.warnings = True
    store_bench.store.create("orders")
    store_bench.reopen()
    monkeypatch.setattr(slot, "RETRY_S", 0)

    def fail(*_: Any) -> Partition:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(loading, "load", fail)
        with pytest.raises(ClosedError, match="offline"):
            store_bench.store.partition("orders-0")
    with pytest.raises(ClosedError, match="offline"):
        store_bench.store.partition("orders-0")


def test_a_partition_that_is_offline_can_be_deleted(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_bench.warnings = True
    some(store_bench.store.create("orders"))
    store_bench.reopen()

    def fail(*_: Any) -> Partition:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(loading, "load", fail)
        with pytest.raises(ClosedError):
            store_bench.store.partition("orders-0")
    store_bench.store.delete("orders-0")
    store_bench.store.close()
    assert store_bench.marker.exists()


@pytest.mark.parametrize("again", [True, False])
def test_a_deletion_that_fails_leaves_the_partition_offline_and_can_be_tried_again(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    some(store_bench.store.create("orders"))

    def fail(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail)
        with pytest.raises(OSError, match="Input"):
            store_bench.store.delete("orders-0")
    assert "orders-0" in store_bench.store
    if again:
        store_bench.store.delete("orders-0")
        assert "orders-0" not in store_bench.store
    else:
        store_bench.warnings = True
    store_bench.store.close()
    assert store_bench.marker.exists() == again
    if not again:
        assert len(values(store_bench.open().partition("orders-0"))) == 10


def test_a_directory_that_cannot_be_removed_is_tried_again(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store_bench.warnings = True
    store_bench.store.create("a")
    store_bench.store.create("b")
    store_bench.store.delete("a-0")
    store_bench.store.delete("b-0")
    real = shutil.rmtree

    def fail(path: Path) -> None:
        if path.name.startswith("a-0"):
            raise OSError(5, "Input/output error")
        real(path)

    store_bench.now += DELAY
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", fail)
        store_bench.store.upkeep.run_due()
    assert [name[:2] for name in store_bench.names()] == ["a-"]
    assert [r.levelno for r in caplog.records if "a-0" in r.getMessage()][-1] == logging.ERROR
    store_bench.store.upkeep.run_due()
    assert store_bench.names() == []


# -- cutting ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 4, 10, 99])
def test_truncate_cuts_and_the_recovery_point_on_disk_follows(store_bench: StoreBench, offset: int) -> None:
    some(store_bench.store.create("orders", overrides=SMALL))
    store_bench.store.partition("orders-0").flush()
    store_bench.store.upkeep.checkpoint_recovery_points()
    assert store_bench.store.truncate("orders", 0, offset) == (offset < 10)
    assert store_bench.store.partition("orders-0").end_offset == min(offset, 10)
    assert store_bench.recovery_points == {"orders-0": min(offset, 10)}


def test_the_recovery_point_on_disk_is_lowered_before_the_cut(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = store_bench.store.create("orders", overrides=SMALL)
    some(partition)
    partition.flush()
    store_bench.store.upkeep.checkpoint_recovery_points()
    seen = []

    def cut(offset: int) -> bool:
        seen.append(store_bench.recovery_points["orders-0"])
        store_bench.store.upkeep.checkpoint_recovery_points()
        seen.append(store_bench.recovery_points["orders-0"])
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(partition, "truncate_to", cut)
        with pytest.raises(OSError, match="Input"):
            store_bench.store.truncate("orders", 0, 4)
    assert seen == [4, 4]
    store_bench.store.upkeep.checkpoint_recovery_points()
    assert store_bench.recovery_points == {"orders-0": 10}


def test_a_truncation_below_the_start_offset_is_remembered_on_disk(store_bench: StoreBench) -> None:
    """Else a crash would find a start above the end, and empty the log."""
    some(store_bench.store.create("orders"))
    store_bench.store.partition("orders-0").delete_records(8)
    store_bench.store.upkeep.checkpoint_start_offsets()
    assert store_bench.starts == {"orders-0": 8}
    store_bench.store.truncate("orders", 0, 4)
    some(store_bench.store.partition("orders-0"), 2)
    partition = store_bench.crash().partition("orders-0")
    assert (partition.start_offset, partition.end_offset) == (4, 6)


def test_restart_at_empties_and_the_checkpoints_follow(store_bench: StoreBench) -> None:
    some(store_bench.store.create("orders"))
    store_bench.reopen()
    store_bench.store.restart_at("orders", 0, 500)
    assert store_bench.recovery_points["orders-0"] <= 500
    partition = store_bench.crash().partition("orders-0")
    assert (partition.start_offset, partition.end_offset) == (500, 500)
