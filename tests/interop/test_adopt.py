"""The engine reads, recovers and continues a directory that a real broker wrote; the broker serves it again.

The directory is a broker's whole log.dir: the controller's log, the consumers' offsets and the state of
transactions lie in it beside the topics, with the files of a formatted node. These stay the broker's.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from broker_written import BROKER_TOPICS, OPEN_TRANSACTION, Written
from kafka_broker import Broker, complaints, dump, files_of
from kafka_clients import consume, fence, produce

from topicfs import Record, Store

STATES = pytest.mark.parametrize("state", ["clean", "killed"])
CONTINUED = [topic for topic in BROKER_TOPICS if topic != "open"]
OURS = [Record(b"from the engine %d" % number, b"key", 1_700_000_009_000 + number) for number in range(50)]
THEIRS = [Record(b"from the broker %d" % number, b"key", 1_700_000_010_000 + number) for number in range(50)]


def read(store: Store, topic: str) -> list[Record]:
    return list(store.partition(topic, 0).records(start=0))


def at(offset: int, records: list[Record]) -> list[Record]:
    return [replace(record, offset=offset + number) for number, record in enumerate(records)]


def folder(backing: Path, topic: str) -> Path:
    return backing / "logs" / f"{topic}-0"


@STATES
def test_every_committed_record_that_a_broker_wrote_is_read(
    written_by_broker: Written, tmp_path: Path, state: str
) -> None:
    backing = written_by_broker.copy(state, tmp_path / "backing")
    with Store.open(backing) as store:
        for topic in BROKER_TOPICS:
            assert read(store, topic) == written_by_broker.committed[topic], topic


@STATES
def test_what_the_engine_adds_to_a_brokers_directory_the_broker_serves(
    written_by_broker: Written, tmp_path: Path, state: str
) -> None:
    backing = written_by_broker.copy(state, tmp_path / "backing")
    ends: dict[str, int] = {}
    with Store.open(backing) as store:
        for topic in CONTINUED:
            partition = store.partition(topic, 0)
            ends[topic] = partition.end_offset
            partition.append(list(OURS))
    files = [path for topic in BROKER_TOPICS for path in files_of(folder(backing, topic))]
    assert complaints(dump(files, "--deep-iteration", "--print-data-log")) == []

    with Broker.start(backing / "logs", tmp_path / "home") as broker:
        for topic in CONTINUED:
            ours = at(ends[topic], OURS)
            produced = produce(broker.bootstrap, topic, THEIRS)
            assert produced == at(ends[topic] + len(OURS), THEIRS), topic
            found = consume(broker.bootstrap, topic)
            assert found == written_by_broker.committed[topic] + ours + produced, topic
            found = consume(broker.bootstrap, topic, committed=False)
            assert found == written_by_broker.all[topic] + ours + produced, topic
        assert broker.complaints() == []
        # Only the controller's log, which the copy took as the kill left it, is not the engine's to close.
        assert [line for line in broker.recovered() if "__cluster_metadata" not in line] == []

    with Store.open(backing) as store:
        for topic in CONTINUED:
            start = ends[topic]
            added = at(start, OURS) + at(start + len(OURS), THEIRS)
            assert read(store, topic) == written_by_broker.committed[topic] + added, topic


@STATES
def test_a_transaction_left_open_stays_open_until_its_producer_is_fenced(
    written_by_broker: Written, tmp_path: Path, state: str
) -> None:
    backing = written_by_broker.copy(state, tmp_path / "backing")
    committed = written_by_broker.committed["open"]
    with Store.open(backing) as store:
        store.partition("open", 0).append(list(OURS))
        assert read(store, "open") == committed
        end = store.partition("open", 0).end_offset

    with Broker.start(backing / "logs", tmp_path / "home") as broker:
        assert consume(broker.bootstrap, "open") == committed
        fence(broker.bootstrap, OPEN_TRANSACTION)
        assert consume(broker.bootstrap, "open") == committed + at(end - len(OURS), OURS)

    with Store.open(backing) as store:
        assert read(store, "open") == committed + at(end - len(OURS), OURS)


def test_recovery_rebuilds_indexes_and_snapshots_as_the_broker_wrote_them(
    written_by_broker: Written, tmp_path: Path
) -> None:
    """All that can be rebuilt is taken away: transaction indexes and snapshots are then the engine's own."""
    backing = written_by_broker.copy("clean", tmp_path / "backing")
    (backing / "logs" / ".kafka_cleanshutdown").unlink()
    (backing / "logs" / "recovery-point-offset-checkpoint").unlink()
    for topic in BROKER_TOPICS:
        for path in files_of(folder(backing, topic)):
            if path.suffix != ".log":
                path.unlink()
    with Store.open(backing) as store:
        for topic in BROKER_TOPICS:
            assert read(store, topic) == written_by_broker.committed[topic], topic

    files = [path for topic in BROKER_TOPICS for path in files_of(folder(backing, topic))]
    assert complaints(dump(files, "--deep-iteration")) == []
    for topic in BROKER_TOPICS:
        theirs, ours = folder(written_by_broker.clean, topic), folder(backing, topic)
        assert aborted(ours) == aborted(theirs), topic
        assert last_snapshot(ours) == last_snapshot(theirs), topic
    assert aborted(folder(backing, "transactions"))


def aborted(partition: Path) -> dict[str, bytes]:
    """A partition's transaction indexes; an empty one says what a missing one says."""
    contents = {path.name: path.read_bytes() for path in partition.glob("*.txnindex")}
    return {name: data for name, data in contents.items() if data}


def last_snapshot(partition: Path) -> tuple[str, list[str]] | None:
    """The name of a partition's newest producer snapshot and its entries, whose order means nothing."""
    path = max(partition.glob("*.snapshot"), default=None)
    if path is None:
        return None
    return path.name, sorted(re.findall(r"^producerId: .*", dump([path]), re.MULTILINE))


@STATES
def test_what_is_the_brokers_own_is_left_as_it_was(
    written_by_broker: Written, tmp_path: Path, state: str
) -> None:
    backing = written_by_broker.copy(state, tmp_path / "backing")
    logs = backing / "logs"
    own = [
        logs / "meta.properties",
        logs / "bootstrap.checkpoint",
        *(path for path in (logs / "__cluster_metadata-0").rglob("*") if path.is_file()),
        *logs.glob("*/partition.metadata"),
        *logs.glob("__*/*.log"),
    ]
    before = {path: path.read_bytes() for path in own}
    with Store.open(backing):
        pass
    assert {path: path.read_bytes() for path in own} == before
