"""Reading a cluster's metadata log, which a broker keeps beside its partitions. Nothing is changed.

    __cluster_metadata-0/<base>.log                        record batches, as in every partition; markers between them
    __cluster_metadata-0/<end offset>-<epoch>.checkpoint   a snapshot of the records below the end offset, as batches

The newest snapshot is read first, then the records behind it. Metadata that cannot be read completely is not used at
all: a missing setting might be the one that keeps a topic's records. So offsets must follow each other without a gap,
as a broker writes them, and a snapshot must end with its footer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from topicfs.engine import batch as batches
from topicfs.engine.batch.table import Bytes, Longs
from topicfs.engine.cluster.image import Cluster, Image
from topicfs.engine.cluster.records import MetadataRecord, read
from topicfs.engine.errors import CorruptError, EngineError
from topicfs.engine.format.batch_header import CONTROL
from topicfs.engine.format.paths import (
    LOG_SUFFIX,
    METADATA_LOG,
    controller_snapshot,
    log_file,
    offset_of_file,
)
from topicfs.engine.kernels.scan import ATTRIBUTES, BASE_OFFSET, LAST_OFFSET, POSITION
from topicfs.engine.record import now_ms
from topicfs.engine.segment.batch_file import BatchFile
from topicfs.engine.segment.descriptors import Descriptors, PinnedFile
from topicfs.engine.segment.segment import Segment
from topicfs.engine.segment.settings import SegmentSettings

log = logging.getLogger(__name__)

_FOOTER: Final = b"\0\0\0\4"
"""The key of the record that ends a snapshot: int16 version, int16 kind."""


@dataclass(slots=True)
class _Reach:
    """The offset `end` up to which the log was read."""

    end: int

    def extend(self, path: Path, table: Longs) -> None:
        """Extend the range with the next batches of a file; CorruptError where batches are missing before them."""
        for first, last in table[:, [BASE_OFFSET, LAST_OFFSET]].tolist():
            if first > self.end:
                raise CorruptError(
                    f"{path}: expected a batch with offset {self.end}, found one from {first} on"
                )
            self.end = max(self.end, last + 1)


def read_cluster(logs: Path, node_id: int | None) -> Cluster:
    """Read the metadata log in a log directory. Return an empty cluster where there is none, and one that is not
    believed where it cannot be read."""
    directory = logs / METADATA_LOG
    if not directory.is_dir():
        return Cluster()
    try:
        cluster = _read(directory).cluster(node_id)
    except (EngineError, OSError) as error:
        log.warning(
            f"{directory}: cannot be read, so what it says of topics and their settings is not known: {error}"
        )
        return Cluster(is_believed=False)
    log.info(f"{directory}: {len(cluster.topics)} topics of a cluster")
    return cluster


def _read(directory: Path) -> Image:
    names = sorted(path.name for path in directory.iterdir())
    snapshots = sorted((*found, name) for name in names if (found := controller_snapshot(name)) is not None)
    while True:
        image, start = Image(), 0
        if not snapshots:
            break
        start, _, name = snapshots.pop()
        try:
            image.apply_all(_records(directory / name, 0, _Reach(0), is_snapshot=True))
        except CorruptError as error:
            # An older snapshot will do, if the log still has the records behind it.
            log.warning(f"{directory / name}: a snapshot that is passed over: {error}")
        else:
            break
    bases = sorted(offset_of_file(name) for name in names if name.endswith(LOG_SUFFIX))
    first = max((base for base in bases if base <= start), default=None)
    if first is None and (bases or start == 0):
        raise CorruptError(f"{directory}: expected a log from offset {start} on, found segments {bases}")
    reach = _Reach(start)
    for base in bases:
        if first is not None and base >= first:
            path = directory / log_file(base)
            image.apply_all(_records(path, base, reach, is_last=base == bases[-1]))
    return image


def _records(
    path: Path, base: int, reach: _Reach, is_last: bool = False, is_snapshot: bool = False
) -> Iterator[MetadataRecord]:
    """Give the records of a file, from the offset up to which the log was read. The last file may end with a batch that
    a crash has cut off."""
    start, is_ended = reach.end, not is_snapshot
    descriptors = Descriptors(1)
    segment = Segment(path.parent, base, SegmentSettings(read_only=True), now_ms, descriptors)
    segment.log = BatchFile(PinnedFile(str(path), descriptors), base)
    segment.log.freeze()
    # Records below `start` are not needed: only batch headers are read there, to find the position.
    segment.offset_index.begin_in_memory()
    try:
        found_at = segment.position_of(start) if start > base else (0, 0, 0, 0)
        if found_at is None:
            return
        for buffer, found in segment.log.batches(found_at[0], partial_ok=is_last):
            origin = int(found[0, POSITION])
            table = found[found[:, LAST_OFFSET] >= start]
            reach.extend(path, table)
            if is_snapshot and len(table):
                is_ended = _is_footer(buffer, table[-1:], origin)
            kept = table[table[:, ATTRIBUTES] & CONTROL == 0]
            if not len(kept):
                continue
            for part in batches.columns(buffer, kept, origin):
                for record in part.records():
                    if record.offset is None or record.offset < start or record.value is None:
                        continue
                    told = read(record.value)
                    if told is not None:
                        yield told
        if not is_ended:
            raise CorruptError(f"{path}: expected a snapshot with a footer, found none at its end")
    finally:
        segment.abandon()


def _is_footer(buffer: Bytes, batch: Longs, origin: int) -> bool:
    """Whether a batch, given as a table of one row, is the footer with which a broker ends a snapshot."""
    if not batch[0, ATTRIBUTES] & CONTROL:
        return False
    plain = batch.copy()
    plain[0, ATTRIBUTES] &= ~CONTROL
    return any(
        record.key == _FOOTER for part in batches.columns(buffer, plain, origin) for record in part.records()
    )
