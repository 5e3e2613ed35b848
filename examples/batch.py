"""A batch job over a mounted topic: clicks an hour, and the pages that are looked at most, with a plot.

    python examples/batch.py                         on a mount and data of its own
    python examples/batch.py --mount MOUNT           on yours, the topic `clicks`

It reads `MOUNT/clicks-*/segments/*.jsonl` as Spark reads any JSON lines: nothing is installed in Spark. That is the log
as it is now, with the segment that still grows; a stream reads `sealed/jsonl`, where a file is final once it is listed.
"""

from __future__ import annotations

from datetime import timedelta

import clicks
import workplace
from pyspark.sql import functions as f

RECORD = "partition INT, offset LONG, timestamp LONG, key STRING, value STRING"
CLICK = "page STRING, ms LONG, status INT"


def main() -> None:
    given = workplace.arguments(__doc__.partition("\n")[0])
    with workplace.mounted(given.mount, "num.partitions=2") as mount:
        if not (mount / "topics/clicks").exists():
            topic = workplace.topic(mount, "clicks", segment_bytes=16 << 20)
            clicks.write(topic / "in.jsonl", given.events)
        session = workplace.spark("hourly clicks")
        records = session.read.schema(RECORD).json(f"{mount}/clicks-*/segments/*.jsonl")
        seen = records.select(
            "key",
            f.timestamp_millis("timestamp").alias("time"),
            f.from_json("value", CLICK).alias("click"),
        ).cache()
        hourly = seen.groupBy(f.date_trunc("hour", "time").alias("hour")).count().orderBy("hour").collect()
        pages = seen.groupBy("click.page").count().orderBy(f.desc("count")).limit(10).collect()
        users = seen.groupBy("key").count().orderBy(f.desc("count")).limit(5).collect()
        session.stop()
    print(f"{sum(row['count'] for row in hourly):,} clicks")
    for title, rows in (("pages", pages), ("users", users)):
        print(f"\nmost {title}")
        for row in rows:
            print(f"  {row['count']:>9,}  {row[0]}")
    plot = given.output / "clicks-an-hour.png"
    draw([row["hour"] for row in hourly], [row["count"] for row in hourly], plot)
    print(f"\nplot: {plot}")


def draw(hours: list[object], counts: list[int], path: object) -> None:
    """Draw a bar for each hour of each day."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.dates import ConciseDateFormatter

    figure, axes = pyplot.subplots(figsize=(9, 3.5), layout="constrained")
    axes.bar(hours, counts, width=timedelta(minutes=50), align="edge")  # type: ignore[arg-type]
    axes.xaxis.set_major_formatter(ConciseDateFormatter(axes.xaxis.get_major_locator()))
    axes.set(xlabel="hour (UTC)", ylabel="clicks", title="Clicks an hour")
    figure.savefig(path)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
