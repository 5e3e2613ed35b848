"""Transactions in the cluster: one id for the inbox of each linked topic of a store, and one for each of its
transactions over several.

    InitProducerId        a new epoch: what was open under the id is aborted, and what is still on its way is refused
    AddPartitionsToTxn    before the first batch of a partition
    AddOffsetsToTxn       before the first position of a group; TxnOffsetCommit gives it to the group's coordinator
    EndTxn                commits, or tells how the transaction has ended

The requests are in versions that do not change the epoch when a transaction ends (before Kafka's transaction version
2). So the coordinator answers for the same producer and epoch as often as it is asked. To a request to abort it says:
done; or that the state is another one, which is that of a committed transaction; or that the epoch is an older one. A
newer epoch comes when the coordinator aborts a transaction whose time is over; or from a copy of this store, after any
end. So the mirrors are asked then: a transaction that is no longer open in a partition, and is not in its index of
aborted ones, is committed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from topicfs.engine import batch as batches
from topicfs.engine.batch.columns import Columns
from topicfs.engine.errors import ClusterAwayError, LinkError
from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.inbox.cluster import ClusterCommit
from topicfs.engine.link.cluster import Cluster
from topicfs.engine.link.connection import words_of
from topicfs.engine.link.coordinators import Coordinated, Coordinators
from topicfs.engine.link.mirror import Mirror
from topicfs.engine.link.produce import Producer, Sent
from topicfs.engine.partition.reader import aborted_between
from topicfs.engine.partition.snapshot import Snapshot
from topicfs.engine.partition.transactional import gather
from topicfs.engine.partition.validate import batch_limit, shape_for
from topicfs.engine.transactions.cluster import Identity, LinkedCommit

log = logging.getLogger(__name__)

_SEVERAL: Final = "transactions/"
"""What the ids of transactions over several topics begin with, behind the store's. No topic has a slash in its name."""

_OFFSETS: Final = 3

_INVALID_STATE: Final = 48
_NOT_KNOWN: Final = frozenset({47, 49, 90})
"""The epoch is not the newest, or the id is not known any more."""

_LOOK_S: Final = 0.2


class Transactions:
    """The transactions of one store in the cluster.

    cluster    the cluster
    _store_id  tells this store's ids from those of others
    _mirror    returns the mirror of a partition; None where there is none
    _moved     called when a leader is no longer the right one to ask
    _stopping  set when the link ends: then nobody waits any more
    _given_up  tells whether the caller waits no longer, as a signal has come for it
    _run       starts a thread that runs a function, under a name
    _await_mirror  waits until lines for partitions of a topic go to the cluster; an error where they never do
    _coordinators  the coordinators of transactions
    """

    def __init__(
        self,
        cluster: Cluster,
        store_id: str,
        mirror: Callable[[str, int], Mirror | None],
        moved: Callable[[], None],
        stopping: threading.Event,
        given_up: Callable[[], bool],
        run: Callable[[Callable[[], None], str], None],
        await_mirror: Callable[[str, Sequence[int]], None],
    ) -> None:
        self.cluster = cluster
        self._store_id = store_id
        self._mirror = mirror
        self._moved = moved
        self._stopping = stopping
        self._given_up = given_up
        self._run = run
        self._await_mirror = await_mirror
        self._coordinators = Coordinators(cluster, stopping, given_up)

    def begin(self, topic: str) -> InboxTransaction:
        """Begin a transaction. One of the same topic that is open is aborted, and no record of it comes later."""
        return InboxTransaction(Transaction(self, topic, self._name(topic), self._fence(topic)), topic)

    def abort(self, topic: str) -> None:
        """Abort the topic's transaction, if one is open: no record of it comes later."""
        self._fence(topic)

    def end(self, topic: str, commit: ClusterCommit) -> None:
        """Ask for a transaction to be committed, until the coordinator answers."""
        code = self._end(topic, commit, True)
        if code:
            raise LinkError(f"{topic}: the transaction is not committed: {words_of(code)}")

    def is_committed(self, topic: str, commit: ClusterCommit) -> bool:
        """Tell how a transaction has ended whose commit was asked for. One that is open is aborted."""
        return self._is_committed(topic, commit, _placed(topic, commit))

    # -- over several topics --------------------------------------------------------------------------

    def begin_named(self, name: str) -> Transaction:
        """Begin a transaction. One of the same name that is open is aborted, and no record of it comes later."""
        place = _SEVERAL + name
        return Transaction(self, place, self._name(place), self._fence(place), name)

    def abort_named(self, name: str) -> None:
        """Abort a transaction, if it is open: no record of it comes later."""
        self._fence(_SEVERAL + name)

    def end_named(self, commit: LinkedCommit) -> None:
        """Ask for a transaction to be committed, until the coordinator answers."""
        code = self._end(_SEVERAL + commit.name, commit, True)
        if code:
            raise LinkError(f"transaction {commit.name} is not committed: {words_of(code)}")

    def is_committed_named(self, commit: LinkedCommit) -> bool:
        """Tell how a transaction has ended whose commit was asked for. One that is open is aborted."""
        return self._is_committed(_SEVERAL + commit.name, commit, commit.ranges)

    def await_named(self, commit: LinkedCommit) -> None:
        """Wait until the mirrors show the records of a committed transaction."""
        self._await(commit.ranges)

    # -- how they end ---------------------------------------------------------------------------------

    def _is_committed(
        self, place: str, commit: ClusterCommit | LinkedCommit, ranges: Mapping[PartitionKey, tuple[int, int]]
    ) -> bool:
        code = self._end(place, commit, False)
        if code == 0:
            return False
        if code == _INVALID_STATE:
            return True
        if not ranges:
            raise LinkError(
                f"{place}: the cluster does not know a transaction any more that had positions alone"
            )
        return self._is_committed_here(commit, ranges)

    def _is_committed_here(
        self, commit: ClusterCommit | LinkedCommit, ranges: Mapping[PartitionKey, tuple[int, int]]
    ) -> bool:
        """Tell how a transaction has ended that the coordinator does not know any more, by the mirrors."""
        deadline = self._deadline()
        for (topic, number), (first, last) in ranges.items():
            mirror = self._mirror(topic, number)
            self._await_stable(mirror, last, deadline)
            now = None if mirror is None else mirror.partition.log.snapshot
            if now is None or now.stable <= last or now.start > first:
                raise LinkError(
                    f"{topic}-{number}: the cluster does not know a transaction any more, and the mirror cannot tell "
                    f"how it has ended, as it does not show offsets {first} to {last}: {commit}"
                )
            if _is_aborted(now, first, last, commit.producer_id):
                return False
        return True

    def await_shown(self, topic: str, commit: ClusterCommit) -> None:
        """Wait until the mirrors show the records of a committed transaction."""
        self._await(_placed(topic, commit))

    def _await(self, ranges: Mapping[PartitionKey, tuple[int, int]]) -> None:
        deadline = self._deadline()
        for (topic, number), (_, last) in ranges.items():
            if not self._await_stable(self._mirror(topic, number), last, deadline):
                log.warning(f"{topic}-{number}: offset {last} is committed, and not mirrored yet")
                return

    def _await_stable(self, mirror: Mirror | None, last: int, deadline: float) -> bool:
        """Wait until no transaction below an offset is open in a mirror. Return False where that takes too long."""
        while mirror is not None and not mirror.partition.log.wait_for(last, _LOOK_S):
            if self._coordinators.has_given_up() or time.monotonic() >= deadline:
                return False
        return True

    # -- questions ------------------------------------------------------------------------------------

    def _name(self, topic: str) -> str:
        return f"topicfs-{self._store_id}-{topic}"

    def _fence(self, topic: str) -> tuple[int, int]:
        """Give the topic's id a new epoch. Return its producer."""
        answer = self.ask(
            topic,
            lambda: InitProducerIdRequest[4](
                transactional_id=self._name(topic),
                transaction_timeout_ms=self.cluster.client.transaction_timeout_ms,
                producer_id=-1,
                producer_epoch=-1,
            ),
            lambda answer: answer.error_code,
        )
        if answer.error_code:
            raise LinkError(f"{topic}: no transaction can be begun: {words_of(answer.error_code)}")
        return int(answer.producer_id), int(answer.producer_epoch)

    def _end(self, topic: str, commit: ClusterCommit | LinkedCommit, committed: bool) -> int:
        """Ask for the end of a transaction. Return the error code."""
        answer = self.ask(
            topic,
            lambda: EndTxnRequest[3](
                transactional_id=commit.transactional_id,
                producer_id=commit.producer_id,
                producer_epoch=commit.epoch,
                committed=committed,
            ),
            lambda answer: answer.error_code,
        )
        return int(answer.error_code)

    def ask(self, topic: str, request: Callable[[], Any], code_of: Callable[[Any], int]) -> Any:
        """Ask the coordinator of a topic's transactions, again and again while its errors pass. Return its answer.
        LinkRefusedError where this user may not."""
        return self._coordinators.ask(Coordinated.transaction(topic, self._name(topic)), request, code_of)

    def ask_group(self, group: str, request: Callable[[], Any], code_of: Callable[[Any], int]) -> Any:
        """Ask the coordinator of a group, as `ask` does."""
        return self._coordinators.ask(Coordinated.group(group), request, code_of)

    def producer(self, topic: str, number: int, name: str, producer: tuple[int, int]) -> Producer:
        """Return what appends to a partition in a transaction, once its mirror is ready. LinkedTopicError where it
        never will be, LinkRefusedError where this user may not use the topic, DeliveryTimeoutError where it takes too
        long."""
        self._await_mirror(topic, (number,))
        mirror = self._mirror(topic, number)
        if mirror is None:
            raise ClusterAwayError(f"{topic}-{number}: is not mirrored now")
        return Producer(
            mirror, self.cluster, self._moved, self._stopping, self._given_up, self._run, (name, producer)
        )

    def _deadline(self) -> float:
        return time.monotonic() + self.cluster.client.delivery_timeout_ms / 1000


class Transaction:
    """A transaction that is open.

    records     how many records were added
    _place      what its coordinator's questions are about: a topic, or the name of a transaction
    _name       its transactional id
    _called     what it is called here
    _parts      the writers into its partitions
    """

    def __init__(
        self, transactions: Transactions, place: str, name: str, producer: tuple[int, int], called: str = ""
    ) -> None:
        self.records = 0
        self._transactions = transactions
        self._place = place
        self._name = name
        self._producer = producer
        self._called = called
        self._parts: dict[PartitionKey, _Part] = {}

    def committed_as(self) -> LinkedCommit:
        """Return what the journal is to know of it."""
        ranges = {key: part.range for key, part in self._parts.items() if part.range is not None}
        return LinkedCommit(self._called, self._name, *self._producer, ranges)

    def put(self, key: PartitionKey, columns: Columns) -> None:
        """Add records to a partition. If the topic refuses one of them, none is added."""
        if key not in self._parts:
            # Of a topic that has ended the coordinator says no more than that it does not know it yet.
            producer = self._transactions.producer(*key, self._name, self._producer)
            self._add_partition(*key)
            self._parts[key] = _Part(producer, self._producer)
        self._parts[key].add(columns)
        self.records += len(columns)

    def _add_partition(self, name: str, number: int) -> None:
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        answer = self._transactions.ask(
            self._place,
            lambda: AddPartitionsToTxnRequest[3](
                v3_and_below_transactional_id=self._name,
                v3_and_below_producer_id=self._producer[0],
                v3_and_below_producer_epoch=self._producer[1],
                v3_and_below_topics=[topic(version=3, name=name, partitions=[number])],
            ),
            _code_of_partition,
        )
        code = _code_of_partition(answer)
        if code:
            raise LinkError(f"{name}-{number}: cannot be in the transaction: {words_of(code)}")

    def set_positions(self, group: str, offsets: Mapping[PartitionKey, int], member: Identity) -> None:
        """Add positions of a group, as a member of it or as nobody."""
        answer = self._transactions.ask(
            self._place,
            lambda: AddOffsetsToTxnRequest[_OFFSETS](
                transactional_id=self._name,
                producer_id=self._producer[0],
                producer_epoch=self._producer[1],
                group_id=group,
            ),
            lambda answer: answer.error_code,
        )
        if answer.error_code:
            raise LinkError(f"group {group}: cannot be in the transaction: {words_of(answer.error_code)}")
        answer = self._transactions.ask_group(
            group,
            lambda: TxnOffsetCommitRequest[_OFFSETS](
                transactional_id=self._name,
                group_id=group,
                producer_id=self._producer[0],
                producer_epoch=self._producer[1],
                generation_id=member.generation,
                member_id=member.member_id,
                group_instance_id=member.instance,
                topics=_positions(offsets),
            ),
            _code_of_positions,
        )
        code = _code_of_positions(answer)
        if code:
            raise LinkError(f"group {group}: its positions cannot be in the transaction: {words_of(code)}")

    def finish(self) -> None:
        """Wait until all records are acknowledged. From now on their offsets are known."""
        for part in self._parts.values():
            part.send()
        for part in self._parts.values():
            part.finish()

    def close(self) -> None:
        """Send nothing more of it."""
        for part in self._parts.values():
            part.producer.end()


class InboxTransaction:
    """A transaction of a topic's inbox that is open.

    _topic  the topic, whose partitions alone are in it
    """

    def __init__(self, transaction: Transaction, topic: str) -> None:
        self._transaction = transaction
        self._topic = topic

    @property
    def records(self) -> int:
        """Return how many records were added."""
        return self._transaction.records

    @property
    def commit(self) -> ClusterCommit:
        """Return what the journal is to know of it."""
        found = self._transaction.committed_as()
        ranges = {number: each for (_, number), each in found.ranges.items()}
        return ClusterCommit(found.transactional_id, found.producer_id, found.epoch, ranges)

    def add(self, number: int, columns: Columns) -> None:
        """Add records to a partition. If the topic refuses one of them, none is added."""
        self._transaction.put((self._topic, number), columns)

    def finish(self) -> None:
        """Wait until all records are acknowledged. From now on `commit` knows their offsets."""
        self._transaction.finish()

    def close(self) -> None:
        """Send nothing more of it."""
        self._transaction.close()


class _Part:
    """The records of a transaction for one partition.

    producer  appends them
    range     the first and the last offset, once all are acknowledged; None before, and where there is none
    """

    def __init__(self, producer: Producer, identity: tuple[int, int]) -> None:
        self.producer = producer
        self.range: tuple[int, int] | None = None
        self._partition = producer.mirror.partition
        self._builder = batches.BatchBuilder(batch_limit(self._partition.settings))
        self._identity = identity
        self._sent: list[Sent] = []

    def add(self, columns: Columns) -> None:
        """Add records, and send full batches."""
        gather(self._partition, self._builder, columns, self.send)

    def send(self) -> None:
        """Send the records that have gathered."""
        if not self._builder.count:
            return
        shape = shape_for(self._partition.settings)
        # The sequence is set when it is sent, and the append time is the leader's to give.
        batch = self._builder.finish(
            batches.Shape(
                shape.codec,
                shape.level,
                producer_id=self._identity[0],
                producer_epoch=self._identity[1],
                base_sequence=0,
                transactional=True,
            ),
            None,
        )
        self.producer.await_room()
        lost = next((sent.error for sent in self._sent if sent.error is not None), None)
        if lost is not None:
            raise lost
        self._sent.append(self.producer.send(batch, ()))

    def finish(self) -> None:
        """Wait until all batches are acknowledged, and are in the mirror."""
        for sent in self._sent:
            sent.wait()
        if self._sent:
            first, last = self._sent[0], self._sent[-1]
            if first.last is None or last.last is None:
                raise LinkError(
                    f"{self._partition.name}: the leader does not tell at which offset a transaction's batch is"
                )
            self.range = first.last - first.count + 1, last.last


def _code_of_partition(answer: Any) -> int:
    codes = [
        each.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for each in topic.results_by_partition
    ]
    return int(next((code for code in codes if code), 0))


def _code_of_positions(answer: Any) -> int:
    codes = [each.error_code for topic in answer.topics for each in topic.partitions]
    return int(next((code for code in codes if code), 0))


def _positions(offsets: Mapping[PartitionKey, int]) -> list[Any]:
    kind = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    topics: dict[str, list[Any]] = {}
    for (topic, number), offset in sorted(offsets.items()):
        part = kind.TxnOffsetCommitRequestPartition(
            version=_OFFSETS,
            partition_index=number,
            committed_offset=offset,
            committed_leader_epoch=-1,
            committed_metadata="",
        )
        topics.setdefault(topic, []).append(part)
    return [kind(version=_OFFSETS, name=topic, partitions=parts) for topic, parts in topics.items()]


def _placed(topic: str, commit: ClusterCommit) -> dict[PartitionKey, tuple[int, int]]:
    return {(topic, number): each for number, each in commit.ranges.items()}


def _is_aborted(now: Snapshot, first: int, last: int, producer_id: int) -> bool:
    segment = now.segments.floor(first) or now.segments.first
    found = aborted_between(now.segments, segment, first, last + 1)
    return any(each.producer_id == producer_id and each.first_offset <= last for each in found)
