"""What a coordinator knows of a transactional id, and the states that Kafka has for it.

    EMPTY ──add──▶ ONGOING ──▶ PREPARE_COMMIT ──markers──▶ COMPLETE_COMMIT ──add──▶ ONGOING …
                      └──────▶ PREPARE_ABORT  ──markers──▶ COMPLETE_ABORT  ──add──▶ ONGOING …

The record of PREPARE_COMMIT is the commit point. The id is given to a new holder, with a higher epoch, from any state.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.record import NO_PRODUCER_ID, NO_TIMESTAMP


class TransactionState(IntEnum):
    """The state of a transactional id, with Kafka's numbers."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """Return the name that Kafka's tools show, such as CompleteCommit."""
        return self.name.title().replace("_", "")


UNDECIDED: Final = frozenset({TransactionState.ONGOING, TransactionState.PREPARE_EPOCH_FENCE})
"""The states in which a crash aborts the transaction."""

PREPARED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
"""The states in which the outcome is decided, and markers are missing."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """The state of one transactional id.

    transactional_id      its name
    producer_id, epoch    the identity under which its present holder writes
    timeout_ms            how long a transaction of it may stay undecided
    state                 the state of its last transaction
    partitions            the partitions of that transaction, until it is complete
    updated_ms            the time of the last change
    started_ms            the time when the last transaction began, −1 before the first
    previous_producer_id  the producer id before the present one, whose epochs were used up; −1 none
    """

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: tuple[PartitionKey, ...] = ()
    updated_ms: int = NO_TIMESTAMP
    started_ms: int = NO_TIMESTAMP
    previous_producer_id: int = NO_PRODUCER_ID

    @property
    def is_commit(self) -> bool:
        """Whether its last transaction was committed, or is to be."""
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
