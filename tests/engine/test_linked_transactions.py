"""A transaction over mirrored topics is one in the cluster: records and positions, whatever fails when."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from patience import eventually
from stand_in_broker import Log, Topic, values_of
from test_link_transactions import Bench, KilledError, a_bench, calls

from topicfs.engine import batch as batches
from topicfs.engine.errors import LinkError
from topicfs.engine.link.transactions import Transactions
from topicfs.engine.record import Record, now_ms
from topicfs.engine.transactions.cluster import NOBODY
from topicfs.engine.transactions.coordinator import Chunk
from topicfs.engine.transactions.linked import LinkedTransactions

TOPICS = ("t", "u")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with a_bench(tmp_path_factory.mktemp("linked")) as bench:
        bench.broker.topics["u"] = Topic(logs={0: Log()})
        eventually(lambda: ("u", 0) in bench.store and bench.store.partition("u", 0).log.remote, "it is here")
        yield bench


def records(word: str) -> Iterator[Chunk]:
    """A record for each topic."""
    for topic in TOPICS:
        data, row = batches.from_records([Record(word.encode())], now_ms())
        yield (topic, 0), next(batches.columns(data, row.reshape(1, -1)))


def again(bench: Bench) -> LinkedTransactions:
    """The transactions, as who comes back finds them."""
    before = bench.store.linked_transactions
    found = LinkedTransactions(before._directory, before._discard)
    found.cluster = before.cluster
    bench.store.linked_transactions = found
    return found


def count(bench: Bench, word: str) -> list[int]:
    """How often each topic shows a value."""
    return [
        values_of(list(bench.store.partition(topic, 0).records())).count(word.encode()) for topic in TOPICS
    ]


def begin(bench: Bench, name: str) -> None:
    bench.store.transactions.init_producer(name, 60_000)
    if name not in bench.store.transactions.staged.names(()):
        bench.store.transactions.staged.make_directory((name,))


def stopped_at(bench: Bench, name: str, step: int, after: bool) -> list[str]:
    """Commit a transaction, and end at a step of it. Return the steps that there were."""
    counted: list[str] = []
    patch = calls(counted, step, after)
    begin(bench, name)
    linked = again(bench)
    with ExitStack() as patches:
        steps: list[tuple[Any, str]] = [
            (LinkedTransactions, "_write"),
            (LinkedTransactions, "_remove"),
            (Transactions, "ask"),
            (Transactions, "ask_group"),
        ]
        for owner, method in steps:
            patches.enter_context(patch(owner, method))
        try:
            linked.run(name, records(name), [("readers", {("t", 0): step}, NOBODY)])
        except KilledError:
            pass
        else:
            assert len(counted) < step
    return counted


def test_a_transaction_that_is_stopped_at_any_step_is_there_once_or_not_at_all(shared: Bench) -> None:
    positions = shared.broker.groups.positions
    steps = stopped_at(shared, "all", 10_000, after=False)
    assert (steps.count("ask"), steps.count("ask_group"), steps.count("_write")) == (5, 1, 3)
    assert positions["readers"] == {("t", 0): 10_000}
    assert count(shared, "all") == [1, 1]
    for step in range(1, len(steps) + 1):
        for after in (False, True):
            name = f"t-{step}-{after}"
            positions.clear()
            stopped_at(shared, name, step, after)
            linked = again(shared)
            is_committed = linked.settle(name)
            eventually(shared.is_settled, "no transaction is open")
            was_settled = name not in shared.store.transactions.staged.names(())
            assert is_committed <= was_settled
            assert count(shared, name) == [was_settled] * 2
            assert positions == ({"readers": {("t", 0): step}} if was_settled else {})
            assert again(shared).unsettled() == []


def test_a_refusal_of_a_group_leaves_nothing_of_a_transaction(shared: Bench) -> None:
    begin(shared, "refused")
    linked = again(shared)

    def refused(*_: object) -> None:
        raise LinkError("refused")

    transaction = type(shared.store.linked_transactions.cluster.begin_named("refused"))  # type: ignore[union-attr]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(transaction, "set_positions", refused)
        with pytest.raises(LinkError, match="refused"):
            linked.run("refused", records("refused"), [("readers", {("t", 0): 1}, NOBODY)])
    assert linked.unsettled() == []
    eventually(shared.is_settled, "no transaction is open")
    assert count(shared, "refused") == [0, 0]
    assert list(Path(linked._directory).iterdir()) == []
