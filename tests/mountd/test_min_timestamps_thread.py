"""The daemon's work on how early records are: for whom, and what it does where it cannot."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from topicfs.engine.min_timestamps.upkeep import MinTimestampsUpkeep
from topicfs.engine.partition.partition import Partition
from topicfs.engine.record import Record
from topicfs.engine.store.store import Store
from topicfs.mountd.min_timestamps import MinTimestampsJob
from topicfs.mountd.view_cache import DirectoryViewCache


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path, create=True) as opened:
        yield opened


def fill(store: Store, topic: str) -> None:
    partition = store.create(topic)
    partition.append(Record(b"v"))
    partition.roll()


def times_of(store: Store) -> MinTimestampsJob:
    return MinTimestampsJob(store, store.backing / "views", lambda: False)


def on_disk(store: Store) -> dict[str, int]:
    """How many files each partition has."""
    views = store.backing / "views"
    return {path.name: len([*path.glob("*.earliest")]) for path in sorted(views.iterdir())}


def test_partitions_that_nobody_uses_are_not_loaded(store: Store) -> None:
    for topic in ("a", "b"):
        fill(store, topic)
    store.close()
    with Store.open(store.backing, create=True) as again:
        again.partition("b", 0)
        times_of(again).run()
        assert [slot.name for slot in again.slots() if slot.partition is not None] == ["b-0"]
        assert on_disk(again) == {"b-0": 1}


def test_one_that_fails_does_not_stop_the_others_and_is_told_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for topic in ("a", "b"):
        fill(store, topic)
    times = times_of(store)
    upkeep = MinTimestampsUpkeep.bring_up_to_date

    def failing(self: MinTimestampsUpkeep, partition: Partition, stop: object, enough: object) -> None:
        if partition.name == "a-0":
            raise OSError("cannot be listed")
        upkeep(self, partition, stop, enough)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(MinTimestampsUpkeep, "bring_up_to_date", failing)
        times.run()
        times.run()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == [
        "a-0: reads by time skip less: cannot be listed"
    ]
    assert on_disk(store) == {"b-0": 1}
    times.run()
    assert on_disk(store) == {"a-0": 1, "b-0": 1}


def test_a_run_is_enough_after_a_while_and_the_next_goes_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Parquet files wait for it."""
    for topic in ("a", "b", "c"):
        fill(store, topic)
    times, moments = times_of(store), count(0, 2)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(moments)))
    seen = []
    for _ in range(4):
        times.run()
        seen.append(sum(on_disk(store).values()))
    assert seen == [1, 2, 3, 3]


def test_a_partition_that_is_deleted_leaves_nothing(store: Store) -> None:
    for topic in ("a", "b"):
        fill(store, topic)
    times, view_cache = times_of(store), DirectoryViewCache(store.backing / "views")
    times.run()
    assert view_cache.sweep(store.logs) == 0
    store.delete_topic("a")
    times.run()
    assert view_cache.sweep(store.logs) == 1
    assert os.listdir(store.backing / "views") == ["b-0"]


def test_nothing_is_read_once_the_daemon_stops(store: Store) -> None:
    fill(store, "a")
    MinTimestampsJob(store, store.backing / "views", lambda: True).run()
    assert not (store.backing / "views" / "a-0").exists()
