"""Transactions over topics that mirror those of a Kafka cluster: one transaction there, over partitions and positions.

    1. begin: the coordinator gives a producer's id and a new epoch, which fences all before it
    2. write the journal: producing      3. produce, until all is acknowledged      4. write the journal: deciding
    5. ask for the commit                6. write the journal: committed
    7. remove the staged files           8. remove the journal

    BACKING/transactions/linked/<name>.json   {"state": …, "transactional_id": …, "producer_id": …, "epoch": …,
                                               "ranges": {"orders-0": [first, last]}}

The commit point is the coordinator's, at step 5. What a crash leaves is read as that of an inbox (`LinkedInbox`):
producing is aborted; deciding is asked for; committed is finished. Until somebody can be asked, what is being decided
stays so, and the next commit of that name waits for it.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Final

from topicfs.engine.errors import (
    CorruptCheckpointError,
    DeliveryTimeoutError,
    EngineError,
    InvalidNameError,
    LinkedTopicError,
    LinkError,
)
from topicfs.engine.files.atomic import make_directory, read_bounded, sync_directory, write_atomically
from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.format.paths import parse_partition_directory
from topicfs.engine.transactions.cluster import ClusterTransactions, Identity, LinkedCommit, LinkedTransaction
from topicfs.engine.transactions.coordinator import Chunk

log = logging.getLogger(__name__)

_MOST_BYTES: Final = 64 << 20
_SUFFIX: Final = ".json"

GroupPositions = tuple[str, Mapping[PartitionKey, int], Identity]
"""A group, positions that it is to have, and who sets them."""


class _State(Enum):
    """How far a commit has come."""

    PRODUCING = "producing"
    DECIDING = "deciding"
    COMMITTED = "committed"


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A commit that is under way."""

    state: _State
    commit: LinkedCommit


class LinkedTransactions:
    """The transactions of one store over mirrored topics.

    cluster     makes transactions in the cluster; None while there is no link
    _directory  where the journals are
    _discard    removes the staged files of a name, durably
    _lock       held while the journals that a start has found are looked for
    _unsettled  the names of which a journal may be there; None before they were looked for
    _running    those whose commit is under way
    """

    def __init__(self, directory: Path, discard: Callable[[str], None]) -> None:
        self.cluster: ClusterTransactions | None = None
        self._directory = directory
        self._discard = discard
        self._lock = threading.Lock()
        self._unsettled: set[str] | None = None
        self._running: set[str] = set()

    def unsettled(self) -> list[str]:
        """Return the names of transactions that have stopped half way."""
        return sorted(self._known() - self._running)

    def _known(self) -> set[str]:
        with self._lock:
            if self._unsettled is None:
                self._unsettled = (
                    {each.stem for each in self._directory.glob(f"*{_SUFFIX}")}
                    if self._directory.is_dir()
                    else set()
                )
            return set(self._unsettled)

    def run(self, name: str, chunks: Iterable[Chunk], positions: Iterable[GroupPositions]) -> int:
        """Append all chunks and set all positions as one transaction, or nothing, and return the number of records.
        Nothing of this name is unsettled. An error means that nothing was done, unless `settle` says otherwise."""
        self._running.add(name)
        try:
            return self._run(name, chunks, positions)
        finally:
            self._running.discard(name)

    def _run(self, name: str, chunks: Iterable[Chunk], positions: Iterable[GroupPositions]) -> int:
        transaction = self._linked(name).begin_named(name)
        self._note(name, True)
        in_flight = _InFlight(_State.PRODUCING, transaction.committed_as())
        try:
            self._write(in_flight)
            try:
                self._produce(transaction, chunks, positions)
            finally:
                transaction.close()
            in_flight = _InFlight(_State.DECIDING, transaction.committed_as())
            self._write(in_flight)
            self._linked(name).end_named(in_flight.commit)
            self._write(replace(in_flight, state=_State.COMMITTED))
        except (EngineError, OSError) as error:
            if not self._is_committed_after(name, error):
                raise
            return transaction.records
        try:
            self.settle(name)
        except (EngineError, OSError) as error:
            log.error(f"transaction {name} is committed, but not noted everywhere yet: {error!r}")
        return transaction.records

    @staticmethod
    def _produce(
        transaction: LinkedTransaction, chunks: Iterable[Chunk], positions: Iterable[GroupPositions]
    ) -> None:
        for key, columns in chunks:
            transaction.put(key, columns)
        transaction.finish()
        # Last: a coordinator holds up who asks for a position that an open transaction is to set.
        for each in positions:
            transaction.set_positions(*each)

    def _is_committed_after(self, name: str, error: Exception) -> bool:
        """Tell whether a transaction is committed in spite of an error. False also where nobody knows it yet."""
        log.info(f"transaction {name}: stopped by {error!r}")
        try:
            return self.settle(name)
        except (EngineError, OSError) as second:
            log.error(f"transaction {name} cannot be settled yet, and is tried again: {second!r}")
            return False

    def settle(self, name: str) -> bool:
        """Finish a commit that has stopped half way, as the journal says. Tell whether it is committed."""
        if name not in self._known():
            return False
        found = self._read(name)
        committed = found is not None and self._has_committed(found)
        if found is not None and committed:
            sync_directory(self._directory)
            self._discard(name)
            self._await_shown(found.commit)
        self._remove(name)
        return committed

    def give_up(self, name: str) -> bool:
        """Forget a transaction whose files were removed. Tell whether it is committed all the same.
        DeliveryTimeoutError where the cluster may have done that, and does not answer."""
        try:
            return self.settle(name)
        except DeliveryTimeoutError:
            raise
        except LinkError as error:
            log.warning(f"transaction {name} is given up, and nobody can tell how it has ended: {error}")
            self._remove(name)
            return False

    def _has_committed(self, found: _InFlight) -> bool:
        if found.state is _State.COMMITTED:
            return True
        cluster = self._linked(found.commit.name)
        if found.state is _State.DECIDING:
            return cluster.is_committed_named(found.commit)
        try:
            cluster.abort_named(found.commit.name)
        except EngineError as error:
            # Its commit was never asked for: the coordinator aborts it, at the latest when its time is over.
            log.info(f"transaction {found.commit.name} is not committed, and not aborted yet: {error}")
        return False

    def _await_shown(self, commit: LinkedCommit) -> None:
        if self.cluster is not None:
            try:
                self.cluster.await_named(commit)
            except EngineError as error:
                log.error(f"transaction {commit.name} is committed, and does not show: {error!r}")

    def _linked(self, name: str) -> ClusterTransactions:
        if self.cluster is None:
            raise LinkedTopicError(
                f"transaction {name}: it has mirrored topics, and there is no link to their cluster"
            )
        return self.cluster

    # -- the journal ------------------------------------------------------------------------------------

    def _note(self, name: str, is_unsettled: bool) -> None:
        self._known()
        with self._lock:
            assert self._unsettled is not None, "it was looked for"
            (self._unsettled.add if is_unsettled else self._unsettled.discard)(name)

    def _place(self, name: str) -> Path:
        return self._directory / f"{name}{_SUFFIX}"

    def _write(self, found: _InFlight) -> None:
        make_directory(self._directory)
        commit = found.commit
        document: dict[str, Any] = {
            "state": found.state.value,
            "transactional_id": commit.transactional_id,
            "producer_id": commit.producer_id,
            "epoch": commit.epoch,
            "ranges": {f"{topic}-{number}": each for (topic, number), each in commit.ranges.items()},
        }
        write_atomically(self._place(commit.name), json.dumps(document).encode())

    def _read(self, name: str) -> _InFlight | None:
        path = self._place(name)
        try:
            told = json.loads(read_bounded(path, _MOST_BYTES))
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as error:
            raise CorruptCheckpointError(f"{path}: expected a commit under way: {error!r}") from error
        try:
            ranges = {
                parse_partition_directory(place)[:2]: (int(first), int(last))
                for place, (first, last) in told["ranges"].items()
            }
            commit = LinkedCommit(
                name, str(told["transactional_id"]), int(told["producer_id"]), int(told["epoch"]), ranges
            )
            return _InFlight(_State(told["state"]), commit)
        # OverflowError is raised for a number that has no end.
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, InvalidNameError) as error:
            raise CorruptCheckpointError(f"{path}: expected a commit under way: {error!r}") from error

    def _remove(self, name: str) -> None:
        self._place(name).unlink(missing_ok=True)
        if self._directory.is_dir():
            sync_directory(self._directory)
        self._note(name, False)
