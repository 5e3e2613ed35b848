"""A mount that shows two log directories, as the path of Spark's data source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_mount import DaemonMount
from pyspark.sql import SparkSession
from two_directories import COUNT, PARTITIONS, two_directories

from topicfs.engine.spark.jobs.verify import verify
from topicfs.engine.unlocked.place import place_of
from topicfs.spark import register, tables


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonMount]:
    with two_directories(tmp_path_factory.mktemp("two")) as (found, _):
        yield found


def test_queries_read_the_records_of_both(spark: SparkSession, mount: DaemonMount) -> None:
    register(spark)
    found = spark.read.format("topicfs").option("path", str(mount.path)).option("subscribe", "both,second")
    counts = found.load().groupBy("topic", "partition").count().collect()
    assert sorted(f"{row['topic']}-{row['partition']}" for row in counts) == [*PARTITIONS]
    assert {row["count"] for row in counts} == {COUNT}
    assert tables(spark, mount.path) == ["both", "second"]


def test_a_stream_reads_the_records_of_both(spark: SparkSession, mount: DaemonMount, tmp_path: Path) -> None:
    register(spark)
    read = (
        spark.readStream.format("topicfs").option("path", str(mount.path)).option("subscribe", "both,second")
    )
    stream = (
        read.option("startingOffsets", "earliest")
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "found"))
    )
    stream.awaitTermination()
    assert spark.read.parquet(str(tmp_path / "found")).count() == COUNT * len(PARTITIONS)


def test_verify_on_spark_checks_both(spark: SparkSession, mount: DaemonMount) -> None:
    rows = verify(spark, place_of(str(mount.path))).collect()
    assert [(f"{row['topic']}-{row['partition']}", row["records"]) for row in rows] == [
        (name, COUNT) for name in PARTITIONS
    ]
