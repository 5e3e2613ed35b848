"""What the engine has compacted, Kafka's dump tool finds no fault with and a broker serves: transactions, tombstones
with and without a delete horizon, batches of which only the header is left, every codec, both timestamp types."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from dumping import dumped
from kafka_broker import Broker, complaints, dump, dump_bytes, files_of
from kafka_clients import consume, produce
from kafka_topics import topics_of

from topicfs import Record, Store
from topicfs.engine.cleaner.clean import Cleaner
from topicfs.engine.partition.partition import Partition, Producer

BASE_TIME: Final = 1_700_000_000_000
DELETE_RETENTION_MS: Final = 1000
COMPACTED: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "6000",
    "index.interval.bytes": "500",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": str(DELETE_RETENTION_MS),
}
TOPICS: Final[Mapping[str, Mapping[str, str]]] = {
    **{name: {"compression.type": name} for name in ("uncompressed", "gzip", "snappy", "lz4", "zstd")},
    "append-time": {"message.timestamp.type": "LogAppendTime"},
}


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.ms = BASE_TIME

    def __call__(self) -> int:
        return self.ms


class Writer:
    """Fills one partition, so that something of everything is left of it when it has been compacted."""

    def __init__(self, partition: Partition, clock: Clock) -> None:
        self.partition = partition
        self.clock = clock
        self.sequences: dict[int, int] = {}

    def put(
        self, producer: int | None, keys: range, value: bytes | None, *, transactional: bool = False
    ) -> None:
        records = [
            Record(value and value + b" of key %d" % key, b"key %d" % key, self.clock.ms, (("name", b"x"),))
            for key in keys
        ]
        by = None
        if producer is not None:
            by = Producer(producer, 0, self.sequences.get(producer, 0), transactional)
            self.sequences[producer] = self.sequences.get(producer, 0) + len(records)
        self.partition.append(records, by)
        self.clock.ms += 1

    def write(self, number: int) -> None:
        text = b"a text that repeats, in round %d, " % number * 4
        for start in range(0, 60, 6):
            self.put(None, range(start, start + 6), text)
        self.put(10 + number, range(3), text)  # its header stays, as it writes no more
        self.put(3, range(20, 23), text)
        self.put(None, range(40 + number, 42 + number), None)
        for producer, commit in ((1, True), (2, False), (1, False), (2, True)):
            self.put(producer, range(10 + producer, 16), text + b"in a transaction", transactional=True)
            self.put(None, range(2), text)
            self.put(producer, range(30, 31 + producer), text, transactional=True)
            self.partition.end_transaction(producer, 0, commit)


@dataclass(frozen=True, slots=True)
class CleanedStore:
    """A directory that was compacted and stopped cleanly.

    backing   the directory
    expected  records by topic, as the engine reads them
    """

    backing: Path
    expected: Mapping[str, list[Record]]

    def files(self) -> list[Path]:
        return [path for topic in TOPICS for path in files_of(self.backing / "logs" / f"{topic}-0")]


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory: pytest.TempPathFactory) -> CleanedStore:
    backing = tmp_path_factory.mktemp("cleaned") / "backing"
    clock = Clock()
    cleaner = Cleaner.create(1 << 20, 0.9, 1 << 18, lambda _: None, bytes(16))
    with Store.open(backing, clock=clock, create=True) as store:
        writers = [
            Writer(store.create(topic, overrides={**COMPACTED, **more}), clock)
            for topic, more in TOPICS.items()
        ]
        for number in range(4):
            for writer in writers:
                writer.write(number)
                writer.partition.roll()
            while (outcome := store.cleaning.work(cleaner, clock.ms)).partition is not None:
                assert outcome.error is None
            clock.ms += DELETE_RETENTION_MS // 2
        expected = {writer.partition.topic: list(writer.partition.records()) for writer in writers}
        for writer in writers:
            writer.partition.log.remove_due(1 << 62)
    return CleanedStore(backing, expected)


def lines_of(files: list[Path], *options: str) -> list[str]:
    """What is wrong, save for what a broker's own compaction makes too, and the tool finds strange: offsets that do
    not follow upon each other, and a time index that names a batch of which only the header is left. That header
    keeps the batch's largest timestamp; the tool looks for a record that has it, and says -1."""
    found = [
        line
        for line in complaints(dump(files, "--deep-iteration", *options))
        if not (
            line.startswith("Found timestamp mismatch")
            and all(each.endswith("log timestamp: -1") for each in line.splitlines()[1:])
        )
    ]
    gaps = [line for line in found if line.startswith("Non-consecutive")]
    for first, second in re.findall(r"^  (-?\d+) is followed by (\d+)", "\n".join(gaps), re.MULTILINE):
        assert int(first) < int(second)
    return [line for line in found if line not in gaps]


def test_what_was_compacted_has_something_of_everything(cleaned: CleanedStore) -> None:
    """Without it the tests below would find no fault in nothing."""
    output = dump([path for path in cleaned.files() if path.suffix == ".log"])
    headers = [line for line in output.splitlines() if line.startswith("baseOffset: ")]
    assert any("isControl: true" in line for line in headers)
    assert any("deleteHorizonMs: OptionalLong[" in line for line in headers)
    assert any(re.search(r" count: 0 ", line) for line in headers)
    assert any(record.value is None for record in cleaned.expected["zstd"])
    assert any(path.suffix == ".txnindex" and path.stat().st_size for path in cleaned.files())
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        assert any(re.search(f"compresscodec: {codec}", line, re.IGNORECASE) for line in headers), codec


def test_our_dump_of_what_was_compacted_is_the_text_of_kafkas_tool(cleaned: CleanedStore) -> None:
    lines, _ = dumped(cleaned.files(), content=True)
    assert b" deleteHorizonMs: OptionalLong[" in lines
    assert lines.split(b"\n") == dump_bytes(cleaned.files(), "--print-data-log").split(b"\n")


def test_every_file_is_dumped_without_complaint(cleaned: CleanedStore) -> None:
    assert lines_of(cleaned.files(), "--print-data-log") == []


def test_the_indexes_agree_with_the_logs(cleaned: CleanedStore) -> None:
    indexes = [path for path in cleaned.files() if path.suffix in (".index", ".timeindex")]
    assert lines_of(indexes, "--verify-index-only") == []


def test_the_dump_shows_every_record_that_the_engine_reads(cleaned: CleanedStore) -> None:
    """Aborted records that are left belong to the part that is not compacted yet: there is none."""
    for topic, expected in cleaned.expected.items():
        files = [path for path in files_of(cleaned.backing / "logs" / f"{topic}-0") if path.suffix == ".log"]
        output = dump(files, "--deep-iteration", "--print-data-log")
        rows = [
            line
            for line in output.splitlines()
            if line.startswith("| offset: ") and "endTxnMarker" not in line
        ]
        assert [int(row.split()[2]) for row in rows] == [record.offset for record in expected], topic


def test_a_broker_serves_what_was_compacted_and_continues(cleaned: CleanedStore, tmp_path: Path) -> None:
    # The broker appends, and others look at what was compacted: it gets a copy.
    backing = Path(shutil.copytree(cleaned.backing, tmp_path / "backing"))
    logs = backing / "logs"
    # Its own compaction is to wait: the ratio is never above 1.
    settings = {topic: {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1"} for topic in TOPICS}
    topics = topics_of(logs, settings)
    added = [Record(b"from the broker", b"key %d" % number, BASE_TIME) for number in range(5)]
    with Broker.start(logs, tmp_path / "home", metadata_dir=tmp_path / "metadata", topics=topics) as broker:
        for topic, expected in cleaned.expected.items():
            assert consume(broker.bootstrap, topic) == expected, topic
            assert consume(broker.bootstrap, topic, committed=False) == expected, topic
            produce(broker.bootstrap, topic, added)
        assert broker.complaints() == []
        assert [line for line in broker.recovered() if "__cluster" not in line] == []
    with Store.open(backing) as store:
        for topic, expected in cleaned.expected.items():
            found = list(store.partition(topic, 0).records())
            assert found[: len(expected)] == expected
            assert [record.value for record in found[len(expected) :]] == [record.value for record in added]
