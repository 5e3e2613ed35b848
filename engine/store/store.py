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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from topicfs.engine.cleaner.manager import CleaningManager
from topicfs.engine.cluster.image import ClusterTopic
from topicfs.engine.errors import (
    ClosedError,
    EngineError,
    InvalidNameError,
    InvalidSettingError,
    LinkedTopicError,
    NothingDeletedError,
    PartitionExistsError,
    PartitionNotEmptyError,
    PolicyViolationError,
    ReadOnlyError,
    UnknownPartitionError,
    passes,
)
from topicfs.engine.files import place
from topicfs.engine.files.atomic import sync_directory
from topicfs.engine.files.listing import Listing, PartitionKey, newest_log
from topicfs.engine.files.lock import DirectoryLock
from topicfs.engine.files.metadata import CleanShutdown, MetaProperties, PartitionMetadata, random_uuid
from topicfs.engine.files.place import BESIDE_LOGS
from topicfs.engine.format.paths import (
    COMPACTING,
    DELETED_SETTINGS,
    DELETED_STAGING,
    LOGS,
    NOT_PARTITIONS,
    STAGING,
    deletion_directory,
    parse_partition_directory,
    partition_directory,
)
from topicfs.engine.inbox.inboxes import Inboxes
from topicfs.engine.linked.state import MirrorState
from topicfs.engine.linked.topics import LinkedTopic, LinkedTopics
from topicfs.engine.partition.loading import Known
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.slot import Slot
from topicfs.engine.record import Clock, now_ms, steady_beside
from topicfs.engine.retention.partitions import Retention
from topicfs.engine.settings.configuration import Configuration
from topicfs.engine.settings.configured import configured, found_in, tell_of_others
from topicfs.engine.settings.daemon import DaemonSettings
from topicfs.engine.settings.topic import Explained, TopicSettings
from topicfs.engine.store.deletion import DeletedPartition, Deletion, Deletions
from topicfs.engine.store.partitions import Partitions
from topicfs.engine.store.removal import Removals
from topicfs.engine.store.upkeep_jobs import Upkeep

log = logging.getLogger(__name__)


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
    upkeep         the periodic work
    mirrors        the states of the mirrors of a Kafka cluster's partitions, while they are linked
    given_up       tells, in a call of a user, whether the user waits for its answer no longer
    link_error     why the cluster cannot be asked what is to be mirrored; None if it can, or nobody asks it
    link_problems  by topic: why it is not mirrored, though it is wanted
    """

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
        self._removals = Removals()
        self._deletions = Deletions(backing, self.logs)
        self.retention = Retention(partitions.use, partitions.known, configuration.topic)
        self.cleaning = CleaningManager(
            self.logs, self.slots, partitions.use, configuration.topic, self.retention, steady
        )
        self.descriptors = partitions.descriptors
        self.inboxes = Inboxes(backing / STAGING, self._numbers, self.partition, self.descriptors)
        self.upkeep = Upkeep(
            clock,
            steady,
            configuration.daemon,
            partitions,
            self._deletions,
            self._removals,
            self.cleaning,
            self.inboxes,
            self._check_writable,
        )
        self.mirrors: dict[PartitionKey, MirrorState] = {}
        self.link_error: str | None = None
        self.link_problems: Mapping[str, str] = {}
        self.given_up: Callable[[], bool] = lambda: False
        self._guard = threading.RLock()
        self._closed = False

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
        store._show_restored()
        partitions.changed = lambda found: configuration.find_all_again(
            *found_in((logs, *others), found, meta.node_id)
        )
        partitions.catch_up()
        if not held:
            # While an owner runs, the outcome of a commit under way is not decided.
            partitions.looked_at = store.inboxes.show_settled
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
        listing = Listing.of(logs)
        node_id = MetaProperties.load_or_create(logs, clock, read_only=True).node_id
        configuration = configured(backing, settings, clock, listing.partitions, node_id)
        meta = MetaProperties.load_or_create(logs, clock)
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
        store._deletions.load(clock(), steady())
        answered_for = store._deletions.waiting()
        for directory in listing.condemned:
            if directory.name not in answered_for:
                store._condemn(directory)
        store._finish_restoring()
        if not clean:
            try:
                partitions.recover()
            except BaseException:
                partitions.abandon()
                raise
            store.cleaning.follow_recovery()
        store._finish_deletions()
        store.inboxes.recover()
        for left in (backing / STAGING).glob(f"*/{COMPACTING}"):
            log.info(f"{left}: left over from a job of an earlier version, removed")
            shutil.rmtree(left, ignore_errors=True)
        return store

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

    def topics(self) -> dict[str, list[int]]:
        """Return the partition numbers of each topic, in order."""
        topics: dict[str, list[int]] = {}
        for topic, number in self.partitions():
            topics.setdefault(topic, []).append(number)
        return topics

    def _numbers(self, topic: str) -> list[int]:
        return sorted(slot.number for slot in self._partitions.of_topic(topic))

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
            self._check_free(topic, partition)
            if self.linked_topic(topic) is not None:
                raise LinkedTopicError(
                    f"{topic}: mirrors a topic of a Kafka cluster: its partitions are made there"
                )
            shared_id = self._topic_id(topic, topic_id)
            with self._configured(topic, overrides):
                return self._create(topic, partition, shared_id)

    def link(self, topic: LinkedTopic, numbers: Iterable[int]) -> None:
        """Create those of a Kafka cluster's partitions that are not here, to mirror them; note what the cluster says of
        their topic, and apply its settings. InconsistentTopicIdError where another topic has the name."""
        with self._guard:
            self._check_writable()
            slots = self._partitions.of_topic(topic.name)
            if slots:
                self._topic_id(topic.name, topic.topic_id)
            self.note_linked((topic,))
            missing = sorted({*numbers} - {slot.number for slot in slots})
            for number in missing:
                self._check_free(topic.name, number)
                slot = self._create(topic.name, number, topic.topic_id)
                self._configuration.find_again(topic.name, slot.directory)
            if missing:
                self._partitions.reconfigure(self._partitions.of_topic(topic.name))

    def note_linked(self, topics: Iterable[LinkedTopic]) -> None:
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

    def create_topic(
        self, topic: str, partitions: int | None = None, overrides: Mapping[str, str] | None = None
    ) -> list[Partition]:
        """Create a topic with this number of partitions, by default `num.partitions`."""
        count = self.daemon.num_partitions if partitions is None else partitions
        if count < 1:
            raise InvalidSettingError(f"partitions of topic {topic!r}: expected at least 1, found {count}")
        with self._guard:
            self._check_writable()
            if self._partitions.of_topic(topic):
                raise PartitionExistsError(f"topic {topic}: exists, with partitions {self.topics()[topic]}")
            for number in range(count):
                self._check_free(topic, number)
            topic_id = random_uuid()
            with self._configured(topic, overrides), self._all_or_none(topic):
                return [self._create(topic, number, topic_id) for number in range(count)]

    def _check_free(self, topic: str, number: int) -> None:
        name = partition_directory(topic, number)
        if name in NOT_PARTITIONS:
            raise InvalidNameError(f"partition {name}: a broker keeps something else under this name")
        if (self.logs / name).exists():
            raise PartitionExistsError(f"{self.logs / name}: exists")

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
                        self._rename(slot, condemned)
                    self._removals.add(condemned, self.steady())
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

    def _topic_id(self, topic: str, wanted: str | None) -> str:
        """Return the topic id for a new partition: that of the topic's partitions, else the wanted one, else that of
        the cluster's topic, else a new one. InconsistentTopicIdError where the partitions' differs from the wanted."""
        for slot in self._partitions.of_topic(topic):
            found = PartitionMetadata.load(slot.directory)
            if found.topic_id is not None:
                if wanted is not None:
                    found.record(wanted)
                return found.topic_id
        known = self._configuration.cluster_topic(topic)
        if known is not None and wanted is None:
            return known.topic_id
        return random_uuid() if wanted is None else wanted

    def _create(self, topic: str, number: int, topic_id: str) -> Partition:
        # It is made under a name that the next opening removes. So a crash leaves no partition without its topic id,
        # which a broker would set aside.
        unfinished = self.logs / deletion_directory(topic, number)
        slot = self._partitions.empty_slot(topic, number)
        metadata = PartitionMetadata.load(unfinished)
        metadata.record(topic_id)
        if not self._partitions.of_topic(topic):
            self._configuration.note_created(topic_id)
        self._forget(slot)
        unfinished.mkdir()
        try:
            metadata.maybe_flush()
            unfinished.rename(slot.directory)
            sync_directory(self.logs)
            slot.partition = self._partitions.load(slot, Known(clean=True))
        except BaseException:
            with contextlib.suppress(OSError):
                slot.directory.rename(unfinished)
            self._removals.add(unfinished, self.steady())
            raise
        self._partitions.add(slot)
        log.info(f"{slot.name}: created, topic id {topic_id}")
        return slot.partition

    # -- deleting and cutting -------------------------------------------------------------------------

    def delete(self, topic: str, number: int | None = None, only_empty: bool = False) -> Deletion:
        """Delete a partition and its records. It is gone at once; its files are removed after `file.delete.delay.ms`,
        and until then the deletion can be undone. The topic's settings stay, also without a partition. With
        `only_empty`, PartitionNotEmptyError where it holds a record, or is its topic's last one and the inbox holds
        files."""
        with self._guard:
            self._check_writable()
            slot = self._partitions.find(topic, number)
            return self._delete(slot.topic, [slot], only_empty)

    def delete_topic(self, topic: str, only_empty: bool = False) -> Deletion:
        """Delete a topic: its partitions and records, its settings and its inbox. It can be undone like `delete`. With
        `only_empty`, PartitionNotEmptyError where it holds a record, or its inbox holds files."""
        with self._guard:
            self._check_writable()
            return self._delete(topic, self._slots_of(topic), only_empty, whole=True)

    def _delete(self, topic: str, slots: Sequence[Slot], only_empty: bool, whole: bool = False) -> Deletion:
        if not self.daemon.delete_topic_enable:
            raise PolicyViolationError(f"{topic}: not deleted, as delete.topic.enable is false")
        slots = sorted(slots, key=lambda slot: slot.key)
        self._prepare_deletion(slots, only_empty)
        is_last = len(slots) == len(self._partitions.of_topic(topic))
        with contextlib.ExitStack() as held:
            for slot in slots:
                held.enter_context(self.cleaning.paused(slot.key))
            for slot in slots:
                held.enter_context(slot.lock)
                if slot.partition is not None:
                    held.enter_context(slot.partition.log.still())
            if only_empty:
                self._check_empty(topic, slots, is_last)
            deletion = self._noted_deletion(topic, slots)
            for slot, part in zip(slots, deletion.partitions, strict=True):
                self._rename(slot, self.logs / part.directory)
        for slot, part in zip(slots, deletion.partitions, strict=True):
            log.info(f"{slot.name}: deleted, removed later as {part.directory}")
        place = self._deletions.place(deletion)
        kept = place if place.is_dir() else None
        if whole:
            self._configuration.remove_topic(topic, kept and kept / DELETED_SETTINGS)
        if is_last:
            self._configuration.forget_found(topic)
            self.inboxes.forget(topic, kept and kept / DELETED_STAGING)
        return deletion

    def _prepare_deletion(self, slots: Iterable[Slot], only_empty: bool) -> None:
        """Load and flush the partitions. If the deletion is undone, they are checked from the recovery point on."""
        for slot in slots:
            try:
                partition = self._partitions.use(slot)
                partition.flush()
            except (EngineError, OSError) as error:
                if only_empty:
                    raise
                # A broken partition can be deleted too.
                log.info(f"{slot.name}: deleted as it is on disk: {error}")

    def _check_empty(self, topic: str, slots: Iterable[Slot], is_last: bool) -> None:
        for slot in slots:
            assert slot.partition is not None, "it was loaded, and the guard is held"
            now = slot.partition.offsets
            if now.start < now.end:
                raise PartitionNotEmptyError(
                    f"{slot.name}: expected no records, found offsets {now.start} to {now.end - 1}; "
                    f"`topicfs delete` deletes them as well"
                )
        if is_last and self.inboxes.of(topic).holds_files():
            raise PartitionNotEmptyError(f"topic {topic}: expected an empty inbox, found files in it")

    def _noted_deletion(self, topic: str, slots: Iterable[Slot]) -> Deletion:
        """Return a new deletion, and record it on disk so that it can be undone."""
        now, delay = self.clock(), self._configuration.topic(topic).file_delete_delay_ms
        parts = tuple(self._deleted(slot) for slot in slots)
        deletion = Deletion(random_uuid(), topic, now, now + delay, parts)
        try:
            self._deletions.add(deletion, self.steady() + delay)
        except OSError as error:
            # The disk may be full, and the deletion makes room.
            log.warning(f"{topic}: this deletion cannot be taken back, as it cannot be written down: {error}")
            for part in parts:
                self._removals.add(self.logs / part.directory, self.steady() + delay)
        return deletion

    def _deleted(self, slot: Slot) -> DeletedPartition:
        """Return what must be recorded of a partition to undo its deletion."""
        directory = deletion_directory(slot.topic, slot.number)
        cleaned = self.cleaning.offsets.get(slot.key)
        partition = slot.partition
        if partition is None:
            known = self._partitions.known(slot)
            start, point = known.start, known.recovery_point
            return DeletedPartition(
                slot.number, directory, start, max(start, point), 0, point, known.high_watermark, cleaned
            )
        now, point = partition.offsets, partition.recovery_point
        return DeletedPartition(
            slot.number, directory, now.start, now.end, partition.size, point, now.high_watermark, cleaned
        )

    def _rename(self, slot: Slot, condemned: Path) -> None:
        """Rename a partition's directory to the name under which it waits for its removal. Its lock is held."""
        try:
            if slot.partition is not None and slot.error is None:
                slot.partition.log.rename(condemned)
            else:
                slot.directory.rename(condemned)
                sync_directory(self.logs)
        except (EngineError, OSError) as error:
            # A partition that is half closed is offline; its deletion can be tried again.
            slot.error = error
            raise
        slot.gone = True
        self._partitions.remove(slot)
        try:
            self._forget(slot)
        except OSError as error:
            # The next write drops the entries. A partition of that name cannot be created before that.
            log.warning(f"{self.logs}: the checkpoints still have {slot.name}: {error}")

    def _forget(self, slot: Slot) -> None:
        self.retention.forget(slot)
        self._checkpoints.forget(slot.key)
        self.cleaning.forget(slot.key)

    def _condemn(self, directory: Path) -> None:
        delay = self._configuration.topic_defaults.file_delete_delay_ms
        self._removals.add(directory, self.steady() + delay)

    # -- taking a deletion back -----------------------------------------------------------------------

    def deletions(self) -> list[Deletion]:
        """Return the deletions that can be undone, the newest first."""
        return self._deletions.all()

    def undelete(self, topic: str, number: int | None = None, deletion: str | None = None) -> Deletion:
        """Undo the newest deletion of a topic or of one partition, or the one with the id `deletion`. It restores
        records, offsets, settings and the inbox. Nothing is restored where a partition of that name exists, or a
        topic of that name with another id. Return what was restored."""
        with self._guard:
            self._check_writable()
            found = self._deletions.newest(topic, number, deletion)
            if found is None:
                name = topic if number is None else f"{topic}-{number}"
                raise NothingDeletedError(
                    f"{name}: expected a deletion that can be taken back, found none: there was none, or its files "
                    f"are removed"
                )
            for part in found.partitions:
                self._check_free(topic, part.number)
            self._check_same_topic(found)
            places = self._kept_in(found)
            with self._deletions.restoring(found):
                for place in places:
                    self._configuration.restore_topic(topic, place / DELETED_SETTINGS)
                for part in found.partitions:
                    self._restore(topic, part)
                for place in places:
                    self.inboxes.restore(topic, place / DELETED_STAGING)
                self._checkpoints.write_all()
            return found

    def _kept_in(self, deletion: Deletion) -> list[Path]:
        """Return the directories that may have the settings and the inbox of a deleted topic, the most likely first:
        that of this deletion, then those of other deletions of the same topic, one of which deleted the rest of it."""
        found = [deletion]
        # A deletion whose topic id cannot be read does not count as one of the same topic.
        with contextlib.suppress(EngineError, OSError):
            ids = self._ids_of_deleted(deletion) | self._ids_of_present(deletion.topic)
            for each in self._deletions.all():
                is_other = each.topic == deletion.topic and each.id != deletion.id
                if is_other and self._ids_of_deleted(each) <= ids:
                    found.append(each)
        return [self._deletions.place(each) for each in found]

    def _ids_of_deleted(self, deletion: Deletion) -> set[str | None]:
        """Return the topic ids in the directories of the deleted partitions."""
        directories = [self.logs / part.directory for part in deletion.partitions]
        return {PartitionMetadata.load(each).topic_id for each in directories if each.exists()}

    def _ids_of_present(self, topic: str) -> set[str | None]:
        """Return the topic ids in the directories of the topic's existing partitions."""
        return {PartitionMetadata.load(slot.directory).topic_id for slot in self._partitions.of_topic(topic)}

    def _check_same_topic(self, deletion: Deletion) -> None:
        """Refuse to restore partitions beside those of another topic with the same name: a broker would not accept
        two topic ids in one topic."""
        present = self._ids_of_present(deletion.topic)
        if present and len(present | self._ids_of_deleted(deletion)) > 1:
            raise PartitionExistsError(
                f"topic {deletion.topic} was made again, with partitions {self._numbers(deletion.topic)}: delete it "
                f"before what it was is taken back"
            )

    def _restore(self, topic: str, part: DeletedPartition) -> None:
        slot = self._partitions.empty_slot(topic, part.number)
        self._forget(slot)
        self._adopt(slot, part)
        (self.logs / part.directory).rename(slot.directory)
        sync_directory(self.logs)
        self._configuration.find_again(topic, slot.directory)
        with contextlib.suppress(ClosedError):
            # A partition that was offline when it was deleted is offline again: the slot says why.
            slot.use(lambda empty: self._partitions.load(empty, part.known))
        if slot.error is not None and passes(slot.error):
            # The files are complete. They go back to the deletion, so that restoring them can be tried again.
            self._forget(slot)
            slot.directory.rename(self.logs / part.directory)
            sync_directory(self.logs)
            raise slot.error
        self._partitions.add(slot)
        log.info(f"{slot.name}: its deletion is taken back, offsets {part.start} to {part.end}")

    def _adopt(self, slot: Slot, part: DeletedPartition) -> None:
        self._checkpoints.adopt(slot.key, part.known)
        if part.cleaned is not None:
            self.cleaning.offsets.put(slot.key, part.cleaned)

    def _finish_restoring(self) -> None:
        """Finish restores that a crash has stopped: a partition that has its name again gets its recorded offsets."""
        for deletion, part in self._deletions.restored():
            slot = self._partitions.slots.get((deletion.topic, part.number))
            if slot is not None:
                log.info(f"{slot.name}: its deletion is taken back, which a crash had stopped")
                self._adopt(slot, part)

    def _show_restored(self) -> None:
        """Do for a read-only store what `_finish_restoring` does, in memory only."""
        known = Deletions(self.backing, self.logs)
        try:
            known.load(self.clock(), self.steady(), read_only=True)
        except OSError as error:
            log.warning(f"{known.directory}: whether a deletion was being taken back is not known: {error}")
        for deletion, part in known.restored():
            if (deletion.topic, part.number) in self._partitions.slots:
                self._checkpoints.adopt((deletion.topic, part.number), part.known)

    def _finish_deletions(self) -> None:
        """Finish deletions, and restores of deleted topics, that a crash has stopped."""
        # The newest first: an inbox that is still in its place belongs to that one.
        for deletion in reversed(self._deletions.every()):
            place = self._deletions.place(deletion)
            present = self._partitions.of_topic(deletion.topic)
            if deletion.restoring and present:
                for each in self._kept_in(deletion):
                    self.inboxes.restore(deletion.topic, each / DELETED_STAGING)
            elif not present and not (place / DELETED_STAGING).exists():
                self.inboxes.forget(deletion.topic, place / DELETED_STAGING)
            if deletion.restoring:
                self._deletions.settle(deletion.id)

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

    def linked_topic(self, topic: str) -> LinkedTopic | None:
        """Return what is known of a topic that is mirrored from a Kafka cluster; None if it is not."""
        linked = self._configuration.linked
        if topic in linked.names:
            # All partitions of a topic have its id. Whose file is damaged is shown elsewhere.
            with contextlib.suppress(EngineError, OSError):
                return linked.of(
                    PartitionMetadata.load(slot.directory).topic_id for slot in self._slots_of(topic)
                )
        return None

    @property
    def linked(self) -> LinkedTopics:
        """The topics that are mirrored from a Kafka cluster."""
        return self._configuration.linked

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
