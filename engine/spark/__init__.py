"""A Spark data source that reads segment files itself, and Spark jobs for logs that are too large for one machine.

    >>> from topicfs.spark import register
    >>> register(spark)
    >>> spark.read.format("topicfs").option("path", "/data").option("topic", "orders").load()

Filters on topic, partition, offset and timestamp skip data if Spark pushes them down, by
`spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")`, and the option `pushFilters` is true. The DataFrame
must then serve one query only, see `filters`. A schema of fewer columns, as `.schema("value binary")`, saves the work
for the others.

Only this package imports pyspark. The code that plans a query imports neither numpy nor the kernels: loading them takes
longer than finding one record in a hundred. The tasks load them, once in each worker.

place      a backing directory, or a mount of one         options  the options of a query
files      a partition's directory, read without a lock   ranges   offsets that each task reads
bounds     where a partition begins and ends              scan     a task's records, as Arrow batches
source     the data source; its parts are reader, stream and writer
jobs       import, compact, verify, export; `topicfs spark` runs them
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register the format `topicfs` in a session."""
    from topicfs.engine.spark.source import TopicSource  # noqa: PLC0415 - tasks import this package and need no session

    spark.dataSource.register(TopicSource)
