"""Transactions that were begun by mkdir: their files lie in a staging until they are committed, as on any disk.

So a transaction holds up no reader while somebody writes its files: its records are appended when it is committed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from topicfs.engine.errors import EngineError, InvalidNameError, InvalidProducerEpochError, LinkedTopicError
from topicfs.engine.format.paths import parse_partition_directory
from topicfs.engine.groups.groups import Groups, PositionCommit
from topicfs.engine.inbox.rows import NO_PARTITION
from topicfs.engine.messages.topics import TRANSACTIONS
from topicfs.engine.staging.staging import Parts, Staging
from topicfs.engine.store.store import Store
from topicfs.engine.transactions.coordinator import Chunk
from topicfs.engine.transactions.states import Transaction
from topicfs.fs import errors
from topicfs.fs.inbox.claims import Claims
from topicfs.fs.inbox.commits import Commits
from topicfs.fs.inbox.data_files import DataFile, Topic, check_one_closed, chunks
from topicfs.fs.inbox.paths import LONGEST, is_hidden
from topicfs.fs.transactions.staged_positions import StagedPositions

log = logging.getLogger(__name__)

COMMIT: Final = ".commit"
"""A transaction is committed when its directory is renamed to its own name and this."""

STATUS: Final = ".json"
"""The state of a transaction is in the file of its name and this."""

ALL: Final = "status"
"""The name of the file with the states of all transactions, before its suffix."""

MOST: Final = 1000
"""How many transactions may be open at a time."""


_OF_RECORDS: Final = 2
"""How many names there are in the path of a file of records. One of a position lies deeper."""

_FEW_BYTES: Final = 1 << 20
"""The records of a transaction of so many bytes are read once. Larger ones are read twice, and never all in memory."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The last refusal that concerned a transaction: when, in milliseconds, and why in words."""

    at_ms: int
    reason: str


@dataclass(slots=True, eq=False)
class StagedTransactions:
    """The transactions of a store that were begun and are not decided.

    commits    the commits in progress, also of inboxes
    claims     the files that are being changed or committed, and those that are open for writing
    refusals   by transaction: its last refusal
    positions  the positions of groups in them
    _turns     returns the counter that says which partition of a topic is next for records without a key
    _deadlines by transaction: when it is aborted, by the steady clock
    """

    store: Store
    commits: Commits
    _turns: Callable[[str], Iterator[int]]
    positions: StagedPositions
    claims: Claims = field(default_factory=Claims)
    refusals: dict[str, Refusal] = field(default_factory=dict)
    _deadlines: dict[str, int] = field(default_factory=dict)
    _beginning: threading.Lock = field(default_factory=threading.Lock)

    @property
    def staging(self) -> Staging:
        return self.store.transactions.staged

    @property
    def timeout_ms(self) -> int:
        """How long a transaction may stay undecided."""
        settings = self.store.daemon
        return min(settings.transaction_timeout_ms, settings.transaction_max_timeout_ms)

    def names(self) -> list[str]:
        """Return the open transactions, in order."""
        return self.staging.names(())

    def holder(self, name: str) -> Transaction:
        """Return the state of an open transaction: its directory is of the present epoch."""
        found = self.store.transactions.transaction(name)
        if found is None:
            raise errors.NotFoundError(f"the transaction {name} is not known any more")
        return found

    # -- beginning and ending ---------------------------------------------------------------------------

    def begin(self, name: str) -> None:
        """Begin a transaction. ExistsError where one of this name is open."""
        _check_name(name)
        with self._beginning, self.claims.changing((name,)):
            open_now = self.names()
            if name in open_now:
                raise errors.ExistsError(f"transaction {name} is open")
            if len(open_now) >= MOST:
                raise errors.BusyError(f"{MOST} transactions are open: commit or remove some first")
            self.store.linked_transactions.settle(name)
            self.store.transactions.init_producer(name, self.timeout_ms)
            self.staging.make_directory((name,))
            self.refusals.pop(name, None)
            self.positions.forget(name)
            self._deadlines[name] = self.store.steady() + self.timeout_ms

    def abort(self, name: str) -> None:
        """End an open transaction whose files were removed. Nothing of it was appended."""
        with self.claims.changing((name,)):
            if self.store.linked_transactions.give_up(name):
                self._note_committed(name)
                raise errors.NotFoundError(f"transaction {name} was committed in the cluster")
            self.staging.remove_directory((name,))
            self._deadlines.pop(name, None)

    def commit(self, name: str, epoch: int | None = None) -> int:
        """Append the records of all files, or none, and remove the files. Return the number of records.
        InvalidProducerEpochError if another epoch is given than that of the transaction."""
        with self.commits.one(), self.claims.taken((name,)), contextlib.ExitStack() as held:
            holder = self.holder(name)
            if epoch not in (None, holder.epoch):
                raise InvalidProducerEpochError(
                    f"transaction {name} has epoch {holder.epoch}, expected {epoch}: it was begun anew"
                )
            if self.store.linked_transactions.settle(name):
                # The cluster has committed it, and the answer was lost.
                self._note_committed(name)
                return 0
            if self.store.transactions.has_committed(holder):
                # It was decided before, and could not be completed then: nobody is told that what came into its
                # directory since is committed.
                self.store.transactions.discard(name)
                raise errors.NotFoundError(f"transaction {name} was committed before, and its files are gone")
            found = [parts for parts in self.staging.files((name,)) if not self.is_scratch(parts)]
            files = [self.file_of(parts) for parts in sorted(found) if len(parts) == _OF_RECORDS]
            position_files = sorted(parts for parts in found if len(parts) != _OF_RECORDS)
            for parts in found:
                check_one_closed(self.staging, self.claims, parts, "/".join(parts[1:]), None)
            # Bad input is found before anything is appended, so no transaction holds up readers for it.
            partitions, few = self._checked(files)
            positions = self.positions.read(self.staging, position_files)
            if self._is_linked(files, positions):
                return self._commit_linked(holder, files, positions)
            partitions.update(key for key, _ in self.positions.check(positions))

            def all_chunks() -> Iterator[Chunk]:
                yield from self._chunks(files) if few is None else few
                # Last, as nobody else changes these groups from here on until the end.
                yield from held.enter_context(Groups.of(self.store).in_transaction(positions))

            self.store.transactions.make_log()
            records = self.store.transactions.run(holder, partitions, all_chunks())
            self._deadlines.pop(name, None)
            self.positions.forget(name)
            log.info(
                f"transaction {name} is committed, {records - len(positions)} records of {len(files)} files, "
                f"{len(positions)} positions"
            )
            return records

    def _is_linked(self, files: list[tuple[str, DataFile]], positions: list[PositionCommit]) -> bool:
        """Tell whether a transaction is one of the cluster. BadInputError where only a part of it would be: no
        coordinator can decide for the cluster and for this store in one step."""
        groups = Groups.of(self.store)
        linked = {topic: self.store.links.topic(topic) is not None for topic, _ in files}
        linked.update(
            {
                f"{each.group}/{topic}": groups.is_linked((topic, number))
                for each in positions
                for topic, number in each.offsets
            }
        )
        if len({*linked.values()}) > 1:
            theirs = ", ".join(sorted(name for name, is_linked in linked.items() if is_linked))
            ours = ", ".join(sorted(name for name, is_linked in linked.items() if not is_linked))
            raise errors.BadInputError(
                f"a transaction is in the Kafka cluster or here, not in both: {theirs} is the cluster's, {ours} this "
                f"store's own; commit them as two"
            )
        return any(linked.values())

    def _commit_linked(
        self, holder: Transaction, files: list[tuple[str, DataFile]], positions: list[PositionCommit]
    ) -> int:
        """Run a transaction in the cluster. The lock of its name is held here, as by one of this store."""
        name = holder.transactional_id
        groups = Groups.of(self.store)
        with self.store.transactions.writing(holder), groups.in_linked_transaction(positions) as members:
            records = self.store.linked_transactions.run(
                name,
                self._chunks(files),
                [(each.group, each.offsets, member) for each, member in zip(positions, members, strict=True)],
            )
        self._note_committed(name)
        return records

    def _note_committed(self, name: str) -> None:
        self.store.transactions.note_committed(name)
        self._deadlines.pop(name, None)
        self.positions.forget(name)
        log.info(f"transaction {name} is committed in the cluster")

    def is_scratch(self, parts: Parts) -> bool:
        """Tell whether a file is only its writer's. Names of topics may begin with a dot too, and many do with an
        underscore: what is named for one of them is never left out."""
        if len(parts) != _OF_RECORDS:
            return self.positions.is_scratch(parts)
        if not parts[-1].startswith("."):
            return False
        try:
            self.file_of(parts)
        except (errors.BadInputError, errors.NotFoundError):
            return True
        return False

    def check_file(self, parts: Parts) -> None:
        """Refuse a name early, with a reason, if what it stands for could not be committed."""
        if self.is_scratch(parts):
            return
        if len(parts) == _OF_RECORDS:
            self.file_of(parts)
        else:
            self.positions.check_file(parts)

    def file_of(self, parts: Parts) -> tuple[str, DataFile]:
        """Return the topic, and the file, that a path stands for. An error says why it stands for none."""
        name = parts[-1]
        file = DataFile.of(parts, (name,))
        stem = name.removesuffix(".gz").rpartition(".")[0]
        topic, number = self._place(stem)
        if topic == TRANSACTIONS:
            raise errors.NotSupportedError(
                f"{name}: {topic} is written by the coordinator of transactions alone"
            )
        if self.store.links.topic(topic) is not None and self.store.linked_transactions.cluster is None:
            raise LinkedTopicError(
                f"{topic}: mirrors a topic of a Kafka cluster, whose transactions are the cluster's, and there is no "
                f"link to it"
            )
        return topic, DataFile(file.parts, file.name, file.format, file.zipped, number)

    def _place(self, stem: str) -> tuple[str, int]:
        """Return the topic and partition that a file is named for: a partition that is there, else a topic."""
        try:
            topic, number, suffix = parse_partition_directory(stem)
            if not suffix and stem in self.store:
                return topic, number
        except InvalidNameError:
            pass
        if stem in self.store.topics():
            return stem, NO_PARTITION
        raise errors.NotFoundError(f"there is no partition and no topic {stem}")

    def _topic(self, topic: str) -> Topic:
        return Topic.of(self.store, topic, self._turns(topic))

    def _checked(self, files: list[tuple[str, DataFile]]) -> tuple[set[tuple[str, int]], list[Chunk] | None]:
        """Read all files. Return the partitions that their records may go to, and the records where they are few enough
        to be kept instead of read again."""
        found: set[tuple[str, int]] = set()
        few: list[Chunk] | None = []
        size = 0
        for topic, file in files:
            routed = self._topic(topic)
            for number, columns in chunks(self.staging, [file], routed):
                found.add((topic, number))
                size += columns.buffer.size
                if size > _FEW_BYTES:
                    few = None
                if few is not None:
                    few.append(((topic, number), columns))
            if file.partition == NO_PARTITION:
                # Records without a key go to another partition when they are read again.
                found.update((topic, number) for number in routed.numbers)
        return (found, None) if few is None else ({key for key, _ in few}, few)

    def _chunks(self, files: list[tuple[str, DataFile]]) -> Iterator[Chunk]:
        for topic, file in files:
            for number, columns in chunks(self.staging, [file], self._topic(topic)):
                yield (topic, number), columns

    # -- time -------------------------------------------------------------------------------------------

    def abort_late(self) -> int:
        """Abort the transactions whose time is over. Return how many."""
        gone = 0
        self._settle_linked()
        stopped = self.store.linked_transactions.unsettled()
        for name in self.names():
            if name in stopped:
                continue  # the cluster may have committed it
            deadline = self._deadline(name)
            if self.store.steady() < deadline:
                continue
            with self.claims.taken((name,)):
                if name not in self.names() or self.store.steady() < self._deadline(name):
                    continue  # it was committed meanwhile, and may have been begun anew
                self.staging.destroy((name,))
            self._deadlines.pop(name, None)
            self.refusals[name] = Refusal(
                self.store.clock(), f"aborted: it was not committed within {self.timeout_ms} ms"
            )
            log.info(f"transaction {name} is aborted: it was not committed within {self.timeout_ms} ms")
            gone += 1
        return gone

    def _settle_linked(self) -> None:
        """Try again to finish commits in the cluster that have stopped half way."""
        for name in self.store.linked_transactions.unsettled():
            with contextlib.suppress(errors.BusyError), self.claims.taken((name,)):
                try:
                    if self.store.linked_transactions.settle(name):
                        self._note_committed(name)
                except (EngineError, OSError) as error:
                    log.info(f"transaction {name}: a commit that stopped half way is tried again: {error}")

    def _deadline(self, name: str) -> int:
        """Return when a transaction is aborted. At a start the time that has passed is known by the clock alone."""
        known = self._deadlines.get(name)
        if known is not None:
            return known
        found = self.store.transactions.transaction(name)
        passed = 0 if found is None else max(0, self.store.clock() - found.updated_ms)
        return self._deadlines.setdefault(name, self.store.steady() + max(0, self.timeout_ms - passed))

    # -- status -----------------------------------------------------------------------------------------

    def note_refusal(self, name: str, error: Exception) -> None:
        """Remember why something was refused, for the status."""
        if name in self.names():
            self.refusals[name] = Refusal(int(time.time() * 1000), str(error))

    def told(self, transaction: Transaction) -> dict[str, object]:
        """Return what the status says of a transaction."""
        name = transaction.transactional_id
        refusal = self.refusals.get(name)
        is_open = name in self.names()
        deadline = self._deadline(name) if is_open else None
        return {
            "transaction": name,
            "state": transaction.state.title,
            "open": is_open,
            "seconds_left": None if deadline is None else max(0, deadline - self.store.steady()) // 1000,
            "producer_id": transaction.producer_id,
            "epoch": transaction.epoch,
            "timeout_ms": transaction.timeout_ms,
            "partitions": [f"{topic}-{number}" for topic, number in transaction.partitions],
            "updated_ms": transaction.updated_ms,
            "last_refusal": None if refusal is None else {"at_ms": refusal.at_ms, "reason": refusal.reason},
        }


def _check_name(name: str) -> None:
    """Refuse a name that no transaction can have."""
    if is_hidden(name) or name == ALL or name.endswith((COMMIT, STATUS)):
        raise errors.BadInputError(
            f"transaction {name}: expected a name that begins with neither . nor _, ends in neither {COMMIT} nor "
            f"{STATUS}, and is not {ALL}"
        )
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        raise errors.BadInputError(f"transaction {os.fsencode(name)!r}: expected UTF-8") from None
    if len(encoded) > LONGEST:
        raise errors.BadInputError(
            f"transaction: expected a name of at most {LONGEST} bytes, found {len(encoded)}"
        )
