"""The end of a log by its files, where no daemon tells it.

It is behind the last complete batch, and the stable offset is found as a recovery would find it, from the newest
producer snapshot on. After a clean stop that snapshot is at the end, and a running daemon writes one at each roll. So
at most the headers of the active segment are read, and a stream reads only those that are new.

By the files a record is seen as soon as it is written, which may be a moment before the daemon shows it. Bytes
behind a failed append or a power cut, which a recovery would cut off, are not detected here: a task that reads them
fails on their checksum, and says where.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from topicfs.engine.batch.marker import marker
from topicfs.engine.batch.table import Longs
from topicfs.engine.format.batch_header import ABORT, CONTROL, TRANSACTIONAL
from topicfs.engine.format.paths import snapshot_file
from topicfs.engine.format.transaction_index import AbortedTransaction
from topicfs.engine.kernels.scan import ATTRIBUTES, BASE_OFFSET, LAST_OFFSET, POSITION, PRODUCER_ID, SIZE
from topicfs.engine.producer import snapshot
from topicfs.engine.record import now_ms
from topicfs.engine.segment.batch_file import BatchFile
from topicfs.engine.segment.descriptors import Descriptors
from topicfs.engine.segment.segment import Segment
from topicfs.engine.segment.settings import SegmentSettings
from topicfs.engine.unlocked.bounds import Bounds
from topicfs.engine.unlocked.files import Files, offset_index


@dataclass(slots=True)
class Tail:
    """The known end of a log, as far as it was read.

    base, position  base of the segment, and position in it, where reading goes on
    end             offset behind the last batch that was read
    open            first offset of each open transaction, by producer
    aborted         aborted transactions whose end was read
    """

    base: int
    position: int
    end: int
    open: dict[int, int] = field(default_factory=dict)
    aborted: list[AbortedTransaction] = field(default_factory=list)

    @property
    def stable(self) -> int:
        """Return the stable offset. Every open transaction begins at or above it."""
        return min(self.open.values(), default=self.end)


def seen(files: Files, start: int, tail: Tail | None = None) -> tuple[Bounds, Tail | None]:
    """Return the bounds from the files and a start offset, which may be below them, and the tail with which the next
    call can begin."""
    if not files.bases:
        return Bounds(start, start), None
    start = max(start, files.bases[0])
    followed = _followed(files, tail)
    return Bounds(start, max(start, followed.stable), tuple(followed.aborted)), followed


def _followed(files: Files, tail: Tail | None) -> Tail:
    """Return the tail, read on to the end of the last segment."""
    if (
        tail is None
        or tail.base not in files.bases
        or tail.position > files.sizes[files.bases.index(tail.base)]
    ):
        tail = _begun(files)
    for place in range(files.bases.index(tail.base), len(files.bases)):
        base = files.bases[place]
        if base != tail.base:
            tail.base, tail.position, tail.end = base, 0, max(tail.end, base)
        _follow(files, tail, files.sizes[place])
    return tail


def _follow(files: Files, tail: Tail, size: int) -> None:
    if tail.position >= size:
        return
    segment = Segment(files.directory, tail.base, SegmentSettings(), now_ms, Descriptors())
    try:
        for table in segment.log.headers(tail.position, size, growing=True):
            new = table[:, LAST_OFFSET] >= tail.end  # batches below the snapshot's offset are skipped
            for row in table[new & (table[:, ATTRIBUTES] & (CONTROL | TRANSACTIONAL) != 0)]:
                _take(tail, segment.log, row)
            tail.end = max(tail.end, int(table[-1, LAST_OFFSET]) + 1)
            tail.position = int(table[-1, POSITION] + table[-1, SIZE])
    finally:
        segment.abandon()


def _take(tail: Tail, log: BatchFile, row: Longs) -> None:
    producer = int(row[PRODUCER_ID])
    if not row[ATTRIBUTES] & CONTROL:
        tail.open.setdefault(producer, int(row[BASE_OFFSET]))
        return
    ended = marker(*log.batch_at(int(row[POSITION]), int(row[SIZE])))
    if ended is not None:
        first, last = tail.open.pop(producer, None), int(row[LAST_OFFSET])
        if ended.kind == ABORT and first is not None:
            stable = min(tail.open.values(), default=last + 1)
            tail.aborted.append(AbortedTransaction(producer, first, last, stable))


def _begun(files: Files) -> Tail:
    """Return the tail to begin with: at the newest snapshot, or else at the start of the last segment."""
    last = files.bases[-1]
    usable = [offset for offset in files.snapshots if offset >= files.bases[0]]
    if not usable:
        return Tail(last, 0, last)
    offset = usable[-1]
    base = files.bases[files.floor(offset)]
    index = offset_index(files.directory, base)
    below = index.count_up_to(0, offset - 1 - base)
    position = index.at(below - 1)[1] if below else 0
    entries = snapshot.read(files.directory / snapshot_file(offset))
    begun = {each.producer_id: each.current_transaction_first_offset for each in entries}
    return Tail(base, position, offset, {each: first for each, first in begun.items() if first >= 0})
