"""A store's settings while it runs: KAFKA_FORMAT 11. The settings themselves are tested in test_settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from store_bench import StoreBench, checked_store_bench

from topicfs.engine.errors import InvalidSettingError, UnknownPartitionError
from topicfs.engine.files.properties import edit_properties, read_properties


@pytest.fixture
def store_bench(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[StoreBench]:
    with checked_store_bench(tmp_path / "backing", caplog) as made:
        yield made


def overrides(store_bench: StoreBench, topic: str = "orders") -> dict[str, str]:
    return read_properties(store_bench.root / "topics" / f"{topic}.properties")


# -- of a topic -------------------------------------------------------------------------------------


def test_a_change_holds_at_once_for_every_partition_and_after_the_next_opening(
    store_bench: StoreBench,
) -> None:
    partitions = store_bench.open().create_topic("orders", 2)
    other = store_bench.store.create("other")
    store_bench.store.configure("orders", {"retention.ms": "5", "cleanup.policy": "compact"})
    assert all(partition.settings.retention_ms == 5 for partition in partitions)
    assert all(partition.settings.compact for partition in partitions)
    assert other.settings.retention_ms == 604_800_000
    assert overrides(store_bench) == {"retention.ms": "5", "cleanup.policy": "compact"}
    assert store_bench.reopen().partition("orders-1").settings.retention_ms == 5


def test_none_removes_an_override(store_bench: StoreBench) -> None:
    partition = store_bench.open().create("orders", overrides={"retention.ms": "5", "segment.ms": "7"})
    store_bench.store.configure("orders", {"retention.ms": None, "flush.ms": None})
    assert partition.settings.retention_ms == 604_800_000
    assert overrides(store_bench) == {"segment.ms": "7"}


@pytest.mark.parametrize(
    "changes",
    [
        {"segment.ms": "9", "retention.ms": "soon"},
        {"segment.ms": "9", "retention.mss": "5"},
        {"segment.ms": "9", "retention.mss": None},
        {"segment.ms": "9", "log.retention.ms": "5"},
        {"segment.ms": "9", "min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"},
    ],
)
def test_a_change_with_one_bad_line_changes_nothing(
    store_bench: StoreBench, changes: dict[str, str | None]
) -> None:
    partition = store_bench.open().create("orders", overrides={"retention.ms": "5"})
    before = partition.settings
    with pytest.raises(InvalidSettingError):
        store_bench.store.configure("orders", changes)
    assert partition.settings is before
    assert store_bench.store.topic_settings("orders") == before
    assert overrides(store_bench) == {"retention.ms": "5"}


def test_a_change_that_cannot_be_written_changes_nothing(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = store_bench.open().create("orders")
    before = partition.settings

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("topicfs.engine.files.properties.write_atomically", fail)
        with pytest.raises(OSError, match="No space"):
            store_bench.store.configure("orders", {"retention.ms": "5"})
    assert partition.settings is before
    assert store_bench.store.topic_settings("orders") == before


def test_every_setting_is_explained_with_its_source(store_bench: StoreBench) -> None:
    store_bench.file("server.properties", "log.retention.hours=1\n")
    store_bench.open().create("orders", overrides={"segment.ms": "7"})
    found = {each.name: (each.value, each.source) for each in store_bench.store.explain("orders")}
    assert found["segment.ms"] == ("7", "topic")
    assert found["retention.ms"] == ("3600000", "daemon:log.retention.hours")
    assert found["cleanup.policy"] == ("delete", "default")


def test_an_unknown_topic_has_no_settings(store_bench: StoreBench) -> None:
    store_bench.file("topics/orders.properties", "segment.ms=7\n")
    store = store_bench.open()
    for ask in (
        lambda: store.topic_settings("orders"),
        lambda: store.explain("orders"),
        lambda: store.configure("orders", {}),
    ):
        with pytest.raises(UnknownPartitionError, match="orders"):
            ask()


# -- editing a file ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "changes", "after"),
    [
        ("", {"a": "1"}, "a=1\n"),
        ("a=1\nb=2\n", {"a": "3"}, "a=3\nb=2\n"),
        ("a=1\nb=2", {"a": None}, "b=2\n"),
        ("# why\n\n a : 1\n! and\nb 2\n", {"a": "9"}, "# why\n\na=9\n! and\nb 2\n"),
        ("a=1\nb=2\na=3\n", {"a": "4"}, "b=2\na=4\n"),
        ("a=1\\\n   2\nb=3\n", {"a": "4"}, "a=4\nb=3\n"),
        ("b=1\\", {"a": "4"}, "b=1\\\n\na=4\n"),
        ("\\u0061=1\n", {"a": "ä=:"}, "a=\\u00E4\\=\\:\n"),
        ("# gr\xfc\xdfe\na=1\n", {"a": "2"}, "# gr\xfc\xdfe\na=2\n"),
        ("a=1\r\nb=2\r\n", {"b": None, "c": None}, "a=1\n"),
    ],
)
def test_editing_changes_the_lines_named_and_no_other(
    tmp_path: Path, before: str, changes: dict[str, str | None], after: str
) -> None:
    path = tmp_path / "x.properties"
    path.write_bytes(before.encode("latin-1"))
    edit_properties(path, changes)
    assert path.read_bytes().decode("latin-1") == after
    found = read_properties(path)
    assert {name: found.get(name) for name in changes} == changes


def test_editing_a_missing_file_makes_it(tmp_path: Path) -> None:
    edit_properties(tmp_path / "x.properties", {"a": "1", "b": None})
    assert read_properties(tmp_path / "x.properties") == {"a": "1"}
