"""Inbox commits: appending all records of a batch to the partitions of a topic, or none, exactly once.

A batch is a transaction of the store's coordinator (`topicfs.engine.transactions.coordinator`), which says how it ends.
What the inbox adds is the batch's name, and the files that it was made of:

    1. the coordinator's log: Ongoing          2. note the batch        3. append and flush the records
    4. the coordinator's log: PrepareCommit    5. append and flush a marker in each partition
    6. record the batch's name                 7. remove the source files                8. remove the note
    9. the coordinator's log: CompleteCommit

Step 4 is the commit point. The note stands between steps 2 and 8 only, so it is always of the last transaction of the
topic's transactional id. A batch whose name is known is not appended again: it is discarded if it has the content that
was committed under that name, and refused if it has other content.

A topic's commits run one after the other, so one producer id is enough for all of them: a partition keeps one producer
entry for the inbox, and its sequence numbers continue.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from topicfs.engine.batch.columns import Columns
from topicfs.engine.errors import (
    BatchExistsError,
    ClosedError,
    CorruptCheckpointError,
    EngineError,
    PolicyViolationError,
    UnknownPartitionError,
)
from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.format.paths import COMMITTED, IMPORT_SCRATCH, INBOX, JOURNAL
from topicfs.engine.inbox.committed_names import CommittedNames
from topicfs.engine.inbox.content import Content, records_in
from topicfs.engine.inbox.journal import CommitState, InFlight, Journal
from topicfs.engine.inbox.waiting import ITSELF, WaitingBatch
from topicfs.engine.messages.topics import OFFSETS, TRANSACTIONS
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.transactional import end_open
from topicfs.engine.segment.descriptors import Descriptors
from topicfs.engine.staging.staging import HIDDEN, Parts, Staging
from topicfs.engine.transactions.coordinator import INBOXES, Coordinator
from topicfs.engine.transactions.states import Transaction

log = logging.getLogger(__name__)

OLDER_PRODUCER_ID: Final = 1 << 62
"""The producer id that older versions gave the inbox in every partition: what a crash of theirs left open is its."""

INBOX_TIMEOUT_MS: Final = 60_000
"""The transaction timeout that is written down for an inbox, whose transaction ends with the call: Kafka's default."""

Chunk = tuple[int, Columns]
"""The number of a partition, and records for it."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What is to be appended to a topic as a whole.

    name     the name under which it is remembered
    chunks   its records
    sources  the source files, and directories of them, which are removed or emptied when it is committed
    content  the fingerprint of its content; None where it is not known
    """

    name: str
    chunks: Iterable[Chunk]
    sources: tuple[Parts, ...] = ()
    content: Content | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """The result of a commit.

    records    the number of records that were appended
    known      whether the batch was committed before: then nothing was appended
    """

    records: int
    known: bool = False


class Inbox:
    """The inbox of one topic.

    topic         the name of the topic
    staging       the files that are to be committed
    is_written    tells whether a file at or below a path is open for writing
    _numbers      returns the numbers of the topic's partitions, in order
    _partition    returns a partition by its number
    _coordinator  has the transactions; None where no store is open
    _holder       the transactional id of the inbox, with its producer; None before the first commit
    _journal      the note of the commit under way
    _names        the names of the batches that were committed
    _unsettled    whether the note may be of a commit that is not finished
    _gone         whether the topic was deleted
    _unchanged    by file name: when it was last changed, and since when it is unchanged by the steady clock
    _preparing    held while the inbox gets its producer
    settle_joint  finishes a commit of several topics that has stopped half way, if this one is among them
    _lock         held during a commit: there is one at a time
    """

    def __init__(
        self,
        topic: str,
        directory: Path,
        numbers: Callable[[], Sequence[int]],
        partition: Callable[[int], Partition],
        places: Descriptors,
        coordinator: Coordinator | None,
    ) -> None:
        self.topic = topic
        self.staging = Staging(directory / INBOX, places)
        self.is_written: Callable[[Parts], bool] = lambda parts: False
        self._numbers = numbers
        self._partition = partition
        self._coordinator = coordinator
        self._holder: Transaction | None = None
        self._journal = Journal(directory / JOURNAL)
        self._names = CommittedNames(directory / COMMITTED)
        self._unsettled = True
        self._gone = False
        self._unchanged: dict[str, tuple[int, int]] = {}
        self.settle_joint: Callable[[], None] = lambda: None
        self._preparing = threading.Lock()
        self._lock = threading.Lock()

    def knows(self, name: str) -> bool:
        """Whether a batch of this name was committed, and is not forgotten yet."""
        return name in self._names

    def records_of(self, name: str) -> int | None:
        """Return how many records were committed under a name; None where that is forgotten, or was never noted."""
        committed = self._names.content(name)
        return None if committed is None else records_in(committed)

    def commit(
        self,
        name: str,
        chunks: Iterable[Chunk],
        sources: Sequence[Parts] = (),
        content: Content | None = None,
    ) -> Committed:
        """Append all chunks, record the name, then remove the sources. If the name is known and the content is empty
        or equal, nothing is appended and the sources are removed; BatchExistsError if the content differs. After an
        error nothing was or will be appended; only after an error of the coordinator's log, a second try must tell."""
        batch = Batch(name, chunks, tuple(sources), content)
        holder = self._prepared()
        with self.held():
            if self.has_committed(batch):
                self.discard(batch)
                return Committed(0, known=True)
            self._holder = holder
            records = self._commit(batch)
            log.info(f"{self.topic}: {name} is committed, {records} records")
            return Committed(records)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other commits waiting, with none of this topic unfinished. ClosedError if the topic was deleted."""
        with self._lock:
            if self._gone:
                raise ClosedError(f"topic {self.topic} was deleted")
            self.settle_joint()
            self._settle()
            yield

    def has_committed(self, batch: Batch) -> bool:
        """Tell whether a batch was committed before. BatchExistsError if that was another one of its name."""
        if batch.name not in self._names:
            return False
        self._check_equal(batch.name, batch.content)
        return True

    def discard(self, batch: Batch) -> None:
        """Remove the sources of a batch that was committed before."""
        for source in batch.sources:
            self.staging.discard(source)
        log.info(f"{self.topic}: {batch.name} was committed before, and is discarded")

    @property
    def topic_id(self) -> str | None:
        """Return the id of the topic; None where it is gone, or has none that can be told."""
        for number in self._numbers():
            with contextlib.suppress(EngineError):
                return self._partition(number).topic_id
        return None

    def keys(self) -> list[PartitionKey]:
        """Return the partitions of the topic."""
        return [(self.topic, number) for number in self._numbers()]

    def appended(self, batch: Batch) -> Iterator[tuple[PartitionKey, Columns]]:
        """Give a batch's records for a transaction of this store, each with its partition."""
        begun = set[int]()
        for number, columns in batch.chunks:
            if number not in begun:
                begun.add(number)
                end_open(self._partition(number), OLDER_PRODUCER_ID, commit=False)
            yield (self.topic, number), columns

    def note_committed(self, name: str, content: str | None, sources: Iterable[Parts]) -> None:
        """Remember the name of a batch that is committed, and remove its sources. It may be called again."""
        self._names.add(name, content)
        for source in sources:
            self.staging.discard(source)

    def _check_equal(self, name: str, content: Content | None) -> None:
        """Refuse other content under a known name. Empty content is allowed: a client that did not learn of its commit
        asks for it again, when its files are removed already."""
        committed = self._names.content(name)
        if content is None or committed is None:
            log.info(f"{self.topic}: what was committed as {name} was not noted, and cannot be compared")
        elif not content.is_empty and content.is_other(committed):
            raise BatchExistsError(
                f"{name} was committed before with other records: expected {committed}, found {content} (form, number "
                "and hash); nothing is appended, and nothing is removed: give it another name, or remove it"
            )

    def _prepared(self) -> Transaction | None:
        """Return the inbox's transactional id with its producer. The coordinator may make its log for it, for which it
        needs the store: so no commit of the inbox is under way meanwhile, which a deletion would wait for."""
        self.check_allowed()
        with self._preparing:
            self._local.make_log()
            known = self._local.transaction(self._transactional_id)
            return known or self._local.init_producer(self._transactional_id, INBOX_TIMEOUT_MS)

    def check_allowed(self) -> None:
        """Raise PolicyViolationError for a topic that has no batches."""
        if self.topic in (OFFSETS, TRANSACTIONS):
            raise PolicyViolationError(
                f"{self.topic}: only coordinators write it, so it has no batches: append the records to another topic"
            )

    @property
    def _transactional_id(self) -> str:
        return INBOXES + self.topic

    @property
    def _local(self) -> Coordinator:
        assert self._coordinator is not None, "no store is open"
        return self._coordinator

    def _commit(self, batch: Batch) -> int:
        self._unsettled = True
        name, holder = batch.name, self._holder
        assert holder is not None, "it was prepared"
        note = InFlight(
            CommitState.TRANSACTION, name, (), batch.sources, told(batch), producer_id=holder.producer_id
        )
        records = 0

        def noted() -> Iterator[tuple[PartitionKey, Columns]]:
            nonlocal records
            self._journal.write(note)
            for key, columns in self.appended(batch):
                records += len(columns)
                yield key, columns

        try:
            self._local.run(holder, self.keys(), noted())
        except (EngineError, OSError) as error:
            self._give_up(name, error)
            if name not in self._names:
                raise
            log.error(f"{self.topic}: {name} is committed, in spite of: {error!r}")
            return records
        try:
            self._settle()
        except (EngineError, OSError) as error:
            # The commit is decided, and on disk: the next `settle` or the next start does the rest.
            log.error(f"{self.topic}: {name} is committed, but does not show everywhere yet: {error!r}")
        return records

    def _give_up(self, name: str, reason: Exception) -> None:
        """Abort the commit, unless it is decided. If that fails, it is tried again later."""
        log.info(f"{self.topic}: {name} is not committed: {reason}")
        try:
            self._settle()
        except (EngineError, OSError) as error:
            log.error(f"{self.topic}: {name} cannot be aborted yet, and is tried again: {error!r}")

    # -- what a commit leaves --------------------------------------------------------------------------

    @property
    def is_unsettled(self) -> bool:
        """Whether a commit may be unfinished."""
        return self._unsettled

    def settle(self) -> None:
        """Finish a commit that has stopped half way, as its coordinator says."""
        with self._lock:
            if not self._gone:
                self._settle()

    def _settle(self) -> None:
        if not self._unsettled:
            return
        found = self._journal.read()
        if found is not None and found.state is CommitState.TRANSACTION:
            with self._local.ended(self._transactional_id) as transaction:
                self.end(transaction)
        elif found is not None:
            self._end_older(found)
        self._unsettled = False

    def end(self, transaction: Transaction | None) -> None:
        """Do what is left of the noted batch, whose transaction has ended in the partitions. The caller holds the
        transactional id, and so nobody notes another batch meanwhile."""
        found = self._journal.read()
        if found is None:
            return
        if transaction is None or found.producer_id != transaction.producer_id:
            raise CorruptCheckpointError(
                f"{self._journal.path}: expected {self._transactional_id} in {TRANSACTIONS} with producer "
                f"{found.producer_id}, found {transaction and transaction.producer_id}: nobody can tell whether "
                f"{found.name} was committed. Look for its records, and remove this file"
            )
        self._finish(found, transaction.is_commit)

    def _end_older(self, found: InFlight) -> None:
        """End the transaction of an older version, which its journal alone decides."""
        commit = found.state is CommitState.COMMITTED
        if commit:
            self._journal.sync()
        for number in found.partitions:
            with contextlib.suppress(UnknownPartitionError):
                end_open(self._partition(number), OLDER_PRODUCER_ID, commit)
        self._finish(found, commit)

    def _finish(self, found: InFlight, commit: bool) -> None:
        if commit:
            self.note_committed(found.name, found.content, found.sources)
        log.debug(f"{self.topic}: {found.name} is {'committed' if commit else 'aborted'}")
        self._journal.remove()

    # -- files -----------------------------------------------------------------------------------------

    def holds_files(self) -> bool:
        """Whether the inbox holds files that are not committed."""
        return any(parts[-1] not in SPENT for parts in self.staging.files(()))

    def close(self) -> None:
        """Refuse further commits, as the topic is deleted."""
        with self._lock:
            self._gone = True

    def sweep(self, dated_ms: int | None, steady_ms: int, committed_ms: int, abandoned_ms: int) -> int:
        """Remove what nobody has changed for a while: emptied directories of committed batches, and what an
        import that was killed has left, after `committed_ms`, everything else after `abandoned_ms`. Return how many
        entries were removed.

        The time is counted by the steady clock, from the sweep that first saw the last change. `dated_ms` is the time
        by the clock of files at the first sweep after a start, which also counts the time before it; None at others."""
        copied = self._copied()
        if not self._lock.acquire(blocking=False):
            return 0
        try:
            unchanged = {}
            for name in self.staging.names(()):
                changed = self.staging.last_change_ms((name,))
                before = 0 if dated_ms is None else max(0, dated_ms - changed)
                known = self._unchanged.get(name)
                unchanged[name] = (
                    known if known is not None and known[0] == changed else (changed, steady_ms - before)
                )
            self._unchanged = unchanged
            gone = [
                name
                for name, (_, since) in unchanged.items()
                if steady_ms - since >= (committed_ms if self._is_left(name) else abandoned_ms)
                and name not in copied
            ]
            for name in gone:
                self.staging.destroy((name,))
            return len(gone)
        except FileNotFoundError:
            # Somebody is changing the inbox.
            return 0
        finally:
            self._lock.release()

    def waiting(self) -> list[WaitingBatch]:
        """Return the batches that are not committed, the one first that was left alone for the longest."""
        found, loose = [], list[int]()
        for name in self.staging.names(()):
            if name.startswith(HIDDEN) or self.is_spent(name):
                continue
            with contextlib.suppress(FileNotFoundError):
                if self.staging.is_directory((name,)):
                    files, since = self.staging.census((name,))
                    found.append(WaitingBatch(since, name, files))
                else:
                    loose.append(self.staging.last_change_ms((name,)))
        if loose:
            found.append(WaitingBatch(max(loose), ITSELF, len(loose)))
        return sorted(found, key=lambda batch: (batch.since_ms, batch.directory))

    def _is_left(self, name: str) -> bool:
        """Whether nobody comes back to this entry."""
        return name.startswith(IMPORT_SCRATCH) or self.is_spent(name)

    def _copied(self) -> set[str]:
        """Return the entries that an import is at work on. It has its file open all the time but for an instant."""
        names = self.staging.names(())
        with contextlib.suppress(FileNotFoundError):
            return {name for name in names if name.startswith(IMPORT_SCRATCH) and self.is_written((name,))}
        return set(names)

    def is_spent(self, name: str) -> bool:
        """Whether this entry of the inbox is only a remainder of a committed batch."""
        if name in SPENT:
            return True
        if batch_name(name) not in self._names:
            return False
        try:
            return set(self.staging.names((name,))) <= SPENT
        except (FileNotFoundError, NotADirectoryError):
            return False


SPENT: Final = frozenset({"_SUCCESS", "._SUCCESS.crc"})
"""The files that a job leaves behind when it has finished."""


def told(batch: Batch) -> str | None:
    """Return the form in which the content of a batch is stored."""
    return None if batch.content is None else str(batch.content)


def batch_name(directory: str) -> str:
    """Return the name under which the batch of a directory is committed."""
    return f"batch:{directory}"
