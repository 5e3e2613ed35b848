"""Opening a partition's directory read-only: nothing in it is changed, made, renamed or opened for writing.

It shows the state that `loading` would produce. What `loading` would cut off or remove is hidden. What it would rebuild
is rebuilt in memory:

    <x>.deleted, <x>.cleaned, <x>.tmp    ignored
    <base>.*.swap that would be completed   shown in place of the originals within its range
    a batch that is damaged or cut off   hidden, with everything behind it
    missing or damaged indexes           rebuilt in memory
    no segment at all                    an empty one, in memory
    .log with offsets too far up         the partition is refused, and stays offline: a split has to write files
    messages of the formats 0 and 1      the same, if the end or what would be recovered has some; in older segments
                                         they are damaged records

Another process may have the directory open, and may change it: the partition is shown as it was when it was loaded,
until `following` brings it up to date. A segment that is removed or replaced is detected as another file.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from pathlib import Path

from topicfs.engine.batch.table import Bytes, Longs
from topicfs.engine.errors import (
    CorruptCheckpointError,
    CorruptSegmentError,
    InvalidOffsetError,
    OffsetOverflowError,
)
from topicfs.engine.files.metadata import PartitionMetadata
from topicfs.engine.format.paths import (
    LEADER_EPOCHS,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    index_file,
    offset_of_file,
    transaction_index_file,
)
from topicfs.engine.format.transaction_index import AbortedTransaction
from topicfs.engine.kernels.scan import POSITION
from topicfs.engine.partition.chain import Chain, segment_settings
from topicfs.engine.partition.epochs import LeaderEpochs
from topicfs.engine.partition.leftovers import begun_swaps, next_offset_of_swap
from topicfs.engine.partition.loading import Known
from topicfs.engine.partition.log import Log
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.recovery import assign_recovered, rebuild_epochs, transaction_index_is_sound
from topicfs.engine.partition.replay import rebuild, replay
from topicfs.engine.producer.manager import ProducerStates
from topicfs.engine.record import Clock
from topicfs.engine.segment.descriptors import Descriptors
from topicfs.engine.segment.recovery import hide, recover_in_memory
from topicfs.engine.segment.segment import Segment
from topicfs.engine.settings.topic import TopicSettings

logger = logging.getLogger(__name__)


def view(
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
    """Open a partition's directory without changing anything: see the top of this module. FileNotFoundError if another
    process removed a file in the meantime: the caller then tries again."""
    chain = Chain(directory, segment_settings(settings, read_only=True), clock, descriptors, steady)
    names = set(os.listdir(directory))
    replaced = _open_segments(chain, names)
    if known.clean and len(chain.segments):
        chain.active.detach()
    epochs, epochs_are_known = _look_at_epochs(directory / LEADER_EPOCHS)
    _check_what_is_doubtful(chain, names, replaced, epochs, known, producer_expiration_ms)
    producers = None
    if not known.clean:
        checked = _Check(chain, epochs, known.start, producer_expiration_ms)
        checked.from_offset(known.recovery_point)
        producers = checked.producers
    end = _settle_end(chain, epochs, known.start)
    if not epochs_are_known:
        rebuild_epochs(chain, epochs)
    epochs.truncate_from_end(end)
    epochs.truncate_from_start(known.start)
    start = max(known.start, chain.segments.first.base_offset)
    if producers is None:
        producers = ProducerStates.look(directory, producer_expiration_ms)
    producers.remove_stray_snapshots([segment.base_offset for segment in chain.segments])
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
        end,
        lone,
        read_only=True,
    )
    return Partition(topic, number, log)


def _open_segments(chain: Chain, names: set[str]) -> set[int]:
    """Add the segments that count to the chain. Return the bases of those whose indexes may belong to the segment that
    they replace."""
    chain.add(frozen(chain, base, suffix) for base, suffix in suffixes(chain, names).items())
    return {offset_of_file(name) for name in begun_swaps(names)}


def suffixes(chain: Chain, names: set[str]) -> dict[int, str]:
    """Return the base offsets of the segments that count among the files of a directory, each with the suffix of its
    files."""
    new = {offset_of_file(name) for name in begun_swaps(names) if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)}
    old = {offset_of_file(name) for name in names if name.endswith(LOG_SUFFIX)}
    if new:
        low, high = min(new), max(max(next_offset_of_swap(chain, base), base + 1) for base in new)
        old = {base for base in old if not low <= base < high}
    return {base: SWAP_SUFFIX if base in new else "" for base in sorted(new | old)}


def frozen(chain: Chain, base: int, suffix: str) -> Segment:
    """Return a segment of another process's files, as they are now."""
    segment = Segment(chain.directory, base, chain.settings, chain.clock, chain.descriptors, suffix=suffix)
    segment.freeze()
    return segment


def _look_at_epochs(path: Path) -> tuple[LeaderEpochs, bool]:
    """Return the leader epochs, and whether the file could be read."""
    try:
        return LeaderEpochs.look(path), True
    except CorruptCheckpointError as error:
        logger.warning(f"leader epochs are learnt from the batches: {error}")
        return LeaderEpochs(path, (), read_only=True), False


def _check_what_is_doubtful(
    chain: Chain, names: set[str], replaced: set[int], epochs: LeaderEpochs, known: Known, expiration_ms: int
) -> None:
    """Rebuild the indexes of segments that have none, or whose transaction index is damaged. Skip the segments that
    will be checked anyway."""
    floor = None if known.clean else chain.segments.floor(known.recovery_point)
    for segment in tuple(chain.segments):
        base = segment.base_offset
        if not known.clean and (floor is None or base >= floor.base_offset):
            return
        is_indexed = base not in replaced and index_file(base) in names
        if is_indexed and (transaction_index_file(base) not in names or transaction_index_is_sound(segment)):
            continue
        _Check(chain, epochs, known.start, expiration_ms).check(segment)


@dataclass(slots=True)
class _Check:
    """The data that a check of segments needs, and keeps from one segment to the next. As `recovery.Recovery`, but in
    memory.

    chain, epochs  the segments and leader epochs of the partition
    start          the partition's start offset, as far as it is known
    expiration_ms  after this time an idle producer is forgotten
    producers      producer state at the end of the last segment that was checked; None before the first
    """

    chain: Chain
    epochs: LeaderEpochs
    start: int
    expiration_ms: int
    producers: ProducerStates | None = field(default=None)

    def from_offset(self, recovery_point: int) -> None:
        """Check the segments from the one that holds the recovery point on. Everything behind a bad batch is hidden."""
        chain = self.chain
        floor = chain.segments.floor(recovery_point)
        for segment in chain.segments.from_base(floor.base_offset if floor else 0):
            if self.check(segment):
                later = tuple(each for each in chain.segments if each.base_offset > segment.base_offset)
                if later:
                    logger.warning(
                        f"{chain.directory.name}: {len(later)} segments with {sum(each.size for each in later)} "
                        f"bytes behind the cut in segment {segment.base_offset} are hidden"
                    )
                    chain.segments = chain.segments.with_replaced(later, ())
                return

    def check(self, segment: Segment) -> bool:
        """Check every batch of a segment, and rebuild its indexes in memory. Return whether anything is hidden."""
        chain = self.chain
        if self.producers is None:
            self.producers = ProducerStates.look(chain.directory, self.expiration_ms)
        producers = self.producers
        base = segment.base_offset
        rebuild(chain, producers, self.start, base, base, chain.clock())
        aborted: list[AbortedTransaction] = []

        def visit(buffer: Bytes, table: Longs) -> None:
            assign_recovered(self.epochs, table)
            aborted.extend(replay(producers, buffer, table, int(table[0, POSITION])))

        try:
            hidden = recover_in_memory(segment.finder, visit)
        except OffsetOverflowError as error:
            raise CorruptSegmentError(
                f"{error}; such a segment has to be split, which a mount that may write does"
            ) from error
        except InvalidOffsetError as error:
            hidden = segment.size
            aborted.clear()
            hide(segment.finder)
            logger.warning(f"{segment.path}: all of its {hidden} bytes are hidden: {error}")
        segment.hold_transactions(aborted)
        return hidden > 0


def _settle_end(chain: Chain, epochs: LeaderEpochs, start: int) -> int:
    """Return the end offset of the log. A log that ends below its start offset is shown empty. An empty log begins at
    the start offset."""
    if len(chain.segments):
        end = chain.active.next_offset()
        if end >= start:
            return end
        logger.warning(
            f"{chain.directory.name}: {len(chain.segments)} segments end at offset {end}, below the start offset "
            f"{start}: they are hidden"
        )
        chain.segments = chain.segments.with_replaced(tuple(chain.segments), ())
        epochs.clear()
    chain.add((Segment.empty(chain.directory, start, chain.settings, chain.clock, chain.descriptors),))
    return start
