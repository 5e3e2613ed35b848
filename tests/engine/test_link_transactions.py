"""The inbox of a linked topic: a batch is one transaction in the cluster, and is there once, whatever fails when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.protocol.producer import EndTxnRequest, ProduceRequest
from patience import eventually
from stand_in_broker import Log, StandInBroker, Topic, values_of

from topicfs import Store
from topicfs.engine import batch as batches
from topicfs.engine.errors import DeliveryTimeoutError, LinkError, LinkRefusedError
from topicfs.engine.inbox.committed_names import CommittedNames
from topicfs.engine.inbox.inbox import Chunk, Inbox
from topicfs.engine.inbox.journal import CommitState, Journal
from topicfs.engine.link.client import ClientSettings
from topicfs.engine.link.options import LinkOptions
from topicfs.engine.link.transactions import Transactions
from topicfs.engine.record import Record, now_ms
from topicfs.mountd.link import Link

CLIENT = ClientSettings(
    metadata_max_age_ms=200,
    fetch_max_wait_ms=20,
    reconnect_backoff_ms=10,
    reconnect_backoff_max_ms=50,
    request_timeout_ms=1000,
    delivery_timeout_ms=60_000,
)
PARTITIONS = (0, 1)


class KilledError(BaseException):
    """The process ends here."""


@dataclass
class Bench:
    """A store that is linked to a stand-in for a broker, with a topic `t` of two partitions."""

    broker: StandInBroker
    store: Store

    @property
    def inbox(self) -> Inbox:
        """The inbox, as who comes back finds it."""
        self.store.inboxes._open.clear()
        return self.store.inboxes.of("t")

    def shown(self, number: int) -> list[bytes | None]:
        """What a partition's views show."""
        return values_of(list(self.store.partition("t", number).records()))

    def is_settled(self) -> bool:
        """Whether no transaction holds up the readers."""
        offsets = [self.store.partition("t", number).offsets for number in PARTITIONS]
        return all(each.stable == each.end for each in offsets)

    @property
    def name(self) -> str:
        """The transactional id."""
        return next(iter(self.broker.transactions))


@contextmanager
def a_bench(tmp_path: Path, client: ClientSettings = CLIENT) -> Iterator[Bench]:
    with (
        StandInBroker.running() as broker,
        Store.open(tmp_path, {"link.bootstrap.servers": broker.bootstrap}, create=True) as store,
    ):
        broker.topics["t"] = Topic(logs={number: Log() for number in PARTITIONS})
        options = LinkOptions.of(store.daemon, store.backing)
        assert options is not None
        link = Link(store, LinkOptions(options.bootstrap, options.patterns, options.beginning, client))
        link.start()
        try:
            eventually(
                lambda: all(
                    ("t", number) in store and store.partition("t", number).log.remote
                    for number in PARTITIONS
                ),
                "the link is there",
            )
            yield Bench(broker, store)
        finally:
            link.stop()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with a_bench(tmp_path_factory.mktemp("linked")) as bench:
        yield bench


def chunks(*words: str) -> Iterable[Chunk]:
    """A record for each partition and word."""
    for word in words:
        for number in PARTITIONS:
            data, row = batches.from_records([Record(f"{word}-{number}".encode())], now_ms())
            yield number, next(batches.columns(data, row.reshape(1, -1)))


def calls(counted: list[str], fail_at: int, after: bool) -> Callable[[Any, str], Any]:
    """Have the calls of a method counted, and the process end before or behind one of them."""

    def patch(owner: Any, name: str) -> Any:
        real = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            counted.append(name)
            is_it = len(counted) == fail_at
            if is_it and not after:
                raise KilledError
            found = real(*arguments, **named)
            if is_it:
                raise KilledError
            return found

        return mock.patch.object(owner, name, call)

    return patch


def stopped_at(bench: Bench, name: str, step: int, after: bool) -> list[str]:
    """Commit a batch, and end at a step of it. Return the steps that there were."""
    counted: list[str] = []
    patch = calls(counted, step, after)
    with ExitStack() as patches:
        inbox = bench.inbox
        for owner, method in (
            (Journal, "write"),
            (Journal, "remove"),
            (CommittedNames, "add"),
            (Transactions, "ask"),
            (Transactions, "await_shown"),
        ):
            patches.enter_context(patch(owner, method))
        try:
            inbox.commit(name, chunks(name))
        except KilledError:
            pass
        else:
            assert len(counted) < step
    return counted


def test_a_batch_that_is_stopped_at_any_step_is_there_once(shared: Bench) -> None:
    shared.inbox.commit("whole", chunks("whole"))
    assert shared.shown(0)[-1] == b"whole-0"
    steps = stopped_at(shared, "all", 10_000, after=False)
    assert steps.count("ask") == 4
    assert steps.count("write") == 3
    for step in range(1, len(steps) + 1):
        for after in (False, True):
            name = f"batch-{step}-{after}"
            stopped_at(shared, name, step, after)
            shared.inbox.commit(name, chunks(name))
            for number in PARTITIONS:
                assert shared.shown(number).count(f"{name}-{number}".encode()) == 1
    eventually(shared.is_settled, "no transaction is open")
    assert Journal(shared.store.backing / "staging/t/journal").read() is None


@pytest.mark.parametrize("has_another_epoch", [True, False])
def test_an_answer_to_the_commit_that_is_lost_is_asked_for_again(
    shared: Bench, has_another_epoch: bool
) -> None:
    lost = iter([True])

    def lose(kind: Any, data: bytes) -> bytes:
        if kind is EndTxnRequest and next(lost, False):
            if has_another_epoch:
                shared.broker.time_is_over(shared.name)
            shared.broker.go()
            shared.broker.come()
        return data

    name = f"lost-{has_another_epoch}"
    shared.broker.garble = lose
    try:
        shared.inbox.commit(name, chunks(name))
    finally:
        shared.broker.garble = lambda _, data: data
    for number in PARTITIONS:
        assert shared.shown(number).count(f"{name}-{number}".encode()) == 1


def test_a_transaction_whose_time_is_over_before_its_commit_is_not_there(shared: Bench) -> None:
    real = Transactions.end

    def be_late(self: Transactions, topic: str, commit: Any) -> None:
        shared.broker.time_is_over(shared.name)
        eventually(shared.is_settled, "the marker is mirrored")
        real(self, topic, commit)

    with mock.patch.object(Transactions, "end", be_late), pytest.raises(LinkError, match="not committed"):
        shared.inbox.commit("late", chunks("late"))
    assert b"late-0" not in shared.shown(0)
    shared.inbox.commit("late", chunks("late"))
    assert shared.shown(0).count(b"late-0") == 1


@pytest.mark.parametrize("committed", [True, False])
def test_where_the_coordinator_has_forgotten_a_transaction_the_mirror_tells(
    shared: Bench, committed: bool
) -> None:
    name = f"forgotten-{committed}"
    journal = Journal(shared.store.backing / "staging/t/journal")
    stopped_at(shared, name, 6, after=False)
    found = journal.read()
    assert found is not None
    assert found.state is CommitState.DECIDING
    if committed:
        cluster = shared.store.inboxes.cluster
        assert cluster is not None
        assert found.cluster is not None
        cluster.end("t", found.cluster)
    else:
        shared.broker.time_is_over(shared.name)
    del shared.broker.transactions[shared.name]
    eventually(shared.is_settled, "the marker is mirrored")
    inbox = shared.inbox
    inbox.settle()
    assert inbox.knows(name) == committed
    inbox.commit(name, chunks(name))
    assert shared.shown(1).count(f"{name}-1".encode()) == 1


def test_a_batch_that_a_leader_refuses_is_aborted_everywhere(shared: Bench) -> None:
    def refuse(request: Any, told: Any) -> None:
        part = told.responses[0].partition_responses[0]
        if part.index == 1:
            part.error_code, part.base_offset = 29, -1

    shared.broker.twist[ProduceRequest] = refuse
    with pytest.raises(LinkRefusedError, match="needs Write"):
        shared.inbox.commit("refused", chunks("refused"))
    del shared.broker.twist[ProduceRequest]
    eventually(shared.is_settled, "it is aborted")
    assert b"refused-0" not in shared.shown(0)
    assert not shared.inbox.knows("refused")


def test_a_commit_that_nobody_can_tell_of_is_decided_later(tmp_path: Path) -> None:
    with a_bench(
        tmp_path,
        replace(CLIENT, delivery_timeout_ms=500),
    ) as bench:
        journal = Journal(bench.store.backing / "staging/t/journal")

        def away(_: Any, told: Any) -> None:
            found = journal.read()
            if found is not None and found.state is CommitState.DECIDING:
                told.error_code = 15

        bench.broker.twist[FindCoordinatorRequest] = away
        with pytest.raises(DeliveryTimeoutError, match="coordinator"):
            bench.inbox.commit("b", chunks("b"))
        with pytest.raises(DeliveryTimeoutError):
            bench.inbox.commit("other", chunks("other"))
        del bench.broker.twist[FindCoordinatorRequest]
        bench.inbox.commit("b", chunks("b"))
        assert bench.shown(0) == [b"b-0"]
