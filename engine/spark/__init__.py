"""Spark: a data source that reads segment files itself, and jobs for logs that are too large for one machine.

    >>> from topicfs.spark import register
    >>> register(spark)
    >>> spark.read.format("topicfs").option("path", "/data").option("topic", "orders").load()

Filters on topic, partition, offset and timestamp skip what they do not touch where Spark hands them over, by
`spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")`, and the option `pushFilters` is true: the DataFrame
must serve one query then, see `filters`. A schema of fewer columns, as `.schema("value binary")`, spares making the
others.

The only room that imports pyspark. What plans a query imports neither numpy nor the kernels: loading them takes longer
than finding one record in a hundred does. They are loaded by the tasks, once in each worker.

place      a backing directory, or a mount of one         options  what a query asks for
files      a partition's directory, read without a lock   ranges   which offsets a task reads
bounds     where a partition begins and ends              scan     a task's records, as Arrow batches
source     the data source; reader, stream, writer: its parts
jobs       import, compact, verify, export; `topicfs spark` runs them
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make the format `topicfs` known to a session."""
    from topicfs.engine.spark.source import TopicSource  # noqa: PLC0415 - tasks import this package and need no session

    spark.dataSource.register(TopicSource)
