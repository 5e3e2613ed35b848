"""The store: every partition under one directory, found, created, deleted and kept.

    BACKING/
    ├── server.properties            of the daemon, and defaults of topics
    ├── topics/<topic>.properties    overrides of a topic
    ├── logs/                        a Kafka log.dir
    │   ├── .lock  meta.properties  .kafka_cleanshutdown  *-offset-checkpoint
    │   └── <topic>-<partition>/ …
    ├── staging/                     what is on its way in: engine/inbox, and what jobs write anew
    └── views/                       not the engine's

After a clean stop the opening reads names and checkpoints, and a partition is loaded when it is first used.
After any other stop all partitions are recovered at once. Nothing runs by itself: `upkeep` is to be called
every second or so.

Locks, in the order in which they are taken: the guard (creating, deleting, settings, closing), one slot's
(loading), then those of partitions and checkpoints. Finding a partition that is loaded takes none.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from engine.cleaner.manager import CleaningManager
from engine.errors import (
    ClosedError,
    EngineError,
    InvalidNameError,
    InvalidSettingError,
    PartitionExistsError,
    PolicyViolationError,
    ReadOnlyError,
    UnknownPartitionError,
)
from engine.files import place
from engine.files.atomic import sync_directory
from engine.files.lock import DirectoryLock
from engine.files.metadata import CleanShutdown, MetaProperties, PartitionMetadata, random_uuid
from engine.files.names import (
    NOT_PARTITIONS,
    deletion_directory,
    parse_partition_directory,
    partition_directory,
)
from engine.files.place import LOGS
from engine.inbox.inboxes import Inboxes
from engine.partition.loading import Known
from engine.partition.partition import Partition
from engine.record import Clock, now_ms
from engine.settings.daemon import DaemonSettings
from engine.settings.topic import Explained, TopicSettings
from engine.store.configuration import TOPICS, Configuration
from engine.store.keeping import KeptStore
from engine.store.listing import Listing, PartitionKey
from engine.store.partitions import Partitions
from engine.store.removal import Removals
from engine.store.retention import Retention
from engine.store.slot import Slot
from engine.store.upkeep import Schedule

log = logging.getLogger(__name__)

STAGING: Final = "staging"
COMPACTING: Final = "compact"
"""In a topic's part of it: segments that a job is writing anew. Who holds the log may remove it."""

_DIRECTORIES: Final = (TOPICS, "views", STAGING)


class Store(KeptStore):
    """All partitions under one directory. Opened by `open`.

    backing        the directory
    logs           its log directory
    meta           the log directory's ids
    strays         names of directories that a broker set aside or was moving here: kept, not used
    stopped_clean  whether the stop before this opening was a clean one
    read_only      nothing is changed
    clock          gives the time
    retention      what became of it
    cleaning       compaction, which threads of the store's owner do
    inboxes        what is appended as a whole, topic by topic
    """

    def __init__(
        self,
        backing: Path,
        clock: Clock,
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
        self._directory_lock = lock
        self._configuration = configuration
        self._partitions = partitions
        self._checkpoints = partitions.checkpoints
        self._removals = Removals()
        self.retention = Retention(partitions.use, partitions.known, configuration.topic)
        self.cleaning = CleaningManager(
            self.logs, self.slots, partitions.use, configuration.topic, self.retention
        )
        self.inboxes = Inboxes(backing / STAGING, self._numbers, self.partition, read_only)
        self._schedule = Schedule(clock(), configuration.daemon)
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
    ) -> Store:
        """Open the store in a directory; NoStoreError where there is none.

        settings   lines that outrank those of server.properties
        lone       no other replica must acknowledge: what is appended is committed
        read_only  nothing is changed, made or locked, also where another process has the store open, or the directory
                   is a log directory by itself. The partitions are shown as they are when they are first used
        create     make the store where the directory is empty or not there"""
        backing = Path(backing).absolute()
        if read_only:
            if create:
                raise ValueError(
                    f"{backing}: expected a store to be made, or to be opened read-only, not both"
                )
            return cls._open_read_only(backing, settings or {}, clock, lone)
        if create and place.kind_of(backing) is not place.Kind.STORE:
            place.refuse_unless_free(backing)
            # Settings that are refused leave nothing behind.
            Configuration.load(backing, settings or {}, clock)
            place.make(backing)
        place.refuse_unless_store(backing)
        for name in _DIRECTORIES:
            (backing / name).mkdir(exist_ok=True)
        sync_directory(backing)
        lock = DirectoryLock.acquire(backing / LOGS)
        try:
            return cls._open_locked(backing, settings or {}, clock, lone, lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def _open_read_only(cls, backing: Path, settings: Mapping[str, str], clock: Clock, lone: bool) -> Store:
        logs = place.logs_in(backing)
        configuration = Configuration.load(backing, settings, clock)
        listing = Listing.of(logs)
        meta = MetaProperties.load_or_create(logs, clock, read_only=True)
        clean = CleanShutdown.of(logs).exists() or not listing.partitions
        partitions = Partitions.open(logs, listing.partitions, configuration, clean, clock, lone, True)
        held = DirectoryLock.is_held(logs)
        log.info(
            f"{logs}: {len(listing.partitions)} partitions, read-only, "
            + (
                "which another process has open"
                if held
                else f"after {'a clean' if clean else 'an unclean'} stop"
            )
        )
        store = cls(backing, clock, None, configuration, meta, tuple(listing.strays), partitions, True)
        store.cleaning.load(partitions.slots.keys(), read_only=True)
        if not held:
            # Of a running owner's commit it is not decided what becomes of it.
            partitions.looked_at = store.inboxes.show_settled
        return store

    @classmethod
    def _open_locked(
        cls, backing: Path, settings: Mapping[str, str], clock: Clock, lone: bool, lock: DirectoryLock
    ) -> Store:
        logs = backing / LOGS
        # What refuses the opening comes before the marker goes: it says nothing against the logs.
        configuration = Configuration.load(backing, settings, clock)
        listing = Listing.of(logs)
        meta = MetaProperties.load_or_create(logs, clock)
        marker = CleanShutdown.of(logs)
        # Without partitions there is nothing that could be unclean.
        clean = marker.exists() or not listing.partitions
        partitions = Partitions.open(logs, listing.partitions, configuration, clean, clock, lone)
        marker.remove()
        log.info(
            f"{logs}: {len(listing.partitions)} partitions after {'a clean' if clean else 'an unclean'} stop, "
            f"{len(listing.condemned)} directories to remove, {len(listing.strays)} set aside"
        )
        store = cls(backing, clock, lock, configuration, meta, tuple(listing.strays), partitions)
        store.cleaning.load(partitions.slots.keys())
        for directory in listing.condemned:
            store._condemn(directory)
        if not clean:
            try:
                partitions.recover()
            except BaseException:
                partitions.abandon()
                raise
            store.cleaning.follow_recovery()
        store.inboxes.recover()
        for left in (backing / STAGING).glob(f"*/{COMPACTING}"):
            log.info(f"{left}: left over from a compaction that was broken off, removed")
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
        """Stop cleanly: every partition on disk, checkpoints, then the marker that says so.

        A partition that cannot be closed does not stop the others, but then there is no marker: the next
        opening recovers. Partitions that were not used since a clean stop are not touched."""
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
        """Let go of everything as a crash would: nothing is flushed or written."""
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
        """A partition, by topic and number or by its name `<topic>-<number>`; loaded if it was not."""
        self._check_open()
        return self._partitions.use(self._partitions.find(topic, number))

    def partitions(self) -> list[PartitionKey]:
        """Topic and number of every partition, in order."""
        return sorted(self._partitions.slots)

    def topics(self) -> dict[str, list[int]]:
        """The numbers of each topic's partitions, in order."""
        topics: dict[str, list[int]] = {}
        for topic, number in self.partitions():
            topics.setdefault(topic, []).append(number)
        return topics

    def _numbers(self, topic: str) -> list[int]:
        return sorted(slot.number for slot in self._partitions.of_topic(topic))

    def slots(self) -> list[Slot]:
        """Every partition's place: loaded, not loaded yet, or offline."""
        return list(self._partitions.slots.values())

    def __contains__(self, partition: object) -> bool:
        """Whether there is this partition: a name, or topic and number."""
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
        """Create a partition, and with it its topic if that is new.

        overrides  settings of a new topic; of one that exists they must be those that it has, or None
        topic_id   of a new topic, random where none is given; of one that exists it must be its id"""
        with self._guard:
            self._check_writable()
            self._check_free(topic, partition)
            shared_id = self._topic_id(topic, topic_id)
            with self._configured(topic, overrides):
                return self._create(topic, partition, shared_id)

    def create_topic(
        self, topic: str, partitions: int | None = None, overrides: Mapping[str, str] | None = None
    ) -> list[Partition]:
        """Create a topic with so many partitions, `num.partitions` where no number is given."""
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
        """Take a new topic's partitions back where one of them cannot be made."""
        try:
            yield
        except BaseException:
            for slot in self._partitions.of_topic(topic):
                try:
                    self._delete(slot)
                except (EngineError, OSError) as error:
                    log.error(f"{slot.name}: cannot be taken back, and stays without the others: {error}")
            raise

    @contextlib.contextmanager
    def _configured(self, topic: str, overrides: Mapping[str, str] | None) -> Iterator[None]:
        """Write a new topic's settings before its partitions come, so that none is ever there without them.
        Taken back where none comes."""
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
        """The id that the topic's partitions have, else the wanted one, else a new one."""
        for slot in self._partitions.of_topic(topic):
            found = PartitionMetadata.load(slot.directory)
            if found.topic_id is not None:
                if wanted is not None:
                    found.record(wanted)
                return found.topic_id
        return random_uuid() if wanted is None else wanted

    def _create(self, topic: str, number: int, topic_id: str) -> Partition:
        # Made under a name that the next opening removes, so that a crash leaves no partition without its id:
        # a broker would set that aside.
        unfinished = self.logs / deletion_directory(topic, number)
        slot = self._partitions.empty_slot(topic, number)
        metadata = PartitionMetadata.load(unfinished)
        metadata.record(topic_id)
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
            self._removals.add(unfinished, self.clock())
            raise
        self._partitions.add(slot)
        log.info(f"{slot.name}: created, topic id {topic_id}")
        return slot.partition

    # -- deleting and cutting -------------------------------------------------------------------------

    def delete(self, topic: str, number: int | None = None) -> None:
        """Delete a partition: gone at once, its files after `log.segment.delete.delay.ms`. The topic's
        settings stay, also without a partition."""
        with self._guard:
            self._check_writable()
            slot = self._partitions.find(topic, number)
            self._check_deletion(slot.name)
            self._delete(slot)
            if not self._partitions.of_topic(slot.topic):
                self.inboxes.forget(slot.topic)

    def delete_topic(self, topic: str) -> None:
        """Delete all partitions of a topic, then its settings."""
        with self._guard:
            self._check_writable()
            slots = self._slots_of(topic)
            self._check_deletion(topic)
            for slot in slots:
                self._delete(slot)
            self._configuration.remove_topic(topic)
            self.inboxes.forget(topic)

    def _check_deletion(self, name: str) -> None:
        if not self.daemon.delete_topic_enable:
            raise PolicyViolationError(f"{name}: not deleted, as delete.topic.enable is false")

    def _delete(self, slot: Slot) -> None:
        condemned = self.logs / deletion_directory(slot.topic, slot.number)
        with self.cleaning.paused(slot.key), slot.lock:
            try:
                if slot.partition is not None and slot.error is None:
                    slot.partition.log.rename(condemned)
                else:
                    slot.directory.rename(condemned)
                    sync_directory(self.logs)
            except (EngineError, OSError) as error:
                # What is closed half way is offline; deleting it can be tried again.
                slot.error = error
                raise
            slot.gone = True
        log.info(f"{slot.name}: deleted, removed later as {condemned.name}")
        self._partitions.remove(slot)
        self._condemn(condemned)
        try:
            self._forget(slot)
        except OSError as error:
            # The next write brings it about, and no partition of that name is created before.
            log.warning(f"{self.logs}: the checkpoints still have {slot.name}: {error}")

    def _forget(self, slot: Slot) -> None:
        self.retention.forget(slot)
        self._checkpoints.forget(slot.key)
        self.cleaning.forget(slot.key)

    def _condemn(self, directory: Path) -> None:
        delay = self._configuration.topic_defaults.file_delete_delay_ms
        self._removals.add(directory, self.clock() + delay)

    def truncate(self, topic: str, number: int, offset: int) -> bool:
        """`Partition.truncate_to`, with the checkpoints following."""
        with self._cutting(topic, number, offset) as partition:
            return partition.truncate_to(offset)

    def restart_at(self, topic: str, number: int, offset: int) -> None:
        """`Partition.restart_at`, with the checkpoints following."""
        with self._cutting(topic, number, 0) as partition:
            partition.restart_at(offset)

    def delete_records(self, topic: str, number: int, before: int) -> int:
        """`Partition.delete_records`, written down before it is done: an error means that nothing was deleted."""
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
            last = partition.log.chain.segments.floor(ceiling)
            self.cleaning.offsets.lower(key, ceiling if last is None else last.base_offset)
            yield partition

    # -- settings -------------------------------------------------------------------------------------

    @property
    def daemon(self) -> DaemonSettings:
        """The daemon's settings."""
        return self._configuration.daemon

    def topic_settings(self, topic: str) -> TopicSettings:
        """The settings that hold for a topic."""
        self._slots_of(topic)
        return self._configuration.topic(topic)

    def explain(self, topic: str) -> list[Explained]:
        """Every setting of a topic, with its value and where it comes from."""
        self._slots_of(topic)
        return self._configuration.explain(topic)

    def configure(self, topic: str, changes: Mapping[str, str | None]) -> None:
        """Change overrides of a topic; None removes one. All of them take effect at once, or none."""
        with self._guard:
            self._check_writable()
            slots = self._slots_of(topic)
            with self._following(slots):
                self._configuration.change_topic(topic, changes)

    def configure_daemon(self, changes: Mapping[str, str | None]) -> None:
        """Change lines of server.properties; None removes one. All of them take effect at once, or none."""
        with self._guard:
            self._check_writable()
            with self._following(self.slots()):
                self._configuration.change_daemon(changes)

    @contextlib.contextmanager
    def _following(self, slots: Collection[Slot]) -> Iterator[None]:
        """Have partitions take up settings that change in between. Where cleanup.policy changes, what a cleaner does
        by the old one is broken off."""
        before = {slot.key: self._configuration.topic(slot.topic).cleanup_policy for slot in slots}
        yield
        self._partitions.reconfigure(slots)
        for slot in slots:
            if self._configuration.topic(slot.topic).cleanup_policy != before[slot.key]:
                self.cleaning.abort(slot.key)
