"""Batch jobs of Spark's Kafka source, each run with `kafka` and with `topicfs` on one broker's log.

The table says of each job what changes with the format's name, as `drop_in` has it. The jobs are those of Spark's guide
on Kafka, one by one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pytest
from drop_in import SAME, Verdict, better, refused
from kafka_beside import IMPATIENT, KafkaBeside, at, records
from kafka_clients import create_topics, produce
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

Then = Callable[[DataFrame, Callable[..., DataFrame]], DataFrame]
"""What a job does with the frame that it reads, and with others that it reads."""


@dataclass(frozen=True)
class Job:
    """A job of the table.

    options  of the source
    rows     how many rows topicfs gives; None where it refuses
    verdict  what changes, and why or in what words
    then     what is done with the frame
    """

    options: dict[str, Any]
    rows: int | None
    verdict: Verdict = SAME
    then: Then = lambda frame, _: frame


def job(rows: int | None, verdict: Verdict = SAME, then: Then | None = None, **options: Any) -> Job:
    """A job on the topic orders, unless another choice is made. JSON is written as Python has it."""
    if not {"subscribe", "subscribePattern", "assign"} & options.keys():
        options["subscribe"] = "orders"
    given = {name: json.dumps(value) if isinstance(value, dict) else value for name, value in options.items()}
    return Job(given, rows, verdict, *([] if then is None else [then]))


COMMITTED: Final = {"kafka.isolation.level": "read_committed"}
UNCOMMITTED: Final = {"kafka.isolation.level": "read_uncommitted"}


def orders(*values: Any) -> dict[str, dict[str, Any]]:
    """Something for each partition of orders."""
    return {"orders": {str(number): value for number, value in enumerate(values)}}


def joined(frame: DataFrame, read: Callable[..., DataFrame]) -> DataFrame:
    other = read(subscribe="deleted").select("key", f.col("value").alias("other"))
    return frame.join(other, "key")


def union_of_filters(frame: DataFrame, _: Callable[..., DataFrame]) -> DataFrame:
    return frame.where("offset < 2").union(frame.where("partition = 0 and offset >= 18"))


def union_of_sources(frame: DataFrame, read: Callable[..., DataFrame]) -> DataFrame:
    return frame.union(read(subscribe="codecs")).select("topic", "value")


JOBS: Final = {
    # -- which topics -----------------------------------------------------------------------------------
    "subscribe to a topic": job(35),
    "subscribe to several": job(50, subscribe="orders,deleted"),
    "subscribe with spaces": job(50, subscribe=" orders , deleted "),
    "subscribe to a topic twice": job(35, subscribe="orders,orders"),
    "subscribe to none": job(None, subscribe=""),
    "subscribe to a topic that is not there": job(None, subscribe="nowhere"),
    "subscribe to one that is there and one that is not": job(None, subscribe="orders,nowhere"),
    "subscribe to an internal topic": job(
        1, better("a topic that is named is read, not passed over"), subscribe="__consumer_offsets"
    ),
    "subscribePattern": job(37, subscribePattern="orders.*"),
    "subscribePattern is found anywhere in a name": job(37, subscribePattern="ders"),
    "subscribePattern of a whole name": job(35, subscribePattern="^orders$"),
    "subscribePattern with alternatives": job(16, subscribePattern="orders_eu|deleted"),
    "subscribePattern without internal topics": job(15, subscribePattern="^__|^deleted$"),
    "subscribePattern that matches nothing": job(0, subscribePattern="nothing"),
    "subscribePattern in Java's own syntax": job(
        None, refused("what Java and Python read alike"), subscribePattern="[a-z&&[o]]rders"
    ),
    "subscribePattern with a class of POSIX": job(
        None, refused("option subscribePattern"), subscribePattern="\\p{Lower}rders"
    ),
    "assign": job(25, assign={"orders": [0, 2]}),
    "assign of two topics": job(25, assign={"orders": [1], "deleted": [0]}),
    "assign with a partition that is not there": job(
        None, refused("expected a partition orders-7"), assign={"orders": [0, 7]}
    ),
    "assign that is no JSON": job(None, assign="orders-0"),
    "two ways at once": job(None, subscribe="orders", assign={"orders": [0]}),
    # -- offsets ----------------------------------------------------------------------------------------
    "from earliest to latest": job(35, startingOffsets="earliest", endingOffsets="latest"),
    "from latest": job(None, startingOffsets="latest"),
    "to earliest": job(None, endingOffsets="earliest"),
    "words in capitals": job(35, startingOffsets="EARLIEST"),
    "offsets by partition": job(15 + 5 + 4, startingOffsets=orders(5, 5, 1)),
    "earliest by partition": job(20 + 5 + 5, startingOffsets=orders(-2, 5, -2)),
    "ends by partition": job(7 + 10 + 0, endingOffsets=orders(7, -1, 0)),
    "starts and ends": job(2 + 5 + 1, startingOffsets=orders(5, 5, -2), endingOffsets=orders(7, -1, 1)),
    "a start that is the end": job(15, startingOffsets=orders(20, -2, -2)),
    "latest by partition as a start": job(None, startingOffsets=orders(-1, 0, 0)),
    "earliest by partition as an end": job(None, endingOffsets=orders(-2, 0, 0)),
    "offsets of some partitions": job(None, startingOffsets={"orders": {"0": 5}}),
    "offsets of a partition that is not there": job(None, startingOffsets=orders(0, 0, 0, 0)),
    "an offset below -2": job(None, startingOffsets=orders(-3, 0, 0)),
    "offsets with assign": job(3, assign={"orders": [0]}, startingOffsets={"orders": {"0": 17}}),
    "a start behind the end of the log": job(None, startingOffsets=orders(21, 0, 0)),
    "an end behind the end of the log": job(None, endingOffsets=orders(21, 0, 0)),
    "the same without failOnDataLoss": job(
        35, endingOffsets=orders(21, -1, -1), failOnDataLoss="false", **{"kafkaConsumer.pollTimeoutMs": 4000}
    ),
    "a start that was deleted": job(None, subscribe="deleted", startingOffsets={"deleted": {"0": 2}}),
    "the same, without failOnDataLoss": job(
        15, subscribe="deleted", startingOffsets={"deleted": {"0": 2}}, failOnDataLoss="false"
    ),
    "an end before the start": job(None, startingOffsets=orders(5, 5, 1), endingOffsets=orders(2, 5, 1)),
    "offsets that are no JSON": job(None, startingOffsets="{orders"),
    "one number": job(20, better("Kafka's source has no such form"), startingOffsets="5"),
    # -- times ------------------------------------------------------------------------------------------
    "startingTimestamp": job(17 + 7 + 2, startingTimestamp=at(3)),
    "startingTimestamp between two": job(17 + 7 + 2, startingTimestamp=at(2.5)),
    "startingTimestamp behind all of some": job(None, startingTimestamp=at(7)),
    "the same with the strategy latest": job(
        13 + 3, startingTimestamp=at(7), startingOffsetsByTimestampStrategy="latest"
    ),
    "endingTimestamp": job(3 + 3 + 3, endingTimestamp=at(3)),
    "endingTimestamp behind all of some": job(7 + 7 + 5, endingTimestamp=at(7)),
    "both timestamps": job(5 + 5 + 3, startingTimestamp=at(2), endingTimestamp=at(7)),
    "startingOffsetsByTimestamp": job(
        17 + 9 + 3, startingOffsetsByTimestamp=orders(*(int(at(n)) for n in (3, 1, 2)))
    ),
    "endingOffsetsByTimestamp": job(
        3 + 1 + 2, endingOffsetsByTimestamp=orders(*(int(at(n)) for n in (3, 1, 2)))
    ),
    "by timestamp, of some partitions": job(None, startingOffsetsByTimestamp={"orders": {"0": int(at(3))}}),
    "by timestamp, behind all": job(
        None, startingOffsetsByTimestamp=orders(*(int(at(90)) for _ in range(3)))
    ),
    "timestamps before offsets": job(26, startingTimestamp=at(3), startingOffsets=orders(19, 9, 4)),
    "a time for all before times by partition": job(
        26, startingTimestamp=at(3), startingOffsetsByTimestamp=orders(*(int(at(1)) for _ in range(3)))
    ),
    "times that the broker gave": job(3, subscribe="appended", startingTimestamp=at(0)),
    "a time in a compacted topic": job(6, subscribe="compacted", startingTimestamp=at(0.095)),
    "a time that is no number": job(None, startingTimestamp="yesterday"),
    "a strategy that is none": job(
        None, startingTimestamp=at(3), startingOffsetsByTimestampStrategy="nearest"
    ),
    # -- what is read -----------------------------------------------------------------------------------
    "headers": job(35, includeHeaders="true"),
    "without headers": job(35, includeHeaders="false"),
    "a compacted topic": job(11, subscribe="compacted"),
    "a compacted topic from within": job(3, subscribe="compacted", startingOffsets={"compacted": {"0": 98}}),
    "each compression": job(50, subscribe="codecs"),
    "an empty topic": job(0, subscribe="empty"),
    "transactions, committed": job(6, subscribe="transactions", **COMMITTED),
    "transactions, as Kafka's source reads them unless it is told otherwise": job(
        6, better("records of aborted transactions are not read"), subscribe="transactions"
    ),
    "transactions, uncommitted": job(
        None, refused("only committed records"), subscribe="transactions", **UNCOMMITTED
    ),
    "a transaction that is open, committed": job(3, subscribe="open", **COMMITTED),
    "a transaction that is open": job(3, better("what is not decided is not read"), subscribe="open"),
    # -- how it is read ---------------------------------------------------------------------------------
    "minPartitions": job(35, minPartitions=7),
    "minPartitions, counted": job(7, subscribe="deleted", minPartitions=7, then=lambda e, _: tasks(e)),
    "maxRecordsPerPartition": job(35, maxRecordsPerPartition=4),
    "maxRecordsPerPartition, counted": job(
        4,
        better("Kafka's source reads all in one task"),
        subscribe="deleted",
        maxRecordsPerPartition=4,
        then=lambda e, _: tasks(e),
    ),
    "minPartitions of none": job(None, minPartitions=0),
    "options of consumers": job(
        35, **{"kafkaConsumer.pollTimeoutMs": 5000, "groupIdPrefix": "p", "kafka.max.poll.records": 2}
    ),
    "a group of consumers": job(35, **{"kafka.group.id": "mine"}),
    "an option of streams": job(None, refused("expected in streams only"), maxOffsetsPerTrigger=5),
    "a misspelt option": job(None, refused("option startingoffset"), startingOffset="earliest"),
    **{
        f"kafka.{name}": job(None, **{f"kafka.{name}": "x"})
        for name in (
            "auto.offset.reset",
            "enable.auto.commit",
            "interceptor.classes",
            "key.deserializer",
            "value.deserializer",
        )
    },
    "failOnDataLoss that is neither": job(None, failOnDataLoss="perhaps"),
    # -- what is done with it ---------------------------------------------------------------------------
    "columns": job(35, then=lambda e, _: e.select("topic", "offset")),
    "no column": job(1, then=lambda e, _: e.groupBy().count()),
    "casts": job(
        35,
        then=lambda e, _: e.selectExpr(
            "CAST(key AS STRING)", "CAST(value AS STRING)", "CAST(timestamp AS LONG)"
        ),
    ),
    "a filter": job(3, then=lambda e, _: e.where("partition = 0 and offset >= 17")),
    "a filter on times": job(23, then=lambda e, _: e.where(f"timestamp >= timestamp_millis({at(4)})")),
    "a filter on nulls": job(1, then=lambda e, _: e.where("value IS NULL")),
    "an aggregate": job(3, then=lambda e, _: e.groupBy("partition").agg(f.count("value"), f.max("offset"))),
    "an aggregate by windows": job(
        4, then=lambda e, _: e.groupBy(f.window("timestamp", "5 seconds")).count()
    ),
    "a join": job(64, then=joined),
    "filters on one frame, together": job(8, then=union_of_filters),
    "two sources, together": job(85, then=union_of_sources),
    "a limit": job(1, then=lambda e, _: e.limit(3).groupBy().count()),
    "headers by their names": job(
        2,
        includeHeaders="true",
        then=lambda e, _: e.where("headers IS NOT NULL").selectExpr(
            "map_from_entries(filter(headers, h -> h.key <> 'h'))"
        ),
    ),
}


@dataclass(frozen=True)
class Outcome:
    """What a query gives, and its schema."""

    rows: list[str]
    schema: str

    def __len__(self) -> int:
        return len(self.rows)


def tasks(frame: DataFrame) -> DataFrame:
    """The tasks of a query that read something."""
    return frame.groupBy(f.spark_partition_id()).count().select(f.lit(1))


@pytest.mark.parametrize("name", JOBS)
def test_a_job_of_kafkas_source_does_what_the_table_says(kafka_beside: KafkaBeside, name: str) -> None:
    one = JOBS[name]

    def run(source: str) -> Outcome:
        def read(**given: Any) -> DataFrame:
            return kafka_beside.read(source, **(IMPATIENT if one.rows is None else {}), **given)

        frame = one.then(read(**one.options), read)
        return Outcome(sorted(map(repr, frame.collect())), frame.schema.json())

    one.verdict.check(run, one.rows)


def test_a_frame_that_is_used_again_looks_again_with_kafka_only(kafka_beside: KafkaBeside) -> None:
    """Spark plans a source in Python once."""
    create_topics(kafka_beside.broker.bootstrap, {"growing": {}})
    frames = {source: kafka_beside.read(source, subscribe="growing") for source in ("kafka", "topicfs")}
    assert [frame.count() for frame in frames.values()] == [0, 0]
    produce(kafka_beside.broker.bootstrap, "growing", records(1))
    assert [frame.count() for frame in frames.values()] == [1, 0]
    assert kafka_beside.read("topicfs", subscribe="growing").count() == 1
