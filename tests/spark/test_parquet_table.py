"""`topics/<topic>/table` as Spark reads it: the promises Q1 to Q9 of `fs/SEMANTICS.md`, seen from there."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

sys.path.append(str(Path(__file__).parent.parent / "mount"))

from daemon_mount import DaemonMount, append, eventually, own_mount
from harness import missing

OPTIONS = {
    "log.parquet.enable": "true",
    "log.cleaner.backoff.ms": 20,
    "log.cleaner.min.cleanable.ratio": 0,
    "log.segment.delete.delay.ms": 0,
    "log.retention.ms": -1,  # records of these tests are old, and the mount may serve them for minutes
    "num.partitions": 2,
}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonMount]:
    lack = missing()
    if lack is not None:
        pytest.skip(lack)
    options = [word for name, value in OPTIONS.items() for word in ("-o", f"{name}={value}")]
    place = tmp_path_factory.mktemp("parquet")
    served = DaemonMount(place)
    try:
        served.start(*options)
        yield served
        assert served.stop() == 0
        assert served.alarms() == []
    finally:
        served.clear()


def table_of(mount: DaemonMount, topic: str) -> Path:
    return mount / f"topics/{topic}/table"


def segment(mount: DaemonMount, partition: str, lines: str, suffix: str = "tsv") -> None:
    append(mount / f"{partition}/log.{suffix}", lines.encode())
    mount.steer("roll", mount / partition)


def made(directory: Path, count: int) -> None:
    eventually(lambda: len(os.listdir(directory)) == count, f"{count} files in {directory}")


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    """What jsonl would have of each row, by partition and offset."""
    found = []
    for row in frame.collect():
        members = row.asDict(recursive=True)
        # collect() gives the session's zone, which is UTC, without saying so.
        at = members["timestamp"].astimezone(UTC) - EPOCH
        members["timestamp"] = at // timedelta(milliseconds=1)
        for name in ("key", "value"):
            members[name] = None if members[name] is None else bytes(members[name]).decode()
        members["headers"] = [
            {"key": each["key"], "value": None if each["value"] is None else bytes(each["value"]).decode()}
            for each in members["headers"] or ()
        ]
        found.append(members)
    return sorted(found, key=lambda members: (members["partition"], members["offset"]))


def sealed(mount: DaemonMount, topic: str, partitions: int) -> list[dict[str, Any]]:
    """The records of all sealed segments, as the mount shows them in jsonl."""
    return [
        json.loads(line)
        for number in range(partitions)
        for name in os.listdir(mount / f"{topic}-{number}/sealed/jsonl")
        for line in (mount / f"{topic}-{number}/sealed/jsonl" / name).read_bytes().splitlines()
    ]


def test_a_topic_is_read_with_one_line_and_has_the_records_of_its_sealed_segments(
    mount: DaemonMount, spark: SparkSession
) -> None:
    (mount / "topics/orders").mkdir()
    for number in range(2):
        partition = mount / f"orders-{number}"
        records = [
            {
                "key": f"k{at}" if at % 3 else None,
                "value": f"v{at}" if at % 5 else None,
                "timestamp": 10**12 + at,
            }
            | ({"headers": [{"key": "a", "value": "x"}, {"key": "b", "value": None}]} if at % 2 else {})
            for at in range(100)
        ]
        segment(mount, partition.name, "".join(f"{json.dumps(each)}\n" for each in records), "jsonl")
        mount.steer("write", partition, 1, 0, [b"aborted"])
        mount.steer("end", partition, 1, False)
        mount.steer("write", partition, 1, 1, [b"committed"])
        mount.steer("end", partition, 1, True)
        segment(mount, partition.name, "more\tlines\n")
        append(partition / "log.tsv", b"not\tsealed\n")
        made(table_of(mount, "orders") / f"partition={number}", 2)
    frame = spark.read.parquet(str(table_of(mount, "orders")))
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == [
        ("topic", "string"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("key", "binary"),
        ("value", "binary"),
        ("headers", "array<struct<key:string,value:binary>>"),
        ("partition", "int"),
    ]
    found = rows(frame)
    assert found == sealed(mount, "orders", 2)
    assert len(found) == 204
    text = frame.selectExpr("CAST(value AS STRING) AS text").where("text = 'committed'")
    assert text.count() == 2
    frame.createOrReplaceTempView("orders")
    counted = spark.sql(
        "SELECT partition, count(*) AS n, max(offset) AS last FROM orders GROUP BY 1 ORDER BY 1"
    )
    assert [tuple(row) for row in counted.collect()] == [(0, 102, 104), (1, 102, 104)]


def test_a_table_in_sql_is_told_of_partitions_and_files(mount: DaemonMount, spark: SparkSession) -> None:
    (mount / "told-0").mkdir()
    segment(mount, "told-0", "a\t1\n")
    made(table_of(mount, "told") / "partition=0", 1)

    def count() -> int:
        return int(spark.sql("SELECT count(*) FROM told").collect()[0][0])

    spark.sql(f"CREATE TABLE told USING parquet LOCATION '{table_of(mount, 'told')}'")
    try:
        assert count() == 0
        spark.sql("MSCK REPAIR TABLE told")
        assert count() == 1
        segment(mount, "told-0", "b\t2\n")
        made(table_of(mount, "told") / "partition=0", 2)
        spark.sql("REFRESH TABLE told")
        assert count() == 2
    finally:
        spark.sql("DROP TABLE told")


def scanned(frame: DataFrame) -> int:
    """Rows that the scan gave on, before the filter looked at each."""
    frame.collect()
    plan = frame._jdf.queryExecution().executedPlan()  # type: ignore[operator]
    return int(plan.collectLeaves().head().metrics().apply("numOutputRows").value())


def test_a_filter_on_offset_or_timestamp_skips_most_of_a_file(
    mount: DaemonMount, spark: SparkSession
) -> None:
    (mount / "large-0").mkdir()
    for first in range(0, 400_000, 100_000):
        lines = "".join(
            f'{{"value":"{os.urandom(8).hex()}","timestamp":{10**12 + at}}}\n'
            for at in range(first, first + 100_000)
        )
        append(mount / "large-0/log.jsonl", lines.encode())
    mount.steer("roll", mount / "large-0")
    made(table_of(mount, "large") / "partition=0", 1)
    frame = spark.read.parquet(str(table_of(mount, "large")))
    by_offset = frame.where("offset BETWEEN 200000 AND 200099")
    assert by_offset.count() == 100
    assert 100 <= scanned(by_offset) <= 140_000
    by_time = frame.where("timestamp < timestamp_millis(1000000000000 + 50)")
    assert by_time.count() == 50
    assert 50 <= scanned(by_time) <= 140_000
    assert scanned(frame.where("partition = 1")) == 0


def test_a_stream_of_a_table_has_each_record_once_over_a_restart(
    mount: DaemonMount, spark: SparkSession, tmp_path: Path
) -> None:
    (mount / "topics/events").mkdir()
    table = table_of(mount, "events")

    def run() -> list[tuple[int, int]]:
        schema = "topic string, offset long, timestamp timestamp, key binary, value binary, partition int"
        stream = spark.readStream.schema(schema).parquet(str(table)).select("partition", "offset")
        query = (
            stream.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        assert query.awaitTermination(60)
        return sorted(tuple(row) for row in spark.read.parquet(str(tmp_path / "out")).collect())

    wanted = []
    for part in range(2):
        for number in range(2):
            segment(mount, f"events-{number}", "k\tv\n" * 10)
            made(table / f"partition={number}", part + 1)
            wanted += [(number, part * 10 + at) for at in range(10)]
        assert run() == sorted(wanted)
    assert run() == sorted(wanted)


def test_a_frame_that_was_listed_before_retention_fails_and_a_new_one_has_what_is_left(
    mount: DaemonMount, spark: SparkSession
) -> None:
    (mount / "short-0").mkdir()
    for _ in range(3):
        segment(mount, "short-0", "k\tv\n" * 10)
    made(table_of(mount, "short") / "partition=0", 3)
    before = spark.read.parquet(str(table_of(mount, "short")))
    assert before.count() == 30
    mount.steer("raise_start", mount / "short-0", 10)
    with pytest.raises(Py4JJavaError, match="FILE_NOT_EXIST"):
        before.collect()
    after = spark.read.parquet(str(table_of(mount, "short")))
    assert [row["offset"] for row in after.orderBy("offset").collect()] == [*range(10, 30)]
    lenient = spark.read.option("ignoreMissingFiles", "true").parquet(str(table_of(mount, "short")))
    mount.steer("raise_start", mount / "short-0", 20)
    assert sorted(row["offset"] for row in lenient.collect()) == [*range(20, 30)]


def test_beside_compaction_a_read_has_every_key_or_fails(spark: SparkSession, tmp_path: Path) -> None:
    options = [word for name, value in OPTIONS.items() for word in ("-o", f"{name}={value}")]
    with own_mount(tmp_path, *options) as mount:
        (mount / "keys-0").mkdir()
        for number in range(3):
            segment(
                mount,
                "keys-0",
                "".join(f"k{at}\tround {number} {os.urandom(20).hex()}\n" for at in range(300)),
            )
        append(mount / "keys-0/log.tsv", b"last\tone\n")
        table = table_of(mount, "keys")
        made(table / "partition=0", 3)
        listed_before = spark.read.parquet(str(table))
        (mount / "topics/keys/config").write_text("cleanup.policy=compact\n")
        sizes: set[int] = set()
        refusals: list[str] = []
        while 300 not in sizes:
            try:
                frame = spark.read.parquet(str(table))
                found = [
                    (bytes(row["key"]), row["offset"]) for row in frame.select("key", "offset").collect()
                ]
            except (PySparkException, Py4JJavaError) as error:
                refusals.append(str(error))
                continue
            sizes.add(len(found))
            assert len({key for key, _ in found}) == 300
        assert sizes <= {900, 300}
        assert all("FAILED_READ_FILE" in each or "CANNOT_READ_FILE" in each for each in refusals)
        assert sorted(offset for _, offset in found) == [*range(600, 900)]
        with pytest.raises(Py4JJavaError, match="FAILED_READ_FILE"):
            listed_before.collect()
