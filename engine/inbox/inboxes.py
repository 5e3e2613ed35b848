"""The inboxes of a store: BACKING/staging/<topic>/{journal,committed,inbox/}."""

from __future__ import annotations

import contextlib
import errno
import logging
import shutil
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from topicfs.engine.errors import EngineError, MixedTopicsError, UnknownPartitionError
from topicfs.engine.files.atomic import sync_directory
from topicfs.engine.files.regular import NotRegularError
from topicfs.engine.format.paths import JOURNAL
from topicfs.engine.inbox.cluster import ClusterTransactions
from topicfs.engine.inbox.inbox import OLDER_PRODUCER_ID, Batch, Committed, Inbox
from topicfs.engine.inbox.joint import Joint, LinkedJoint, LocalJoint
from topicfs.engine.inbox.joint_journal import journals
from topicfs.engine.inbox.journal import CommitState, Journal
from topicfs.engine.inbox.linked_inbox import LinkedInbox
from topicfs.engine.inbox.waiting import WaitingBatch
from topicfs.engine.partition.partition import Partition
from topicfs.engine.segment.descriptors import Descriptors
from topicfs.engine.transactions.coordinator import ALL_INBOXES, INBOXES, Coordinator
from topicfs.engine.transactions.states import Transaction

log = logging.getLogger(__name__)

SPENT_MS: Final = 600_000
"""An emptied directory of a committed batch is removed after this time: its job may still look at it."""

ABANDONED_MS: Final = 7 * 86_400_000
"""What a job left unfinished is removed after this time. Not at a start: a job may run longer than the daemon."""

_CONDEMNED: Final = "~"
"""The first character of the name of a directory that is being removed: no topic's name contains it."""


class Inboxes:
    """The inboxes of all topics.

    directory     the directory that has a directory for each topic
    _numbers      returns the numbers of a topic's partitions; none where there is no such topic
    _partition    returns a partition by topic and number
    _places       the limit of open files, to which the inboxes' files count
    _coordinator  has the transactions of all inboxes here; None where no store is open
    is_linked     tells whether a topic mirrors one of a Kafka cluster
    cluster       makes transactions there; None while there is no link
    joint         commits of batches of several topics here; None where no store is open
    linked_joint  commits of batches of several mirrored topics
    _open         by topic: the inboxes that were asked for
    _swept        whether there was a sweep since the start
    """

    def __init__(
        self,
        directory: Path,
        numbers: Callable[[str], Sequence[int]],
        partition: Callable[[str, int], Partition],
        places: Descriptors,
        coordinator: Coordinator | None = None,
    ) -> None:
        self.directory = directory
        self._numbers = numbers
        self._partition = partition
        self._places = places
        self._coordinator = coordinator
        here, linked = journals(directory.parent)
        self.joint: LocalJoint | None = None
        self.linked_joint = LinkedJoint(linked, self._left, linked.path.parent)
        if coordinator is not None:
            coordinator.end_batch = self._end_batch
            self.joint = LocalJoint(here, self._left, coordinator)
        self.is_linked: Callable[[str], bool] = lambda topic: False
        self.cluster: ClusterTransactions | None = None
        self._open: dict[str, Inbox] = {}
        self._swept = False
        self._lock = threading.Lock()

    def of(self, topic: str) -> Inbox:
        """Return the inbox of a topic; UnknownPartitionError where there is no such topic."""
        if not self._numbers(topic):
            raise UnknownPartitionError(f"there is no topic {topic}")
        if (self.directory / topic).is_symlink():
            raise NotRegularError(errno.EINVAL, "expected a directory, found a symbolic link", topic)
        with self._lock:
            found = self._open.get(topic)
            if found is None:
                found = self._open[topic] = self._make(topic)
            return found

    def _make(self, topic: str) -> Inbox:
        directory, numbers = self.directory / topic, partial(self._numbers, topic)
        partition = partial(self._partition, topic)
        made = (
            LinkedInbox(topic, directory, numbers, partition, self._places, lambda: self.cluster)
            if self.is_linked(topic)
            else Inbox(topic, directory, numbers, partition, self._places, self._coordinator)
        )
        made.settle_joint = partial(self._settle_joint_for, topic)
        return made

    def _left(self, topic: str) -> Inbox | None:
        """Return the inbox of a topic, also of one whose partitions are gone; None where nothing is left of it."""
        if self._numbers(topic):
            return self.of(topic)
        with self._lock:
            found = self._open.get(topic)
        return self._make(topic) if found is None and (self.directory / topic).is_dir() else found

    @property
    def _joints(self) -> Sequence[Joint]:
        return [self.linked_joint] if self.joint is None else [self.joint, self.linked_joint]

    def _settle_joint_for(self, topic: str) -> None:
        for joint in self._joints:
            joint.settle_for(topic)

    def commit(self, batches: Mapping[str, Batch]) -> Committed:
        """Append the batches of topics, all of them or none, each once: see `Inbox.commit`. MixedTopicsError where some
        of several topics mirror those of a Kafka cluster, and others do not."""
        found = [(self.of(topic), batch) for topic, batch in batches.items()]
        if len(found) == 1:
            ((inbox, batch),) = found
            return inbox.commit(batch.name, batch.chunks, batch.sources, batch.content)
        self.check_joint(batches)
        if any(self.is_linked(topic) for topic in batches):
            return self.linked_joint.commit(found)
        assert self.joint is not None, "no store is open"
        return self.joint.commit(found)

    def check_joint(self, topics: Iterable[str]) -> None:
        """Raise MixedTopicsError where no one can commit a batch of these topics in one step."""
        linked = {topic: self.is_linked(topic) for topic in topics}
        if len({*linked.values()}) > 1:
            theirs = ", ".join(sorted(topic for topic, is_linked in linked.items() if is_linked))
            ours = ", ".join(sorted(topic for topic, is_linked in linked.items() if not is_linked))
            raise MixedTopicsError(
                f"a batch of several topics is in the Kafka cluster or here, not in both: {theirs} is the cluster's, "
                f"{ours} this store's own; write them as two; nothing is appended"
            )

    def _end_batch(self, transaction: Transaction) -> None:
        """Finish the batch of a transaction that has ended. A topic that is gone has none."""
        if transaction.transactional_id == ALL_INBOXES:
            assert self.joint is not None, "it was made with the coordinator"
            self.joint.end(transaction)
            return
        topic = transaction.transactional_id.removeprefix(INBOXES)
        if self._numbers(topic) and not self.is_linked(topic):
            self.of(topic).end(transaction)

    def recover(self) -> None:
        """Finish commits that a crash has stopped, and remove the files of topics that no longer exist. This runs after
        a start, before anybody reads."""
        for joint in self._joints:
            self._recover_joint(joint)
        for directory in sorted(self.directory.iterdir()):
            if directory.is_symlink() or not directory.is_dir():
                log.error(f"{directory}: expected a directory, and is left alone")
            elif not self._numbers(directory.name):
                shutil.rmtree(directory, ignore_errors=True)
            elif (directory / JOURNAL).exists():
                self._settle(self.of(directory.name))

    def _recover_joint(self, joint: Joint) -> None:
        try:
            joint.recover()
            joint.settle()
        except (EngineError, OSError) as error:
            log.error(f"a commit of several topics that stopped half way is tried again: {error!r}")

    def show_settled(self, partition: Partition) -> None:
        """Decide an older version's unfinished commit in a read-only partition as `recover` would, in memory only."""
        found = Journal(self.directory / partition.topic / JOURNAL).read()
        if found is not None and partition.number in found.partitions:
            partition.log.decide(OLDER_PRODUCER_ID, found.state is CommitState.COMMITTED)

    def settle(self) -> None:
        """Try again to finish commits that could not be finished before."""
        for joint in self._joints:
            try:
                joint.settle()
            except (EngineError, OSError) as error:
                log.error(f"a commit of several topics that stopped half way is tried again: {error!r}")
        for inbox in list(self._open.values()):
            if inbox.is_unsettled:
                self._settle(inbox)

    def _settle(self, inbox: Inbox) -> None:
        try:
            inbox.settle()
        except (EngineError, OSError) as error:
            log.error(f"{inbox.topic}: a commit that stopped half way is tried again: {error!r}")

    def sweep(self, now: int, steady_ms: int) -> int:
        """Remove what nobody has changed for a while. Return how many files and directories were removed.

        `now` is the time by the clock that dates files. That clock may be set, so only the first sweep after a start
        uses it; `steady_ms` is the time by a clock that nobody can set."""
        removed = 0
        dated_ms, self._swept = None if self._swept else now, True
        for directory in sorted(self.directory.iterdir()):
            if self._numbers(directory.name) and not directory.is_symlink():
                removed += self.of(directory.name).sweep(dated_ms, steady_ms, SPENT_MS, ABANDONED_MS)
        return removed

    def waiting(self) -> dict[str, list[WaitingBatch]]:
        """Return the batches that are not committed, by topic, of the topics that have some. An inbox that cannot be
        read, or whose topic is deleted meanwhile, is left out: the status of the topic's partitions tells why."""
        found = {}
        for directory in sorted(self.directory.glob("*")):
            with contextlib.suppress(EngineError, OSError):
                if batches := self.of(directory.name).waiting():
                    found[directory.name] = batches
        return found

    def restore(self, topic: str, kept: Path) -> None:
        """Restore the inbox that `forget` has kept for a deleted topic, if it kept one and the topic has none now."""
        if kept.is_dir() and not (self.directory / topic).exists():
            with self._lock:
                self._open.pop(topic, None)
            kept.rename(self.directory / topic)
            sync_directory(self.directory)
            if self._numbers(topic):
                self._settle(self.of(topic))

    def forget(self, topic: str, kept: Path | None = None) -> None:
        """Remove the inbox of a deleted topic: its files, the journal and the committed names. Where a path `kept` is
        given, move it there instead."""
        try:
            # Its name belongs to what is moved.
            self._settle_joint_for(topic)
        except (EngineError, OSError) as error:
            log.error(f"{topic}: is deleted while a batch of it and other topics is unfinished: {error!r}")
        with self._lock:
            inbox = self._open.pop(topic, None)
        if inbox is not None:
            inbox.close()
        if kept is not None:
            with contextlib.suppress(FileNotFoundError):
                (self.directory / topic).rename(kept)
                sync_directory(self.directory)
            return
        condemned = self.directory / f"{_CONDEMNED}{uuid.uuid4().hex}"
        try:
            (self.directory / topic).rename(condemned)
        except FileNotFoundError:
            return
        shutil.rmtree(condemned, ignore_errors=True)
