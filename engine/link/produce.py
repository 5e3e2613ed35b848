"""Appending to a mirrored partition: its leader in the cluster appends, and the mirror brings it back.

    batch ──▶ window ──▶ producer, epoch, sequence ──▶ the leader ──▶ acknowledged ──▶ the mirror ends behind it
               up to five under way, in their order

Up to five batches are under way at a time: a leader remembers as many of a producer, and takes each once and in the
order of their sequences, whatever became of earlier attempts. After an answer that asks for another attempt no more are
sent until all answers are there; then they are sent again from the first on, that one alone until it is acknowledged.
So is the first batch of a producer, and the first after a pause: a leader that does not know a producer takes a batch
of any sequence, and would take the second one where it refuses the first.

A batch is sent until the leader has it, or refuses it, or `delivery.timeout.ms` is over. Then it is lost, and with it
what its writers wrote behind it, and what may have reached the leader behind it. Whether the cluster has a batch whose
answer never came cannot be found out for certain, so the words of the error say what is known.
"""

from __future__ import annotations

import logging
import os
import select
import struct
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, Final

import numpy as np
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest

from topicfs.engine import batch as batches
from topicfs.engine.errors import (
    ClusterAwayError,
    DeliveryTimeoutError,
    EngineError,
    LinkError,
    LinkRefusedError,
)
from topicfs.engine.files.metadata import uuid_bytes
from topicfs.engine.kernels import encode
from topicfs.engine.kernels.scan import ATTRIBUTES, COUNT, MAX_TIMESTAMP
from topicfs.engine.link.cluster import Cluster
from topicfs.engine.link.connection import Connection, words_of
from topicfs.engine.link.fetch import delay_s
from topicfs.engine.link.mirror import Mirror
from topicfs.engine.link.outcomes import MOVED, NOT_ALLOWED, Outcome, outcome_of, refusal_of
from topicfs.engine.partition.remote import Writer
from topicfs.engine.producer.entry import increment
from topicfs.engine.record import MAX_INT32, NO_PRODUCER_EPOCH, NO_PRODUCER_ID

log = logging.getLogger(__name__)

MOST_UNDER_WAY: Final = 5
"""Kafka's `max.in.flight.requests.per.connection` of an idempotent producer."""

_IDLE_S: Final = 10.0
"""After so long without a batch the thread and the connection of a partition end."""

_ALL: Final = -1
"""The acks with which a transaction is produced."""

_PRODUCE: Final = 0
_BY_ID: Final = 13
_BY_NAME: Final = 9
"""The first version of Produce that names topics by their ids, and one that brokers before it know."""

_PRODUCER: Final = struct.Struct(">qhi")
_PRODUCER_AT: Final = 43
"""Producer id, epoch and base sequence, and where they are in a batch."""

_LOOK_S: Final = 0.2
"""How often a wait looks whether the link ends, or its caller has given up."""


class Sent:
    """A batch that was taken.

    data           its bytes
    count          how many records it has
    writers        who wrote its lines
    deadline       when it is lost, by time.monotonic
    producer       the producer's id and epoch
    sequence       the sequence number of its first record; None before it is sent for the first time
    may_be_there   whether an attempt may have been appended
    is_given_up    whether who waited for it waits no longer: it is sent no more
    last           its last offset, once it is acknowledged; None where the leader did not tell it
    error          why it is lost
    """

    def __init__(
        self, producer: Producer, batch: batches.Batch, writers: Collection[Writer], deadline: float
    ) -> None:
        self.data = batch.data
        self.count = int(batch.row[COUNT])
        self.writers = writers
        self.deadline = deadline
        self.producer = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        self.sequence: int | None = None
        self.may_be_there = False
        self.is_given_up = False
        self.last: int | None = None
        self.error: EngineError | None = None
        self.done = threading.Event()
        self._producer = producer

    @property
    def is_lost(self) -> bool:
        """Tell whether the cluster has refused it, or has not acknowledged it in time."""
        return self.error is not None

    def wait(self) -> None:
        """Wait until the cluster has acknowledged the batch and the mirror shows it. Raise why it is lost, or
        DeliveryTimeoutError where the caller has given up."""
        self._producer.await_shown(self)

    def stamp(self, producer: tuple[int, int], sequence: int) -> None:
        """Set the producer and the sequence, and the checksum anew."""
        data = self.data
        fields = _PRODUCER.pack(*producer, sequence)
        data[_PRODUCER_AT : _PRODUCER_AT + _PRODUCER.size] = np.frombuffer(fields, np.uint8)
        row = batches.scan(data, check=False)[0]
        encode.restamp(data, 0, data.size, int(row[ATTRIBUTES]), int(row[MAX_TIMESTAMP]))
        self.producer, self.sequence = producer, sequence


class Producer:
    """What appends to one partition of the cluster. Several threads may call it; a thread of its own sends.

    mirror       the mirror of the partition
    _cluster     the cluster
    _moved       called when the leader is no longer the right one to ask
    _stopping    set when the link ends: then nobody waits any more
    _given_up    tells whether the caller waits no longer, as a signal has come for it
    _run         starts a thread that runs a function, under a name
    _transaction the id of the transaction that the batches belong to, and its producer; None for single batches
    _is_begun    whether its producer was taken
    _is_ended    whether nothing is sent any more
    _window      the batches that are not acknowledged, in their order
    _changed     guards the window, and is notified when a batch leaves it
    _is_working  whether the thread runs
    _wake        wakes the thread; an eventfd, −1 without a thread

    The others are the thread's own:

    _producer    the producer's id and epoch; None: a new one is asked for
    _sequence    the sequence number of the next record
    _connection  to the leader; None: it is to be made
    _out         the batches on the connection whose answers have not come, the first of the window
    _room        how many of them there may be
    _is_held     whether none is sent until all answers are there
    _verdict     what the answer to the first batch of the window was, if another attempt has to come
    _heard       when the last answer came, or the first request went out that waits for one
    _failures    how many attempts failed one after the other
    _words       the last failure
    """

    def __init__(
        self,
        mirror: Mirror,
        cluster: Cluster,
        moved: Callable[[], None],
        stopping: threading.Event,
        given_up: Callable[[], bool],
        run: Callable[[Callable[[], None], str], None],
        transaction: tuple[str, tuple[int, int]] | None = None,
    ) -> None:
        self.mirror = mirror
        self._cluster = cluster
        self._moved = moved
        self._stopping = stopping
        self._given_up = given_up
        self._run = run
        self._transaction = transaction
        self._is_begun = self._is_ended = False
        self._window: deque[Sent] = deque()
        self._changed = threading.Condition()
        self._is_working = False
        self._wake = -1
        self._producer: tuple[int, int] | None = None
        self._sequence = 0
        self._connection: Connection | None = None
        self._out: deque[Sent] = deque()
        self._room = 1
        self._is_held = False
        self._verdict = (Outcome.AGAIN, 0, "")
        self._heard = 0.0
        self._failures = 0
        self._words = "it was not sent yet"

    # -- who appends ----------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Tell whether batches are under way."""
        return bool(self._window)

    @property
    def is_full(self) -> bool:
        """Tell whether as many batches are under way as may be."""
        return len(self._window) >= MOST_UNDER_WAY

    def await_room(self) -> None:
        """Wait while it is full. DeliveryTimeoutError where that lasts for too long, or the caller has given up."""
        if not self.is_full:
            return
        deadline = self._deadline()
        with self._changed:
            while self.is_full:
                self._changed.wait(_LOOK_S)
                if self.is_full and (time.monotonic() >= deadline or self._has_given_up()):
                    raise self._timeout(False)

    def send(self, batch: batches.Batch, writers: Collection[Writer]) -> Sent:
        """Take a batch, which goes behind all that were taken before. If it is lost, its writers are told in `lost`."""
        sent = Sent(self, batch, writers, self._deadline())
        with self._changed:
            if self._is_working:
                os.eventfd_write(self._wake, 1)
            else:
                self._begin()
            self._window.append(sent)
        return sent

    def _begin(self) -> None:
        """Have a thread work. Where none can be had, nothing is taken, and the next batch tries again. The caller holds
        the lock, which the thread takes first."""
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self._run(self._work, f"append-{self.mirror.name}")
        except BaseException:
            os.close(self._wake)
            self._wake = -1
            raise
        self._is_working = True

    def end(self) -> None:
        """Send nothing any more: what is under way is lost."""
        self._is_ended = True
        with self._changed:
            if self._is_working:
                os.eventfd_write(self._wake, 1)

    def await_shown(self, sent: Sent) -> None:
        """Wait until a batch is acknowledged and mirrored. Raise why it is lost."""
        while not sent.done.wait(_LOOK_S):
            if self._has_given_up() and not sent.done.is_set():
                with self._changed:
                    if sent.sequence is None and sent in self._window:
                        self._window.remove(sent)
                        self._lose(sent, self._timeout(False))
                        break
                    sent.is_given_up = True
                raise self._timeout(True)
        if sent.error is not None:
            raise sent.error
        self._await_mirror(sent)

    def _await_mirror(self, sent: Sent) -> None:
        """Wait until the mirror has a batch: whoever reads here then sees what was written here."""
        partition_log = self.mirror.partition.log
        while partition_log.is_open and not self._is_shown(sent):
            if time.monotonic() >= sent.deadline or self._has_given_up():
                log.warning(f"{self.mirror.name}: a batch is acknowledged, and not mirrored yet: {sent.last}")
                return
            partition_log.wait_for_end(
                partition_log.snapshot.end if sent.last is None else sent.last, _LOOK_S
            )

    def _is_shown(self, sent: Sent) -> bool:
        if sent.last is not None:
            return self.mirror.partition.log.snapshot.end > sent.last
        return self._is_mirrored(sent)

    def _has_given_up(self) -> bool:
        return self._stopping.is_set() or self._given_up()

    def _deadline(self) -> float:
        return time.monotonic() + self._cluster.client.delivery_timeout_ms / 1000

    def _timeout(self, may_be_there: bool) -> DeliveryTimeoutError:
        outcome = "may have the lines, or not" if may_be_there else "does not have the lines"
        return DeliveryTimeoutError(
            f"{self.mirror.name}: no acknowledgement within {self._cluster.client.delivery_timeout_ms} ms "
            f"(delivery.timeout.ms), or before the mount or the writer ends: {self._words}. The cluster {outcome}"
        )

    # -- the thread -----------------------------------------------------------------------------------

    def _work(self) -> None:
        """Deliver batches, until none has come for a while."""
        self._room, self._failures = 1, 0
        while self._await_batch():
            try:
                self._exchange()
                if not self._failures:
                    self.mirror.note_append(None)
            except (LinkRefusedError, DeliveryTimeoutError) as error:
                self._disconnect()
                self._fail_first(error)
            except LinkError as error:
                self._disconnect()
                self._moved()
                self._pause(str(error))
            except Exception as error:
                log.exception(f"{self.mirror.name}: appending failed unexpectedly, and is tried again")
                self._disconnect()
                self._pause(repr(error))

    def _await_batch(self) -> bool:
        """Wait for a batch. Return False where the thread ends, as none has come."""
        end = time.monotonic() + _IDLE_S
        while True:
            with self._changed:
                self._give_up_what_is_over()
                if self._window:
                    return True
                if self._is_over or time.monotonic() >= end:
                    self._disconnect()
                    self._is_working = False
                    os.close(self._wake)
                    self._wake = -1
                    return False
            self.mirror.note_append(None)
            _await_readable(self._wake, _LOOK_S)

    @property
    def _is_over(self) -> bool:
        return self._is_ended or self._stopping.is_set()

    def _give_up_what_is_over(self) -> None:
        """Lose the first batches whose time is over, or whose writers wait no longer. The caller holds the lock."""
        while self._window:
            first = self._window[0]
            is_left = first.is_given_up and first not in self._out
            if not (is_left or self._is_over or time.monotonic() >= first.deadline):
                return
            self._disconnect()
            if first.may_be_there and self._is_mirrored(first):
                self._acknowledge(first, None)
            else:
                self._fail(first, self._timeout(first.may_be_there))

    def _exchange(self) -> None:
        """Send the next batch, or take the next answer."""
        connection = self._connection or self._connect()
        if self._producer is None:
            self._producer, self._sequence = self._new_producer(), 0
        batch = self._next()
        if batch is not None:
            connection.send(self._request(connection, batch))
        elif self._is_held and not self._out:
            self._resolve()
        elif not self._out:
            return
        elif connection.is_ready(self._wake, _LOOK_S):
            told = connection.receive()
            self._heard = time.monotonic()
            self._settle(self._out.popleft(), told)
        elif time.monotonic() - self._heard > self._cluster.client.request_timeout_ms / 1000:
            raise ClusterAwayError(f"{connection.address}: no answer to a batch (request.timeout.ms)")

    def _connect(self) -> Connection:
        leader = self.mirror.leader
        if leader.leader < 0:
            raise ClusterAwayError("the partition has no leader")
        self._connection = self._cluster.connect(self._cluster.address_of(leader.leader))
        return self._connection

    def _disconnect(self) -> None:
        """Give the connection up. Whether the batches on it were appended is not known."""
        for batch in self._out:
            batch.may_be_there = True
        self._out.clear()
        self._is_held, self._room = False, 1
        if self._connection is not None:
            self._cluster.let_go(self._connection)
            self._connection = None

    def _next(self) -> Sent | None:
        """Return the batch that is to be sent now, stamped; None where one has to wait."""
        with self._changed:
            if self._is_held or not len(self._out) < min(self._room, len(self._window)):
                return None
            batch = self._window[len(self._out)]
            if batch.sequence is None:
                assert self._producer is not None
                batch.stamp(self._producer, self._sequence)
                self._sequence = increment(self._sequence, batch.count)
            if not self._out:
                self._heard = time.monotonic()
            self._out.append(batch)
            return batch

    def _request(self, connection: Connection, batch: Sent) -> Any:
        mirror, client = self.mirror, self._cluster.client
        # From version 12 on a batch adds its partition to the transaction, which is ended in another way then.
        knows_ids = connection.versions.get(_PRODUCE, (0, 0))[1] >= _BY_ID
        version = _BY_ID if knows_ids and self._transaction is None else _BY_NAME
        data = ProduceRequest.TopicProduceData
        part = data.PartitionProduceData(version=version, index=mirror.number, records=batch.data.tobytes())
        of_topic = data(
            version=version,
            name=mirror.topic,
            topic_id=uuid.UUID(bytes=uuid_bytes(mirror.topic_id)),
            partition_data=[part],
        )
        left_ms = int((batch.deadline - time.monotonic()) * 1000)
        return ProduceRequest[version](
            transactional_id=None if self._transaction is None else self._transaction[0],
            acks=client.acks if self._transaction is None else _ALL,
            timeout_ms=max(1, min(left_ms, client.request_timeout_ms * 4 // 5)),
            topic_data=[of_topic],
        )

    def _settle(self, batch: Sent, answer: Any) -> None:
        """Note what the leader says of a batch."""
        found = [each for told in answer.responses for each in told.partition_responses]
        if len(found) != 1 or found[0].index != self.mirror.number:
            batch.may_be_there = True
            raise ClusterAwayError(f"{self.mirror.name}: the leader's answer to a batch is about others")
        code, offset = found[0].error_code, found[0].base_offset
        outcome = outcome_of(code)
        with self._changed:
            is_first = batch is self._window[0]
            if outcome is Outcome.APPENDED:
                self._acknowledge(batch, offset + batch.count - 1 if offset >= 0 else None)
                if not self._is_held:
                    self._room, self._failures = MOST_UNDER_WAY, 0
                return
            self._is_held = True
            batch.may_be_there = batch.may_be_there or outcome is Outcome.LATE
            if is_first:
                self._verdict = outcome, code, found[0].error_message or ""

    def _resolve(self) -> None:
        """Do what the first answer asks for that was no acknowledgement, as all answers are there."""
        (outcome, code, message), first = self._verdict, self._window[0]
        self._is_held, self._room = False, 1
        words = f"{words_of(code)}{f': {message}' if message else ''}"
        if outcome is Outcome.REFUSED:
            self._words = words
            self._fail_first(refusal_of(code, self.mirror.name, message))
        elif outcome in (Outcome.UNORDERED, Outcome.FORGOTTEN):
            if not first.may_be_there:
                self._begin_anew()
                self._pause(words)
            elif self._is_mirrored(first):
                with self._changed:
                    self._acknowledge(first, None)
            else:
                self._fail_first(
                    DeliveryTimeoutError(
                        f"{self.mirror.name}: the leader has forgotten the producer of a batch that was sent before: "
                        f"whether the cluster has the lines is not known: {words}"
                    )
                )
        else:
            if code in MOVED:
                self._disconnect()
                self._moved()
            self._pause(words)

    def _pause(self, words: str) -> None:
        """Wait before the next attempt: longer each time."""
        self._words = words
        self.mirror.note_append(f"{words}; tried again")
        end = time.monotonic() + delay_s(self._cluster.client, self._failures)
        self._failures += 1
        while (left_s := end - time.monotonic()) > 0 and not self._stopping.wait(min(left_s, _LOOK_S)):
            with self._changed:
                self._give_up_what_is_over()

    # -- the end of a batch ---------------------------------------------------------------------------

    def _acknowledge(self, batch: Sent, last: int | None) -> None:
        """Note that the cluster has a batch. The caller holds the lock."""
        self._window.remove(batch)
        batch.last = last
        # Whoever keeps a batch to wait for it, as a transaction does, need not keep its bytes.
        batch.data = np.empty(0, np.uint8)
        batch.done.set()
        self._changed.notify_all()

    def _fail_first(self, error: EngineError) -> None:
        with self._changed:
            if self._window:
                first = self._window[0]
                is_sure = isinstance(error, DeliveryTimeoutError) or not first.may_be_there
                self._fail(first, error if is_sure else self._timeout(True))

    def _fail(self, first: Sent, error: EngineError) -> None:
        """Lose the first batch, and what its writers wrote behind it, and what may be there behind it. The rest is sent
        by another producer. The caller holds the lock; no answer is to come."""
        lost: set[int] = set()
        for batch in tuple(self._window):
            if batch is first or batch.may_be_there or not lost.isdisjoint(map(id, batch.writers)):
                lost.update(map(id, batch.writers))
                self._window.remove(batch)
                is_behind = batch is not first and batch.may_be_there
                self._lose(batch, self._timeout(True) if is_behind else error)
        self._begin_anew()

    def _lose(self, batch: Sent, error: EngineError) -> None:
        for writer in batch.writers:
            writer.lost = error
        batch.error = error
        batch.done.set()
        self._changed.notify_all()

    def _begin_anew(self) -> None:
        """Have a new producer asked for, whose sequences begin at 0. No batch of the window may be there."""
        self._producer = None
        self._room = 1
        for batch in self._window:
            batch.sequence = None

    def _is_mirrored(self, batch: Sent) -> bool:
        """Tell whether the mirror has a batch: its producer and sequence are in it."""
        if batch.sequence is None:
            return False
        producer_id, epoch = batch.producer
        entry = self.mirror.partition.log.producers.producers.get(producer_id)
        if entry is None or entry.epoch != epoch:
            return False
        behind = (entry.last_sequence - increment(batch.sequence, batch.count - 1)) % (MAX_INT32 + 1)
        return behind < MAX_INT32 // 2

    def _new_producer(self) -> tuple[int, int]:
        if self._transaction is not None:
            if self._is_begun:
                raise DeliveryTimeoutError(
                    f"{self.mirror.name}: the cluster has aborted the transaction, or has given its producer to "
                    f"another one: {self._words}"
                )
            self._is_begun = True
            return self._transaction[1]
        request = InitProducerIdRequest[4](
            transactional_id=None,
            transaction_timeout_ms=self._cluster.client.transaction_timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
        )
        answer = self._cluster.ask_any(request)
        if answer.error_code in NOT_ALLOWED:
            raise LinkRefusedError(
                f"this user may not append: {words_of(answer.error_code)}: it needs IdempotentWrite"
            )
        if answer.error_code or answer.producer_id < 0:
            raise ClusterAwayError(f"no producer id: {words_of(answer.error_code)}")
        return int(answer.producer_id), int(answer.producer_epoch)


def _await_readable(descriptor: int, timeout_s: float) -> None:
    """Wait until an eventfd is written to, and reset it."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if poll.poll(timeout_s * 1000):
        os.eventfd_read(descriptor)
