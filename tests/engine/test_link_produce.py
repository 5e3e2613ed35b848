"""Appending to a mirror: a batch is in the cluster once, whatever becomes of its answers."""

from __future__ import annotations

import errno
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest
from patience import PATIENCE_S, eventually
from stand_in_broker import Log, StandInBroker, Topic, values_of

from topicfs import Store
from topicfs.engine import batch as batches
from topicfs.engine.errors import DeliveryTimeoutError, LinkedTopicError, RecordTooLargeError
from topicfs.engine.link.client import ClientSettings
from topicfs.engine.link.options import LinkOptions
from topicfs.engine.link.outcomes import Outcome, outcome_of, refusal_of
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.remote import UnderWay
from topicfs.engine.record import Record, now_ms
from topicfs.fs.appending.line_queue import Sender
from topicfs.fs.errors import answer
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
    store: Store
    link: Link
    partition: Partition

    @property
    def log(self) -> Log:
        """The leader's log."""
        return self.broker.topics["t"].logs[0]

    def append(self, *values: bytes) -> None:
        """Append as the queue of lines does, and wait until the cluster has it."""
        self.send(*values).wait()

    def send(self, *values: bytes, writer: Sender | None = None) -> UnderWay:
        """Have a batch under way."""
        remote = self.partition.log.remote
        assert remote is not None
        writers = () if writer is None else (writer,)
        return remote.send(batches.from_records([Record(value) for value in values], now_ms()), writers)

    @property
    def values(self) -> list[bytes | None]:
        """What the mirror shows."""
        return values_of(list(self.partition.records()))

    def ids(self) -> int:
        """How many producers were asked for."""
        return self.broker.asked.get(InitProducerIdRequest, 0)


@contextmanager
def a_bench(tmp_path: Path, client: ClientSettings = CLIENT) -> Iterator[Bench]:
    with (
        StandInBroker.running() as broker,
        Store.open(tmp_path, {"link.bootstrap.servers": broker.bootstrap}, create=True) as store,
    ):
        broker.topics["t"] = Topic()
        options = LinkOptions.of(store.daemon, store.backing)
        assert options is not None
        link = Link(store, LinkOptions(options.bootstrap, options.patterns, options.beginning, client))
        link.start()
        try:
            eventually(lambda: ("t", 0) in store and store.partition("t", 0).log.remote, "the link is there")
            yield Bench(broker, store, link, store.partition("t", 0))
        finally:
            link.stop()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with a_bench(tmp_path) as bench:
        yield bench


def answering(code: int) -> Callable[[Any, Any], None]:
    """Have each batch answered with an error code, though it is appended."""

    def answer_so(_: Any, told: Any) -> None:
        told.responses[0].partition_responses[0].error_code = code

    return answer_so


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


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("code", [19, 20, 6])
def test_batches_under_way_are_sent_again_in_their_order(bench: Bench, code: int, known: bool) -> None:
    if known:
        bench.append(b"known")
    bench.broker.refuse = [code] * 2
    for each in [bench.send(b"%d" % number) for number in range(9)]:
        each.wait()
    assert bench.values == [b"known"] * known + [b"%d" % number for number in range(9)]


def test_five_batches_are_under_way_and_a_sixth_waits(bench: Bench) -> None:
    bench.append(b"known")
    go_on = threading.Event()
    bench.broker.twist[ProduceRequest] = lambda *_: go_on.wait(PATIENCE_S) and None
    remote = bench.partition.log.remote
    assert remote is not None
    under_way = []
    for number in range(5):
        assert not remote.is_full
        under_way.append(bench.send(b"%d" % number))
    assert remote.is_full
    with (
        mock.patch.object(bench.store.links, "given_up", return_value=True),
        pytest.raises(DeliveryTimeoutError),
    ):
        remote.await_room()
    go_on.set()
    remote.await_room()
    assert not remote.is_full
    for each in under_way:
        each.wait()
    assert bench.values == [b"known", *(b"%d" % number for number in range(5))]


def test_a_connection_that_ends_with_five_batches_under_way_doubles_none(bench: Bench) -> None:
    bench.append(b"known")
    answers = itertools.count()

    def end(kind: Any, data: bytes) -> bytes:
        if kind is ProduceRequest and next(answers) == 2:
            bench.broker.go()
            bench.broker.come()
        return data

    bench.broker.garble = end
    under_way = [bench.send(b"%d" % number) for number in range(7)]
    for each in under_way:
        each.wait()
    assert bench.values == [b"known", *(b"%d" % number for number in range(7))]
    assert bench.ids() == 1


def test_a_duplicate_whose_offset_the_leader_does_not_know_is_there(bench: Bench) -> None:
    def forget(_: Any, answer: Any) -> None:
        told = answer.responses[0].partition_responses[0]
        told.error_code, told.base_offset = 46, -1

    bench.broker.twist[ProduceRequest] = forget
    bench.append(b"one")
    bench.append(b"two")
    assert bench.values == [b"one", b"two"]


def test_a_refused_batch_takes_with_it_what_its_writer_wrote_behind_it(bench: Bench) -> None:
    bench.append(b"known")
    one, other = Sender(0), Sender(0)
    bench.broker.refuse = [10]
    under_way = [
        bench.send(b"one", writer=one),
        bench.send(b"other", writer=other),
        bench.send(b"two", writer=one),
    ]
    under_way[1].wait()
    for lost in (under_way[0], under_way[2]):
        with pytest.raises(RecordTooLargeError):
            lost.wait()
    assert isinstance(one.lost, RecordTooLargeError)
    assert other.lost is None
    bench.append(b"behind")
    assert bench.values == [b"known", b"other", b"behind"]


def test_what_may_be_there_when_its_time_is_over_is_told_so_unless_the_mirror_has_it(tmp_path: Path) -> None:
    client = replace(CLIENT, delivery_timeout_ms=400)
    with a_bench(tmp_path, client) as bench:
        late = answering(20)
        bench.broker.twist[ProduceRequest] = late
        bench.append(b"mirrored")
        assert bench.values == [b"mirrored"]
        bench.broker.refuse = [20] * 1000
        with pytest.raises(DeliveryTimeoutError, match="may have the lines, or not"):
            bench.append(b"lost")
        assert bench.values == [b"mirrored"]


@pytest.mark.parametrize(
    ("codes", "outcome"),
    [
        ((0, 46), Outcome.APPENDED),
        ((3, 5, 6, 9, 14, 15, 16, 19, 72, 74, 75, 100, 103), Outcome.AGAIN),
        ((7, 13, 20, 56), Outcome.LATE),
        ((45,), Outcome.UNORDERED),
        ((47, 59, 90), Outcome.FORGOTTEN),
        ((-1, 10, 18, 29, 31, 53, 2, 32, 44, 76, 87, 17), Outcome.REFUSED),
    ],
)
def test_each_error_code_has_one_outcome(codes: tuple[int, ...], outcome: Outcome) -> None:
    assert {outcome_of(code) for code in codes} == {outcome}


@pytest.mark.parametrize(
    ("code", "number"),
    [
        *((code, errno.EMSGSIZE) for code in (10, 18)),
        *((code, errno.EACCES) for code in (29, 31, 53)),
        *((code, errno.EINVAL) for code in (2, 32, 44, 76, 87)),
        *((code, errno.EIO) for code in (-1, 17, 35)),
    ],
)
def test_each_refusal_has_its_errno(code: int, number: int) -> None:
    assert answer(refusal_of(code, "t-0", "in words")).errno == number


def test_nobody_waits_for_a_cluster_when_the_mount_ends(bench: Bench) -> None:
    bench.broker.go()
    bench.link.end_appends()
    began = time.monotonic()
    with pytest.raises(DeliveryTimeoutError, match="does not have the lines"):
        bench.append(b"one")
    assert time.monotonic() - began < CLIENT.delivery_timeout_ms / 2000


def test_where_no_thread_can_be_had_an_append_fails_and_the_next_one_does_well(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """regression: the first was refused, and each later one waited for ever"""
    start = threading.Thread.start

    def none(thread: threading.Thread) -> None:
        if thread.name.startswith("append-"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none)
        with pytest.raises(OSError, match="can't start") as caught:
            bench.append(b"one")
    assert caught.value.errno == errno.ENOMEM
    bench.append(b"two")
    assert bench.values == [b"two"]


def test_only_lines_are_appended_in_the_cluster(bench: Bench) -> None:
    with pytest.raises(LinkedTopicError):
        bench.partition.append(Record(b"value"))
    with pytest.raises(LinkedTopicError):
        bench.partition.end_transaction(1, 0, commit=True)
    assert bench.values == []
