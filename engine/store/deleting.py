"""Deleting partitions, and taking that back. The order of steps is in `engine/CONCURRENCY.md`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from topicfs.engine.cleaner.manager import CleaningManager
from topicfs.engine.errors import (
    ClosedError,
    EngineError,
    NothingDeletedError,
    PartitionExistsError,
    PartitionNotEmptyError,
    PolicyViolationError,
    passes,
)
from topicfs.engine.files.atomic import sync_directory
from topicfs.engine.files.metadata import PartitionMetadata, random_uuid
from topicfs.engine.format.paths import DELETED_SETTINGS, DELETED_STAGING, deletion_directory
from topicfs.engine.inbox.inboxes import Inboxes
from topicfs.engine.partition.slot import Slot
from topicfs.engine.partition.transactional import end_open
from topicfs.engine.record import Clock
from topicfs.engine.settings.configuration import Configuration
from topicfs.engine.store.deletion import DeletedPartition, Deletion, Deletions
from topicfs.engine.store.directories import Directories
from topicfs.engine.store.partitions import Partitions

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Deleting:
    """What a store does to delete partitions and to restore them. Every method needs the store's guard.

    deletions  the deletions that can be undone
    _backing   the directory of the store
    _clock     the clock for times that people see
    _steady    a clock that nobody can set
    """

    deletions: Deletions
    _backing: Path
    _clock: Clock
    _steady: Clock
    _configuration: Configuration
    _partitions: Partitions
    _directories: Directories
    _cleaning: CleaningManager
    _inboxes: Inboxes

    def delete(self, topic: str, slots: Sequence[Slot], only_empty: bool, whole: bool = False) -> Deletion:
        """Delete partitions of a topic, or with `whole` all of it. With `only_empty`, PartitionNotEmptyError where one
        holds a record."""
        if not self._configuration.daemon.delete_topic_enable:
            raise PolicyViolationError(f"{topic}: not deleted, as delete.topic.enable is false")
        slots = sorted(slots, key=lambda slot: slot.key)
        self._prepare_deletion(slots, only_empty)
        is_last = len(slots) == len(self._partitions.of_topic(topic))
        with contextlib.ExitStack() as held:
            for slot in slots:
                held.enter_context(self._cleaning.paused(slot.key))
            for slot in slots:
                held.enter_context(slot.lock)
                if slot.partition is not None:
                    held.enter_context(slot.partition.log.still())
            if only_empty:
                self.check_empty(topic, slots, is_last)
            deletion = self._noted_deletion(topic, slots)
            for slot, part in zip(slots, deletion.partitions, strict=True):
                self._directories.rename(slot, self._directories.logs / part.directory)
        for slot, part in zip(slots, deletion.partitions, strict=True):
            log.info(f"{slot.name}: deleted, removed later as {part.directory}")
        place = self.deletions.place(deletion)
        kept = place if place.is_dir() else None
        if whole:
            self._configuration.remove_topic(topic, kept and kept / DELETED_SETTINGS)
        if is_last:
            self._configuration.forget_found(topic)
            self._inboxes.forget(topic, kept and kept / DELETED_STAGING)
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

    def check_empty(self, topic: str, slots: Iterable[Slot], is_last: bool) -> None:
        """Raise PartitionNotEmptyError where one of these partitions, all loaded, holds a record; where they are all of
        their topic, also where its inbox holds files."""
        for slot in slots:
            assert slot.partition is not None, "it was loaded, and the guard is held"
            now = slot.partition.offsets
            if now.start < now.end:
                raise PartitionNotEmptyError(
                    f"{slot.name}: expected no records, found offsets {now.start} to {now.end - 1}; "
                    f"`topicfs delete` deletes them as well"
                )
        if is_last and self._inboxes.of(topic).holds_files():
            raise PartitionNotEmptyError(f"topic {topic}: expected an empty inbox, found files in it")

    def _noted_deletion(self, topic: str, slots: Iterable[Slot]) -> Deletion:
        """Return a new deletion, and record it on disk so that it can be undone."""
        now, delay = self._clock(), self._configuration.topic(topic).file_delete_delay_ms
        parts = tuple(self._deleted(slot) for slot in slots)
        deletion = Deletion(random_uuid(), topic, now, now + delay, parts)
        try:
            self.deletions.add(deletion, self._steady() + delay)
        except OSError as error:
            # The disk may be full, and the deletion makes room.
            self.deletions.unwritten[topic] = now
            log.warning(f"{topic}: this deletion cannot be taken back, as it cannot be written down: {error}")
            for part in parts:
                self._directories.removals.add(
                    self._directories.logs / part.directory, self._steady() + delay
                )
        return deletion

    def _deleted(self, slot: Slot) -> DeletedPartition:
        """Return what must be recorded of a partition to undo its deletion."""
        directory = deletion_directory(slot.topic, slot.number)
        cleaned = self._cleaning.offsets.get(slot.key)
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

    def undelete(self, topic: str, number: int | None = None, deletion: str | None = None) -> Deletion:
        """Do what `Store.undelete` says."""
        found = self.deletions.newest(topic, number, deletion)
        if found is None:
            name = topic if number is None else f"{topic}-{number}"
            raise NothingDeletedError(
                f"{name}: expected a deletion that can be taken back, found none: there was none, or its files "
                f"are removed"
            )
        if deletion is None and found.at <= self.deletions.unwritten.get(topic, -1):
            raise NothingDeletedError(
                f"{topic}: its last deletion could not be written down, and cannot be taken back; the one before it is "
                f"{found.id}, which can be, by this ID"
            )
        for part in found.partitions:
            self._directories.check_free(topic, part.number)
        self._check_same_topic(found)
        places = self._kept_in(found)
        with self.deletions.restoring(found):
            for place in places:
                self._configuration.restore_topic(topic, place / DELETED_SETTINGS)
            for part in found.partitions:
                self._restore(found, part)
            for place in places:
                self._inboxes.restore(topic, place / DELETED_STAGING)
            self._partitions.checkpoints.write_all()
        return found

    def _kept_in(self, deletion: Deletion) -> list[Path]:
        """Return the directories that may have the settings and the inbox of a deleted topic, the most likely first:
        that of this deletion, then those of other deletions of the same topic, one of which deleted the rest of it."""
        found = [deletion]
        # A deletion whose topic id cannot be read does not count as one of the same topic.
        with contextlib.suppress(EngineError, OSError):
            ids = self._ids_of_deleted(deletion) | self._ids_of_present(deletion.topic)
            for each in self.deletions.all():
                is_other = each.topic == deletion.topic and each.id != deletion.id
                if is_other and self._ids_of_deleted(each) <= ids:
                    found.append(each)
        return [self.deletions.place(each) for each in found]

    def _ids_of_deleted(self, deletion: Deletion) -> set[str | None]:
        """Return the topic ids in the directories of the deleted partitions."""
        directories = [self._directories.logs / part.directory for part in deletion.partitions]
        return {PartitionMetadata.load(each).topic_id for each in directories if each.exists()}

    def _ids_of_present(self, topic: str) -> set[str | None]:
        """Return the topic ids in the directories of the topic's existing partitions."""
        return {PartitionMetadata.load(slot.directory).topic_id for slot in self._partitions.of_topic(topic)}

    def _check_same_topic(self, deletion: Deletion) -> None:
        """Refuse to restore partitions beside those of another topic with the same name: a broker would not accept
        two topic ids in one topic."""
        present = self._ids_of_present(deletion.topic)
        if present and len(present | self._ids_of_deleted(deletion)) > 1:
            numbers = sorted(slot.number for slot in self._partitions.of_topic(deletion.topic))
            raise PartitionExistsError(
                f"topic {deletion.topic} was made again, with partitions {numbers}: delete it before what it was is "
                f"taken back"
            )

    def _restore(self, deletion: Deletion, part: DeletedPartition) -> None:
        topic = deletion.topic
        slot = self._partitions.empty_slot(topic, part.number)
        self._directories.forget(slot)
        self._adopt(slot, part)
        (self._directories.logs / part.directory).rename(slot.directory)
        sync_directory(self._directories.logs)
        self._configuration.find_again(topic, slot.directory)
        with contextlib.suppress(ClosedError):
            # A partition that was offline when it was deleted is offline again: the slot says why.
            slot.use(lambda empty: self._partitions.load(empty, part.known))
        if slot.error is not None and passes(slot.error):
            # The files are complete. They go back to the deletion, so that restoring them can be tried again.
            self._directories.forget(slot)
            slot.directory.rename(self._directories.logs / part.directory)
            sync_directory(self._directories.logs)
            raise slot.error
        self._partitions.add(slot)
        self._end_transactions(deletion, slot)
        log.info(f"{slot.name}: its deletion is taken back, offsets {part.start} to {part.end}")

    def _end_transactions(self, deletion: Deletion, slot: Slot) -> None:
        """Append the markers of transactions that have ended since a partition was deleted: nobody else would, and
        whatever comes behind their records would never show."""
        for producer_id, commit in self.deletions.ended(deletion, slot.number).items():
            # One that is offline gives its error to whoever uses it.
            if slot.partition is not None:
                end_open(slot.partition, producer_id, commit)
        if slot.partition is not None:
            self._partitions.came(slot.partition)

    def _adopt(self, slot: Slot, part: DeletedPartition) -> None:
        self._partitions.checkpoints.adopt(slot.key, part.known)
        if part.cleaned is not None:
            self._cleaning.offsets.put(slot.key, part.cleaned)

    def finish_restoring(self) -> None:
        """Finish restores that a crash has stopped: a partition that has its name again gets its recorded offsets."""
        for deletion, part in self.deletions.restored():
            slot = self._partitions.slots.get((deletion.topic, part.number))
            if slot is not None:
                log.info(f"{slot.name}: its deletion is taken back, which a crash had stopped")
                self._adopt(slot, part)

    def show_restored(self) -> None:
        """Do for a read-only store what `finish_restoring` does, in memory only."""
        known = Deletions(self._backing, self._directories.logs)
        try:
            known.load(self._clock(), self._steady(), read_only=True)
        except OSError as error:
            log.warning(f"{known.directory}: whether a deletion was being taken back is not known: {error}")
        for deletion, part in known.restored():
            if (deletion.topic, part.number) in self._partitions.slots:
                self._partitions.checkpoints.adopt((deletion.topic, part.number), part.known)

    def finish_deletions(self) -> None:
        """Finish deletions, and restores of deleted topics, that a crash has stopped."""
        # The newest first: an inbox that is still in its place belongs to that one.
        for deletion in reversed(self.deletions.every()):
            place = self.deletions.place(deletion)
            present = self._partitions.of_topic(deletion.topic)
            if deletion.restoring and present:
                for each in self._kept_in(deletion):
                    self._inboxes.restore(deletion.topic, each / DELETED_STAGING)
            elif not present and not (place / DELETED_STAGING).exists():
                self._inboxes.forget(deletion.topic, place / DELETED_STAGING)
            if deletion.restoring:
                self._end_transactions_of(deletion)
                self.deletions.settle(deletion.id)

    def _end_transactions_of(self, deletion: Deletion) -> None:
        for _, part in (each for each in self.deletions.restored() if each[0].id == deletion.id):
            slot = self._partitions.slots.get((deletion.topic, part.number))
            if slot is not None and self.deletions.ended(deletion, part.number):
                with contextlib.suppress(ClosedError):
                    self._partitions.use(slot)
                self._end_transactions(deletion, slot)
