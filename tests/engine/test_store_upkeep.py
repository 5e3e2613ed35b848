"""What a store does every so often: KAFKA_FORMAT 1.4 and 9, KAFKA_CASES M (flush.ms) and N (checkpoints).

Retention and compaction, which Kafka runs from the same place, are not the engine's upkeep.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from houses import SMALL, START, House, living, some
from opening import Clock

from topicfs import Producer, Record, Store
from topicfs.engine.cleaner.manager import RETRY_MS
from topicfs.engine.store.upkeep import Due


@pytest.fixture
def house(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[House]:
    with living(tmp_path / "backing", caplog) as made:
        yield made


def after(house: House, ms: int) -> None:
    house.now = START + ms
    house.store.upkeep()


def test_recovery_points_are_checkpointed_after_the_initial_delay_and_each_period(house: House) -> None:
    partition = house.open().create("orders")
    some(partition)
    partition.flush()
    after(house, 29_999)
    assert house.recovery_points.get("orders-0", 0) == 0
    after(house, 30_000)
    assert house.recovery_points == {"orders-0": 10}
    some(partition)
    partition.flush()
    after(house, 89_999)
    assert house.recovery_points == {"orders-0": 10}
    after(house, 90_000)
    assert house.recovery_points == {"orders-0": 20}


def test_start_offsets_are_checkpointed_only_above_the_first_segments_base(house: House) -> None:
    some(house.open().create("raised"))
    some(house.store.create("plain"))
    house.store.partition("raised-0").delete_records(3)
    after(house, 30_000)
    assert house.starts == {"raised-0": 3}
    house.store.partition("raised-0").delete_records(5)
    after(house, 89_999)
    assert house.starts == {"raised-0": 3}
    after(house, 90_000)
    assert house.starts == {"raised-0": 5}


def test_high_watermarks_are_checkpointed_every_five_seconds(house: House) -> None:
    partition = house.open(lone=False).create("orders")
    some(partition)
    partition.log.set_high_watermark(6)
    after(house, 4_999)
    assert house.high_watermarks.get("orders-0", 0) == 0
    after(house, 5_000)
    assert house.high_watermarks == {"orders-0": 6}
    partition.log.set_high_watermark(7)
    after(house, 10_000)
    assert house.high_watermarks == {"orders-0": 7}


def test_checkpoints_that_have_not_changed_are_not_written(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    some(house.open().create("orders"))
    after(house, 100_000)
    monkeypatch.setattr("topicfs.engine.files.checkpoint.write_atomically", lambda *_: pytest.fail("written"))
    for period in range(5):
        after(house, 200_000 + 100_000 * period)


def test_checkpoints_keep_what_is_known_of_partitions_that_are_not_loaded(house: House) -> None:
    for topic in ("a", "b"):
        some(house.open().create(topic) if topic == "a" else house.store.create(topic))
        house.store.partition(topic, 0).delete_records(4)
    house.reopen()
    some(house.store.partition("b-0"))
    house.store.partition("b-0").flush()
    after(house, 100_000)
    assert house.recovery_points == {"a-0": 10, "b-0": 20}
    assert house.starts == {"a-0": 4, "b-0": 4}
    assert house.high_watermarks == {"a-0": 10, "b-0": 20}


def test_flush_ms_brings_records_onto_the_disk(house: House) -> None:
    timed = house.open().create("timed", overrides={"flush.ms": "1000"})
    never = house.store.create("never")
    some(timed)
    some(never)
    after(house, 999)
    assert timed.recovery_point == 0
    after(house, 1000)
    assert (timed.recovery_point, never.recovery_point) == (10, 0)


def test_the_flush_interval_says_how_often_flush_ms_is_looked_at(house: House) -> None:
    house.open({"log.flush.scheduler.interval.ms": "5000", "log.initial.task.delay.ms": "2000"})
    partition = house.store.create("orders", overrides={"flush.ms": "1000"})
    some(partition)
    after(house, 1999)
    assert partition.recovery_point == 0
    after(house, 2000)
    assert partition.recovery_point == 10
    some(partition)
    after(house, 6999)
    assert partition.recovery_point == 10
    after(house, 7000)
    assert partition.recovery_point == 20


def test_sealed_segments_are_flushed_without_being_asked(house: House) -> None:
    house.open({"log.flush.scheduler.interval.ms": "1000000"})
    partition = house.store.create("orders", overrides=SMALL)
    some(partition)
    house.store.upkeep()
    assert partition.recovery_point == partition.offsets.active_base > 0
    assert house.store.flush_rolled() == 0
    some(partition)
    assert house.store.flush_due() == 1


def test_files_of_removed_segments_go_after_the_topics_delay(house: House) -> None:
    partition = house.open().create("orders", overrides={**SMALL, "file.delete.delay.ms": "500"})
    some(partition)
    partition.restart_at(50)
    deleted = [path for path in partition.directory.iterdir() if path.name.endswith(".deleted")]
    assert deleted
    after(house, 499)
    assert all(path.exists() for path in deleted)
    after(house, 500)
    assert not any(path.exists() for path in deleted)


def test_idle_producers_are_forgotten(house: House) -> None:
    house.open({"producer.id.expiration.ms": "1000", "producer.id.expiration.check.interval.ms": "5000"})
    partition = house.store.create("orders")
    partition.append(Record(b"x", timestamp=START), Producer(7, 0, 0))
    after(house, 4_999)
    assert 7 in partition.log.producers.producers
    after(house, 5_000)
    assert 7 not in partition.log.producers.producers


def test_a_task_that_fails_does_not_stop_the_others_and_is_tried_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.warnings = True
    partition = house.open().create("orders")
    some(partition)
    partition.flush()

    def fail() -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(house.store._checkpoints, "write_recovery_points", fail)
        after(house, 100_000)
    assert house.high_watermarks == {"orders-0": 10}
    assert house.recovery_points.get("orders-0", 0) == 0
    after(house, 160_000)
    assert house.recovery_points == {"orders-0": 10}


def test_a_partition_that_cannot_be_flushed_goes_offline_and_the_others_are_flushed(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.warnings = True
    bad, good = (
        house.open().create("bad", overrides={"flush.ms": "1"}),
        house.store.create("good", overrides={"flush.ms": "1"}),
    )
    some(bad)
    some(good)

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(bad.log, "_sync", fail)
    after(house, 1000)
    assert (bad.recovery_point, good.recovery_point) == (0, 10)
    assert bad.log.failure is not None
    after(house, 2000)
    house.store.close()
    assert not house.marker.exists()
    house.open()


def test_upkeep_of_a_store_whose_partitions_were_not_used_opens_nothing(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    some(house.open().create("orders"))
    house.reopen()
    real = os.open
    opened = []

    def spy(path: object, *rest: int, **named: int) -> int:
        opened.append(str(path))
        return real(path, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", spy)
    after(house, 10_000_000)
    assert not [path for path in opened if "orders-0" in path]


def test_what_is_due_comes_once_a_period() -> None:
    due = Due(since=1000, wait=30)
    assert [now for now in range(1000, 1100) if due.has_come(now, 25)] == [1030, 1055, 1080]


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
        store.retain()
        assert len(list(partition.directory.glob("*.deleted"))) > 0
        steady.ms += 100
        store.upkeep()
        assert list(partition.directory.glob("*.deleted")) == []
        assert [path.name for path in store.logs.iterdir() if path.is_dir()] == ["orders-0"]
        # That flushed what was sealed; the rest is due by flush.ms.
        steady.ms += 100
        store.upkeep()
        assert partition.recovery_point == partition.end_offset == 3
        steady.ms += 60_000
        store.upkeep()
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
