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
from patience import PATIENCE_S
from store_bench import SMALL, StoreBench, checked_store_bench, some, values

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
def store_bench(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[StoreBench]:
    with checked_store_bench(tmp_path / "backing", caplog) as made:
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


def test_open_makes_the_directories(store_bench: StoreBench) -> None:
    store_bench.open()
    assert sorted(path.name for path in store_bench.root.iterdir()) == [
        "layout.properties",
        "logs",
        "staging",
        "topics",
        "views",
    ]
    assert {".lock", "meta.properties"} <= {path.name for path in store_bench.logs.iterdir()}


def test_a_relative_path_with_a_slash_at_its_end_is_the_same_directory(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_bench.root.mkdir()
    monkeypatch.chdir(store_bench.root.parent)
    with Store.open(f"{store_bench.root.name}/", clock=store_bench.clock, create=True) as store:
        some(store.create("orders"))
        monkeypatch.chdir("/")
        store.upkeep.checkpoint_recovery_points()
        store.partition("orders-0").flush()
    assert store_bench.recovery_points == {"orders-0": 10}
    assert len(values(store_bench.open().partition("orders", 0))) == 10


def test_a_second_store_on_the_directory_is_refused_until_the_first_is_closed(
    store_bench: StoreBench,
) -> None:
    store_bench.open()
    with pytest.raises(StoreLockedError):
        Store.open(store_bench.root, create=True)
    store_bench.reopen()


def test_the_ids_of_the_directory_stay_the_same(store_bench: StoreBench) -> None:
    meta = store_bench.open().meta
    assert store_bench.reopen().meta == meta


def test_plain_files_and_a_brokers_own_directories_are_left_alone(store_bench: StoreBench) -> None:
    store_bench.file("logs/bootstrap.checkpoint", "x")
    own = store_bench.file("logs/__cluster_metadata-0/00000000000000000000.log", "not ours")
    store_bench.file("logs/remote-log-index-cache/x", "x")
    assert store_bench.open().partitions() == []
    store_bench.store.close()
    assert own.read_text() == "not ours"


@pytest.mark.parametrize(
    "name", ["lost+found", "orders", "orders-x", "orders-01", "-0", "orders-0.abc-delete"]
)
def test_a_directory_whose_name_means_nothing_refuses_the_opening_and_is_named(
    store_bench: StoreBench, name: str
) -> None:
    store_bench.open()
    store_bench.store.close()
    (store_bench.logs / name).mkdir()
    with pytest.raises(InvalidNameError, match=name.replace("+", r"\+")):
        store_bench.open()
    assert store_bench.marker.exists()
    (store_bench.logs / name).rmdir()
    assert store_bench.open().stopped_clean


def test_stray_and_future_directories_are_reported_and_kept(store_bench: StoreBench) -> None:
    names = [f"orders-0.{'a' * 32}-future", f"orders-0.{'b' * 32}-stray"]
    for name in names:
        store_bench.file(f"logs/{name}/00000000000000000000.log", "as it was")
    store = store_bench.open()
    assert store.strays == tuple(names)
    assert store.partitions() == []
    assert "orders-0" not in store
    store_bench.now += 10**9
    store.upkeep.run_due()
    store.close()
    assert store_bench.names() == names


def test_a_bad_line_in_server_properties_refuses_the_opening_with_the_file_and_the_name(
    store_bench: StoreBench,
) -> None:
    store_bench.open()
    store_bench.store.close()
    path = store_bench.file("server.properties", "log.retention.hurs=3\n")
    with pytest.raises(InvalidSettingError, match=rf"{path}: .*log\.retention\.hurs"):
        store_bench.open()
    path.write_text("num.partitions=none\n")
    with pytest.raises(InvalidSettingError, match=rf"{path}: num\.partitions"):
        store_bench.open()
    assert store_bench.marker.exists()
    path.unlink()
    store_bench.open()


def test_a_bad_line_in_a_topics_file_refuses_the_opening_with_the_file_and_the_name(
    store_bench: StoreBench,
) -> None:
    path = store_bench.file("topics/orders.properties", "retention.ms=soon\n")
    with pytest.raises(InvalidSettingError, match=rf"{path}: retention\.ms"):
        store_bench.open()
    path.write_text("retention.ms=\\u12\n")
    with pytest.raises(CorruptCheckpointError, match=str(path)):
        store_bench.open()
    path.rename(path.with_name("or ders.properties"))
    with pytest.raises(InvalidNameError, match="or ders"):
        store_bench.open()


def test_settings_that_open_is_given_outrank_server_properties(store_bench: StoreBench) -> None:
    store_bench.file("server.properties", "num.partitions=3\nlog.retention.ms=5\n")
    store = store_bench.open({"num.partitions": "2"})
    assert len(store.create_topic("orders")) == 2
    assert store.topic_settings("orders").retention_ms == 5


def test_a_setting_that_open_is_given_is_checked(store_bench: StoreBench) -> None:
    with pytest.raises(InvalidSettingError, match=r"num\.partition"):
        store_bench.open({"num.partition": "2"})


# -- clean and unclean ------------------------------------------------------------------------------


def test_the_marker_of_a_clean_stop_is_deleted_at_the_opening_and_written_at_the_close(
    store_bench: StoreBench,
) -> None:
    store_bench.open().create("orders")
    assert not store_bench.marker.exists()
    store_bench.store.close()
    assert store_bench.marker.exists()
    assert CleanShutdown.of(store_bench.logs).broker_epoch() == -1
    assert store_bench.open().stopped_clean
    assert not store_bench.marker.exists()
    assert not store_bench.crash().stopped_clean


def test_after_a_clean_stop_nothing_of_a_partition_is_looked_at_before_it_is_used(
    store_bench: StoreBench,
) -> None:
    some(store_bench.open().create("orders"))
    store_bench.store.close()
    directory, elsewhere = store_bench.logs / "orders-0", store_bench.root / "elsewhere"
    directory.rename(elsewhere)
    directory.mkdir()
    store = store_bench.open()
    directory.rmdir()
    elsewhere.rename(directory)
    assert len(values(store.partition("orders", 0))) == 10


def test_what_was_not_used_since_a_clean_stop_is_not_touched_by_the_next_one(store_bench: StoreBench) -> None:
    some(store_bench.open().create("orders", overrides=SMALL))
    some(store_bench.store.create("other"))
    store_bench.store.partition("orders-0").delete_records(1)
    store_bench.store.close()
    times = {path: path.stat().st_mtime_ns for path in (store_bench.logs / "orders-0").iterdir()}
    known = store_bench.recovery_points, store_bench.starts, store_bench.high_watermarks
    some(store_bench.open().partition("other-0"), 5)
    store_bench.store.close()
    assert {path: path.stat().st_mtime_ns for path in (store_bench.logs / "orders-0").iterdir()} == times
    assert (store_bench.recovery_points, store_bench.starts, store_bench.high_watermarks) == (
        {**known[0], "other-0": 15},
        known[1],
        {**known[2], "other-0": 15},
    )
    assert store_bench.starts == {"orders-0": 1}
    assert store_bench.marker.exists()


def test_after_a_clean_stop_there_is_no_recovery_whatever_the_recovery_point(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    some(store_bench.open().create("orders"))
    store_bench.store.close()
    store_bench.file("logs/recovery-point-offset-checkpoint", "0\n1\norders 0 0\n")
    monkeypatch.setattr(Recovery, "from_offset", lambda *_: pytest.fail("recovered"))
    assert store_bench.open().partition("orders", 0).recovery_point == 10


def test_after_a_crash_every_partition_is_recovered_at_the_opening(store_bench: StoreBench) -> None:
    store_bench.warnings = True
    for number in range(4):
        some(
            store_bench.open().create("orders", number)
            if number == 0
            else store_bench.store.create("orders", number)
        )
    store_bench.store.abandon()
    for number in range(4):
        path = store_bench.logs / f"orders-{number}" / "00000000000000000000.log"
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size - 1)
    store = store_bench.open()
    sizes = {(store_bench.logs / f"orders-{n}" / "00000000000000000000.log").stat().st_size for n in range(4)}
    assert len(sizes) == 1
    assert all(store.partition("orders", number).end_offset == 9 for number in range(4))
    assert all(store.partition("orders", number).recovery_point == 0 for number in range(4))


def test_a_recovery_that_ends_well_is_followed_by_a_clean_stop(store_bench: StoreBench) -> None:
    some(store_bench.open().create("orders"))
    store_bench.crash()
    store_bench.store.close()
    assert store_bench.marker.exists()
    assert store_bench.recovery_points == {"orders-0": 10}


def test_recovery_points_beyond_what_was_recovered_are_corrected_on_disk_at_once(
    store_bench: StoreBench,
) -> None:
    store_bench.warnings = True
    some(store_bench.open().create("orders"))
    store_bench.reopen()
    store_bench.store.abandon()
    os.truncate(store_bench.logs / "orders-0" / "00000000000000000000.log", 150)
    store_bench.open()
    assert store_bench.recovery_points == {"orders-0": store_bench.store.partition("orders-0").end_offset}
    assert store_bench.recovery_points["orders-0"] < 10


def failing_for(name: str, error: BaseException) -> Any:
    real = loading.load

    def load(topic: str, number: int, *rest: Any) -> Partition:
        if f"{topic}-{number}" == name:
            raise error
        return real(topic, number, *rest)

    return load


def test_a_bug_while_recovering_comes_out_of_open_and_leaves_no_marker(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    some(store_bench.open().create("orders"))
    store_bench.store.create("other")
    store_bench.store.abandon()
    with monkeypatch.context() as patch:
        patch.setattr(loading, "load", failing_for("orders-0", RuntimeError("a bug")))
        with pytest.raises(RuntimeError, match="a bug"):
            store_bench.open()
    assert not store_bench.marker.exists()
    assert not store_bench.open().stopped_clean
    assert len(values(store_bench.store.partition("orders-0"))) == 10


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), CorruptCheckpointError("broken")])
def test_a_partition_that_cannot_be_recovered_is_offline_alone(
    store_bench: StoreBench,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    store_bench.warnings = True
    some(store_bench.open().create("orders"))
    some(store_bench.store.create("other"))
    store_bench.store.abandon()
    with monkeypatch.context() as patch:
        patch.setattr(loading, "load", failing_for("orders-0", error))
        store = store_bench.open()
    assert len(values(store.partition("other-0"))) == 10
    for _ in range(2):
        with pytest.raises(ClosedError, match="orders-0 is offline") as raised:
            store.partition("orders-0")
        assert raised.value.__cause__ is error
    assert any(r.levelno == logging.ERROR and "orders-0" in r.getMessage() for r in caplog.records)
    store.close()
    assert not store_bench.marker.exists()
    assert len(values(store_bench.open().partition("orders-0"))) == 10


def test_a_partition_that_cannot_be_loaded_after_a_clean_stop_prevents_the_next_marker(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_bench.warnings = True
    some(store_bench.open().create("orders"))
    store_bench.reopen()
    with monkeypatch.context() as patch:
        patch.setattr(loading, "load", failing_for("orders-0", OSError(5, "Input/output error")))
        with pytest.raises(ClosedError):
            store_bench.store.partition("orders-0")
    store_bench.store.close()
    assert not store_bench.marker.exists()
    assert store_bench.recovery_points == {"orders-0": 10}
    store_bench.open()


def test_a_partition_that_cannot_be_closed_does_not_stop_the_others(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_bench.warnings = True
    store = store_bench.open()
    bad, good = store.create("bad"), store.create("good")
    some(bad)
    some(good)

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bad.log, "close", fail)
    store.close()
    monkeypatch.undo()
    bad.log.abandon()
    assert not store_bench.marker.exists()
    assert store_bench.recovery_points["good-0"] == 10
    assert (store_bench.logs / "good-0" / "00000000000000000010.snapshot").exists()
    assert not store_bench.open().stopped_clean
    assert len(values(store_bench.store.partition("bad-0"))) == 10


def test_a_partition_that_went_offline_prevents_the_marker(store_bench: StoreBench) -> None:
    store_bench.warnings = True
    partition = store_bench.open().create("orders")
    some(partition)
    partition.log._fail(OSError(5, "Input/output error"))
    store_bench.store.close()
    assert not store_bench.marker.exists()
    store_bench.open()


def test_a_full_disk_at_the_close_leaves_no_marker_and_no_lock(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_bench.open()
    some(store.create("orders"))

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(store._checkpoints, "write_all", fail)
        with pytest.raises(OSError, match="No space"):
            store.close()
    assert not store_bench.marker.exists()
    assert not store_bench.open().stopped_clean


def test_abandon_writes_nothing_and_keeps_no_descriptor(store_bench: StoreBench) -> None:
    store = store_bench.open()
    before = len(os.listdir("/proc/self/fd"))
    some(store.create("orders", overrides=SMALL))
    list(store.partition("orders-0").records())
    content = {path: path.stat().st_mtime_ns for path in store_bench.logs.rglob("*") if path.is_file()}
    store.abandon()
    assert {
        path: path.stat().st_mtime_ns for path in store_bench.logs.rglob("*") if path.is_file()
    } == content
    store.descriptors.limit = 0
    del store
    store_bench.open_store = None
    assert len(os.listdir("/proc/self/fd")) <= before
    assert len(values(store_bench.open().partition("orders-0"))) == 10


def test_after_the_close_nothing_is_given_out(store_bench: StoreBench) -> None:
    store = store_bench.open()
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
        store.upkeep.run_due,
        store.upkeep.checkpoint_recovery_points,
        store.upkeep.checkpoint_start_offsets,
        store.upkeep.checkpoint_high_watermarks,
        store.upkeep.flush_rolled,
        store.upkeep.flush_due,
        store.upkeep.remove_due,
        store.upkeep.expire_producers,
        lambda: partition.append(Record(b"x")),
    ):
        with pytest.raises(ClosedError):
            call()


# -- checkpoints at the opening ---------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
def test_unreadable_checkpoints_are_warned_of_and_done_without(
    store_bench: StoreBench, caplog: pytest.LogCaptureFixture, clean: bool
) -> None:
    store_bench.warnings = True
    # The leader epochs have followed a start offset that nobody remembers.
    store_bench.verified = False
    some(store_bench.open().create("orders", overrides=SMALL))
    store_bench.store.partition("orders-0").delete_records(1)
    store_bench.store.close()
    for name in ("recovery-point", "log-start", "cleaner"):
        store_bench.file(f"logs/{name}-offset-checkpoint", "7\nnonsense\n")
    store_bench.file("logs/replication-offset-checkpoint", "0\n2\norders 0 5\n")
    if not clean:
        store_bench.marker.unlink()
    partition = store_bench.open().partition("orders-0")
    assert partition.start_offset == 0
    assert partition.end_offset == 10
    assert sum("checkpoint" in r.getMessage() for r in caplog.records if r.levelno == logging.WARNING) == 4


def test_a_start_offset_that_was_checkpointed_is_kept(store_bench: StoreBench) -> None:
    some(store_bench.open().create("orders"))
    store_bench.store.partition("orders-0").delete_records(4)
    assert store_bench.reopen().partition("orders-0").start_offset == 4


def test_a_high_watermark_that_was_checkpointed_is_where_a_replicated_partition_begins(
    store_bench: StoreBench,
) -> None:
    partition = store_bench.open(lone=False).create("orders")
    some(partition)
    partition.log.set_high_watermark(6)
    assert store_bench.reopen(lone=False).partition("orders-0").high_watermark == 6


def test_an_empty_directory_with_a_checkpointed_start_begins_there(store_bench: StoreBench) -> None:
    store_bench.open()
    store_bench.store.close()
    (store_bench.logs / "orders-0").mkdir()
    store_bench.file("logs/log-start-offset-checkpoint", "0\n1\norders 0 500\n")
    partition = store_bench.open().partition("orders-0")
    assert (partition.start_offset, partition.end_offset) == (500, 500)


def test_entries_of_partitions_that_are_not_there_are_dropped_from_memory_and_disk(
    store_bench: StoreBench,
) -> None:
    store_bench.open()
    store_bench.store.close()
    for name in ("recovery-point", "log-start", "cleaner"):
        store_bench.file(f"logs/{name}-offset-checkpoint", "0\n1\norders 0 500\n")
    store_bench.file("logs/replication-offset-checkpoint", "0\n1\norders 0 500\n")
    store = store_bench.open()
    for name in ("recovery-point-offset", "log-start-offset", "cleaner-offset", "replication-offset"):
        assert (store_bench.logs / f"{name}-checkpoint").read_text() == "0\n0\n"
    assert store.create("orders").end_offset == 0


# -- loading when first used ------------------------------------------------------------------------


def test_a_partition_is_found_by_its_name_and_by_its_parts(store_bench: StoreBench) -> None:
    store_bench.open().create("orders-eu", 3)
    store = store_bench.reopen()
    assert store.partition("orders-eu-3") is store.partition("orders-eu", 3)
    assert "orders-eu-3" in store
    assert ("orders-eu", 3) in store
    assert not any(key in store for key in ("orders-eu", "orders-eu-4", ("orders-eu", 4), 3, "", "a/b-0"))


def test_partitions_and_topics_are_listed_in_order(store_bench: StoreBench) -> None:
    store = store_bench.open()
    for topic, number in (("b", 10), ("b", 2), ("a", 0)):
        store.create(topic, number)
    assert store_bench.reopen().partitions() == [("a", 0), ("b", 2), ("b", 10)]
    assert store_bench.store.topics() == {"a": [0], "b": [2, 10]}


@pytest.mark.parametrize("name", ["orders-1", f"orders-0.{'a' * 32}-delete"])
def test_a_partition_that_is_not_there_is_an_error(store_bench: StoreBench, name: str) -> None:
    store_bench.open().create("orders")
    with pytest.raises(UnknownPartitionError):
        store_bench.store.partition(name)
    with pytest.raises(UnknownPartitionError):
        store_bench.store.partition("orders", 1)


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
def slow(store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch) -> SlowLoad:
    """Loading orders-0 is slow; there is another partition, other-0."""
    some(store_bench.open().create("orders"))
    some(store_bench.store.create("other"))
    store_bench.reopen()
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


def test_two_callers_get_the_same_partition_and_load_it_once(store_bench: StoreBench, slow: SlowLoad) -> None:
    threads = [in_thread(lambda: store_bench.store.partition("orders-0")) for _ in range(4)]
    assert slow.begun.wait(PATIENCE_S)
    slow.go_on.set()
    for thread, _ in threads:
        thread.join(PATIENCE_S)
    assert slow.count == 1
    assert {id(answers[0]) for _, answers in threads} == {id(store_bench.store.partition("orders-0"))}


def test_loading_one_partition_does_not_keep_another_from_use(
    store_bench: StoreBench, slow: SlowLoad
) -> None:
    thread, answers = in_thread(lambda: store_bench.store.partition("orders-0"))
    assert slow.begun.wait(PATIENCE_S)
    assert len(values(store_bench.store.partition("other-0"))) == 10
    store_bench.store.create("third")
    store_bench.store.upkeep.run_due()
    assert not answers
    slow.go_on.set()
    thread.join(PATIENCE_S)


def test_a_deletion_waits_for_the_loading_and_who_comes_later_finds_nothing(
    store_bench: StoreBench, slow: SlowLoad
) -> None:
    loader, loaded = in_thread(lambda: store_bench.store.partition("orders-0"))
    assert slow.begun.wait(PATIENCE_S)
    deleter, _ = in_thread(lambda: store_bench.store.delete("orders-0"))
    slow.go_on.set()
    loader.join(PATIENCE_S)
    deleter.join(PATIENCE_S)
    assert "orders-0" not in store_bench.store
    with pytest.raises(ClosedError):
        loaded[0].append(Record(b"x"))


def test_a_change_of_settings_reaches_a_partition_that_is_being_loaded(
    store_bench: StoreBench, slow: SlowLoad
) -> None:
    loader, _ = in_thread(lambda: store_bench.store.partition("orders-0"))
    assert slow.begun.wait(PATIENCE_S)
    changer, _ = in_thread(lambda: store_bench.store.configure("orders", {"retention.ms": "7"}))
    while store_bench.store.topic_settings("orders").retention_ms != 7 and changer.is_alive():
        changer.join(0.001)
    changer.join(0.05)
    slow.go_on.set()
    loader.join(PATIENCE_S)
    changer.join(PATIENCE_S)
    assert store_bench.store.partition("orders-0").settings.retention_ms == 7


def test_recovery_uses_as_many_threads_as_the_setting_says(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        (store_bench.store if store_bench.open_store else store_bench.open()).create("orders", number)
    store_bench.store.abandon()
    names = set()
    real, both = loading.load, threading.Barrier(3)

    def load(*arguments: Any) -> Partition:
        names.add(threading.current_thread().name)
        both.wait(PATIENCE_S)
        return real(*arguments)

    monkeypatch.setattr(loading, "load", load)
    store_bench.open({"num.recovery.threads.per.data.dir": "3"})
    assert len(names) == 3


def test_a_close_during_a_flush_waits_for_it(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = store_bench.open().create("orders")
    some(partition)
    begun, go_on, real = threading.Event(), threading.Event(), os.fsync

    def fsync(descriptor: int) -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    flusher, _ = in_thread(partition.flush)
    assert begun.wait(PATIENCE_S)
    closer, _ = in_thread(store_bench.store.close)
    go_on.set()
    flusher.join(PATIENCE_S)
    closer.join(PATIENCE_S)
    assert not closer.is_alive()
    assert store_bench.marker.exists()
