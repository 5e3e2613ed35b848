"""Creating, deleting and cutting partitions: KAFKA_FORMAT 1.2 and 9, KAFKA_CASES M and N about the manager."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from houses import SMALL, House, living, some, values

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
from topicfs.engine.store import partitions as loading

ID, OTHER_ID = "Q1Rz8vWkS3yTb0nNfXk4Ag", "R1Rz8vWkS3yTb0nNfXk4Ag"
DELAY = 60_000
OWN_DELAY = 90_000


@pytest.fixture
def house(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[House]:
    with living(tmp_path / "backing", caplog) as made:
        made.open()
        yield made


def topic_id(house: House, name: str) -> str | None:
    return PartitionMetadata.load(house.logs / name).topic_id


# -- creating ---------------------------------------------------------------------------------------


def test_a_created_partition_has_its_topic_id_on_disk_before_anything_is_appended(house: House) -> None:
    partition = house.store.create("orders", topic_id=ID)
    assert topic_id(house, "orders-0") == partition.topic_id == ID


def test_the_partitions_of_a_topic_share_one_id(house: House) -> None:
    house.store.create_topic("orders", 3)
    house.reopen().create("orders", 5)
    house.store.create("other")
    ids = {topic_id(house, f"orders-{number}") for number in (0, 1, 2, 5)}
    assert len(ids) == 1
    assert None not in ids
    assert topic_id(house, "other-0") not in ids


def test_another_topic_id_than_the_topics_is_refused(house: House) -> None:
    house.store.create("orders", topic_id=ID)
    with pytest.raises(InconsistentTopicIdError):
        house.store.create("orders", 1, topic_id=OTHER_ID)
    house.store.create("orders", 1, topic_id=ID)
    assert house.names() == ["orders-0", "orders-1"]


def test_a_topic_id_that_is_none_creates_nothing(house: House) -> None:
    with pytest.raises(InvalidNameError):
        house.store.create("orders", overrides={"retention.ms": "5"}, topic_id="short")
    assert house.names() == []
    assert list((house.root / "topics").iterdir()) == []


def test_a_partition_that_exists_cannot_be_created(house: House) -> None:
    house.store.create("orders")
    with pytest.raises(PartitionExistsError):
        house.store.create("orders")
    with pytest.raises(PartitionExistsError):
        house.store.create_topic("orders")
    with pytest.raises(PartitionExistsError):
        house.reopen().create("orders", 0)


@pytest.mark.parametrize(
    ("topic", "number"), [("a/b", 0), ("..", 0), ("", 0), ("a", -1), ("__cluster_metadata", 0)]
)
def test_a_name_that_cannot_be_is_refused(house: House, topic: str, number: int) -> None:
    with pytest.raises(InvalidNameError):
        house.store.create(topic, number)
    assert house.names() == []


def test_create_topic_makes_as_many_partitions_as_num_partitions_says(house: House) -> None:
    house.reopen({"num.partitions": "3"})
    assert [partition.name for partition in house.store.create_topic("a")] == ["a-0", "a-1", "a-2"]
    assert len(house.store.create_topic("b", 2)) == 2
    with pytest.raises(InvalidSettingError, match="at least 1"):
        house.store.create_topic("c", 0)
    assert house.store.topics() == {"a": [0, 1, 2], "b": [0, 1]}


def test_overrides_of_a_new_topic_are_written_and_hold(house: House) -> None:
    partition = house.store.create("orders", overrides={"retention.ms": "5"})
    assert partition.settings.retention_ms == 5
    assert read_properties(house.root / "topics" / "orders.properties") == {"retention.ms": "5"}
    assert house.reopen().partition("orders-0").settings.retention_ms == 5


def test_overrides_for_a_topic_that_exists_must_be_those_that_it_has(house: House) -> None:
    house.store.create("orders", overrides={"retention.ms": "5"})
    for wanted in ({}, {"retention.ms": "6"}, {"retention.ms": "5", "segment.ms": "9"}):
        with pytest.raises(InvalidSettingError, match="orders"):
            house.store.create("orders", 1, wanted)
    house.store.create("orders", 1, {"retention.ms": "5"})
    assert house.store.create("orders", 2).settings.retention_ms == 5


@pytest.mark.parametrize("overrides", [{"retention.mss": "5"}, {"retention.ms": "five"}])
def test_bad_overrides_create_nothing(house: House, overrides: dict[str, str]) -> None:
    with pytest.raises(InvalidSettingError, match="retention"):
        house.store.create("orders", overrides=overrides)
    assert house.names() == []
    assert list((house.root / "topics").iterdir()) == []


def test_settings_left_from_an_earlier_topic_are_replaced_by_overrides(house: House) -> None:
    house.store.create("orders", overrides={"retention.ms": "5"})
    house.store.delete("orders-0")
    assert house.store.create("orders", overrides={"segment.ms": "9"}).settings.retention_ms == 604_800_000
    house.store.delete("orders-0")
    assert house.store.create("orders", overrides={}).settings.segment_ms == 604_800_000
    assert list((house.root / "topics").iterdir()) == []


def test_settings_that_were_there_before_the_topic_hold(house: House) -> None:
    house.store.close()
    house.file("topics/orders.properties", "retention.ms=5\n")
    assert house.open().create("orders").settings.retention_ms == 5


def test_the_longest_topic_is_created_deleted_and_listed(house: House) -> None:
    topic = "x" * 249
    some(house.store.create(topic))
    assert house.reopen().topics() == {topic: [0]}
    with pytest.raises(InvalidSettingError, match="249"):
        house.store.configure(topic, {"retention.ms": "5"})
    house.store.delete_topic(topic)
    (name,) = house.names()
    assert len(name) <= 255
    house.now += DELAY
    assert house.reopen().remove_due(house.now + DELAY) == 1
    assert house.names() == []


def test_the_longest_topic_with_settings_of_its_own_is_created(house: House) -> None:
    topic = "x" * 240
    assert house.store.create(topic, overrides={"retention.ms": "5"}).settings.retention_ms == 5
    assert house.reopen().topic_settings(topic).retention_ms == 5


def test_a_creation_that_fails_leaves_nothing_and_can_be_tried_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Partition:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(loading, "load", fail)
        with pytest.raises(OSError, match="No space"):
            house.store.create("orders", overrides={"retention.ms": "5"})
    assert "orders-0" not in house.store
    assert all(name.endswith("-delete") for name in house.names())
    assert list((house.root / "topics").iterdir()) == []
    house.store.create("orders")
    house.store.upkeep()
    assert house.names() == ["orders-0"]


def test_a_crash_within_a_creation_leaves_what_the_next_opening_removes(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(PartitionMetadata, "maybe_flush", kill)
        with pytest.raises(Killed):
            house.store.create("orders")
    assert len(house.names()) == 1
    store = house.crash()
    assert store.partitions() == []
    store.remove_due(house.now + DELAY)
    assert house.names() == []


# -- deleting ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("loaded", [True, False])
def test_a_deleted_partition_is_gone_at_once_and_its_files_after_the_delay(
    house: House, loaded: bool
) -> None:
    partition = house.store.create("orders", overrides={"file.delete.delay.ms": str(OWN_DELAY)})
    some(partition)
    if not loaded:
        house.reopen()
    house.store.delete("orders", 0)
    assert house.store.partitions() == []
    with pytest.raises(UnknownPartitionError):
        house.store.partition("orders-0")
    for use in (
        lambda: partition.append(Record(b"x")),
        lambda: values(partition),
        lambda: partition.read(0, 100),
    ):
        with pytest.raises(ClosedError):
            use()
    (name,) = house.names()
    assert name.startswith("orders-0.")
    assert name.endswith("-delete")
    house.now += OWN_DELAY - 1
    house.store.upkeep()
    assert house.names() == [name]
    house.now += 1
    house.store.upkeep()
    assert house.names() == []


def test_a_deletion_that_waited_when_the_store_was_closed_is_done_after_the_next_opening(
    house: House,
) -> None:
    some(house.store.create("orders"))
    house.store.delete("orders-0")
    store = house.reopen()
    assert store.partitions() == []
    assert store.remove_due() == 0
    assert store.remove_due(house.now + DELAY) == 1
    assert house.names() == []


def test_a_store_without_deletion_delay_closes_cleanly(house: House) -> None:
    house.reopen({"log.segment.delete.delay.ms": "0"})
    some(house.store.create("orders"))
    house.store.delete("orders-0")
    house.store.close()
    assert house.marker.exists()
    assert house.open({"log.segment.delete.delay.ms": "0"}).remove_due() == 1
    assert house.names() == []


@pytest.mark.parametrize("loaded", [True, False])
def test_the_checkpoints_forget_a_deleted_partition_at_once(house: House, loaded: bool) -> None:
    for topic in ("orders", "other"):
        some(house.store.create(topic, overrides=SMALL))
        house.store.partition(topic, 0).delete_records(1)
    house.store.close()
    house.file("logs/cleaner-offset-checkpoint", "0\n2\norders 0 3\nother 0 4\n")
    house.open()
    if loaded:
        house.store.partition("orders-0")
    house.store.delete("orders-0")
    assert house.recovery_points == {"other-0": 10}
    assert house.starts == {"other-0": 1}
    assert house.high_watermarks == {"other-0": 10}
    assert house._checkpoint("cleaner-offset-checkpoint") == {"other-0": 4}


def test_a_partition_created_under_a_deleted_ones_name_is_empty_also_after_a_crash(house: House) -> None:
    some(house.store.create("orders"))
    house.store.partition("orders-0").delete_records(7)
    house.reopen()
    house.store.delete("orders-0")
    some(house.store.create("orders"), 3)
    partition = house.crash().partition("orders-0")
    assert (partition.start_offset, partition.end_offset) == (0, 3)
    house.store.remove_due(house.now + DELAY)
    assert len(values(partition)) == 3


def test_a_checkpoint_that_cannot_be_written_keeps_a_new_partition_from_finding_the_old_ones_entry(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.warnings = True
    some(house.store.create("orders"))
    house.store.partition("orders-0").delete_records(7)
    house.reopen()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("topicfs.engine.files.checkpoint.write_atomically", fail)
        house.store.delete("orders-0")
        assert house.starts == {"orders-0": 7}
        with pytest.raises(OSError, match="No space"):
            house.store.create("orders")
    assert house.store.create("orders").start_offset == 0
    assert house.starts == {}


def test_nothing_is_deleted_while_delete_topic_enable_is_false(house: House) -> None:
    house.store.create("orders", overrides={"retention.ms": "5"})
    house.reopen({"delete.topic.enable": "false"})
    for delete in (lambda: house.store.delete_topic("orders"), lambda: house.store.delete("orders-0")):
        with pytest.raises(PolicyViolationError, match=r"delete\.topic\.enable"):
            delete()
    assert house.names() == ["orders-0"]


def test_delete_topic_deletes_its_partitions_and_its_settings(house: House) -> None:
    house.store.create_topic("orders", 3, {"retention.ms": "5"})
    house.store.create("other", overrides={"retention.ms": "6"})
    house.store.delete_topic("orders")
    assert house.store.topics() == {"other": [0]}
    assert [path.name for path in (house.root / "topics").iterdir()] == ["other.properties"]
    assert house.store.create("orders").settings.retention_ms == 604_800_000


def test_what_is_not_there_cannot_be_deleted(house: House) -> None:
    with pytest.raises(UnknownPartitionError):
        house.store.delete("orders-0")
    with pytest.raises(UnknownPartitionError):
        house.store.delete_topic("orders")


def test_a_partition_that_is_offline_can_be_deleted(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.warnings = True
    some(house.store.create("orders"))
    house.reopen()

    def fail(*_: Any) -> Partition:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(loading, "load", fail)
        with pytest.raises(ClosedError):
            house.store.partition("orders-0")
    house.store.delete("orders-0")
    house.store.close()
    assert house.marker.exists()


@pytest.mark.parametrize("again", [True, False])
def test_a_deletion_that_fails_leaves_the_partition_offline_and_can_be_tried_again(
    house: House, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    some(house.store.create("orders"))

    def fail(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail)
        with pytest.raises(OSError, match="Input"):
            house.store.delete("orders-0")
    assert "orders-0" in house.store
    if again:
        house.store.delete("orders-0")
        assert "orders-0" not in house.store
    else:
        house.warnings = True
    house.store.close()
    assert house.marker.exists() == again
    if not again:
        assert len(values(house.open().partition("orders-0"))) == 10


def test_a_directory_that_cannot_be_removed_is_tried_again(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    house.warnings = True
    house.store.create("a")
    house.store.create("b")
    house.store.delete("a-0")
    house.store.delete("b-0")
    real = shutil.rmtree

    def fail(path: Path) -> None:
        if path.name.startswith("a-0"):
            raise OSError(5, "Input/output error")
        real(path)

    house.now += DELAY
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", fail)
        house.store.upkeep()
    assert [name[:2] for name in house.names()] == ["a-"]
    assert [r.levelno for r in caplog.records if "a-0" in r.getMessage()][-1] == logging.ERROR
    house.store.upkeep()
    assert house.names() == []


# -- cutting ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 4, 10, 99])
def test_truncate_cuts_and_the_recovery_point_on_disk_follows(house: House, offset: int) -> None:
    some(house.store.create("orders", overrides=SMALL))
    house.store.partition("orders-0").flush()
    house.store.checkpoint_recovery_points()
    assert house.store.truncate("orders", 0, offset) == (offset < 10)
    assert house.store.partition("orders-0").end_offset == min(offset, 10)
    assert house.recovery_points == {"orders-0": min(offset, 10)}


def test_the_recovery_point_on_disk_is_lowered_before_the_cut(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = house.store.create("orders", overrides=SMALL)
    some(partition)
    partition.flush()
    house.store.checkpoint_recovery_points()
    seen = []

    def cut(offset: int) -> bool:
        seen.append(house.recovery_points["orders-0"])
        house.store.checkpoint_recovery_points()
        seen.append(house.recovery_points["orders-0"])
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(partition.log, "truncate_to", cut)
        with pytest.raises(OSError, match="Input"):
            house.store.truncate("orders", 0, 4)
    assert seen == [4, 4]
    house.store.checkpoint_recovery_points()
    assert house.recovery_points == {"orders-0": 10}


def test_a_truncation_below_the_start_offset_is_remembered_on_disk(house: House) -> None:
    """Else a crash would find a start above the end, and empty the log."""
    some(house.store.create("orders"))
    house.store.partition("orders-0").delete_records(8)
    house.store.checkpoint_start_offsets()
    assert house.starts == {"orders-0": 8}
    house.store.truncate("orders", 0, 4)
    some(house.store.partition("orders-0"), 2)
    partition = house.crash().partition("orders-0")
    assert (partition.start_offset, partition.end_offset) == (4, 6)


def test_restart_at_empties_and_the_checkpoints_follow(house: House) -> None:
    some(house.store.create("orders"))
    house.reopen()
    house.store.restart_at("orders", 0, 500)
    assert house.recovery_points["orders-0"] <= 500
    partition = house.crash().partition("orders-0")
    assert (partition.start_offset, partition.end_offset) == (500, 500)
