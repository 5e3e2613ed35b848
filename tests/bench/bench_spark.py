"""Spark over a gigabyte of records: each way that topicfs offers, beside plain files of the same bytes, in one run."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from bench_mount import mount
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from report import Row, seconds, show
from workplace import folder

from engine import Store
from engine.spark import register

RECORDS = 10_000_000
PER_SEGMENT = 1_000_000
ROUNDS = 3
JSONL = "offset LONG, timestamp LONG, key STRING, value STRING"


def run() -> None:
    with folder() as place:
        show("Spark: sum of the values' lengths over 10 M records of 100 bytes", scans(place))


def session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "3g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.python.filterPushdown.enabled": "true",
        # As README advises.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.driver.extraJavaOptions": (
            "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
        ),
    }
    made = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    register(made)
    return made


def fill(backing: Path) -> None:
    """The log, sealed, of values that no codec makes much smaller."""
    random = np.random.default_rng(1)
    with Store.open(backing) as store:
        store.create_topic("bench", overrides={"parquet.enable": "true", "segment.bytes": str(1 << 30)})
        partition = store.partition("bench-0")
        for _ in range(RECORDS // PER_SEGMENT):
            for _ in range(PER_SEGMENT // 10_000):
                lines = random.integers(33, 127, (10_000, 100), np.uint8)
                lines[:, -1] = ord("\n")
                partition.append_lines(lines.reshape(-1))
            partition.roll()


def scans(place: Path) -> list[Row]:
    fill(place / "backing")
    with mount(place / "backing", place / "mnt") as root:
        table = root / "topics/bench/table"
        while len(list(table.glob("*/*.parquet"))) < RECORDS // PER_SEGMENT:
            time.sleep(0.5)
        plain_text, plain_parquet = place / "text", place / "parquet"
        copy(root / "bench-0/sealed/txt", plain_text)
        copy(table / "partition=0", plain_parquet)
        spark = session()
        source = (
            spark.read.format("topicfs")
            .option("path", str(root))
            .option("subscribe", "bench")
            .option("pushFilters", "true")
            .load
        )
        value_only = (
            spark.read.format("topicfs")
            .schema("value binary")
            .option("path", str(root))
            .option("subscribe", "bench")
            .load
        )
        length = f.sum(f.length("value"))
        ways: dict[str, Callable[[], DataFrame]] = {
            "plain text": lambda: spark.read.text(str(plain_text)).agg(length),
            "plain parquet": lambda: spark.read.parquet(str(plain_parquet)).agg(length),
            "sealed/txt": lambda: spark.read.text(str(root / "bench-0/sealed/txt")).agg(length),
            "sealed/jsonl": lambda: (
                spark.read.schema(JSONL).json(str(root / "bench-0/sealed/jsonl")).agg(length)
            ),
            "table": lambda: spark.read.parquet(str(table)).agg(length),
            "data source": lambda: source().agg(length),
            # Parquet leaves out columns by itself; a Python data source is told by the schema.
            "data source, value only": lambda: value_only().agg(length),
            "1 % by offset": lambda: (
                source()
                .where((f.col("offset") >= RECORDS // 2) & (f.col("offset") < RECORDS // 2 + RECORDS // 100))
                .agg(length)
            ),
            "1 % of the table": lambda: (
                spark.read.parquet(str(table))
                .where((f.col("offset") >= RECORDS // 2) & (f.col("offset") < RECORDS // 2 + RECORDS // 100))
                .agg(length)
            ),
        }
        took = {name: [] for name in ways}  # type: dict[str, list[float]]
        for _ in range(ROUNDS + 1):
            for name, way in ways.items():
                took[name].append(seconds(lambda way=way: way().collect()))
        spark.stop()
    median = {name: statistics.median(times[1:]) for name, times in took.items()}
    return [
        row("sealed/txt", median, "plain text", 0.8),
        row("sealed/jsonl", median, "plain text", None),
        row("table", median, "plain parquet", None),
        row("data source", median, "plain parquet", 0.8),
        row("data source, value only", median, "plain parquet", 0.8),
        part("1 % by offset", median, "data source"),
        part("1 % of the table", median, "table"),
    ]


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


if __name__ == "__main__":
    run()
