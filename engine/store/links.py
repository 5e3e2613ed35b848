"""What a link to a Kafka cluster adds to a store: partitions that mirror the cluster's, and what is known of them."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from topicfs.engine.cleaner.manager import CleaningManager
from topicfs.engine.errors import ClosedError, EngineError, LinkedTopicError, LinkError
from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.files.metadata import PartitionMetadata
from topicfs.engine.linked.state import MirrorState
from topicfs.engine.linked.topics import LinkedTopic, LinkedTopics
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.remote import Remote, Way
from topicfs.engine.partition.slot import Slot
from topicfs.engine.settings.configuration import Configuration
from topicfs.engine.store import handover
from topicfs.engine.store.directories import Directories
from topicfs.engine.store.new_topic import NewTopic
from topicfs.engine.store.partitions import Partitions

log = logging.getLogger(__name__)


class TopicAdministration(Protocol):
    """What makes and deletes topics in the cluster."""

    def create(self, topic: NewTopic) -> bool:
        """Make a topic in the cluster, and return when it is mirrored; False where it is to be a local one."""

    def delete(self, topic: LinkedTopic, number: int | None) -> None:
        """Delete a topic without records in the cluster; PolicyViolationError where that is not allowed, as it is not
        for a single partition."""


class Readiness(Protocol):
    """What knows of mirrored partitions whether lines for them go to the cluster."""

    @property
    def timeout_ms(self) -> int:
        """Return for how long lines wait."""

    @property
    def is_divided(self) -> bool:
        """Tell whether others may have some of a topic's partitions."""

    def wait(self, topic: str, numbers: Sequence[int]) -> None:
        """Wait until lines for these partitions go to the cluster, but for those that are never to: where all are, the
        error says why. LinkRefusedError where this user may not use the topic, DeliveryTimeoutError where it takes too
        long, or the caller has given up."""

    def refusal(self, topic: str, number: int) -> EngineError | None:
        """Return why lines for a partition do not go to the cluster, where waiting is no use; None where it may be."""

    def timeout(self, topic: str, number: int) -> EngineError:
        """Return the error of who has waited for a partition in vain: DeliveryTimeoutError."""


@dataclass(slots=True)
class Links:
    """The mirrors of a Kafka cluster's partitions in one store.

    mirrors          their states, while they are linked
    error            why the cluster cannot be asked what is to be mirrored; None if it can, or nobody asks it
    problems         by topic: why it is not mirrored, though it is wanted. ClusterAwayError where that may pass: then
                     it is mirrored as before, if it was
    given_up         tells, in a call of a user, whether the user waits for its answer no longer
    group            in words: who mirrors the partitions that this daemon does not; empty without a group
    counts           by topic: how many partitions the cluster has, where a group divides them; empty without a group
    remote           makes and deletes topics in the cluster; None while nothing is linked
    readiness        knows whether lines for a mirrored partition go to the cluster, and waits; None without a link
    gone             the ids of topics that were deleted in the cluster from here: they are not mirrored any more
    _guard           the store's
    _check_writable  raises ClosedError where the store is closed, ReadOnlyError where it was opened read-only
    """

    _guard: threading.RLock
    _check_writable: Callable[[], None]
    _configuration: Configuration
    _partitions: Partitions
    _directories: Directories
    mirrors: dict[PartitionKey, MirrorState] = field(default_factory=dict)
    error: str | None = None
    problems: Mapping[str, EngineError | OSError] = field(default_factory=dict)
    given_up: Callable[[], bool] = lambda: False
    group: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    remote: TopicAdministration | None = None
    readiness: Readiness | None = None
    gone: set[str] = field(default_factory=set)

    def link(self, topic: LinkedTopic, numbers: Iterable[int]) -> None:
        """Create those of a Kafka cluster's partitions that are not here, to mirror them; note what the cluster says of
        their topic, and apply its settings. InconsistentTopicIdError where another topic has the name."""
        with self._guard:
            self._check_writable()
            if topic.topic_id in self.gone:
                raise LinkError(f"topic {topic.name} was deleted in the cluster by rmdir here")
            slots = self._partitions.of_topic(topic.name)
            if slots:
                self._directories.topic_id(topic.name, topic.topic_id)
            self.note((topic,))
            missing = sorted({*numbers} - {slot.number for slot in slots})
            for number in missing:
                self._directories.check_free(topic.name, number)
                slot = self._directories.create(topic.name, number, topic.topic_id)
                self._configuration.find_again(topic.name, slot.directory)
            if missing:
                self._partitions.reconfigure(self._partitions.of_topic(topic.name))

    def take(self, topic: LinkedTopic, number: int, source: Path) -> None:
        """Take a partition from another daemon's log directory, whose it is no more. LinkError where what is there is
        another topic's, FileNotFoundError where another one was faster."""
        with self._guard:
            self._check_writable()
            slot = self._partitions.empty_slot(topic.name, number)
            before = source / slot.directory.name
            if not before.is_dir():
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(before))
            found = PartitionMetadata.load(before).topic_id
            if found != topic.topic_id:
                raise LinkError(
                    f"{before}: expected topic id {topic.topic_id}, found {found}: the topic was deleted and made anew"
                )
            known = handover.known_of(before, slot.key)
            if before != slot.directory:
                self._directories.check_free(topic.name, number)
            self._directories.forget(slot)
            self._partitions.checkpoints.adopt(slot.key, known)
            handover.take(before, slot.directory)
            self._configuration.find_again(topic.name, slot.directory)
            with contextlib.suppress(ClosedError):
                # One that cannot be loaded is offline, and says why.
                slot.use(lambda empty: self._partitions.load(empty, known))
            self._partitions.add(slot)
            self._partitions.reconfigure(self._partitions.of_topic(topic.name))
            self._partitions.checkpoints.write_all()
        log.info(f"{slot.name}: taken from {source}")

    def give_up(self, key: PartitionKey, cleaning: CleaningManager) -> None:
        """Close a partition that is another daemon's by now, which takes it from here. It shows no more."""
        with self._guard:
            slot = self._partitions.slots.get(key)
            if slot is None:
                return
            with cleaning.paused(key), slot.lock:
                # First it is no more: who looks for it finds nothing, rather than something that is closed.
                slot.gone = True
                self._partitions.remove(slot)
                if slot.partition is not None:
                    handover.close(slot.partition)
            with contextlib.suppress(OSError):
                self._directories.forget(slot)
        log.info(f"{slot.name}: given up, another daemon of the group has it")

    def note(self, topics: Iterable[LinkedTopic]) -> None:
        """Note what a Kafka cluster says of topics that are mirrored here, or are about to be, and apply its settings.
        The file that has all of them is written once."""
        with self._guard:
            self._check_writable()
            known = self._configuration.linked.by_id
            changed = [topic for topic in topics if known.get(topic.topic_id) != topic]
            if not changed:
                return
            self._configuration.put_linked(changed)
            for topic in changed:
                self._partitions.reconfigure(self._partitions.of_topic(topic.name))

    def topic(self, topic: str) -> LinkedTopic | None:
        """Return what is known of a topic that is mirrored from a Kafka cluster; None if it is not."""
        linked = self._configuration.linked
        if topic in linked.names:
            # All partitions of a topic have its id. Whose file is damaged is shown elsewhere.
            with contextlib.suppress(EngineError, OSError):
                slots = self._partitions.of_topic(topic)
                return linked.of(PartitionMetadata.load(slot.directory).topic_id for slot in slots)
        return None

    def await_partition(self, partition: Partition) -> None:
        """Wait until lines for a partition go to the cluster, if it mirrors one, and there is a link. Errors are those
        of `Readiness.wait`."""
        readiness, partition_log = self.readiness, partition.log
        if readiness is not None and partition_log.is_mirror and partition_log.remote is None:
            readiness.wait(partition.topic, (partition.number,))

    def await_topic(self, topic: str) -> None:
        """Wait for all partitions of a topic that are this daemon's, as `await_partition` does for one."""
        if self.readiness is None or topic not in self.topics.names:
            return
        slots = self._partitions.of_topic(topic)
        if not all(map(_is_own, slots)) and self.topic(topic) is not None:
            self.readiness.wait(topic, [slot.number for slot in slots])

    def await_division(self, topic: str) -> None:
        """Wait, where a group divides a topic, until it is known which partitions are this daemon's: before that keys
        would go to others. Errors are those of `await_topic`."""
        if self.readiness is not None and self.readiness.is_divided:
            self.await_topic(topic)

    def way_of(self, partition: Partition) -> Way:
        """Return what leads from a mirrored partition to the cluster."""
        return _LinkedWay(self, partition)

    def targets(self, topic: str) -> tuple[list[int], int | None]:
        """Return the partitions that take records of a topic here, in order; and, where a group divides them, how many
        the cluster has, by which its producers choose one for a key. None where keys go to those that are here."""
        numbers, count = self._partitions.topics.get(topic, ()), self.counts.get(topic)
        if count is None:
            return list(numbers), None
        # A local topic may have the name of one of the cluster.
        own = [slot.number for slot in self._partitions.of_topic(topic) if _is_own(slot)]
        return own or list(numbers), count if own else None

    @property
    def topics(self) -> LinkedTopics:
        """The topics that are mirrored from a Kafka cluster."""
        return self._configuration.linked


@dataclass(frozen=True, slots=True)
class _LinkedWay:
    """The way of one partition's lines to the cluster, through the link if there is one."""

    _links: Links
    _partition: Partition

    def remote(self) -> Remote:
        partition_log = self._partition.log
        while True:
            partition_log.check_writable()
            if partition_log.remote is not None:
                return partition_log.remote
            self._check_link()
            self._links.await_partition(self._partition)

    def check_coming(self, waited_ms: int) -> None:
        self._partition.log.check_writable()
        readiness = self._check_link()
        topic, number = self._partition.topic, self._partition.number
        why = readiness.refusal(topic, number)
        if why is None and waited_ms >= readiness.timeout_ms:
            why = readiness.timeout(topic, number)
        if why is not None:
            raise why

    def _check_link(self) -> Readiness:
        readiness = self._links.readiness
        if readiness is None:
            raise LinkedTopicError(
                f"{self._partition.name}: mirrors a partition of a Kafka cluster, and is only read here, as there is "
                "no link to it: append to it there"
            )
        return readiness


def _is_own(slot: Slot) -> bool:
    """Tell whether what is appended to a partition here goes to the cluster."""
    return slot.partition is not None and slot.partition.log.remote is not None
