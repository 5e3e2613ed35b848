"""Segments that go, or are replaced, between the planning of a query and the end of its reading."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from partition_opening import NOW, Clock

from topicfs import Record, Store
from topicfs.engine.cleaner.clean import Cleaner
from topicfs.engine.errors import CorruptSegmentError, OffsetOutOfRangeError
from topicfs.engine.partition.partition import Partition, Producer
from topicfs.engine.spark import scan
from topicfs.engine.spark.columns import COLUMNS
from topicfs.engine.spark.options import parse
from topicfs.engine.spark.reader import TopicReader
from topicfs.engine.unlocked.files import listed

Found = list[tuple[int, bytes, bytes | None]]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path, clock=Clock(), create=True) as opened:
        yield opened


def furnished(store: Store, rounds: int = 20) -> Partition:
    """A topic of some thirty segments in which each key comes again and again, and much is aborted."""
    settings = {
        "cleanup.policy": "compact,delete",
        "internal.segment.bytes": "2000",
        "index.interval.bytes": "300",
        "retention.ms": "-1",
    }
    partition = store.create("t", 0, {**settings, "file.delete.delay.ms": "0"})
    for number in range(rounds):
        for key in range(20):
            partition.append(Record(b"%040d" % number, b"key-%d" % key, NOW + number))
        partition.append([Record(b"aborted", b"a-%d" % number, NOW)] * 3, Producer(1, 0, 3 * number, True))
        partition.end_transaction(1, 0, False)
    return partition


def planned(store: Store, **options: str) -> TopicReader:
    return TopicReader(parse({"path": str(store.backing), "topic": "t", **options}, streaming=False), COLUMNS)


def rows(reader: TopicReader, tasks: list[object] | None = None) -> Found:
    return [row for task in tasks or reader.partitions() for row in read(reader, task)]


def read(reader: TopicReader, task: object) -> Iterator[tuple[int, bytes, bytes | None]]:
    for made in reader.read(task):  # type: ignore[arg-type]
        yield from zip(*(made.column(name).to_pylist() for name in ("offset", "key", "value")), strict=True)


def compact(partition: Partition) -> None:
    log = partition.log
    cleaner = Cleaner.create(1 << 20, 0.75, 1 << 20, lambda _: None, bytes(16))
    cleaner.clean(log, 0, log.chain.active.base_offset, log.clock(), lambda: None)
    log.chain.remove_due(log.clock() + 1)


def check(found: Found, partition: Partition) -> None:
    """Rows rise, are what was written, and none is missing that the log still has."""
    assert [offset for offset, _, _ in found] == sorted({offset for offset, _, _ in found})
    assert not [key for _, key, _ in found if key.startswith(b"a-")]
    held = {(record.offset, record.key, record.value) for record in partition.records()}
    end = max(offset for offset, _, _ in found) + 1
    assert {row for row in held if row[0] < end} <= set(found)


def test_a_compaction_between_planning_and_reading(store: Store) -> None:
    partition = furnished(store)
    before = list(partition.records())
    reader = planned(store, minPartitions="7")
    tasks = list(reader.partitions())
    compact(partition)
    found = rows(reader, tasks)
    check(found, partition)
    assert len(found) < len(before)


def test_a_compaction_in_the_middle_of_a_task(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = furnished(store)
    monkeypatch.setattr(scan, "_FEW", 1)  # a batch is given when it was read
    reader = planned(store)
    (task,) = reader.partitions()
    reading = read(reader, task)
    found = [next(reading) for _ in range(70)]
    compact(partition)
    found += reading
    check(found, partition)
    assert found[69][0] > 70
    assert len(found) < len(list(reader.partitions())) + 400


def test_retention_in_the_middle_of_a_task(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = furnished(store)
    monkeypatch.setattr(scan, "_FEW", 1)
    log = partition.log
    for lossy in (False, True):
        options = {"failOnDataLoss": "false"} if lossy else {}
        reader = planned(store, **options)
        (task,) = reader.partitions()
        reading = read(reader, task)
        first = next(reading)[0]
        cut = log.chain.segments.floor(first + 150)
        assert cut is not None
        partition.delete_records(cut.base_offset)
        store.cleaning.retain_compacted(store.clock())
        log.chain.remove_due(log.clock() + 1)
        if lossy:
            offsets = [offset for offset, _, _ in reading]
            assert offsets[-1] == max(record.offset for record in partition.records())
            assert len([offset for offset in offsets if offset < cut.base_offset]) < 40
        else:
            with pytest.raises(OffsetOutOfRangeError, match="were removed, by retention or with the topic"):
                list(reading)


def test_a_topic_that_is_deleted_while_it_is_read(store: Store) -> None:
    furnished(store, 3)
    reader = planned(store)
    tasks = list(reader.partitions())
    store.delete_topic("t")
    with pytest.raises(OffsetOutOfRangeError, match="were removed"):
        rows(reader, tasks)


def test_reading_beside_appends_and_compactions(store: Store) -> None:
    partition = furnished(store, 5)
    stop, failures, counts = threading.Event(), [], []

    def work() -> None:
        number = 15
        try:
            while not stop.is_set():
                for key in range(20):
                    partition.append(Record(b"%040d" % number, b"key-%d" % key, NOW + number))
                partition.append(
                    [Record(b"aborted", b"a-x", NOW)] * 3, Producer(2, 0, 3 * (number - 15), True)
                )
                partition.end_transaction(2, 0, False)
                number += 1
                if number % 3 == 0:
                    compact(partition)
        except BaseException as error:  # noqa: BLE001 - told by the test
            failures.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for _ in range(40):
            reader = planned(store, minPartitions="3")
            tasks = list(reader.partitions())
            end = max(task.value.end for task in tasks)
            held = {record.key: record.offset for record in partition.records() if record.offset < end}
            found = rows(reader, tasks)
            counts.append(len(found))
            assert [offset for offset, _, _ in found] == sorted({offset for offset, _, _ in found})
            assert not [key for _, key, _ in found if key.startswith(b"a-")]
            latest = {key: offset for offset, key, _ in found}
            # A key that was put again since may have lost its record below the end; no other may.
            now = {record.key: record.offset for record in partition.records()}
            for key, offset in held.items():
                assert latest.get(key or b"", -1) >= offset or now[key] >= end
    finally:
        stop.set()
        worker.join()
    assert not failures
    assert len(set(counts)) > 5


def test_a_swap_that_was_broken_off_is_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = furnished(store, 2)
    monkeypatch.setattr("topicfs.engine.unlocked.files._PATIENCE_S", 0.05)
    left = partition.directory / f"{0:020d}.log.swap"
    left.touch()
    with pytest.raises(CorruptSegmentError, match="open the store once"):
        listed(partition.directory)
    left.unlink()


def test_records_that_are_damaged_are_an_error_with_their_place(store: Store) -> None:
    partition = furnished(store, 2)
    path = partition.log.chain.segments.first.path
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff\xff")
    with pytest.raises(Exception, match=r"00000000000000000000\.log: batch at position 0"):
        rows(planned(store))
