"""Spark over gigabytes of records, with its default settings: each way that topicfs offers, beside plain files of the
same bytes, in one run.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from bench_mount import mount
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from report import Report, Row, seconds
from workplace import folder

from topicfs import Store
from topicfs.engine.record import now_ms
from topicfs.engine.spark import count, read, register

RECORDS = 10_000_000
MANY = 40_000_000
WRITTEN = 2_300_000
PER_SEGMENT = 1_000_000
AT_ONCE = 10_000
FIRST_MS = now_ms() - 3_600_000
ROUNDS = 3
JSONL = "offset LONG, timestamp LONG, key STRING, value STRING"


def run(report: Report) -> None:
    with folder() as place:
        report.show("Spark: sum of the values' lengths over 10 M records of 100 bytes", scans(place))
    with folder() as place:
        report.show("Spark: one record in a hundred, of 40 M", few_of_many(place))
    with folder() as place:
        report.show(f"Spark: {WRITTEN:,} rows of 100 bytes are written", sinks(place))


def session(jars: Sequence[str] = ()) -> SparkSession:
    """Spark with its default settings, but for what a machine without a screen or a network needs."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "3g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.showConsoleProgress": "false",
        **({"spark.jars": ",".join(jars)} if jars else {}),
    }
    made = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    register(made)
    return made


def fill(backing: Path, records: int, parquet: bool) -> None:
    """The log, sealed, of values that no codec makes much smaller, ten thousand in each millisecond."""
    random = np.random.default_rng(1)
    now = FIRST_MS
    with Store.open(backing, clock=lambda: now, create=True) as store:
        overrides = {"parquet.enable": str(parquet).lower(), "segment.bytes": str(1 << 30)}
        store.create_topic("bench", overrides=overrides)
        partition = store.partition("bench-0")
        for first in range(0, records, AT_ONCE):
            now = FIRST_MS + first // AT_ONCE
            lines = random.integers(33, 127, (AT_ONCE, 100), np.uint8)
            lines[:, -1] = ord("\n")
            partition.append_lines(lines.reshape(-1))
            if (first + AT_ONCE) % PER_SEGMENT == 0:
                partition.roll()


def wait_for(views: Path, kind: str, records: int) -> None:
    """Until the daemon has made all files of a kind."""
    while len(list(views.glob(f"*.{kind}"))) < records // PER_SEGMENT:
        time.sleep(0.5)


def scans(place: Path) -> list[Row]:
    fill(place / "backing", RECORDS, parquet=True)
    with mount(place / "backing", place / "mnt") as root:
        table = root / "topics/bench/table"
        wait_for(place / "backing/views/bench-0", "parquet", RECORDS)
        plain_text, plain_parquet = place / "text", place / "parquet"
        copy(root / "bench-0/sealed/txt", plain_text)
        copy(table / "partition=0", plain_parquet)
        spark = session()
        source = partial(whole_log, spark, root)
        value_only = partial(whole_log, spark, root, schema="value binary")
        bounded = partial(read, spark, root, "bench")
        length = f.sum(f.length("value"))
        first, behind = one_in_a_hundred(RECORDS)
        ways: dict[str, Callable[[], object]] = {
            "plain text": lambda: spark.read.text(str(plain_text)).agg(length).collect(),
            "plain text, count": lambda: spark.read.text(str(plain_text)).count(),
            "topicfs.spark.count": lambda: count(spark, root, "bench"),
            "data source, count by one column": lambda: whole_log(spark, root, "offset long").count(),
            "plain parquet": lambda: spark.read.parquet(str(plain_parquet)).agg(length).collect(),
            "sealed/txt": lambda: spark.read.text(str(root / "bench-0/sealed/txt")).agg(length).collect(),
            "sealed/jsonl": lambda: (
                spark.read.schema(JSONL).json(str(root / "bench-0/sealed/jsonl")).agg(length).collect()
            ),
            "table": lambda: spark.read.parquet(str(table)).agg(length).collect(),
            "data source": lambda: source().agg(length).collect(),
            # Parquet leaves out columns by itself; a Python data source is told by the schema.
            "data source, value only": lambda: value_only().agg(length).collect(),
            "plain parquet, all of each row": lambda: every_row(spark.read.parquet(str(plain_parquet))),
            "data source, all of each row": lambda: every_row(source()),
            "1 % by offset": lambda: bounded(first, behind).agg(length).collect(),
            "1 % by time": lambda: bounded(moment(first), moment(behind)).agg(length).collect(),
            "1 % of the table": lambda: (
                spark.read.parquet(str(table))
                .where((f.col("offset") >= first) & (f.col("offset") < behind))
                .agg(length)
                .collect()
            ),
            "a single row": lambda: spark.range(1).agg(f.sum("id")).collect(),
        }
        median = medians(ways)
        spark.stop()
    return [
        row("sealed/txt", median, "plain text", 0.8),
        row("sealed/jsonl", median, "plain text", None),
        row("table", median, "plain parquet", None),
        row("data source", median, "plain parquet", 0.8),
        row("data source, value only", median, "plain parquet", 0.8),
        row("data source, all of each row", median, "plain parquet, all of each row", 0.8),
        row("topicfs.spark.count", median, "plain text, count", None),
        row("data source, count by one column", median, "plain text, count", None),
        part("1 % by offset", median, "data source"),
        part("1 % by time", median, "data source"),
        part("1 % of the table", median, "table"),
        # What any query costs, be there nothing to read.
        row("a single row", median, "data source", None),
    ]


def sinks(place: Path) -> list[Row]:
    """Rows of 100 bytes, written by the data source's sink and as text."""
    numbers = iter(range(100))
    with mount(place / "backing", place / "mnt") as root:
        (root / "topics/sink").mkdir()
        spark = session()
        rows = spark.range(WRITTEN).select(f.lpad(f.col("id").cast("string"), 99, "0").alias("value")).cache()
        rows.count()
        into = {"path": str(root), "topic": "sink"}
        ways: dict[str, Callable[[], object]] = {
            "text files": lambda: rows.write.text(str(place / f"text-{next(numbers)}")),
            "the sink": lambda: rows.write.format("topicfs").options(**into).mode("append").save(),
        }
        median = medians(ways)
        spark.stop()
    return [row("the sink", median, "text files", None)]


def few_of_many(place: Path) -> list[Row]:
    fill(place / "backing", MANY, parquet=False)
    with mount(place / "backing", place / "mnt") as root:
        (root / "bench-0/status.json").read_bytes()
        wait_for(place / "backing/views/bench-0", "earliest", MANY)
        spark = session()
        bounded = partial(read, spark, root, "bench")
        length = f.sum(f.length("value"))
        first, behind = one_in_a_hundred(MANY)
        ways: dict[str, Callable[[], object]] = {
            "data source": lambda: whole_log(spark, root).agg(length).collect(),
            "1 % by offset": lambda: bounded(first, behind).agg(length).collect(),
            "1 % by time": lambda: bounded(moment(first), moment(behind)).agg(length).collect(),
        }
        median = medians(ways)
        spark.stop()
    return [part(name, median, "data source") for name in ways if name != "data source"]


def whole_log(spark: SparkSession, root: Path, schema: str | None = None) -> DataFrame:
    reader = spark.read if schema is None else spark.read.schema(schema)
    options = {"path": str(root), "subscribe": "bench"}
    return reader.format("topicfs").options(**options).load()


def one_in_a_hundred(records: int) -> tuple[int, int]:
    """The first offset of some in the middle, and the one behind them."""
    return records // 2, records // 2 + records // 100


def medians(ways: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds of each, done in turn."""
    took: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS + 1):
        for name, way in ways.items():
            took[name].append(seconds(way))
    return {name: statistics.median(times[1:]) for name, times in took.items()}


def moment(offset: int) -> datetime:
    return datetime.fromtimestamp((FIRST_MS + offset // AT_ONCE) / 1000, UTC)


def every_row(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def copy(source: Path, target: Path) -> None:
    target.mkdir()
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    if target.name == "parquet":
        assert pq.ParquetFile(next(target.iterdir())).metadata.num_rows


def row(name: str, median: dict[str, float], baseline: str, goal: float | None) -> Row:
    ratio = median[baseline] / median[name]
    return Row(
        name,
        f"{median[name]:.2f} s",
        f"{baseline} {median[baseline]:.2f} s",
        f"{ratio:.2f} x" + ("" if goal is None else f", >= {goal} x"),
        None if goal is None else ratio >= goal,
    )


def part(name: str, median: dict[str, float], whole: str) -> Row:
    ratio = median[name] / median[whole]
    return Row(
        name, f"{median[name]:.2f} s", f"{whole} {median[whole]:.2f} s", f"{ratio:.3f}, < 0.05", ratio < 0.05
    )
