"""A small job that imports, reads, streams and writes. The matrix runs it in each environment.

python matrix_job.py PLACE
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from topicfs import Store
from topicfs.spark import read, register

COUNT = 30


def main(place: Path) -> None:
    """All of it; an assertion fails where something is lost."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - it is imported first that is tried

    os.environ["PYSPARK_PYTHON"] = sys.executable
    backing, lines = place / "backing", place / "lines.csv"
    lines.write_text("key,value\n" + "".join(f"k{n % 3},v{n}\n" for n in range(COUNT)))
    command = [
        str(Path(sys.executable).with_name("topicfs")),
        "spark",
        "import",
        str(backing),
        "t",
        str(lines),
    ]
    with Store.open(backing, create=True) as store:
        store.create_topic("u", 2)
    subprocess.run(command, check=True, timeout=600)
    settings: dict[str, bool | float | int | str] = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.warehouse.dir": str(place / "warehouse"),
    }
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    register(spark)
    assert read(spark, backing, "t", start=5).count() == COUNT - 5
    rows = spark.read.format("topicfs").options(path=str(backing), subscribe="t").load()
    assert len(rows.toPandas()) == COUNT
    rows.select("key", "value").write.format("topicfs").options(path=str(backing), topic="u").mode(
        "append"
    ).save()
    stream = spark.readStream.format("topicfs").options(
        path=str(backing), subscribe="t", maxOffsetsPerTrigger="7"
    )
    sink = (
        stream.option("startingOffsets", "earliest")
        .load()
        .select("key", "value")
        .writeStream.format("topicfs")
    )
    query = sink.options(path=str(backing), topic="u", checkpointLocation=str(place / "checkpoint"))
    assert query.trigger(availableNow=True).start().awaitTermination(300)
    spark.stop()
    with Store.open(backing) as store:
        written = [record.value for number in (0, 1) for record in store.partition("u", number).records()]
    assert sorted(written) == sorted(b"v%d" % n for n in range(COUNT) for _ in range(2)), written


if __name__ == "__main__":
    main(Path(sys.argv[1]))
