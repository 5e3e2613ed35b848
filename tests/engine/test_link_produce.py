"""Appending to a mirror: a batch is in the cluster once, whatever becomes of its answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest
from patience import eventually
from stand_in_broker import Log, StandInBroker, Topic, values_of

from topicfs import Store
from topicfs.engine import batch as batches
from topicfs.engine.errors import DeliveryTimeoutError, LinkedTopicError
from topicfs.engine.link.client import ClientSettings
from topicfs.engine.link.options import LinkOptions
from topicfs.engine.partition.partition import Partition
from topicfs.engine.record import Record, now_ms
from topicfs.mountd.link import Link

CLIENT = ClientSettings(
    metadata_max_age_ms=200,
    fetch_max_wait_ms=20,
    reconnect_backoff_ms=10,
    reconnect_backoff_max_ms=100,
    request_timeout_ms=1000,
    delivery_timeout_ms=60_000,
)


@dataclass
class Bench:
    """A store that is linked to a stand-in for a broker, with a topic `t`."""

    broker: StandInBroker
    link: Link
    partition: Partition

    @property
    def log(self) -> Log:
        """The leader's log."""
        return self.broker.topics["t"].logs[0]

    def append(self, *values: bytes) -> None:
        """Append as the queue of lines does."""
        self.partition.append_waiting(batches.from_records([Record(value) for value in values], now_ms()), 0)

    @property
    def values(self) -> list[bytes | None]:
        """What the mirror shows."""
        return values_of(list(self.partition.records()))

    def ids(self) -> int:
        """How many producers were asked for."""
        return self.broker.asked.get(InitProducerIdRequest, 0)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with (
        StandInBroker.running() as broker,
        Store.open(tmp_path, {"link.bootstrap.servers": broker.bootstrap}, create=True) as store,
    ):
        broker.topics["t"] = Topic()
        options = LinkOptions.of(store.daemon, store.backing)
        assert options is not None
        link = Link(store, LinkOptions(options.bootstrap, options.patterns, options.beginning, CLIENT))
        link.start()
        try:
            eventually(lambda: ("t", 0) in store and store.partition("t", 0).log.remote, "the link is there")
            yield Bench(broker, link, store.partition("t", 0))
        finally:
            link.stop()


def test_batches_are_appended_in_their_order_by_one_producer(bench: Bench) -> None:
    for number in range(5):
        bench.append(b"%d" % number, b"and more")
        assert bench.partition.end_offset == bench.log.end == 2 * number + 2
    assert bench.values == [value for number in range(5) for value in (b"%d" % number, b"and more")]
    assert bench.ids() == 1


@pytest.mark.parametrize("code", [7, 20])
def test_a_batch_whose_acknowledgement_is_late_is_appended_once(bench: Bench, code: int) -> None:
    bench.append(b"before")
    codes = iter([code, code])

    def late(_: Any, answer: Any) -> None:
        answer.responses[0].partition_responses[0].error_code = next(codes, 0)

    bench.broker.twist[ProduceRequest] = late
    bench.append(b"one")
    bench.append(b"two")
    assert bench.values == [b"before", b"one", b"two"]
    assert bench.ids() == 1


def test_a_batch_whose_connection_ends_before_the_answer_is_appended_once(bench: Bench) -> None:
    cut = iter([True])

    def end(kind: Any, data: bytes) -> bytes:
        if kind is ProduceRequest and next(cut, False):
            bench.broker.go()
            bench.broker.come()
        return data

    bench.broker.garble = end
    bench.append(b"one")
    bench.append(b"two")
    assert bench.values == [b"one", b"two"]


def test_what_is_refused_before_it_is_appended_is_sent_again(bench: Bench) -> None:
    bench.broker.refuse = [6, 19, 74, 3]
    bench.append(b"one")
    assert bench.values == [b"one"]


def test_a_producer_that_the_leader_does_not_know_is_replaced(bench: Bench) -> None:
    bench.append(b"one")
    bench.broker.refuse = [59]
    bench.append(b"two")
    assert bench.values == [b"one", b"two"]
    assert bench.ids() == 2


def test_a_batch_that_may_be_there_is_not_sent_under_another_producer(bench: Bench) -> None:
    bench.broker.refuse = [20, 59]
    with pytest.raises(DeliveryTimeoutError, match="whether the cluster has the lines is not known"):
        bench.append(b"one")
    bench.append(b"two")
    assert bench.values == [b"two"]


def test_nobody_waits_for_a_cluster_when_the_mount_ends(bench: Bench) -> None:
    bench.broker.go()
    bench.link.end_appends()
    began = time.monotonic()
    with pytest.raises(DeliveryTimeoutError, match="does not have the lines"):
        bench.append(b"one")
    assert time.monotonic() - began < CLIENT.delivery_timeout_ms / 2000


def test_only_lines_are_appended_in_the_cluster(bench: Bench) -> None:
    with pytest.raises(LinkedTopicError):
        bench.partition.append(Record(b"value"))
    with pytest.raises(LinkedTopicError):
        bench.partition.end_transaction(1, 0, commit=True)
    assert bench.values == []
