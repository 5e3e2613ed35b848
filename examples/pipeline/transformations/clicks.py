"""Tables that Spark keeps up to date: it finds out by itself in which order, and from where it has to go on."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

MOUNT = os.environ["TOPICFS_MOUNT"]
spark = SparkSession.active()


@dp.table
def clicks() -> DataFrame:
    """Each click of the mounted topic once, as its segment is sealed."""
    record = "partition INT, offset LONG, timestamp LONG, key STRING, value STRING"
    records = spark.readStream.schema(record).json(f"{MOUNT}/clicks-*/sealed/jsonl")
    click = f.from_json("value", "at LONG, page STRING, ms LONG, status INT").alias("click")
    return records.select("partition", "offset", f.col("key").alias("user"), click).select(
        "partition", "offset", "user", "click.*"
    )


@dp.materialized_view
def pages() -> DataFrame:
    """How often each page was looked at, and how long that took."""
    found = spark.table("clicks").groupBy("page")
    return found.agg(f.count("*").alias("views"), f.round(f.avg("ms"), 1).alias("ms"))
