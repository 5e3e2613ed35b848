"""What a store does every so often, and when each of it is due."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from topicfs.engine.errors import ClosedError
from topicfs.engine.partition.log import Log
from topicfs.engine.partition.partition import Partition
from topicfs.engine.record import MAX_INT64
from topicfs.engine.settings.daemon import DaemonSettings

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Due:
    """When a periodic task is next due.

    since  when it was last done, or when the waiting for the first time began, by a clock that nobody can set
    wait   milliseconds from then on
    """

    since: int
    wait: int

    def has_come(self, now: int, period: int) -> bool:
        """Whether the time has come; the task is next due a period from now then."""
        if now - self.since < self.wait:
            return False
        self.since, self.wait = now, period
        return True


class Task(Enum):
    """What is done every so often."""

    FLUSH = "flush.ms"
    RECOVERY_POINTS = "checkpoint of recovery points"
    START_OFFSETS = "checkpoint of start offsets"
    HIGH_WATERMARKS = "checkpoint of high watermarks"
    PRODUCERS = "expiry of producers"


class Schedule:
    """When each task is next due.

    _due  by task
    """

    def __init__(self, now: int, daemon: DaemonSettings) -> None:
        delay = daemon.log_initial_task_delay_ms
        periods = _periods(daemon)
        delayed = {Task.RECOVERY_POINTS: delay, Task.START_OFFSETS: delay}
        if periods[Task.FLUSH]:
            delayed[Task.FLUSH] = delay
        self._due = {task: Due(now, delayed.get(task, period)) for task, period in periods.items()}

    def due(self, now: int, daemon: DaemonSettings) -> list[Task]:
        """The tasks whose time has come. Each is next due a period from now."""
        return [task for task, period in _periods(daemon).items() if self._due[task].has_come(now, period)]


def _periods(daemon: DaemonSettings) -> dict[Task, int]:
    flush = daemon.log_flush_scheduler_interval_ms
    return {
        # Kafka never looks for logs to flush unless told how often: a topic's flush.ms then has no effect.
        # Looking costs little, so here it has.
        Task.FLUSH: 0 if flush == MAX_INT64 else flush,
        Task.RECOVERY_POINTS: daemon.log_flush_offset_checkpoint_interval_ms,
        Task.START_OFFSETS: daemon.log_flush_start_offset_checkpoint_interval_ms,
        Task.HIGH_WATERMARKS: daemon.replica_high_watermark_checkpoint_interval_ms,
        Task.PRODUCERS: daemon.producer_id_expiration_check_interval_ms,
    }


def roll_waited(partitions: Iterable[Partition], now: int) -> int:
    """Seal segments that are older than `segment.ms`. Gives how many there were."""
    return sum(_attempt(partition, lambda log: int(log.roll_if_waited(now))) for partition in partitions)


def flush_rolled(partitions: Iterable[Partition]) -> int:
    """Bring segments that were sealed onto the disk. Gives how many partitions had some."""
    return sum(_attempt(partition, _flush_rolled) for partition in partitions)


def flush_due(partitions: Iterable[Partition], now: int) -> int:
    """Flush what `flush.ms` says, and segments that were sealed. Gives how many partitions had something."""

    def flush(log: Log) -> int:
        if not log.flush_is_due(now):
            return _flush_rolled(log)
        log.flush()
        return 1

    return sum(_attempt(partition, flush) for partition in partitions)


def remove_due(partitions: Iterable[Partition], now: int) -> int:
    """Remove the partitions' files whose delay is over, and give how many there were."""
    return sum(_attempt(partition, lambda log: log.remove_due(now)) for partition in partitions)


def _flush_rolled(log: Log) -> int:
    if not log.has_unflushed_roll:
        return 0
    log.flush_roll()
    return 1


def _attempt(partition: Partition, task: Callable[[Log], int]) -> int:
    """What the task gives. A partition that fails does not stop the others."""
    try:
        return task(partition.log)
    except ClosedError:
        # Deleted or closed meanwhile, or offline, which was said when it happened.
        return 0
    except OSError as error:
        logger.error(f"{partition.name}: cannot be kept: {error!r}")
        return 0
