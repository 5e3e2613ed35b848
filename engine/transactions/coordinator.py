"""The coordinator: it gives out producer ids and epochs, and has transactions end in all partitions alike.

    1. log: ONGOING          2. append and flush the records     3. log: PREPARE_COMMIT
    4. append and flush a marker in each partition               5. remove the staged files     6. log: COMPLETE_COMMIT

Step 3 is the commit point. After a crash before it the next start aborts the transaction, after a crash behind it the
next start commits it, both before anybody reads; steps 4 to 6 change nothing where they were done before. All but the
last record are flushed before the next step: without it the next start does steps 4 to 6 again.

A holder of a transactional id has its producer id and epoch. When the id is given to another holder the epoch rises,
and whoever writes with the old one is refused: he is fenced.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final

from topicfs.engine.batch.columns import Columns
from topicfs.engine.errors import (
    EngineError,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    PolicyViolationError,
    UnknownPartitionError,
)
from topicfs.engine.files.atomic import sync_directory
from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.messages.topics import TRANSACTIONS
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.transactional import Flushes, TransactionalWriter, append_end
from topicfs.engine.producer.entry import LOCAL_PRODUCERS, NAMED_PRODUCERS
from topicfs.engine.record import NO_OFFSET, NO_PRODUCER_ID, Clock
from topicfs.engine.staging.staging import Staging
from topicfs.engine.transactions.log import TransactionLog
from topicfs.engine.transactions.states import PREPARED, UNDECIDED, Transaction, TransactionState

log = logging.getLogger(__name__)

LAST_EPOCH: Final = 2**15 - 2
"""The last epoch that a holder gets. As with a broker, one is left above it; then the id gets another producer id."""

NAMED: Final = "producers/"
"""What the transactional ids of named producers begin with. Those of transactions have no slash."""

INBOXES: Final = "inboxes/"
"""What the transactional ids of inboxes begin with: the topic's name follows."""

ALL_INBOXES: Final = f"{INBOXES}*"
"""The transactional id of batches of several topics. No topic has that name."""

_FLUSHES: Final = 8
"""Partitions that are flushed at a time: a file system writes in one go what several threads ask for."""

Chunk = tuple[PartitionKey, Columns]
"""A partition, and records for it."""


@dataclass(slots=True)
class _Held:
    """One transactional id: its state, and the lock that is held while it changes."""

    transaction: Transaction
    lock: threading.RLock = field(default_factory=threading.RLock)


class Coordinator:
    """The coordinator of a store.

    staged      the files of transactions that are not decided: a directory for each transactional id
    end_batch   does for the transaction of an inbox what is done for another one with its staged files, once all
                partitions have their markers; it may be called again for one that it was called for
    note_deleted  notes how a producer's transaction has ended for the deletions of a partition by topic and number, so
                that it ends there too when they are taken back
    _log        where the states are written down
    _partition  returns a partition by topic and number
    _clock      the clock for the timestamps in the log
    _held       the transactional ids that are known
    _error      why the log could not be read at the start; None if it was
    _stopped    in a read-only store, the transactions that a crash has stopped; None until they are asked for
    _unsettled  those whose transaction is decided, or to be aborted, and is not complete
    _guard      held while the two tables are changed
    _flushing   the threads that flush the partitions of a transaction, begun when they are needed
    _flushes    how they are flushed
    """

    def __init__(
        self,
        transaction_log: TransactionLog,
        partition: Callable[[str, int], Partition],
        staged: Staging,
        clock: Clock,
    ) -> None:
        self.staged = staged
        self._log = transaction_log
        self._partition = partition
        self._clock = clock
        self._held: dict[str, _Held] = {}
        self._unsettled: set[str] = set()
        self._error: Exception | None = None
        self._stopped: list[Transaction] | None = None
        self.end_batch: Callable[[Transaction], None] = lambda transaction: None
        self.note_deleted: Callable[[str, int, int, bool], None] = lambda topic, number, producer_id, commit: (
            None
        )
        self._guard = threading.Lock()
        self._flushing = ThreadPoolExecutor(_FLUSHES, "flush")
        self._flushes = Flushes(self._flushing)

    def close(self) -> None:
        """End the threads, as the store is closed."""
        self._flushing.shutdown()

    # -- what is known ----------------------------------------------------------------------------------

    def transaction(self, transactional_id: str) -> Transaction | None:
        """Return the state of a transactional id; None where it is not known."""
        held = self._held.get(transactional_id)
        return None if held is None else held.transaction

    def transactions(self) -> list[Transaction]:
        """Return the states of all transactional ids, by their names."""
        return [self._held[name].transaction for name in sorted(self._held.copy())]

    @property
    def unsettled(self) -> int:
        """How many transactions could not be completed yet, and are tried again."""
        return len(self._unsettled)

    # -- holders ----------------------------------------------------------------------------------------

    def init_producer(self, transactional_id: str, timeout_ms: int) -> Transaction:
        """Give a transactional id to a new holder, and return it with its producer id and epoch. What an earlier holder
        has not decided is aborted, and he is fenced."""
        if self._error is not None:
            raise self._error
        self._log.make()
        with self._guard:
            held = self._held.get(transactional_id)
            if held is None:
                held = _Held(Transaction(transactional_id, NO_PRODUCER_ID, -1, timeout_ms))
                self._held[transactional_id] = held
        with held.lock:
            try:
                self._settle(held)
                self.discard(transactional_id)
                before = held.transaction
                is_new = before.producer_id == NO_PRODUCER_ID or before.epoch >= LAST_EPOCH
                self._put(
                    held,
                    replace(
                        before,
                        producer_id=self._new_id(transactional_id) if is_new else before.producer_id,
                        epoch=0 if is_new else before.epoch + 1,
                        timeout_ms=timeout_ms,
                        state=TransactionState.EMPTY,
                        partitions=(),
                        started_ms=-1,
                        previous_producer_id=before.producer_id if is_new else NO_PRODUCER_ID,
                    ),
                )
            except BaseException:
                if held.transaction.producer_id == NO_PRODUCER_ID:
                    with self._guard:
                        self._held.pop(transactional_id, None)
                raise
            return held.transaction

    def _new_id(self, transactional_id: str) -> int:
        """Return a producer id that nobody has. It is random: no counter has to be kept, or can be set back."""
        ids = NAMED_PRODUCERS if transactional_id.startswith(NAMED) else LOCAL_PRODUCERS
        known = {each.transaction.producer_id for each in self._held.copy().values()}
        while (found := ids.start + secrets.randbelow(len(ids))) in known:
            pass
        return found

    def forget(self, transactional_id: str) -> None:
        """Forget a transactional id. What it has not decided is aborted."""
        held = self._held.get(transactional_id)
        if held is None:
            return
        with held.lock:
            self._settle(held)
            self.discard(transactional_id)
            self._log.forget(transactional_id)
            self._log.flush(transactional_id)
            with self._guard:
                self._held.pop(transactional_id, None)
            # Whoever waits for the lock holds an id that is not known any more.
            held.transaction = replace(held.transaction, epoch=-1, state=TransactionState.DEAD)

    def forget_old(self, expiration_ms: int) -> int:
        """Forget the ids of transactions that ended so long ago. Return how many. Named producers are kept."""
        earliest = self._clock() - expiration_ms
        old = [
            each.transactional_id
            for each in self.transactions()
            if each.updated_ms < earliest
            and each.state not in PREPARED | UNDECIDED
            and not each.transactional_id.startswith(NAMED)
        ]
        kept = set(self.staged.names(()))
        gone = [name for name in old if name not in kept]
        for name in gone:
            self.forget(name)
        return len(gone)

    @contextlib.contextmanager
    def writing(self, holder: Transaction) -> Iterator[None]:
        """Keep a transactional id from changing while its holder writes. InvalidProducerEpochError if it is not his any
        more."""
        with self._writing(holder):
            yield

    @contextlib.contextmanager
    def _writing(self, holder: Transaction) -> Iterator[_Held]:
        held = self._held.get(holder.transactional_id)
        if held is None:
            raise InvalidProducerEpochError(f"{holder.transactional_id} is not known any more")
        with held.lock:
            now = held.transaction
            if (now.producer_id, now.epoch) != (holder.producer_id, holder.epoch):
                raise InvalidProducerEpochError(
                    f"{holder.transactional_id}: expected epoch {now.epoch} of producer {now.producer_id}, found epoch "
                    f"{holder.epoch} of producer {holder.producer_id}: another holder has taken it over"
                )
            yield held

    # -- transactions -----------------------------------------------------------------------------------

    def has_committed(self, holder: Transaction) -> bool:
        """Tell whether a holder's last transaction is committed. What is missing of its end is done."""
        with self._writing(holder) as held:
            self._settle(held)
            return held.transaction.state is TransactionState.COMPLETE_COMMIT

    def make_log(self) -> None:
        """Make the coordinator's log where it is missing, as after somebody has deleted it. Who calls `run` does it
        before, and without a lock that a deletion waits for: that has the store to itself meanwhile."""
        self._log.make()

    def run(self, holder: Transaction, partitions: Iterable[PartitionKey], chunks: Iterable[Chunk]) -> int:
        """Append all chunks as one transaction, or none, and return the number of records.

        `partitions` are those that the chunks may name. After an error nothing was or will be appended; only after an
        error of the coordinator's log, `transaction` must tell: it says PREPARE_COMMIT then, or something else."""
        keys = tuple(sorted({*partitions}))
        if any(topic == TRANSACTIONS for topic, _ in keys):
            # After a crash the states that lie behind the open transaction would not be found.
            raise PolicyViolationError(
                f"{TRANSACTIONS} is written by the coordinator alone, in no transaction"
            )
        with self._writing(holder) as held:
            self._settle(held)
            try:
                self._put(
                    held,
                    replace(
                        held.transaction,
                        state=TransactionState.ONGOING,
                        partitions=keys,
                        started_ms=self._clock(),
                    ),
                )
                writers = self._append(held.transaction, chunks)
                self._put(
                    held,
                    replace(
                        held.transaction,
                        state=TransactionState.PREPARE_COMMIT,
                        partitions=tuple(sorted(writers)),
                    ),
                )
            except BaseException as error:
                self._give_up(held, error)
                raise
            self._complete_or_keep(held)
            return sum(writer.records for writer in writers.values())

    def _append(
        self, transaction: Transaction, chunks: Iterable[Chunk]
    ) -> dict[PartitionKey, TransactionalWriter]:
        writers: dict[PartitionKey, TransactionalWriter] = {}
        for key, columns in chunks:
            if key not in transaction.partitions:
                raise InvalidTransactionStateError(
                    f"{transaction.transactional_id}: expected one of {transaction.partitions}, found {key}"
                )
            if key not in writers:
                writers[key] = TransactionalWriter.into(
                    self._partition(*key), transaction.producer_id, transaction.epoch
                )
            writers[key].add(columns)
        for writer in writers.values():
            writer.send()
        self._flushes.flush(writer.partition for writer in writers.values())
        return writers

    def _put(self, held: _Held, transaction: Transaction, durable: bool = True) -> None:
        """Write down a state. After an error of the flush it holds for this process: what it decides is done."""
        after = replace(transaction, updated_ms=self._clock())
        self._log.append(after)
        held.transaction = after
        if durable:
            self._log.flush(after.transactional_id)

    def _give_up(self, held: _Held, error: BaseException) -> None:
        """Abort a transaction that an error has stopped, unless it is decided."""
        log.info(f"{held.transaction.transactional_id}: stopped by {error!r}")
        self._complete_or_keep(held)

    def note_committed(self, transactional_id: str) -> None:
        """Write down that a transaction of this id has ended in a Kafka cluster, for those who look at its state."""
        held = self._held.get(transactional_id)
        if held is not None:
            with held.lock:
                self._put(
                    held, replace(held.transaction, state=TransactionState.COMPLETE_COMMIT), durable=False
                )

    # -- ending -----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def ended(self, transactional_id: str) -> Iterator[Transaction | None]:
        """Bring the last transaction of an id to its end, and keep the id from changing meanwhile. Give its state; None
        where it is not known."""
        if self._error is not None:
            raise self._error
        held = self._held.get(transactional_id)
        if held is None:
            yield None
            return
        with held.lock:
            self._settle(held)
            yield held.transaction

    def _complete_or_keep(self, held: _Held) -> None:
        """Complete a transaction. If that fails it is tried again later: what is decided stays decided."""
        try:
            self._settle(held)
        except (EngineError, OSError) as error:
            name = held.transaction.transactional_id
            with self._guard:
                self._unsettled.add(name)
            log.error(
                f"{name}: {held.transaction.state.title} cannot be completed yet, and is tried again: {error!r}"
            )

    def _settle(self, held: _Held) -> None:
        """Bring what is not complete to its end: what is undecided is aborted. The caller holds the lock."""
        if held.transaction.state in UNDECIDED:
            self._put(held, replace(held.transaction, state=TransactionState.PREPARE_ABORT))
        if held.transaction.state in PREPARED:
            self._complete(held)
        with self._guard:
            self._unsettled.discard(held.transaction.transactional_id)

    def _complete(self, held: _Held) -> None:
        transaction = held.transaction
        commit = transaction.is_commit
        self._log.flush(transaction.transactional_id)
        # Flushed even if the marker exists already: the last flush may have failed.
        self._flushes.flush(
            [found for key in transaction.partitions for found in self._ended_in(key, transaction)]
        )
        if transaction.transactional_id.startswith(INBOXES):
            self.end_batch(transaction)
        elif commit:
            self.discard(transaction.transactional_id)
        state = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
        self._put(held, replace(transaction, state=state, partitions=()), durable=False)

    def _ended_in(self, key: PartitionKey, transaction: Transaction) -> list[Partition]:
        """Append the marker to a partition that the transaction has written to. Return it; none where it was deleted
        since, or not written to."""
        found = self._marked(key, transaction)
        if not found:
            self.note_deleted(*key, transaction.producer_id, transaction.is_commit)
            # A deletion that is taken back at the same time shows the partition before it looks at the note.
            found = self._marked(key, transaction)
        return found

    def _marked(self, key: PartitionKey, transaction: Transaction) -> list[Partition]:
        try:
            partition = self._partition(*key)
        except UnknownPartitionError:
            return []
        append_end(partition, transaction.producer_id, transaction.is_commit)
        return [partition] if transaction.producer_id in partition.log.producers.producers else []

    def discard(self, transactional_id: str) -> None:
        """Remove the staged files of a transactional id, durably: if they came back, they could be committed again."""
        if transactional_id in self.staged.names(()):
            self.staged.destroy((transactional_id,))
            sync_directory(self.staged.root)

    # -- what a crash leaves ------------------------------------------------------------------------------

    def recover(self) -> None:
        """Read the log, and end what a crash has stopped. This runs after a start, before anybody reads. Transactions
        of producers that a broker's coordinator knows are left to it."""
        try:
            found = self._log.load()
        except (EngineError, OSError) as error:
            log.error(
                f"transactions are refused until the next start, as their log cannot be read: {error!r}"
            )
            self._error = error
            return
        with self._guard:
            self._held = {name: _Held(each) for name, each in found.items()}
        for held in list(self._held.values()):
            if _is_ours(held.transaction) and held.transaction.state in PREPARED | UNDECIDED:
                log.info(f"{held.transaction.transactional_id}: {held.transaction.state.title} at the start")
                with held.lock:
                    self._complete_or_keep(held)

    def end_left_open(self, partition: Partition) -> None:
        """End the transactions in a partition whose markers were lost, as by a recovery that has cut them off, in the
        way in which the log says that they have ended: nothing behind their first record would show any more. They are
        complete, so nobody else ends them. If the log does not say it any more, or says it in two ways, they are
        aborted: no record of an aborted transaction may show."""
        key = partition.topic, partition.number
        for producer_id, entry in list(partition.log.producers.producers.items()):
            first = entry.current_transaction_first_offset
            if first != NO_OFFSET and _is_local(producer_id) and not self._is_under_way(producer_id, key):
                self._end_again(partition, producer_id, entry.epoch, first)

    def _is_under_way(self, producer_id: int, key: PartitionKey) -> bool:
        return any(
            each.producer_id == producer_id and each.state in PREPARED | UNDECIDED and key in each.partitions
            for each in self.transactions()
        )

    def _end_again(self, partition: Partition, producer_id: int, epoch: int, first: int) -> None:
        name = f"{partition.topic}-{partition.number}"
        try:
            outcomes = self._log.outcomes(producer_id, epoch, (partition.topic, partition.number))
            commit = outcomes == {True}
            append_end(partition, producer_id, commit)
        except (EngineError, OSError) as error:
            log.error(
                f"{name}: the transaction from offset {first} on stays open, its end was lost: {error!r}"
            )
            return
        log.warning(
            f"{name}: the end of the transaction from offset {first} on was lost: "
            f"it is {'committed' if commit else 'aborted'} again"
            + ("" if len(outcomes) == 1 else f", as {TRANSACTIONS} does not say which of both it was")
        )

    def settle(self) -> None:
        """Try again to complete what could not be completed before."""
        with self._guard:
            found = [self._held[name] for name in self._unsettled if name in self._held]
        for held in found:
            with held.lock:
                self._complete_or_keep(held)

    def find_stopped(self, topic: str) -> None:
        """Read which transactions a crash has stopped, before a partition of a topic of a read-only store is loaded and
        given to `show_settled`. No lock is held, as `__transaction_state` is loaded; two threads may both read it."""
        if topic != TRANSACTIONS and self._stopped is None:
            found = self._log.load().values()
            self._stopped = [each for each in found if _is_ours(each) and each.state in PREPARED | UNDECIDED]

    def show_settled(self, partition: Partition) -> None:
        """Decide the open transactions of a partition of a read-only store as `recover` would, in memory only."""
        for each in self._stopped or ():
            if (partition.topic, partition.number) in each.partitions:
                partition.log.decide(each.producer_id, each.is_commit)


def _is_ours(transaction: Transaction) -> bool:
    return _is_local(transaction.producer_id)


def _is_local(producer_id: int) -> bool:
    return producer_id in LOCAL_PRODUCERS or producer_id in NAMED_PRODUCERS
