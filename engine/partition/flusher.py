"""Writing a log to disk, and the recovery point, below which everything is known to be there."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager

from topicfs.engine.files.atomic import sync_directory
from topicfs.engine.partition.chain import Chain
from topicfs.engine.producer import snapshot
from topicfs.engine.producer.manager import ProducerStates
from topicfs.engine.record import MAX_INT64, NO_OFFSET
from topicfs.engine.segment.segment import Segment


class Flusher:
    """Flushes the segments of a log, with its producer snapshots and its directory.

    fsync runs outside the log's lock: appends go on in the meantime, and only another flush waits.

    point          the recovery point
    last_ms        when the log was last flushed, by the steady clock
    lock           held during a flush, taken before the lock of the log
    _log_lock      the lock of the log
    _rolled        base of the segment begun by the newest roll: what lies below it waits for a flush
    _cut           lowest end of a truncation since the last flush began
    _producers     the producers, whose snapshots wait for a flush
    """

    def __init__(
        self, chain: Chain, producers: ProducerStates, log_lock: AbstractContextManager[bool], point: int
    ) -> None:
        self.point = point
        self.last_ms = chain.steady()
        self.lock = threading.RLock()
        self._chain = chain
        self._log_lock = log_lock
        self._rolled = NO_OFFSET
        self._cut = MAX_INT64
        self._producers = producers

    @property
    def has_rolled(self) -> bool:
        """Return whether sealed segments exist that no flush has covered."""
        return self._rolled > self.point

    @property
    def sealed_end(self) -> int:
        """Return the offset below which all records lie in sealed segments, as of the newest roll."""
        return self._rolled

    def note_roll(self, base: int) -> None:
        """Note that a segment begins at `base`. The caller holds the log's lock."""
        self._rolled = base

    def note_cut(self, end: int) -> None:
        """Note that the log ends at `end` from now on. The caller holds the log's lock."""
        self.point = min(self.point, end)
        self._cut = min(self._cut, end)
        self._rolled = min(self._rolled, end)

    def begin(self) -> None:
        """Note truncations from now on. The caller holds `lock`, and then asks the log for its end."""
        self._cut = MAX_INT64

    def flush(self, target: int, with_active: bool, advance: bool = True) -> None:
        """Flush everything below `target`. `with_active` includes an active segment that is empty, so that its index
        files exist afterwards. Without `advance` the recovery point stays. The caller holds `lock`."""
        if target <= self.point and not with_active:
            return
        self._sync(self.point, target, with_active)
        with self._log_lock:
            # Records that were cut off and appended again in the meantime are not on disk.
            if advance:
                self.point = max(self.point, min(target, self._cut))
            self.last_ms = self._chain.steady()

    def _sync(self, start: int, end: int, with_active: bool) -> None:
        with self._log_lock:
            flushed = self._between(start, end, with_active)
            for segment in flushed:
                if segment.appender is not None:
                    # Index files are created here, because only the holder of the lock may create and cut them.
                    segment.appender.trim_indexes()
            # No recovery looks again at those that lie below the recovery point, so they come onto the disk before it.
            waiting, self._producers.unsynced = self._producers.unsynced, []
        try:
            for path in waiting:
                snapshot.flush(path)
            for segment in flushed:
                self._chain.sync(segment)
            if any(segment.base_offset >= start for segment in flushed):
                sync_directory(self._chain.directory)
        except OSError:
            with self._log_lock:
                self._producers.unsynced[:0] = waiting
            raise

    def _between(self, start: int, end: int, with_active: bool) -> list[Segment]:
        segments = self._chain.segments
        floor = segments.floor(start)
        return [
            segment
            for segment in segments.from_base(start if floor is None else floor.base_offset)
            if segment.base_offset < end or (with_active and segment is segments.last)
        ]
