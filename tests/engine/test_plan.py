"""The dry run: it says what retention and compaction then do, and touches nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cleaning import StandInCleaner
from store_bench import START, StoreBench, checked_store_bench

from topicfs import Record
from topicfs.engine.partition.on_disk import listed
from topicfs.engine.partition.partition import Partition
from topicfs.engine.plan.plan import PartitionPlan, plan
from topicfs.engine.retention.rules import Reason, due, forecast

SMALL = {"internal.segment.bytes": "110", "index.interval.bytes": "0"}
"""One record a segment."""


@pytest.fixture
def store_bench(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[StoreBench]:
    with checked_store_bench(tmp_path / "backing", caplog) as made:
        made.open()
        yield made


def topic(store_bench: StoreBench, name: str, count: int = 5, **overrides: str) -> Partition:
    more = {key.replace("_", "."): value for key, value in overrides.items()}
    partition = store_bench.store.create(name, overrides={**SMALL, **more})
    for number in range(count):
        partition.append(Record(b"%030d" % number, b"key", START + number))
    return partition


def planned(store_bench: StoreBench, running: bool = True, **given: str) -> dict[str, PartitionPlan]:
    lines = {name.replace("_", "."): value for name, value in given.items()}
    return {each.name: each for each in plan(store_bench.root, lines, store_bench.now, running)}


def everything(root: Path) -> dict[str, tuple[object, ...]]:
    """Each path below with all that a change of it would change, the time of its last access too."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted((root, *root.rglob("*"))):
        status = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (
            status.st_ino,
            status.st_mode,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
            data,
        )
    return found


def test_it_says_what_retention_then_removes(store_bench: StoreBench) -> None:
    partitions = [
        topic(store_bench, "size", retention_bytes="250"),
        topic(store_bench, "time", retention_ms="1000"),
        topic(store_bench, "start", cleanup_policy=""),
        topic(store_bench, "keep"),
    ]
    partitions[2].log.raise_start_offset(2)
    store_bench.store.upkeep.checkpoint_start_offsets()
    for partition in partitions:
        partition.roll()
    store_bench.now += 1002
    said = planned(store_bench)
    for partition in partitions:
        log = partition.log
        expected = due(log.chain.segments, log.snapshot, log.settings, store_bench.now)
        assert [(each.segment.base_offset, each.reason) for each in said[partition.name].removals] == [
            (each.segment.base_offset, each.reason) for each in expected
        ], partition.name
        assert said[partition.name].bytes == partition.size
    assert {name: len(each.removals) for name, each in said.items()} == {
        "size-0": 2,
        "time-0": 2,
        "start-0": 2,
        "keep-0": 0,
    }
    assert said["start-0"].removals[0].reason is Reason.START_OFFSET
    assert store_bench.store.upkeep.retain().segments == 6


def test_it_says_what_comes_next(store_bench: StoreBench) -> None:
    partition = topic(store_bench, "orders", retention_ms="1000", retention_bytes="1000")
    partition.roll()
    log = partition.log
    said, expected = (
        planned(store_bench)["orders-0"].next,
        forecast(log.chain.segments, log.snapshot, log.settings, store_bench.now),
    )
    assert said is not None
    assert expected is not None
    assert (said.at_ms, said.more_bytes) == (expected.at_ms, expected.more_bytes)
    assert said.at_ms == START + 1001


def test_it_says_what_compaction_then_does(store_bench: StoreBench) -> None:
    topic(store_bench, "dirty", cleanup_policy="compact")
    topic(store_bench, "mild", cleanup_policy="compact", min_cleanable_dirty_ratio="1")
    topic(store_bench, "done", cleanup_policy="compact")
    store_bench.store.cleaning.offsets.put(("done", 0), 4)
    topic(store_bench, "young", cleanup_policy="compact", min_compaction_lag_ms="5000")
    said = {name: each.cleaning for name, each in planned(store_bench).items()}
    dirty = said["dirty-0"]
    assert dirty is not None
    assert (dirty.eligible, dirty.first_dirty, dirty.first_uncleanable, dirty.ratio) == (True, 0, 4, 1.0)
    assert [name for name, each in said.items() if each is not None and each.eligible] == ["dirty-0"]
    assert said["young-0"] is not None
    assert said["young-0"].next_eligible_ms == START + 5000
    assert said["done-0"] is not None
    assert "active segment" in said["done-0"].why_not
    cleaner = StandInCleaner()
    for _ in range(4):
        store_bench.store.cleaning.work(cleaner, store_bench.now)
    assert cleaner.calls == [("dirty-0", 0, 4)]


def test_a_topic_that_is_not_compacted_has_no_word_on_compaction(store_bench: StoreBench) -> None:
    topic(store_bench, "orders")
    assert planned(store_bench)["orders-0"].cleaning is None


def test_settings_that_the_mount_was_given_are_taken(store_bench: StoreBench) -> None:
    topic(store_bench, "orders")
    assert planned(store_bench)["orders-0"].removals == ()
    assert len(planned(store_bench, log_retention_bytes="200")["orders-0"].removals) == 3


@pytest.mark.parametrize("how", ["running", "stopped", "crashed"])
def test_it_changes_nothing(store_bench: StoreBench, how: str) -> None:
    for name, policy in (("a", "delete"), ("b", "compact"), ("c", "compact,delete")):
        topic(store_bench, name, cleanup_policy=policy, retention_bytes="0", max_compaction_lag_ms="5")
    if how == "stopped":
        store_bench.store.close()
    if how == "crashed":
        store_bench.store.abandon()
        store_bench.file("logs/a-0/00000000000000000001.log.cleaned", "half")
        store_bench.file("logs/a-0/00000000000000000000.log.deleted", "old")
        store_bench.file("logs/a-0/leader-epoch-checkpoint.tmp", "half")
    before = everything(store_bench.root)
    planned(store_bench, how == "running")
    assert everything(store_bench.root) == before
    if how != "running":
        store_bench.open()


def test_after_a_crash_it_says_what_it_cannot_know(store_bench: StoreBench) -> None:
    topic(store_bench, "orders", cleanup_policy="compact")
    store_bench.store.abandon()
    store_bench.file("logs/orders-0/00000000000000000001.log.swap", "")
    [said] = planned(store_bench, running=False).values()
    assert any("not stopped cleanly" in words for words in said.unknown)
    assert any("replacing segments" in words for words in said.unknown)
    (store_bench.logs / "orders-0" / "00000000000000000001.log.swap").unlink()
    store_bench.open()


def test_after_a_clean_stop_everything_is_known(store_bench: StoreBench) -> None:
    topic(store_bench, "orders")
    store_bench.store.close()
    assert planned(store_bench, running=False)["orders-0"].unknown == ()
    store_bench.open()


def test_a_checkpoint_that_cannot_be_read_is_said(store_bench: StoreBench) -> None:
    store_bench.warnings = True
    topic(store_bench, "orders", cleanup_policy="compact")
    store_bench.store.close()
    store_bench.file("logs/cleaner-offset-checkpoint", "7\nnonsense\n")
    said = planned(store_bench, running=False)["orders-0"]
    assert any("cleaner-offset-checkpoint" in words for words in said.unknown)
    assert said.cleaning is not None
    (store_bench.logs / "cleaner-offset-checkpoint").unlink()
    store_bench.open()


def test_a_directory_that_cannot_be_read_is_said_and_the_others_are_planned(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic(store_bench, "bad")
    topic(store_bench, "good")

    def fail(directory: Path) -> object:
        if directory.name == "bad-0":
            raise OSError(5, "Input/output error")
        return listed(directory)

    monkeypatch.setattr("topicfs.engine.plan.plan.listed", fail)
    said = planned(store_bench)
    assert said["bad-0"].error is not None
    assert said["good-0"].segments == 5


def test_segments_that_go_while_they_are_listed_are_listed_anew(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic(store_bench, "orders")
    tries = []

    def vanish(directory: Path) -> object:
        tries.append(directory)
        if len(tries) < 3:
            raise FileNotFoundError(directory)
        return listed(directory)

    monkeypatch.setattr("topicfs.engine.plan.plan.listed", vanish)
    assert planned(store_bench)["orders-0"].segments == 5


def test_an_index_that_a_broker_gave_its_full_size_is_read_to_its_last_entry(store_bench: StoreBench) -> None:
    partition = topic(store_bench, "orders", internal_segment_bytes="1000")
    partition.roll()
    [first, _] = listed(partition.directory)
    assert first.largest_timestamp == START + 4
    index = partition.directory / "00000000000000000000.timeindex"
    data = index.read_bytes()
    for zeros in (12, 120, 1200):
        index.write_bytes(data + bytes(zeros))
        assert listed(partition.directory)[0].largest_timestamp == START + 4
    index.write_bytes(bytes(1200))
    again = listed(partition.directory)[0]
    assert again.largest_timestamp == again.modified_ms
    index.write_bytes(data)
