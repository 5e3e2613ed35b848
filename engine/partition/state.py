"""The state of a partition's log: its parts, its offsets, and whether it is open.

Offsets are published in one step, so that readers never see a state in between.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from topicfs.engine.errors import (
    ClosedError,
    OffsetOutOfRangeError,
    ReadOnlyError,
)
from topicfs.engine.files.metadata import PartitionMetadata
from topicfs.engine.partition.chain import Chain
from topicfs.engine.partition.epochs import LeaderEpochs
from topicfs.engine.partition.offsets import LogOffsets
from topicfs.engine.producer.manager import ProducerStates
from topicfs.engine.record import MAX_INT64, NO_OFFSET, Clock
from topicfs.engine.segment.segment import Segment
from topicfs.engine.settings.topic import TopicSettings

logger = logging.getLogger(__name__)


class LogState:
    """The parts of one partition's log, which must agree, and the offsets that readers see.

    name              `<topic>-<number>`, for messages
    settings          settings of the topic; replaced in one step by `reconfigure`
    chain             the segments
    producers         producer state, for idempotence and transactions
    epochs            leader epochs and where each began
    metadata          the topic id
    offsets           offsets that readers see, published in one step
    recovery_point    everything below it is known to be on disk
    lone              no other replica has to acknowledge: the high watermark follows the end by itself
    leader_epoch      epoch that is written into batches appended here as leader
    last_flush_ms     when the log was last flushed, by the steady clock
    cuts              number of truncations: a read during one may have mixed two states
    failure           the error that took the log offline, None while it is not
    read_only         whether changes are forbidden
    promised          bytes reserved behind the end of the active segment: for accepted lines that wait to be
                      appended, and for unfinished lines
    lines_wait        whether some of that is reserved for whole lines, which are appended very soon
    lock              held during every change
    _flushing         held during a flush, taken before `lock`
    _unflushed_roll   base of the segment begun by the newest roll: what lies below it waits for a flush
    _cut              lowest end of a truncation since the last flush began
    _snapshots        producer snapshots that wait for a flush
    _published        wakes threads that wait for offsets; _waiting is their number
    _readers          see `register_reader`
    _queues           see `register_queue`
    """

    def __init__(
        self,
        name: str,
        settings: TopicSettings,
        clock: Clock,
        chain: Chain,
        producers: ProducerStates,
        epochs: LeaderEpochs,
        metadata: PartitionMetadata,
        offsets: LogOffsets,
        recovery_point: int,
        lone: bool,
        read_only: bool = False,
    ) -> None:
        self.name = name
        self.settings = settings
        self.clock = clock
        self.chain = chain
        self.producers = producers
        self.epochs = epochs
        self.metadata = metadata
        self.offsets = offsets
        self.recovery_point = recovery_point
        self.lone = lone
        self.read_only = read_only
        self.leader_epoch = epochs.latest_epoch or 0
        self.last_flush_ms = chain.steady()
        self.cuts = 0
        self.failure: Exception | None = None
        self.promised = 0
        self.lines_wait = False
        self.lock = threading.RLock()
        self._closed = False
        self._flushing = threading.RLock()
        self._unflushed_roll = NO_OFFSET
        self._cut = MAX_INT64
        self._snapshots: list[Path] = []
        self._published = threading.Condition()
        self._waiting = 0
        self._readers: tuple[Callable[[Sequence[Segment]], None], ...] = ()
        self._queues: tuple[Callable[[], None], ...] = ()

    def register_reader(self, before_removal: Callable[[Sequence[Segment]], None]) -> None:
        """Call `before_removal` with the segments that retention or compaction is about to remove from the list, so
        that the reader can pin those it still needs. It is called with and without the lock, and perhaps twice."""
        self._readers += (before_removal,)

    def register_queue(self, flush: Callable[[], None]) -> None:
        """Register a queue of lines that is flushed before other records are appended, because its lines came first.
        `flush` is called without the lock, and an error in it refuses the append."""
        self._queues += (flush,)

    def check_open(self) -> None:
        """Raise ClosedError if the log was closed or went offline."""
        if self.failure is not None:
            raise ClosedError(f"{self.name} is offline after an error: {self.failure}") from self.failure
        if self._closed:
            raise ClosedError(f"{self.name} is closed")

    def check_writable(self) -> None:
        """Raise ClosedError if the log was closed or went offline, and ReadOnlyError if it may not be changed."""
        self.check_open()
        if self.read_only:
            raise ReadOnlyError(f"{self.name}: opened read-only")

    @property
    def is_open(self) -> bool:
        """Return whether it can be read and appended to."""
        return self.failure is None and not self._closed

    @property
    def is_closed(self) -> bool:
        """Return whether it was deleted, or its store was closed."""
        return self._closed

    def _fail(self, error: Exception) -> None:
        logger.error(f"{self.name}: taken offline: {error}")
        self.failure = error

    def announce_removal(self, segments: Sequence[Segment]) -> None:
        """Tell the registered readers that retention or compaction is about to remove these segments from the list."""
        for before_removal in self._readers:
            before_removal(segments)

    def flush_queues(self) -> None:
        """Append the lines that wait, before somebody else appends other records."""
        for flush in self._queues:
            flush()

    @contextlib.contextmanager
    def _whole_or_offline(self) -> Iterator[None]:
        """Take the log offline if an error stops a change halfway. Memory and disk then no longer agree, and a later
        append would overlap what was not removed. Recovery uses the state on disk."""
        try:
            yield
        except OSError as error:
            self._fail(error)
            raise

    def _shut(self) -> None:
        self._closed = True
        with self._published:
            self._published.notify_all()

    # -- offsets --------------------------------------------------------------------------------------

    def publish(
        self, *, start: int | None = None, high_watermark: int | None = None, end: int | None = None
    ) -> None:
        """Publish new offsets to readers, all in one step. The caller holds the lock."""
        old = self.offsets
        new_end = old.end if end is None else end
        new_start = old.start if start is None else start
        mark = old.high_watermark if high_watermark is None else high_watermark
        mark = new_end if self.lone else min(max(mark, new_start), new_end)
        self.producers.on_high_watermark(mark)
        unstable = self.producers.first_unstable_offset
        stable = mark if unstable is None else min(max(unstable, new_start), mark)
        active = self.chain.active
        self.offsets = LogOffsets(new_start, stable, mark, new_end, active.base_offset, active.size)
        if self._waiting:
            with self._published:
                self._published.notify_all()

    def wait_for(self, offset: int, timeout: float) -> bool:
        """Wait until the stable offset is above `offset`, for at most `timeout` seconds. Return False if it is not.

        ClosedError if the log is closed during the wait."""
        if self.offsets.stable > offset:
            return True
        with self._published:
            self._waiting += 1
            try:
                # An append that published before `_waiting` was raised is seen here.
                self._published.wait_for(lambda: self.offsets.stable > offset or self._closed, timeout)
            finally:
                self._waiting -= 1
        self.check_open()
        return self.offsets.stable > offset

    def set_high_watermark(self, offset: int) -> None:
        """Set the high watermark, limited to the offsets of the log. It no longer follows the end by itself."""
        with self.lock:
            self.lone = False
            self.publish(high_watermark=offset)

    def raise_high_watermark(self, offset: int) -> None:
        """Raise the high watermark. A lower one changes nothing, one above the end is an error."""
        with self.lock:
            if offset > self.offsets.end:
                raise OffsetOutOfRangeError(
                    f"{self.name}: high watermark {offset} to set, the end is {self.offsets.end}"
                )
            self.set_high_watermark(max(offset, self.offsets.high_watermark))

    def become_leader(self, epoch: int) -> None:
        """Write this epoch into batches from now on."""
        with self.lock:
            self.check_writable()
            self.epochs.assign(epoch, self.offsets.end)
            self.leader_epoch = epoch

    def raise_start_offset(self, offset: int) -> bool:
        """Make `offset` the first one that may be read. Return False if it is not above the present one."""
        with self.lock:
            self.check_writable()
            if offset > self.offsets.high_watermark:
                raise OffsetOutOfRangeError(
                    f"{self.name}: start offset {offset} to set, the high watermark is "
                    f"{self.offsets.high_watermark}"
                )
            if offset <= self.offsets.start:
                return False
            self.epochs.truncate_from_start(offset)
            self.producers.on_start_offset(offset)
            self.publish(start=offset)
            logger.info(f"{self.name}: start offset raised to {offset}")
            return True
