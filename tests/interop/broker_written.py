"""Directories that a real broker wrote, with all that producers and consumers make it write."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kafka_broker import Broker, KafkaError, run_tool
from kafka_clients import consume, create_topics, produce, transact

from topicfs.engine.record import Record

random_bytes = random.Random(21).randbytes


@dataclass(frozen=True, slots=True)
class Written:
    """A backing directory whose `logs` a broker wrote, in two states, and what it holds.

    clean      after a clean stop
    killed     after kill -9
    committed  records by topic, as a read_committed consumer got them: what the producers sent and committed
    all        the same, as a read_uncommitted consumer got them
    """

    clean: Path
    killed: Path
    committed: Mapping[str, list[Record]]
    all: Mapping[str, list[Record]]

    def copy(self, state: str, backing: Path) -> Path:
        """A copy of one of the states, to be changed; gives `backing`."""
        shutil.copytree(self.clean if state == "clean" else self.killed, backing)
        return backing


OPEN_TRANSACTION = "left-open"
"""The transactional id whose transaction the killed and the clean state both hold open."""

BROKER_TOPICS: Mapping[str, Mapping[str, str]] = {
    "plain": {},
    "codecs": {"segment.bytes": "1048576"},
    "transactions": {"segment.bytes": "1048576"},
    "epoch-per-transaction": {},
    "open": {},
    "compacted": {"cleanup.policy": "compact"},
    "empty": {},
}


def broker_writes(root: Path) -> Written:
    """Let a broker fill a directory, kill it, start it again and stop it cleanly."""
    live = root / "live"
    with Broker.start(live / "logs", root / "home") as broker:
        create_topics(broker.bootstrap, BROKER_TOPICS)
        sent = _write(broker.bootstrap)
        committed = {topic: consume(broker.bootstrap, topic) for topic in BROKER_TOPICS}
        everything = {topic: consume(broker.bootstrap, topic, committed=False) for topic in BROKER_TOPICS}
        consume(broker.bootstrap, "plain", group="readers")  # makes __consumer_offsets
        broker.stop(clean=False)
    wrong = [topic for topic, records in sent.items() if committed[topic] != records]
    if wrong:
        raise KafkaError(f"expected to consume what was produced, found other records in {wrong}")
    shutil.copytree(live, root / "killed")
    with Broker.start(live / "logs", root / "home"):
        pass
    shutil.copytree(live, root / "clean")
    return Written(root / "clean", root / "killed", committed, everything)


def _write(bootstrap: str) -> dict[str, list[Record]]:
    """Fill BROKER_TOPICS; gives what was sent and committed, of the topics whose producers tell."""
    plain = [
        Record(b"value", b"key", 1_700_000_000_000, (("name", b"x"), ("null", None), ("größe", b""))),
        Record(b"no key", None, 1_700_000_000_005),
        Record(b"", b"", 1_699_999_999_000),
        *(Record(b"value %d" % number, b"key %d" % (number % 7)) for number in range(500)),
    ]
    codecs = [
        produce(
            bootstrap, "codecs", [Record(random_bytes(8_000) + bytes(2_000), b"k") for _ in range(60)], codec
        )
        for codec in (None, "gzip", "snappy", "lz4", "zstd")
    ]
    # More than one segment, so that aborts and what they abort lie in several transaction indexes.
    filling = [Record(random_bytes(10_000)) for _ in range(15)]
    ends = ["commit", "abort"] * 8
    keyed = [Record(b"%d" % number, b"key %d" % (number % 10)) for number in range(100)]
    produced = {
        "plain": produce(bootstrap, "plain", plain),
        "codecs": [record for records in codecs for record in records],
        "transactions": transact(bootstrap, "transactions", "filler", [(end, filling) for end in ends]),
        "open": transact(
            bootstrap,
            "open",
            OPEN_TRANSACTION,
            [
                ("commit", [Record(b"before")] * 5),
                ("abort", [Record(b"gone")] * 5),
                ("open", [Record(b"open")] * 5),
            ],
        ),
        "compacted": produce(
            bootstrap, "compacted", [*keyed, Record(None, b"key 3"), Record(None, b"key 4")]
        ),
        "empty": [],
    }
    _transact_in_java(bootstrap, "epoch-per-transaction")
    return produced


def _transact_in_java(bootstrap: str, topic: str) -> None:
    """200 records in several transactions of Kafka's own client, which takes a new epoch for each."""
    done = run_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--num-records", "200", "--throughput", "1000"),
        *("--payload-monotonic", "--transactional-id", "java", "--transaction-duration-ms", "40"),
    )
    if done.returncode:
        raise KafkaError(f"the producer ended with {done.returncode}\n{done.stdout}{done.stderr}")
