"""The job of the pipelines' soak: five streaming queries over a mount, which go on from their checkpoints.

    python pipelines_job.py PLACE [last]

    bronze ──▶ silver    clicks, parsed
    silver ──▶ gold      how many there were in each window
    silver ──▶ sessions  how many each user made until a pause
    bronze, silver ──▶ joined    each click that both have
    silver, users ──▶ named      each click with its user's name, which a batch query reads

While the mount has no daemon, queries end with an error that says so, and are started again. What else ends a query
ends the job. The last run processes all that is there, has clicks of a far future close each window and session, and
ends.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from killed_job import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

BRONZE = 2
"""Partitions. Click n is in n % 2, at the offset n // 2: so a writer that was cut off finds its place."""

FIRST_MS = 1_800_000_000_000
STEP_MS = 1000
FAR_MS = FIRST_MS * 2
WINDOW_S, PAUSE_S = 100, 60
LATE = "30 minutes"
"""1800 clicks: partitions are read side by side, and none is so far behind the others."""

A_TIME = 1000
USERS = 12
CLICK = "n LONG, user STRING, at LONG"
AWAY = ("the daemon of this mount has ended", "the mount is going away", "or a mount of topicfs, found")
"""What queries say that end since there is no daemon."""


# -- clicks -------------------------------------------------------------------------------------------


def click(n: int, at_ms: int = 0) -> dict[str, Any]:
    """A click. Three users click by turns, and after 60 clicks three others: each has sessions of 20."""
    return {"n": n, "user": f"u{(n // 60 * 3 + n % 3) % USERS}", "at": at_ms or FIRST_MS + n * STEP_MS}


def lines(clicks: Iterable[dict[str, Any]]) -> bytes:
    """Clicks as lines of jsonl."""
    found = (json.dumps({"key": each["user"], "value": json.dumps(each)}) for each in clicks)
    return "".join(f"{line}\n" for line in found).encode()


def end_offset(mount: Path, topic: str, number: int) -> int:
    """The offset of the next record."""
    return int(json.loads((mount / f"{topic}-{number}" / "status.json").read_bytes())["end_offset"])


# -- queries ------------------------------------------------------------------------------------------


def read(spark: SparkSession, mount: Path, topic: str) -> DataFrame:
    """The clicks of a topic as a stream."""
    rows = spark.readStream.format("topicfs").options(
        path=str(mount), subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=str(A_TIME)
    )
    parsed = rows.load().selectExpr(f"from_json(cast(value as string), '{CLICK}') as click")
    moment = "timestamp_millis(click.at) as at"
    return parsed.selectExpr("click.n", "click.user", moment).withWatermark("at", LATE)


def silver(spark: SparkSession, mount: Path) -> DataFrame:
    rows = read(spark, mount, "bronze")
    return rows.selectExpr("user as key", "to_json(struct(n, user, unix_millis(at) as at)) as value")


def gold(spark: SparkSession, mount: Path) -> DataFrame:
    from pyspark.sql.functions import window  # noqa: PLC0415 - the soak imports this module

    span = window("at", f"{WINDOW_S} seconds").alias("span")
    counted = read(spark, mount, "silver").groupBy(span).count()
    return counted.selectExpr("to_json(struct(unix_millis(span.start) as start, count)) as value")


def sessions(spark: SparkSession, mount: Path) -> DataFrame:
    from pyspark.sql.functions import session_window  # noqa: PLC0415 - see above

    span = session_window("at", f"{PAUSE_S} seconds").alias("span")
    counted = read(spark, mount, "silver").groupBy("user", span).count()
    session = "to_json(struct(user, unix_millis(span.start) as start, count)) as value"
    return counted.selectExpr("user as key", session)


def joined(spark: SparkSession, mount: Path) -> DataFrame:
    left = read(spark, mount, "bronze")
    both = left.join(read(spark, mount, "silver").withColumnRenamed("user", "again"), ["n", "at"])
    return both.selectExpr("user as key", "to_json(struct(n, user, again)) as value")


def named(spark: SparkSession, mount: Path) -> DataFrame:
    users = spark.read.format("topicfs").options(path=str(mount), subscribe="users").load()
    names = users.selectExpr("cast(key as string) as user", "cast(value as string) as name")
    rows = read(spark, mount, "silver").join(names, "user")
    return rows.selectExpr("user as key", "to_json(struct(n, user, name)) as value")


PIPELINES: dict[str, Callable[[SparkSession, Path], DataFrame]] = {
    each.__name__: each for each in (silver, gold, sessions, joined, named)
}
"""Queries by the topics that they write to. `silver` comes first: in the last run others wait for it."""


# -- the job ------------------------------------------------------------------------------------------


def main(place: Path, last: bool) -> None:
    """Keep all queries running, or bring them to their end."""
    from topicfs.spark import register  # noqa: PLC0415 - see above

    spark = session(place)
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    running: dict[str, StreamingQuery | None] = dict.fromkeys(PIPELINES)
    while not (last and all(running.values())):
        for name, query in running.items():
            if query is not None and not query.isActive:
                expect_away(name, query.exception())
            if query is None or not query.isActive:
                running[name] = started(spark, place, name)
        (place / "begun").touch()
        time.sleep(0.2)
    queries = [query for query in running.values() if query is not None]
    process_all(queries)
    for number in range(BRONZE):
        far = click(BRONZE * end_offset(place / "mnt", "bronze", number) + number, FAR_MS)
        with (place / "mnt" / f"bronze-{number}" / "log.jsonl").open("ab") as log:
            log.write(lines([far]))
    process_all(queries)
    for query in queries:
        query.stop()
    spark.stop()


def started(spark: SparkSession, place: Path, name: str) -> StreamingQuery | None:
    """A query that goes on where its checkpoint is; None if there is no daemon."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - see above

    mount = place / "mnt"
    try:
        sink = (
            PIPELINES[name](spark, mount)
            .writeStream.format("topicfs")
            .trigger(processingTime="500 milliseconds")
        )
        sink = sink.options(path=str(mount), topic=name, checkpointLocation=str(place / "checkpoints" / name))
        return sink.start()
    except PySparkException as error:
        expect_away(name, error)
        return None


def expect_away(name: str, error: Exception | None) -> None:
    """Raise what ended a query, unless it says that there is no daemon."""
    assert error is not None, f"{name} was stopped"
    if not any(words in str(error) for words in AWAY):
        raise RuntimeError(f"{name} ended") from error
    sys.stdout.write(f"{name}: no daemon\n")


def process_all(queries: list[StreamingQuery]) -> None:
    """Wait until all that is there now is in the last topic, and watermarks have passed."""
    for query in queries:
        query.processAllAvailable()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] == ["last"])
