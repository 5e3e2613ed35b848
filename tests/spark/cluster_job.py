"""A job for a cluster: it copies topic t to u, and says what it found and where.

spark-submit cluster_job.py STORE
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from topicfs.spark import read, register


def main(store: str) -> None:
    """All of it."""
    spark = SparkSession.builder.getOrCreate()
    register(spark)
    rows = read(spark, store, "t").select("key", "value").repartition(4)
    rows.write.format("topicfs").options(path=store, topic="u").mode("append").save()
    found = {
        "written": read(spark, store, "u").count(),
        "workers": spark.sparkContext.parallelize(range(8), 8).mapPartitions(here).distinct().collect(),
    }
    spark.stop()
    sys.stdout.write(f"{json.dumps(found)}\n")


def here(_: Iterator[int]) -> Iterator[tuple[str, str, int]]:
    """The Python of a worker, its topicfs, and how many kernels are newer than the unpacked archive."""
    import topicfs  # noqa: PLC0415 - that of the worker

    package = Path(str(topicfs.__file__)).parent
    unpacked = (package.parent).stat().st_ctime
    yield (
        sys.executable,
        str(package),
        sum(each.stat().st_mtime > unpacked for each in package.rglob("*.nbc")),
    )


if __name__ == "__main__":
    main(sys.argv[1])
