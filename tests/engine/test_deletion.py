"""Removing what is empty, deleting what is not, and taking a deletion back."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from patience import ended
from store_bench import SMALL, StoreBench, checked_store_bench, some, values

from topicfs import Record, Store
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
from topicfs.engine.settings import configuration
from topicfs.engine.store import deleting
from topicfs.engine.store import partitions as loading
from topicfs.engine.verify.finding import Kind

DELAY = 60_000


@pytest.fixture
def store_bench(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[StoreBench]:
    with checked_store_bench(tmp_path / "backing", caplog) as made:
        made.open()
        yield made


def topics(store: Store) -> dict[str, list[int]]:
    """The topics, without those that the store makes for its own work, such as the commit of a batch."""
    return {name: numbers for name, numbers in store.topics().items() if not name.startswith("__")}


def kept(store_bench: StoreBench) -> list[str]:
    """What lies in BACKING/deleted."""
    place = store_bench.root / "deleted"
    return sorted(os.listdir(place)) if place.exists() else []


# -- only what is empty -----------------------------------------------------------------------------


def test_what_holds_a_record_is_not_removed_as_empty(store_bench: StoreBench) -> None:
    store_bench.store.create_topic("orders", 2)
    some(store_bench.store.partition("orders-1"), 1)
    for remove in (
        lambda: store_bench.store.delete("orders-1", only_empty=True),
        lambda: store_bench.store.delete_topic("orders", only_empty=True),
    ):
        with pytest.raises(PartitionNotEmptyError, match=r"orders-1.*offsets 0 to 0"):
            remove()
    assert topics(store_bench.store) == {"orders": [0, 1]}
    store_bench.store.delete("orders-0", only_empty=True)
    assert topics(store_bench.store) == {"orders": [1]}


def test_what_retention_or_a_start_offset_has_emptied_is_removed(store_bench: StoreBench) -> None:
    some(store_bench.store.create("orders"))
    store_bench.store.partition("orders-0").delete_records(-1)
    store_bench.store.delete_topic("orders", only_empty=True)
    assert topics(store_bench.store) == {}


def test_what_has_only_records_of_an_open_transaction_is_not_empty(store_bench: StoreBench) -> None:
    partition = store_bench.store.create("orders")
    partition.append(Record(b"x"), Producer(5, 0, 0, transactional=True))
    assert values(partition) == []
    with pytest.raises(PartitionNotEmptyError):
        store_bench.store.delete("orders-0", only_empty=True)


def test_a_partition_that_cannot_be_read_counts_as_one_that_holds_something(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_bench.warnings = True
    some(store_bench.store.create("orders"))
    store_bench.reopen()

    def fail(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(loading, "load", fail)
        with pytest.raises(ClosedError):
            store_bench.store.delete("orders-0", only_empty=True)
    assert store_bench.names() == ["orders-0"]


def test_files_in_the_inbox_keep_a_topic_from_being_removed_as_empty(store_bench: StoreBench) -> None:
    store_bench.store.create_topic("t", 2)
    box = store_bench.store.inboxes.of("t")
    box.staging.make_directory(("b",))
    box.staging.open(("b", "x.txt"), os.O_WRONLY | os.O_CREAT).close()
    with pytest.raises(PartitionNotEmptyError, match="inbox"):
        store_bench.store.delete_topic("t", only_empty=True)
    store_bench.store.delete("t-0", only_empty=True)
    with pytest.raises(PartitionNotEmptyError, match="inbox"):
        store_bench.store.delete("t-1", only_empty=True)
    box.staging.destroy(("b", "x.txt"))
    # What a committed batch leaves is nothing that could be lost.
    box.staging.open(("b", "_SUCCESS"), os.O_WRONLY | os.O_CREAT).close()
    store_bench.store.delete("t-1", only_empty=True)
    assert topics(store_bench.store) == {}


def test_an_append_at_the_same_moment_is_either_refused_or_keeps_the_partition(
    store_bench: StoreBench,
) -> None:
    """Whether it is empty is looked at under the locks with which it goes."""
    for number in range(40):
        partition = store_bench.store.create("orders", number)
        accepted: list[int] = []

        def append(partition: Any = partition, accepted: list[int] = accepted) -> None:
            try:
                partition.append(Record(b"x"))
            except ClosedError:
                return
            accepted.append(1)

        writer = threading.Thread(target=append, daemon=True)
        writer.start()
        try:
            store_bench.store.delete("orders", number, only_empty=True)
            removed = True
        except PartitionNotEmptyError:
            removed = False
        ended(writer)
        assert removed != bool(accepted)


# -- taking back ------------------------------------------------------------------------------------


@pytest.mark.parametrize("between", ["nothing", "stop", "crash"])
def test_a_deleted_topic_comes_back_as_it_was(store_bench: StoreBench, between: str) -> None:
    store_bench.store.create_topic(
        "orders", 2, {**SMALL, "retention.ms": "-1", "file.delete.delay.ms": "9000"}
    )
    for number in (0, 1):
        some(store_bench.store.partition("orders", number))
    store_bench.store.partition("orders-1").delete_records(7)
    store_bench.store.upkeep.checkpoint_start_offsets()
    store_bench.store.cleaning.offsets.put(("orders", 0), 4)
    before = {path.name: path.read_bytes() for path in (store_bench.logs / "orders-0").glob("*.log")}
    topic_id = store_bench.store.partition("orders-0").topic_id
    deletion = store_bench.store.delete_topic("orders")
    assert [(each.number, each.start, each.end) for each in deletion.partitions] == [(0, 0, 10), (1, 7, 10)]
    assert topics(store_bench.store) == {}
    assert list((store_bench.root / "topics").iterdir()) == []
    if between == "stop":
        store_bench.reopen()
    elif between == "crash":
        store_bench.crash()
    store_bench.now += 8_999
    store_bench.store.upkeep.run_due()
    store_bench.store.undelete("orders")
    for _ in range(2):
        assert topics(store_bench.store) == {"orders": [0, 1]}
        assert len(values(store_bench.store.partition("orders-0"))) == 10
        assert len(values(store_bench.store.partition("orders-1"))) == 3
        assert store_bench.store.partition("orders-1").start_offset == 7
        assert store_bench.store.topic_settings("orders").retention_ms == -1
        assert store_bench.store.partition("orders-0").topic_id == topic_id
        assert store_bench.store.cleaning.offsets.get(("orders", 0)) == 4
        assert before == {
            path.name: path.read_bytes() for path in (store_bench.logs / "orders-0").glob("*.log")
        }
        assert kept(store_bench) == []
        assert store_bench.store.deletions() == []
        store_bench.crash()
    store_bench.now += DELAY
    store_bench.store.upkeep.run_due()
    assert store_bench.names() == ["orders-0", "orders-1"]


def test_the_inbox_comes_back_with_the_names_of_what_was_committed(store_bench: StoreBench) -> None:
    store_bench.store.create_topic("t", 1)
    box = store_bench.store.inboxes.of("t")
    box.commit(batch_name("b"), ())
    box.staging.make_directory(("pending",))
    box.staging.open(("pending", "x.txt"), os.O_WRONLY | os.O_CREAT).close()
    store_bench.store.delete_topic("t")
    assert list((store_bench.root / "staging").iterdir()) == []
    store_bench.reopen()
    store_bench.store.undelete("t")
    again = store_bench.store.inboxes.of("t")
    assert again.knows(batch_name("b"))
    assert again.staging.names(("pending",)) == ["x.txt"]


def test_a_topic_that_comes_back_is_one_that_was_made_here(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """regression: where many topics had gone, its id was forgotten, and its records were kept for ever"""
    monkeypatch.setattr(configuration, "_MOST_IDLE", 0)
    for topic in ("a", "b", "c"):
        store_bench.store.create(topic)
        store_bench.store.delete_topic(topic)
    store_bench.now += DELAY
    store_bench.store.upkeep.run_due()
    some(store_bench.store.create("orders"))
    store_bench.store.delete_topic("orders")
    assert len((store_bench.root / "created-topics").read_bytes().splitlines()) == 4
    store_bench.reopen()
    assert len((store_bench.root / "created-topics").read_bytes().splitlines()) == 1
    store_bench.store.undelete("orders")
    assert store_bench.store.why_kept("orders") is None
    assert store_bench.reopen().why_kept("orders") is None


def test_after_the_delay_nothing_comes_back(store_bench: StoreBench) -> None:
    some(store_bench.store.create("orders"))
    store_bench.store.delete("orders-0")
    store_bench.now += DELAY
    store_bench.store.upkeep.run_due()
    with pytest.raises(NothingDeletedError, match="orders-0"):
        store_bench.store.undelete("orders", 0)
    assert (store_bench.names(), kept(store_bench)) == ([], [])


def test_how_a_transaction_ended_is_brought_onto_the_disk_whoever_wrote_it_down(
    store_bench: StoreBench,
) -> None:
    """regression: a process that died before its fsync had left it in memory, and the next one took it as written"""
    store = store_bench.store
    some(store.create("orders"))
    store.delete_topic("orders")
    for _ in range(2):
        with mock.patch("os.fsync", wraps=os.fsync) as synced:
            store.transactions.note_deleted("orders", 0, 77, True)
        # The file and its directory.
        assert synced.call_count == 2
    (noted,) = (store.backing / "deleted").glob("*/ended")
    assert noted.read_text().split("\n") == ["", "0 77 commit", ""]


def test_a_restart_does_not_begin_the_delay_anew(store_bench: StoreBench) -> None:
    some(store_bench.store.create("orders"))
    store_bench.store.delete("orders-0")
    store_bench.now += DELAY - 1
    store_bench.reopen()
    store_bench.store.upkeep.run_due()
    assert len(store_bench.names()) == 1
    store_bench.now += 1
    store_bench.reopen()
    store_bench.store.upkeep.run_due()
    assert (store_bench.names(), kept(store_bench)) == ([], [])


def test_a_clock_that_was_set_back_keeps_deletions_for_one_delay_at_most(store_bench: StoreBench) -> None:
    some(store_bench.store.create("orders"))
    store_bench.store.delete("orders-0")
    store_bench.now -= 10 * DELAY
    store_bench.reopen()
    store_bench.now += DELAY
    store_bench.store.upkeep.run_due()
    assert store_bench.names() == []


@pytest.mark.parametrize("between", ["stop", "crash"])
def test_the_delay_of_the_topic_itself_holds_over_a_restart(store_bench: StoreBench, between: str) -> None:
    day = 86_400_000
    store_bench.store.create_topic("orders", 1, {"file.delete.delay.ms": str(day)})
    some(store_bench.store.partition("orders-0"))
    store_bench.store.delete_topic("orders")
    for _ in range(2):
        store_bench.reopen() if between == "stop" else store_bench.crash()
        store_bench.now += day // 2 - 1
        store_bench.store.upkeep.run_due()
    store_bench.store.undelete("orders")
    assert len(values(store_bench.store.partition("orders-0"))) == 10


def test_one_partition_of_a_deleted_topic_comes_back_and_then_the_others(store_bench: StoreBench) -> None:
    store_bench.store.create_topic("orders", 3, {"retention.ms": "-1"})
    for number in range(3):
        some(store_bench.store.partition("orders", number), number + 1)
    store_bench.store.delete_topic("orders")
    store_bench.store.undelete("orders", 1)
    assert topics(store_bench.store) == {"orders": [1]}
    assert store_bench.store.topic_settings("orders").retention_ms == -1
    assert [each.number for each in store_bench.store.deletions()[0].partitions] == [0, 2]
    store_bench.reopen().undelete("orders")
    assert [len(values(store_bench.store.partition("orders", number))) for number in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("between", ["nothing", "stop", "crash"])
def test_settings_and_inbox_come_back_with_the_first_partition_whichever_deletion_took_them(
    store_bench: StoreBench, between: str
) -> None:
    store_bench.store.create_topic("orders", 3, {"retention.ms": "-1"})
    store_bench.store.inboxes.of("orders").commit(batch_name("b"), ())
    store_bench.store.delete("orders-0")
    store_bench.store.delete("orders-1")
    store_bench.store.delete_topic("orders")
    if between == "stop":
        store_bench.reopen()
    elif between == "crash":
        store_bench.crash()
    store_bench.store.undelete("orders", 1)
    for number in (0, 2):
        assert store_bench.store.topic_settings("orders").retention_ms == -1
        assert store_bench.store.inboxes.of("orders").knows(batch_name("b"))
        store_bench.reopen().undelete("orders", number)
    assert topics(store_bench.store) == {"orders": [0, 1, 2]}
    assert kept(store_bench) == []


def test_settings_and_inbox_do_not_come_back_to_another_topic_of_that_name(store_bench: StoreBench) -> None:
    store_bench.store.create_topic("orders", 2)
    store_bench.store.delete("orders-0")
    store_bench.store.delete_topic("orders")
    store_bench.store.create_topic("orders", 2, {"retention.ms": "-1"})
    store_bench.store.inboxes.of("orders").commit(batch_name("b"), ())
    store_bench.store.delete_topic("orders")
    oldest = store_bench.store.deletions()[-1]
    store_bench.store.undelete("orders", deletion=oldest.id)
    assert store_bench.store.topic_settings("orders").retention_ms != -1
    assert not store_bench.store.inboxes.of("orders").knows(batch_name("b"))


def test_a_topic_made_again_does_not_collide_and_is_not_mixed_with_the_deleted_one(
    store_bench: StoreBench,
) -> None:
    some(store_bench.store.create("orders"))
    store_bench.store.delete_topic("orders")
    some(store_bench.store.create("orders"), 2)
    with pytest.raises(PartitionExistsError):
        store_bench.store.undelete("orders")
    store_bench.store.delete("orders-0")
    some(store_bench.store.create("orders", 1), 3)
    # Not in the way by its number, but of another topic of that name.
    with pytest.raises(PartitionExistsError, match="made again"):
        store_bench.store.undelete("orders")
    assert len(values(store_bench.store.partition("orders-1"))) == 3
    store_bench.store.delete_topic("orders")
    assert [len(each.partitions) for each in store_bench.store.deletions()] == [1, 1, 1]
    newest, middle, oldest = store_bench.store.deletions()
    assert (newest.partitions[0].end, middle.partitions[0].end, oldest.partitions[0].end) == (3, 2, 10)
    store_bench.store.undelete("orders", deletion=oldest.id)
    assert len(values(store_bench.store.partition("orders-0"))) == 10


def test_a_long_topic_comes_back_under_its_whole_name(store_bench: StoreBench) -> None:
    topic = "x" * 249
    some(store_bench.store.create(topic))
    store_bench.store.delete_topic(topic)
    store_bench.reopen().undelete(topic)
    assert len(values(store_bench.store.partition(topic, 0))) == 10


def test_a_partition_that_was_offline_can_be_taken_back(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_bench.warnings = True
    some(store_bench.store.create("orders"))
    store_bench.reopen()

    def fail(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(loading, "load", fail)
        with pytest.raises(ClosedError):
            store_bench.store.partition("orders-0")
        store_bench.store.delete("orders-0")
        store_bench.store.undelete("orders", 0)
        with pytest.raises(ClosedError):
            store_bench.store.partition("orders-0")
    store_bench.store.close()
    assert len(values(store_bench.open().partition("orders-0"))) == 10


def test_on_a_full_disk_nothing_comes_back_offline_and_it_can_be_tried_again(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """regression: it was offline until the next start, and what was to be done behind it was not done any more"""
    store_bench.warnings = True
    store_bench.store.create_topic("orders", 2)
    for number in range(2):
        some(store_bench.store.partition("orders", number))
    store_bench.store.delete_records("orders", 0, 4)
    store_bench.store.delete_topic("orders")
    real = loading.load

    def full(topic: str, number: int, *rest: Any, **named: Any) -> Any:
        if number == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(topic, number, *rest, **named)

    with monkeypatch.context() as patch:
        patch.setattr(loading, "load", full)
        for _ in range(2):
            with pytest.raises(OSError, match="No space"):
                store_bench.store.undelete("orders")
    assert len(values(store_bench.store.partition("orders", 0))) == 6
    store_bench.store.undelete("orders")
    assert len(values(store_bench.store.partition("orders", 1))) == 10
    assert store_bench.store.deletions() == []


def test_the_inbox_comes_back_with_the_next_start_where_it_could_not_be_moved(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """regression: it was removed with the record of the deletion, and what was committed could be appended again"""
    store_bench.store.create_topic("orders", 1)
    some(store_bench.store.partition("orders", 0))
    inbox = store_bench.store.inboxes.directory / "orders"
    (inbox / "batch").mkdir(parents=True)
    store_bench.store.delete_topic("orders")
    with monkeypatch.context() as patch:
        patch.setattr(store_bench.store.inboxes, "restore", full_restore)
        with pytest.raises(OSError, match="No space"):
            store_bench.store.undelete("orders")
    assert not inbox.exists()
    assert len(values(store_bench.reopen().partition("orders", 0))) == 10
    assert (inbox / "batch").is_dir()
    assert store_bench.store.deletions() == []


def full_restore(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_start_offset_that_is_set_after_an_unfinished_undelete_holds(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    some(store_bench.store.create("orders"))
    store_bench.store.delete_records("orders", 0, 3)
    store_bench.store.delete_topic("orders")
    with monkeypatch.context() as patch:
        patch.setattr(store_bench.store._checkpoints, "write_all", full_restore)
        with pytest.raises(OSError, match="No space"):
            store_bench.store.undelete("orders")
    store_bench.store.delete_records("orders", 0, 8)
    assert store_bench.crash().partition("orders-0").start_offset == 8
    assert store_bench.reopen().partition("orders-0").start_offset == 8


@pytest.mark.parametrize("step", ["checkpoints", "inbox", "settle"])
def test_a_read_only_store_shows_what_was_taken_back_as_the_next_start_would(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    some(store_bench.store.create("orders"))
    store_bench.store.delete_records("orders", 0, 8)
    store_bench.store.delete_topic("orders")
    (store_bench.root / "deleted" / "unfinished").mkdir()
    places = {
        "checkpoints": (store_bench.store._checkpoints, "write_all"),
        "inbox": (store_bench.store.inboxes, "restore"),
        "settle": (store_bench.store._deleting.deletions, "settle"),
    }
    with monkeypatch.context() as patch:
        patch.setattr(*places[step], killed)
        with pytest.raises(KilledError):
            store_bench.store.undelete("orders")
    store_bench.store.abandon()
    before = sorted(store_bench.root.rglob("*"))
    with Store.open(store_bench.root, read_only=True) as shown:
        assert shown.partition("orders-0").start_offset == 8
        assert len(values(shown.partition("orders-0"))) == 2
    assert sorted(store_bench.root.rglob("*")) == before
    assert store_bench.open().partition("orders-0").start_offset == 8


def killed(*_: object) -> None:
    raise KilledError


class KilledError(BaseException):
    """The process ends here."""


def steps_of_undelete() -> list[str]:
    return ["configuration", "adopt", "renamed", "loaded", "checkpoints", "inbox", "settle"]


@pytest.mark.parametrize("step", steps_of_undelete())
def test_a_crash_while_a_deletion_is_taken_back_loses_nothing(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    store_bench.store.create_topic("orders", 1, {**SMALL, "retention.ms": "-1"})
    some(store_bench.store.partition("orders-0"))
    store_bench.store.partition("orders-0").delete_records(7)
    store_bench.store.inboxes.of("orders").commit(batch_name("b"), ())
    store_bench.store.delete_topic("orders")

    def kill(*_: Any) -> None:
        raise KilledError

    places: dict[str, tuple[Any, str]] = {
        "configuration": (store_bench.store._configuration, "restore_topic"),
        "adopt": (store_bench.store._checkpoints, "adopt"),
        "renamed": (deleting, "sync_directory"),
        "loaded": (store_bench.store._partitions, "add"),
        "checkpoints": (store_bench.store._checkpoints, "write_all"),
        "inbox": (store_bench.store.inboxes, "restore"),
        "settle": (store_bench.store._deleting.deletions, "settle"),
    }
    with monkeypatch.context() as patch:
        patch.setattr(*places[step], kill)
        # What runs on after a kill in a test would not in a process.
        patch.setattr(type(store_bench.store._deleting.deletions), "settle", kill)
        with pytest.raises(KilledError):
            store_bench.store.undelete("orders")
    store_bench.crash()
    if not topics(store_bench.store):
        store_bench.store.undelete("orders")
    partition = store_bench.store.partition("orders-0")
    assert (partition.start_offset, partition.end_offset) == (7, 10)
    assert store_bench.store.topic_settings("orders").retention_ms == -1
    assert store_bench.store.inboxes.of("orders").knows(batch_name("b"))
    assert kept(store_bench) == []


@pytest.mark.parametrize("at", range(1, 6))
def test_a_crash_within_a_deletion_loses_nothing(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """The first to the fifth rename of it: of its record, of two partitions, of settings and inbox."""
    store_bench.store.create_topic("orders", 2, {"retention.ms": "-1"})
    for number in (0, 1):
        some(store_bench.store.partition("orders", number))
    store_bench.store.inboxes.of("orders").commit(batch_name("b"), ())
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
            store_bench.store.delete_topic("orders")
    store_bench.crash()
    if store_bench.store.deletions():
        store_bench.store.undelete("orders")
    assert topics(store_bench.store) == {"orders": [0, 1]}
    assert [len(values(store_bench.store.partition("orders", number))) for number in (0, 1)] == [10, 10]
    assert store_bench.store.topic_settings("orders").retention_ms == -1
    assert store_bench.store.inboxes.of("orders").knows(batch_name("b"))


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"{}",
        b"[" * 100_000,
        b"[1]",
        b'{"version": 2}',
        b'{"version": 1, "topic": "orders", "deleted_at": -1, "removed_at": 1, "restoring": false, "partitions": []}',
        "up",
        "other topic",
    ],
)
def test_a_record_that_cannot_be_read_is_said_and_its_directories_go(
    store_bench: StoreBench, bad: bytes | str
) -> None:
    store_bench.warnings = True
    store_bench.damaged = {Kind.DELETION}
    some(store_bench.store.create("orders"))
    deletion = store_bench.store.delete("orders-0")
    path = store_bench.root / "deleted" / deletion.id / "deletion.json"
    if isinstance(bad, str):
        fields = json.loads(path.read_bytes())
        directory = (
            "../../topics" if bad == "up" else fields["partitions"][0]["directory"].replace("orders", "other")
        )
        fields["partitions"][0]["directory"] = directory
        bad = json.dumps(fields).encode()
    store_bench.store.close()
    path.write_bytes(bad)
    store_bench.open()
    assert store_bench.store.deletions() == []
    store_bench.now += DELAY
    store_bench.store.upkeep.run_due()
    assert store_bench.names() == []
    assert (store_bench.root / "topics").is_dir()


def test_a_deletion_on_a_full_disk_is_done_and_says_that_it_cannot_be_taken_back(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store_bench.warnings = True
    some(store_bench.store.create("orders"))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("topicfs.engine.store.deletion.write_atomically", full)
        store_bench.store.delete_topic("orders")
    assert any("cannot be taken back" in record.getMessage() for record in caplog.records)
    assert topics(store_bench.store) == {}
    with pytest.raises(NothingDeletedError):
        store_bench.store.undelete("orders")
    store_bench.now += DELAY
    store_bench.store.upkeep.run_due()
    assert (store_bench.names(), kept(store_bench)) == ([], [])


def test_what_was_deleted_before_comes_not_back_in_the_place_of_what_cannot(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """regression: the deletion before it was taken back, without a word"""
    store_bench.warnings = True
    some(store_bench.store.create("orders"))
    before = store_bench.store.delete_topic("orders")
    some(store_bench.store.create("orders"))
    with monkeypatch.context() as patch:
        patch.setattr("topicfs.engine.store.deletion.write_atomically", full_restore)
        store_bench.store.delete_topic("orders")
    with pytest.raises(NothingDeletedError, match=before.id):
        store_bench.store.undelete("orders")
    assert topics(store_bench.store) == {}
    store_bench.store.undelete("orders", deletion=before.id)
    assert topics(store_bench.store) == {"orders": [0]}


@pytest.mark.parametrize("noted", [False, True])
def test_a_deletion_is_done_where_there_is_no_room_to_close_the_files(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch, noted: bool
) -> None:
    """regression: the partition went offline, and was not deleted"""
    store_bench.warnings = True
    for number in (0, 1):
        some(store_bench.store.create("orders", number, SMALL if number == 0 else None))
    with monkeypatch.context() as patch:
        patch.setattr("topicfs.engine.segment.segment.Segment.close", full_restore)
        if not noted:
            patch.setattr("topicfs.engine.store.deletion.write_atomically", full_restore)
        store_bench.store.delete_topic("orders")
    assert topics(store_bench.store) == {}
    if noted:
        store_bench.store.undelete("orders")
        assert [len(values(store_bench.store.partition("orders", number))) for number in (0, 1)] == [10, 10]
        return
    store_bench.now += DELAY
    store_bench.store.upkeep.run_due()
    assert (store_bench.names(), kept(store_bench)) == ([], [])


def test_nothing_is_removed_while_delete_topic_enable_is_false(store_bench: StoreBench) -> None:
    store_bench.store.create("orders")
    store_bench.reopen({"delete.topic.enable": "false"})
    for remove in (
        lambda: store_bench.store.delete("orders-0", only_empty=True),
        lambda: store_bench.store.delete_topic("orders", only_empty=True),
    ):
        with pytest.raises(PolicyViolationError):
            remove()


def test_partitions_that_come_back_belong_to_the_topic_that_is_there(store_bench: StoreBench) -> None:
    store_bench.store.create_topic("orders", 2)
    some(store_bench.store.partition("orders-0"))
    store_bench.store.delete("orders-0")
    store_bench.store.undelete("orders", 0)
    ids = {PartitionMetadata.load(store_bench.logs / f"orders-{number}").topic_id for number in (0, 1)}
    assert len(ids) == 1
