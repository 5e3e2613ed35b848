"""A broker started on the `logs/` that the engine wrote serves every record and goes on appending.

The controller's metadata lies elsewhere: nothing in `logs/` is added or changed before the broker starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from broker_written import Written
from engine_written import WORKLOAD, comparable, expected, write_and_close, write_and_die
from kafka_broker import Broker, complaints, dump, files_of
from kafka_clients import consume, produce
from kafka_topics import topics_of

from topicfs import Record, Store

ADDED = [Record(b"from the broker %d" % number, b"key", 1_700_000_009_000 + number) for number in range(50)]


@dataclass(frozen=True, slots=True)
class ServedDirectory:
    """What a broker made of the directory, before and after it appended.

    backing    the directory, with the broker stopped again
    stopped    how the engine stopped: "clean" or "killed"
    committed  records by topic, as a read_committed consumer got them
    all        the same, read_uncommitted
    continued  records by topic, after ADDED was produced to each
    complaints warnings and errors about logs
    recovered  segments of our partitions that the broker recovered at start
    """

    backing: Path
    stopped: str
    committed: dict[str, list[Record]]
    all: dict[str, list[Record]]
    continued: dict[str, list[Record]]
    complaints: list[str]
    recovered: list[str]


@pytest.fixture(scope="module", params=["clean", "killed"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ServedDirectory:
    root = tmp_path_factory.mktemp("serve")
    backing = (write_and_close if request.param == "clean" else write_and_die)(root / "backing")
    logs = backing / "logs"
    topics = topics_of(logs, {topic: script.overrides for topic, script in WORKLOAD.items()})
    with Broker.start(logs, root / "home", metadata_dir=root / "metadata", topics=topics) as broker:
        committed = {topic: consume(broker.bootstrap, topic) for topic in WORKLOAD}
        everything = {topic: consume(broker.bootstrap, topic, committed=False) for topic in WORKLOAD}
        for topic in WORKLOAD:
            produce(broker.bootstrap, topic, ADDED)
        continued = {topic: consume(broker.bootstrap, topic) for topic in WORKLOAD}
        found = broker.complaints(), [line for line in broker.recovered() if "__cluster" not in line]
    return ServedDirectory(backing, request.param, committed, everything, continued, *found)


def with_added(topic: str) -> list[Record]:
    records = expected(WORKLOAD[topic])
    start = len(records)
    added = [
        Record(
            record.value, record.key, record.timestamp if WORKLOAD[topic].timed else None, (), start + number
        )
        for number, record in enumerate(ADDED)
    ]
    return records + added


@pytest.mark.parametrize("topic", WORKLOAD)
def test_a_broker_serves_every_record(served: ServedDirectory, topic: str) -> None:
    assert comparable(served.all[topic], WORKLOAD[topic]) == expected(WORKLOAD[topic])


@pytest.mark.parametrize("topic", WORKLOAD)
def test_a_broker_serves_every_record_to_a_reader_of_committed_ones(
    served: ServedDirectory, topic: str
) -> None:
    assert comparable(served.committed[topic], WORKLOAD[topic]) == expected(WORKLOAD[topic])


@pytest.mark.parametrize("topic", WORKLOAD)
def test_a_broker_continues_where_the_engine_ended(served: ServedDirectory, topic: str) -> None:
    assert comparable(served.continued[topic], WORKLOAD[topic]) == with_added(topic)


def test_a_broker_has_no_complaint_about_the_directory(served: ServedDirectory) -> None:
    assert served.complaints == []


def test_a_broker_recovers_nothing_after_a_clean_stop(served: ServedDirectory) -> None:
    assert (served.recovered == []) == (served.stopped == "clean")


def test_a_broker_complains_about_a_directory_without_an_index(
    written_by_broker: Written, tmp_path: Path
) -> None:
    """The tests above can fail. On a broker's own files, which have no fault."""
    backing = written_by_broker.copy("clean", tmp_path / "backing")
    (backing / "logs" / "plain-0" / "00000000000000000000.index").unlink()
    with Broker.start(backing / "logs", tmp_path / "home") as broker:
        assert broker.complaints() != []
        assert broker.recovered() != []


def test_the_engine_reads_what_the_broker_appended_and_continues(served: ServedDirectory) -> None:
    with Store.open(served.backing) as store:
        for topic in WORKLOAD:
            partition = store.partition(topic, 0)
            assert comparable(partition.records(start=0), WORKLOAD[topic]) == with_added(topic), topic
            partition.append([Record(b"from the engine again", b"key", 1_700_000_010_000)])
            assert partition.end_offset == len(with_added(topic)) + 1, topic
    files = [path for topic in WORKLOAD for path in files_of(served.backing / "logs" / f"{topic}-0")]
    assert complaints(dump(files, "--deep-iteration")) == []
