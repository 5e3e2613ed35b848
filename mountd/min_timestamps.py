"""The job that finds the earliest timestamps of sealed segments: see `topicfs.engine.min_timestamps`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from topicfs.engine.errors import EngineError
from topicfs.engine.min_timestamps.upkeep import MinTimestampsUpkeep
from topicfs.engine.store.store import Store
from topicfs.mountd.cleaners import give_way

log = logging.getLogger(__name__)

_AT_ONCE_S: Final = 5.0
"""Seconds of one run. It then still finishes the segment at hand, and the next run continues."""

_REST_S: Final = 0.002
"""Seconds between two chunks of a segment, of 1 MiB: at full speed the job slowed a reader beside it by a sixth."""


class MinTimestampsJob:
    """The earliest timestamps of a store's partitions. One thread calls `run`, again and again.

    _stop      tells whether the work must be broken off
    _last      the name of the partition that was handled last
    _upkeep    does the work
    _failures  by partition: the last error
    """

    def __init__(self, store: Store, views: Path, stop: Callable[[], bool]) -> None:
        self._store = store
        self._stop = stop
        self._upkeep = MinTimestampsUpkeep(views, store.clock, store.steady)
        self._last = ""
        self._failures: dict[str, str] = {}

    def run(self) -> None:
        """Handle the partitions that are in use, one after the other for a limited time, as the thread has other work.
        Other partitions are not loaded for this."""
        give_way()
        slots = sorted(self._store.slots(), key=lambda slot: (slot.name <= self._last, slot.name))
        end = time.monotonic() + _AT_ONCE_S

        def enough() -> bool:
            return time.monotonic() > end

        self._upkeep.forget_others({slot.name for slot in slots})
        for slot in slots:
            partition = slot.partition
            if self._stop() or enough():
                return
            self._last = slot.name
            if partition is None or slot.gone or partition.log.failure is not None:
                continue
            try:
                self._upkeep.bring_up_to_date(partition, self._rest, enough)
                self._failures.pop(slot.name, None)
            except (EngineError, OSError) as error:
                if self._failures.get(slot.name) != str(error):
                    log.error(f"{slot.name}: reads by time skip less: {error}")
                self._failures[slot.name] = str(error)

    def _rest(self) -> bool:
        """Let other threads run, then return whether to stop."""
        time.sleep(_REST_S)
        return self._stop()
