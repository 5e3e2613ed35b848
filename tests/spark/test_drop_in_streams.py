"""Streams of Spark's Kafka source and into its sink, each run with `kafka` and with `topicfs` on one broker's log.

The table says of each what changes with the format's name, as `drop_in` has it. Then a checkpoint is handed over from
one source to the other, in both directions, and also where a batch was begun and not ended.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from drop_in import SAME, Verdict, attempted, better, refused
from kafka_beside import IMPATIENT, KafkaBeside, at, records
from kafka_clients import create_topics, produce
from patience import PATIENCE_S
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from topicfs import Store

EARLIEST: Final = {"startingOffsets": "earliest"}
NUMBERS: Final = itertools.count()


@dataclass
class Batches:
    """The rows of a stream, and how many there are in each batch that has some."""

    rows: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, frame: DataFrame, _: int) -> None:
        """Take a batch."""
        found = [repr(row) for row in frame.collect()]
        self.rows = sorted([*self.rows, *found])
        if found:
            self.sizes.append(len(found))


@dataclass(frozen=True)
class Job:
    """A stream of the table; see the tables of batch jobs."""

    options: dict[str, Any]
    rows: int | None
    verdict: Verdict = SAME
    mode: str = "append"
    then: Callable[[DataFrame], DataFrame] = lambda frame: frame


def job(rows: int | None, verdict: Verdict = SAME, **options: Any) -> Job:
    """A stream of the topic orders, unless another choice is made."""
    if not {"subscribe", "subscribePattern", "assign"} & options.keys():
        options["subscribe"] = "orders"
    given = {name: json.dumps(value) if isinstance(value, dict) else value for name, value in options.items()}
    return Job(given, rows, verdict)


def counted(frame: DataFrame) -> DataFrame:
    return frame.groupBy("partition").agg(f.count("*").alias("n"))


JOBS: Final = {
    "from latest, which is the default": job(0),
    "from earliest": job(35, **EARLIEST),
    "offsets by partition": job(1 + 10 + 0, startingOffsets={"orders": {"0": 19, "1": -2, "2": -1}}),
    "startingTimestamp": job(17 + 7 + 2, startingTimestamp=at(3)),
    "an end": job(None, endingOffsets="latest", **EARLIEST),
    "an end by time": job(None, refused("a stream has no end"), endingTimestamp=at(3), **EARLIEST),
    "maxOffsetsPerTrigger": job(35, better("batches are as large as they may be"), maxOffsetsPerTrigger=10, **EARLIEST),
    "minOffsetsPerTrigger": job(35, minOffsetsPerTrigger=1000, maxTriggerDelay="10m", **EARLIEST),
    "both": job(
        35, better("batches are as large as they may be"),
        maxOffsetsPerTrigger=20, minOffsetsPerTrigger=5, **EARLIEST,
    ),
    "a minimum above the maximum": job(None, maxOffsetsPerTrigger=5, minOffsetsPerTrigger=20, **EARLIEST),
    "a pattern": job(37, subscribePattern="^orders.*", **EARLIEST),
    "assign with a partition that is not there": job(20, assign={"orders": [0, 7]}, **EARLIEST),
    "committed records": job(6, subscribe="transactions", **{"kafka.isolation.level": "read_committed"}, **EARLIEST),
    "a start that was deleted": job(None, subscribe="deleted", startingOffsets={"deleted": {"0": 2}}),
    "the same without failOnDataLoss": job(
        15, subscribe="deleted", startingOffsets={"deleted": {"0": 2}}, failOnDataLoss="false"
    ),
    "an aggregate in mode complete": Job({"subscribe": "orders", **EARLIEST}, 3, SAME, "complete", counted),
    "an aggregate in mode update": Job({"subscribe": "orders", **EARLIEST}, 3, SAME, "update", counted),
}  # fmt: skip


@pytest.mark.parametrize("name", JOBS)
def test_a_stream_of_kafkas_source_does_what_the_table_says(
    kafka_beside: KafkaBeside, tmp_path: Path, name: str
) -> None:
    one = JOBS[name]

    def run(source: str) -> Batches:
        found = Batches()
        quick = IMPATIENT if one.rows is None else {}
        frame = one.then(kafka_beside.stream(source, **quick, **one.options))
        sink = frame.writeStream.foreachBatch(found.add).outputMode(one.mode)
        query = sink.option("checkpointLocation", str(tmp_path / source)).trigger(availableNow=True).start()
        assert query.awaitTermination(int(PATIENCE_S))
        return found

    one.verdict.check(run, one.rows)


# -- sinks --------------------------------------------------------------------------------------------

SINKS: Final = {
    "mode append": Job({}, 35, SAME, "append", lambda rows: rows.select("key", "value")),
    "mode update": Job(
        {}, None, refused("does not support Update mode"), "update",
        lambda rows: counted(rows).selectExpr("CAST(n AS STRING) AS value"),
    ),
    "mode complete": Job(
        {}, None, refused("a log can only be appended to"), "complete",
        lambda rows: counted(rows).selectExpr("CAST(n AS STRING) AS value"),
    ),
    "no column of values": Job({}, None, SAME, "append", lambda rows: rows.select("key")),
}  # fmt: skip


@pytest.mark.parametrize("name", SINKS)
def test_a_stream_into_kafkas_sink_does_what_the_table_says(
    kafka_beside: KafkaBeside, tmp_path: Path, name: str
) -> None:
    one, topic = SINKS[name], f"sunk-{next(NUMBERS)}"
    create_topics(kafka_beside.broker.bootstrap, {topic: {}})
    with Store.open(tmp_path / "store", create=True) as store:
        store.create(topic)

    def run(source: str) -> list[str]:
        place = tmp_path / "store" if source == "topicfs" else kafka_beside.root
        rows = one.then(kafka_beside.stream("topicfs", subscribe="orders", **EARLIEST))
        sink = rows.writeStream.format(source).outputMode(one.mode).option("topic", topic)
        sink = (
            sink.option("kafka.bootstrap.servers", kafka_beside.broker.bootstrap)
            if source == "kafka"
            else sink
        )
        sink = sink.option("path", str(place)) if source == "topicfs" else sink
        query = sink.option("checkpointLocation", str(tmp_path / source)).trigger(availableNow=True).start()
        assert query.awaitTermination(int(PATIENCE_S))
        written = kafka_beside.spark.read.format("topicfs").options(path=str(place), subscribe=topic).load()
        return sorted(map(repr, written.select("key", "value").collect()))

    one.verdict.check(run, one.rows)


# -- handing over -------------------------------------------------------------------------------------


class StoppedError(Exception):
    """What ends a query in the middle of a batch."""


@dataclass
class Moving:
    """A query that goes on with one source where another one ended, with one checkpoint.

    kept  the rows of each batch: a batch that comes again has to be the same
    """

    beside: KafkaBeside
    topic: str
    checkpoint: Path
    kept: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    stops_at: int | None = None

    def more(self) -> None:
        """Append ten records to each partition."""
        for partition in (0, 1):
            produce(self.beside.broker.bootstrap, self.topic, records(10), partition=partition)

    def run(self, source: str, stops_at: int | None = None, **options: str) -> None:
        """Read what is there, or only up to the middle of a batch."""
        self.stops_at = stops_at
        given = {"subscribe": self.topic, "maxOffsetsPerTrigger": 8, **EARLIEST, **options}
        sink = self.beside.stream(source, **given).writeStream.foreachBatch(self._keep)
        query = sink.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        if stops_at is None:
            assert query.awaitTermination(int(PATIENCE_S))
        else:
            with pytest.raises(StreamingQueryException, match="in the middle"):
                query.awaitTermination(int(PATIENCE_S))

    def _keep(self, frame: DataFrame, number: int) -> None:
        rows = sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())
        assert self.kept.setdefault(number, rows) == rows
        if number == self.stops_at:
            raise StoppedError("in the middle")

    @property
    def rows(self) -> list[tuple[int, int]]:
        """All of them; each that came twice is twice in it."""
        return sorted(row for rows in self.kept.values() for row in rows)

    def offsets(self) -> dict[str, dict[str, int]]:
        """The last offsets in the checkpoint."""
        last = max((self.checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        found = json.loads(last.read_text().splitlines()[-1])
        assert isinstance(found, dict)
        return found


@pytest.fixture
def moving(kafka_beside: KafkaBeside, tmp_path: Path) -> Moving:
    topic = f"moved-{next(NUMBERS)}"
    create_topics(kafka_beside.broker.bootstrap, {topic: {}}, partitions=2)
    made = Moving(kafka_beside, topic, tmp_path / "checkpoint")
    made.more()
    return made


def all_of(count: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition in (0, 1) for offset in range(count)]


@pytest.mark.parametrize(("one", "other"), [("kafka", "topicfs"), ("topicfs", "kafka")])
def test_a_checkpoint_goes_from_one_source_to_the_other_and_back(
    moving: Moving, one: str, other: str
) -> None:
    """The first batch of a stream, and a later one, are begun by one source and ended by the other."""
    moving.run(one, stops_at=0)
    moving.run(other)
    assert moving.rows == all_of(10)
    moving.more()
    moving.run(one, stops_at=4)
    moving.run(other)
    assert moving.rows == all_of(20)
    moving.more()
    moving.run(one)
    assert moving.rows == all_of(30)
    has_ids = {name.partition("@")[0] for name in moving.offsets() if "@" in name}
    assert has_ids == ({moving.topic} if one == "topicfs" else set())


def test_a_handed_over_stream_still_notices_that_records_are_lost(moving: Moving) -> None:
    """Kafka's offsets have no ids of topics, and after the first batch of topicfs they do."""
    moving.run("kafka")
    moving.more()
    moving.run("topicfs")
    last = max((moving.checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    name = f"{moving.topic}@"
    (known,) = (each for each in moving.offsets() if each.startswith(name))
    last.write_text(last.read_text().replace(known, f"{name}AAAAAAAAAAAAAAAAAAAAAA"))
    (last.parent / f".{last.name}.crc").unlink()
    failure = attempted(lambda source: [moving.run(source)], "topicfs")
    assert "deleted and made again" in str(failure)
    moving.run("kafka")  # which does not know of ids
    assert moving.rows == all_of(20)
