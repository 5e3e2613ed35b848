"""Exporting records as Parquet files, for programs that read neither the log nor a mount of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from topicfs.engine.spark import register
from topicfs.engine.unlocked.place import Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BY: Final = ("topic", "partition")


def export(
    spark: SparkSession,
    place: Place,
    topics: str,
    target: str,
    options: Mapping[str, str],
    mode: str = "errorifexists",
) -> None:
    """Write the committed records of topics, separated by commas, to `target`/topic=…/partition=…/. They are sorted
    by offset within each file, and have the columns of the data source. `options` are the data source's."""
    register(spark)
    rows = (
        spark.read.format("topicfs").option("path", str(place.mount or place.backing)).option("topic", topics)
    )
    frame = rows.option("includeHeaders", "true").options(**options).load()
    # A task reads a range of one partition by rising offsets: that is the order in its file.
    frame.write.mode(mode).option("compression", "zstd").partitionBy(*BY).parquet(target)
