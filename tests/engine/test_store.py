"""The store: KAFKA_FORMAT 1.1, 1.2, 9.1, and KAFKA_CASES N and the lines of O on the clean marker.

Not here: new partitions in the least loaded of several directories, and what a failed directory means to the
others: there is one directory. A stray partition is not made by us, as there is no cluster that could have
forgotten its topic; those that a broker made are kept. The marker's broker epoch is tested with the marker
(test_metadata), names with names (test_names).
"""

from __future__ import annotations

import doctest
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from houses import SMALL, House, living, some, values
from patience import PATIENCE_S

import topicfs
from topicfs import Partition, Record, Store
from topicfs.engine.errors import (
    ClosedError,
    CorruptCheckpointError,
    EngineError,
    InvalidNameError,
    InvalidSettingError,
    StoreLockedError,
    UnknownPartitionError,
)
from topicfs.engine.files.metadata import CleanShutdown
from topicfs.engine.partition.recovery import Recovery
from topicfs.engine.store import partitions as loading


@pytest.fixture
def house(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[House]:
    with living(tmp_path / "backing", caplog) as made:
        yield made


def test_the_example_in_the_packages_documentation_is_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(topicfs)
    assert (result.failed, result.attempted) == (0, 2)
    assert (tmp_path / "data" / "logs" / "orders-0").is_dir()


def test_what_the_package_says_it_exports_is_there() -> None:
    assert all(hasattr(topicfs, name) for name in topicfs.__all__)


# -- opening ----------------------------------------------------------------------------------------


def test_open_makes_the_directories(house: House) -> None:
    house.open()
    assert sorted(path.name for path in house.root.iterdir()) == ["logs", "staging", "topics", "views"]
    assert {".lock", "meta.properties"} <= {path.name for path in house.logs.iterdir()}


def test_a_relative_path_with_a_slash_at_its_end_is_the_same_directory(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.root.mkdir()
    monkeypatch.chdir(house.root.parent)
    with Store.open(f"{house.root.name}/", clock=house.clock, create=True) as store:
        some(store.create("orders"))
        monkeypatch.chdir("/")
        store.checkpoint_recovery_points()
        store.partition("orders-0").flush()
    assert house.recovery_points == {"orders-0": 10}
    assert len(values(house.open().partition("orders", 0))) == 10


def test_a_second_store_on_the_directory_is_refused_until_the_first_is_closed(house: House) -> None:
    house.open()
    with pytest.raises(StoreLockedError):
        Store.open(house.root, create=True)
    house.reopen()


def test_the_ids_of_the_directory_stay_the_same(house: House) -> None:
    meta = house.open().meta
    assert house.reopen().meta == meta


def test_plain_files_and_a_brokers_own_directories_are_left_alone(house: House) -> None:
    house.file("logs/bootstrap.checkpoint", "x")
    own = house.file("logs/__cluster_metadata-0/00000000000000000000.log", "not ours")
    house.file("logs/remote-log-index-cache/x", "x")
    assert house.open().partitions() == []
    house.store.close()
    assert own.read_text() == "not ours"


@pytest.mark.parametrize(
    "name", ["lost+found", "orders", "orders-x", "orders-01", "-0", "orders-0.abc-delete"]
)
def test_a_directory_whose_name_means_nothing_refuses_the_opening_and_is_named(
    house: House, name: str
) -> None:
    house.open()
    house.store.close()
    (house.logs / name).mkdir()
    with pytest.raises(InvalidNameError, match=name.replace("+", r"\+")):
        house.open()
    assert house.marker.exists()
    (house.logs / name).rmdir()
    assert house.open().stopped_clean


def test_stray_and_future_directories_are_reported_and_kept(house: House) -> None:
    names = [f"orders-0.{'a' * 32}-future", f"orders-0.{'b' * 32}-stray"]
    for name in names:
        house.file(f"logs/{name}/00000000000000000000.log", "as it was")
    store = house.open()
    assert store.strays == tuple(names)
    assert store.partitions() == []
    assert "orders-0" not in store
    house.now += 10**9
    store.upkeep()
    store.close()
    assert house.names() == names


def test_a_bad_line_in_server_properties_refuses_the_opening_with_the_file_and_the_name(house: House) -> None:
    house.open()
    house.store.close()
    path = house.file("server.properties", "log.retention.hurs=3\n")
    with pytest.raises(InvalidSettingError, match=rf"{path}: .*log\.retention\.hurs"):
        house.open()
    path.write_text("num.partitions=none\n")
    with pytest.raises(InvalidSettingError, match=rf"{path}: num\.partitions"):
        house.open()
    assert house.marker.exists()
    path.unlink()
    house.open()


def test_a_bad_line_in_a_topics_file_refuses_the_opening_with_the_file_and_the_name(house: House) -> None:
    path = house.file("topics/orders.properties", "retention.ms=soon\n")
    with pytest.raises(InvalidSettingError, match=rf"{path}: retention\.ms"):
        house.open()
    path.write_text("retention.ms=\\u12\n")
    with pytest.raises(CorruptCheckpointError, match=str(path)):
        house.open()
    path.rename(path.with_name("or ders.properties"))
    with pytest.raises(InvalidNameError, match="or ders"):
        house.open()


def test_settings_that_open_is_given_outrank_server_properties(house: House) -> None:
    house.file("server.properties", "num.partitions=3\nlog.retention.ms=5\n")
    store = house.open({"num.partitions": "2"})
    assert len(store.create_topic("orders")) == 2
    assert store.topic_settings("orders").retention_ms == 5


def test_a_setting_that_open_is_given_is_checked(house: House) -> None:
    with pytest.raises(InvalidSettingError, match=r"num\.partition"):
        house.open({"num.partition": "2"})


# -- clean and unclean ------------------------------------------------------------------------------


def test_the_marker_of_a_clean_stop_is_deleted_at_the_opening_and_written_at_the_close(house: House) -> None:
    house.open().create("orders")
    assert not house.marker.exists()
    house.store.close()
    assert house.marker.exists()
    assert CleanShutdown.of(house.logs).broker_epoch() == -1
    assert house.open().stopped_clean
    assert not house.marker.exists()
    assert not house.crash().stopped_clean


def test_after_a_clean_stop_nothing_of_a_partition_is_looked_at_before_it_is_used(house: House) -> None:
    some(house.open().create("orders"))
    house.store.close()
    directory, elsewhere = house.logs / "orders-0", house.root / "elsewhere"
    directory.rename(elsewhere)
    directory.mkdir()
    store = house.open()
    directory.rmdir()
    elsewhere.rename(directory)
    assert len(values(store.partition("orders", 0))) == 10


def test_what_was_not_used_since_a_clean_stop_is_not_touched_by_the_next_one(house: House) -> None:
    some(house.open().create("orders", overrides=SMALL))
    some(house.store.create("other"))
    house.store.partition("orders-0").delete_records(1)
    house.store.close()
    times = {path: path.stat().st_mtime_ns for path in (house.logs / "orders-0").iterdir()}
    known = house.recovery_points, house.starts, house.high_watermarks
    some(house.open().partition("other-0"), 5)
    house.store.close()
    assert {path: path.stat().st_mtime_ns for path in (house.logs / "orders-0").iterdir()} == times
    assert (house.recovery_points, house.starts, house.high_watermarks) == (
        {**known[0], "other-0": 15},
        known[1],
        {**known[2], "other-0": 15},
    )
    assert house.starts == {"orders-0": 1}
    assert house.marker.exists()


def test_after_a_clean_stop_there_is_no_recovery_whatever_the_recovery_point(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    some(house.open().create("orders"))
    house.store.close()
    house.file("logs/recovery-point-offset-checkpoint", "0\n1\norders 0 0\n")
    monkeypatch.setattr(Recovery, "from_offset", lambda *_: pytest.fail("recovered"))
    assert house.open().partition("orders", 0).recovery_point == 10


def test_after_a_crash_every_partition_is_recovered_at_the_opening(house: House) -> None:
    house.warnings = True
    for number in range(4):
        some(house.open().create("orders", number) if number == 0 else house.store.create("orders", number))
    house.store.abandon()
    for number in range(4):
        path = house.logs / f"orders-{number}" / "00000000000000000000.log"
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size - 1)
    store = house.open()
    sizes = {(house.logs / f"orders-{n}" / "00000000000000000000.log").stat().st_size for n in range(4)}
    assert len(sizes) == 1
    assert all(store.partition("orders", number).end_offset == 9 for number in range(4))
    assert all(store.partition("orders", number).recovery_point == 0 for number in range(4))


def test_a_recovery_that_ends_well_is_followed_by_a_clean_stop(house: House) -> None:
    some(house.open().create("orders"))
    house.crash()
    house.store.close()
    assert house.marker.exists()
    assert house.recovery_points == {"orders-0": 10}


def test_recovery_points_beyond_what_was_recovered_are_corrected_on_disk_at_once(house: House) -> None:
    house.warnings = True
    some(house.open().create("orders"))
    house.reopen()
    house.store.abandon()
    os.truncate(house.logs / "orders-0" / "00000000000000000000.log", 150)
    house.open()
    assert house.recovery_points == {"orders-0": house.store.partition("orders-0").end_offset}
    assert house.recovery_points["orders-0"] < 10


def failing_for(name: str, error: BaseException) -> Any:
    real = loading.load

    def load(topic: str, number: int, *rest: Any) -> Partition:
        if f"{topic}-{number}" == name:
            raise error
        return real(topic, number, *rest)

    return load


def test_a_bug_while_recovering_comes_out_of_open_and_leaves_no_marker(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    some(house.open().create("orders"))
    house.store.create("other")
    house.store.abandon()
    with monkeypatch.context() as patch:
        patch.setattr(loading, "load", failing_for("orders-0", RuntimeError("a bug")))
        with pytest.raises(RuntimeError, match="a bug"):
            house.open()
    assert not house.marker.exists()
    assert not house.open().stopped_clean
    assert len(values(house.store.partition("orders-0"))) == 10


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), CorruptCheckpointError("broken")])
def test_a_partition_that_cannot_be_recovered_is_offline_alone(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    house.warnings = True
    some(house.open().create("orders"))
    some(house.store.create("other"))
    house.store.abandon()
    with monkeypatch.context() as patch:
        patch.setattr(loading, "load", failing_for("orders-0", error))
        store = house.open()
    assert len(values(store.partition("other-0"))) == 10
    for _ in range(2):
        with pytest.raises(ClosedError, match="orders-0 is offline") as raised:
            store.partition("orders-0")
        assert raised.value.__cause__ is error
    assert any(r.levelno == logging.ERROR and "orders-0" in r.getMessage() for r in caplog.records)
    store.close()
    assert not house.marker.exists()
    assert len(values(house.open().partition("orders-0"))) == 10


def test_a_partition_that_cannot_be_loaded_after_a_clean_stop_prevents_the_next_marker(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.warnings = True
    some(house.open().create("orders"))
    house.reopen()
    with monkeypatch.context() as patch:
        patch.setattr(loading, "load", failing_for("orders-0", OSError(5, "Input/output error")))
        with pytest.raises(ClosedError):
            house.store.partition("orders-0")
    house.store.close()
    assert not house.marker.exists()
    assert house.recovery_points == {"orders-0": 10}
    house.open()


def test_a_partition_that_cannot_be_closed_does_not_stop_the_others(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.warnings = True
    store = house.open()
    bad, good = store.create("bad"), store.create("good")
    some(bad)
    some(good)

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bad.log, "close", fail)
    store.close()
    monkeypatch.undo()
    bad.log.abandon()
    assert not house.marker.exists()
    assert house.recovery_points["good-0"] == 10
    assert (house.logs / "good-0" / "00000000000000000010.snapshot").exists()
    assert not house.open().stopped_clean
    assert len(values(house.store.partition("bad-0"))) == 10


def test_a_partition_that_went_offline_prevents_the_marker(house: House) -> None:
    house.warnings = True
    partition = house.open().create("orders")
    some(partition)
    partition.log._fail(OSError(5, "Input/output error"))
    house.store.close()
    assert not house.marker.exists()
    house.open()


def test_a_full_disk_at_the_close_leaves_no_marker_and_no_lock(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = house.open()
    some(store.create("orders"))

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(store._checkpoints, "write_all", fail)
        with pytest.raises(OSError, match="No space"):
            store.close()
    assert not house.marker.exists()
    assert not house.open().stopped_clean


def test_abandon_writes_nothing_and_keeps_no_descriptor(house: House) -> None:
    store = house.open()
    before = len(os.listdir("/proc/self/fd"))
    some(store.create("orders", overrides=SMALL))
    list(store.partition("orders-0").records())
    content = {path: path.stat().st_mtime_ns for path in house.logs.rglob("*") if path.is_file()}
    store.abandon()
    assert {path: path.stat().st_mtime_ns for path in house.logs.rglob("*") if path.is_file()} == content
    store._partitions._descriptors.limit = 0
    del store
    house.open_store = None
    assert len(os.listdir("/proc/self/fd")) <= before
    assert len(values(house.open().partition("orders-0"))) == 10


def test_after_the_close_nothing_is_given_out(house: House) -> None:
    store = house.open()
    partition = store.create("orders")
    store.close()
    store.close()
    store.abandon()
    for call in (
        lambda: store.partition("orders-0"),
        lambda: store.create("other"),
        lambda: store.create_topic("other"),
        lambda: store.delete("orders-0"),
        lambda: store.configure("orders", {}),
        store.upkeep,
        store.checkpoint_recovery_points,
        store.checkpoint_start_offsets,
        store.checkpoint_high_watermarks,
        store.flush_rolled,
        store.flush_due,
        store.remove_due,
        store.expire_producers,
        lambda: partition.append(Record(b"x")),
    ):
        with pytest.raises(ClosedError):
            call()


# -- checkpoints at the opening ---------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
def test_unreadable_checkpoints_are_warned_of_and_done_without(
    house: House, caplog: pytest.LogCaptureFixture, clean: bool
) -> None:
    house.warnings = True
    # The leader epochs have followed a start offset that nobody remembers.
    house.verified = False
    some(house.open().create("orders", overrides=SMALL))
    house.store.partition("orders-0").delete_records(1)
    house.store.close()
    for name in ("recovery-point", "log-start", "cleaner"):
        house.file(f"logs/{name}-offset-checkpoint", "7\nnonsense\n")
    house.file("logs/replication-offset-checkpoint", "0\n2\norders 0 5\n")
    if not clean:
        house.marker.unlink()
    partition = house.open().partition("orders-0")
    assert partition.start_offset == 0
    assert partition.end_offset == 10
    assert sum("checkpoint" in r.getMessage() for r in caplog.records if r.levelno == logging.WARNING) == 4


def test_a_start_offset_that_was_checkpointed_is_kept(house: House) -> None:
    some(house.open().create("orders"))
    house.store.partition("orders-0").delete_records(4)
    assert house.reopen().partition("orders-0").start_offset == 4


def test_a_high_watermark_that_was_checkpointed_is_where_a_replicated_partition_begins(house: House) -> None:
    partition = house.open(lone=False).create("orders")
    some(partition)
    partition.log.set_high_watermark(6)
    assert house.reopen(lone=False).partition("orders-0").high_watermark == 6


def test_an_empty_directory_with_a_checkpointed_start_begins_there(house: House) -> None:
    house.open()
    house.store.close()
    (house.logs / "orders-0").mkdir()
    house.file("logs/log-start-offset-checkpoint", "0\n1\norders 0 500\n")
    partition = house.open().partition("orders-0")
    assert (partition.start_offset, partition.end_offset) == (500, 500)


def test_entries_of_partitions_that_are_not_there_are_dropped_from_memory_and_disk(house: House) -> None:
    house.open()
    house.store.close()
    for name in ("recovery-point", "log-start", "cleaner"):
        house.file(f"logs/{name}-offset-checkpoint", "0\n1\norders 0 500\n")
    house.file("logs/replication-offset-checkpoint", "0\n1\norders 0 500\n")
    store = house.open()
    for name in ("recovery-point-offset", "log-start-offset", "cleaner-offset", "replication-offset"):
        assert (house.logs / f"{name}-checkpoint").read_text() == "0\n0\n"
    assert store.create("orders").end_offset == 0


# -- loading when first used ------------------------------------------------------------------------


def test_a_partition_is_found_by_its_name_and_by_its_parts(house: House) -> None:
    house.open().create("orders-eu", 3)
    store = house.reopen()
    assert store.partition("orders-eu-3") is store.partition("orders-eu", 3)
    assert "orders-eu-3" in store
    assert ("orders-eu", 3) in store
    assert not any(key in store for key in ("orders-eu", "orders-eu-4", ("orders-eu", 4), 3, "", "a/b-0"))


def test_partitions_and_topics_are_listed_in_order(house: House) -> None:
    store = house.open()
    for topic, number in (("b", 10), ("b", 2), ("a", 0)):
        store.create(topic, number)
    assert house.reopen().partitions() == [("a", 0), ("b", 2), ("b", 10)]
    assert house.store.topics() == {"a": [0], "b": [2, 10]}


@pytest.mark.parametrize("name", ["orders-1", f"orders-0.{'a' * 32}-delete"])
def test_a_partition_that_is_not_there_is_an_error(house: House, name: str) -> None:
    house.open().create("orders")
    with pytest.raises(UnknownPartitionError):
        house.store.partition(name)
    with pytest.raises(UnknownPartitionError):
        house.store.partition("orders", 1)


class SlowLoad:
    """Stands in for the loading of one partition: begun, and not ended before it is let go on."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.real = loading.load
        self.count = 0
        self.begun = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, topic: str, number: int, *rest: Any) -> Partition:
        if f"{topic}-{number}" == self.name:
            self.count += 1
            self.begun.set()
            assert self.go_on.wait(PATIENCE_S)
        return self.real(topic, number, *rest)


@pytest.fixture
def slow(house: House, monkeypatch: pytest.MonkeyPatch) -> SlowLoad:
    """Loading orders-0 is slow; there is another partition, other-0."""
    some(house.open().create("orders"))
    some(house.store.create("other"))
    house.reopen()
    made = SlowLoad("orders-0")
    monkeypatch.setattr(loading, "load", made)
    return made


def in_thread(call: Any) -> tuple[threading.Thread, list[Any]]:
    answers: list[Any] = []

    def run() -> None:
        try:
            answers.append(call())
        except EngineError as error:
            answers.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, answers


def test_two_callers_get_the_same_partition_and_load_it_once(house: House, slow: SlowLoad) -> None:
    threads = [in_thread(lambda: house.store.partition("orders-0")) for _ in range(4)]
    assert slow.begun.wait(PATIENCE_S)
    slow.go_on.set()
    for thread, _ in threads:
        thread.join(PATIENCE_S)
    assert slow.count == 1
    assert {id(answers[0]) for _, answers in threads} == {id(house.store.partition("orders-0"))}


def test_loading_one_partition_does_not_keep_another_from_use(house: House, slow: SlowLoad) -> None:
    thread, answers = in_thread(lambda: house.store.partition("orders-0"))
    assert slow.begun.wait(PATIENCE_S)
    assert len(values(house.store.partition("other-0"))) == 10
    house.store.create("third")
    house.store.upkeep()
    assert not answers
    slow.go_on.set()
    thread.join(PATIENCE_S)


def test_a_deletion_waits_for_the_loading_and_who_comes_later_finds_nothing(
    house: House, slow: SlowLoad
) -> None:
    loader, loaded = in_thread(lambda: house.store.partition("orders-0"))
    assert slow.begun.wait(PATIENCE_S)
    deleter, _ = in_thread(lambda: house.store.delete("orders-0"))
    slow.go_on.set()
    loader.join(PATIENCE_S)
    deleter.join(PATIENCE_S)
    assert "orders-0" not in house.store
    with pytest.raises(ClosedError):
        loaded[0].append(Record(b"x"))


def test_a_change_of_settings_reaches_a_partition_that_is_being_loaded(house: House, slow: SlowLoad) -> None:
    loader, _ = in_thread(lambda: house.store.partition("orders-0"))
    assert slow.begun.wait(PATIENCE_S)
    changer, _ = in_thread(lambda: house.store.configure("orders", {"retention.ms": "7"}))
    while house.store.topic_settings("orders").retention_ms != 7 and changer.is_alive():
        changer.join(0.001)
    changer.join(0.05)
    slow.go_on.set()
    loader.join(PATIENCE_S)
    changer.join(PATIENCE_S)
    assert house.store.partition("orders-0").settings.retention_ms == 7


def test_recovery_uses_as_many_threads_as_the_setting_says(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        (house.store if house.open_store else house.open()).create("orders", number)
    house.store.abandon()
    names = set()
    real, both = loading.load, threading.Barrier(3)

    def load(*arguments: Any) -> Partition:
        names.add(threading.current_thread().name)
        both.wait(PATIENCE_S)
        return real(*arguments)

    monkeypatch.setattr(loading, "load", load)
    house.open({"num.recovery.threads.per.data.dir": "3"})
    assert len(names) == 3


def test_a_close_during_a_flush_waits_for_it(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = house.open().create("orders")
    some(partition)
    begun, go_on, real = threading.Event(), threading.Event(), os.fsync

    def fsync(descriptor: int) -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    flusher, _ = in_thread(partition.flush)
    assert begun.wait(PATIENCE_S)
    closer, _ = in_thread(house.store.close)
    go_on.set()
    flusher.join(PATIENCE_S)
    closer.join(PATIENCE_S)
    assert not closer.is_alive()
    assert house.marker.exists()
