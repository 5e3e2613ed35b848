"""Removing and replacing segments of a log: truncation, retention, compaction and splitting.

A new snapshot is published first, and only then the files are renamed or cut: a reader that meets such a file looks
again, and finds the new snapshot. An error halfway takes the log offline (see `Log.whole_or_offline`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from topicfs.engine.errors import CleaningAbortedError, CorruptSegmentError, EngineError
from topicfs.engine.files.atomic import sync_directory
from topicfs.engine.partition.log import Log
from topicfs.engine.partition.replay import rebuild
from topicfs.engine.partition.snapshot import Snapshot
from topicfs.engine.partition.split import split
from topicfs.engine.record import MAX_INT32, MAX_INT64
from topicfs.engine.segment.segment import Segment

logger = logging.getLogger(__name__)


def truncate(log: Log, offset: int) -> bool:
    """Remove everything from `offset` on. Return False if there was nothing to remove."""
    if offset < 0:
        raise ValueError(f"truncation to offset {offset}: expected 0 or more")
    with log.lock:
        log.check_writable()
        if offset >= log.snapshot.end:
            log.epochs.truncate_from_end(offset)
            log.epochs.flush()
            return False
        segments = log.chain.segments
        last = segments.floor(offset)
        if last is None:
            restart(log, offset)
            return True
        found = None if offset == last.base_offset else last.position_of(offset)
        position = 0 if offset == last.base_offset else last.size if found is None else found[0]
        with log.whole_or_offline(EngineError):
            later = segments.from_base(last.base_offset + 1)
            start = min(log.snapshot.start, offset)
            log.chain.drop(later)
            _doom_snapshots(log, [segment.base_offset for segment in later])
            # A transaction whose end is cut off is open again: no reader of the cut log may see its records.
            _rebuild(log, start, offset)
            _publish_cut(log, start, offset, position, cut=offset)
            # The last segment goes first: a crash in between leaves a shorter log, never a log with a hole.
            log.chain.doom(later[::-1], log.settings.file_delete_delay_ms)
            if later:
                sync_directory(log.chain.directory)
            last.transactions.truncate_to(offset)
            last.truncate_to(offset)
            # The next recovery does not look at what lies below the recovery point: after a loss of power the bytes
            # that are cut off here could be there again, beside later records with their offsets.
            log.chain.sync(last)
            log.epochs.truncate_from_end(offset)
            log.epochs.flush()
            log.publish()
            log.renew_promises()
        logger.info(f"{log.name}: truncated to offset {offset}")
        return True


def restart(log: Log, offset: int, start: int | None = None) -> None:
    """Delete all records, and begin an empty log at `offset`."""
    with log.lock:
        log.check_writable()
        with log.whole_or_offline(), log.restarting():
            now = log.snapshot
            cut = now.start if now.start < now.end else MAX_INT64
            _publish_cut(log, offset if start is None else start, offset, 0, cut)
            gone = tuple(log.chain.segments)[::-1]
            log.chain.drop(gone)
            _doom(log, gone)
            log.chain.add((log.chain.create(offset),))
            log.epochs.clear()
            log.producers.truncate_fully_and_start_at(offset)
            _rebuild(log, log.snapshot.start, offset)
            log.publish()
            log.renew_promises()
        logger.info(f"{log.name}: emptied, begins anew at offset {offset}")


def _publish_cut(log: Log, start: int, end: int, position: int, cut: int) -> None:
    mark = min(log.snapshot.high_watermark, end)
    log.publish(start=start, high_watermark=mark, end=end, end_position=position, cut=cut)
    log.flusher.note_cut(end)


def _rebuild(log: Log, start: int, end: int) -> None:
    """Make the producer state fit a log that ends earlier."""
    mark = min(log.snapshot.high_watermark, end)
    rebuild(log.chain, log.producers, start, end, mark, log.clock())


def retire(log: Log, segments: Sequence[Segment]) -> None:
    """Remove segments that lie below the start offset. The caller holds the lock."""
    with log.whole_or_offline():
        log.chain.drop(segments)
        log.publish()
        _doom(log, segments)


def _doom(log: Log, segments: Sequence[Segment]) -> None:
    """Have the files of removed segments deleted after the delay, and their producer snapshots."""
    log.chain.doom(segments, log.settings.file_delete_delay_ms)
    _doom_snapshots(log, [segment.base_offset for segment in segments])


def _doom_snapshots(log: Log, offsets: Iterable[int]) -> None:
    for offset in offsets:
        renamed = log.producers.mark_snapshot_for_deletion(offset)
        if renamed is not None:
            log.chain.doom_file(renamed, log.settings.file_delete_delay_ms)


def replace(log: Log, old: Sequence[Segment], new: Sequence[Segment], taken: Snapshot) -> None:
    """Replace segments by the `.cleaned` ones that were made from them. The new ones are on disk already.

    `taken` is the snapshot by which the old ones were read. CleaningAbortedError, with nothing done, where an old
    segment was removed or the log was cut since then: removed records must not come back."""
    # This may take a while. The second call, which holds the lock, has little left to do.
    log.announce_removal(old)
    # No flush in between: it would record the new segments as durable while a power loss could bring back the old.
    with log.flusher.lock:
        with log.lock:
            _replace(log, old, new, taken)
        with log.whole_or_offline():
            sync_directory(log.chain.directory)


def _replace(log: Log, old: Sequence[Segment], new: Sequence[Segment], taken: Snapshot) -> None:
    log.check_writable()
    segments = log.chain.segments
    gone = [each.base_offset for each in old if each not in segments or each is segments.last]
    if gone or log.snapshot.cuts != taken.cuts:
        raise CleaningAbortedError(
            f"{log.name}: segments {gone} were removed, or the log was cut, while it was cleaned"
        )
    log.announce_removal(old)
    with log.whole_or_offline():
        log.chain.replace(old, new, log.settings.file_delete_delay_ms, log.publish)
        _doom_snapshots(log, {each.base_offset for each in old} - {each.base_offset for each in new})


def split_overflowing(log: Log, segments: Sequence[Segment]) -> bool:
    """Split those of these segments that have offsets too far above their base. Old compactions left such segments.
    Return False if there is none."""
    found = False
    with log.lock:
        log.check_writable()
        for segment in segments:
            last = segment.next_offset() - 1
            if segment in log.chain.segments and last - segment.base_offset > MAX_INT32:
                found = True
                with log.whole_or_offline():
                    split(log.chain, segment, log.settings.file_delete_delay_ms, _refuse_cut, log.publish)
    return found


def _refuse_cut(segment: Segment) -> None:
    """Refuse to split a segment in the middle of a log, where that would lose what lies behind a damaged batch."""
    raise CorruptSegmentError(f"{segment.path}: has to be split, and has a batch that is damaged")
