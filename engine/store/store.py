"""The store: it finds, creates, deletes and maintains all partitions under one directory.

Its files are drawn in `topicfs.engine.format.paths`.

After a clean stop, opening reads only names and checkpoints, and a partition is loaded when it is first used.
After any other stop all partitions are recovered at once. Nothing runs by itself: `upkeep.run_due` is to be
called every second or so.

Locks, in the order in which they are taken: the guard (creating, deleting, settings, closing), the lock of a slot
(loading; a deletion takes the locks of all slots that it deletes), then the locks of partitions and checkpoints.
Finding a partition that is loaded takes no lock.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from topicfs.engine.cleaner.manager import CleaningManager
from topicfs.engine.cluster.image import ClusterTopic
from topicfs.engine.errors import (
    ClosedError,
    EngineError,
    InvalidNameError,
    InvalidSettingError,
    LinkedTopicError,
    PartitionExistsError,
    ReadOnlyError,
    UnknownPartitionError,
)
from topicfs.engine.files import layout, place
from topicfs.engine.files.atomic import sync_directory
from topicfs.engine.files.listing import Listing, PartitionKey, newest_log
from topicfs.engine.files.lock import DirectoryLock
from topicfs.engine.files.metadata import CleanShutdown, MetaProperties, random_uuid
from topicfs.engine.files.place import BESIDE_LOGS
from topicfs.engine.format.paths import (
    COMPACTING,
    LINKED,
    LOGS,
    PRODUCERS,
    STAGING,
    TRANSACTIONS,
    UNDECIDED,
    deletion_directory,
    parse_partition_directory,
)
from topicfs.engine.inbox.inboxes import Inboxes
from topicfs.engine.messages.topics import TRANSACTIONS as TRANSACTION_LOG
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.slot import Slot
from topicfs.engine.record import Clock, now_ms, steady_beside
from topicfs.engine.retention.partitions import Retention
from topicfs.engine.settings.configuration import Configuration
from topicfs.engine.settings.configured import configured, found_in, tell_of_others
from topicfs.engine.settings.daemon import DaemonSettings
from topicfs.engine.settings.topic import Explained, TopicSettings
from topicfs.engine.staging.staging import Staging
from topicfs.engine.store import internal_topics
from topicfs.engine.store.deleting import Deleting
from topicfs.engine.store.deletion import Deletion, Deletions
from topicfs.engine.store.directories import Directories
from topicfs.engine.store.links import Links
from topicfs.engine.store.partitions import Partitions
from topicfs.engine.store.removal import Removals
from topicfs.engine.store.upkeep_jobs import Upkeep
from topicfs.engine.transactions.coordinator import Coordinator
from topicfs.engine.transactions.linked import LinkedTransactions
from topicfs.engine.transactions.log import TransactionLog
from topicfs.engine.transactions.producers import Producers

log = logging.getLogger(__name__)

_NEW_PARTITIONS_MAX: Final = 10_000
"""How many partitions a new topic may have: as many as Kafka's controller makes at once. A slip of the keyboard would
else keep everybody from the store, while it makes directories until the disk is full."""


class Store:
    """All partitions under one directory. `open` opens a store.

    backing        the directory of the store
    logs           its log directory
    meta           the ids of the log directory
    strays         the names of directories that a broker set aside or was moving here: kept, not used
    stopped_clean  whether the stop before this opening was a clean one
    read_only      whether nothing may be changed
    clock          the clock for the timestamps of records, and for times that people see
    steady         a clock that nobody can set, for waits and intervals
    retention      what retention removed, and what failed lately
    cleaning       compaction, which runs in threads of the store's owner
    descriptors    the open files, and how many there may be
    inboxes        the inboxes of the topics, whose commits append all records of a batch or none
    transactions   the coordinator of transactions and of named producers
    producers      the named producers
    upkeep         the periodic work
    links          the mirrors of a Kafka cluster's partitions
    when_deleted   what is done behind each deletion, with the store, the topic and the numbers of its partitions. The
                   package of consumer groups, which rests on this one, has its positions removed by it
    """

    when_deleted: Final[list[Callable[[Store, str, Sequence[int]], None]]] = []

    def __init__(
        self,
        backing: Path,
        clock: Clock,
        steady: Clock,
        lock: DirectoryLock | None,
        configuration: Configuration,
        meta: MetaProperties,
        strays: tuple[str, ...],
        partitions: Partitions,
        read_only: bool = False,
    ) -> None:
        self.backing = backing
        self.logs = partitions.logs
        self.read_only = read_only
        self.meta = meta
        self.strays = strays
        self.stopped_clean = partitions.stopped_clean
        self.clock = clock
        self.steady = steady
        self._directory_lock = lock
        self._configuration = configuration
        self._partitions = partitions
        self._checkpoints = partitions.checkpoints
        self._guard = threading.RLock()
        self._closed = False
        self.retention = Retention(partitions.use, partitions.known, configuration.topic)
        self.cleaning = CleaningManager(
            self.logs, self.slots, partitions.use, configuration.topic, self.retention, steady
        )
        self.descriptors = partitions.descriptors
        self._directories = Directories(
            Removals(), steady, configuration, partitions, self.cleaning, self.retention
        )
        self.transactions = Coordinator(
            TransactionLog(
                lambda create: internal_topics.numbers(self, TRANSACTION_LOG, create),
                self.partition,
            ),
            self.partition,
            Staging(backing / TRANSACTIONS / UNDECIDED, self.descriptors),
            clock,
        )
        self.inboxes = Inboxes(
            backing / STAGING, self._numbers, self.partition, self.descriptors, self.transactions
        )
        self._deleting = Deleting(
            Deletions(backing, self.logs),
            backing,
            clock,
            steady,
            configuration,
            partitions,
            self._directories,
            self.cleaning,
            self.inboxes,
        )
        self.transactions.note_deleted = self._deleting.deletions.note_ended
        self.linked_transactions = LinkedTransactions(
            backing / TRANSACTIONS / LINKED, self.transactions.discard
        )
        self.producers = Producers(
            self.transactions, self.partition, Staging(backing / PRODUCERS / UNDECIDED, self.descriptors)
        )
        self.upkeep = Upkeep(
            clock,
            steady,
            configuration.daemon,
            partitions,
            self._deleting.deletions,
            self._directories.removals,
            self.cleaning,
            self.inboxes,
            self.transactions,
            self._check_writable,
        )
        self.links = Links(self._guard, self._check_writable, configuration, partitions, self._directories)
        self.inboxes.is_linked = lambda topic: self.links.topic(topic) is not None

    # -- opening and closing --------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        backing: Path | str,
        settings: Mapping[str, str] | None = None,
        clock: Clock = now_ms,
        lone: bool = True,
        read_only: bool = False,
        create: bool = False,
        steady: Clock | None = None,
        others: Sequence[Path | str] = (),
    ) -> Store:
        """Open the store in a directory; NoStoreError where there is none.

        settings   settings that take precedence over the lines of server.properties
        clock      the clock for the timestamps of records
        lone       whether there is no other replica: an appended record is committed at once
        read_only  whether nothing may be changed, made or locked. It works also while another process has the store
                   open, and on a log directory by itself. Each partition is read when it is first used
        create     whether to make the store where the directory is empty or missing
        steady     the clock for waits and intervals. Without it, a `clock` that is given is used for them too
        others     with `read_only`, further log directories of the same broker, whose partitions are shown too"""
        if steady is None:
            steady = steady_beside(clock)
        backing = Path(backing).absolute()
        if read_only:
            if create:
                raise ValueError(
                    f"{backing}: expected a store to be made, or to be opened read-only, not both"
                )
            further = [place.logs_in(Path(each).absolute()) for each in others]
            return cls._open_read_only(backing, settings or {}, clock, steady, lone, further)
        if others:
            raise ValueError(f"{backing}: expected one directory of a store that is not opened read-only")
        if create and place.kind_of(backing) is not place.DirectoryKind.STORE:
            place.refuse_unless_free(backing)
            # Settings are checked first, so that refused ones leave nothing behind.
            Configuration.load(backing, settings or {}, clock)
            place.make(backing)
        place.refuse_unless_store(backing)
        for name in BESIDE_LOGS:
            (backing / name).mkdir(exist_ok=True)
        sync_directory(backing)
        lock = DirectoryLock.acquire(backing / LOGS)
        try:
            return cls._open_locked(backing, settings or {}, clock, steady, lone, lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def _open_read_only(
        cls,
        backing: Path,
        settings: Mapping[str, str],
        clock: Clock,
        steady: Clock,
        lone: bool,
        others: Sequence[Path],
    ) -> Store:
        logs = place.logs_in(backing)
        listing = Listing.of(logs)
        meta = MetaProperties.load_or_create(logs, clock, read_only=True)
        configuration = configured(backing, settings, clock, listing.shown, meta.node_id)
        tell_of_others(configuration, backing)
        clean = CleanShutdown.of(logs).exists() or not listing.partitions
        partitions = Partitions.open(
            logs, listing.shown, configuration, clean, clock, steady, lone, True, others
        )
        held = DirectoryLock.is_held(logs)
        log.info(
            f"{logs}: {len(listing.partitions)} partitions, read-only, "
            + (
                "which another process has open"
                if held
                else f"after {'a clean' if clean else 'an unclean'} stop"
            )
        )
        store = cls(
            backing, clock, steady, None, configuration, meta, tuple(listing.strays), partitions, True
        )
        store.cleaning.load(partitions.slots.keys(), read_only=True)
        store._deleting.show_restored()
        partitions.changed = lambda found: configuration.find_all_again(
            *found_in((logs, *others), found, meta.node_id)
        )
        partitions.catch_up()
        if not held:
            # While an owner runs, the outcome of a commit under way is not decided.
            partitions.before_look = store.transactions.find_stopped
            partitions.looked_at = store._show_settled
        return store

    @classmethod
    def _open_locked(
        cls,
        backing: Path,
        settings: Mapping[str, str],
        clock: Clock,
        steady: Clock,
        lone: bool,
        lock: DirectoryLock,
    ) -> Store:
        logs = backing / LOGS
        # All checks that may refuse the opening come before the marker is removed: a refusal leaves the logs clean.
        is_current = layout.check(backing)
        listing = Listing.of(logs)
        node_id = MetaProperties.load_or_create(logs, clock, read_only=True).node_id
        configuration = configured(backing, settings, clock, listing.partitions, node_id)
        meta = MetaProperties.load_or_create(logs, clock)
        if not is_current:
            layout.write(backing, clock)
        configuration.tidy_created(listing.condemned)
        tell_of_others(configuration, backing)
        marker = CleanShutdown.of(logs)
        # A store without partitions counts as clean.
        clean = marker.exists() or not listing.partitions
        partitions = Partitions.open(logs, listing.partitions, configuration, clean, clock, steady, lone)
        marker.remove()
        log.info(
            f"{logs}: {len(listing.partitions)} partitions after {'a clean' if clean else 'an unclean'} stop, "
            f"{len(listing.condemned)} directories to remove, {len(listing.strays)} set aside"
        )
        store = cls(backing, clock, steady, lock, configuration, meta, tuple(listing.strays), partitions)
        store.cleaning.load(partitions.slots.keys())
        store._deleting.deletions.load(clock(), steady())
        answered_for = store._deleting.deletions.waiting()
        for directory in listing.condemned:
            if directory.name not in answered_for:
                store._directories.condemn(directory)
        store._deleting.finish_restoring()
        if not clean:
            try:
                partitions.recover()
            except BaseException:
                partitions.abandon()
                raise
            store.cleaning.follow_recovery()
        # An inbox that a deletion gives back asks how its transaction has ended.
        store.transactions.recover()
        partitions.came = store.transactions.end_left_open
        for partition in partitions.loaded():
            partitions.came(partition)
        store._deleting.finish_deletions()
        store.inboxes.recover()
        for left in (backing / STAGING).glob(f"*/{COMPACTING}"):
            log.info(f"{left}: left over from a job of an earlier version, removed")
            shutil.rmtree(left, ignore_errors=True)
        return store

    def _show_settled(self, partition: Partition) -> None:
        self.inboxes.show_settled(partition)
        self.transactions.show_settled(partition)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Store {self.backing}>"

    def close(self) -> None:
        """Close the store cleanly: flush every partition, write the checkpoints, then the marker of a clean stop.

        A partition that cannot be closed does not stop the others, but then there is no marker, and the next
        opening recovers all partitions. Partitions that were not used since a clean stop are not touched."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            self.cleaning.stop()
            if self.read_only:
                self._partitions.abandon()
                return
            try:
                unclean = self._partitions.close()
                self._checkpoints.write_all()
                if unclean:
                    log.error(f"{self.logs}: not stopped cleanly, for {', '.join(unclean)}")
                else:
                    CleanShutdown.of(self.logs).write()
            finally:
                self._release()

    def abandon(self) -> None:
        """Stop as a crash would: nothing is flushed or written."""
        with self._guard:
            if not self._closed:
                self._closed = True
                self.cleaning.stop()
                self._partitions.abandon()
                self._release()

    def _release(self) -> None:
        self.transactions.close()
        if self._directory_lock is not None:
            self._directory_lock.release()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.backing} is closed")

    def _check_writable(self) -> None:
        self._check_open()
        if self.read_only:
            raise ReadOnlyError(f"{self.backing} is opened read-only")

    # -- finding --------------------------------------------------------------------------------------

    def partition(self, topic: str, number: int | None = None) -> Partition:
        """Return a partition by topic and number or by its name `<topic>-<number>`. It is loaded if it was not."""
        self._check_open()
        return self._partitions.use(self._partitions.find(topic, number))

    @property
    def log_directories(self) -> tuple[Path, ...]:
        """Return the log directories: one, or several where the store is opened read-only."""
        return self._partitions.log_directories

    def written_ns(self, topic: str, number: int) -> int | None:
        """Return when the newest segment of a partition was written, without loading it. None where it is loaded, or
        the store may be changed: then the partition itself tells."""
        slot = self._partitions.find(topic, number)
        if not self.read_only or slot.partition is not None:
            return None
        try:
            newest = newest_log(slot.directory)
            return None if newest is None else os.stat(newest).st_mtime_ns
        except FileNotFoundError:
            # It was removed meanwhile, or its partition deleted, which the load finds out.
            return None

    def catch_up(self) -> None:
        """Take up the partitions that another process has made and removed, where the store is opened read-only."""
        self._partitions.catch_up()

    def partitions(self) -> list[PartitionKey]:
        """Return topic and number of every partition, in order."""
        return sorted(self._partitions.slots)

    def topics(self) -> Mapping[str, Sequence[int]]:
        """Return the partition numbers of each topic, in order."""
        return self._partitions.topics

    def _numbers(self, topic: str) -> Sequence[int]:
        return self.topics().get(topic, ())

    def slots(self) -> list[Slot]:
        """Return the slot of every partition: loaded, not loaded yet, or offline."""
        return list(self._partitions.slots.values())

    def __contains__(self, partition: object) -> bool:
        """Whether the store has this partition, given as a name or as topic and number."""
        if isinstance(partition, str):
            try:
                topic, number, suffix = parse_partition_directory(partition)
            except InvalidNameError:
                return False
            return not suffix and (topic, number) in self._partitions.slots
        return isinstance(partition, tuple) and partition in self._partitions.slots

    def _slots_of(self, topic: str) -> list[Slot]:
        slots = self._partitions.of_topic(topic)
        if not slots:
            raise UnknownPartitionError(f"{self.logs}: expected a topic {topic}, found no partition of it")
        return slots

    # -- creating -------------------------------------------------------------------------------------

    def create(
        self,
        topic: str,
        partition: int = 0,
        overrides: Mapping[str, str] | None = None,
        topic_id: str | None = None,
    ) -> Partition:
        """Create a partition, and its topic if that is new.

        overrides  the settings of a new topic; for an existing topic None, or the settings that it has
        topic_id   the id of a new topic, random by default; for an existing topic None, or the id that it has"""
        with self._guard:
            self._check_writable()
            self._directories.check_free(topic, partition)
            if self.links.topic(topic) is not None:
                raise LinkedTopicError(
                    f"{topic}: mirrors a topic of a Kafka cluster: its partitions are made there"
                )
            shared_id = self._directories.topic_id(topic, topic_id)
            with self._configured(topic, overrides):
                return self._directories.create(topic, partition, shared_id)

    def create_topic(
        self, topic: str, partitions: int | None = None, overrides: Mapping[str, str] | None = None
    ) -> list[Partition]:
        """Create a topic with this number of partitions, by default `num.partitions`."""
        count = self.daemon.num_partitions if partitions is None else partitions
        if not 1 <= count <= _NEW_PARTITIONS_MAX:
            raise InvalidSettingError(
                f"partitions of topic {topic!r}: expected at least 1 and at most {_NEW_PARTITIONS_MAX}, found {count}"
            )
        with self._guard:
            self._check_writable()
            if self._partitions.of_topic(topic):
                raise PartitionExistsError(f"topic {topic}: exists, with partitions {self.topics()[topic]}")
            for number in range(count):
                self._directories.check_free(topic, number)
            topic_id = random_uuid()
            with self._configured(topic, overrides), self._all_or_none(topic):
                return [self._directories.create(topic, number, topic_id) for number in range(count)]

    @contextlib.contextmanager
    def _all_or_none(self, topic: str) -> Iterator[None]:
        """Delete the partitions of a new topic again if one of them cannot be made."""
        try:
            yield
        except BaseException:
            for slot in self._partitions.of_topic(topic):
                condemned = self.logs / deletion_directory(slot.topic, slot.number)
                try:
                    with self.cleaning.paused(slot.key), slot.lock:
                        self._directories.rename(slot, condemned)
                    self._directories.removals.add(condemned, self.steady())
                except (EngineError, OSError) as error:
                    log.error(f"{slot.name}: cannot be taken back, and stays without the others: {error}")
            raise

    @contextlib.contextmanager
    def _configured(self, topic: str, overrides: Mapping[str, str] | None) -> Iterator[None]:
        """Write a new topic's settings before its partitions are made, so that no partition exists without them.
        They are removed again if no partition was made."""
        if overrides is None:
            yield
            return
        present = self._configuration.overrides(topic)
        if self._partitions.of_topic(topic) and overrides != present:
            raise InvalidSettingError(
                f"topic {topic}: expected no overrides or those that it has, {dict(present)}, "
                f"found {dict(overrides)}"
            )
        if not self._partitions.of_topic(topic):
            self._configuration.set_topic(topic, overrides)
        try:
            yield
        except BaseException:
            if not self._partitions.of_topic(topic):
                self._configuration.remove_topic(topic)
            raise

    # -- deleting and cutting -------------------------------------------------------------------------

    def delete(self, topic: str, number: int | None = None, only_empty: bool = False) -> Deletion:
        """Delete a partition and its records. It is gone at once; its files are removed after `file.delete.delay.ms`,
        and until then the deletion can be undone. The topic's settings stay, also without a partition. With
        `only_empty`, PartitionNotEmptyError where it holds a record, or is its topic's last one and the inbox holds
        files."""
        with self._guard:
            self._check_writable()
            slot = self._partitions.find(topic, number)
            deletion = self._deleting.delete(slot.topic, [slot], only_empty)
        self._tell_deleted(deletion)
        return deletion

    def _tell_deleted(self, deletion: Deletion) -> None:
        for tell in self.when_deleted:
            tell(self, deletion.topic, [part.number for part in deletion.partitions])

    def delete_topic(self, topic: str, only_empty: bool = False) -> Deletion:
        """Delete a topic: its partitions and records, its settings and its inbox. It can be undone like `delete`. With
        `only_empty`, PartitionNotEmptyError where it holds a record, or its inbox holds files."""
        with self._guard:
            self._check_writable()
            deletion = self._deleting.delete(topic, self._slots_of(topic), only_empty, whole=True)
        self._tell_deleted(deletion)
        return deletion

    def check_empty(self, topic: str, number: int | None = None) -> None:
        """Raise PartitionNotEmptyError where a topic, or one partition of it, holds a record; or an inbox, files."""
        with self._guard:
            slots = self._slots_of(topic) if number is None else [self._partitions.find(topic, number)]
            for slot in slots:
                self._partitions.use(slot)
            self._deleting.check_empty(topic, slots, is_last=number is None)

    def deletions(self) -> list[Deletion]:
        """Return the deletions that can be undone, the newest first."""
        return self._deleting.deletions.all()

    def undelete(self, topic: str, number: int | None = None, deletion: str | None = None) -> Deletion:
        """Undo the newest deletion of a topic or of one partition, or the one with the id `deletion`. It restores
        records, offsets, settings and the inbox. Nothing is restored where a partition of that name exists, or a
        topic of that name with another id. Return what was restored."""
        with self._guard:
            self._check_writable()
            return self._deleting.undelete(topic, number, deletion)

    def truncate(self, topic: str, number: int, offset: int) -> bool:
        """Run `Partition.truncate_to`, and update the checkpoints."""
        with self._cutting(topic, number, offset) as partition:
            return partition.truncate_to(offset)

    def restart_at(self, topic: str, number: int, offset: int) -> None:
        """Run `Partition.restart_at`, and update the checkpoints."""
        with self._cutting(topic, number, 0) as partition:
            partition.restart_at(offset)

    def delete_records(self, topic: str, number: int, before: int) -> int:
        """Run `Partition.delete_records`. The new start offset is on disk before that: after an error nothing was
        deleted."""
        self._check_writable()
        partition = self.partition(topic, number)
        with self._guard:
            offset = partition.deletion_bound(before)
            with self._checkpoints.raised((topic, number), offset):
                return partition.delete_records(offset)

    @contextlib.contextmanager
    def _cutting(self, topic: str, number: int, ceiling: int) -> Iterator[Partition]:
        self._check_writable()
        partition = self.partition(topic, number)
        key = topic, number
        with self.cleaning.paused(key), self._checkpoints.held_down(key, ceiling):
            last = partition.log.snapshot.segments.floor(ceiling)
            self.cleaning.offsets.lower(key, ceiling if last is None else last.base_offset)
            yield partition
        partition.log.announce_cut()

    # -- settings -------------------------------------------------------------------------------------

    @property
    def daemon(self) -> DaemonSettings:
        """The daemon's settings."""
        return self._configuration.daemon

    def topic_settings(self, topic: str) -> TopicSettings:
        """Return the settings of a topic."""
        self._slots_of(topic)
        return self._configuration.topic(topic)

    def explain(self, topic: str) -> list[Explained]:
        """Return every setting of a topic, with its value and its source."""
        self._slots_of(topic)
        return self._configuration.explain(topic)

    def why_kept(self, topic: str) -> str | None:
        """Return in words why a topic's records are neither deleted nor compacted; None where its settings decide
        that."""
        return self._configuration.why_kept(topic)

    def cluster_topic(self, topic: str) -> ClusterTopic | None:
        """Return what a cluster's metadata says of the topic; None where it does not have this topic."""
        return self._configuration.cluster_topic(topic)

    def configure(self, topic: str, changes: Mapping[str, str | None]) -> None:
        """Change overrides of a topic; None removes one. All of them take effect at once, or none."""
        with self._guard:
            self._check_writable()
            slots = self._slots_of(topic)
            before = self._configuration.topic(topic).cleanup_policy
            self._configuration.change_topic(topic, changes)
            self._partitions.reconfigure(slots)
            if self._configuration.topic(topic).cleanup_policy != before:
                # A compaction by the old policy is aborted.
                for slot in slots:
                    self.cleaning.abort(slot.key)
