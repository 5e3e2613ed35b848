"""Retention of a store's partitions, one by one, and what became of it.

A partition that is not in use is looked at by its files' names, and loaded only where something is due.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from topicfs.engine.errors import ClosedError, EngineError, UnknownPartitionError
from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.partition.loading import Known
from topicfs.engine.partition.offsets import LogOffsets
from topicfs.engine.partition.on_disk import SegmentOnDisk, listed, offsets_of
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.slot import Slot
from topicfs.engine.retention.removal import NOTHING, Removed, apply
from topicfs.engine.retention.rules import due
from topicfs.engine.settings.topic import TopicSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Unused:
    """What the files of a partition that is not loaded say."""

    segments: list[SegmentOnDisk]
    offsets: LogOffsets


class Retention:
    """Removes what is due from partitions.

    removed   all that was removed since the opening
    failing   why a partition's retention last failed, by its name; it is tried again each time
    _use      loads a slot's partition
    _known    what checkpoints say of a slot that is not loaded
    _settings of a topic
    _unused   files of partitions that are not loaded: nothing changes them as long as that is so
    _lock     guards `removed`, to which cleaner threads add as well
    """

    def __init__(
        self,
        use: Callable[[Slot], Partition],
        known: Callable[[Slot], Known],
        settings: Callable[[str], TopicSettings],
    ) -> None:
        self.removed = NOTHING
        self.failing: dict[str, str] = {}
        self._use = use
        self._known = known
        self._settings = settings
        self._unused: dict[PartitionKey, Unused] = {}
        self._lock = threading.Lock()

    def look(self, slot: Slot) -> Unused | None:
        """What the files of a slot that is not loaded say; None where it is loaded, offline or has no segment."""
        if slot.partition is not None or slot.error is not None or slot.gone:
            self._unused.pop(slot.key, None)
            return None
        found = self._unused.get(slot.key)
        if found is None:
            try:
                segments = listed(slot.directory)
            except FileNotFoundError:
                return None  # it is being loaded or deleted
            if not segments:
                return None
            found = self._unused[slot.key] = Unused(segments, offsets_of(segments, self._known(slot)))
        return found

    def retain(self, slot: Slot, now: int) -> Removed:
        """Remove what is due from one partition. What fails is reported, and does not come out."""
        try:
            unused = self.look(slot)
            if unused is not None:
                settings = self._settings(slot.topic)
                if not due(unused.segments, unused.offsets, settings, now):
                    return NOTHING
                removed = apply(self._use(slot).log, now)
            elif slot.partition is not None:
                removed = apply(slot.partition.log, now)
            else:
                return NOTHING
        except (ClosedError, UnknownPartitionError):
            # Deleted or closed meanwhile, or offline, which was said when it happened.
            return NOTHING
        except (EngineError, OSError) as error:
            if not slot.gone:
                self._report(slot, error)
            return NOTHING
        if self.failing.pop(slot.name, None) is not None:
            log.info(f"{slot.name}: retention works again")
        with self._lock:
            self.removed += removed
        return removed

    def forget(self, slot: Slot) -> None:
        """The partition is gone."""
        self._unused.pop(slot.key, None)
        self.failing.pop(slot.name, None)

    def _report(self, slot: Slot, error: Exception) -> None:
        # Each time anew it would fill the log.
        if self.failing.get(slot.name) != str(error):
            log.error(f"{slot.name}: retention failed, tried again when it is next due: {error!r}")
        self.failing[slot.name] = str(error)
