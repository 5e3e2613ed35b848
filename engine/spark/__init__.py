"""A Spark data source that reads segment files itself, and Spark jobs for logs that are too large for one machine.

    >>> from topicfs.spark import read, register
    >>> read(spark, "/data", "orders", start="2026-05-01", end="2026-05-02").count()
    >>> count(spark, "/data", "orders")
    {0: 1200, 1: 1100}
    >>> register(spark)
    >>> spark.read.format("topicfs").option("path", "/data").option("topic", "orders").load()

A read is bounded when the DataFrame is made, and never by Spark's filters. Spark 4.3 shares one reader among all uses
of a DataFrame, so filters that it pushes into the reader for one use would apply to the others too. A schema of fewer
columns, as `.schema("value binary")`, saves the work for the others.

Only this package imports pyspark. Where a mount tells the ends of partitions, the code that plans a query imports
neither numpy nor the kernels: loading them takes longer than finding one record in a hundred. The tasks load them, once
in each worker, and so does a plan that has to look for the ends itself.

options   the options of a query                  tables  a view for each topic
versions  the versions of Spark that will do      scan    a task's records, as Arrow batches
ranges    offsets that each task reads; `topicfs.engine.unlocked` finds and reads them
source    the data source; its parts are reader, stream and writer
behind    how far a stream is behind              acknowledge  what a worker does when a reader arrives
jobs      import, compact, verify, export; `topicfs spark` runs them
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING
from weakref import WeakSet

from topicfs.engine.spark.versions import refuse_older
from topicfs.engine.unlocked.limits import Limit, ms_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

_registered: WeakSet[SparkSession] = WeakSet()


def register(spark: SparkSession) -> None:
    """Register the format `topicfs` in a session. ImportError if this pyspark is too old for it."""
    refuse_older()
    from topicfs.engine.spark.source import TopicSource  # noqa: PLC0415 - tasks import this package and need no session

    spark.dataSource.register(TopicSource)
    _registered.add(spark)


def read(
    spark: SparkSession, path: str | os.PathLike[str], topic: str, start: Limit = None, end: Limit = None
) -> DataFrame:
    """Return the committed records of a topic, from `start` up to but not including `end`.

    Each of the two is an offset for all partitions, a mapping from every partition to its offset, or a time: a datetime
    with a zone, or ISO 8601 text such as "2026-05-01" or "2026-05-02T06:30+02:00", which is UTC if it names no zone.
    None means that there is no bound. A time selects by the records' own timestamps, wherever they are in the log. Of
    the log, what is surely too early or too late is not read. `path` is a mount or a backing directory."""
    return _reader(spark, path, topic, start, end).load()


def count(
    spark: SparkSession, path: str | os.PathLike[str], topic: str, start: Limit = None, end: Limit = None
) -> dict[int, int]:
    """Return how many records `read` gives of each partition. Partitions of which it reads nothing are left out.

    The headers of batches tell it, so records are read only at the bounds. A time bounds record by record: with one,
    the part of the log that may hold such records is read."""
    counts: dict[int, int] = {}
    counted = _reader(spark, path, topic, start, end).schema("partition int, records long").load()
    for number, records in sorted(counted.collect()):
        counts[number] = counts.get(number, 0) + records
    return counts


def _reader(
    spark: SparkSession, path: str | os.PathLike[str], topic: str, start: Limit, end: Limit
) -> DataFrameReader:
    if spark not in _registered:  # Spark warns when a format is registered again
        register(spark)
    bounds = {
        **_option(topic, start, "startingOffsets", "sinceTimestamp"),
        **_option(topic, end, "endingOffsets", "beforeTimestamp"),
    }
    options = {"path": os.fspath(path), "topic": topic, **bounds}
    return spark.read.format("topicfs").options(**options)


def tables(spark: SparkSession, path: str | os.PathLike[str]) -> list[str]:
    """Make each topic a table of SQL, under the topic's name, and return these names: `SELECT … FROM orders`.

    They are temporary views of this session, and each query looks at the log anew. Topics that are made later need
    another call. `path` is a mount or a backing directory. For each topic a table `topicfs_<topic>`, which has no
    records itself, is added to the session's database."""
    from topicfs.engine.spark.tables import tables as made  # noqa: PLC0415 - tasks import this package

    if spark not in _registered:
        register(spark)
    return made(spark, path)


def _option(topic: str, bound: Limit, by_offset: str, by_time: str) -> dict[str, str]:
    """Return the data source's option that a bound means; none for no bound."""
    match bound:
        case None:
            return {}
        case int():
            return {by_offset: str(bound)}
        case Mapping():
            return {by_offset: json.dumps({topic: {str(number): at for number, at in bound.items()}})}
        case str() | datetime():
            return {by_time: str(ms_of(bound))}
