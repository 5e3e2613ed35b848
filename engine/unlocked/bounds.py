"""The start and end of a partition for a reader. Only committed records are read, as through the mount.

If a query names a mount, attributes of the partition's directory there give both. Otherwise the files do: the end is
behind the last complete batch, and the stable offset is found as a recovery would find it, from the newest producer
snapshot on. After a clean stop that snapshot is at the end, and a running daemon writes one at each roll. So at most
the headers of the active segment are read, and a stream reads only those that are new.

By the files a record is seen as soon as it is written, which may be a moment before the daemon shows it. Bytes
behind a failed append or a power cut, which a recovery would cut off, are not detected here: a task that reads them
fails on their checksum, and says where.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from topicfs.engine.files.checkpoint import OffsetCheckpoint
from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.format.batch_header import (
    ABORT,
    CONTROL,
    TRANSACTIONAL,
    BatchHeader,
    headers,
    marker_kind,
)
from topicfs.engine.format.paths import LOG_STARTS, log_file, snapshot_file
from topicfs.engine.format.producer_snapshot import open_transactions
from topicfs.engine.format.transaction_index import AbortedTransaction
from topicfs.engine.mount_attributes import FIRST_OFFSET, NEXT_OFFSET
from topicfs.engine.unlocked.files import Files, offset_index
from topicfs.engine.unlocked.place import Place


@dataclass(frozen=True, slots=True)
class Bounds:
    """The readable part of a partition.

    start    first offset
    end      offset behind the last one; every open transaction begins at or above it
    aborted  transactions that ended so recently that no index has them yet
    """

    start: int
    end: int
    aborted: tuple[AbortedTransaction, ...] = ()


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


Tails = dict[tuple[PartitionKey, str | None], Tail]
"""The known ends of logs, by partition and topic id: a topic that is made again has another log."""


def told(place: Place, topic: str, number: int) -> Bounds | None:
    """Return the bounds that the daemon gives, or None without a daemon. Call this before files are listed, because
    they may have more by then."""
    if place.mount is None:
        return None
    directory = place.mount / f"{topic}-{number}"
    try:
        return Bounds(int(os.getxattr(directory, FIRST_OFFSET)), int(os.getxattr(directory, NEXT_OFFSET)))
    except OSError:  # removed, not readable, or the daemon has ended: then the files are used
        return None


def seen(
    place: Place, files: Files, topic: str, number: int, tail: Tail | None = None
) -> tuple[Bounds, Tail | None]:
    """Return the bounds from the files, and the tail with which the next call can begin."""
    starts = OffsetCheckpoint(place.logs / LOG_STARTS).read()
    start = starts.get((topic, number), 0)
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
    descriptor = os.open(files.directory / log_file(tail.base), os.O_RDONLY | os.O_CLOEXEC)
    try:
        for position, head in headers(descriptor, tail.position, size):
            if head.last_offset >= tail.end:  # batches below the snapshot's offset are skipped
                _take(tail, descriptor, position, head)
                tail.end = head.last_offset + 1
            tail.position = position + head.size
    finally:
        os.close(descriptor)


def _take(tail: Tail, descriptor: int, position: int, head: BatchHeader) -> None:
    if not head.attributes & CONTROL:
        if head.attributes & TRANSACTIONAL:
            tail.open.setdefault(head.producer_id, head.base_offset)
        return
    kind = marker_kind(descriptor, position, head)
    if kind is not None:
        first = tail.open.pop(head.producer_id, None)
        if kind == ABORT and first is not None:
            stable = min(tail.open.values(), default=head.last_offset + 1)
            tail.aborted.append(AbortedTransaction(head.producer_id, first, head.last_offset, stable))


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
    path = files.directory / snapshot_file(offset)
    return Tail(base, position, offset, open_transactions(path, path.read_bytes()))
