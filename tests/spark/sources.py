"""A store beside a Spark session: what it holds as the engine reads it, and as the data source does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from partition_opening import NOW, Clock
from pyspark.sql import DataFrame, SparkSession

from topicfs import Record, Store
from topicfs.engine.partition.partition import Partition
from topicfs.engine.spark import register
from topicfs.engine.spark.columns import columns
from topicfs.engine.spark.options import parse
from topicfs.engine.spark.reader import TopicReader

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Row = tuple[Any, ...]


class Logs:
    """A store, its clock, and a session that reads it.

    place  the backing directory
    """

    def __init__(self, spark: SparkSession, place: Path) -> None:
        self.spark = spark
        self.place = place
        self.clock = Clock()
        self.store = Store.open(place, clock=self.clock, create=True)
        register(spark)

    def create(self, topic: str = "t", number: int = 0, **settings: object) -> Partition:
        """A new partition; settings are Kafka's names with underscores, `segment_bytes` as small as one likes."""
        named = {name.replace("_", "."): str(value) for name, value in settings.items()}
        if "segment.bytes" in named:
            named["internal.segment.bytes"] = named.pop("segment.bytes")
        return self.store.create(topic, number, named or None)

    def reopen(self) -> None:
        """Stop cleanly, unless that was done, and open again."""
        self.store.close()
        self.store = Store.open(self.place, clock=self.clock, create=True)

    def options(self, **options: object) -> dict[str, str]:
        """Options of a query of the topic t, unless another choice is made."""
        chosen = {"topic", "subscribe", "subscribePattern", "assign"} & options.keys()
        named: Mapping[str, object] = options if chosen else {"topic": "t", **options}
        return {"path": str(self.place), **{name: str(value) for name, value in named.items()}}

    def read(self, **options: object) -> DataFrame:
        """A batch query."""
        return self.spark.read.format("topicfs").options(**self.options(**options)).load()

    def rows(self, **options: object) -> list[Row]:
        """What a batch query gives, in order of partitions and offsets."""
        return in_order(self.read(**{"includeHeaders": "true", **options}))

    def planned(self, **options: object) -> TopicReader:
        """A query as Spark plans it, in this process: a tenth of the time that Spark takes."""
        return TopicReader(parse(self.options(**options), streaming=False), columns(include_headers=True))

    def found(self, **options: object) -> list[Row]:
        """What such a query gives."""
        reader = self.planned(**options)
        return [
            tuple(_plain(value) for value in row.values())
            for task in reader.partitions()
            for made in reader.read(task)
            for row in made.to_pylist()
        ]

    def held(self, topic: str = "t") -> list[Row]:
        """The same, as the engine reads it."""
        found = []
        for number in self.store.topics()[topic]:
            partition = self.store.partition(topic, number)
            kind = int(partition.settings.message_timestamp_type)
            found += [_row(topic, number, record, kind) for record in partition.records()]
        return found


@contextmanager
def logs(spark: SparkSession, place: Path) -> Iterator[Logs]:
    """A store that is closed at the end."""
    made = Logs(spark, place)
    try:
        yield made
    finally:
        made.store.close()


@contextmanager
def pushing(spark: SparkSession, conf: str) -> Iterator[None]:
    """A session that hands filters to data sources that take them. Ours does not."""
    spark.conf.set(PUSHDOWN, conf)
    try:
        yield
    finally:
        spark.conf.unset(PUSHDOWN)


def _row(topic: str, number: int, record: Record, kind: int) -> Row:
    headers = [(name, value) for name, value in record.headers] or None
    moment = EPOCH + timedelta(milliseconds=record.timestamp or 0)
    return (record.key, record.value, topic, number, record.offset, moment, kind, headers)


def in_order(frame: DataFrame) -> list[Row]:
    """The rows as plain tuples, by partition and offset."""
    plain = [tuple(_plain(value) for value in row) for row in frame.collect()]
    return sorted(plain, key=lambda row: (row[2], row[3], row[4]))


def _plain(value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, list):
        return [
            tuple(_plain(part) for part in (each.values() if isinstance(each, dict) else each))
            for each in value
        ]
    return value


def numbered(partition: Partition, count: int, first: int = 0, step: int = 1) -> None:
    """Records of some 100 bytes, each a batch of its own, a millisecond apart."""
    for number in range(first, first + count):
        partition.append(Record(b"%090d" % number, b"key-%d" % (number % 7), NOW + number * step))
