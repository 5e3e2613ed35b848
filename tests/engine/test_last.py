"""The last N records of a partition, whatever their offsets."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from compacted import Cleaning
from partition_bench import Bench, batch

from topicfs.engine.partition.offsets import Isolation
from topicfs.engine.partition.partition import Partition


def agree(partition: Partition, isolation: Isolation = Isolation.COMMITTED) -> None:
    """What is found is what a list of all records tells."""
    shown = [record.offset for record in partition.records(isolation=isolation)]
    for count in range(1, len(shown) + 1):
        assert partition.start_of_last(count, isolation) == shown[-count], count
    for count in (len(shown) + 1, 2**62):
        assert partition.start_of_last(count, isolation) == partition.start_offset


@pytest.mark.parametrize("seed", range(5))
def test_markers_and_aborted_transactions_are_not_counted(bench: Bench, seed: int) -> None:
    chance = random.Random(seed)
    partition = bench.open(segment_bytes=2000, compression_type=chance.choice(["producer", "zstd"]))
    sequences = dict.fromkeys(range(3), 0)
    for _ in range(60):
        producer, count = chance.randrange(3), chance.randrange(1, 9)
        match chance.randrange(4):
            case 0:
                partition.append_batch(batch(count))
            case 1 | 2:
                partition.append_batch(
                    batch(count, producer=producer, sequence=sequences[producer], transactional=True)
                )
                sequences[producer] += count
            case _:
                if producer in partition.log.producers.producers:
                    partition.end_transaction(producer, 0, chance.random() < 0.5)
    for isolation in Isolation:
        agree(partition, isolation)
    partition.log.set_high_watermark(partition.end_offset - 1)
    partition.delete_records(partition.stable_offset // 2)
    agree(partition)


@pytest.mark.parametrize("seed", range(5))
def test_what_compaction_has_removed_is_not_counted(tmp_path: Path, seed: int) -> None:
    chance, cleaning = random.Random(seed), Cleaning(tmp_path / "t-0")
    for _ in range(40):
        keys = [chance.randrange(30) for _ in range(chance.randrange(1, 9))]
        cleaning.put(*((key, "v") for key in keys))
    cleaning.clean()
    partition = cleaning.partition
    assert len(list(partition.records())) < partition.end_offset
    agree(partition)
    cleaning.check()


def test_the_work_for_a_few_records_does_not_grow_with_the_log(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = bench.open(segment_bytes=100_000)
    for number in range(2000):
        partition.append_batch(batch(1, producer=1, sequence=number, transactional=True))
        partition.end_transaction(1, 0, commit=number % 2 == 0)
    sizes = list[int]()
    segment = partition.log.chain.segments.last
    fill = type(segment.log).fill
    monkeypatch.setattr(
        type(segment.log), "fill", lambda self, at, into: (sizes.append(len(into)), fill(self, at, into))[1]
    )
    assert partition.start_of_last(5) == 4000 - 20
    assert sum(sizes) < 20_000
