"""Batch jobs of Spark's Kafka sink, each run with `kafka` into a broker and with `topicfs` into a store.

The table says of each job what changes with the format's name, as in test_drop_in_reading.py. What was written is read
from the files of both, in the same way. Kafka's sink gives records its own time, so times are not compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from drop_in import SAME, Verdict, better, refused
from kafka_beside import KafkaBeside
from kafka_clients import create_topics
from pyspark.sql import functions as f

from topicfs import Store

HEADERS: Final = "headers array<struct<key:string,value:binary>>"
Rows = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Job:
    """A job of the table. Topics are called by a letter: `t` and `u` are new ones of two partitions for each job, and
    no other is there.

    schema   columns
    rows     of the frame
    written  records of t and u that topicfs writes; None where it refuses
    verdict  what changes, and why or in what words
    options  of the sink; `topic` is t unless a row or an option says something else
    mode     Spark's; None where the job names none
    times    how often it is run
    """

    schema: str
    rows: Rows
    written: int | None
    verdict: Verdict = SAME
    options: dict[str, str] = field(default_factory=lambda: {"topic": "t"})
    mode: str | None = "append"
    times: int = 1


JOBS: Final = {
    # -- columns ----------------------------------------------------------------------------------------
    "value as text": Job("value string", [("a",), ("ü",)], 2),
    "value as bytes": Job("value binary", [(b"\xff\n",), (b"",)], 2),
    "key and value as text": Job("key string, value string", [(f"k{n}", f"v{n}") for n in range(20)], 20),
    "key and value as bytes": Job("key binary, value binary", [(b"%d" % n, b"v") for n in range(20)], 20),
    "an empty key": Job("key binary, value binary", [(b"", b"v")], 1),
    "a null value": Job("key string, value string", [("k", None)], 1),
    "a null key": Job("key string, value string", [(None, "v")], 1),
    "both null": Job("key string, value string", [(None, None)], 1),
    "a column topic": Job("topic string, value string", [("t", "a"), ("u", "b"), ("t", "c")], 3, options={}),
    "the option topic over the column": Job("topic string, value string", [("u", "a")], 1),
    "a null topic under the option": Job("topic string, value string", [(None, "a")], 1),
    "partition": Job("value string, partition int", [("a", 1), ("b", 0), ("c", 1)], 3),
    "a null partition": Job("key string, value string, partition int", [("k", "a", None)], 1),
    "headers": Job(
        f"key string, value string, {HEADERS}", [("k", "v", [("h", b"x"), ("h", None), ("ü", b"")])], 1
    ),
    "headers that are null or none": Job(f"key string, value string, {HEADERS}", [("k", "v", None), ("k", "w", [])], 2),
    "columns that no record has": Job("value string, colour string, n int", [("a", "red", 1)], 1),
    "the columns of the source": Job(
        f"key binary, value binary, topic string, partition int, offset long, timestampType int, {HEADERS}",
        [(b"k", b"v", "u", 1, 77, 0, None)], 1, options={},
    ),
    "no rows": Job("value string", [], 0),
    "columns in capitals": Job("VALUE string", [("a",)], None),
    # -- what is wrong ----------------------------------------------------------------------------------
    "no topic": Job("value string", [("a",)], None, options={}),
    "a null topic": Job("topic string, value string", [("t", "a"), (None, "b")], None, options={}),
    "a topic that is not there": Job("value string", [("a",)], None, options={"topic": "nowhere"}),
    "no value": Job("key string", [("k",)], None),
    "value as a number": Job("value int", [(1,)], None),
    "key as a number": Job("key int, value string", [(1, "a")], None),
    "topic as a number": Job("topic int, value string", [(1, "a")], None, options={}),
    "topic as bytes": Job("topic binary, value string", [(b"t", "a")], None, options={}),
    "partition as a long": Job("value string, partition long", [("a", 1)], None),
    "partition as text": Job("value string, partition string", [("a", "1")], None),
    "headers as a map": Job("value string, headers map<string,binary>", [("a", {"h": b"x"})], None),
    "headers of text": Job("value string, headers array<struct<key:string,value:string>>", [("a", [("h", "x")])], None),
    "a partition that is not there": Job("value string, partition int", [("a", 9)], None),
    # -- modes and options ------------------------------------------------------------------------------
    "no mode": Job("value string", [("a",)], None, refused("UNSUPPORTED_DATA_SOURCE_SAVE_MODE"), mode=None),
    "mode overwrite": Job("value string", [("a",)], None, mode="overwrite"),
    "mode ignore": Job("value string", [("a",)], None, mode="ignore"),
    "options of producers": Job(
        "value string", [("a",)], 1, options={"topic": "t", "kafka.acks": "all", "kafka.linger.ms": "0"}
    ),
    "includeHeaders": Job("value string", [("a",)], 1, options={"topic": "t", "includeHeaders": "true"}),
    "a serializer": Job("value string", [("a",)], None, options={"topic": "t", "kafka.value.serializer": "x"}),
    "a misspelt option": Job(
        "value string", [("a",)], None, refused("option topics"), options={"topic": "t", "topics": "u"}
    ),
    "a name of the batch": Job(
        "value string", [("a",)], 1, better("the second run adds nothing"),
        options={"topic": "t", "batch": "b"}, times=2,
    ),
    "timestamp as a number": Job(
        "value string, timestamp long", [("a", 1)], None, refused("column timestamp")
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sinks:
    """A broker and a store, and topics in both for each job."""

    beside: KafkaBeside
    place: Path

    def write(self, source: str, one: Job, names: dict[str, str]) -> None:
        """Run a job."""
        frame = self.beside.spark.createDataFrame(one.rows, one.schema).coalesce(1)
        options = one.options | ({"kafka.max.block.ms": "1000"} if one.written is None else {})
        if "topic" in options:
            options["topic"] = names.get(options["topic"], options["topic"])
        if "topic string" in one.schema:
            frame = frame.replace(names, subset=["topic"])
        if source == "kafka":
            options["kafka.bootstrap.servers"] = self.beside.broker.bootstrap
        else:
            options["path"] = str(self.place)
        sink = frame.write.format(source).options(**options)
        (sink if one.mode is None else sink.mode(one.mode)).save()

    def written(self, source: str, one: Job, names: dict[str, str]) -> list[str]:
        """What the topics hold then. Which partition takes a record without a key is left to chance."""
        place = self.beside.root if source == "kafka" else self.place
        query = self.beside.spark.read.format("topicfs").option("path", str(place))
        rows = query.option("subscribe", ",".join(names.values())).option("includeHeaders", "true").load()
        if "partition" not in one.schema:
            rows = rows.withColumn("partition", f.expr("if(key is null, null, partition)"))
        return sorted(map(repr, rows.drop("offset", "timestamp").collect()))


def names_of(job: str) -> dict[str, str]:
    """The names of a job's topics, by their letters."""
    return {letter: f"w-{list(JOBS).index(job)}-{letter}" for letter in "tu"}


@pytest.fixture(scope="module")
def sinks(kafka_beside: KafkaBeside, tmp_path_factory: pytest.TempPathFactory) -> Sinks:
    made = Sinks(kafka_beside, tmp_path_factory.mktemp("store"))
    names = [name for job in JOBS for name in names_of(job).values()]
    create_topics(kafka_beside.broker.bootstrap, {name: {} for name in names}, partitions=2)
    with Store.open(made.place, create=True) as store:
        for name in names:
            store.create_topic(name, 2)
    return made


@pytest.mark.parametrize("name", JOBS)
def test_a_job_of_kafkas_sink_does_what_the_table_says(sinks: Sinks, name: str) -> None:
    one, names = JOBS[name], names_of(name)

    def run(source: str) -> list[str]:
        for _ in range(one.times):
            sinks.write(source, one, names)
        return sinks.written(source, one, names)

    one.verdict.check(run, one.written)
