"""Counting records by the headers of batches: the same numbers as by reading them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from partition_opening import NOW
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType
from sources import Logs, logs

from topicfs import Record
from topicfs.engine.cleaner.clean import Cleaner
from topicfs.engine.errors import CorruptBatchError
from topicfs.engine.format.batch_header import HEADER_SIZE
from topicfs.engine.format.paths import log_file
from topicfs.engine.partition.partition import Partition, Producer
from topicfs.engine.segment.batch_file import BatchFile
from topicfs.engine.spark.columns import COLUMNS, RECORDS
from topicfs.engine.spark.options import parse
from topicfs.engine.spark.reader import TopicReader
from topicfs.spark import count

WHERE = [{}, {"startingOffsets": 13, "endingOffsets": 171}, {"startingOffsets": 47, "endingOffsets": 73}]
COUNTED = StructType([COLUMNS["topic"], COLUMNS["partition"], RECORDS])
BOTH = "t,z"


@pytest.fixture
def log(spark: SparkSession, tmp_path: Path) -> Iterator[Logs]:
    """Two topics, plain and compressed, in many segments: transactions of both ends, markers, and in one partition the
    gaps that compaction has left."""
    with logs(spark, tmp_path) as made:
        settings = {"segment_bytes": 2000}
        plain = [made.create("t", number, **settings) for number in range(2)]
        for partition in (*plain, made.create("z", compression_type="zstd", **settings)):
            for turn in range(20):
                keys = [b"again-%d" % key if key % 2 else b"once-%d-%d" % (turn, key) for key in range(7)]
                partition.append([Record(b"%040d" % turn, key, NOW + turn) for key in keys])
                partition.append([Record(b"ended", b"e", NOW)] * 3, Producer(1, 0, 3 * turn, True))
                partition.end_transaction(1, 0, turn % 2 == 1)
        compact(plain[1])
        made.create("t", 2, **settings)
        yield made


def compact(partition: Partition) -> None:
    log = partition.log
    cleaner = Cleaner.create(1 << 20, 0.75, 1 << 20, lambda _: None, bytes(16))
    cleaner.clean(log, 0, log.chain.active.base_offset, log.clock(), lambda: None)
    log.chain.remove_due(log.clock() + 1)


def found(log: Logs, schema: StructType, **options: object) -> Iterator[dict[str, int]]:
    reader = TopicReader(parse(log.options(**options), streaming=False), schema)
    for task in reader.partitions():
        yield from rows_of(reader, task)


def rows_of(reader: TopicReader, task: InputPartition) -> Iterator[dict[str, int]]:
    for batch in reader.read(task):
        yield from batch.to_pylist()


@pytest.mark.parametrize("where", [*WHERE, {"sinceTimestamp": NOW + 3, "beforeTimestamp": NOW + 9}])
def test_a_count_is_the_number_of_rows(log: Logs, where: dict[str, object]) -> None:
    rows = Counter(row[2:4] for row in log.found(topic=BOTH, **where))
    counts: Counter[tuple[object, ...]] = Counter()
    for row in found(log, COUNTED, topic=BOTH, **where):
        counts[row["topic"], row["partition"]] += row["records"]
    assert counts == rows
    assert len(rows) == 3


@pytest.mark.parametrize("where", WHERE)
def test_columns_that_headers_tell_are_those_of_the_records(log: Logs, where: dict[str, object]) -> None:
    schema = StructType([COLUMNS[name] for name in ("offset", "topic", "timestampType", "partition")])
    told = [
        (row["topic"], row["partition"], row["offset"], row["timestampType"])
        for row in found(log, schema, topic=BOTH, **where)
    ]
    assert told == [(row[2], row[3], row[4], row[6]) for row in log.found(topic=BOTH, **where)]


def test_a_count_by_spark_takes_the_bounds_of_a_read(log: Logs) -> None:
    counts = count(log.spark, log.place, "t")
    assert counts == Counter(row[3] for row in log.found())
    assert list(counts) == [0, 1]
    assert count(log.spark, log.place, "t", start={0: 100, 1: 0, 2: 0}, end={0: 110, 1: 0, 2: 0}).keys() == {
        0
    }
    assert count(log.spark, log.place, "t", end=0) == {}


def test_a_count_reads_little_of_large_batches(log: Logs) -> None:
    partition = log.create("large")
    for _ in range(3):
        partition.append([Record(b"x" * 1000)] * 900)
    reader = TopicReader(parse(log.options(topic="large"), streaming=False), COUNTED)
    (task,) = reader.partitions()
    sizes = []

    def read(file: BatchFile, position: int, length: int) -> bytes:
        sizes.append(length)
        return whole(file, position, length)

    whole = BatchFile.read
    with patch.object(BatchFile, "read", read), patch.object(BatchFile, "fill", side_effect=AssertionError):
        assert [row["records"] for row in rows_of(reader, task)] == [2700]
    assert sum(sizes) < partition.size // 10


def test_a_count_of_damaged_batches_is_an_error(log: Logs) -> None:
    path = log.place / "logs" / "t-0" / log_file(0)
    data = bytearray(path.read_bytes())
    data[HEADER_SIZE - 4 : HEADER_SIZE] = (2**30).to_bytes(4, "big")
    path.write_bytes(data)
    with pytest.raises(CorruptBatchError):
        list(found(log, COUNTED))
