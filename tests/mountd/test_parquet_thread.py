"""The daemon's work on Parquet files: for whom, and what it does where it cannot."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from topicfs.engine.parquet.table import Tables
from topicfs.engine.record import Record
from topicfs.engine.store.store import Store
from topicfs.mountd.parquet import ParquetUpkeep
from topicfs.mountd.view_cache import DirectoryViewCache


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path, create=True) as opened:
        yield opened


def fill(store: Store, topic: str, wanted: bool) -> None:
    partition = store.create(topic, 0, {"parquet.enable": str(wanted).lower()})
    partition.append(Record(b"v"))
    partition.roll()


def upkeep_of(store: Store) -> ParquetUpkeep:
    return ParquetUpkeep(store, Tables(store.backing / "views"), lambda: False)


def on_disk(store: Store) -> dict[str, int]:
    """How many Parquet files each partition has."""
    views = store.backing / "views"
    return {path.name: len([*path.glob("*.parquet")]) for path in sorted(views.iterdir())}


def test_only_topics_that_want_files_have_them(store: Store) -> None:
    fill(store, "wanted", True)
    fill(store, "other", False)
    upkeep = upkeep_of(store)
    upkeep.run()
    assert on_disk(store) == {"wanted-0": 1}
    store.configure("wanted", {"parquet.enable": None})
    upkeep.run()
    assert on_disk(store) == {"wanted-0": 0}


def test_the_daemons_setting_counts_where_a_topic_has_none(tmp_path: Path) -> None:
    with Store.open(tmp_path, {"log.parquet.enable": "true"}, create=True) as store:
        fill(store, "other", False)
        fill(store, "wanted", True)
        store.configure("wanted", {"parquet.enable": None})
        upkeep_of(store).run()
        assert on_disk(store) == {"wanted-0": 1}


def test_what_is_not_wanted_any_more_goes_also_after_a_restart(store: Store) -> None:
    fill(store, "orders", True)
    upkeep_of(store).run()
    store.configure("orders", {"parquet.enable": "false"})
    upkeep_of(store).run()
    assert on_disk(store) == {"orders-0": 0}


def test_partitions_of_other_topics_are_not_loaded(store: Store) -> None:
    fill(store, "other", False)
    store.close()
    with Store.open(store.backing, create=True) as again:
        upkeep_of(again).run()
        assert [slot.partition for slot in again.slots()] == [None]


def test_one_that_fails_does_not_stop_the_others_and_is_told_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for topic in ("a", "b"):
        fill(store, topic, True)
    tables = Tables(store.backing / "views")
    upkeep = ParquetUpkeep(store, tables, lambda: False)
    publish = Tables.publish

    def failing(self: Tables, partition: object, files: object) -> None:
        if str(partition).startswith("<Partition a-0"):
            raise OSError("no room for the list")
        publish(self, partition, files)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Tables, "publish", failing)
        upkeep.run()
        upkeep.run()
    status = tables.status(store.partition("a-0"))
    assert status is not None
    assert status["error"] == "no room for the list"
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == [
        "a-0: no Parquet files: no room for the list"
    ]
    assert len(tables.files(store.partition("b-0"))) == 1
    upkeep.run()
    assert len(tables.files(store.partition("a-0"))) == 1
    assert tables.failures == {}


def test_without_pyarrow_the_reason_is_told(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fill(store, "orders", True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    tables = Tables(store.backing / "views")
    ParquetUpkeep(store, tables, lambda: False).run()
    assert "pip install 'topicfs[spark]'" in caplog.text
    status = tables.status(store.partition("orders-0"))
    assert status is not None
    assert "pyarrow" in str(status["error"])


def test_the_sweep_leaves_tables_alone_until_their_partition_is_gone(store: Store) -> None:
    fill(store, "orders", True)
    upkeep_of(store).run()
    names = sorted(os.listdir(store.backing / "views/orders-0"))
    view_cache = DirectoryViewCache(store.backing / "views")
    log = store.logs / "orders-0" / f"{0:020d}.log"
    log.rename(store.backing / "elsewhere")
    assert view_cache.sweep(store.logs) == 0
    assert sorted(os.listdir(store.backing / "views/orders-0")) == names
    (store.backing / "elsewhere").rename(log)
    store.delete_topic("orders")
    assert view_cache.sweep(store.logs) == len(names)
    assert os.listdir(store.backing / "views") == []
