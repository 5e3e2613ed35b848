"""Inbox commits: appending all records of a batch to the partitions of a topic, or none, exactly once.

The records form a transaction, so that readers see all of them or none. A journal says how the transaction ends:

    1. write the journal: appending      2. append and flush the records     3. write the journal: committed
    4. append and flush a marker in each partition                           5. record the batch's name
    6. remove the source files                                               7. remove the journal

Step 3 is the commit point. After a crash before it, the next start aborts the transaction; after a crash behind it,
the next start commits the transaction; both before anybody reads. A batch whose name is known is not appended again:
it is discarded if it has the content that was committed under that name, and refused if it has other content.

A topic's commits run one after the other, so one producer id is enough for all of them: a partition keeps one producer
entry for the inbox, and its sequence numbers continue.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from topicfs.engine import batch as batches
from topicfs.engine.batch.columns import Columns
from topicfs.engine.errors import BatchExistsError, ClosedError, EngineError, UnknownPartitionError
from topicfs.engine.format.paths import COMMITTED, INBOX, JOURNAL
from topicfs.engine.inbox.committed_names import CommittedNames
from topicfs.engine.inbox.content import Content
from topicfs.engine.inbox.journal import CommitState, InFlight, Journal
from topicfs.engine.inbox.routing import first_refused
from topicfs.engine.inbox.staging import Parts, Staging
from topicfs.engine.inbox.waiting import HIDDEN, ITSELF, WaitingBatch
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.validate import batch_limit, shape_for
from topicfs.engine.producer.entry import increment
from topicfs.engine.record import NO_OFFSET, TimestampType
from topicfs.engine.segment.descriptors import Descriptors

log = logging.getLogger(__name__)

PRODUCER_ID: Final = 1 << 62
"""The producer id of the inbox in every partition: far above the ids that a coordinator gives out, counting from 0."""

_EPOCH: Final = 0

Chunk = tuple[int, Columns]
"""The number of a partition, and records for it."""


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

    topic       the name of the topic
    staging     the files that are to be committed
    _numbers    returns the numbers of the topic's partitions, in order
    _partition  returns a partition by its number
    _journal    the journal of the commit under way
    _names      the names of the batches that were committed
    _unsettled  whether the journal may contain a commit that is not finished
    _gone       whether the topic was deleted
    _unchanged  by file name: when it was last changed, and since when it is unchanged by the steady clock
    _lock       held during a commit: there is one at a time
    """

    def __init__(
        self,
        topic: str,
        directory: Path,
        numbers: Callable[[], Sequence[int]],
        partition: Callable[[int], Partition],
        places: Descriptors,
    ) -> None:
        self.topic = topic
        self.staging = Staging(directory / INBOX, places)
        self._numbers = numbers
        self._partition = partition
        self._journal = Journal(directory / JOURNAL)
        self._names = CommittedNames(directory / COMMITTED)
        self._unsettled = True
        self._gone = False
        self._unchanged: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()

    def knows(self, name: str) -> bool:
        """Whether a batch of this name was committed, and is not forgotten yet."""
        return name in self._names

    def commit(
        self,
        name: str,
        chunks: Iterable[Chunk],
        sources: Sequence[Parts] = (),
        content: Content | None = None,
    ) -> Committed:
        """Append all chunks, record the name, then remove the sources. If the name is known and the content is empty
        or equal, nothing is appended and the sources are removed; BatchExistsError if the content differs. After an
        error nothing was or will be appended; only after an error of the journal, a second try must tell."""
        with self._lock:
            if self._gone:
                raise ClosedError(f"topic {self.topic} was deleted")
            self._settle()
            if name in self._names:
                self._check_equal(name, content)
                for source in sources:
                    self.staging.discard(source)
                log.info(f"{self.topic}: {name} was committed before, and is discarded")
                return Committed(0, known=True)
            records = self._commit(name, chunks, tuple(sources), None if content is None else str(content))
            log.info(f"{self.topic}: {name} is committed, {records} records")
            return Committed(records)

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

    def _commit(
        self, name: str, chunks: Iterable[Chunk], sources: tuple[Parts, ...], content: str | None
    ) -> int:
        self._unsettled = True
        writers: dict[int, _Writer] = {}
        try:
            self._journal.write(
                InFlight(CommitState.APPENDING, name, tuple(self._numbers()), sources, content)
            )
            for number, columns in chunks:
                if number not in writers:
                    self._end(number, commit=False)
                    writers[number] = _Writer.into(self._partition(number))
                writers[number].add(columns)
            for writer in writers.values():
                writer.finish()
            self._journal.write(InFlight(CommitState.COMMITTED, name, tuple(writers), sources, content))
        except (EngineError, OSError) as error:
            self._give_up(name, error)
            if name not in self._names:
                raise
            log.error(f"{self.topic}: {name} is committed, in spite of: {error!r}")
            return sum(writer.records for writer in writers.values())
        try:
            self._settle()
        except (EngineError, OSError) as error:
            # The commit is decided, and on disk: the next `settle` or the next start does the rest.
            log.error(f"{self.topic}: {name} is committed, but does not show everywhere yet: {error!r}")
        return sum(writer.records for writer in writers.values())

    def _give_up(self, name: str, reason: Exception) -> None:
        """Abort the commit, unless the journal says that it is committed. If that fails, it is tried again later."""
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
        """Finish a commit that has stopped half way, as the journal says."""
        with self._lock:
            if not self._gone:
                self._settle()

    def _settle(self) -> None:
        if not self._unsettled:
            return
        found = self._journal.read()
        if found is not None:
            commit = found.state is CommitState.COMMITTED
            if commit:
                self._journal.sync()
            ended = [number for number in found.partitions if self._end(number, commit)]
            if commit:
                self._names.add(found.name, found.content)
                for source in found.sources:
                    self.staging.discard(source)
            log.debug(f"{self.topic}: {found.name} is {found.state.value}, ended in partitions {ended}")
            self._journal.remove()
        self._unsettled = False

    def _end(self, number: int, commit: bool) -> bool:
        """End the inbox's open transaction in a partition, durably. False where there is none, or no such partition."""
        try:
            partition = self._partition(number)
        except UnknownPartitionError:
            return False
        entry = partition.log.producers.producers.get(PRODUCER_ID)
        if entry is None:
            return False
        is_open = entry.current_transaction_first_offset != NO_OFFSET
        if is_open:
            partition.end_transaction(PRODUCER_ID, entry.epoch, commit)
        # Flush even if the marker exists already: the last flush may have failed.
        partition.flush()
        return is_open

    # -- files -----------------------------------------------------------------------------------------

    def holds_files(self) -> bool:
        """Whether the inbox holds files that are not committed."""
        return any(parts[-1] not in SPENT for parts in self.staging.files(()))

    def close(self) -> None:
        """Refuse further commits, as the topic is deleted."""
        with self._lock:
            self._gone = True

    def sweep(self, dated_ms: int | None, steady_ms: int, committed_ms: int, abandoned_ms: int) -> int:
        """Remove what nobody has changed for a while: emptied directories of committed batches after `committed_ms`,
        everything else after `abandoned_ms`. Return how many entries were removed.

        The time is counted by the steady clock, from the sweep that first saw the last change. `dated_ms` is the time
        by the clock of files at the first sweep after a start, which also counts the time before it; None at others."""
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
                if steady_ms - since >= (committed_ms if self.is_spent(name) else abandoned_ms)
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


def batch_name(directory: str) -> str:
    """Return the name under which the batch of a directory is committed."""
    return f"batch:{directory}"


class _Writer:
    """The appends of one commit to one partition.

    records    the number of records that were appended
    _builder   the record batch that is being filled
    _sequence  the sequence number of the next record
    """

    def __init__(self, partition: Partition, sequence: int) -> None:
        self.records = 0
        self._partition = partition
        self._builder = batches.BatchBuilder(batch_limit(partition.settings))
        self._sequence = sequence

    @classmethod
    def into(cls, partition: Partition) -> _Writer:
        """Make a writer whose sequence numbers continue where the last commit ended."""
        entry = partition.log.producers.producers.get(PRODUCER_ID)
        return cls(partition, 0 if entry is None else increment(entry.last_sequence, 1))

    def add(self, columns: Columns) -> None:
        settings, now = self._partition.settings, self._partition.log.clock()
        _, refusal = first_refused(columns, settings, now)
        if refusal is not None:
            raise refusal
        at = 0
        while at < len(columns):
            at += self._builder.add_columns(columns.rows(at, len(columns)))
            if at < len(columns):
                self._send()

    def finish(self) -> None:
        """Append the remaining records, and flush the partition."""
        if self._builder.count:
            self._send()
        self._partition.flush()

    def _send(self) -> None:
        settings, count = self._partition.settings, self._builder.count
        stamped = settings.message_timestamp_type == TimestampType.LOG_APPEND_TIME
        shape = replace(
            shape_for(settings),
            producer_id=PRODUCER_ID,
            producer_epoch=_EPOCH,
            base_sequence=self._sequence,
            transactional=True,
        )
        batch = self._builder.finish(shape, self._partition.log.clock() if stamped else None)
        self._partition.append_built(batch)
        self._sequence = increment(self._sequence, count)
        self.records += count
