"""The periodic work of a store, except compaction: flushes, checkpoints, retention, and removal of old files."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from topicfs.engine.cleaner.manager import CleaningManager
from topicfs.engine.errors import ClosedError
from topicfs.engine.inbox.inboxes import Inboxes
from topicfs.engine.jobs import TICK_MS, Job, Jobs, JobState
from topicfs.engine.partition.log import Log
from topicfs.engine.partition.partition import Partition
from topicfs.engine.record import MAX_INT64, Clock
from topicfs.engine.retention.removal import Removed
from topicfs.engine.settings.daemon import DaemonSettings
from topicfs.engine.store.deletion import Deletions
from topicfs.engine.store.partitions import Partitions
from topicfs.engine.store.removal import Removals
from topicfs.engine.transactions.coordinator import Coordinator

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Upkeep:
    """The periodic work of one store. Nothing runs by itself: a program that keeps a store open calls `run_due` every
    second or so; the daemon has threads that run `jobs`.

    clock            the clock for the timestamps of records
    steady           a clock that nobody can set, for waits and intervals
    _settings        the daemon's settings
    _check_writable  raises ClosedError where the store is closed, ReadOnlyError where it was opened read-only
    _own             the jobs that `run_due` runs, and when each is due
    """

    clock: Clock
    steady: Clock
    _settings: DaemonSettings
    _partitions: Partitions
    _deletions: Deletions
    _removals: Removals
    _cleaning: CleaningManager
    _inboxes: Inboxes
    _transactions: Coordinator
    _check_writable: Callable[[], None]
    _own: Jobs = field(init=False)

    def __post_init__(self) -> None:
        self._own = Jobs(self.jobs(), self.clock, self.steady)

    def run_due(self) -> None:
        """Run the jobs that are due. A job that fails is logged, does not stop the others, and is tried again."""
        self._check_writable()
        self._own.run_due()

    @property
    def states(self) -> Mapping[str, JobState]:
        """The state of each job that `run_due` runs, by the job's name."""
        return self._own.states

    def jobs(self) -> list[Job]:
        """Return the jobs, with the intervals that the settings say; none for a read-only store."""
        if self._partitions.read_only:
            return []
        settings = self._settings
        delay = settings.log_initial_task_delay_ms
        flush = settings.log_flush_scheduler_interval_ms
        if flush == MAX_INT64:
            # Kafka never looks for logs to flush unless this setting says how often. Then a topic's flush.ms would have
            # no effect, and looking costs little.
            flush = TICK_MS
        recovery_points = settings.log_flush_offset_checkpoint_interval_ms
        start_offsets = settings.log_flush_start_offset_checkpoint_interval_ms
        watermarks = settings.replica_high_watermark_checkpoint_interval_ms
        producers = settings.producer_id_expiration_check_interval_ms
        retention = settings.log_retention_check_interval_ms
        return [
            # On a busy disk a flush takes seconds. In a thread of their own, they do not delay the removals.
            Job("flush of sealed segments", TICK_MS, self.flush_rolled, TICK_MS, "flush"),
            Job("flush.ms", flush, self.flush_due, min(flush, delay), "flush"),
            Job("removal of deleted files", TICK_MS, self.remove_due, TICK_MS),
            Job("segment.ms", TICK_MS, self.roll_waited, TICK_MS),
            Job("checkpoint of recovery points", recovery_points, self.checkpoint_recovery_points, delay),
            Job("checkpoint of start offsets", start_offsets, self.checkpoint_start_offsets, delay),
            Job("checkpoint of high watermarks", watermarks, self.checkpoint_high_watermarks, watermarks),
            Job("expiry of producers", producers, self.expire_producers, producers),
            Job("retention", retention, self.retain, delay),
            # These wait until a commit that is under way has ended.
            Job("commits of inboxes", TICK_MS, self._inboxes.settle, TICK_MS, "inboxes"),
            Job("transactions", TICK_MS, self._transactions.settle, TICK_MS, "inboxes"),
            Job("expiry of transactions", producers, self.forget_transactions, producers),
            Job("removal of old files of inboxes", 60_000, self.sweep_inboxes, 60_000, "inboxes"),
        ]

    def checkpoint_recovery_points(self) -> None:
        """Write the recovery points: below them, each partition is on disk."""
        self._check_writable()
        self._partitions.checkpoints.write_recovery_points()

    def checkpoint_start_offsets(self) -> None:
        """Write the start offsets that lie above the base offset of their partition's first segment."""
        self._check_writable()
        self._partitions.checkpoints.write_start_offsets()

    def checkpoint_high_watermarks(self) -> None:
        """Write the high watermarks."""
        self._check_writable()
        self._partitions.checkpoints.write_high_watermarks()

    def roll_waited(self) -> int:
        """Seal segments that are older than `segment.ms`, where no append does it. Return how many there were."""
        now = self.clock()
        return self._sum(lambda log: int(log.roll_if_waited(now)))

    def flush_rolled(self) -> int:
        """Flush sealed segments. Return how many partitions had some."""
        return self._sum(Log.flush_sealed)

    def flush_due(self) -> int:
        """Flush the logs whose `flush.ms` is over, and sealed segments. Return how many partitions were flushed."""
        now = self.steady()

        def flush(log: Log) -> int:
            if not log.flush_is_due(now):
                return log.flush_sealed()
            log.flush()
            return 1

        return self._sum(flush)

    def remove_due(self, now: int | None = None) -> int:
        """Remove files and directories whose deletion delay is over. Return how many were removed."""
        self._check_writable()
        time = self.steady() if now is None else now
        self._deletions.hand_over(time, self._removals)
        return self._sum(lambda log: log.remove_due(time)) + self._removals.remove_due(time)

    def expire_producers(self) -> int:
        """Forget producers that were idle for `producer.id.expiration.ms`. Return how many there were."""
        now = self.clock()
        return self._sum(lambda log: log.expire_producers(now))

    def retain(self, now: int | None = None) -> Removed:
        """Apply retention to the partitions that are not compacted; the cleaner threads apply it to the others.
        A partition that fails is reported, does not stop the others, and is tried again next time."""
        self._check_writable()
        return self._cleaning.retain_others(self.clock() if now is None else now)

    def sweep_inboxes(self) -> int:
        """Remove old files and directories from inboxes that nobody has changed for a while. Return how many."""
        self._check_writable()
        return self._inboxes.sweep(self.clock(), self.steady())

    def forget_transactions(self) -> int:
        """Forget the ids of transactions that ended `transactional.id.expiration.ms` ago. Return how many."""
        self._check_writable()
        return self._transactions.forget_old(self._settings.transactional_id_expiration_ms)

    def _sum(self, task: Callable[[Log], int]) -> int:
        """Run a task for each loaded partition, and return the sum of the results."""
        self._check_writable()
        return sum(_attempt(partition, task) for partition in self._partitions.loaded())


def _attempt(partition: Partition, task: Callable[[Log], int]) -> int:
    """Run a task for one partition, and return its result. A partition that fails does not stop the others."""
    try:
        return task(partition.log)
    except ClosedError:
        # It was deleted or closed meanwhile, or is offline, which was logged when it happened.
        return 0
    except OSError as error:
        log.error(f"{partition.name}: cannot be kept: {error!r}")
        return 0
