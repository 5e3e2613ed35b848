"""Writing the remaining records of some segments into new ones. These are `.cleaned` until they replace the old
ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from topicfs.engine import batch as batches
from topicfs.engine.batch.build import write_header
from topicfs.engine.batch.columns import codec_of
from topicfs.engine.batch.compression import compress
from topicfs.engine.batch.table import Bytes, Longs
from topicfs.engine.cleaner.decompress import decompressed, refuse
from topicfs.engine.cleaner.offset_map import OffsetMap
from topicfs.engine.cleaner.producers import LiveProducers
from topicfs.engine.cleaner.transactions import Transactions
from topicfs.engine.errors import CorruptSegmentError, OffsetOverflowError
from topicfs.engine.files.atomic import sync_directory
from topicfs.engine.format.batch_header import CODEC_MASK, HEADER_SIZE
from topicfs.engine.format.paths import CLEANED_SUFFIX
from topicfs.engine.format.transaction_index import AbortedTransaction
from topicfs.engine.kernels import compact as compaction
from topicfs.engine.kernels.compact import GROWTH, RETAIN_EMPTY
from topicfs.engine.kernels.decode import GOOD, MIN_RECORD_SIZE
from topicfs.engine.kernels.hash import COMPRESSED, FULL
from topicfs.engine.kernels.scan import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    BASE_TIMESTAMP,
    COUNT,
    LAST_OFFSET,
    LEADER_EPOCH,
    MAX_TIMESTAMP,
    POSITION,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    SIZE,
)
from topicfs.engine.kernels.search import rising_rows
from topicfs.engine.partition.chain import Chain
from topicfs.engine.record import MAX_INT32
from topicfs.engine.segment.segment import Segment
from topicfs.engine.segment.segments import Segments

LARGEST_LOG: Final = MAX_INT32
"""The most bytes of a `.log`. More bytes go into another segment."""


@contextmanager
def pinned(segments: Sequence[Segment]) -> Iterator[None]:
    """Keep segments readable during the `with` block. ClosedError if one was removed before."""
    held: list[Segment] = []
    try:
        for segment in segments:
            segment.pin()
            held.append(segment)
        yield
    finally:
        for segment in held:
            segment.unpin()


def check_offsets(table: Longs, segment: Segment, before: int, end: int) -> None:
    """Refuse batches whose offsets do not rise above `before` and each other, reach `end`, where the next segment
    begins, or are further from the base than the segment may hold."""
    good = rising_rows(table, segment.base_offset, before)
    if table[max(good - 1, 0), LAST_OFFSET] >= end:
        row = table[int(np.argmax(table[:, LAST_OFFSET] >= end))]
        raise CorruptSegmentError(
            f"{segment.path}: batch at position {row[POSITION]}: expected offsets below the next segment's {end}, "
            f"found {row[LAST_OFFSET]}"
        )
    if good == len(table):
        return
    row = table[good]
    above = int(table[good - 1, LAST_OFFSET]) if good else before
    if row[BASE_OFFSET] > above:
        raise OffsetOverflowError(
            f"{segment.path}: batch at position {row[POSITION]}: expected offsets up to "
            f"{segment.base_offset + MAX_INT32}, found {row[LAST_OFFSET]}"
        )
    raise CorruptSegmentError(
        f"{segment.path}: batch at position {row[POSITION]}: expected an offset above {above}, "
        f"found {row[BASE_OFFSET]}"
    )


@dataclass(slots=True)
class RewriteCounts:
    """Numbers of a pass.

    bytes_read, records_read     totals of the segments that were rewritten
    bytes_written, records_kept  totals of the new segments
    invalid_records              records without a key; they are not kept
    """

    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    invalid_records: int = 0


@dataclass(slots=True)
class Rewrite:
    """One pass over a log, a group of segments at a time.

    chain         creates the new segments in its directory; they are not added to its list
    segments      segments of the log at the start of the pass; they tell where each one ends
    offsets       the offset map
    transactions  transactions of this pass
    producers     producers whose last batches must stay
    now, horizon  the time, and the delete horizon that tombstones get
    end           offset behind the round; the batch that ends there stays, even if only its header is left
    chunk         bytes that are read at once, and collected before they are written
    check         called between chunks; an error in it ends the pass
    throttle      called with each number of bytes that were read or written
    counts        totals of all groups
    parts         new segments of this group so far
    changed       number of batches of this group that were changed
    _out, _used   bytes to be written, and their number
    _keep         buffer with a byte for each record
    _aborted      index entries whose markers are not written yet
    """

    chain: Chain
    segments: Segments
    offsets: OffsetMap
    transactions: Transactions
    producers: LiveProducers
    now: int
    horizon: int
    end: int
    chunk: int
    check: Callable[[], None]
    throttle: Callable[[int], None]
    counts: RewriteCounts = field(default_factory=RewriteCounts)
    parts: list[Segment] = field(default_factory=list)
    changed: int = 0
    _out: Bytes = field(default_factory=lambda: np.empty(0, np.uint8))
    _used: int = 0
    _keep: Bytes = field(default_factory=lambda: np.empty(0, np.uint8))
    _aborted: list[AbortedTransaction] = field(default_factory=list)

    def group(self, sources: Sequence[Segment]) -> list[Segment]:
        """Return the new segments of a group, on disk and `.cleaned`. The caller owns them from here on.

        The list is empty if the group would not change. After an error no new segment is left."""
        self.changed = 0
        if not self._out.size:
            self._out = np.empty(2 * self.chunk, np.uint8)
        try:
            self._begin_part(sources[0].base_offset)
            with pinned(sources):
                for number, source in enumerate(sources):
                    self._read(source, sources[max(number - 1, 0)])
                self._flush(sources[-1])
                if len(sources) == 1 and self._is_unchanged(sources[0]):
                    return []
                self._end_part(sources[-1])
                # Their names must be durable too, before any of them changes: see Chain.replace.
                sync_directory(self.chain.directory)
                self.check()
            parts, self.parts = self.parts, []
            return parts
        finally:
            self._discard()

    def _discard(self) -> None:
        """Remove the new segments of this group that were not handed over."""
        parts, self.parts = self.parts, []
        self._used = 0
        self._aborted = []
        for part in parts:
            part.delete()

    def _is_unchanged(self, source: Segment) -> bool:
        return (
            not self.changed
            and len(self.parts) == 1
            and self.parts[0].size == source.size
            and self.parts[0].transactions.entries == source.transactions.entries
        )

    # -- reading --------------------------------------------------------------------------------------

    def _read(self, source: Segment, before: Segment) -> None:
        """Rewrite one segment. `before` is the segment that was rewritten before it, or this one itself if it is the
        first."""
        where = str(source.path)
        last, end = source.base_offset - 1, self.segments.end_of(source)
        for buffer, table in source.log.batches(chunk=self.chunk, reuse=True):
            self.check()
            self.throttle(buffer.size)
            check_offsets(table, source, last, end)
            last = int(table[-1, LAST_OFFSET])
            flags, aborted = self.transactions.judge(buffer, table, self.now, where)
            self._aborted += aborted
            self.producers.mark(table, flags)
            flags[table[:, LAST_OFFSET] == self.end - 1] |= RETAIN_EMPTY
            self.counts.bytes_read += buffer.size
            self.counts.records_read += int(table[:, COUNT].sum())
            room = buffer.size // MIN_RECORD_SIZE + 1
            if self._keep.size < room:
                self._keep = np.empty(room, np.uint8)
            self._compact(buffer, table, flags, where, before)
            if self._used >= self.chunk:
                self._flush(before)

    # -- deciding -------------------------------------------------------------------------------------

    def _compact(self, buffer: Bytes, table: Longs, flags: Bytes, where: str, before: Segment) -> None:
        origin = int(table[0, POSITION])
        first = 0
        while first < len(table):
            status, row, index, at, used, kept, invalid, changed = self._kernel(
                buffer, origin, table, first, flags, self._out, self._used, self._keep
            )
            if status == FULL and row == first and not self._used:
                one = table[row]
                self._out = np.empty(int(HEADER_SIZE + one[SIZE] + GROWTH * one[COUNT]), np.uint8)
                continue
            if status not in (GOOD, FULL, COMPRESSED):
                refuse(status, table[row], index, at, where)
            self._used = used
            self.counts.records_kept += kept
            self.counts.invalid_records += invalid
            self.changed += changed
            if status == FULL:
                self._flush(before)
            elif status == COMPRESSED:
                start = int(table[row, POSITION]) - origin
                whole = buffer[start : start + int(table[row, SIZE])]
                self._add(self._compact_compressed(whole, table[row], flags[row : row + 1], where), before)
                row += 1
            first = row

    def _kernel(
        self,
        buffer: Bytes,
        origin: int,
        table: Longs,
        first: int,
        flags: Bytes,
        out: Bytes,
        used: int,
        keep: Bytes,
    ) -> tuple[int, int, int, int, int, int, int, int]:
        offsets = self.offsets
        result: tuple[int, int, int, int, int, int, int, int] = compaction.compact(
            buffer,
            origin,
            table,
            first,
            flags,
            self.now,
            self.horizon,
            offsets.latest_offset,
            offsets.secret,
            offsets.slots,
            keep,
            offsets.ring,
            offsets.outdated,
            offsets.base,
            out,
            used,
        )
        return result

    def _compact_compressed(self, whole: Bytes, row: Longs, flags: Bytes, where: str) -> Bytes:
        """Return what remains of a compressed batch, with the same codec."""
        plain, one = decompressed(whole, row, int(row[POSITION]), where)
        most = plain.size // MIN_RECORD_SIZE + 1
        out = np.empty(HEADER_SIZE + plain.size + GROWTH * most, np.uint8)
        status, _, index, at, used, kept, invalid, changed = self._kernel(
            plain, 0, one, 0, flags, out, 0, np.empty(most, np.uint8)
        )
        if status != GOOD:
            refuse(status, row, index, at, where)
        self.counts.records_kept += kept
        self.counts.invalid_records += invalid
        self.changed += changed
        if not kept:
            return out[:used]
        return _recompressed(out[:used], row) if changed else whole

    # -- writing --------------------------------------------------------------------------------------

    def _add(self, batch: Bytes, before: Segment) -> None:
        if batch.size > self._out.size - self._used:
            self._flush(before)
        if batch.size > self._out.size:
            self._out = np.empty(batch.size, np.uint8)
        self._out[self._used : self._used + batch.size] = batch
        self._used += batch.size

    def _flush(self, before: Segment) -> None:
        """Write the collected bytes."""
        data, self._used = self._out[: self._used], 0
        if not data.size:
            return
        table = batches.scan(data, check=False)
        while len(table):
            part = self.parts[-1]
            ends = table[:, SIZE].cumsum()
            fitting = int(np.searchsorted(ends, LARGEST_LOG - part.size, "right"))
            if fitting:
                size = int(ends[fitting - 1])
                part.append(data[:size], table[:fitting])
                self._index_aborted(part, int(table[fitting - 1, LAST_OFFSET]))
                data, table = data[size:], table[fitting:]
                self.counts.bytes_written += size
                self.throttle(size)
            if len(table):
                self._end_part(before)
                self._begin_part(int(table[0, BASE_OFFSET]))

    def _index_aborted(self, part: Segment, up_to: int) -> None:
        """Write the index entries of the aborted transactions whose markers are now in the part."""
        while self._aborted and self._aborted[0].last_offset <= up_to:
            part.transactions.append(self._aborted.pop(0))

    def _begin_part(self, base_offset: int) -> None:
        self.parts.append(self.chain.create(base_offset, CLEANED_SUFFIX))

    def _end_part(self, source: Segment) -> None:
        """Write the part to disk, with the file times of the last segment that it was made from."""
        part = self.parts[-1]
        part.seal()
        times = os.stat(source.path)
        for path in (part.log.path, part.offset_index.path, part.time_index.path):
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        if len(self.parts) > 1:
            part.date_behind(self.parts[-2])
        part.flush()
        part.transactions.flush()


def _recompressed(plain: Bytes, row: Longs) -> Bytes:
    """Compress a plain batch with its former codec. `row` describes the batch before it was rewritten."""
    one = batches.scan(plain, check=False)[0]
    stream = compress(codec_of(row), plain[HEADER_SIZE:])
    batch = np.empty(HEADER_SIZE + stream.size, np.uint8)
    batch[HEADER_SIZE:] = stream
    return write_header(
        batch,
        base_offset=int(one[BASE_OFFSET]),
        leader_epoch=int(one[LEADER_EPOCH]),
        attributes=int(one[ATTRIBUTES]) | (int(row[ATTRIBUTES]) & CODEC_MASK),
        last_offset_delta=int(one[LAST_OFFSET] - one[BASE_OFFSET]),
        base_timestamp=int(one[BASE_TIMESTAMP]),
        max_timestamp=int(one[MAX_TIMESTAMP]),
        producer_id=int(one[PRODUCER_ID]),
        producer_epoch=int(one[PRODUCER_EPOCH]),
        base_sequence=int(one[BASE_SEQUENCE]),
        count=int(one[COUNT]),
    ).data
