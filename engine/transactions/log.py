"""The log of a coordinator: `__transaction_state`, in Kafka's format. The last record of a transactional id counts.

`topicfs.engine.format.messages` draws its keys and values. A record without a value says that the id is forgotten.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from topicfs.engine.errors import CorruptError, UnknownPartitionError, shown
from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.messages import reading, writing
from topicfs.engine.messages.topics import TRANSACTIONS, partition_of
from topicfs.engine.partition.partition import Partition
from topicfs.engine.record import NO_PRODUCER_ID, Record
from topicfs.engine.transactions.states import PREPARED, Transaction, TransactionState

log = logging.getLogger(__name__)

_KIND: Final = 0
_VERSION: Final = 1


class TransactionLog:
    """The log of a coordinator.

    _numbers    returns the numbers of its partitions, in order; called with True it makes the topic where it is missing
    _partition  returns a partition by topic and number
    """

    def __init__(
        self, numbers: Callable[[bool], Sequence[int]], partition: Callable[[str, int], Partition]
    ) -> None:
        self._numbers = numbers
        self._partition = partition

    def make(self) -> None:
        """Make the topic where it is missing. Nobody who holds the lock of a transactional id waits for that: a
        deletion has the store to itself while it waits for commits to end."""
        self._numbers(True)

    def load(self) -> dict[str, Transaction]:
        """Return what the log says of each transactional id."""
        found: dict[str, Transaction] = {}
        for transactional_id, transaction in self._states():
            if transaction is None:
                found.pop(transactional_id, None)
            else:
                found[transactional_id] = transaction
        return found

    def outcomes(self, producer_id: int, epoch: int, key: PartitionKey) -> set[bool]:
        """Return how the transactions of a producer's epoch have ended in a partition, as far as the log has it: True
        for a commit."""
        return {
            each.is_commit
            for _, each in self._states()
            if each is not None
            and (each.producer_id, each.epoch) == (producer_id, epoch)
            and each.state in PREPARED
            and key in each.partitions
        }

    def _states(self) -> Iterator[tuple[str, Transaction | None]]:
        """Yield all that was written down, in its order; None for an id that is forgotten."""
        for number in self._numbers(False):
            for record in self._partition(TRANSACTIONS, number).records():
                key, value = reading.message(TRANSACTIONS, record.key, record.value)
                try:
                    if key is None or (value is None and record.value is not None):
                        raise CorruptError("expected a key and a value of a transactional id, found none")
                    transactional_id = key["data"]["transactionalId"]
                    yield transactional_id, None if value is None else read(transactional_id, value["data"])
                except CorruptError as error:
                    log.warning(
                        f"{TRANSACTIONS}-{number}: the record at offset {record.offset} is passed over: {error}"
                    )

    def append(self, transaction: Transaction) -> None:
        """Append the state of a transactional id. It is durable after `flush`."""
        self._append(transaction.transactional_id, value_of(transaction))

    def forget(self, transactional_id: str) -> None:
        """Append that a transactional id is forgotten."""
        self._append(transactional_id, None)

    def flush(self, transactional_id: str) -> None:
        """Bring what was appended of a transactional id onto the disk."""
        self._home(transactional_id).flush()

    def _append(self, transactional_id: str, value: bytes | None) -> None:
        key = writing.key(TRANSACTIONS, _KIND, {"transactionalId": transactional_id})
        self._home(transactional_id).append(Record(value, key))

    def _home(self, transactional_id: str) -> Partition:
        numbers = self._numbers(False)
        if not numbers:
            raise UnknownPartitionError(f"{TRANSACTIONS} was deleted: the next transaction makes it anew")
        return self._partition(TRANSACTIONS, numbers[partition_of(transactional_id, len(numbers))])


def value_of(transaction: Transaction) -> bytes:
    """Return the value of the record of a transactional id."""
    topics: dict[str, list[int]] = {}
    for topic, number in transaction.partitions:
        topics.setdefault(topic, []).append(number)
    fields: dict[str, Any] = {
        "producerId": transaction.producer_id,
        "producerEpoch": transaction.epoch,
        "transactionTimeoutMs": transaction.timeout_ms,
        "transactionStatus": transaction.state.value,
        # A broker writes null here as long as there was no transaction.
        "transactionPartitions": None
        if transaction.state is TransactionState.EMPTY
        else [{"topic": topic, "partitionIds": numbers} for topic, numbers in topics.items()],
        "transactionLastUpdateTimestampMs": transaction.updated_ms,
        "transactionStartTimestampMs": transaction.started_ms,
    }
    if transaction.previous_producer_id != NO_PRODUCER_ID:
        fields["previousProducerId"] = transaction.previous_producer_id
    return writing.value(TRANSACTIONS, _KIND, _VERSION, fields)


def read(transactional_id: str, data: dict[str, Any]) -> Transaction:
    """Return what the value of a record says of a transactional id. CorruptError where its state is none of Kafka's."""
    try:
        state = TransactionState(data["transactionStatus"])
    except ValueError as error:
        raise CorruptError(f"transactional id {shown(transactional_id)}: {error}") from None
    return Transaction(
        transactional_id,
        data["producerId"],
        data["producerEpoch"],
        data["transactionTimeoutMs"],
        state,
        tuple(
            (part["topic"], number)
            for part in data["transactionPartitions"] or ()
            for number in part["partitionIds"]
        ),
        data["transactionLastUpdateTimestampMs"],
        data["transactionStartTimestampMs"],
        data.get("previousProducerId", NO_PRODUCER_ID),
    )
