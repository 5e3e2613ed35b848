"""Retention of a store's partitions, one by one, with what it removed and what failed.

A partition that is not loaded is checked by listing its files, and is loaded only if something is due.
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
    """The segments and offsets of a partition that is not loaded, as its files and checkpoints say."""

    segments: list[SegmentOnDisk]
    offsets: LogOffsets


class Retention:
    """Retention: it removes the due segments of partitions.

    removed   the segments and bytes that were removed since the opening
    failing   by partition name: the error of the last try, if it failed; it is tried again each time
    _use      returns a slot's partition, loaded
    _known    returns what the checkpoints say of a slot that is not loaded
    _settings returns the settings of a topic
    _unused   by partition: the files of partitions that are not loaded, which do not change as long as that is so
    _lock     guards `removed`, to which cleaner threads add too
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
        """Return the segments and offsets of a slot that is not loaded; None where it is loaded, offline or empty."""
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
        """Remove the due segments of one partition. An error is logged and recorded, and not raised."""
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
            # It was deleted or closed meanwhile, or is offline, which was logged when it happened.
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
        """Forget a partition that was deleted."""
        self._unused.pop(slot.key, None)
        self.failing.pop(slot.name, None)

    def _report(self, slot: Slot, error: Exception) -> None:
        # The same error is logged once: each time would fill the log.
        if self.failing.get(slot.name) != str(error):
            log.error(f"{slot.name}: retention failed, tried again when it is next due: {error!r}")
        self.failing[slot.name] = str(error)
