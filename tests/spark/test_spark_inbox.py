"""Spark writes into an inbox with its own committers: all of a job, once, or nothing."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
sys.path.insert(0, str(Path(__file__).parents[1] / "mount"))

from daemon_mount import DaemonMount, delete
from harness import missing
from killed_job import for_each_batch
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users call it

V2 = "mapreduce.fileoutputcommitter.algorithm.version"
NAMES = itertools.count()


class Topic:
    """A topic of the test's own, with two partitions."""

    def __init__(self, mount: DaemonMount) -> None:
        self.mount = mount
        self.name = f"t{next(NAMES)}"
        for number in (0, 1):
            (mount / f"{self.name}-{number}").mkdir()
        self.inbox = mount / "topics" / self.name / "inbox"

    def records(self) -> list[dict[str, Any]]:
        return [
            json.loads(line)
            for number in (0, 1)
            for line in (self.mount / f"{self.name}-{number}" / "log.jsonl").read_text().splitlines()
        ]

    def values(self) -> list[str]:
        return sorted(record["value"] for record in self.records())

    def log_since(self, mark: int) -> str:
        return self.mount.said()[mark:]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[DaemonMount]:
    """A mount for all tests of this module."""
    lack = missing()
    if lack is not None:
        pytest.skip(lack)
    found = DaemonMount(tmp_path_factory.mktemp("inbox"))
    try:
        found.start()
        yield found
        assert found.stop() == 0
        assert found.alarms() == []
    finally:
        found.clear()


@pytest.fixture
def topic(served: DaemonMount) -> Iterator[Topic]:
    with served.watched():
        yield Topic(served)


def numbers(spark: SparkSession, count: int, first: int = 0) -> DataFrame:
    """So many rows in two tasks, with a column `value`."""
    return spark.range(first, first + count, 1, 2).select(F.col("id").cast("string").alias("value"))


def expected(count: int, first: int = 0) -> list[str]:
    return sorted(map(str, range(first, first + count)))


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("place", ["", "batch"])
def test_text_is_appended_whole(spark: SparkSession, topic: Topic, version: str, place: str) -> None:
    numbers(spark, 100).write.mode("append").option(V2, version).text(str(topic.inbox / place))
    assert topic.values() == expected(100)
    assert os.listdir(topic.inbox) == []


def test_json_names_key_headers_timestamp_and_partition(spark: SparkSession, topic: Topic) -> None:
    rows = numbers(spark, 50).select(
        F.concat(F.lit("k"), "value").alias("key"),
        "value",
        F.lit(1_700_000_000_000).alias("timestamp"),
        F.lit(1).alias("partition"),
    )
    rows.write.json(str(topic.inbox / "b"))
    records = topic.records()
    assert topic.values() == expected(50)
    assert all(record["key"] == f"k{record['value']}" for record in records)
    assert {(record["timestamp"], record["partition"]) for record in records} == {(1_700_000_000_000, 1)}


def test_compressed_text_and_json(spark: SparkSession, topic: Topic) -> None:
    numbers(spark, 10).write.option("compression", "gzip").text(str(topic.inbox / "t"))
    numbers(spark, 10, 10).write.option("compression", "gzip").json(str(topic.inbox / "j"))
    assert topic.values() == expected(20)


def test_parts_are_appended_in_their_order(spark: SparkSession, topic: Topic) -> None:
    rows = spark.range(0, 3000, 1, 12).select(
        F.lit("same").alias("key"), F.col("id").cast("string").alias("value")
    )
    rows.write.option("maxRecordsPerFile", 100).json(str(topic.inbox / "b"))
    assert [record["value"] for record in topic.records()] == [str(number) for number in range(3000)]


def test_overwrite_of_a_batch_that_was_committed_adds_nothing(spark: SparkSession, topic: Topic) -> None:
    for files, version, codec in ((1, "1", "none"), (3, "1", "none"), (2, "2", "gzip")):
        rows = numbers(spark, 10).repartition(files).write.mode("overwrite")
        rows.option(V2, version).option("compression", codec).text(str(topic.inbox / "b"))
        assert topic.values() == expected(10)
        assert os.listdir(topic.inbox) == []


def test_other_rows_under_the_name_of_a_batch_that_was_committed_are_an_error(
    spark: SparkSession, topic: Topic
) -> None:
    writes = (("overwrite", "1"), ("append", "1"), ("overwrite", "2"))
    for number, (mode, version) in enumerate(writes):
        batch = str(topic.inbox / f"b{number}")
        numbers(spark, 10).write.text(batch)
        mark = len(topic.mount.said())
        with pytest.raises(Py4JJavaError, match="File exists"):
            numbers(spark, 10, 1000).write.mode(mode).option(V2, version).text(batch)
        assert f"batch:b{number} was committed before with other records" in topic.log_since(mark)
        assert os.listdir(topic.inbox) == [f"b{number}"]
        numbers(spark, 10).write.mode("overwrite").text(batch)
        assert os.listdir(topic.inbox) == []
        assert topic.values() == sorted(expected(10) * (number + 1))


def test_overwrite_of_a_batch_that_was_not_committed_replaces_it(spark: SparkSession, topic: Topic) -> None:
    (topic.inbox / "b" / "_temporary" / "0").mkdir(parents=True)
    (topic.inbox / "b" / "part-00000.txt").write_text("left over\n")
    numbers(spark, 10).write.mode("overwrite").text(str(topic.inbox / "b"))
    assert topic.values() == expected(10)


def test_no_rows(spark: SparkSession, topic: Topic) -> None:
    numbers(spark, 10).where("value < 0").write.text(str(topic.inbox / "b"))
    assert topic.values() == []
    numbers(spark, 10).where("value < 0").write.mode("append").text(str(topic.inbox / "b"))
    with pytest.raises(Py4JJavaError, match="File exists"):
        numbers(spark, 10).write.mode("append").text(str(topic.inbox / "b"))
    assert topic.values() == [], "the empty batch was committed under this name"


def test_a_job_whose_executors_do_not_have_the_mount_is_refused(spark: SparkSession, topic: Topic) -> None:
    """No part file comes, and no task's directory: what the driver does then is what it does for this frame."""
    rows = numbers(spark, 10).withColumn("partition", F.lit(1))
    for mode, place in (("errorifexists", "b"), ("overwrite", "b"), ("append", "b"), ("append", "")):
        with refuses(topic, "expected files of records, found none"):
            rows.where("value < 0").write.mode(mode).partitionBy("partition").text(str(topic.inbox / place))
    numbers(spark, 10).write.mode("overwrite").text(str(topic.inbox / "b"))
    assert topic.values() == expected(10)
    assert os.listdir(topic.inbox) == []


def test_partition_by_partition(spark: SparkSession, topic: Topic) -> None:
    rows = numbers(spark, 20).withColumn("partition", F.col("value").cast("int") % 2)
    for version in ("1", "2"):
        rows.write.partitionBy("partition").option(V2, version).text(str(topic.inbox / f"b{version}"))
    assert topic.values() == sorted(expected(20) * 2)
    assert all(int(record["value"]) % 2 == record["partition"] for record in topic.records())


@contextmanager
def refuses(topic: Topic, words: str) -> Iterator[None]:
    """What is done inside fails, and the daemon's log says why."""
    mark, before = len(topic.mount.said()), topic.values()
    with pytest.raises((PySparkException, Py4JJavaError)):
        yield
    assert words in topic.log_since(mark)
    assert topic.values() == before


def test_partition_by_another_column_is_refused(spark: SparkSession, topic: Topic) -> None:
    rows = numbers(spark, 20).withColumn("day", F.col("value"))
    with refuses(topic, "partitionBy takes the column out of the rows"):
        rows.write.partitionBy("day").text(str(topic.inbox / "b"))
    assert list((topic.inbox / "b").rglob("part*")) == []


@pytest.mark.parametrize("kind", ["csv", "orc"])
def test_formats_that_an_inbox_does_not_know_are_refused(
    spark: SparkSession, topic: Topic, kind: str
) -> None:
    with refuses(topic, "an inbox takes lines and columns"):
        numbers(spark, 20).write.format(kind).save(str(topic.inbox / "b"))


HEADER = "array(named_struct('key', 'h', 'value', cast('x' as binary)))"


def test_parquet_is_appended_whole_with_every_column_that_a_record_has(
    spark: SparkSession, topic: Topic
) -> None:
    rows = numbers(spark, 50).selectExpr(
        "if(value < 25, concat('k', value), null) as key",
        "if(value = '7', null, cast(value as binary)) as value",
        "if(value = '8', null, timestamp_millis(1700000000000 + value)) as timestamp",
        f"if(value = '9', {HEADER}, null) as headers",
        "cast(value % 2 as int) as partition",
    )
    # The rows are of 2023: retention would remove them.
    (topic.inbox.parent / "config").write_text("retention.ms=-1\n")
    lines = topic.inbox / "lines"
    for name, options in (("b", {}), ("c", {"compression": "zstd"}), ("d", {"compression": "none"})):
        rows.write.options(**options).parquet(str(topic.inbox / name))
        rows.write.mode("overwrite").options(**options).parquet(str(topic.inbox / name))
    assert os.listdir(topic.inbox) == []
    found = topic.records()
    assert len(found) == 150
    for record in found:
        number = 7 if record["value"] is None else int(record["value"])
        assert record["partition"] == number % 2
        assert record["key"] == (f"k{number}" if number < 25 else None)
        assert number == 8 or record["timestamp"] == 1_700_000_000_000 + number
        assert record["headers"] == ([{"key": "h", "value": "x"}] if number == 9 else [])
    # The same rows as lines: milliseconds are numbers there, and headers have text.
    plain = rows.selectExpr(
        "key",
        "cast(value as string) as value",
        "unix_millis(timestamp) as timestamp",
        "transform(headers, each -> struct(each.key, cast(each.value as string) as value)) as headers",
        "partition",
    )
    plain.write.option("ignoreNullFields", "false").json(str(lines))
    assert len(topic.records()) == 200
    rows.write.mode("overwrite").parquet(str(lines))
    rows.write.mode("overwrite").option("maxRecordsPerFile", 7).parquet(str(topic.inbox / "b"))
    assert len(topic.records()) == 200
    with pytest.raises(Py4JJavaError, match="File exists"):
        rows.where("value is not null").write.mode("overwrite").parquet(str(lines))


def test_parquet_comes_by_each_of_sparks_protocols(spark: SparkSession, topic: Topic) -> None:
    by_hand = numbers(spark, 10).withColumn("partition", F.col("value").cast("int") % 2)
    for version in ("1", "2"):
        numbers(spark, 10).write.option(V2, version).parquet(str(topic.inbox / f"b{version}"))
        numbers(spark, 10).write.mode("append").option(V2, version).parquet(str(topic.inbox))
        by_hand.write.partitionBy("partition").option(V2, version).parquet(str(topic.inbox / f"p{version}"))
    assert topic.values() == sorted(expected(10) * 6)
    assert os.listdir(topic.inbox) == []
    numbers(spark, 10).where("value < 0").write.parquet(str(topic.inbox / "nothing"))
    with refuses(topic, "unknown column colour"):
        by_hand.withColumnRenamed("partition", "colour").write.parquet(str(topic.inbox / "bad"))
    # Text in Spark may be any bytes.
    numbers(spark, 1).selectExpr("cast(X'ff' as string) as value").write.parquet(str(topic.inbox / "odd"))
    assert [record["value_base64"] for record in topic.records() if "value_base64" in record] == ["/w=="]


def test_a_bad_row_fails_the_job(spark: SparkSession, topic: Topic) -> None:
    rows = numbers(spark, 20).withColumn("colour", F.lit("blue"))
    with refuses(topic, "colour"):
        rows.write.json(str(topic.inbox / "b"))


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_failed_task_leaves_nothing(spark: SparkSession, topic: Topic, version: str) -> None:
    rows = numbers(spark, 20).select(
        F.when(F.col("value") == "19", F.raise_error(F.lit("on purpose")))
        .otherwise(F.col("value"))
        .alias("value")
    )
    with pytest.raises(PySparkException, match="on purpose"):
        rows.write.option(V2, version).text(str(topic.inbox / "b"))
    assert topic.values() == []
    numbers(spark, 20).write.mode("overwrite").option(V2, version).text(str(topic.inbox / "b"))
    assert topic.values() == expected(20)


@pytest.mark.parametrize("place", ["", "b"])
def test_of_two_jobs_in_one_directory_none_is_mixed(spark: SparkSession, topic: Topic, place: str) -> None:
    def slow(first: int) -> DataFrame:
        # A task each, so that both have a core, and half a second of it.
        slept = F.expr("java_method('java.lang.Thread', 'sleep', 25L)")
        return (
            numbers(spark, 20, first)
            .coalesce(1)
            .select(F.concat("value", F.coalesce(slept, F.lit(""))).alias("value"))
        )

    errors: list[Exception] = []

    def write(first: int) -> None:
        try:
            slow(first).write.mode("append").text(str(topic.inbox / place))
        except (PySparkException, Py4JJavaError) as error:
            errors.append(error)

    jobs = [threading.Thread(target=write, args=(first,)) for first in (100, 200)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    found = topic.values()
    # Of each job all or nothing, and of one that was told that it did well, all. A batch is committed once.
    both = [sorted(expected(20, 100) + expected(20, 200))]
    assert found in ([], expected(20, 100), expected(20, 200), *([] if place else both))
    assert errors, "they did not meet"
    assert "write into one directory" in topic.mount.said()
    assert place or len(found) == 20 * (2 - len(errors))


def test_overwriting_the_inbox_itself_is_refused_and_loses_no_record(
    spark: SparkSession, topic: Topic
) -> None:
    numbers(spark, 10).write.text(str(topic.inbox / "a"))
    pending = topic.inbox / "b"
    pending.mkdir()
    (pending / "part-00000.txt").write_text("pending\n")
    for _ in range(2):
        with pytest.raises(Py4JJavaError, match=r"Unable to clear output directory .*/inbox"):
            numbers(spark, 10, 10).write.mode("overwrite").text(str(topic.inbox))
    assert topic.values() == expected(10)
    numbers(spark, 10, 10).write.mode("overwrite").text(str(topic.inbox / "c"))
    assert topic.values() == expected(20)


def test_a_topic_that_is_made_anew_has_nothing_of_what_was_on_its_way_in(
    spark: SparkSession, topic: Topic
) -> None:
    numbers(spark, 10).write.text(str(topic.inbox / "done"))
    pending = topic.inbox / "b"
    (pending / "_temporary" / "0").mkdir(parents=True)
    (pending / "part-00000.txt").write_text("pending\n")
    (topic.inbox / ".x.jsonl").write_text('{"value":"x"}\n')
    above = topic.inbox.parent
    with (pending / "_temporary" / "0" / "open.txt").open("w") as file:
        file.write("open\n")
        file.flush()
        done = subprocess.run(["rm", "-r", above], check=False, capture_output=True)
        assert b"inbox': Operation not permitted" in done.stderr
        assert os.listdir(topic.inbox) == []
        assert topic.values() == expected(10), "rm -r takes what is on its way in, and no record"
        (pending / "_temporary" / "0").mkdir(parents=True)
        (pending / "part-00000.txt").write_text("pending again\n")
        delete(above)
        for number in (0, 1):
            (topic.mount / f"{topic.name}-{number}").mkdir()
    assert os.listdir(topic.inbox) == []
    assert topic.values() == []
    # Names of what the old topic had committed are forgotten with it.
    for name in ("b", "done"):
        numbers(spark, 10).write.text(str(topic.inbox / name))
    assert topic.values() == sorted(2 * expected(10))


def test_the_sink_of_a_stream_is_refused_at_its_start(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.txt").write_text("a\n")
    stream = spark.readStream.text(str(source)).writeStream.format("text")
    with refuses(topic, "use foreachBatch"):
        query = (
            stream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(topic.inbox / "b"))
        )
        query.awaitTermination(60)


def test_for_each_batch_is_exactly_once_when_a_batch_is_replayed(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    fails_after = [0, 1]

    def write(rows: DataFrame, number: int) -> None:
        rows.write.mode("overwrite").text(str(topic.inbox / f"q1-{number}"))
        if number in fails_after:
            # Spark has not noted the batch as done: it comes again with the next start.
            fails_after.remove(number)
            raise RuntimeError("killed here")

    for attempt in range(4):
        (source / f"{attempt}.txt").write_text(f"{attempt} one\n{attempt} two\n")
        query = (
            spark.readStream.text(str(source))
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination(60)
        except PySparkException as error:
            assert "killed here" in str(error)  # noqa: PT017 - it may also do well
    assert not fails_after
    assert topic.values() == sorted(f"{number} {word}" for number in range(4) for word in ("one", "two"))


def test_the_words_of_readme_lose_nothing_when_the_checkpoint_is_made_anew(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    stream = spark.readStream.text(str(source))
    for number in range(3):
        (source / f"{number}.txt").write_text(f"{number}\n")
        code = for_each_batch().replace("mnt/topics/orders/inbox", str(topic.inbox))
        exec(code.replace('"checkpoint"', repr(str(tmp_path / f"checkpoint {number}"))), {"stream": stream})
        (query,) = spark.streams.active
        query.processAllAvailable()
        query.stop()
        (source / f"{number}.txt").unlink()
    assert topic.values() == ["0", "1", "2"]


@pytest.mark.parametrize("step", [2, 5])
def test_for_each_batch_is_exactly_once_when_the_daemon_is_killed(
    spark: SparkSession, tmp_path: Path, step: int
) -> None:
    mount = DaemonMount(tmp_path)
    source = tmp_path / "source"
    source.mkdir()

    def run() -> None:
        query = (
            spark.readStream.text(str(source))
            .writeStream.foreachBatch(
                lambda rows, number: rows.write.mode("overwrite").text(str(topic.inbox / f"q1-{number}"))
            )
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(60)

    try:
        mount.start()
        topic = Topic(mount)
        (source / "0.txt").write_text("one\n")
        run()
        mount.steer("die_in_commit", mount / f"{topic.name}-0", step)
        (source / "1.txt").write_text("two\n")
        with pytest.raises(PySparkException):
            run()
        assert mount.process is not None
        mount.process.wait(30)
        mount.process = None
        mount.start()
        assert topic.values() == (["one", "two"] if step == 5 else ["one"])
        (source / "2.txt").write_text("three\n")
        run()
        assert topic.values() == ["one", "three", "two"]
        assert mount.stop() == 0
        assert mount.alarms() == []
    finally:
        mount.clear()
