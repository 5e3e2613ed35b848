"""The partitions of a store: found without a lock, loaded when they are first used, or all at once."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from time import monotonic
from typing import Final

from topicfs.engine.errors import ClosedError, EngineError, UnknownPartitionError
from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.files.metadata import CleanShutdown
from topicfs.engine.format.paths import parse_partition_directory, partition_directory
from topicfs.engine.partition.loading import Known, load
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.slot import Slot
from topicfs.engine.partition.viewing import view
from topicfs.engine.record import Clock
from topicfs.engine.segment.descriptors import Descriptors, descriptors_for_segments, raise_descriptor_limit
from topicfs.engine.settings.configuration import Configuration
from topicfs.engine.store.checkpoints import Checkpoints

log = logging.getLogger(__name__)

_TRIES: Final = 5
"""Another process may take files away while a partition is looked at read-only: then it is looked at anew."""


class Partitions:
    """The partitions in one log directory. Who adds, removes or closes some holds the store's guard.

    logs           the log directory
    slots          a slot for each partition; replaced as a whole, so that looking needs no lock
    checkpoints    what the log directory remembers of them
    stopped_clean  what is loaded was stopped cleanly
    read_only      no file is changed
    looked_at      given each partition that was loaded read-only, before anybody else has it
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
    ) -> None:
        self.logs = logs
        self.read_only = read_only
        self.looked_at: Callable[[Partition], None] = lambda _: None
        self.stopped_clean = stopped_clean
        self.slots: Mapping[PartitionKey, Slot] = {key: self.empty_slot(*key) for key in keys}
        self.checkpoints = Checkpoints(logs, self._each_slot, read_only)
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
    ) -> Partitions:
        """Those that the log directory was found to have. None is loaded yet."""
        partitions = cls(logs, keys, configuration, stopped_clean, clock, steady, lone, read_only)
        partitions.descriptors.limit = descriptors_for_segments(raise_descriptor_limit())
        partitions.checkpoints.read(partitions.slots.keys())
        return partitions

    # -- finding --------------------------------------------------------------------------------------

    def find(self, topic: str, number: int | None = None) -> Slot:
        """By topic and number or by name; UnknownPartitionError where there is none."""
        if number is None:
            name = topic
            topic, number, suffix = parse_partition_directory(name)
            if suffix:
                raise UnknownPartitionError(f"{self.logs / name}: expected <topic>-<partition>, no {suffix}")
        slot = self.slots.get((topic, number))
        if slot is None:
            raise UnknownPartitionError(f"{self.logs}: expected a partition {topic}-{number}, found none")
        return slot

    def of_topic(self, topic: str) -> list[Slot]:
        """The slots of a topic; empty where there is no such topic."""
        return [slot for slot in self.slots.values() if slot.topic == topic]

    def loaded(self) -> list[Partition]:
        """Those that are loaded."""
        return [slot.partition for slot in self.slots.values() if slot.partition is not None]

    # -- coming and going -----------------------------------------------------------------------------

    def empty_slot(self, topic: str, number: int) -> Slot:
        """A slot that is not among the others yet."""
        return Slot(topic, number, self.logs / partition_directory(topic, number))

    def _each_slot(self) -> Iterable[Slot]:
        return self.slots.values()

    def add(self, slot: Slot) -> None:
        """Let a slot be found."""
        self.slots = {**self.slots, slot.key: slot}

    def remove(self, slot: Slot) -> None:
        """Let a slot be found no more."""
        self.slots = {key: each for key, each in self.slots.items() if each is not slot}

    def use(self, slot: Slot) -> Partition:
        """The slot's partition, loaded now if it was not; ClosedError where it cannot be loaded."""
        return slot.use(self._load)

    def _load(self, slot: Slot) -> Partition:
        return self._look(slot) if self.read_only else self.load(slot, self.known(slot))

    def _look(self, slot: Slot) -> Partition:
        """Load what lies in the slot's directory, without changing it. Another process may have it open, or open it
        meanwhile, which takes the marker away before it changes anything: then it is looked at anew."""
        marker = CleanShutdown.of(self.logs)
        for rest in reversed(range(_TRIES)):
            clean = marker.exists()
            try:
                partition = self.load(slot, self.checkpoints.known(slot.key, clean))
            except FileNotFoundError:
                if not rest:
                    raise
                continue
            if not rest or clean == marker.exists():
                break
            partition.log.abandon()
        self.looked_at(partition)
        return partition

    def known(self, slot: Slot) -> Known:
        """What checkpoints say of a slot that is not loaded. Where that was tried, its files are not as a clean stop
        left them."""
        return self.checkpoints.known(slot.key, self.stopped_clean and slot.error is None)

    def load(self, slot: Slot, known: Known) -> Partition:
        """Load what lies in the slot's directory."""
        return (view if self.read_only else load)(
            slot.topic,
            slot.number,
            slot.directory,
            self._configuration.topic(slot.topic),
            self._configuration.daemon.producer_id_expiration_ms,
            known,
            self._clock,
            self.descriptors,
            self._lone,
            self._steady,
        )

    def reconfigure(self, slots: Collection[Slot]) -> None:
        """Have partitions follow settings that have changed."""
        for slot in slots:
            # A load that is under way may have looked at the settings before they changed: wait for it.
            with slot.lock:
                if slot.partition is not None:
                    changing = slot.partition.log
                    changing.reconfigure(self._configuration.topic(slot.topic))
                    changing.producers.expiration_ms = self._configuration.daemon.producer_id_expiration_ms

    # -- all at once ----------------------------------------------------------------------------------

    def recover(self) -> None:
        """Load every partition. One that fails stays offline, the others go on."""
        began = monotonic()
        self._in_parallel(self._try_to_load)
        offline = sum(slot.error is not None for slot in self.slots.values())
        log.info(
            f"{self.logs}: {len(self.slots) - offline} partitions recovered, {offline} offline, "
            f"in {monotonic() - began:.1f} s"
        )
        try:
            # A log that lost its end must not keep a recovery point that vouches for what is appended there.
            self.checkpoints.write_all()
        except OSError as error:
            log.warning(f"{self.logs}: no checkpoints after the recovery: {error}")

    def _try_to_load(self, slot: Slot) -> None:
        # The slot keeps the error, and has logged it.
        with contextlib.suppress(ClosedError):
            self.use(slot)

    def close(self) -> list[str]:
        """Close those that are loaded. Gives the names of those with which not all is well: that could not
        be loaded or closed, or went offline."""
        unclean: list[str] = []

        def close(slot: Slot) -> None:
            if not _close(slot):
                unclean.append(slot.name)

        self._in_parallel(close)
        return sorted(unclean)

    def abandon(self) -> None:
        """Let go of those that are loaded as a crash would."""
        for slot in self.slots.values():
            with slot.lock:
                slot.gone = True
                if slot.partition is not None:
                    slot.partition.log.abandon()

    def _in_parallel(self, task: Callable[[Slot], None]) -> None:
        """Do this for every slot. An error that is nobody's to expect comes out when all are done."""
        threads = self._configuration.daemon.num_recovery_threads_per_data_dir
        pool = ThreadPoolExecutor(threads, thread_name_prefix="topicfs-partitions")
        try:
            futures = [pool.submit(task, slot) for slot in self.slots.values()]
            wait(futures)
            for future in futures:
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)


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
