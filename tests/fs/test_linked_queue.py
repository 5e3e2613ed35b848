"""The queue of a mirrored partition while what appends in the cluster is not there."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from patience import PATIENCE_S
from tree_bench import LINGER_MS, TreeBench, array

from topicfs.engine import batch as batches
from topicfs.engine.errors import DeliveryTimeoutError, LinkedTopicError
from topicfs.engine.partition.remote import Remote, UnderWay, Writer
from topicfs.fs.appending.line_queue import Sender
from topicfs.fs.appending.linger import Linger
from topicfs.fs.appending.linked_queue import LinkedQueue

NOTHING = np.empty(0, np.uint8)
TIMEOUT_MS = 1000


class Acknowledged:
    """A batch that the cluster has."""

    is_lost = False

    def wait(self) -> None:
        """It waits for nothing."""


@dataclass
class Leader:
    """Stands for what appends in the cluster."""

    values: list[bytes | None] = field(default_factory=list)
    is_busy: bool = False
    is_full: bool = False

    def await_room(self) -> None:
        """There is always some."""

    def send(self, batch: batches.Batch, writers: Collection[Writer]) -> UnderWay:
        (columns,) = batches.columns(batch.data, batch.row.reshape(1, -1))
        self.values += [record.value for record in columns.records()]
        return Acknowledged()


@dataclass
class Bench:
    """A queue, and the way from it to the cluster.

    time      the steady clock
    waiting   set while somebody waits for the leader
    given_up  set when nobody waits any more
    refusal   why waiting is no use
    """

    place: TreeBench
    leader: Leader = field(default_factory=Leader)
    time: int = 0
    waiting: threading.Event = field(default_factory=threading.Event)
    given_up: threading.Event = field(default_factory=threading.Event)
    came: threading.Event = field(default_factory=threading.Event)
    refusal: LinkedTopicError | None = None
    refused: list[Exception] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.partition = self.place.create().partition
        linger = Linger(LINGER_MS, lambda: self.time)
        self.queue = LinkedQueue(self.partition, self, linger, self.refused.append)
        self.comes()

    def comes(self) -> None:
        self.partition.log.remote = cast("Remote", self.leader)
        self.came.set()

    def goes(self) -> None:
        self.partition.log.remote = None
        self.came.clear()

    def remote(self) -> Remote:
        found = self.partition.log.remote
        if found is None:
            self.waiting.set()
            while not self.came.wait(0.01):
                if self.refusal is not None:
                    raise self.refusal
                if self.given_up.is_set():
                    raise DeliveryTimeoutError("nothing was sent")
            found = self.partition.log.remote
            assert found is not None
        return found

    def check_coming(self, waited_ms: int) -> None:
        if self.refusal is not None:
            raise self.refusal
        if waited_ms >= TIMEOUT_MS:
            raise DeliveryTimeoutError("nothing was sent")

    def put(self, sender: Sender, line: bytes) -> int:
        return self.queue.put_lines(sender, NOTHING, array(line + b"\n"), self.time)[0]

    def streams(self) -> Sender:
        """A writer whose lines gather, one of them already."""
        sender = Sender(1 << 20)
        self.put(sender, b"first")
        self.put(sender, b"second")
        assert self.leader.values == [b"first"]
        return sender


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    place = TreeBench(tmp_path)
    yield Bench(place)
    place.files.close_all()
    place.store.close()


def test_who_waits_for_the_mirror_holds_up_nobody_else(bench: Bench) -> None:
    writer, other = bench.streams(), Sender(1 << 20)
    bench.goes()
    thread = threading.Thread(target=bench.put, args=(writer, b"third"))
    thread.start()
    assert bench.waiting.wait(PATIENCE_S)
    bench.time += LINGER_MS
    assert bench.queue._lock.acquire(blocking=False), "no lock is held"
    bench.queue._lock.release()
    bench.queue.flush_due()
    bench.queue.flush_all()
    bench.queue.leave(other)
    assert bench.leader.values == [b"first"]
    bench.comes()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    bench.queue.flush(writer)
    assert bench.leader.values == [b"first", b"second", b"third"]


def test_lines_that_are_due_stay_until_the_mirror_is_ready(bench: Bench) -> None:
    """regression: they were lost, as without a link"""
    writer = bench.streams()
    bench.goes()
    bench.time += LINGER_MS
    for _ in range(3):
        bench.queue.flush_due()
        due = bench.queue.due_ms
        assert due is not None
        assert due > bench.time, "the flusher rests meanwhile"
        bench.time = due
    bench.comes()
    bench.queue.flush_due()
    assert bench.leader.values == [b"first", b"second"]
    assert bench.queue.due_ms is None
    assert writer.lost is None
    assert bench.refused == []


@pytest.mark.parametrize("ends", [True, False])
def test_lines_that_are_due_for_too_long_are_lost(bench: Bench, ends: bool) -> None:
    writer = bench.streams()
    bench.goes()
    if ends:
        bench.refusal = LinkedTopicError("it has ended")
    bench.time += LINGER_MS if ends else TIMEOUT_MS
    bench.queue.flush_due()
    bench.comes()
    with pytest.raises(LinkedTopicError if ends else DeliveryTimeoutError):
        bench.put(writer, b"third")
    assert len(bench.refused) == 1
    bench.put(writer, b"fourth")
    bench.queue.flush(writer)
    assert bench.leader.values == [b"first", b"fourth"]


def test_a_close_waits_for_the_mirror(bench: Bench) -> None:
    writer = bench.streams()
    bench.goes()
    thread = threading.Thread(target=bench.queue.flush, args=(writer,))
    thread.start()
    assert bench.waiting.wait(PATIENCE_S)
    bench.comes()
    thread.join(PATIENCE_S)
    assert bench.leader.values == [b"first", b"second"]
    bench.put(writer, b"third")
    bench.goes()
    bench.given_up.set()
    with pytest.raises(DeliveryTimeoutError):
        bench.queue.flush(writer)
    bench.comes()
    bench.queue.flush(writer)
    assert bench.leader.values == [b"first", b"second"], "what was reported as failed is never applied later"


def test_a_queue_forgets_how_it_waited(bench: Bench) -> None:
    writer = bench.streams()
    bench.goes()
    bench.time += LINGER_MS
    bench.queue.flush_due()
    bench.comes()
    bench.queue.flush(writer)
    bench.put(writer, b"third")
    assert bench.queue.due_ms == bench.time + LINGER_MS
