"""Appending to a mirrored partition: its leader in the cluster appends, and the mirror brings it back.

    a batch of lines ──▶ producer, epoch, sequence ──▶ the leader, until it acknowledges ──▶ the mirror ends behind it

A batch is sent until the leader answers with an offset, or refuses it, or `delivery.timeout.ms` is over. It carries the
same sequence each time, so that the leader appends it once, whatever became of earlier attempts. One batch of a
partition is under way at a time: lines of one partition have one order.
"""

from __future__ import annotations

import logging
import struct
import threading
import time
from collections.abc import Callable
from typing import Final

import numpy as np
from kafka.protocol.producer import InitProducerIdRequest

from topicfs.engine import batch as batches
from topicfs.engine.batch.table import Bytes
from topicfs.engine.errors import (
    ClusterAwayError,
    DeliveryTimeoutError,
    InvalidRecordError,
    LinkError,
    LinkRefusedError,
    RecordTooLargeError,
)
from topicfs.engine.format.batch_header import LOG_APPEND_TIME
from topicfs.engine.kernels import encode
from topicfs.engine.kernels.scan import ATTRIBUTES, COUNT, MAX_TIMESTAMP
from topicfs.engine.link.cluster import Cluster
from topicfs.engine.link.connection import words_of
from topicfs.engine.link.fetch import delay_s
from topicfs.engine.link.mirror import Mirror
from topicfs.engine.partition.offsets import Appended
from topicfs.engine.producer.entry import increment

log = logging.getLogger(__name__)

_TRANSACTION_MS: Final = 60_000

_PASSING: Final = frozenset({3, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 56, 72, 74, 75})
"""Errors that pass: there is no leader, or too few replicas, or an answer is late. The batch is sent again."""

_LATE: Final = frozenset({7, 13, 20, 56})
"""Those of them after which the leader may have appended the batch."""

_MOVED: Final = frozenset({3, 5, 6, 9, 72, 74, 75})
_TOO_LARGE: Final = frozenset({10, 18})
_REFUSED: Final = frozenset({29, 31, 53})
_INVALID: Final = frozenset({2, 32, 44, 76, 87})
_UNKNOWN_PRODUCER: Final = frozenset({45, 47, 59, 90})
"""The leader does not know where this producer was, or has another one of its id. It has not appended the batch."""

_PRODUCER: Final = struct.Struct(">qhi")
_PRODUCER_AT: Final = 43
"""Producer id, epoch and base sequence, and where they are in a batch."""

_LOOK_S: Final = 0.2
"""How often a wait looks whether the link ends, or its caller has given up."""


class Producer:
    """What appends to one partition of the cluster. The queue of the partition's lines calls it, one batch at a time.

    mirror       the mirror of the partition
    delivery_ms  how long a batch is sent again and again
    _cluster     the cluster
    _moved       called when the leader is no longer the right one to ask
    _stopping    set when the link ends: then nobody waits any more
    _given_up    tells whether the caller waits no longer, as a signal has come for it
    _producer    the producer's id and epoch; None: a new one is asked for
    _sequence    the sequence number of the next record
    _lock        held while a batch is under way
    """

    def __init__(
        self,
        mirror: Mirror,
        cluster: Cluster,
        moved: Callable[[], None],
        stopping: threading.Event,
        given_up: Callable[[], bool],
    ) -> None:
        self.mirror = mirror
        self.delivery_ms = cluster.client.delivery_timeout_ms
        self._cluster = cluster
        self._moved = moved
        self._stopping = stopping
        self._given_up = given_up
        self._producer: tuple[int, int] | None = None
        self._sequence = 0
        self._lock = threading.Lock()

    def append(self, batch: batches.Batch) -> Appended:
        """Append a batch in the cluster. Return when the leader has acknowledged it and the mirror has it too.

        DeliveryTimeoutError where nothing is acknowledged in time: then it is not known whether the cluster has it.
        RecordTooLargeError, InvalidRecordError, LinkRefusedError or LinkError where the cluster refuses it."""
        with self._lock:
            deadline = time.monotonic() + self.delivery_ms / 1000
            data = batch.data.copy()
            attributes = int(batch.row[ATTRIBUTES])
            if attributes & LOG_APPEND_TIME:
                # The append time is the leader's to give.
                encode.restamp(
                    data, 0, data.size, attributes & ~LOG_APPEND_TIME, int(batch.row[MAX_TIMESTAMP])
                )
            count = int(batch.row[COUNT])
            try:
                first = self._deliver(data, deadline)
            except BaseException:
                # Whether the cluster has the batch may not be known, so the next sequence is not known either.
                self._producer = None
                raise
            self._sequence = increment(self._sequence, count)
            last = first + count - 1
            self._await_mirror(last, deadline)
            return Appended(first, last, int(batch.row[MAX_TIMESTAMP]), last)

    def _deliver(self, data: Bytes, deadline: float) -> int:
        """Send a batch until the leader acknowledges it. Return its first offset."""
        failures, is_stamped, was_sent = 0, False, False
        while True:
            try:
                if self._producer is None:
                    if was_sent:
                        raise DeliveryTimeoutError(
                            f"{self.mirror.name}: the leader has forgotten the producer of a batch that was sent "
                            f"before: whether the cluster has the lines is not known"
                        )
                    self._producer, self._sequence, is_stamped = self._new_producer(), 0, False
                if not is_stamped:
                    _stamp(data, *self._producer, self._sequence)
                    is_stamped = True
                return self._send(data, deadline)
            except _AgainError as error:
                was_sent = was_sent or error.was_sent
                if error.needs_producer:
                    self._producer = None
                if error.has_moved:
                    self._moved()
                words = str(error)
            except ClusterAwayError as error:
                was_sent = was_sent or self._producer is not None
                self._moved()
                words = str(error)
            wait_s = delay_s(self._cluster.client, failures)
            failures += 1
            if not self._waits(wait_s, deadline):
                outcome = "may have the lines, or not" if was_sent else "does not have the lines"
                raise DeliveryTimeoutError(
                    f"{self.mirror.name}: no acknowledgement within {self.delivery_ms} ms (delivery.timeout.ms), or "
                    f"before the mount or the writer ends: {words}. The cluster {outcome}"
                )

    def _waits(self, wait_s: float, deadline: float) -> bool:
        """Wait before the next attempt. Return False where none is to be made any more."""
        end = time.monotonic() + wait_s
        while (left_s := end - time.monotonic()) > 0:
            if end >= deadline or self._given_up() or self._stopping.wait(min(left_s, _LOOK_S)):
                return False
        return True

    def _new_producer(self) -> tuple[int, int]:
        request = InitProducerIdRequest[4](
            transactional_id=None, transaction_timeout_ms=_TRANSACTION_MS, producer_id=-1, producer_epoch=-1
        )
        answer = self._cluster.ask_any(request)
        if answer.error_code in _REFUSED:
            raise LinkRefusedError(
                f"this user may not append: {words_of(answer.error_code)}: it needs IdempotentWrite"
            )
        if answer.error_code or answer.producer_id < 0:
            raise _AgainError(f"no producer id: {words_of(answer.error_code)}", False)
        return int(answer.producer_id), int(answer.producer_epoch)

    def _send(self, data: Bytes, deadline: float) -> int:
        """Send a batch once. Return its first offset. _AgainError where it is to be sent again."""
        mirror, leader = self.mirror, self.mirror.leader
        if leader.leader < 0:
            raise _AgainError("the partition has no leader", False)
        left_ms = int((deadline - time.monotonic()) * 1000)
        told = self._cluster.produce(
            leader.leader, mirror.topic, mirror.topic_id, mirror.number, data.tobytes(), max(1, left_ms)
        )
        code = told.error_code
        words = f"{words_of(code)}{f': {told.error_message}' if told.error_message else ''}"
        if code in _PASSING:
            raise _AgainError(words, code in _LATE, has_moved=code in _MOVED)
        if code in _UNKNOWN_PRODUCER:
            raise _AgainError(words, False, needs_producer=True)
        if code in _TOO_LARGE:
            raise RecordTooLargeError(f"{mirror.name}: the cluster refuses {data.size} bytes: {words}")
        if code in _REFUSED:
            raise LinkRefusedError(f"{mirror.name}: {words}: this user needs Write on the topic")
        if code in _INVALID:
            raise InvalidRecordError(f"{mirror.name}: the cluster refuses the lines: {words}")
        if code or told.base_offset < 0:
            raise LinkError(f"{mirror.name}: the cluster does not append: {words}")
        return int(told.base_offset)

    def _await_mirror(self, last: int, deadline: float) -> None:
        """Wait until the mirror has an offset: whoever reads here then sees what was written here."""
        partition_log = self.mirror.partition.log
        while partition_log.snapshot.end <= last and partition_log.is_open:
            if time.monotonic() >= deadline or self._stopping.is_set() or self._given_up():
                log.warning(f"{self.mirror.name}: offset {last} is acknowledged, and not mirrored yet")
                return
            partition_log.wait_for_end(last, _LOOK_S)


class _AgainError(LinkError):
    """A batch is to be sent again.

    was_sent        whether the cluster may have appended it
    has_moved       whether another broker may be the leader
    needs_producer  whether a new producer is needed
    """

    def __init__(
        self, words: str, was_sent: bool, has_moved: bool = False, needs_producer: bool = False
    ) -> None:
        super().__init__(words)
        self.was_sent = was_sent
        self.has_moved = has_moved
        self.needs_producer = needs_producer


def _stamp(data: Bytes, producer_id: int, epoch: int, sequence: int) -> None:
    """Set the producer of a batch, and its checksum anew."""
    fields = _PRODUCER.pack(producer_id, epoch, sequence)
    data[_PRODUCER_AT : _PRODUCER_AT + _PRODUCER.size] = np.frombuffer(fields, np.uint8)
    row = batches.scan(data, check=False)[0]
    encode.restamp(data, 0, data.size, int(row[ATTRIBUTES]), int(row[MAX_TIMESTAMP]))
