"""Recovery of a segment: the good batches at its beginning are kept, and its indexes are rebuilt from them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from topicfs.engine.batch.table import Bytes, Longs
from topicfs.engine.errors import OffsetOverflowError
from topicfs.engine.kernels.scan import BAD_MAGIC, BASE_OFFSET, FULL, LAST_OFFSET, PROBLEMS, SIZE
from topicfs.engine.kernels.search import rising_rows
from topicfs.engine.record import MAX_INT32, NO_TIMESTAMP
from topicfs.engine.segment.allocation import is_allocated_behind, release_behind
from topicfs.engine.segment.appender import Appender
from topicfs.engine.segment.dates import NO_DATES
from topicfs.engine.segment.descriptors import cut_file
from topicfs.engine.segment.finder import Finder
from topicfs.engine.segment.indexer import Indexer
from topicfs.engine.segment.walk import walk

log = logging.getLogger(__name__)

Visit = Callable[[Bytes, Longs], None]

RECOVERY_CHUNK: Final = 4 * 1024 * 1024


def recover(appender: Appender, visit: Visit, before_cut: Callable[[int], None] | None) -> int:
    """Recover a file to its present length, and end the appender. The indexes are rebuilt in memory only: see
    `Segment.recover`."""
    finder, batches = appender.finder, appender.log
    found = batches.size
    opened = batches.file.written()
    if is_allocated_behind(opened.fd, found):
        # They were reserved for lines that a crash lost.
        release_behind(opened.fd, found)
    for index in finder.indexes:
        index.begin_in_memory()
    valid, problem = _rebuild(finder, visit)
    if valid < found:
        if before_cut is not None:
            before_cut(found - valid)
        log.warning(
            f"{batches.path}: {found - valid} of {found} bytes cut off at position {valid}: {problem}"
        )
    batches.size = valid
    finder.time_index.maybe_append(*finder.latest(), skip_full=True)
    cut_file(batches.file.written().fd, valid)
    appender.end()
    return found - valid


def recover_in_memory(finder: Finder, visit: Visit) -> int:
    """Recover as `recover` does, but change no file: rebuild the indexes in memory, and hide everything behind
    the last good batch. Return how many bytes are hidden."""
    found = finder.log.size
    for index in finder.indexes:
        index.begin_in_memory()
    valid, problem = _rebuild(finder, visit)
    if valid < found:
        log.warning(
            f"{finder.log.path}: {found - valid} of {found} bytes are hidden, from position {valid} on: {problem}"
        )
    finder.log.size = valid
    finder.time_index.maybe_append(*finder.latest(), skip_full=True)
    return found - valid


def hide(finder: Finder) -> None:
    """Hide all batches. No file is changed."""
    for index in finder.indexes:
        index.begin_in_memory()
    _forget_times(finder)
    finder.log.size = 0


def _forget_times(finder: Finder) -> None:
    finder.largest = (NO_TIMESTAMP, finder.log.base_offset)
    finder.dates = NO_DATES
    finder.log.first = None


def _rebuild(finder: Finder, visit: Visit) -> tuple[int, str]:
    """Add the entries of the good batches to indexes without entries. Return the position behind these batches, and
    what is wrong with the next one."""
    batches, indexer = finder.log, Indexer(finder)
    _forget_times(finder)
    valid = 0
    before = batches.base_offset - 1
    for buffer, table, status in walk(batches.fill, 0, batches.size, True, RECOVERY_CHUNK, reuse=True):
        if status != FULL:
            if status == BAD_MAGIC:
                batches.check_format(valid)
            return valid, PROBLEMS.get(status, "")
        good = rising_rows(table, batches.base_offset, before)
        if good:
            size = int(table[:good, SIZE].sum())
            visit(buffer[:size], table[:good])
            entries = indexer.entries_for(table[:good], valid, size)
            indexer.add(entries)
            indexer.since, finder.largest = entries.since, entries.largest
            valid += size
            before = int(table[good - 1, LAST_OFFSET])
        if good < len(table) and table[good, BASE_OFFSET] > before:
            raise OffsetOverflowError(
                f"{batches.path}: expected offsets up to {batches.base_offset + MAX_INT32}, found "
                f"{table[good, LAST_OFFSET]}"
            )
        if good < len(table):
            return valid, f"expected an offset above {before}, found {table[good, BASE_OFFSET]}"
    return valid, ""
