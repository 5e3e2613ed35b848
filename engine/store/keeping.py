"""What a store does every so often, apart from how partitions come and go."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path

from topicfs.engine.cleaner.manager import CleaningManager
from topicfs.engine.record import Clock
from topicfs.engine.retention.removal import Removed
from topicfs.engine.settings.daemon import DaemonSettings
from topicfs.engine.store import upkeep
from topicfs.engine.store.checkpoints import Checkpoints
from topicfs.engine.store.deletion import Deletions
from topicfs.engine.store.partitions import Partitions
from topicfs.engine.store.removal import Removals

log = logging.getLogger(__name__)


class KeptStore:
    """A store's upkeep. Its fields are those of Store."""

    backing: Path
    clock: Clock
    steady: Clock
    cleaning: CleaningManager
    _partitions: Partitions
    _checkpoints: Checkpoints
    _deletions: Deletions
    _removals: Removals
    _schedule: upkeep.Schedule

    @property
    @abstractmethod
    def daemon(self) -> DaemonSettings:
        """The daemon's settings."""

    @abstractmethod
    def _check_open(self) -> None:
        """ClosedError where the store is closed."""

    @abstractmethod
    def _check_writable(self) -> None:
        """The same, and ReadOnlyError where it is not to be changed."""

    def checkpoint_recovery_points(self) -> None:
        """Write down below which offset each partition is on disk."""
        self._check_writable()
        self._checkpoints.write_recovery_points()

    def checkpoint_start_offsets(self) -> None:
        """Write down the start offsets that lie above their partition's first segment's base."""
        self._check_writable()
        self._checkpoints.write_start_offsets()

    def checkpoint_high_watermarks(self) -> None:
        """Write down the high watermarks."""
        self._check_writable()
        self._checkpoints.write_high_watermarks()

    def roll_waited(self, now: int | None = None) -> int:
        """Seal segments that are older than `segment.ms`, where no append does it. Gives how many there were."""
        self._check_writable()
        return upkeep.roll_waited(self._partitions.loaded(), self.clock() if now is None else now)

    def flush_rolled(self) -> int:
        """Bring sealed segments onto the disk. Gives how many partitions had some."""
        self._check_writable()
        return upkeep.flush_rolled(self._partitions.loaded())

    def flush_due(self, now: int | None = None) -> int:
        """Flush what `flush.ms` says, and sealed segments. Gives how many partitions had something."""
        self._check_writable()
        return upkeep.flush_due(self._partitions.loaded(), self.steady() if now is None else now)

    def remove_due(self, now: int | None = None) -> int:
        """Remove files and directories whose deletion delay is over. Gives how many went."""
        self._check_writable()
        now = self.steady() if now is None else now
        self._deletions.hand_over(now, self._removals)
        return upkeep.remove_due(self._partitions.loaded(), now) + self._removals.remove_due(now)

    def expire_producers(self, now: int | None = None) -> int:
        """Forget producers that were idle for `producer.id.expiration.ms`. Gives how many there were."""
        self._check_writable()
        now = self.clock() if now is None else now
        return sum(partition.log.expire_producers(now) for partition in self._partitions.loaded())

    def retain(self, now: int | None = None) -> Removed:
        """Remove what retention says from the partitions that are not compacted; the others get that from who
        compacts them. One that fails is reported, does not stop the others, and is tried again next time."""
        self._check_writable()
        return self.cleaning.retain_others(self.clock() if now is None else now)

    def upkeep(self, now: int | None = None) -> None:
        """Do what is due, save for `retain` and `cleaning`. What fails is logged, does not stop the rest, and is
        tried again when next due."""
        self._check_writable()
        date = self.clock() if now is None else now
        now = self.steady() if now is None else now
        self.flush_rolled()
        self.remove_due(now)
        tasks: dict[upkeep.Task, Callable[[], object]] = {
            upkeep.Task.FLUSH: lambda: self.flush_due(now),
            upkeep.Task.RECOVERY_POINTS: self.checkpoint_recovery_points,
            upkeep.Task.START_OFFSETS: self.checkpoint_start_offsets,
            upkeep.Task.HIGH_WATERMARKS: self.checkpoint_high_watermarks,
            upkeep.Task.PRODUCERS: lambda: self.expire_producers(date),
        }
        for task in self._schedule.due(now, self.daemon):
            try:
                tasks[task]()
            except OSError as error:
                log.error(f"{self.backing}: {task.value} failed, tried again when it is next due: {error!r}")
