"""Recovery checks segments after a crash, batch by batch, and cuts off what is not proven good."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from topicfs.engine.batch.table import Bytes, Longs
from topicfs.engine.errors import CorruptError, CorruptIndexError, InvalidOffsetError, OffsetOverflowError
from topicfs.engine.files.atomic import sync_directory
from topicfs.engine.format.batch_header import CONTROL, TRANSACTIONAL
from topicfs.engine.format.transaction_index import AbortedTransaction
from topicfs.engine.kernels.scan import ATTRIBUTES, BASE_OFFSET, LEADER_EPOCH, POSITION, PRODUCER_ID
from topicfs.engine.partition.chain import Chain
from topicfs.engine.partition.epochs import LeaderEpochs
from topicfs.engine.partition.replay import rebuild, replay, take_snapshot_where_there_is_room
from topicfs.engine.partition.split import split
from topicfs.engine.producer.manager import ProducerStates
from topicfs.engine.segment.batch_file import CHUNK
from topicfs.engine.segment.segment import Segment

log = logging.getLogger(__name__)

_MOST_ENTRIES: Final = 1000
"""Entries of a transaction index that are compared with the log when it is loaded: about 60 us each."""

_BEFORE: Final = 1000
"""Records before a transaction's first one that are searched for an earlier record of the same transaction."""


@dataclass(slots=True)
class Recovery:
    """The data that a recovery of segments needs, and keeps from one segment to the next.

    chain, epochs  the segments and leader epochs of the partition
    start          the partition's start offset, as far as it is known
    expiration_ms  after this time an idle producer is forgotten
    delay_ms       delay before removed files are deleted
    producers      producer state at the end of the last segment that was recovered, from the recovery point on
    _scratch       the same of segments that are recovered by themselves: it only reads snapshots
    """

    chain: Chain
    epochs: LeaderEpochs
    start: int
    expiration_ms: int
    delay_ms: int
    producers: ProducerStates | None = None
    _scratch: ProducerStates | None = None

    def from_offset(self, recovery_point: int) -> None:
        """Recover the segments from the one that holds the recovery point on. If a segment has to be cut, all later
        segments are removed: only compaction may leave holes in a log."""
        floor = self.chain.segments.floor(recovery_point)
        waiting = list(self.chain.segments.from_base(floor.base_offset if floor else 0))
        self.producers = producers = ProducerStates.open(self.chain.directory, self.expiration_ms)
        while waiting:
            segment = waiting.pop(0)
            waiting[:0] = self._recover(segment, producers, self._remove_behind)
            waiting = [each for each in waiting if each in self.chain.segments]
        if floor is not None and floor.base_offset == recovery_point:
            self._end_times(recovery_point)

    def _end_times(self, end: int) -> None:
        """Complete the time index of the segment that ends at the recovery point. It was flushed while it was active,
        and sealed afterwards: its last entry may not be on the disk."""
        segment = self.chain.segments.lower(end)
        if segment is None:
            return
        finder = segment.finder
        # What is damaged is told when it is read.
        with contextlib.suppress(CorruptError):
            latest, last = finder.latest()[0], finder.time_index.last_entry[0]
            if latest > last and finder.mend(
                finder.time_index.path, f"its last time is {last}, not {latest}"
            ):
                segment.keep_mended()

    def single(self, segment: Segment) -> None:
        """Recover one segment by itself. Later segments stay, and all snapshots: those below the recovery point are on
        disk, and new ones in their place would not be."""
        if self._scratch is None:
            self._scratch = ProducerStates.look(self.chain.directory, self.expiration_ms)
        for part in self._recover(segment, self._scratch, lambda _: None):
            self.single(part)

    def taken(self) -> list[Path]:
        """Return the snapshots that were taken. They are not fsynced."""
        return [] if self.producers is None else self.producers.unsynced

    def _recover(
        self, segment: Segment, producers: ProducerStates, before_cut: Callable[[Segment], None]
    ) -> list[Segment]:
        """Recover one segment. If it has to be split, return the parts, which the caller has to recover.

        `before_cut` is called before bytes are cut off. In the other order, a crash in between would leave a segment
        that seems complete, and the later segments would stay."""
        aborted = bytearray()
        try:
            self._check(segment, producers, before_cut, aborted)
        except OffsetOverflowError:
            # The parts are recovered by themselves: what the file says of the whole is not needed.
            segment.transactions.hold(bytes(aborted))
            return split(self.chain, segment, self.delay_ms, before_cut)
        except InvalidOffsetError as error:
            before_cut(segment)
            size = segment.size
            segment.truncate_to(segment.base_offset)
            segment.write_rebuilt(bytearray())
            log.warning(f"{segment.path}: all of its {size} bytes cut off, offsets are out of order: {error}")
        return []

    def _remove_behind(self, segment: Segment) -> None:
        """Remove the segments behind this one, with their snapshots."""
        later = tuple(s for s in self.chain.segments if s.base_offset > segment.base_offset)
        if not later:
            return
        log.warning(
            f"{self.chain.directory.name}: {len(later)} segments with {sum(s.size for s in later)} bytes behind "
            f"the cut in segment {segment.base_offset} are removed, from offset {later[0].base_offset} on"
        )
        self.chain.remove(later, self.delay_ms)
        if self.producers is not None:
            for each in later:
                renamed = self.producers.mark_snapshot_for_deletion(each.base_offset)
                if renamed is not None:
                    self.chain.doom_file(renamed, self.delay_ms)
        # Names may be saved after contents, and the next flush may leave out the directory.
        sync_directory(self.chain.directory)

    def _check(
        self,
        segment: Segment,
        producers: ProducerStates,
        before_cut: Callable[[Segment], None],
        aborted: bytearray,
    ) -> None:
        """Check every batch of a segment, rebuild its three indexes, and update epochs and producers to its end. The
        entries of the transaction index gather in `aborted`."""
        chain = self.chain
        base = segment.base_offset
        rebuild(chain, producers, self.start, base, base, chain.clock())

        def visit(buffer: Bytes, table: Longs) -> None:
            assign_recovered(self.epochs, table)
            for entry in replay(producers, buffer, table, int(table[0, POSITION])):
                aborted.extend(entry.to_bytes())

        segment.recover(visit, lambda _: before_cut(segment), aborted)
        take_snapshot_where_there_is_room(producers)


def epoch_changes(table: Longs) -> list[tuple[int, int]]:
    """Return leader epoch and base offset of each batch whose epoch differs from the one before. Batches without an
    epoch are left out."""
    if len(table) == 1:
        epoch = int(table[0, LEADER_EPOCH])
        return [(epoch, int(table[0, BASE_OFFSET]))] if epoch >= 0 else []
    epochs = table[:, LEADER_EPOCH]
    first = np.ones(len(table), np.bool_)
    first[1:] = epochs[1:] != epochs[:-1]
    first &= epochs >= 0
    return [(epoch, base) for epoch, base in table[first][:, (LEADER_EPOCH, BASE_OFFSET)].tolist()]


def assign_recovered(epochs: LeaderEpochs, table: Longs) -> None:
    """Record the leader epochs of batches that a recovery found, unless they are known: an assignment removes all
    epochs behind it, and of a segment that is recovered by itself nobody would find them again. The first one may have
    begun earlier, in a segment that nobody looks at."""
    changes = epoch_changes(table)
    if all(epochs.epoch_for_offset(offset) == epoch for epoch, offset in changes):
        return
    for known in epochs.entries:
        if changes and known.epoch == changes[0][0] and known.start_offset < changes[0][1]:
            changes[0] = known
    epochs.assign_where_there_is_room(changes)


def rebuild_epochs(chain: Chain, epochs: LeaderEpochs) -> None:
    """Read the leader epochs from the headers of all batches, because the checkpoint is damaged."""
    log.warning(f"{epochs.path}: rebuilt from the batches of {len(chain.segments)} segments")
    for segment in chain.segments:
        for _, table in segment.finder.sound_batches(segment.base_offset):
            epochs.assign_where_there_is_room(epoch_changes(table))


def transaction_index_is_sound(segment: Segment) -> bool:
    """Return whether the segment's index of aborted transactions can be read and fits the log."""
    try:
        segment.transactions.sanity_check()
        for entry in segment.transactions.all()[-_MOST_ENTRIES:]:
            _check_entry(segment, entry)
    except CorruptIndexError as error:
        log.warning(f"{segment.path}: its transaction index is rebuilt: {error}")
        return False
    return True


def _check_entry(segment: Segment, entry: AbortedTransaction) -> None:
    """Raise CorruptIndexError if the log contradicts an entry.

    The log does so by another batch at the offset of the marker or of the first batch, or by a batch of the same
    transaction shortly before that. Data that is damaged, in another segment, or compacted away contradicts nothing."""
    if not 0 <= entry.first_offset <= entry.last_offset or entry.last_stable_offset > entry.last_offset + 1:
        raise CorruptIndexError(f"expected offsets in their order, found {entry}")
    for offset, is_marker in ((entry.last_offset, True), (entry.first_offset, False)):
        if offset < segment.base_offset:
            continue
        try:
            found = segment.position_of(offset)
            row = None if found is None else segment.log.batch_at(found[0], found[1])[1]
            is_other = found is not None and not is_marker and _is_of_another(segment, entry, found[0])
        except CorruptError:
            continue
        if row is None and is_marker:
            raise CorruptIndexError(
                f"expected a marker in the segment, found none at offset {offset}: {entry}"
            )
        if row is None or row[BASE_OFFSET] > offset:
            continue
        if (
            is_other
            or row[PRODUCER_ID] != entry.producer_id
            or row[BASE_OFFSET] != offset
            or not row[ATTRIBUTES] & TRANSACTIONAL
            or bool(row[ATTRIBUTES] & CONTROL) != is_marker
        ):
            raise CorruptIndexError(f"the batch at offset {offset} is not the one that is meant: {entry}")


def _is_of_another(segment: Segment, entry: AbortedTransaction, position: int) -> bool:
    """Return whether the transaction with a batch at a position is not the entry's: it began earlier, or ended before
    the entry's marker. Only the records shortly before, and the first MiB from the position on, are looked at."""
    start = segment.position_of(max(segment.base_offset, entry.first_offset - _BEFORE))
    last = 0
    if start is not None and start[0] < position:
        for _, table in segment.log.batches(start[0], position, check=False, partial_ok=True):
            of_producer = table[table[:, PRODUCER_ID] == entry.producer_id]
            if len(of_producer):
                last = int(of_producer[-1, ATTRIBUTES])
    for _, table in segment.log.batches(position, position + CHUNK, check=False, partial_ok=True):
        markers = (table[:, PRODUCER_ID] == entry.producer_id) & (table[:, ATTRIBUTES] & CONTROL != 0)
        if (markers & (table[:, BASE_OFFSET] < entry.last_offset)).any():
            return True
    return bool(last & TRANSACTIONAL) and not last & CONTROL
