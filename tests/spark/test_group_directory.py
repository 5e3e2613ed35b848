"""The directory in which daemons of a `link.group` have their stores side by side, as the path of the data source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession
from two_stores import TOPIC, Two

from topicfs.engine.spark import register


@pytest.fixture
def two(spark: SparkSession, tmp_path: Path) -> Iterator[Two]:
    register(spark)
    with ExitStack() as held:
        two = Two(tmp_path / "stores", held)
        two.two.links.link(TOPIC, (1,))
        two.append(two.two, 0, number=1)
        yield two


def offsets_in(rows: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    """The offsets of rows of partitions and offsets, by partition."""
    found: dict[int, list[int]] = {}
    for number, offset in rows:
        found.setdefault(number, []).append(offset)
    return {number: sorted(offsets) for number, offsets in sorted(found.items())}


def expected(*ends: int) -> dict[int, list[int]]:
    return {number: list(range(end)) for number, end in enumerate(ends)}


def test_a_query_reads_the_partitions_of_all_daemons(spark: SparkSession, two: Two) -> None:
    read = spark.read.format("topicfs").option("path", str(two.place)).option("topic", "t")
    rows = read.load().select("partition", "offset").collect()
    assert offsets_in((row["partition"], row["offset"]) for row in rows) == expected(30, 10)


def test_a_stream_goes_on_when_a_partition_has_moved(spark: SparkSession, two: Two, tmp_path: Path) -> None:
    rows = tmp_path / "rows"

    def stream() -> dict[int, list[int]]:
        """Read what is there, and stop. Gives all offsets so far."""
        read = spark.readStream.format("topicfs").option("path", str(two.place)).option("topic", "t")
        stream = read.option("startingOffsets", "earliest").load().select("partition", "offset")
        sink = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = sink.trigger(availableNow=True).start(str(rows))
        try:
            assert query.awaitTermination(60)
        finally:
            query.stop()
        table = parquet.read_table(rows)
        return offsets_in(zip(*(table[name].to_pylist() for name in ("partition", "offset")), strict=True))

    assert stream() == expected(30, 10)
    two.append(two.one, 30)
    # It dies, and another one takes the partition as it is on disk.
    two.one.abandon()
    two.take()
    two.append(two.two, 40)
    two.append(two.two, 10, number=1)
    assert stream() == expected(50, 20)
