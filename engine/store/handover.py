"""Moving a partition from the store of one daemon of a group to that of another, on storage that both have.

    the one before gives it up     closed, its offsets written beside its segments · it shows no more
    or it has died, or is stopped  nothing: what is on disk is as after a crash
    the next one takes it          1. the directory is renamed into its own log directory: of two who try, one does it
                                   2. the files of the active segment are replaced by copies · 3. recovery, as after a
                                   crash from the recovery point on · 4. it shows

A process that was stopped in the middle of a write may end it when it wakes up. It has the files open that it wrote to:
those of the active segment. After 2 they have no name any more, so nobody sees what comes there. Whatever it does by a
name fails, since 1 has taken the name away. Until 2 its bytes are those of the next batch, or a part of one, which
recovery cuts off.
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import Final

from topicfs.engine.errors import CorruptCheckpointError, EngineError
from topicfs.engine.files.atomic import sync_directory
from topicfs.engine.files.checkpoint import OffsetCheckpoint
from topicfs.engine.files.listing import PartitionKey, newest_log
from topicfs.engine.format.paths import HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS
from topicfs.engine.partition.loading import Known
from topicfs.engine.partition.partition import Partition

log = logging.getLogger(__name__)

_TAKING: Final = ".taking"
"""The file in the log directory that becomes the copy of a segment's file. Plain files there are ignored."""

_OFFSETS: Final = (RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS)


def close(partition: Partition) -> None:
    """Close a partition for another daemon, with its offsets beside its segments. Where its files are gone already, as
    another one has taken them, it is dropped."""
    directory, now = partition.log.chain.directory, partition.offsets
    try:
        partition.close()
        key = partition.topic, partition.number
        for name, offset in zip(_OFFSETS, (now.end, now.start, now.high_watermark), strict=True):
            OffsetCheckpoint(directory / name).write({key: offset})
    except (EngineError, OSError) as error:
        log.info(f"{partition.name}: let go as it is on disk: {error}")
        partition.log.abandon()


def known_of(directory: Path, key: PartitionKey) -> Known:
    """Return what the one before has noted of a partition in its log directory, or beside its segments."""
    offsets: dict[str, int] = {}
    for place in (directory.parent, directory):
        for name in _OFFSETS:
            try:
                offset = OffsetCheckpoint(place / name).read().get(key)
            except (CorruptCheckpointError, OSError) as error:
                log.warning(f"{place / name}: is not believed: {error}")
                continue
            if offset is not None:
                offsets[name] = offset
    return Known(
        False, offsets.get(RECOVERY_POINTS, 0), offsets.get(LOG_STARTS, 0), offsets.get(HIGH_WATERMARKS)
    )


def take(source: Path, target: Path) -> None:
    """Move a partition's directory to `target`, and detach it from whoever has its files open. FileNotFoundError where
    another one was faster."""
    source.rename(target)
    sync_directory(target.parent)
    sync_directory(source.parent)
    detach(target)


def detach(directory: Path) -> None:
    """Replace the files of the active segment by copies, and forget the offsets beside it: they are known by now."""
    for name in _OFFSETS:
        (directory / name).unlink(missing_ok=True)
    newest = newest_log(directory)
    if newest is None:
        return
    copy = directory.parent / _TAKING
    for file in sorted(directory.glob(f"{Path(newest).stem}.*")):
        shutil.copyfile(file, copy)
        descriptor = os.open(copy, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        copy.rename(file)
    sync_directory(directory)
