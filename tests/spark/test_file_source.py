"""Spark's own file sources on a mount, with nothing of ours in Spark: the contract R1 to R11.

The daemon is the real one; the session is shared by the folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.append(str(Path(__file__).parent.parent / "mount"))

from daemon_mount import DaemonMount, append, eventually, own_mount

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORD = (
    "topic STRING, partition INT, offset LONG, timestamp LONG, key STRING, value STRING, "
    "headers ARRAY<STRUCT<key: STRING, value: STRING>>"
)


@contextmanager
def mount_of(place: Path, *settings: str) -> Iterator[DaemonMount]:
    options = [word for setting in settings for word in ("-o", setting)]
    with own_mount(place, *options) as mount:
        yield mount


def fill(mount: DaemonMount, partition: Path, segments: int, lines: int = 50, first: int = 0) -> list[str]:
    """Sealed segments with numbered lines."""
    values = []
    for segment in range(segments):
        values += [f"line {first + segment * lines + number}" for number in range(lines)]
        append(partition / "log.txt", "".join(f"{value}\n" for value in values[-lines:]).encode())
        mount.steer("roll", partition)
    return values


def values(frame: DataFrame) -> list[str]:
    return sorted((row.value for row in frame.select("value").collect()), key=lambda value: int(value[5:]))


def streamed(spark: SparkSession, source: str, place: Path, **options: object) -> list[tuple[int, int, str]]:
    """One run of a stream over all that is there: what its sink has then."""
    reader = spark.readStream.schema(RECORD)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    sink, checkpoint = place / "sink", place / "checkpoint"
    query = (
        reader.json(source)
        .select("partition", "offset", "value")
        .writeStream.format("json")
        .option("path", str(sink))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    return sunk(spark, place)


def sunk(spark: SparkSession, place: Path) -> list[tuple[int, int, str]]:
    rows = spark.read.schema("partition INT, offset LONG, value STRING").json(str(place / "sink")).collect()
    return sorted((row.partition, row.offset, row.value) for row in rows)


@pytest.mark.parametrize("split", [None, 200])
def test_text_is_every_line_once_however_it_is_split(
    spark: SparkSession, tmp_path: Path, split: int | None
) -> None:
    with mount_of(tmp_path) as mount:
        partition = mount.new()
        expected = fill(mount, partition, 3)
        append(partition / "log.txt", b"not yet sealed\n")
        size = spark.conf.get("spark.sql.files.maxPartitionBytes")
        open_cost = spark.conf.get("spark.sql.files.openCostInBytes")
        if split is not None:
            spark.conf.set("spark.sql.files.maxPartitionBytes", str(split))
            spark.conf.set("spark.sql.files.openCostInBytes", "1")
        try:
            assert values(spark.read.text(str(partition / "sealed/txt"))) == expected
        finally:
            spark.conf.set("spark.sql.files.maxPartitionBytes", size)
            spark.conf.set("spark.sql.files.openCostInBytes", open_cost)


def test_jsonl_is_every_field(spark: SparkSession, tmp_path: Path) -> None:
    with mount_of(tmp_path) as mount:
        partition = mount.new()
        # The lines are of 1970: retention would remove them.
        (mount / "topics/plain/config").write_text("retention.ms=-1\n")
        lines = [
            {"key": "k", "value": 'a "b"\n\u0000é', "timestamp": 5, "headers": [{"key": "h", "value": "1"}]},
            {"key": None, "value": None, "timestamp": 6, "headers": []},
        ]
        append(partition / "log.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())
        mount.steer("roll", partition)
        rows = spark.read.schema(RECORD).json(str(partition / "sealed/jsonl")).orderBy("offset").collect()
        assert [row.asDict(recursive=True) for row in rows] == [
            {"topic": "plain", "partition": 0, "offset": offset, **line} for offset, line in enumerate(lines)
        ]


def test_tsv_is_read_as_postgresql_writes_it(spark: SparkSession, tmp_path: Path) -> None:
    with mount_of(tmp_path) as mount:
        partition = mount.new()
        append(partition / "log.tsv", b"k1\tv1\n\\N\tv2\n")
        mount.steer("roll", partition)
        reader = spark.read.schema("key STRING, value STRING").option("sep", "\t").option("nullValue", "\\N")
        rows = reader.csv(str(partition / "sealed/tsv")).collect()
        assert sorted((row.key or "", row.value) for row in rows) == [("", "v2"), ("k1", "v1")]


def test_an_empty_or_unsealed_log_is_an_empty_frame(spark: SparkSession, tmp_path: Path) -> None:
    with mount_of(tmp_path) as mount:
        partition = mount.new()
        assert spark.read.text(str(partition / "sealed/txt")).count() == 0
        append(partition / "log.txt", b"open\n")
        assert spark.read.text(str(partition / "sealed/txt")).count() == 0


def test_several_partitions_by_one_pattern(spark: SparkSession, tmp_path: Path) -> None:
    with mount_of(tmp_path) as mount:
        first, second = mount.new(), mount.new()
        expected = fill(mount, first, 2) + fill(mount, second, 2, first=1000)
        frame = spark.read.schema(RECORD).json(f"{mount.path}/plain-*/sealed/jsonl")
        assert values(frame) == expected
        assert {row.partition for row in frame.select("partition").distinct().collect()} == {0, 1}


def test_a_stream_processes_each_record_once_over_restarts_of_both(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "mount").mkdir()
    served = DaemonMount(tmp_path / "mount")
    expected: list[tuple[int, int, str]] = []
    try:
        for run in range(3):
            served.start()
            partition = served / "plain-0"
            if not partition.exists():
                partition = served.new()
            first = len(expected)
            lines = fill(served, partition, 2, first=first)
            expected += [(0, first + number, line) for number, line in enumerate(lines)]
            source = f"{served.path}/plain-*/sealed/jsonl"
            assert streamed(spark, source, tmp_path, maxFilesPerTrigger=1) == expected, run
            if run == 0:
                served.kill()
                subprocess.run(["fusermount", "-uz", served.path], check=True)
            else:
                assert served.stop() == 0
    finally:
        served.clear()


def test_a_stream_with_retention_running_sees_what_it_had_planned(
    spark: SparkSession, tmp_path: Path
) -> None:
    with mount_of(tmp_path) as mount:
        partition = mount.new()
        source = f"{mount.path}/plain-*/sealed/jsonl"
        lines = fill(mount, partition, 3)
        expected = [(0, number, line) for number, line in enumerate(lines)]
        assert streamed(spark, source, tmp_path) == expected
        mount.steer("raise_start", partition, 100)
        lines = fill(mount, partition, 2, first=150)
        expected += [(0, 150 + number, line) for number, line in enumerate(lines)]
        assert streamed(spark, source, tmp_path) == expected


def test_a_stream_over_a_compacted_topic_gets_the_last_value_of_each_key(
    spark: SparkSession, tmp_path: Path
) -> None:
    """It may get a record again, and records of one key in another order than that of their offsets."""
    quick = (
        "log.cleaner.backoff.ms=20",
        "log.cleaner.min.cleanable.ratio=0",
        "log.segment.delete.delay.ms=0",
    )
    with mount_of(tmp_path, *quick) as mount:
        partition = mount.new("keys")
        config = mount / "topics/keys/config"
        config.write_text("cleanup.policy=compact\n")
        source = f"{mount.path}/keys-*/sealed/jsonl"

        def streamed_last() -> dict[str, tuple[int, str]]:
            found = sorted(streamed(spark, source, tmp_path))
            return {value.partition(" ")[0]: (offset, value) for _, offset, value in found}

        def compacted(end: int) -> None:
            def is_done() -> bool:
                cleaning = mount.status(partition)["cleaning"]
                return cleaning is not None and cleaning["from_offset"] >= end

            eventually(is_done, "a compaction")
            assert os.listdir(partition / "sealed/jsonl") == [f"{0:020d}-{end:020d}.jsonl"]

        expected: dict[str, tuple[int, str]] = {}
        for turn in range(3):
            for part in range(2):
                first = (2 * turn + part) * 50
                keys = [f"k{number}" for number in range(10 * turn, 10 * turn + 50)]
                expected |= {key: (first + at, f"{key} of turn {turn}.{part}") for at, key in enumerate(keys)}
                lines = "".join(f"{key}\t{expected[key][1]}\n" for key in keys)
                append(partition / "log.tsv", lines.encode())
                mount.steer("roll", partition)
            compacted(first + 50)
            assert streamed_last() == expected


def test_segment_ms_seals_what_a_stream_waits_for(spark: SparkSession, tmp_path: Path) -> None:
    with mount_of(tmp_path, "log.roll.ms=500") as mount:
        partition = mount.new()
        append(partition / "log.txt", b"line 0\nline 1\n")
        eventually(lambda: os.listdir(partition / "sealed/jsonl"), "a sealed segment")
        source = f"{mount.path}/plain-*/sealed/jsonl"
        assert streamed(spark, source, tmp_path) == [(0, 0, "line 0"), (0, 1, "line 1")]


def test_the_order_of_times_is_the_order_of_offsets_and_none_is_in_the_future(tmp_path: Path) -> None:
    with mount_of(tmp_path) as mount:
        partition = mount.new()
        fill(mount, partition, 12, lines=1)
        files = [partition / "sealed/txt" / name for name in os.listdir(partition / "sealed/txt")]
        assert files == sorted(files)
        times = [file.stat().st_mtime_ns // 1_000_000 for file in files]
        assert times == sorted(set(times))
        assert times[-1] <= time.time() * 1000 + 15
        for file in files:
            assert file.stat().st_size == len(file.read_bytes()) > 0
            assert file.read_bytes().endswith(b"\n")
        for name in (f".{files[0].name}.crc", "_spark_metadata"):
            with pytest.raises(FileNotFoundError):
                (partition / "sealed/txt" / name).stat()


def test_exactly_once_when_the_streaming_job_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(
        textwrap.dedent("""
        import os, sys
        os.environ["PYSPARK_PYTHON"] = sys.executable
        from pyspark.sql import SparkSession
        source, place, record = sys.argv[1:]
        spark = SparkSession.builder.master("local[1]").config(map={
            "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1", "spark.driver.memory": "512m",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}).getOrCreate()
        query = (spark.readStream.schema(record).option("maxFilesPerTrigger", "1").json(source)
            .select("partition", "offset", "value").writeStream.format("json")
            .option("path", place + "/sink").option("checkpointLocation", place + "/checkpoint")
            .trigger(availableNow=True).start())
        query.awaitTermination()
        """)
    )
    with mount_of(tmp_path) as mount:
        partition = mount.new()
        lines = fill(mount, partition, 40, lines=3)
        source = f"{mount.path}/plain-*/sealed/jsonl"
        committed = tmp_path / "checkpoint/commits"
        with subprocess.Popen(
            [sys.executable, job, source, tmp_path, RECORD],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            eventually(lambda: committed.is_dir() and len(os.listdir(committed)) > 4, "some batches", 60)
            subprocess.run(["pkill", "-KILL", "-s", str(process.pid)], check=False)
            process.kill()
        assert len(sunk(spark, tmp_path)) < len(lines), "it was killed in the middle"
        expected = [(0, number, line) for number, line in enumerate(lines)]
        assert streamed(spark, source, tmp_path, maxFilesPerTrigger=10) == expected
