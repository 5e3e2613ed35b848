"""Opening a partition's directory, after a clean stop or a crash.

After a clean stop little more than names is read. After a crash every batch from the recovery point on is
checked. What is not proven good is cut off, and the log says how much. The order of steps matters: it is the
order in `load`. These are the states that a crash leaves, and how each is handled:

    <x>.deleted                          removed: it was being deleted
    <base>.*.cleaned, no .swap           removed: the originals are complete
    <base>.*.cleaned beside .swap ≥ it   both removed: the swap had not begun, the originals are complete
    <base>.*.swap only                   completed: the originals within its range are removed
    .index, .timeindex without .log      removed
    .log without .index                  recovered, even after a clean stop
    .log without .timeindex              recovered; after a clean stop look-ups by time read more of it, and the next
                                         clean stop makes both indexes anew
    last batch damaged after a clean stop   kept: the log goes on at its recovery point, in another segment
    start offset above a clean log's end    ignored: a checkpoint has no checksum
    a batch that is damaged or cut off   cut there; later segments are removed
    zeros behind the last batch          cut off
    .log with offsets too far up         split
    messages of the formats 0 and 1      the partition is refused, and stays offline
    damaged .index, .timeindex           rebuilt, as recovery rebuilds all that it visits; after a clean stop when
                                         a look-up finds an entry that does not fit the log, or the next clean stop
                                         finds a file that ends within an entry
    damaged .txnindex                    rebuilt with its segment
    damaged .snapshot                    the one before it is used, and batches are replayed
    damage in batches that are replayed  passed over: what of producers and leader epochs lies there is not known
    a marker that was cut off, or lost   the coordinator ends the transaction again as its log says: see
                                         `Coordinator.end_left_open`
    .timeindex without its last entry    completed where the segment ends at the recovery point: it was flushed first,
                                         and sealed afterwards
    damaged leader-epoch-checkpoint      rebuilt from the batches
    *.tmp                                removed: the file that it should replace is complete

What is rebuilt is compared with the files, and only what they lack is written. If there is no room for that, it stays
in memory, and what is on disk must not be believed by the next start, whatever the stop before it was like:

    rebuilt indexes              the segment loses its `.index`, durably, and has none until all that was rebuilt is on
                                 disk: so every start recovers it, also a broker's. Its `.txnindex` gets the length of
                                 a single byte where its entries are not on disk: then no reader of ours takes it for
                                 one without entries. The write is tried again when the segment is appended to or
                                 sealed, and by a clean stop
    rebuilt leader epochs        the recovery point stays where it is until they are on disk
    producer snapshots           left out, they only save a replay
    leader epochs that were cut  left out, the next load cuts them again

A partition that still cannot be loaded is tried again.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path

from topicfs.engine.errors import CorruptCheckpointError, CorruptError, OldFormatError, lacks_room
from topicfs.engine.files.atomic import sync_directory
from topicfs.engine.files.metadata import PartitionMetadata
from topicfs.engine.format.paths import (
    INDEX_SUFFIX,
    LEADER_EPOCHS,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    index_file,
    log_file,
    offset_of_file,
    time_index_file,
    transaction_index_file,
)
from topicfs.engine.partition.chain import Chain, segment_settings
from topicfs.engine.partition.epochs import LeaderEpochs
from topicfs.engine.partition.leftovers import finish_swaps, remove_temporary
from topicfs.engine.partition.log import Log
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.recovery import Recovery, rebuild_epochs, transaction_index_is_sound
from topicfs.engine.partition.replay import rebuild
from topicfs.engine.producer.manager import ProducerStates
from topicfs.engine.record import Clock
from topicfs.engine.segment.descriptors import Descriptors
from topicfs.engine.settings.topic import TopicSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Known:
    """The store's knowledge of a partition from its last run.

    clean           whether it was stopped cleanly
    recovery_point  everything below this offset is on disk
    start           the start offset, if it was above the first segment's base
    high_watermark  the high watermark, None if it is not known
    """

    clean: bool = False
    recovery_point: int = 0
    start: int = 0
    high_watermark: int | None = None


def load(
    topic: str,
    number: int,
    directory: Path,
    settings: TopicSettings,
    producer_expiration_ms: int,
    known: Known,
    clock: Clock,
    descriptors: Descriptors,
    lone: bool = True,
    steady: Clock | None = None,
) -> Partition:
    """Open a partition's directory. The top of this module lists what may be found there."""
    chain = Chain(directory, segment_settings(settings), clock, descriptors, steady)
    if not known.clean:
        # The process may have ended before its last changes of names were on the disk, and what follows builds on them:
        # without the `.swap` names the originals that they replace must not go.
        sync_directory(directory)
    names = finish_swaps(chain, remove_temporary(directory, set(os.listdir(directory))))
    had_segments = _open_segments(chain, names)
    if had_segments:
        # The oldest records have the oldest format. It is looked for before anything is changed, since what would be
        # rebuilt, cut off or compacted is all of them.
        chain.segments.first.log.check_format()
    epochs, epochs_are_known = _open_epochs(directory / LEADER_EPOCHS)
    recovery = Recovery(chain, epochs, known.start, producer_expiration_ms, settings.file_delete_delay_ms)
    _recover_without_index(chain, names, recovery, known)
    if not known.clean:
        recovery.from_offset(known.recovery_point)
    known, end = _settle_end(chain, epochs, known, settings.file_delete_delay_ms)
    if not epochs_are_known:
        rebuild_epochs(chain, epochs)
    epochs.truncate_from_end(end)
    epochs.truncate_from_start(known.start)
    _flush_where_there_is_room(epochs)
    start = max(known.start, chain.segments.first.base_offset)
    producers = ProducerStates.open(directory, producer_expiration_ms)
    producers.remove_stray_snapshots([segment.base_offset for segment in chain.segments])
    producers.unsynced += recovery.taken()
    mark = end if lone else min(max(known.high_watermark or start, start), end)
    rebuild(chain, producers, start, end, mark, clock(), after_clean_stop=known.clean)
    log = Log(
        f"{topic}-{number}",
        settings,
        clock,
        chain,
        producers,
        epochs,
        PartitionMetadata.load(directory),
        start,
        mark,
        end,
        # A recovery alone does not advance the recovery point: checked data may not be on disk yet.
        end if known.clean and had_segments else max(start, min(known.recovery_point, end)),
        lone,
    )
    return Partition(topic, number, log)


def _open_epochs(path: Path) -> tuple[LeaderEpochs, bool]:
    """Return the leader epochs, and whether the file could be read."""
    try:
        return LeaderEpochs.open(path), True
    except CorruptCheckpointError as error:
        logger.warning(f"leader epochs are forgotten: {error}")
        return LeaderEpochs.lost(path), False


def _flush_where_there_is_room(epochs: LeaderEpochs) -> None:
    """Write epochs that were cut, or rebuilt. If there is no room, that waits: the next load would do the same."""
    try:
        epochs.flush()
    except OSError as error:
        if not lacks_room(error):
            raise
        logger.warning(f"{epochs.path}: no room to write it: {error}")


def _open_segments(chain: Chain, names: set[str]) -> bool:
    """Add the existing segments to the chain. Return False if there is none."""
    bases = sorted(offset_of_file(name) for name in names if name.endswith(LOG_SUFFIX))
    for name in sorted(names):
        if (
            name.endswith((INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX))
            and log_file(offset_of_file(name)) not in names
        ):
            logger.warning(f"{chain.directory.name}/{name}: an index without its log, removed")
            (chain.directory / name).unlink()
    chain.add(chain.load(base) for base in bases)
    return bool(bases)


def _recover_without_index(chain: Chain, names: set[str], recovery: Recovery, known: Known) -> None:
    """Recover the segments whose index is missing or whose transaction index is damaged, also after a clean stop, and
    after a crash those whose time index is missing. Skip the segments that will be recovered anyway: a cut made here
    would not be seen as a cut there, and the later segments would stay."""
    floor = None if known.clean else chain.segments.floor(known.recovery_point)
    for segment in tuple(chain.segments):
        base = segment.base_offset
        if not known.clean and (floor is None or base >= floor.base_offset):
            return
        has_transactions = transaction_index_file(base) in names
        if index_file(base) not in names:
            logger.warning(f"{segment.path}: has no offset index: the segment is recovered")
        elif not known.clean and time_index_file(base) not in names:
            # Its removal had begun, and a loss of power has brought back the rest of its names.
            logger.warning(f"{segment.path}: has no time index after a crash: the segment is recovered")
        elif not has_transactions or transaction_index_is_sound(segment):
            continue
        recovery.single(segment)


def _settle_end(chain: Chain, epochs: LeaderEpochs, known: Known, delay_ms: int) -> tuple[Known, int]:
    """Return the store's knowledge, corrected, and the end offset of the log.

    A log that ends below its start offset is emptied, and an empty log begins at the start offset. A clean stop never
    leaves such a log: in that case the checkpoint is not trusted."""
    had_segments = len(chain.segments) > 0
    if had_segments:
        end = _end(chain, known)
        if end >= known.start:
            return known, end
        if known.clean:
            logger.error(
                f"{chain.directory.name}: was stopped cleanly and ends at offset {end}: its start offset "
                f"{known.start} is taken for damage of the checkpoint, it starts at its first segment"
            )
            return replace(known, start=0), end
        logger.warning(
            f"{chain.directory.name}: {len(chain.segments)} segments end at offset {end}, below the start offset "
            f"{known.start}: they are removed"
        )
        chain.remove(tuple(chain.segments), delay_ms)
        epochs.truncate_from_end(0)
    empty = chain.create(known.start)
    if had_segments:
        # A recovery leaves no preallocated zeros, here as elsewhere, so that a second one finds nothing to cut off.
        os.truncate(empty.path, 0)
    # Otherwise they would be created with the first entry. A broker expects an index beside every log.
    if empty.appender is not None:
        empty.appender.trim_indexes()
    chain.add((empty,))
    return known, known.start


def _end(chain: Chain, known: Known) -> int:
    """Return the offset behind the last record. If that cannot be read after a clean stop, the recovery point is the
    end: new records then go into a new segment, behind the damaged one."""
    active = chain.active
    try:
        end = active.next_offset()
    except OldFormatError:
        raise
    except CorruptError as error:
        if not known.clean or known.recovery_point <= active.base_offset:
            raise
        logger.error(
            f"{chain.directory.name}: its end is damaged, it goes on at {known.recovery_point}: {error}"
        )
        chain.add((chain.create(known.recovery_point),))
        return known.recovery_point
    if known.clean and end < known.recovery_point:
        logger.error(
            f"{chain.directory.name}: was stopped cleanly at offset {known.recovery_point} and ends at {end}: "
            "records are missing"
        )
    return end
