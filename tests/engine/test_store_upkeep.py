"""What a store does every so often: KAFKA_FORMAT 1.4 and 9, KAFKA_CASES M (flush.ms) and N (checkpoints).

Compaction, which Kafka runs from the same place, is not the engine's upkeep.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from partition_opening import Clock
from store_bench import SMALL, START, StoreBench, checked_store_bench, some

from topicfs import Producer, Record, Store
from topicfs.engine.cleaner.manager import RETRY_MS
from topicfs.engine.jobs import Job, Jobs
from topicfs.engine.partition.chain import Chain
from topicfs.engine.segment.segment import Segment


@pytest.fixture
def store_bench(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[StoreBench]:
    with checked_store_bench(tmp_path / "backing", caplog) as made:
        yield made


def after(store_bench: StoreBench, ms: int) -> None:
    store_bench.now = START + ms
    store_bench.store.upkeep.run_due()


def test_recovery_points_are_checkpointed_after_the_initial_delay_and_each_period(
    store_bench: StoreBench,
) -> None:
    partition = store_bench.open().create("orders")
    some(partition)
    partition.flush()
    after(store_bench, 29_999)
    assert store_bench.recovery_points.get("orders-0", 0) == 0
    after(store_bench, 30_000)
    assert store_bench.recovery_points == {"orders-0": 10}
    some(partition)
    partition.flush()
    after(store_bench, 89_999)
    assert store_bench.recovery_points == {"orders-0": 10}
    after(store_bench, 90_000)
    assert store_bench.recovery_points == {"orders-0": 20}


def test_start_offsets_are_checkpointed_only_above_the_first_segments_base(store_bench: StoreBench) -> None:
    some(store_bench.open().create("raised"))
    some(store_bench.store.create("plain"))
    store_bench.store.partition("raised-0").delete_records(3)
    after(store_bench, 30_000)
    assert store_bench.starts == {"raised-0": 3}
    store_bench.store.partition("raised-0").delete_records(5)
    after(store_bench, 89_999)
    assert store_bench.starts == {"raised-0": 3}
    after(store_bench, 90_000)
    assert store_bench.starts == {"raised-0": 5}


def test_high_watermarks_are_checkpointed_every_five_seconds(store_bench: StoreBench) -> None:
    partition = store_bench.open(lone=False).create("orders")
    some(partition)
    partition.log.set_high_watermark(6)
    after(store_bench, 4_999)
    assert store_bench.high_watermarks.get("orders-0", 0) == 0
    after(store_bench, 5_000)
    assert store_bench.high_watermarks == {"orders-0": 6}
    partition.log.set_high_watermark(7)
    after(store_bench, 10_000)
    assert store_bench.high_watermarks == {"orders-0": 7}


def test_checkpoints_that_have_not_changed_are_not_written(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    some(store_bench.open().create("orders"))
    after(store_bench, 100_000)
    monkeypatch.setattr("topicfs.engine.files.checkpoint.write_atomically", lambda *_: pytest.fail("written"))
    for period in range(5):
        after(store_bench, 200_000 + 100_000 * period)


def test_checkpoints_keep_what_is_known_of_partitions_that_are_not_loaded(store_bench: StoreBench) -> None:
    for topic in ("a", "b"):
        some(store_bench.open().create(topic) if topic == "a" else store_bench.store.create(topic))
        store_bench.store.partition(topic, 0).delete_records(4)
    store_bench.reopen()
    some(store_bench.store.partition("b-0"))
    store_bench.store.partition("b-0").flush()
    after(store_bench, 100_000)
    assert store_bench.recovery_points == {"a-0": 10, "b-0": 20}
    assert store_bench.starts == {"a-0": 4, "b-0": 4}
    assert store_bench.high_watermarks == {"a-0": 10, "b-0": 20}


def test_flush_ms_brings_records_onto_the_disk(store_bench: StoreBench) -> None:
    timed = store_bench.open().create("timed", overrides={"flush.ms": "1000"})
    never = store_bench.store.create("never")
    some(timed)
    some(never)
    after(store_bench, 999)
    assert timed.recovery_point == 0
    after(store_bench, 1000)
    assert (timed.recovery_point, never.recovery_point) == (10, 0)


def test_the_flush_interval_says_how_often_flush_ms_is_looked_at(store_bench: StoreBench) -> None:
    store_bench.open({"log.flush.scheduler.interval.ms": "5000", "log.initial.task.delay.ms": "2000"})
    partition = store_bench.store.create("orders", overrides={"flush.ms": "1000"})
    some(partition)
    after(store_bench, 1999)
    assert partition.recovery_point == 0
    after(store_bench, 2000)
    assert partition.recovery_point == 10
    some(partition)
    after(store_bench, 6999)
    assert partition.recovery_point == 10
    after(store_bench, 7000)
    assert partition.recovery_point == 20


def test_sealed_segments_are_flushed_without_being_asked(store_bench: StoreBench) -> None:
    store_bench.open({"log.flush.scheduler.interval.ms": "1000000"})
    partition = store_bench.store.create("orders", overrides=SMALL)
    some(partition)
    store_bench.store.upkeep.run_due()
    assert partition.recovery_point == partition.offsets.active_base > 0
    assert store_bench.store.upkeep.flush_rolled() == 0
    some(partition)
    assert store_bench.store.upkeep.flush_due() == 1


def test_segments_are_sealed_by_age_without_an_append(store_bench: StoreBench) -> None:
    partition = store_bench.open().create("orders", overrides={"segment.ms": "5000"})
    some(partition)
    after(store_bench, 5_000)
    assert partition.offsets.active_base == 0
    after(store_bench, 5_001)
    assert partition.offsets.active_base == 10


def test_retention_is_applied_after_the_initial_delay_and_each_period(store_bench: StoreBench) -> None:
    store_bench.open({"log.retention.check.interval.ms": "60000"})
    partition = store_bench.store.create("orders", overrides={**SMALL, "retention.bytes": "0"})
    some(partition)
    after(store_bench, 29_999)
    assert partition.start_offset == 0
    after(store_bench, 30_000)
    assert partition.start_offset == partition.offsets.active_base > 0
    before = partition.start_offset
    some(partition)
    after(store_bench, 89_999)
    assert partition.start_offset == before
    after(store_bench, 90_000)
    assert partition.start_offset > before


def test_how_upkeep_has_fared_is_told(store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch) -> None:
    store_bench.warnings = True
    states = store_bench.open().upkeep.states
    assert all(state.healthy and state.runs == 0 for state in states.values())
    with monkeypatch.context() as patch:
        patch.setattr(store_bench.store._checkpoints, "write_recovery_points", lambda: 1 / 0)
        after(store_bench, 100_000)
    state = states["checkpoint of recovery points"]
    assert (state.runs, state.errors, state.error) == (1, 1, "ZeroDivisionError('division by zero')")
    assert states["segment.ms"].healthy
    after(store_bench, 200_000)
    assert states["checkpoint of recovery points"].healthy


def test_files_of_removed_segments_go_after_the_topics_delay(store_bench: StoreBench) -> None:
    partition = store_bench.open().create("orders", overrides={**SMALL, "file.delete.delay.ms": "500"})
    some(partition)
    partition.restart_at(50)
    deleted = [path for path in partition.directory.iterdir() if path.name.endswith(".deleted")]
    assert deleted
    after(store_bench, 499)
    assert all(path.exists() for path in deleted)
    after(store_bench, 500)
    assert not any(path.exists() for path in deleted)


def test_idle_producers_are_forgotten(store_bench: StoreBench) -> None:
    store_bench.open(
        {"producer.id.expiration.ms": "1000", "producer.id.expiration.check.interval.ms": "5000"}
    )
    partition = store_bench.store.create("orders")
    partition.append(Record(b"x", timestamp=START), Producer(7, 0, 0))
    after(store_bench, 4_999)
    assert 7 in partition.log.producers.producers
    after(store_bench, 5_000)
    assert 7 not in partition.log.producers.producers


def test_a_task_that_fails_does_not_stop_the_others_and_is_tried_again(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_bench.warnings = True
    partition = store_bench.open().create("orders")
    some(partition)
    partition.flush()

    def fail() -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(store_bench.store._checkpoints, "write_recovery_points", fail)
        after(store_bench, 100_000)
    assert store_bench.high_watermarks == {"orders-0": 10}
    assert store_bench.recovery_points.get("orders-0", 0) == 0
    after(store_bench, 160_000)
    assert store_bench.recovery_points == {"orders-0": 10}


def test_a_partition_that_cannot_be_flushed_goes_offline_and_the_others_are_flushed(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_bench.warnings = True
    bad, good = (
        store_bench.open().create("bad", overrides={"flush.ms": "1"}),
        store_bench.store.create("good", overrides={"flush.ms": "1"}),
    )
    some(bad)
    some(good)

    sync = Chain.sync

    def fail(chain: Chain, segment: Segment) -> None:
        if chain is bad.log.chain:
            raise OSError(5, "Input/output error")
        sync(chain, segment)

    monkeypatch.setattr(Chain, "sync", fail)
    after(store_bench, 1000)
    assert (bad.recovery_point, good.recovery_point) == (0, 10)
    assert bad.log.failure is not None
    after(store_bench, 2000)
    store_bench.store.close()
    assert not store_bench.marker.exists()
    store_bench.open()


def test_upkeep_of_a_store_whose_partitions_were_not_used_opens_nothing(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    some(store_bench.open().create("orders"))
    # What retention reads of a partition that is not in use, it reads once.
    store_bench.reopen().upkeep.retain()
    real = os.open
    opened = []

    def spy(path: object, *rest: int, **named: int) -> int:
        opened.append(str(path))
        return real(path, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", spy)
    after(store_bench, 10_000_000)
    assert not [path for path in opened if "orders-0" in path]


def test_what_is_due_comes_once_a_period() -> None:
    clock, times = Clock(1000), []
    jobs = Jobs([Job("note", 2500, lambda: times.append(clock.ms), 3000)], clock, clock)
    for clock.ms in range(1000, 11_000):
        jobs.run_due()
    assert times == [4000, 6500, 9000]


def test_a_clock_that_is_set_back_an_hour_delays_nothing(tmp_path: Path) -> None:
    """What waits, waits by a clock that nobody can set: deletions, flushes, what is done every so often."""
    dated, steady = Clock(), Clock(1000)
    periods = ("log.flush.interval.ms", "log.flush.scheduler.interval.ms", "log.initial.task.delay.ms")
    settings = dict.fromkeys((*periods, "log.segment.delete.delay.ms"), "100")
    with Store.open(tmp_path, settings, dated, steady=steady, create=True) as store:
        partition = store.create("orders")
        for value in (b"one", b"two"):
            partition.append(Record(value))
            partition.roll()
        partition.append(Record(b"three"))
        store.create("gone")
        dated.ms -= 3600 * 1000
        store.delete("gone", 0)
        partition.delete_records(1)
        store.upkeep.retain()
        assert len(list(partition.directory.glob("*.deleted"))) > 0
        steady.ms += 100
        store.upkeep.run_due()
        assert list(partition.directory.glob("*.deleted")) == []
        assert [path.name for path in store.logs.iterdir() if path.is_dir()] == ["orders-0"]
        # That flushed what was sealed; the rest is due by flush.ms.
        steady.ms += 100
        store.upkeep.run_due()
        assert partition.recovery_point == partition.end_offset == 3
        steady.ms += 60_000
        store.upkeep.run_due()
        checkpoint = (store.logs / "recovery-point-offset-checkpoint").read_text()
        assert "orders 0 3" in checkpoint


def test_what_failed_is_tried_again_by_the_steady_clock(tmp_path: Path) -> None:
    dated, steady = Clock(), Clock(1000)
    with Store.open(tmp_path, {}, dated, steady=steady, create=True) as store:
        store.create("keys", overrides={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
        for _ in range(2):
            store.partition("keys", 0).append(Record(b"value", b"key"))
            store.partition("keys", 0).roll()
        store.cleaning.failing["keys", 0] = "why", steady.ms + RETRY_MS
        dated.ms += 24 * 3600 * 1000
        assert store.cleaning.grab_filthiest(dated.ms) is None
        dated.ms -= 48 * 3600 * 1000
        steady.ms += RETRY_MS + 1
        job = store.cleaning.grab_filthiest(dated.ms)
        assert job is not None
        store.cleaning.done(job, None)
