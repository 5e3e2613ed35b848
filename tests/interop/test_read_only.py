"""A broker's log directory as it stands, opened read-only: beside the running broker, and after its end."""

from __future__ import annotations

from pathlib import Path

import pytest
from broker_written import BROKER_TOPICS, Written
from kafka_broker import Broker
from kafka_clients import consume, create_topics, produce

from topicfs import Record, Store

MORE = [Record(b"value %d" % number, b"key", 1_700_000_000_000 + number) for number in range(500)]


def times(directory: Path) -> dict[Path, tuple[int, int, int]]:
    return {
        path: (path.stat().st_size, path.stat().st_mtime_ns, path.stat().st_ctime_ns)
        for path in directory.rglob("*")
    }


@pytest.mark.parametrize("state", ["clean", "killed"])
def test_every_committed_record_is_read_and_nothing_changes(
    written_by_broker: Written, tmp_path: Path, state: str
) -> None:
    backing = written_by_broker.copy(state, tmp_path / "backing")
    before = times(backing)
    for place in (backing, backing / "logs"):
        with Store.open(place, read_only=True) as store:
            for topic in BROKER_TOPICS:
                found = list(store.partition(topic, 0).records(start=0))
                assert found == written_by_broker.committed[topic], topic
            assert store.topic_settings("compacted").compact
    assert times(backing) == before


def test_a_running_broker_is_followed_and_not_disturbed(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    with Broker.start(logs, tmp_path / "home") as broker:
        create_topics(broker.bootstrap, {"t": {"segment.bytes": "1048576"}})
        first = produce(broker.bootstrap, "t", MORE)
        with Store.open(logs, read_only=True) as store:
            assert list(store.partition("t", 0).records()) == first
            second = produce(broker.bootstrap, "t", MORE)
            assert list(store.partition("t", 0).records()) == first + second
        third = produce(broker.bootstrap, "t", MORE)
        assert consume(broker.bootstrap, "t") == first + second + third
        assert broker.complaints() == []
    assert (logs / ".kafka_cleanshutdown").exists()
    assert not (logs / "logs").exists()
    with Broker.start(logs, tmp_path / "home") as broker:
        # Kafka opens the controller's log as if it had not been stopped cleanly, each time.
        assert [line for line in broker.recovered() if "__cluster_metadata" not in line] == []
        assert broker.complaints() == []
        assert consume(broker.bootstrap, "t") == first + second + third
