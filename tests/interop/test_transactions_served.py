"""A broker that takes over a directory finds our transactions in it, ends what we left, and goes on with our ids."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from kafka_broker import Broker, dump, run_tool
from kafka_clients import consume, transact
from kafka_topics import topics_of
from patience import eventually

from topicfs import Record, Store
from topicfs.engine import batch as batches
from topicfs.engine.batch.columns import Columns, columns
from topicfs.engine.format.paths import log_file
from topicfs.engine.messages.topics import TRANSACTIONS
from topicfs.engine.transactions.coordinator import Coordinator

TIMEOUT_MS = 60_000
KEYS = [("t", 0), ("u", 0)]


def some(*values: bytes) -> Columns:
    batch = batches.from_records([Record(value) for value in values], 1_700_000_000_000)
    (found,) = columns(batch.data, np.array(batch.row).reshape(1, -1))
    return found


class StoppedError(BaseException):
    """The process dies here."""


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a transaction of each outcome; the last one is decided, and its markers are missing."""
    root = tmp_path_factory.mktemp("transactions")
    store = Store.open(root / "backing", create=True)
    for topic, _ in KEYS:
        store.create_topic(topic, 1)
    coordinator = store.transactions
    holder = coordinator.init_producer("ours", TIMEOUT_MS)
    coordinator.run(holder, KEYS, [(KEYS[0], some(b"1")), (KEYS[1], some(b"2"))])
    with pytest.raises(RuntimeError):
        coordinator.run(holder, KEYS, _broken())
    named = store.producers.init("p")
    store.producers.append(named, "t", 0, 0, [some(b"3", b"4")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Coordinator, "_complete_or_keep", _stop)
        with pytest.raises(StoppedError):
            coordinator.run(holder, KEYS, [(KEYS[0], some(b"5")), (KEYS[1], some(b"6"))])
    store.abandon()
    return root


def _broken():  # type: ignore[no-untyped-def]
    yield KEYS[0], some(b"aborted")
    raise RuntimeError


def _stop(*_: object) -> None:
    raise StoppedError


def test_kafkas_dump_tool_reads_the_states(stopped: Path) -> None:
    log = stopped / "backing" / "logs" / f"{TRANSACTIONS}-0" / log_file(0)
    values = re.findall(r"payload: (\{.*\})", dump([log], "--transaction-log-decoder"))
    states = [json.loads(value)["data"]["transactionStatus"] for value in values]
    assert states == [0, 1, 2, 4, 1, 3, 5, 0, 1, 2]
    ongoing = json.loads(values[1])["data"]
    assert ongoing["transactionPartitions"] == [
        {"topic": "t", "partitionIds": [0]}, {"topic": "u", "partitionIds": [0]}
    ]  # fmt: skip


EXPECTED = [[b"1", b"3", b"4", b"5", b"7"], [b"2", b"6"]]


def test_a_broker_completes_our_transaction_and_goes_on_with_our_id(stopped: Path, tmp_path: Path) -> None:
    # The states are another test's too.
    stopped = shutil.copytree(stopped, tmp_path / "copy")
    logs = stopped / "backing" / "logs"
    overrides = {"t": {}, "u": {}, TRANSACTIONS: {"cleanup.policy": "compact"}}
    topics = topics_of(logs, overrides)
    (stopped / "metadata").mkdir()
    with Broker.start(logs, stopped / "home", metadata_dir=stopped / "metadata", topics=topics) as broker:
        transact(broker.bootstrap, "t", "ours", [("commit", [Record(b"7")]), ("abort", [Record(b"8")])])

        def shown() -> list[list[bytes | None]]:
            return [[record.value for record in consume(broker.bootstrap, topic)] for topic, _ in KEYS]

        # The broker writes the markers of what it completes in each partition when it comes to it.
        eventually(lambda: shown() == EXPECTED, f"{EXPECTED} shows")
        listed = run_tool(
            "org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", broker.bootstrap, "list"
        )
    rows = {line.split()[0]: line.split()[-1] for line in listed.stdout.splitlines()[1:] if line.strip()}
    assert rows["ours"] == "CompleteAbort"
    with Store.open(stopped / "backing") as store:
        values = [[record.value for record in store.partition(*key).records()] for key in KEYS]
        assert values == EXPECTED
        before = store.transactions.transaction("ours")
        assert before is not None
        assert store.transactions.init_producer("ours", TIMEOUT_MS).epoch > before.epoch
