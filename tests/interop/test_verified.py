"""`topicfs verify` on what a real broker wrote: after a clean stop, after kill -9, and while it writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from broker_written import BROKER_TOPICS, Written
from click.testing import CliRunner
from engine_written import write_and_close, write_and_die
from kafka_broker import Broker
from kafka_clients import create_topics, produce, transact

from topicfs import Record, Store
from topicfs.mountd.cli import main

MORE = [Record(b"value %d" % number * 20, b"key", 1_700_000_000_000 + number) for number in range(2000)]


def verified(place: Path) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["verify", str(place)])
    return done.exit_code, done.stdout


@pytest.mark.parametrize("state", ["clean", "killed"])
def test_nothing_is_found_in_what_a_broker_wrote(written_by_broker: Written, state: str) -> None:
    backing = written_by_broker.clean if state == "clean" else written_by_broker.killed
    for place in (backing, backing / "logs"):
        code, told = verified(place)
        assert (code, len(told.splitlines())) == (0, 1), told
        assert "nothing found" in told


def test_nothing_is_found_when_the_engine_has_gone_on_with_it(
    written_by_broker: Written, tmp_path: Path
) -> None:
    backing = written_by_broker.copy("killed", tmp_path / "backing")
    with Store.open(backing) as store:
        for topic in BROKER_TOPICS:
            store.partition(topic, 0).append(Record(b"more", b"key"))
    assert "nothing found" in verified(backing)[1]


@pytest.mark.parametrize("write", [write_and_close, write_and_die])
def test_nothing_is_found_in_what_the_engine_wrote(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    backing = write(tmp_path / "backing")
    code, told = verified(backing)
    assert (code, len(told.splitlines())) == (0, 1), told
    Store.open(backing).close()
    assert "nothing found" in verified(backing)[1]


def test_nothing_is_found_beside_a_broker_that_writes(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    with Broker.start(logs, tmp_path / "home") as broker:
        create_topics(broker.bootstrap, {"t": {"segment.bytes": "1048576"}, "aborted": {}})
        for number in range(3):
            produce(broker.bootstrap, "t", MORE)
            transact(broker.bootstrap, "aborted", "id", [("abort" if number else "commit", MORE[:50])])
            code, told = verified(logs)
            assert (code, len(told.splitlines())) == (0, 1), told
