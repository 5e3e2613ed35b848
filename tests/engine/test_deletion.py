"""Removing what is empty, deleting what is not, and taking a deletion back."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from houses import SMALL, House, living, some, values

from topicfs import Record
from topicfs.engine.errors import (
    ClosedError,
    NothingDeletedError,
    PartitionExistsError,
    PartitionNotEmptyError,
    PolicyViolationError,
)
from topicfs.engine.files.metadata import PartitionMetadata
from topicfs.engine.inbox.inbox import batch_name
from topicfs.engine.partition.partition import Producer
from topicfs.engine.store import partitions as loading
from topicfs.engine.store import store as storing

DELAY = 60_000


@pytest.fixture
def house(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[House]:
    with living(tmp_path / "backing", caplog) as made:
        made.open()
        yield made


def kept(house: House) -> list[str]:
    """What lies in BACKING/deleted."""
    place = house.root / "deleted"
    return sorted(os.listdir(place)) if place.exists() else []


# -- only what is empty -----------------------------------------------------------------------------


def test_what_holds_a_record_is_not_removed_as_empty(house: House) -> None:
    house.store.create_topic("orders", 2)
    some(house.store.partition("orders-1"), 1)
    for remove in (
        lambda: house.store.remove_empty("orders-1"),
        lambda: house.store.remove_empty_topic("orders"),
    ):
        with pytest.raises(PartitionNotEmptyError, match=r"orders-1.*offsets 0 to 0"):
            remove()
    assert house.store.topics() == {"orders": [0, 1]}
    house.store.remove_empty("orders-0")
    assert house.store.topics() == {"orders": [1]}


def test_what_retention_or_a_start_offset_has_emptied_is_removed(house: House) -> None:
    some(house.store.create("orders"))
    house.store.partition("orders-0").delete_records(-1)
    house.store.remove_empty_topic("orders")
    assert house.store.topics() == {}


def test_what_has_only_records_of_an_open_transaction_is_not_empty(house: House) -> None:
    partition = house.store.create("orders")
    partition.append(Record(b"x"), Producer(5, 0, 0, transactional=True))
    assert values(partition) == []
    with pytest.raises(PartitionNotEmptyError):
        house.store.remove_empty("orders-0")


def test_a_partition_that_cannot_be_read_counts_as_one_that_holds_something(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.warnings = True
    some(house.store.create("orders"))
    house.reopen()

    def fail(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(loading, "load", fail)
        with pytest.raises(ClosedError):
            house.store.remove_empty("orders-0")
    assert house.names() == ["orders-0"]


def test_files_in_the_inbox_keep_a_topic_from_being_removed_as_empty(house: House) -> None:
    house.store.create_topic("t", 2)
    box = house.store.inboxes.of("t")
    box.staging.make_directory(("b",))
    box.staging.open(("b", "x.txt"), os.O_WRONLY | os.O_CREAT).close()
    with pytest.raises(PartitionNotEmptyError, match="inbox"):
        house.store.remove_empty_topic("t")
    house.store.remove_empty("t-0")
    with pytest.raises(PartitionNotEmptyError, match="inbox"):
        house.store.remove_empty("t-1")
    box.staging.destroy(("b", "x.txt"))
    # What a committed batch leaves is nothing that could be lost.
    box.staging.open(("b", "_SUCCESS"), os.O_WRONLY | os.O_CREAT).close()
    house.store.remove_empty("t-1")
    assert house.store.topics() == {}


def test_an_append_at_the_same_moment_is_either_refused_or_keeps_the_partition(house: House) -> None:
    """Whether it is empty is looked at under the locks with which it goes."""
    for number in range(40):
        partition = house.store.create("orders", number)
        accepted: list[int] = []

        def append(partition: Any = partition, accepted: list[int] = accepted) -> None:
            try:
                partition.append(Record(b"x"))
            except ClosedError:
                return
            accepted.append(1)

        writer = threading.Thread(target=append)
        writer.start()
        try:
            house.store.remove_empty("orders", number)
            removed = True
        except PartitionNotEmptyError:
            removed = False
        writer.join()
        assert removed != bool(accepted)


# -- taking back ------------------------------------------------------------------------------------


@pytest.mark.parametrize("between", ["nothing", "stop", "crash"])
def test_a_deleted_topic_comes_back_as_it_was(house: House, between: str) -> None:
    house.store.create_topic("orders", 2, {**SMALL, "retention.ms": "-1", "file.delete.delay.ms": "9000"})
    for number in (0, 1):
        some(house.store.partition("orders", number))
    house.store.partition("orders-1").delete_records(7)
    house.store.checkpoint_start_offsets()
    house.store.cleaning.offsets.put(("orders", 0), 4)
    before = {path.name: path.read_bytes() for path in (house.logs / "orders-0").glob("*.log")}
    topic_id = house.store.partition("orders-0").topic_id
    deletion = house.store.delete_topic("orders")
    assert [(each.number, each.start, each.end) for each in deletion.partitions] == [(0, 0, 10), (1, 7, 10)]
    assert house.store.topics() == {}
    assert list((house.root / "topics").iterdir()) == []
    if between == "stop":
        house.reopen()
    elif between == "crash":
        house.crash()
    house.now += 8_999
    house.store.upkeep()
    house.store.undelete("orders")
    for _ in range(2):
        assert house.store.topics() == {"orders": [0, 1]}
        assert len(values(house.store.partition("orders-0"))) == 10
        assert len(values(house.store.partition("orders-1"))) == 3
        assert house.store.partition("orders-1").start_offset == 7
        assert house.store.topic_settings("orders").retention_ms == -1
        assert house.store.partition("orders-0").topic_id == topic_id
        assert house.store.cleaning.offsets.get(("orders", 0)) == 4
        assert before == {path.name: path.read_bytes() for path in (house.logs / "orders-0").glob("*.log")}
        assert kept(house) == []
        assert house.store.deletions() == []
        house.crash()
    house.now += DELAY
    house.store.upkeep()
    assert house.names() == ["orders-0", "orders-1"]


def test_the_inbox_comes_back_with_the_names_of_what_was_committed(house: House) -> None:
    house.store.create_topic("t", 1)
    box = house.store.inboxes.of("t")
    box.commit(batch_name("b"), ())
    box.staging.make_directory(("pending",))
    box.staging.open(("pending", "x.txt"), os.O_WRONLY | os.O_CREAT).close()
    house.store.delete_topic("t")
    assert list((house.root / "staging").iterdir()) == []
    house.reopen()
    house.store.undelete("t")
    again = house.store.inboxes.of("t")
    assert again.knows(batch_name("b"))
    assert again.staging.names(("pending",)) == ["x.txt"]


def test_after_the_delay_nothing_comes_back(house: House) -> None:
    some(house.store.create("orders"))
    house.store.delete("orders-0")
    house.now += DELAY
    house.store.upkeep()
    with pytest.raises(NothingDeletedError, match="orders-0"):
        house.store.undelete("orders", 0)
    assert (house.names(), kept(house)) == ([], [])


def test_a_restart_does_not_begin_the_delay_anew(house: House) -> None:
    some(house.store.create("orders"))
    house.store.delete("orders-0")
    house.now += DELAY - 1
    house.reopen()
    house.store.upkeep()
    assert len(house.names()) == 1
    house.now += 1
    house.reopen()
    house.store.upkeep()
    assert (house.names(), kept(house)) == ([], [])


def test_a_clock_that_was_set_back_keeps_deletions_for_one_delay_at_most(house: House) -> None:
    some(house.store.create("orders"))
    house.store.delete("orders-0")
    house.now -= 10 * DELAY
    house.reopen()
    house.now += DELAY
    house.store.upkeep()
    assert house.names() == []


def test_one_partition_of_a_deleted_topic_comes_back_and_then_the_others(house: House) -> None:
    house.store.create_topic("orders", 3, {"retention.ms": "-1"})
    for number in range(3):
        some(house.store.partition("orders", number), number + 1)
    house.store.delete_topic("orders")
    house.store.undelete("orders", 1)
    assert house.store.topics() == {"orders": [1]}
    assert house.store.topic_settings("orders").retention_ms == -1
    assert [each.number for each in house.store.deletions()[0].partitions] == [0, 2]
    house.reopen().undelete("orders")
    assert [len(values(house.store.partition("orders", number))) for number in range(3)] == [1, 2, 3]


def test_a_topic_made_again_does_not_collide_and_is_not_mixed_with_the_deleted_one(house: House) -> None:
    some(house.store.create("orders"))
    house.store.delete_topic("orders")
    some(house.store.create("orders"), 2)
    with pytest.raises(PartitionExistsError):
        house.store.undelete("orders")
    house.store.delete("orders-0")
    some(house.store.create("orders", 1), 3)
    # Not in the way by its number, but of another topic of that name.
    with pytest.raises(PartitionExistsError, match="made again"):
        house.store.undelete("orders")
    assert len(values(house.store.partition("orders-1"))) == 3
    house.store.delete_topic("orders")
    assert [len(each.partitions) for each in house.store.deletions()] == [1, 1, 1]
    newest, middle, oldest = house.store.deletions()
    assert (newest.partitions[0].end, middle.partitions[0].end, oldest.partitions[0].end) == (3, 2, 10)
    house.store.undelete("orders", deletion=oldest.id)
    assert len(values(house.store.partition("orders-0"))) == 10


def test_a_long_topic_comes_back_under_its_whole_name(house: House) -> None:
    topic = "x" * 249
    some(house.store.create(topic))
    house.store.delete_topic(topic)
    house.reopen().undelete(topic)
    assert len(values(house.store.partition(topic, 0))) == 10


def test_a_partition_that_was_offline_can_be_taken_back(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.warnings = True
    some(house.store.create("orders"))
    house.reopen()

    def fail(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(loading, "load", fail)
        with pytest.raises(ClosedError):
            house.store.partition("orders-0")
        house.store.delete("orders-0")
        house.store.undelete("orders", 0)
        with pytest.raises(ClosedError):
            house.store.partition("orders-0")
    house.store.close()
    assert len(values(house.open().partition("orders-0"))) == 10


def test_on_a_full_disk_nothing_comes_back_offline_and_it_can_be_tried_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """regression: it was offline until the next start, and what was to be done behind it was not done any more"""
    house.warnings = True
    house.store.create_topic("orders", 2)
    for number in range(2):
        some(house.store.partition("orders", number))
    house.store.delete_records("orders", 0, 4)
    house.store.delete_topic("orders")
    real = loading.load

    def full(topic: str, number: int, *rest: Any, **named: Any) -> Any:
        if number == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(topic, number, *rest, **named)

    with monkeypatch.context() as patch:
        patch.setattr(loading, "load", full)
        for _ in range(2):
            with pytest.raises(OSError, match="No space"):
                house.store.undelete("orders")
    assert len(values(house.store.partition("orders", 0))) == 6
    house.store.undelete("orders")
    assert len(values(house.store.partition("orders", 1))) == 10
    assert house.store.deletions() == []


def test_the_inbox_comes_back_with_the_next_start_where_it_could_not_be_moved(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """regression: it was removed with the record of the deletion, and what was committed could be appended again"""
    house.store.create_topic("orders", 1)
    some(house.store.partition("orders", 0))
    inbox = house.store.inboxes.directory / "orders"
    (inbox / "batch").mkdir(parents=True)
    house.store.delete_topic("orders")
    with monkeypatch.context() as patch:
        patch.setattr(house.store.inboxes, "restore", full_restore)
        with pytest.raises(OSError, match="No space"):
            house.store.undelete("orders")
    assert not inbox.exists()
    assert len(values(house.reopen().partition("orders", 0))) == 10
    assert (inbox / "batch").is_dir()
    assert house.store.deletions() == []


def full_restore(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


class KilledError(BaseException):
    """The process ends here."""


def steps_of_undelete() -> list[str]:
    return ["configuration", "adopt", "renamed", "loaded", "checkpoints", "inbox", "settle"]


@pytest.mark.parametrize("step", steps_of_undelete())
def test_a_crash_while_a_deletion_is_taken_back_loses_nothing(
    house: House, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    house.store.create_topic("orders", 1, {**SMALL, "retention.ms": "-1"})
    some(house.store.partition("orders-0"))
    house.store.partition("orders-0").delete_records(7)
    house.store.inboxes.of("orders").commit(batch_name("b"), ())
    house.store.delete_topic("orders")

    def kill(*_: Any) -> None:
        raise KilledError

    places: dict[str, tuple[Any, str]] = {
        "configuration": (house.store._configuration, "restore_topic"),
        "adopt": (house.store._checkpoints, "adopt"),
        "renamed": (storing, "sync_directory"),
        "loaded": (house.store._partitions, "add"),
        "checkpoints": (house.store._checkpoints, "write_all"),
        "inbox": (house.store.inboxes, "restore"),
        "settle": (house.store._deletions, "settle"),
    }
    with monkeypatch.context() as patch:
        patch.setattr(*places[step], kill)
        # What runs on after a kill in a test would not in a process.
        patch.setattr(type(house.store._deletions), "settle", kill)
        with pytest.raises(KilledError):
            house.store.undelete("orders")
    house.crash()
    if not house.store.topics():
        house.store.undelete("orders")
    partition = house.store.partition("orders-0")
    assert (partition.start_offset, partition.end_offset) == (7, 10)
    assert house.store.topic_settings("orders").retention_ms == -1
    assert house.store.inboxes.of("orders").knows(batch_name("b"))
    assert kept(house) == []


@pytest.mark.parametrize("at", range(1, 6))
def test_a_crash_within_a_deletion_loses_nothing(
    house: House, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """The first to the fifth rename of it: of its record, of two partitions, of settings and inbox."""
    house.store.create_topic("orders", 2, {"retention.ms": "-1"})
    for number in (0, 1):
        some(house.store.partition("orders", number))
    house.store.inboxes.of("orders").commit(batch_name("b"), ())
    count = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def move(path: Path, target: Path) -> Any:
            nonlocal count
            if "checkpoint" not in path.name:
                count += 1
                if count == at:
                    raise KilledError
            return real(path, target)

        return move

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", counted(Path.rename))
        patch.setattr(Path, "replace", counted(Path.replace))
        with pytest.raises(KilledError):
            house.store.delete_topic("orders")
    house.crash()
    if house.store.deletions():
        house.store.undelete("orders")
    assert house.store.topics() == {"orders": [0, 1]}
    assert [len(values(house.store.partition("orders", number))) for number in (0, 1)] == [10, 10]
    assert house.store.topic_settings("orders").retention_ms == -1
    assert house.store.inboxes.of("orders").knows(batch_name("b"))


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"{}",
        b"[1]",
        b'{"version": 2}',
        b'{"version": 1, "topic": "orders", "deleted_at": -1, "removed_at": 1, "restoring": false, "partitions": []}',
        "up",
        "other topic",
    ],
)
def test_a_record_that_cannot_be_read_is_said_and_its_directories_go(house: House, bad: bytes | str) -> None:
    house.warnings = True
    some(house.store.create("orders"))
    deletion = house.store.delete("orders-0")
    path = house.root / "deleted" / deletion.id / "deletion.json"
    if isinstance(bad, str):
        fields = json.loads(path.read_bytes())
        directory = (
            "../../topics" if bad == "up" else fields["partitions"][0]["directory"].replace("orders", "other")
        )
        fields["partitions"][0]["directory"] = directory
        bad = json.dumps(fields).encode()
    house.store.close()
    path.write_bytes(bad)
    house.open()
    assert house.store.deletions() == []
    house.now += DELAY
    house.store.upkeep()
    assert house.names() == []
    assert (house.root / "topics").is_dir()


def test_a_deletion_on_a_full_disk_is_done_and_says_that_it_cannot_be_taken_back(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    house.warnings = True
    some(house.store.create("orders"))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("topicfs.engine.store.deletion.write_atomically", full)
        house.store.delete_topic("orders")
    assert any("cannot be taken back" in record.getMessage() for record in caplog.records)
    assert house.store.topics() == {}
    house.now += DELAY
    house.store.upkeep()
    assert (house.names(), kept(house)) == ([], [])


def test_nothing_is_removed_while_delete_topic_enable_is_false(house: House) -> None:
    house.store.create("orders")
    house.reopen({"delete.topic.enable": "false"})
    for remove in (
        lambda: house.store.remove_empty("orders-0"),
        lambda: house.store.remove_empty_topic("orders"),
    ):
        with pytest.raises(PolicyViolationError):
            remove()


def test_partitions_that_come_back_belong_to_the_topic_that_is_there(house: House) -> None:
    house.store.create_topic("orders", 2)
    some(house.store.partition("orders-0"))
    house.store.delete("orders-0")
    house.store.undelete("orders", 0)
    ids = {PartitionMetadata.load(house.logs / f"orders-{number}").topic_id for number in (0, 1)}
    assert len(ids) == 1
