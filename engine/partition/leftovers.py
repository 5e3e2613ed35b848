"""Handling of files that a crash left in the middle of an operation: the files are removed, or the operation is
completed.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from topicfs.engine.errors import InvalidNameError
from topicfs.engine.files.atomic import sync_directory
from topicfs.engine.format.paths import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TEMPORARY_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    index_file,
    offset_of_file,
)
from topicfs.engine.partition.chain import Chain
from topicfs.engine.record import MAX_INT64
from topicfs.engine.segment.segment import Segment

log = logging.getLogger(__name__)

_INDEX_SUFFIXES: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)


def remove_temporary(directory: Path, names: set[str]) -> set[str]:
    """Remove files that were being deleted, and files that were never finished. Return the names that are left.

    A `.swap` file at or above the lowest `.cleaned` one belongs to a swap that had not begun for all of its segments:
    the originals still exist, and are complete."""
    unfinished = _first_unfinished(names)
    gone = {
        name
        for name in names
        if name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, TEMPORARY_SUFFIX))
        or (name.endswith(SWAP_SUFFIX) and _offset(name) >= unfinished)
    }
    # `.cleaned` files go last: a crash in between must find them, or it would complete what is left of the swap. So the
    # `.swap` names are durably gone before: a loss of power could bring them back alone.
    last = {name for name in gone if name.endswith(CLEANED_SUFFIX)}
    _remove(directory, gone - last)
    if last and any(name.endswith(SWAP_SUFFIX) for name in gone):
        sync_directory(directory)
    _remove(directory, last)
    return names - gone


def _remove(directory: Path, names: set[str]) -> None:
    for name in sorted(names):
        log.info(f"{directory.name}/{name}: left over from an interrupted run, removed")
        (directory / name).unlink(missing_ok=True)


def _first_unfinished(names: set[str]) -> int:
    """Return the lowest base of a segment whose swap had not begun, or a number above all bases if there is none."""
    # A name without an offset belongs to no segment, so it must not affect any.
    cleaned = [_offset(name) for name in names if name.endswith(CLEANED_SUFFIX) and _offset(name) >= 0]
    return min(cleaned, default=MAX_INT64 + 1)


def begun_swaps(names: set[str]) -> set[str]:
    """Return the `.swap` files of a swap that had begun."""
    unfinished = _first_unfinished(names)
    return {name for name in names if name.endswith(SWAP_SUFFIX) and 0 <= _offset(name) < unfinished}


def finish_swaps(chain: Chain, names: set[str]) -> set[str]:
    """Complete a swap that had begun: remove the originals that it replaces, and give the new files their names.

    A file system may have saved the last name of a new index, and not that of its log: then nobody can tell it from an
    original. So it is removed too, and with it the offset index: a segment without one is recovered, which makes all
    of its indexes anew. Return the names that exist afterwards."""
    swaps = sorted(name for name in names if name.endswith(SWAP_SUFFIX) and _offset(name) >= 0)
    logs = [name for name in swaps if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)]
    if not swaps:
        return names
    directory = chain.directory
    left = set(names)
    incomplete = set()
    if logs:
        bases = [_offset(name) for name in logs]
        # An empty segment also replaces all files of the one with its base.
        low, high = min(bases), max(max(next_offset_of_swap(chain, base), base + 1) for base in bases)
        for name in sorted(names):
            if not name.endswith(SWAP_SUFFIX) and low <= _offset(name) < high:
                log.info(f"{directory.name}/{name}: replaced by a swap that a crash interrupted, removed")
                (directory / name).unlink()
                left.discard(name)
                if name.endswith(_INDEX_SUFFIXES) and name + SWAP_SUFFIX not in names:
                    incomplete.add(index_file(_offset(name)) + SWAP_SUFFIX)
        # The removal of the originals is durable before the `.swap` names disappear, which show that it is needed.
        sync_directory(directory)
    for name in incomplete & left:
        (directory / name).unlink()
        left.discard(name)
    for name in sorted(left.intersection(swaps)):
        final = name.removesuffix(SWAP_SUFFIX)
        log.info(f"{directory.name}/{name}: the swap is completed")
        (directory / name).rename(directory / final)
        left.discard(name)
        left.add(final)
    sync_directory(directory)
    return left


def next_offset_of_swap(chain: Chain, base: int) -> int:
    """Return the offset behind the last batch of a `.swap` segment."""
    segment = Segment(
        chain.directory, base, chain.settings, chain.clock, chain.descriptors, suffix=SWAP_SUFFIX
    )
    end = segment.next_offset()
    segment.close()
    return end


def _offset(name: str) -> int:
    """Return the offset that a file's name begins with, or -1 for a name without one."""
    try:
        return offset_of_file(name)
    except InvalidNameError:
        return -1
