"""A broker on loopback, and both data sources on its log: Spark's own through the broker, ours from its files.

Its topics hold what logs can hold. Times are seconds from BASE on, which is long ago: nothing depends on the day.

    orders          three partitions with 20, 10 and 5 records, of the times 0–19, 0–9 and 0–4 s; in the second one
                    keys, values and headers that are null or empty
    orders.archive, orders_eu      one record each, for patterns
    deleted         records from offset 5 on
    compacted       the last values of ten keys, most of its offsets are gone
    codecs          a batch in each compression
    appended        with the broker's own times
    transactions    committed and aborted ones
    open            a transaction that is not decided, and records behind it
    empty           nothing
    __consumer_offsets, __transaction_state    Kafka's own
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from kafka_broker import Broker
from kafka_clients import consume, create_topics, delete_records, produce, transact
from patience import PATIENCE_S
from pyspark.sql import DataFrame, SparkSession
from sources import in_order

from topicfs import Record
from topicfs.engine.spark import register

BASE: Final = 1_700_000_000_000
CLIENT: Final = {"kafka.fetch.max.wait.ms": "5"}
IMPATIENT: Final = {
    "kafka.default.api.timeout.ms": "2000",
    "kafka.request.timeout.ms": "1000",
    "kafka.max.block.ms": "1000",
    "kafkaConsumer.pollTimeoutMs": "1500",
    "fetchOffset.numRetries": "1",
    "fetchOffset.retryIntervalMs": "10",
}
"""For what Kafka is to refuse: its clients wait as long for what there is not. Others get the time that they need."""
BROKER: Final = {
    # What is to happen at some time happens at once.
    "log.flush.start.offset.checkpoint.interval.ms": "50",
    "log.initial.task.delay.ms": "0",
    "log.cleaner.backoff.ms": "50",
}
TOPICS: Final[Mapping[str, Mapping[str, str]]] = {
    "orders.archive": {},
    "orders_eu": {},
    "deleted": {},
    "compacted": {"cleanup.policy": "compact", "segment.ms": "50", "min.cleanable.dirty.ratio": "0.01"},
    "codecs": {},
    "appended": {"message.timestamp.type": "LogAppendTime"},
    "transactions": {},
    "open": {},
    "empty": {},
}
CODECS: Final = (None, "gzip", "snappy", "lz4", "zstd")


def at(second: float) -> str:
    """A time as options have it."""
    return str(BASE + round(second * 1000))


def records(count: int, word: str = "v") -> list[Record]:
    """Records a second apart, with seven keys."""
    return [Record(b"%s%d" % (word.encode(), n), b"k%d" % (n % 7), BASE + n * 1000) for n in range(count)]


@dataclass(frozen=True, slots=True)
class KafkaBeside:
    """Both sources.

    root    the directory with the broker's logs/, which is what topicfs reads
    """

    spark: SparkSession
    broker: Broker
    root: Path

    @classmethod
    def start(cls, spark: SparkSession, root: Path) -> Self:
        """Start the broker and fill it."""
        register(spark)
        broker = Broker.start(root / "logs", root / "home", settings=BROKER)
        try:
            fill(broker.bootstrap)
            wait_for_files(root / "logs")
        except BaseException:
            broker.stop(clean=False)
            raise
        return cls(spark, broker, root)

    def options(self, source: str, given: Mapping[str, Any]) -> dict[str, str]:
        """The options of a query, which are the same ones but for the place."""
        place = {"path": str(self.root), "kafka.bootstrap.servers": self.broker.bootstrap}
        if source == "kafka":
            del place["path"]
        return {**CLIENT, **place, **{name: str(value) for name, value in given.items()}}

    def read(self, source: str, **given: Any) -> DataFrame:
        """A batch query."""
        return self.spark.read.format(source).options(**self.options(source, given)).load()

    def stream(self, source: str, **given: Any) -> DataFrame:
        """A streaming query."""
        return self.spark.readStream.format(source).options(**self.options(source, given)).load()

    def rows(self, source: str, **given: Any) -> list[tuple[Any, ...]]:
        """All that a batch query gives, in order of topics, partitions and offsets."""
        return in_order(self.read(source, **given))


def fill(bootstrap: str) -> None:
    """Write what the top of this module lists."""
    create_topics(bootstrap, {"orders": {}}, partitions=3)
    create_topics(bootstrap, TOPICS)
    odd = [
        Record(None, b"tombstone", BASE),
        Record(b"", b"", BASE + 1000),
        Record(b"no key", None, BASE + 2000),
        Record(b"\xff\x00", b"\xfe", BASE + 3000, (("h", b"x"), ("h", None), ("größe", b""))),
        Record(b"", None, BASE + 4000, (("only", b"headers"),)),
    ]
    produce(bootstrap, "orders", records(20))
    produce(bootstrap, "orders", [*odd, *records(10)[5:]], partition=1)
    produce(bootstrap, "orders", records(5), partition=2)
    for topic in ("orders.archive", "orders_eu"):
        produce(bootstrap, topic, records(1, topic))
    produce(bootstrap, "deleted", records(20))
    delete_records(bootstrap, "deleted", 5)
    produce(bootstrap, "compacted", [Record(b"%d" % n, b"k%d" % (n % 10), BASE + n) for n in range(100)])
    time.sleep(0.1)  # segment.ms
    produce(bootstrap, "compacted", [Record(b"last", b"k10", BASE + 200)])
    for codec in CODECS:
        produce(bootstrap, "codecs", records(10, str(codec)), codec)
    produce(bootstrap, "appended", records(3))
    ends = ["commit", "abort", "commit", "abort"]
    transact(bootstrap, "transactions", "some", [(end, records(3, end)) for end in ends])
    transact(bootstrap, "open", "open", [("commit", records(3)), ("open", records(3, "open"))])
    produce(bootstrap, "open", records(2, "behind"))
    consume(bootstrap, "orders", group="readers")  # makes __consumer_offsets


def wait_for_files(logs: Path) -> None:
    """Wait until the broker has compacted and has noted the start offset."""
    starts, cleaned = logs / "log-start-offset-checkpoint", logs / "cleaner-offset-checkpoint"
    limit = time.monotonic() + PATIENCE_S
    while True:
        noted = starts.read_text() if starts.exists() else ""
        compacted = cleaned.read_text() if cleaned.exists() else ""
        if "deleted 0 5\n" in noted and "compacted 0 100\n" in compacted:
            return
        assert time.monotonic() < limit, f"{noted!r} {compacted!r}"
        time.sleep(0.05)
