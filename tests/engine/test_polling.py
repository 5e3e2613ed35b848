"""A consumer on an open store, where reading goes wrong in the middle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from store_bench import StoreBench, checked_store_bench

from topicfs import Record
from topicfs.engine.errors import CorruptBatchError
from topicfs.engine.groups.consumer import Consumer, ConsumerRecord, TopicPartition, _Local


@pytest.fixture
def consumer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, failing: dict[TopicPartition, BaseException]
) -> Iterator[Consumer]:
    """A consumer of a topic with three partitions, each with two records."""
    with checked_store_bench(tmp_path / "backing", caplog) as bench:
        for partition in bench.open().create_topic("t", 3):
            partition.append([Record(b"a"), Record(b"b")])
        yield subscribed(bench)


def subscribed(bench: StoreBench) -> Consumer:
    made = Consumer(bench.store, "readers")
    made.subscribe(["t"])
    return made


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> dict[TopicPartition, BaseException]:
    """What the second record of a partition gives instead of itself."""
    errors: dict[TopicPartition, BaseException] = {}
    real = _Local.records

    def records(self: _Local, key: TopicPartition, start: int, end: int) -> Iterator[ConsumerRecord]:
        for record in real(self, key, start, end):
            if record.offset == 1 and key in errors:
                raise errors[key]
            yield record

    monkeypatch.setattr(_Local, "records", records)
    return errors


def places(found: list[ConsumerRecord]) -> list[tuple[int, int]]:
    return [(each.partition, each.offset) for each in found]


def test_what_was_read_before_damage_is_returned_and_the_error_comes_with_the_next_call(
    consumer: Consumer, failing: dict[TopicPartition, BaseException]
) -> None:
    failing["t", 1] = CorruptBatchError("as asked for")
    assert places(consumer.poll()) == [(0, 0), (0, 1), (1, 0)]
    with pytest.raises(CorruptBatchError, match="as asked for"):
        consumer.poll()
    consumer.seek(("t", 1), 2)
    assert places(consumer.poll()) == [(2, 0), (2, 1)]
    assert not consumer.poll()
    consumer.commit()
    assert [consumer.committed(("t", number)) for number in range(3)] == [2, 2, 2]


def test_damage_in_one_partition_keeps_no_record_of_the_others_back(
    consumer: Consumer, failing: dict[TopicPartition, BaseException]
) -> None:
    failing["t", 0] = CorruptBatchError("as asked for")
    assert places(consumer.poll()) == [(0, 0)]
    with pytest.raises(CorruptBatchError):
        consumer.poll()
    assert places(consumer.poll()) == [(1, 0), (1, 1), (2, 0), (2, 1)]
    for _ in range(2):
        with pytest.raises(CorruptBatchError):
            consumer.poll()


def test_what_an_interrupted_call_has_read_is_not_committed_and_comes_again(
    consumer: Consumer, failing: dict[TopicPartition, BaseException]
) -> None:
    failing["t", 2] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        consumer.poll()
    consumer.commit()
    assert [consumer.committed(("t", number)) for number in range(3)] == [0, 0, 0]
    failing.clear()
    assert len(consumer.poll()) == 6
