"""Commits of batches that lie in the inboxes of several topics: all of them are appended, or none.

It is a commit of an inbox (`topicfs.engine.inbox.inbox`) with more than one name: one transaction, under a
transactional id that all such commits share, one note of all names and files, and then each topic's name and files as
there. The locks of all the inboxes are held, so whoever commits in one of these topics later finds the names recorded,
or has that done first.

A topic that knows its name already is left out, so what was committed before in some of the topics is not repeated.

The batches of mirrored topics are one transaction in their Kafka cluster (`topicfs.engine.transactions.linked`). No
coordinator decides for the cluster and for this store in one step, so topics of both are refused.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from topicfs.engine.batch.columns import Columns
from topicfs.engine.errors import CorruptCheckpointError, EngineError
from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.inbox.inbox import INBOX_TIMEOUT_MS, Batch, Committed, Inbox, told
from topicfs.engine.inbox.joint_journal import JointJournal, JointNote, Part
from topicfs.engine.messages.topics import TRANSACTIONS
from topicfs.engine.transactions.coordinator import ALL_INBOXES, Coordinator
from topicfs.engine.transactions.linked import LinkedTransactions
from topicfs.engine.transactions.states import Transaction

log = logging.getLogger(__name__)

Joined = Sequence[tuple[Inbox, Batch]]
"""Batches, each with the inbox of its topic."""

_NAME: Final = "_inboxes"
"""What such a transaction in a cluster is called: no transaction of a mount has a name that begins so."""


class Joint(ABC):
    """Commits of several topics, of one kind.

    _journal  the note of the commit under way
    _inbox    returns the inbox of a topic, also of one that was just deleted; None where nothing is left of it
    _topics   those that the note may tell of, while a commit runs or has stopped half way; None where it cannot be read
    """

    def __init__(self, journal: JointJournal, inbox: Callable[[str], Inbox | None]) -> None:
        self._journal = journal
        self._inbox = inbox
        self._topics: frozenset[str] | None = frozenset()

    def recover(self) -> None:
        """Look for a commit that a crash has stopped. This runs after a start, before anybody commits."""
        self._topics = None
        found = self._journal.read()
        self._topics = frozenset() if found is None else found.topics

    @property
    def is_unsettled(self) -> bool:
        """Whether a commit may be unfinished."""
        return self._topics is None or bool(self._topics)

    def settle_for(self, topic: str) -> None:
        """Finish a commit that has stopped half way, if this topic is in it. The caller holds the topic's inbox, so no
        commit of it is running; those of other topics are not waited for."""
        if self._topics is None or topic in self._topics:
            self.settle()

    @abstractmethod
    def settle(self) -> None:
        """Finish a commit that has stopped half way."""

    def commit(self, batches: Joined) -> Committed:
        """Append the batches of different topics, record their names, then remove their sources. A name that is known
        is left out, and its sources are removed; BatchExistsError where one has other content. After an error nothing
        was or will be appended; only after an error of the coordinator's log, or of a link, a second try must tell."""
        self._prepare(batches)
        with contextlib.ExitStack() as held:
            for inbox, _ in sorted(batches, key=lambda each: each[0].topic):
                held.enter_context(inbox.held())
            known = {inbox.topic for inbox, batch in batches if inbox.has_committed(batch)}
            new = [each for each in batches if each[0].topic not in known]
            records = self._commit(new) if new else 0
            for inbox, batch in batches:
                if inbox.topic in known:
                    inbox.discard(batch)
            return Committed(records, known=not new)

    def _commit(self, new: Joined) -> int:
        names = ", ".join(f"{inbox.topic}: {batch.name}" for inbox, batch in new)
        try:
            records = self._run(new)
        except (EngineError, OSError) as error:
            log.info(f"{names}: not committed: {error}")
            if not all(inbox.knows(batch.name) for inbox, batch in new):
                raise
            log.error(f"{names}: committed, in spite of: {error!r}")
            return 0
        log.info(f"{names}: committed together, {records} records")
        return records

    @abstractmethod
    def _prepare(self, batches: Joined) -> None:
        """Do what has to be done before the inboxes are held."""

    @abstractmethod
    def _run(self, new: Joined) -> int:
        """Append batches as one transaction, and return the number of records. What is decided and cannot be finished
        is tried again later."""

    def _note(self, new: Joined, producer_id: int | None) -> None:
        parts = tuple(
            Part(inbox.topic, batch.name, batch.sources, told(batch), inbox.topic_id) for inbox, batch in new
        )
        note = JointNote(parts, producer_id)
        self._topics = note.topics
        self._journal.write(note)

    def _end(self, note: JointNote | None, commit: bool) -> None:
        """Do what is left of the noted batch, whose transaction has ended."""
        for part in note.parts if note is not None and commit else ():
            inbox = self._inbox(part.topic)
            # A topic that was made again meanwhile has batches of its own.
            if inbox is not None and (part.topic_id is None or inbox.topic_id in (None, part.topic_id)):
                inbox.note_committed(part.name, part.content, part.sources)
        if note is not None:
            self._journal.remove()
        self._topics = frozenset()


class LocalJoint(Joint):
    """Commits of several topics of this store.

    _coordinator  has the transaction
    _holder       its transactional id, with its producer; None before the first commit
    _preparing    held while it gets its producer
    """

    def __init__(
        self, journal: JointJournal, inbox: Callable[[str], Inbox | None], coordinator: Coordinator
    ) -> None:
        super().__init__(journal, inbox)
        self._coordinator = coordinator
        self._holder: Transaction | None = None
        self._preparing = threading.Lock()

    def settle(self) -> None:
        """See Joint. The lock of the transactional id keeps a commit that is running from being looked at."""
        if self.is_unsettled:
            with self._coordinator.ended(ALL_INBOXES) as transaction:
                self.end(transaction)

    def end(self, transaction: Transaction | None) -> None:
        """Do what is left of the noted batch, whose transaction has ended in the partitions. The caller holds the
        transactional id."""
        note = self._journal.read()
        if note is not None and (transaction is None or note.producer_id != transaction.producer_id):
            raise CorruptCheckpointError(
                f"{self._journal.path}: expected {ALL_INBOXES} in {TRANSACTIONS} with producer {note.producer_id}, "
                f"found {transaction and transaction.producer_id}: nobody can tell whether its batches were committed. "
                "Look for their records, and remove this file"
            )
        self._end(note, transaction is not None and transaction.is_commit)

    def _prepare(self, batches: Joined) -> None:
        for inbox, _ in batches:
            inbox.check_allowed()
        with self._preparing:
            self._coordinator.make_log()
            known = self._coordinator.transaction(ALL_INBOXES)
            self._holder = known or self._coordinator.init_producer(ALL_INBOXES, INBOX_TIMEOUT_MS)

    def _run(self, new: Joined) -> int:
        holder = self._holder
        assert holder is not None, "it was prepared"

        def noted() -> Iterator[tuple[PartitionKey, Columns]]:
            # Here the lock of the transactional id is held, and what came before is complete.
            self._note(new, holder.producer_id)
            for inbox, batch in new:
                yield from inbox.appended(batch)

        keys = itertools.chain.from_iterable(inbox.keys() for inbox, _ in new)
        return self._coordinator.run(holder, keys, noted())


class LinkedJoint(Joint):
    """Commits of several mirrored topics.

    transactions  the transactions in the cluster, of which there is one at a time
    _lock         held while one runs, or is finished
    """

    def __init__(self, journal: JointJournal, inbox: Callable[[str], Inbox | None], directory: Path) -> None:
        super().__init__(journal, inbox)
        self.transactions = LinkedTransactions(directory, lambda name: self._end(self._journal.read(), True))
        self._lock = threading.Lock()

    def settle(self) -> None:
        """See Joint."""
        if self.is_unsettled:
            with self._lock:
                self._settle()

    def _settle(self) -> None:
        self.transactions.settle(_NAME)
        # Of a committed transaction the note is gone by now. So this one is of one that is not.
        self._end(self._journal.read(), False)

    def _prepare(self, batches: Joined) -> None:
        """Leave it to the cluster's coordinator, which gives an epoch to each batch."""

    def _run(self, new: Joined) -> int:
        with self._lock:
            self._settle()
            self._note(new, None)
            chunks = (
                ((inbox.topic, number), columns) for inbox, batch in new for number, columns in batch.chunks
            )
            try:
                return self.transactions.run(_NAME, chunks, ())
            except (EngineError, OSError):
                if _NAME not in self.transactions.unsettled():
                    # It is aborted, or else of a committed one the note is gone.
                    self._end(self._journal.read(), False)
                raise
