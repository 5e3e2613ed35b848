"""Appending to a topic as a whole, exactly once: all records of a batch, in whatever partitions, or none.

The records are those of a transaction, so that nobody sees some of them, and a journal says what is to become of it:

    1. journal: appending        2. the records, onto the disk      3. journal: committed, the commit point
    4. a marker in each partition, onto the disk                    5. the batch's name
    6. the files that it was made of are removed                    7. no journal

A crash before 3 leaves a transaction that is aborted by the next start, one after it a transaction that is committed
then: before anybody reads. A batch whose name is known is not appended again: it is discarded where it holds what was
committed under that name, and refused where it holds something else.

A topic's commits come one after the other, so that one producer is enough for all of them: a partition then remembers
one entry for the inbox, whose sequence numbers go on.
"""

from __future__ import annotations

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
from topicfs.engine.inbox.content import Content
from topicfs.engine.inbox.journal import CommitState, InFlight, Journal
from topicfs.engine.inbox.names import CommittedNames
from topicfs.engine.inbox.routing import first_refused
from topicfs.engine.inbox.staging import Parts, Staging
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.validate import batch_limit, shape_for
from topicfs.engine.producer.entry import increment
from topicfs.engine.record import NO_OFFSET, TimestampType
from topicfs.engine.segment.descriptors import Descriptors

log = logging.getLogger(__name__)

PRODUCER_ID: Final = 1 << 62
"""Of the inbox, in every partition: far above what a coordinator, which counts from 0, ever gives out."""

_EPOCH: Final = 0

Chunk = tuple[int, Columns]
"""Records for one partition, and its number."""


@dataclass(frozen=True, slots=True)
class Committed:
    """What became of a batch.

    records    how many were appended
    known      the batch was committed before: nothing was appended
    """

    records: int
    known: bool = False


class Inbox:
    """One topic's.

    topic       its name
    staging     files on their way in
    _numbers    gives the topic's partitions, in order
    _partition  gives one of them
    _journal    the commit under way
    _names      of what was committed
    _unsettled  the journal may speak of a commit that has not come to its end
    _gone       the topic was deleted
    _unchanged  what lies here: when it was last changed, and since when it was seen so, by the steady clock
    _lock       held by the one commit at a time
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
        """Whether this was committed, and not so long ago that it is forgotten."""
        return name in self._names

    def commit(
        self,
        name: str,
        chunks: Iterable[Chunk],
        sources: Sequence[Parts] = (),
        content: Content | None = None,
    ) -> Committed:
        """Append all chunks, and note the name; then remove the sources, also where the name is known already and
        the content is what was committed, or nothing. BatchExistsError where it is something else. An error
        means that nothing was appended, now or later: save for one of the journal's, where a second try tells."""
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
        """Refuse other content under a name that is known. No lines at all do no harm: so a commit is asked for again
        by who did not hear that it was done, when its files are gone already."""
        committed = self._names.content(name)
        if content is None or committed is None:
            log.info(f"{self.topic}: what was committed as {name} was not noted, and cannot be compared")
        elif not content.is_empty and str(content) != committed:
            raise BatchExistsError(
                f"{name} was committed before with other lines: expected {committed}, found {content} (number and "
                "hash); nothing is appended, and nothing is removed: give it another name, or remove it"
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
            # It is decided, and on disk: what is missing is done by the next `settle` or the next start.
            log.error(f"{self.topic}: {name} is committed, but does not show everywhere yet: {error!r}")
        return sum(writer.records for writer in writers.values())

    def _give_up(self, name: str, reason: Exception) -> None:
        """Abort what was begun, unless the journal says that it is committed. What fails is tried again later."""
        log.info(f"{self.topic}: {name} is not committed: {reason}")
        try:
            self._settle()
        except (EngineError, OSError) as error:
            log.error(f"{self.topic}: {name} cannot be aborted yet, and is tried again: {error!r}")

    # -- what a commit leaves --------------------------------------------------------------------------

    @property
    def is_unsettled(self) -> bool:
        """Whether a commit may have stopped half way."""
        return self._unsettled

    def settle(self) -> None:
        """Bring a commit that stopped half way to its end, as the journal says."""
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
        # Also where the marker is there: a flush may be what failed.
        partition.flush()
        return is_open

    # -- files -----------------------------------------------------------------------------------------

    def holds_files(self) -> bool:
        """Whether files lie here that are not committed."""
        return any(parts[-1] not in SPENT for parts in self.staging.files(()))

    def close(self) -> None:
        """The topic goes: nothing is committed any more."""
        with self._lock:
            self._gone = True

    def sweep(self, dated_ms: int | None, steady_ms: int, committed_ms: int, abandoned_ms: int) -> int:
        """Remove what nobody has changed for a while: emptied directories of committed batches after one time,
        everything else after another. Gives how many there were.

        That time is counted by the steady clock, from the first sweep on that saw it so. `dated_ms` is what the clock
        of files says at the first sweep after a start, which counts what was before that too; None at others."""
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
            # Somebody is at work there.
            return 0
        finally:
            self._lock.release()

    def is_spent(self, name: str) -> bool:
        """Whether what has this name in the inbox is all that is left of something that was committed."""
        if name in SPENT:
            return True
        if batch_name(name) not in self._names:
            return False
        try:
            return set(self.staging.names((name,))) <= SPENT
        except (FileNotFoundError, NotADirectoryError):
            return False


SPENT: Final = frozenset({"_SUCCESS", "._SUCCESS.crc"})
"""What a job leaves behind when all is done."""


def batch_name(directory: str) -> str:
    """The name by which a batch directory is known."""
    return f"batch:{directory}"


class _Writer:
    """A batch's records on their way into one partition.

    records    how many there were
    _builder   the record batch that grows
    _sequence  of the next record
    """

    def __init__(self, partition: Partition, sequence: int) -> None:
        self.records = 0
        self._partition = partition
        self._builder = batches.BatchBuilder(batch_limit(partition.settings))
        self._sequence = sequence

    @classmethod
    def into(cls, partition: Partition) -> _Writer:
        """The sequence numbers go on where the last commit ended."""
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
        """Append what is left, and bring all of it onto the disk."""
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
