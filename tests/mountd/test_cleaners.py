"""The cleaner threads: what they do without being asked, and that they end when they are told to."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from patience import PATIENCE_S, eventually, promptly
from prometheus_client.parser import text_string_to_metric_families

from topicfs.engine.cleaner.manager import Cleans
from topicfs.engine.cleaner.states import Phase
from topicfs.engine.errors import CorruptBatchError, PolicyViolationError
from topicfs.engine.jobs import Jobs
from topicfs.engine.partition.log import Log
from topicfs.engine.record import Record
from topicfs.engine.store.store import Store
from topicfs.mountd.cleaners import Cleaners, make_cleaner
from topicfs.mountd.metrics import Metrics

pytestmark = pytest.mark.busy

SETTINGS = {
    "log.cleaner.backoff.ms": "10",
    "log.cleaner.dedupe.buffer.size": "1000000",
    "log.cleaner.min.cleanable.ratio": "0",
    "log.retention.ms": "-1",
}
COMPACT = {"cleanup.policy": "compact", "internal.segment.bytes": "1000", "file.delete.delay.ms": "0"}


def fill(store: Store, topic: str, rounds: int = 20, **overrides: str) -> None:
    """Ten keys, again and again."""
    more = {name.replace("_", "."): value for name, value in overrides.items()}
    partition = store.create(topic, overrides={**COMPACT, **more})
    for number in range(rounds):
        partition.append([Record(b"value %d" % number, b"key %d" % key) for key in range(10)])
    partition.roll()


@contextmanager
def at_work(
    store: Store, make: Callable[[Store, Callable[[int], None]], Cleans] = make_cleaner
) -> Iterator[Cleaners]:
    cleaners = Cleaners(store, make)
    cleaners.start()
    try:
        yield cleaners
    finally:
        cleaners.stop()


def threads() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("cleaner-"))


class Slow:
    """Cleans until it is told to stop; or fails."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.begun = threading.Event()

    def clean(
        self, log: Log, first_dirty: int, first_uncleanable: int, now: int, check: Callable[[], None]
    ) -> object:
        self.begun.set()
        while self.error is None:
            check()
            time.sleep(0.001)
        raise self.error


def test_keys_that_were_written_again_go_and_the_last_values_stay(tmp_path: Path) -> None:
    with Store.open(tmp_path, SETTINGS, create=True) as store:
        fill(store, "orders")
        partition = store.partition("orders-0")
        with at_work(store) as cleaners:
            eventually(lambda: store.cleaning.offsets.get(("orders", 0)) == 200, "compaction")
            eventually(lambda: cleaners.states["cleaner-0"].cleans == 1, "state")
        found = {record.key: record.value for record in partition.records()}
        assert found == {b"key %d" % key: b"value 19" for key in range(10)}
        assert len(list(partition.records())) == 10
        assert partition.end_offset == 200


def test_as_many_threads_as_the_settings_say_by_their_names(tmp_path: Path) -> None:
    with Store.open(tmp_path, {**SETTINGS, "log.cleaner.threads": "3"}, create=True) as store:
        with at_work(store) as cleaners:
            assert threads() == ["cleaner-0", "cleaner-1", "cleaner-2"]
            assert list(cleaners.states) == threads()
        assert threads() == []


def test_a_daemon_that_is_nicer_than_its_cleaners_would_be_has_cleaners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ordinary user may not make a thread less nice."""

    def refused(which: int, who: int, niceness: int) -> None:
        if niceness < 10:
            raise PermissionError

    monkeypatch.setattr(os, "getpriority", lambda which, who: 10)
    monkeypatch.setattr(os, "setpriority", refused)
    with Store.open(tmp_path, SETTINGS, create=True) as store, at_work(store) as cleaners:
        eventually(lambda: cleaners.states["cleaner-0"].runs > 0, "a run")


@pytest.mark.parametrize("setting", ["log.cleaner.enable=false", "log.cleaner.threads=0"])
def test_without_cleaners_there_is_no_thread(tmp_path: Path, setting: str) -> None:
    name, _, value = setting.partition("=")
    with Store.open(tmp_path, {**SETTINGS, name: value}, create=True) as store, at_work(store) as cleaners:
        assert threads() == []
        assert cleaners.states == {}
        # Who asked would wait for ever.
        fill(store, "orders", 1)
        with pytest.raises(PolicyViolationError, match=setting):
            store.cleaning.ask(("orders", 0))
        assert not store.cleaning.asked


def test_stop_is_prompt_in_the_middle_of_a_clean_and_leaves_the_log_whole(tmp_path: Path) -> None:
    def stop() -> float:
        with (
            TemporaryDirectory(dir=tmp_path) as place,
            Store.open(Path(place), SETTINGS, create=True) as store,
        ):
            fill(store, "orders")
            slow = Slow()
            with at_work(store, lambda *_: slow):  # type: ignore[arg-type, return-value]
                assert slow.begun.wait(PATIENCE_S)
                began = time.monotonic()
            seconds = time.monotonic() - began
            assert len(list(store.partition("orders-0").records())) == 200
            return seconds

    promptly(1, stop)


def test_stop_is_prompt_although_the_throttle_has_a_clean_sleep(tmp_path: Path) -> None:
    settings = {**SETTINGS, "log.cleaner.io.max.bytes.per.second": "1"}

    def stop() -> float:
        with (
            TemporaryDirectory(dir=tmp_path) as place,
            Store.open(Path(place), settings, create=True) as store,
        ):
            fill(store, "orders", 400)
            with at_work(store):
                eventually(
                    lambda: store.cleaning.states.of(("orders", 0)) is Phase.IN_PROGRESS, "begin of a clean"
                )
                time.sleep(0.5)
                began = time.monotonic()
            return time.monotonic() - began

    promptly(1, stop)


def test_stop_twice_and_stop_without_start_do_nothing(tmp_path: Path) -> None:
    with Store.open(tmp_path, SETTINGS, create=True) as store:
        cleaners = Cleaners(store)
        cleaners.stop()
        cleaners.stop()


def test_damaged_log_does_not_keep_a_thread_from_the_others(tmp_path: Path) -> None:
    with Store.open(tmp_path, SETTINGS, create=True) as store:
        fill(store, "bad")
        log = store.partition("bad-0").log.chain.segments.first.path
        data = bytearray(log.read_bytes())
        data[100] ^= 0xFF
        log.write_bytes(data)
        fill(store, "good")
        with at_work(store) as cleaners:
            eventually(lambda: store.cleaning.offsets.get(("good", 0)) == 200, "compaction of the good one")
            eventually(lambda: store.cleaning.uncleanable, "damage")
            eventually(lambda: cleaners.states["cleaner-0"].healthy, "a run without an error")
        assert list(store.cleaning.uncleanable) == [("bad", 0)]
        assert str(log) in store.cleaning.uncleanable["bad", 0]
        assert cleaners.states["cleaner-0"].last_error == store.cleaning.uncleanable["bad", 0]


@pytest.mark.parametrize("error", [CorruptBatchError("x"), KeyError("x")])
def test_thread_outlives_what_a_clean_raises(tmp_path: Path, error: Exception) -> None:
    with Store.open(tmp_path, SETTINGS, create=True) as store:
        fill(store, "orders")
        with at_work(store, lambda *_: Slow(error)) as cleaners:  # type: ignore[arg-type, return-value]
            eventually(lambda: cleaners.states["cleaner-0"].errors == 1, "failure")
            runs = cleaners.states["cleaner-0"].runs
            eventually(lambda: cleaners.states["cleaner-0"].runs > runs, "another run")
            assert cleaners.states["cleaner-0"].healthy
            assert threads() == ["cleaner-0"]
        assert ("orders", 0) in store.cleaning.uncleanable


def test_topics_that_are_compacted_and_deleted_get_retention_from_these_threads(tmp_path: Path) -> None:
    with Store.open(tmp_path, SETTINGS, create=True) as store:
        fill(
            store, "both", cleanup_policy="compact,delete", retention_bytes="0", min_compaction_lag_ms="60000"
        )
        with at_work(store) as cleaners:
            eventually(lambda: store.partition("both-0").start_offset == 200, "retention")
            eventually(lambda: cleaners.states["cleaner-0"].removed.segments > 0, "state")


def test_other_settings_take_effect_without_a_restart(tmp_path: Path) -> None:
    with Store.open(tmp_path, SETTINGS, create=True) as store:
        fill(store, "orders", cleanup_policy="delete")
        with at_work(store):
            time.sleep(0.1)
            assert len(list(store.partition("orders-0").records())) == 200
            store.configure("orders", {"cleanup.policy": "compact"})
            eventually(lambda: len(list(store.partition("orders-0").records())) == 10, "compaction")


def test_threads_and_what_they_did_are_told_by_the_metrics(tmp_path: Path) -> None:
    with Store.open(tmp_path, SETTINGS, create=True) as store:
        fill(store, "orders")
        fill(store, "limited", cleanup_policy="delete", retention_bytes="0")
        with at_work(store) as cleaners:
            metrics = Metrics(store, Jobs([]), dict, cleaners)
            with store.partition("limited-0").hold(0, 10):
                store.upkeep.retain()
                pinned = store.partition("limited-0").log.chain.doomed_segments[0].size
                assert values(metrics)["topicfs_partition_pinned_bytes partition=0 topic=limited"] == pinned
            eventually(lambda: cleaners.states["cleaner-0"].cleans == 1, "compaction")
            found = values(metrics)
        state = cleaners.states["cleaner-0"]
        assert found["topicfs_cleaner_cleans_total thread=cleaner-0"] == 1
        assert found["topicfs_cleaner_read_bytes_total thread=cleaner-0"] == state.bytes_read > 0
        assert found["topicfs_cleaners_written_bytes_total"] == state.bytes_written > 0
        assert found["topicfs_cleaner_healthy thread=cleaner-0"] == 1
        assert found["topicfs_uncleanable_partitions"] == 0
        assert found["topicfs_removed_segments_total reason=size"] > 0
        assert found["topicfs_removed_bytes_total reason=time"] == 0
        store.cleaning.uncleanable["orders", 0] = "damaged"
        found = values(metrics)
        assert found["topicfs_uncleanable error=damaged partition=0 topic=orders"] == 1


def values(metrics: Metrics) -> dict[str, float]:
    return {
        sample.name
        + "".join(f" {name}={value}" for name, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }
