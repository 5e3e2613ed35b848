"""The directories of partitions: they are made in the log directory, and renamed when their partition is deleted."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from pathlib import Path

from topicfs.engine.cleaner.manager import CleaningManager
from topicfs.engine.errors import EngineError, InvalidNameError, PartitionExistsError
from topicfs.engine.files.atomic import sync_directory
from topicfs.engine.files.metadata import PartitionMetadata, random_uuid
from topicfs.engine.format.paths import NOT_PARTITIONS, deletion_directory, partition_directory
from topicfs.engine.partition.loading import Known
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.slot import Slot
from topicfs.engine.record import Clock
from topicfs.engine.retention.partitions import Retention
from topicfs.engine.settings.configuration import Configuration
from topicfs.engine.store.partitions import Partitions
from topicfs.engine.store.removal import Removals

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Directories:
    """The directories of one store's partitions. Every method needs the store's guard.

    removals  directories that are to be removed
    _steady   a clock that nobody can set
    """

    removals: Removals
    _steady: Clock
    _configuration: Configuration
    _partitions: Partitions
    _cleaning: CleaningManager
    _retention: Retention

    @property
    def logs(self) -> Path:
        """Return the log directory."""
        return self._partitions.logs

    def check_free(self, topic: str, number: int) -> None:
        """Refuse a name that a new partition must not have."""
        name = partition_directory(topic, number)
        if name in NOT_PARTITIONS:
            raise InvalidNameError(f"partition {name}: a broker keeps something else under this name")
        if (self.logs / name).exists():
            raise PartitionExistsError(f"{self.logs / name}: exists")

    def topic_id(self, topic: str, wanted: str | None) -> str:
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

    def create(self, topic: str, number: int, topic_id: str) -> Partition:
        """Make a partition of a topic with this id."""
        # It is made under a name that the next opening removes. So a crash leaves no partition without its topic id,
        # which a broker would set aside.
        unfinished = self.logs / deletion_directory(topic, number)
        slot = self._partitions.empty_slot(topic, number)
        metadata = PartitionMetadata.load(unfinished)
        metadata.record(topic_id)
        if not self._partitions.of_topic(topic):
            self._configuration.note_created(topic_id)
        self.forget(slot)
        unfinished.mkdir()
        try:
            metadata.maybe_flush()
            unfinished.rename(slot.directory)
            sync_directory(self.logs)
            slot.partition = self._partitions.load(slot, Known(clean=True))
        except BaseException:
            with contextlib.suppress(OSError):
                slot.directory.rename(unfinished)
            self.removals.add(unfinished, self._steady())
            raise
        self._partitions.add(slot)
        log.info(f"{slot.name}: created, topic id {topic_id}")
        return slot.partition

    def rename(self, slot: Slot, condemned: Path) -> None:
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
            self.forget(slot)
        except OSError as error:
            # The next write drops the entries. A partition of that name cannot be created before that.
            log.warning(f"{self.logs}: the checkpoints still have {slot.name}: {error}")

    def forget(self, slot: Slot) -> None:
        """Drop what is noted of a partition of this name."""
        self._retention.forget(slot)
        self._partitions.checkpoints.forget(slot.key)
        self._cleaning.forget(slot.key)

    def condemn(self, directory: Path) -> None:
        """Have a directory removed when its delay is over."""
        delay = self._configuration.topic_defaults.file_delete_delay_ms
        self.removals.add(directory, self._steady() + delay)
