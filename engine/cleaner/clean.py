"""One clean of one log: its dirty part is read into an offset map, and then the log up to there is rewritten.

Of each key in the map only the record with the highest offset stays. Rewritten segments replace the old ones a group
at a time, so that little space is needed, and groups that were done before an error stay done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from topicfs.engine.cleaner.grouping import grouped
from topicfs.engine.cleaner.offset_map import OffsetMap
from topicfs.engine.cleaner.producers import LiveProducers
from topicfs.engine.cleaner.rewrite import Rewrite, RewriteCounts, check_offsets, pinned
from topicfs.engine.cleaner.transactions import Transactions
from topicfs.engine.errors import (
    CleaningAbortedError,
    ClosedError,
    CorruptError,
    OffsetOutOfRangeError,
    OffsetOverflowError,
)
from topicfs.engine.format.transaction_index import AbortedTransaction
from topicfs.engine.kernels.compact import DISCARD
from topicfs.engine.kernels.scan import LAST_OFFSET
from topicfs.engine.partition.cutting import replace, split_overflowing
from topicfs.engine.partition.log import Log
from topicfs.engine.partition.reader import aborted_between
from topicfs.engine.partition.snapshot import Snapshot
from topicfs.engine.record import MAX_INT64
from topicfs.engine.segment.segment import Segment
from topicfs.engine.settings.topic import TopicSettings

logger = logging.getLogger(__name__)

SMALLEST_CHUNK = 4096


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The result of a clean.

    end_offset            below it every key has one record; the next clean begins here
    bytes_read            bytes of the segments that were rewritten, without the first reading into the map
    bytes_written         bytes of the new segments
    records_read, records_kept
    invalid_records       records without a key; they were removed
    segments_before, segments_after
    map_utilization       part of the map's slots that was used, 0 to 1
    """

    end_offset: int
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    invalid_records: int = 0
    segments_before: int = 0
    segments_after: int = 0
    map_utilization: float = 0.0

    @classmethod
    def of(cls, counts: RewriteCounts, end: int, before: int, after: int, utilization: float = 0.0) -> Self:
        """Return the result of a pass up to the offset `end`, with the numbers of segments before and after."""
        return cls(
            end_offset=end,
            bytes_read=counts.bytes_read,
            bytes_written=counts.bytes_written,
            records_read=counts.records_read,
            records_kept=counts.records_kept,
            invalid_records=counts.invalid_records,
            segments_before=before,
            segments_after=after,
            map_utilization=utilization,
        )


@dataclass(frozen=True, slots=True)
class Work:
    """A log at the start of a clean.

    log, settings, snapshot, producers  the log, and its state at that moment
    sources                             segments that may be rewritten: sealed, and completely below `uncleanable`
    uncleanable                         offset behind the last of them
    check                               see Cleaner.clean
    """

    log: Log
    settings: TopicSettings
    snapshot: Snapshot
    producers: LiveProducers
    sources: tuple[Segment, ...]
    uncleanable: int
    check: Callable[[], None]

    @classmethod
    def take(cls, log: Log, first_uncleanable: int, check: Callable[[], None]) -> Work:
        with log.lock:
            log.check_open()
            taken = log.snapshot
            segments = taken.segments
            ends = [segment.base_offset for segment in segments][1:]
            sources = tuple(
                segment
                for segment, end in zip(segments.non_active, ends, strict=True)
                if end <= first_uncleanable
            )
            uncleanable = ends[len(sources) - 1] if sources else segments.first.base_offset
            producers = LiveProducers.of(log.producers.producers)
            return cls(log, log.settings, taken, producers, sources, uncleanable, check)

    def transactions(self, first: Segment, start: int) -> Transactions:
        """Return the transactions that overlap the offsets from `start` to the uncleanable part."""
        return Transactions(self.aborted(first, start))

    def aborted(self, first: Segment, start: int) -> Iterator[AbortedTransaction]:
        """Return the aborted transactions from `start` to the uncleanable part."""
        return aborted_between(self.snapshot.segments, first, start, self.uncleanable)

    def groups(self, sources: Sequence[Segment]) -> list[list[Segment]]:
        """Return groups of these segments. Each group becomes one segment."""
        settings = self.settings
        return grouped(sources, self.uncleanable, settings.segment_bytes, settings.segment_index_bytes)

    def horizon(self, now: int) -> int:
        """Return the delete horizon that tombstones get."""
        return min(now + self.settings.delete_retention_ms, MAX_INT64)

    def replace(self, group: Sequence[Segment], parts: Sequence[Segment]) -> None:
        """Replace a group by its new segments. If the log refuses that, remove the new segments."""
        try:
            replace(self.log, group, parts, self.snapshot)
        except (CleaningAbortedError, ClosedError):
            # The log refuses before it changes anything. After any other error the log itself tracks the new segments.
            for part in parts:
                part.delete()
            raise


class Cleaner:
    """The tools of one cleaner thread, which cleans logs one after the other.

    offsets   the offset map; empty between cleans
    chunk     bytes that are read at once: half of the I/O buffer, the other half is for writing
    throttle  called with each number of bytes that were read or written; may sleep
    """

    __slots__ = ("chunk", "offsets", "throttle")

    def __init__(self, offsets: OffsetMap, chunk: int, throttle: Callable[[int], None]) -> None:
        self.offsets = offsets
        self.chunk = chunk
        self.throttle = throttle

    @classmethod
    def create(
        cls,
        memory: int,
        load_factor: float,
        io_buffer: int,
        throttle: Callable[[int], None],
        secret: bytes,
    ) -> Cleaner:
        """Return a cleaner with so many bytes for its offset map and for its I/O buffers: one thread's share of
        both.

        ValueError if the map would not hold two keys. `secret` is 16 random bytes."""
        offsets = OffsetMap.create(memory, load_factor, secret)
        return cls(offsets, max(io_buffer // 2, SMALLEST_CHUNK), throttle)

    def clean(
        self, log: Log, first_dirty: int, first_uncleanable: int, now: int, check: Callable[[], None]
    ) -> Cleaned:
        """Clean the log from `first_dirty` on, as far as the map reaches, and below `first_uncleanable`.

        `check` is called between chunks, and before segments are replaced. An error in it ends the clean.
        CleaningAbortedError if the log was cut, closed or split in the meantime. After any error the log is
        unchanged, except for groups of segments that were replaced before. The clean is then started again from the
        same offset."""
        work = Work.take(log, first_uncleanable, check)
        try:
            return self._clean(work, first_dirty, now)
        except ClosedError as error:
            raise CleaningAbortedError(
                f"{log.name}: closed, or cut, while it was cleaned: {error}"
            ) from error
        except OffsetOverflowError as error:
            if not split_overflowing(log, work.sources):
                raise  # otherwise this clean would be started again and again, and no other
            raise CleaningAbortedError(f"{log.name}: a segment had to be split: {error}") from error
        except (CorruptError, OffsetOutOfRangeError) as error:
            if log.snapshot.cuts == work.snapshot.cuts:
                raise
            raise CleaningAbortedError(f"{log.name}: cut while it was cleaned: {error}") from error
        finally:
            self.offsets.clear()

    def _clean(self, work: Work, first_dirty: int, now: int) -> Cleaned:
        floor = work.snapshot.segments.floor(first_dirty) or work.snapshot.segments.first
        dirty = [each for each in work.sources if each.base_offset >= floor.base_offset]
        if not dirty:
            return Cleaned(first_dirty)
        self._fill(work, dirty, first_dirty)
        end = max(first_dirty, self.offsets.latest_offset + 1)
        sources = [each for each in work.sources if each.base_offset < end]
        # What makes older records go is on disk before they do: power may fail between two groups, or behind the last.
        work.log.flush(end)
        rewrite = Rewrite(
            chain=work.log.chain,
            segments=work.snapshot.segments,
            offsets=self.offsets,
            transactions=work.transactions(sources[0], sources[0].base_offset),
            producers=work.producers,
            now=now,
            horizon=work.horizon(now),
            end=end,
            chunk=self.chunk,
            check=work.check,
            throttle=self.throttle,
        )
        after = 0
        for group in work.groups(sources):
            parts = rewrite.group(group)
            if parts:
                work.replace(group, parts)
            after += len(parts) or 1
        return Cleaned.of(rewrite.counts, end, len(sources), after, self.offsets.utilization)

    def _fill(self, work: Work, dirty: Sequence[Segment], start: int) -> None:
        """Read the dirty part into the map, as far as it fits."""
        transactions = work.transactions(dirty[0], start)
        self.offsets.expect(start, work.uncleanable - start)
        for segment in dirty:
            with pinned((segment,)):
                if not self._fill_from(
                    segment, work.snapshot.segments.end_of(segment), start, transactions, work.check
                ):
                    logger.info(
                        f"{work.log.name}: the offset map is full at offset {self.offsets.latest_offset}"
                    )
                    return
            # There may be a gap from the last batch to the next segment: it counts as read too.
            self.offsets.latest_offset = work.snapshot.segments.end_of(segment) - 1

    def _fill_from(
        self, segment: Segment, end: int, start: int, transactions: Transactions, check: Callable[[], None]
    ) -> bool:
        """Read one segment, with offsets below `end`, into the map. Return False if the map became full."""
        check()
        found = segment.position_of(start)
        if found is None:
            return True
        where = str(segment.path)
        last = segment.base_offset - 1
        for buffer, table in segment.log.batches(found[0], chunk=self.chunk, reuse=True):
            check()
            self.throttle(buffer.size)
            check_offsets(table, segment, last, end)
            last = int(table[-1, LAST_OFFSET])
            # The time does not matter here: only the flags of aborted batches are used.
            flags, _ = transactions.judge(buffer, table, 0, where)
            if not self.offsets.put_batches(buffer, table, flags & np.uint8(DISCARD), start, where):
                return False
        return True
