"""One of Spark's ways to a log: `python spark_query.py WAY SOURCE ROUNDS` prints a line of JSON for each round."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from bench_spark import session
from contest import cpu_of, memory_of, tree
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

_CONNECTOR = Path(__file__).resolve().parents[3] / ".tools" / "spark-kafka"


def frame(spark: SparkSession, way: str, source: str) -> DataFrame:
    match way:
        case "kafka":
            options = {"kafka.bootstrap.servers": source, "subscribe": "bench", "startingOffsets": "earliest"}
            return spark.read.format("kafka").options(**options).load()
        case "data source":
            return spark.read.format("topicfs").options(path=source, subscribe="bench").load()
        case "sealed/txt":
            return spark.read.text(f"{source}/bench-0/segments/*.txt")
        case _:
            return spark.read.parquet(f"{source}/topics/bench/table")


def main(way: str, source: str, rounds: int) -> None:
    jars = [str(jar) for jar in _CONNECTOR.glob("*.jar")] if way == "kafka" else []
    spark = session(jars)
    for number in range(rounds + 1):
        processes = tree(os.getpid())
        start, cpu = time.perf_counter(), sum(map(cpu_of, processes))
        frame(spark, way, source).agg(f.sum(f.length("value"))).collect()
        took = time.perf_counter() - start
        processes = tree(os.getpid())
        used = sum(map(cpu_of, processes)) - cpu
        if number:
            memory = sum(map(memory_of, processes))
            print(json.dumps({"seconds": took, "cpu_s": used, "memory_mb": memory}), flush=True)
    spark.stop()


main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
