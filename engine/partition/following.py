"""Bringing a partition that is opened read-only up to date with its files, which another process changes meanwhile.

Whoever is about to look at the partition calls `catch_up`. It compares the directory and the active `.log` with what
they were, and reads only what came since:

    the active .log has grown            whole batches with right checksums are taken in; half a batch has to wait
    a .log behind the active one         is taken in once the one before it is complete
    .log files removed at the front      retention: the start offset rises
    .log files replaced before the end   compaction: the new ones take their place
    the active .log is shorter, another  the log was cut: the directory is opened anew
        one, or has other bytes
    the directory is gone, or another    the partition was deleted: whoever asks for it next finds the present one

A change has the snapshot replaced in one assignment, as in a log that is appended to. What open views have pinned and
loses its name is held open until they let go.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from topicfs.engine.batch.table import Bytes, Longs
from topicfs.engine.errors import (
    ClosedError,
    CorruptCheckpointError,
    CorruptSegmentError,
    EngineError,
    InvalidTransactionStateError,
)
from topicfs.engine.files.birth import Birth, birth
from topicfs.engine.files.look import Look
from topicfs.engine.format.batch_header import HEADER_SIZE
from topicfs.engine.format.paths import LOG_SUFFIX, log_file
from topicfs.engine.format.transaction_index import AbortedTransaction
from topicfs.engine.kernels.scan import FULL, LAST_OFFSET, POSITION, SIZE
from topicfs.engine.kernels.search import rising_rows
from topicfs.engine.partition.epochs import LeaderEpochs
from topicfs.engine.partition.loading import Known
from topicfs.engine.partition.log import Log
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.recovery import assign_recovered
from topicfs.engine.partition.replay import replay
from topicfs.engine.partition.viewing import frozen, suffixes
from topicfs.engine.segment.descriptors import identity_of, read_exactly_into
from topicfs.engine.segment.finder import mending
from topicfs.engine.segment.indexer import Indexer
from topicfs.engine.segment.recovery import RECOVERY_CHUNK, hide
from topicfs.engine.segment.segment import Segment
from topicfs.engine.segment.walk import walk

logger = logging.getLogger(__name__)

_AGAIN_S: Final = 0.1
"""A directory that had just changed when it was listed is listed again after this time."""

_TRIES: Final = 5
"""How often a directory is listed that changes meanwhile. Then the next look tries again."""


_NO_MARK: Final = (0, b"")
"""The mark of a segment of which no batch was taken in."""


class _CutError(EngineError):
    """Batches that were taken in are gone."""


class Follower:
    """Brings one log up to date. `Log.lock` guards its fields.

    _log      the log, which was opened read-only
    _known    returns what the checkpoints say of the partition now
    _open     opens the directory anew
    _gone     called when the directory is gone, after the log was closed
    _birth    the identity of the directory, as it was before the log was opened
    _end      the offset behind the last batch that was taken in
    _given    the start offset and the high watermark that `_known` gave last
    _listed   when the directory was listed; None if it has to be
    _found    the segments that count, as they were listed, with the suffix and the status of their `.log` files
    _read     when the active `.log` was read; None if it has to be
    _mark     position and header of the last batch that was taken in
    _aborted  the aborted transactions of the active segment; None until needed
    _refused  the base offset of a segment that was refused, as the one before it is not complete
    """

    def __init__(
        self,
        log: Log,
        born: Birth,
        known: Callable[[], Known],
        open_anew: Callable[[], Partition],
        gone: Callable[[], None],
    ) -> None:
        self._log = log
        self._known = known
        self._open = open_anew
        self._gone = gone
        self._birth = born
        self._given: tuple[int, int | None] | None = None
        self._end = log.snapshot.end
        self._listed: Look | None = None
        self._found: dict[int, tuple[str, os.stat_result]] = {}
        self._read: Look | None = None
        self._mark: tuple[int, bytes] = _NO_MARK
        self._aborted: list[AbortedTransaction] | None = None
        self._refused = -1
        self._note_mark()

    def catch_up(self) -> None:
        """Take up what has changed in the files since the last call."""
        log = self._log
        if log.is_closed:
            return
        directory = log.chain.directory
        try:
            status = os.stat(directory)
        except FileNotFoundError:
            self._leave()
            return
        known = self._known()
        if (
            self._is_listed(status)
            and (known.start, known.high_watermark) == self._given
            and self._is_as_seen()
        ):
            return
        with log.lock:
            if log.is_closed:
                return
            try:
                is_new = False
                if not self._is_listed(status):
                    if birth(directory) != self._birth:
                        self._leave()
                        return
                    is_new = self._list(status)
                    if is_new:
                        self._find_file()
                self._take_in_all()
                self._publish(known)
                if is_new:
                    self._compare()
                    self._read_epochs(log.snapshot.start)
                    self._publish(known)
            except InvalidTransactionStateError as error:
                # An unfinished commit was shown as it would be decided, and now it is.
                logger.info(f"{log.name}: read anew: {error}")
                self._begin_anew()
            except FileNotFoundError:
                # It was removed since the directory was listed.
                self._listed = None
            except _CutError as error:
                logger.warning(f"{log.name}: is read anew, as another process has changed it: {error}")
                self._begin_anew()
            self._given = known.start, known.high_watermark

    def _leave(self) -> None:
        with self._log.lock:
            if not self._log.is_closed:
                logger.info(f"{self._log.name}: deleted by another process")
                self._log.abandon()
        self._gone()

    # -- looking --------------------------------------------------------------------------------------

    def _is_as_seen(self) -> bool:
        """Return whether the active `.log` is as it was when it was last read."""
        file = self._log.chain.active.log.file
        if file.identity is None:
            return True
        try:
            status = os.stat(file.path)
        except FileNotFoundError:
            return False
        return self._read is not None and self._read.holds(status)

    def _is_listed(self, status: os.stat_result) -> bool:
        return self._listed is not None and self._listed.holds(status, _AGAIN_S)

    def _list(self, status: os.stat_result) -> bool:
        """List the directory. A name that changes meanwhile may be in no listing, so two have to be equal. Return False
        if it changes all the time."""
        chain = self._log.chain
        for _ in range(_TRIES):
            try:
                names = set(os.listdir(chain.directory))
                found = {
                    base: (suffix, os.stat(chain.directory / (log_file(base) + suffix)))
                    for base, suffix in suffixes(chain, names).items()
                }
            except FileNotFoundError:
                continue
            if names == set(os.listdir(chain.directory)):
                self._listed, self._found = Look.begin(status), found
                return True
        return False

    # -- segments that came and went ------------------------------------------------------------------

    def _find_file(self) -> None:
        """Have the segment that is shown where there is none become the first one that there is. Segments below the
        start offset are hidden."""
        active = self._log.chain.active
        if active.log.file.identity is None and max(self._found, default=-1) >= active.base_offset:
            if min(self._found) != active.base_offset:
                raise _CutError(f"{active.directory}: expected a segment {active.base_offset}")
            active.log.file.adopt(active.path_of(LOG_SUFFIX))

    def _compare(self) -> None:
        """Take segments that were removed or replaced out of the list, and those that replace them into it."""
        chain, found = self._log.chain, self._found
        active = chain.active
        if active.log.file.identity is None:
            return
        gone = []
        for segment in chain.segments:
            suffix, status = found.get(segment.base_offset, ("", None))
            if status is None or identity_of(status) != segment.log.file.identity:
                gone.append(segment)
            elif segment is not active and status.st_size < segment.size:
                raise _CutError(f"{segment.path}: expected {segment.size} bytes, found {status.st_size}")
            else:
                segment.follow_name(suffix)
        if active in gone:
            raise _CutError(f"{active.path} was removed, or replaced by another")
        left = {segment.base_offset for segment in chain.segments} - {each.base_offset for each in gone}
        came = [
            frozen(chain, base, suffix)
            for base, (suffix, _) in found.items()
            if base < active.base_offset and base not in left
        ]
        if gone or came:
            self._replace(gone, came)

    def _read_epochs(self, start: int) -> None:
        """Read the leader epochs, which were written before the batches that were taken in. Some of their batches may
        have been compacted away."""
        epochs = self._log.epochs
        try:
            found = LeaderEpochs.look(epochs.path)
        except CorruptCheckpointError as error:
            logger.warning(f"leader epochs are learnt from the batches: {error}")
            return
        found.truncate_from_start(start)
        found.truncate_from_end(self._end)
        epochs.entries = found.entries
        self._log.leader_epoch = epochs.latest_epoch or 0

    def _replace(self, gone: Sequence[Segment], came: Sequence[Segment]) -> None:
        log = self._log
        segments = log.chain.segments.with_replaced(gone, came)
        self._raise_start(segments.first.base_offset)
        log.announce_removal(gone)
        log.chain.segments = segments
        log.publish()
        for segment in gone:
            segment.depart()

    def _raise_start(self, offset: int) -> None:
        log = self._log
        start = min(offset, self._end)
        if start > log.snapshot.start:
            log.epochs.truncate_from_start(start)
            log.producers.on_start_offset(start)
            log.publish(start=start)

    def _begin_anew(self) -> None:
        """Open the directory anew. Of a segment that was cut nobody knows any more what it had."""
        log, old, before = self._log, tuple(self._log.chain.segments), self._end
        # Where that fails, the next look tries again.
        self._listed = None
        fresh = self._open().log
        changed = [each for each in old if _is_shorter(each)]
        last = fresh.chain.active
        if self._mark_differs(old[-1]) or (
            # Compaction replaces a segment only when there is one behind it.
            last.base_offset == old[-1].base_offset and last.log.file.identity != old[-1].log.file.identity
        ):
            changed.append(old[-1])
        log.announce_removal(old)
        log.chain, log.producers, log.epochs, log.metadata = (
            fresh.chain,
            fresh.producers,
            fresh.epochs,
            fresh.metadata,
        )
        now = fresh.snapshot
        self._end = now.end
        self._read_epochs(now.start)
        log.publish(
            start=now.start,
            high_watermark=now.high_watermark,
            end=now.end,
            end_position=now.end_position,
            # Without a cut, more was removed or compacted since the last look than can be followed.
            cut=min(
                [*(each.base_offset for each in changed), *([now.end] if now.end < before else [])],
                default=None,
            ),
        )
        for segment in old:
            if segment in changed:
                segment.close()
            else:
                segment.depart()
        self._read = self._aborted = None
        self._note_mark()

    # -- growth ---------------------------------------------------------------------------------------

    def _take_in_all(self) -> None:
        """Take in the batches that came, also those of new segments."""
        chain = self._log.chain
        if chain.active.log.file.identity is None:
            return
        self._grow(chain.active)
        for base in sorted(base for base in self._found if base > chain.active.base_offset):
            before = chain.active
            if os.fstat(before.log.file.descriptor().fd).st_size != before.size:
                if self._refused != base:
                    self._refused = base
                    logger.warning(
                        f"{self._log.name}: segment {base} and what follows are hidden: in the one before, which ends "
                        f"at offset {self._end}, {before.size} bytes are sound"
                    )
                return
            if base != self._end:
                # What lay between was removed or compacted since the last look.
                raise _CutError(f"{before.path}: expected a segment from offset {self._end}, found {base}")
            segment = frozen(chain, base, self._found[base][0])
            hide(segment.finder)
            segment.hold_transactions(())
            chain.add((segment,))
            before.reattach()
            self._aborted, self._mark = [], _NO_MARK
            self._grow(segment)

    def _grow(self, segment: Segment) -> None:
        """Take in the whole batches behind the published end of the active segment."""
        batches = segment.log
        try:
            # By its descriptor: it may have lost its name since the last look, and have grown before.
            status = os.fstat(batches.file.descriptor().fd)
        except CorruptSegmentError as error:
            raise _CutError(str(error)) from error
        if status.st_size < batches.size:
            raise _CutError(f"{batches.path}: expected {batches.size} bytes, found {status.st_size}")
        try:
            if self._mark_differs(segment):
                raise _CutError(f"{batches.path}: the batch at position {self._mark[0]} is another one")
            if status.st_size > batches.size:
                self._take_in(segment, status.st_size)
        except CorruptSegmentError as error:
            raise _CutError(str(error)) from error
        look = Look.begin(status)
        # The rest of a batch may come without a change of the size, into blocks that were allocated before.
        self._read = (
            look if look.is_settled or batches.size < status.st_size else replace(look, is_settled=True)
        )

    def _mark_differs(self, segment: Segment) -> bool:
        """Return whether the last batch that was taken in is another one now, if the file can be read."""
        position, header = self._mark
        try:
            return segment.log.read(position, len(header)) != header
        except (ClosedError, CorruptSegmentError):
            return False

    def _take_in(self, segment: Segment, size: int) -> None:
        batches, before = segment.log, self._end
        aborted: list[AbortedTransaction] = []

        def fill(position: int, into: memoryview) -> None:
            read_exactly_into(batches.file.descriptor().fd, position, into, batches.path)

        indexer = Indexer(segment.finder)
        try:
            for buffer, table, status in walk(fill, batches.size, size, True, RECOVERY_CHUNK, reuse=True):
                good = rising_rows(table, segment.base_offset, self._end - 1) if status == FULL else 0
                if good:
                    aborted += self._add(indexer, buffer, table[:good])
                if good < len(table):
                    break
        finally:
            # Also where the disk fails halfway: what was taken in must not show what was aborted.
            if aborted:
                if self._aborted is None:
                    self._aborted = [each for each in segment.transactions.all() if each.last_offset < before]
                self._aborted += aborted
                segment.hold_transactions(self._aborted)

    def _add(self, indexer: Indexer, buffer: Bytes, table: Longs) -> list[AbortedTransaction]:
        """Add sound batches to the state, and publish them in the segment. Return the transactions that they abort."""
        log, finder = self._log, indexer.finder
        position, size = finder.log.size, int(table[:, SIZE].sum())
        assign_recovered(log.epochs, table)
        aborted = replay(log.producers, buffer[:size], table, position)
        with mending:
            entries = indexer.entries_for(table, position, size)
            # An index entry of another process's log must never lead behind the published end.
            finder.log.size = position + size
            indexer.add(entries)
            indexer.since, finder.largest = entries.since, entries.largest
        last = int(table[-1, POSITION])
        self._mark = last, buffer[last - position :][:HEADER_SIZE].tobytes()
        self._end = int(table[-1, LAST_OFFSET]) + 1
        return aborted

    def _note_mark(self) -> None:
        active = self._log.chain.active
        self._mark = _NO_MARK
        if active.size:
            found = active.position_of(active.next_offset() - 1)
            if found is not None:
                self._mark = found[0], active.log.read(found[0], HEADER_SIZE)

    def _publish(self, known: Known) -> None:
        log, now = self._log, self._log.snapshot
        self._raise_start(max(known.start, log.chain.segments.first.base_offset))
        mark = max(now.high_watermark, known.high_watermark or 0)
        if (
            self._end != now.end
            or log.chain.segments is not now.segments
            or (not log.lone and min(mark, self._end) != now.high_watermark)
        ):
            log.leader_epoch = log.epochs.latest_epoch or 0
            log.publish(high_watermark=mark, end=self._end)


def _is_shorter(segment: Segment) -> bool:
    """Return whether a segment's file has fewer bytes now than were taken in."""
    try:
        return os.fstat(segment.log.file.descriptor().fd).st_size < segment.size
    except (ClosedError, CorruptSegmentError):
        return False
