"""Producer state is restored from the newest usable snapshot, and then by a replay of batches."""

from __future__ import annotations

import logging

from topicfs.engine import batch as batches
from topicfs.engine.batch.table import Bytes, Longs
from topicfs.engine.errors import lacks_room
from topicfs.engine.format.batch_header import CONTROL
from topicfs.engine.format.transaction_index import AbortedTransaction
from topicfs.engine.kernels.scan import ATTRIBUTES, LAST_OFFSET, POSITION
from topicfs.engine.partition.chain import Chain
from topicfs.engine.producer.deciding import deciding_rows
from topicfs.engine.producer.entry import BatchInfo, Origin
from topicfs.engine.producer.manager import ProducerStates
from topicfs.engine.segment.segment import Segment

log = logging.getLogger(__name__)


def replay(producers: ProducerStates, buffer: Bytes, table: Longs, origin: int) -> list[AbortedTransaction]:
    """Apply the batches of a chunk to the producer state, as a replica does. `origin` is the table's position of
    buffer[0]. Return the entries for the transactions that the batches aborted."""
    update = producers.prepare(Origin.REPLICATION)
    for at in deciding_rows(table):
        row = table[at]
        marker = batches.marker(buffer, row, origin) if int(row[ATTRIBUTES]) & CONTROL else None
        update.add(BatchInfo.of_row(row.tolist(), marker))
    producers.commit(update)
    producers.advance(int(table[-1, LAST_OFFSET]) + 1)
    aborted = []
    for completed in update.completed:
        if completed.is_aborted:
            stable = producers.last_stable_offset_for(completed)
            aborted.append(
                AbortedTransaction(
                    completed.producer_id, completed.first_offset, completed.last_offset, stable
                )
            )
        producers.complete_transaction(completed)
    return aborted


def rebuild(
    chain: Chain,
    producers: ProducerStates,
    start: int,
    end: int,
    high_watermark: int,
    now: int,
    after_clean_stop: bool = False,
) -> None:
    """Bring the producer state to offset `end`, without the transactions that ended below the high watermark.

    Snapshots behind `end` are deleted, the newest remaining one is loaded, and the batches behind it are replayed.
    Snapshots are taken at the base offsets of the last two segments and at `end`."""
    wanted = [*(segment.base_offset for segment in chain.segments.last_two), end]
    if after_clean_stop and producers.latest_snapshot_offset is None:
        # A clean stop leaves a snapshot where there are producers: without one, there were none.
        for offset in wanted:
            producers.advance(offset)
            take_snapshot_where_there_is_room(producers)
        return
    nothing_to_replay = not len(producers) and producers.map_end_offset >= end
    producers.truncate_and_reload(start, end, now)
    reached = producers.map_end_offset
    if end > reached and not nothing_to_replay:
        log.info(f"{chain.directory.name}: producer state is replayed from offset {reached} to {end}")
        for segment in chain.segments.range(reached, end):
            producers.on_high_watermark(high_watermark)
            _replay_segment(chain, producers, segment, max(segment.base_offset, reached), end, wanted)
    producers.advance(end)
    take_snapshot_where_there_is_room(producers)


def take_snapshot_where_there_is_room(producers: ProducerStates) -> None:
    """Take a snapshot that only saves a later replay. If there is no room for it, it is left out, and the one before
    it is used."""
    try:
        producers.take_snapshot(fsync=False)
    except OSError as error:
        if not lacks_room(error):
            raise
        log.warning(f"{producers.directory.name}: no room for a snapshot of producer state: {error}")


def _replay_segment(
    chain: Chain, producers: ProducerStates, segment: Segment, start: int, end: int, wanted: list[int]
) -> None:
    producers.advance(start)
    if segment.base_offset in wanted:
        take_snapshot_where_there_is_room(producers)
    for buffer, table in segment.finder.sound_batches(start):
        below = table[table[:, LAST_OFFSET] < end]
        if len(below):
            replay(producers, buffer, below, int(table[0, POSITION]))
        if len(below) < len(table):
            return
