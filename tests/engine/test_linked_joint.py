"""A batch of several mirrored topics is one transaction in the cluster: it is there once, whatever fails when."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from patience import eventually
from stand_in_broker import Log, Topic, values_of
from test_link_transactions import Bench, KilledError, a_bench, calls

from topicfs.engine import batch as batches
from topicfs.engine.errors import MixedTopicsError
from topicfs.engine.inbox.committed_names import CommittedNames
from topicfs.engine.inbox.inbox import Batch
from topicfs.engine.inbox.inboxes import Inboxes
from topicfs.engine.inbox.joint import LinkedJoint
from topicfs.engine.inbox.joint_journal import JointJournal
from topicfs.engine.link.transactions import Transactions
from topicfs.engine.record import Record, now_ms
from topicfs.engine.transactions.linked import LinkedTransactions

TOPICS = ("t", "u")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with a_bench(tmp_path_factory.mktemp("linked")) as bench:
        bench.broker.topics["u"] = Topic(logs={0: Log()})
        eventually(lambda: ("u", 0) in bench.store and bench.store.partition("u", 0).log.remote, "it is here")
        yield bench


def batch(name: str) -> Batch:
    data, row = batches.from_records([Record(name.encode())], now_ms())
    return Batch(name, [(0, next(batches.columns(data, row.reshape(1, -1))))])


def again(bench: Bench) -> Inboxes:
    """The inboxes, as who comes back finds them."""
    found = bench.store.inboxes
    found._open.clear()
    before = found.linked_joint
    found.linked_joint = LinkedJoint(before._journal, found._left, before._journal.path.parent)
    found.linked_joint.transactions.cluster = before.transactions.cluster
    found.linked_joint.recover()
    return found


def commit(bench: Bench, name: str) -> bool:
    """Commit a batch of a record for each topic. Return whether it was committed before."""
    return again(bench).commit({topic: batch(name) for topic in TOPICS}).known


def count(bench: Bench, name: str) -> list[int]:
    """How often each topic shows a value."""
    return [
        values_of(list(bench.store.partition(topic, 0).records())).count(name.encode()) for topic in TOPICS
    ]


def stopped_at(bench: Bench, name: str, step: int, after: bool) -> list[str]:
    """Commit a batch, and end at a step of it. Return the steps that there were."""
    counted: list[str] = []
    patch = calls(counted, step, after)
    with ExitStack() as patches:
        steps: list[tuple[Any, str]] = [
            (JointJournal, "write"),
            (JointJournal, "remove"),
            (LinkedTransactions, "_write"),
            (LinkedTransactions, "_remove"),
            (CommittedNames, "add"),
            (Transactions, "ask"),
        ]
        for owner, method in steps:
            patches.enter_context(patch(owner, method))
        try:
            commit(bench, name)
        except KilledError:
            pass
        else:
            assert len(counted) < step
    return counted


def test_a_batch_of_several_mirrored_topics_that_is_stopped_at_any_step_is_there_once(shared: Bench) -> None:
    steps = stopped_at(shared, "all", 10_000, after=False)
    assert (steps.count("ask"), steps.count("_write"), steps.count("add")) == (4, 3, 2)
    assert count(shared, "all") == [1, 1]
    for step in range(1, len(steps) + 1):
        for after in (False, True):
            name = f"b-{step}-{after}"
            stopped_at(shared, name, step, after)
            alone = batch(name)
            # Whoever commits in one of the topics next has the whole batch brought to its end before.
            known = again(shared).of("u").commit(name, alone.chunks).known
            eventually(shared.is_settled, "no transaction is open")
            assert count(shared, name) == ([1, 1] if known else [0, 1])
            assert commit(shared, name) is known
            assert count(shared, name) == [1, 1]
            assert shared.store.inboxes.linked_joint._journal.read() is None
            assert not shared.store.inboxes.linked_joint.is_unsettled


def test_mirrored_topics_and_others_are_refused_together(shared: Bench) -> None:
    shared.store.create_topic("own", 1)
    with pytest.raises(MixedTopicsError, match="t is the cluster's, own this store's own"):
        again(shared).commit({topic: batch("mixed") for topic in ("t", "own")})
    assert count(shared, "mixed") == [0, 0]
    assert not list(shared.store.partition("own", 0).records())
