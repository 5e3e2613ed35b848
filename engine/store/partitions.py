"""The partitions of a store. They are found without a lock, and loaded when they are first used, or all at once."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Final

from topicfs.engine.errors import ClosedError, EngineError, InvalidNameError, UnknownPartitionError
from topicfs.engine.files.birth import birth
from topicfs.engine.files.listing import METADATA_PARTITION, Listing, PartitionKey
from topicfs.engine.files.look import Look
from topicfs.engine.files.metadata import CleanShutdown
from topicfs.engine.format.paths import parse_partition_directory, partition_directory
from topicfs.engine.partition.following import Follower
from topicfs.engine.partition.loading import Known, load
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.slot import RETRY_S, Slot
from topicfs.engine.partition.viewing import view
from topicfs.engine.record import Clock
from topicfs.engine.segment.descriptors import Descriptors, descriptors_for_segments, raise_descriptor_limit
from topicfs.engine.settings.configuration import Configuration
from topicfs.engine.store.checkpoints import Checkpoints
from topicfs.engine.threads import run_all

log = logging.getLogger(__name__)

_TRIES: Final = 5
"""How often a read-only load is tried. Another process may remove files meanwhile, and then it is tried again."""


_AGAIN_S: Final = 0.5
"""A log directory that had just changed when it was listed is listed again after this time: a broker changes it each
5 s, and there may be 10,000 names in it."""


@dataclass(slots=True)
class _Place:
    """A log directory of another process.

    checkpoints  its offset checkpoints
    listed       when it was listed; None if it has to be
    keys         the partitions that were found there
    """

    checkpoints: Checkpoints
    listed: Look | None = None
    keys: Collection[PartitionKey] = ()


class Partitions:
    """The partitions in a log directory, or read-only in several. Adding, removing and closing need the store's guard.

    logs           the log directory; the first of several
    slots          a slot for each partition; replaced as a whole, so that reading it needs no lock
    checkpoints    the offset checkpoints of the log directory; of the first of several
    stopped_clean  whether the last stop was clean
    read_only      whether no file may be changed
    before_look    called with the topic of a partition that is about to be loaded read-only, without any lock
    looked_at      called with each partition that was loaded read-only, before others can use it
    came           called with each partition that was loaded to be written to, without its slot's lock
    changed        called with the directories of all partitions, where some have come or gone that others made
    _grouped       the partitions of each topic, with the slots that they were made of
    _places        the log directories by their paths, where they are opened read-only
    _failed        by directory: when a partition was looked at that could not be loaded
    _twice         the partitions that were found in two log directories
    _following     held while log directories are listed
    """

    def __init__(
        self,
        logs: Path,
        keys: Collection[PartitionKey],
        configuration: Configuration,
        stopped_clean: bool,
        clock: Clock,
        steady: Clock,
        lone: bool,
        read_only: bool = False,
        others: Sequence[Path] = (),
    ) -> None:
        self.logs = logs
        self.read_only = read_only
        self.before_look: Callable[[str], None] = lambda _: None
        self.looked_at: Callable[[Partition], None] = lambda _: None
        self.came: Callable[[Partition], None] = lambda _: None
        self.changed: Callable[[Mapping[PartitionKey, Path]], None] = lambda _: None
        self._failed: dict[Path, Look] = {}
        self._twice: set[PartitionKey] = set()
        self._following = threading.Lock()
        self.stopped_clean = stopped_clean
        self.slots: Mapping[PartitionKey, Slot] = {key: self.empty_slot(*key) for key in keys}
        self._grouped: tuple[Mapping[PartitionKey, Slot], Mapping[str, Sequence[int]]] = ({}, {})
        self.checkpoints = Checkpoints(logs, self._each_slot, read_only)
        self._places: dict[Path, _Place] = {}
        if read_only:
            self._places[logs] = _Place(self.checkpoints)
            for each in others:
                self._places[each] = _Place(Checkpoints(each, self._each_slot, read_only))
        self._configuration = configuration
        self._clock = clock
        self._steady = steady
        self._lone = lone
        self.descriptors = Descriptors()

    @classmethod
    def open(
        cls,
        logs: Path,
        keys: Collection[PartitionKey],
        configuration: Configuration,
        stopped_clean: bool,
        clock: Clock,
        steady: Clock,
        lone: bool,
        read_only: bool = False,
        others: Sequence[Path] = (),
    ) -> Partitions:
        """Open the partitions that were found in the log directory. None is loaded yet. `others` are further log
        directories to be opened read-only."""
        partitions = cls(logs, keys, configuration, stopped_clean, clock, steady, lone, read_only, others)
        partitions.descriptors.limit = descriptors_for_segments(raise_descriptor_limit())
        partitions.checkpoints.read(partitions.slots.keys())
        return partitions

    @property
    def log_directories(self) -> tuple[Path, ...]:
        """Return all log directories."""
        return tuple(self._places) or (self.logs,)

    # -- finding --------------------------------------------------------------------------------------

    def find(self, topic: str, number: int | None = None) -> Slot:
        """Return the slot with this topic and number, or with this name; UnknownPartitionError where there is none."""
        if number is None:
            name = topic
            topic, number, suffix = parse_partition_directory(name)
            if suffix:
                raise UnknownPartitionError(f"{self.logs / name}: expected <topic>-<partition>, no {suffix}")
        slot = self.slots.get((topic, number))
        if slot is None:
            raise UnknownPartitionError(f"{self.logs}: expected a partition {topic}-{number}, found none")
        return slot

    @property
    def topics(self) -> Mapping[str, Sequence[int]]:
        """The numbers of each topic's partitions, in order."""
        slots = self.slots
        known, found = self._grouped
        if known is not slots:
            grouped: dict[str, list[int]] = {}
            for topic, number in sorted(slots):
                grouped.setdefault(topic, []).append(number)
            found = grouped
            self._grouped = slots, found
        return found

    def of_topic(self, topic: str) -> list[Slot]:
        """Return the slots of a topic, in order; none where there is no such topic."""
        slots = self.slots
        found = [slots.get((topic, number)) for number in self.topics.get(topic, ())]
        return [slot for slot in found if slot is not None]

    def loaded(self) -> list[Partition]:
        """Return the partitions that are loaded."""
        return [slot.partition for slot in self.slots.values() if slot.partition is not None]

    # -- coming and going -----------------------------------------------------------------------------

    def empty_slot(self, topic: str, number: int) -> Slot:
        """Return a new slot, which cannot be found yet."""
        return _slot_in(self.logs, (topic, number))

    def _each_slot(self) -> Iterable[Slot]:
        return self.slots.values()

    def add(self, slot: Slot) -> None:
        """Add a slot, so that it can be found."""
        self.slots = {**self.slots, slot.key: slot}

    def remove(self, slot: Slot) -> None:
        """Remove a slot, so that it cannot be found any more."""
        self.slots = {key: each for key, each in self.slots.items() if each is not slot}

    def use(self, slot: Slot) -> Partition:
        """Return the slot's partition, and load it if it is not loaded; ClosedError where it cannot be loaded."""
        if not self.read_only:
            return slot.partition or self._loaded_now(slot)
        if slot.error is not None:
            slot = self._present(slot)
        if slot.partition is None:
            self.before_look(slot.topic)
        # Another process may have deleted it since it was found, and may have made it again.
        with contextlib.suppress(UnknownPartitionError):
            partition = slot.use(self._load)
            partition.catch_up()
            if partition.is_open:
                return partition
        self.catch_up()
        self.before_look(slot.topic)
        return self.find(*slot.key).use(self._load)

    def catch_up(self) -> None:
        """Take up the partitions that another process has made and removed, where the store is opened read-only."""
        statuses = [(logs, place, os.stat(logs)) for logs, place in self._places.items()]
        if all(_is_listed(place, status) for _, place, status in statuses):
            return
        with self._following:
            for logs, place, status in statuses:
                if not _is_listed(place, status):
                    place.listed = Look.begin(status)
                    try:
                        place.keys = Listing.of(logs).shown
                    except InvalidNameError as error:
                        log.warning(f"{logs}: partitions that come or go are not seen: {error}")
            departed = self._merge()
        for slot in departed:
            with slot.lock:
                slot.gone = True
            if slot.partition is not None:
                slot.partition.catch_up()

    def _loaded_now(self, slot: Slot) -> Partition:
        came: list[Partition] = []

        def load(found: Slot) -> Partition:
            came.append(self._load(found))
            return came[0]

        partition = slot.use(load)
        for each in came:
            self.came(each)
        return partition

    def _merge(self) -> list[Slot]:
        """Have the slots be those of the partitions in all log directories. Return the slots that are no more."""
        found: dict[PartitionKey, Path] = {}
        for logs, place in self._places.items():
            for key in place.keys:
                if found.setdefault(key, logs) is not logs and key not in self._twice:
                    self._twice.add(key)
                    log.error(
                        f"{partition_directory(*key)} is in {found[key]} and in {logs}: that in {found[key]} is shown"
                    )
        before = self.slots
        if {key: slot.directory.parent for key, slot in before.items()} == found:
            return []
        self.slots = {
            key: before[key]
            if key in before and before[key].directory.parent == logs
            else _slot_in(logs, key)
            for key, logs in found.items()
        }
        self.changed(found)
        return [slot for key, slot in before.items() if self.slots.get(key) is not slot]

    def _present(self, slot: Slot) -> Slot:
        """Return a slot to try again with, if the directory of one that could not be loaded has changed since."""
        try:
            status = os.stat(slot.directory)
        except FileNotFoundError:
            return slot
        failed = self._failed.get(slot.directory)
        if failed is not None and not failed.holds(status, RETRY_S):
            self._replace(slot)
        return self.slots.get(slot.key, slot)

    def _replace(self, slot: Slot) -> None:
        """Have the next look find what has the name of the slot's directory then."""
        with self._following:
            if self.slots.get(slot.key) is slot:
                self.slots = {**self.slots, slot.key: _slot_in(slot.directory.parent, slot.key)}
            for place in self._places.values():
                place.listed = None

    def _load(self, slot: Slot) -> Partition:
        return self._look(slot) if self.read_only else self.load(slot, self.known(slot))

    def _look(self, slot: Slot) -> Partition:
        """Load the slot's directory without changing it. UnknownPartitionError where it is gone."""
        try:
            return self._looked(slot)
        except FileNotFoundError as error:
            if slot.directory.exists():
                raise
            self._failed.pop(slot.directory, None)
            self._replace(slot)
            raise UnknownPartitionError(f"{slot.directory}: deleted by another process") from error

    def _looked(self, slot: Slot) -> Partition:
        """Load the slot's directory. Another process may open the store meanwhile. It removes the marker of a clean
        stop before it changes anything: if the marker or a file goes, the load is tried again."""
        marker = CleanShutdown.of(slot.directory.parent)
        self._failed[slot.directory] = Look.begin(os.stat(slot.directory))
        for rest in reversed(range(_TRIES)):
            clean = marker.exists()
            try:
                born = birth(slot.directory)
                partition = self.load(slot, self._known_now(slot, clean))
            except FileNotFoundError:
                if not rest:
                    raise
                continue
            if not rest or clean == marker.exists():
                break
            partition.log.abandon()
        del self._failed[slot.directory]
        self.looked_at(partition)
        follower = Follower(
            partition.log,
            born,
            lambda: self._known_now(slot, clean=False),
            lambda: self.load(slot, self._known_now(slot, marker.exists())),
            lambda: self._replace(slot),
        )
        partition.log.catch_up = follower.catch_up
        return partition

    def _known_now(self, slot: Slot, clean: bool) -> Known:
        checkpoints = self._places[slot.directory.parent].checkpoints
        checkpoints.catch_up()
        # The marker is the broker's: a controller writes none, and has no checkpoint of its log.
        return checkpoints.known(slot.key, clean and slot.key != METADATA_PARTITION)

    def known(self, slot: Slot) -> Known:
        """Return what the checkpoints say of a slot that is not loaded. A slot whose load has failed does not count as
        stopped cleanly: the load may have changed its files."""
        return self.checkpoints.known(slot.key, self.stopped_clean and slot.error is None)

    def load(self, slot: Slot, known: Known) -> Partition:
        """Load the slot's directory."""
        partition = (view if self.read_only else load)(
            slot.topic,
            slot.number,
            slot.directory,
            self._configuration.topic(slot.topic),
            self._configuration.daemon.producer_id_expiration_ms,
            known,
            self._clock,
            self.descriptors,
            self._lone and not (self.read_only and self._has_others(slot)),
            self._steady,
        )
        partition.log.is_mirror = self._configuration.linked.of((partition.topic_id,)) is not None
        return partition

    def _has_others(self, slot: Slot) -> bool:
        """Return whether a cluster's metadata says that other brokers have replicas of the partition."""
        topic = self._configuration.cluster_topic(slot.topic)
        return topic is not None and topic.replicas.get(slot.number, 1) > 1

    def reconfigure(self, slots: Collection[Slot]) -> None:
        """Apply changed settings to the loaded partitions among these slots."""
        for slot in slots:
            # A load that is under way may have read the settings before they changed: wait for it.
            with slot.lock:
                if slot.partition is not None:
                    changing = slot.partition.log
                    changing.reconfigure(self._configuration.topic(slot.topic))
                    changing.producers.expiration_ms = self._configuration.daemon.producer_id_expiration_ms

    # -- all at once ----------------------------------------------------------------------------------

    def recover(self) -> None:
        """Load every partition. One that fails stays offline and does not stop the others."""
        began = monotonic()
        self._in_parallel(self._try_to_load)
        offline = sum(slot.error is not None for slot in self.slots.values())
        log.info(
            f"{self.logs}: {len(self.slots) - offline} partitions recovered, {offline} offline, "
            f"in {monotonic() - began:.1f} s"
        )
        try:
            # A log that lost its end must not keep a recovery point above it: later appends there are not flushed yet.
            self.checkpoints.write_all()
        except OSError as error:
            log.warning(f"{self.logs}: no checkpoints after the recovery: {error}")

    def _try_to_load(self, slot: Slot) -> None:
        # The slot has logged the error, and keeps it.
        with contextlib.suppress(ClosedError):
            self.use(slot)

    def close(self) -> list[str]:
        """Close the loaded partitions. Return the names of the unclean ones: those that could not be loaded or closed,
        or went offline."""
        unclean: list[str] = []

        def close(slot: Slot) -> None:
            if not _close(slot):
                unclean.append(slot.name)

        self._in_parallel(close)
        return sorted(unclean)

    def abandon(self) -> None:
        """Drop the loaded partitions as a crash would: nothing is flushed."""
        for slot in self.slots.values():
            with slot.lock:
                slot.gone = True
                if slot.partition is not None:
                    slot.partition.log.abandon()

    def _in_parallel(self, task: Callable[[Slot], None]) -> None:
        """Run a task for every slot. An unexpected error is raised when all tasks are done."""
        threads = self._configuration.daemon.num_recovery_threads_per_data_dir
        pool = ThreadPoolExecutor(threads, thread_name_prefix="topicfs-partitions")
        try:
            run_all(pool, [partial(task, slot) for slot in self.slots.values()])
        finally:
            pool.shutdown(cancel_futures=True)


def _slot_in(logs: Path, key: PartitionKey) -> Slot:
    return Slot(*key, logs / partition_directory(*key))


def _is_listed(place: _Place, status: os.stat_result) -> bool:
    return place.listed is not None and place.listed.holds(status, _AGAIN_S)


def _close(slot: Slot) -> bool:
    with slot.lock:
        slot.gone = True
        partition = slot.partition
        if partition is None:
            return slot.error is None
        try:
            partition.close()
        except (EngineError, OSError) as error:
            log.error(f"{slot.name}: cannot be closed: {error!r}")
            return False
        return partition.log.failure is None and slot.error is None
