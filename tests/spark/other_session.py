"""The data source in a session of another kind, in a process of its own: a process has one kind only.

    python other_session.py connect|executors PLACE

It reads the topic `t` of PLACE/closed, a log that nobody has open, and writes it into `u`, as a batch; and by a stream
what has a key from k3 on of `t` of the mount PLACE/mnt into `u` there. What it has read it prints. With Spark Connect a
declarative pipeline also brings `t` of the mount into `v` there.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from topicfs.engine.spark import read, register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EXECUTORS = 2


def main(kind: str, place: Path) -> None:
    """All of it."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_SUBMIT_OPTS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # quick to start
    spark = connected() if kind == "connect" else with_executors(place)
    register(spark)
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    rows = spark.read.format("topicfs").options(path=str(place / "closed"), topic="t").load()
    late = read(spark, place / "closed", "t", start=5)
    late = late.selectExpr("partition", "offset", "cast(key as string) as key", "value")
    found = [[row.partition, row.offset, row.key, bytes(row.value).decode()] for row in late.collect()]
    write(rows, place / "closed")
    stream(spark, place)
    if kind == "connect":
        pipeline(spark, place)
    workers = 1 if kind == "connect" else count_workers(spark)
    spark.stop()
    sys.stdout.write(json.dumps({"read": sorted(found), "executors": workers}))


def connected() -> SparkSession:
    """A client of a server of its own."""
    from pyspark.sql import SparkSession  # noqa: PLC0415

    return SparkSession.builder.remote("local[1]").getOrCreate()


def with_executors(place: Path) -> SparkSession:
    """A master and two workers, each with an executor: JVMs of their own."""
    from pyspark.sql import SparkSession  # noqa: PLC0415

    settings: dict[str, bool | float | int | str] = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
        "spark.local.dir": str(place / "local"),
        "spark.sql.warehouse.dir": str(place / "warehouse"),
    }
    return SparkSession.builder.master(f"local-cluster[{EXECUTORS},1,512]").config(map=settings).getOrCreate()


def count_workers(spark: SparkSession) -> int:
    """How many executors there are: each has a process from which its workers are forked."""
    return len(set(spark.sparkContext.parallelize(range(8), 8).map(lambda _: os.getppid()).collect()))


def write(rows: DataFrame, path: Path) -> None:
    """A batch with a name, twice."""
    for _ in range(2):
        sink = rows.select("key", "value").write.format("topicfs").option("path", str(path))
        sink.option("topic", "u").option("batch", "once").mode("append").save()


def stream(spark: SparkSession, place: Path) -> None:
    """Through the mount."""
    rows = spark.readStream.format("topicfs").option("path", str(place / "mnt")).option("topic", "t")
    rows = rows.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 30).load()
    sink = rows.where("key >= cast('k3' as binary)").select("key", "value").writeStream.format("topicfs")
    sink = sink.option("path", str(place / "mnt")).option("topic", "u")
    sink = sink.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True)
    assert sink.start().awaitTermination(120)


def pipeline(spark: SparkSession, place: Path) -> None:
    """A run of it, as `spark-pipelines run` does it. That may fail behind a complete run: Spark 4.3's client does not
    know the profiles, empty ones, that it is sent for a data source in Python."""
    from pyspark import pipelines as dp  # noqa: PLC0415
    from pyspark.errors import PySparkValueError  # noqa: PLC0415
    from pyspark.pipelines import graph_element_registry as elements  # noqa: PLC0415
    from pyspark.pipelines import spark_connect_pipeline as running  # noqa: PLC0415
    from pyspark.pipelines.spark_connect_graph_element_registry import (  # noqa: PLC0415
        SparkConnectGraphElementRegistry,
    )

    mount = str(place / "mnt")
    graph = running.create_dataflow_graph(spark, default_catalog=None, default_database=None, sql_conf={})
    with elements.graph_element_registration_context(SparkConnectGraphElementRegistry(spark, graph)):
        dp.create_sink("out", "topicfs", {"path": mount, "topic": "v"})

        @dp.append_flow(target="out")
        def copied() -> DataFrame:
            rows = spark.readStream.format("topicfs").option("path", mount).option("topic", "t")
            return rows.option("startingOffsets", "earliest").load().select("key", "value")

    storage = (place / "storage").as_uri()
    nothing: list[str] = []
    events = running.start_run(
        spark,
        graph,
        full_refresh=nothing,
        full_refresh_all=False,
        refresh=nothing,
        dry=False,
        storage=storage,
    )
    said: list[object] = []
    try:
        said.extend(events)
    except PySparkValueError as error:
        if error.getCondition() != "UNKNOWN_RESPONSE":
            raise
    assert "Run is COMPLETED" in str(said), said


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
