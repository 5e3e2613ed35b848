"""Reading a cluster's metadata log, which a broker keeps beside its partitions. Nothing is changed.

    __cluster_metadata-0/<base>.log                        record batches, as in every partition; markers between them
    __cluster_metadata-0/<end offset>-<epoch>.checkpoint   all that the records below the end offset say, as batches

The newest snapshot comes first, then the records behind it. What cannot be read as a whole is not believed at all: a
setting that is missing might be the one that keeps a topic's records.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from topicfs.engine import batch as batches
from topicfs.engine.cluster.image import Cluster, Image
from topicfs.engine.cluster.records import MetadataRecord, read
from topicfs.engine.errors import CorruptError, EngineError
from topicfs.engine.files.names import LOG_SUFFIX, offset_of_file
from topicfs.engine.kernels.decode import CONTROL
from topicfs.engine.kernels.scan import ATTRIBUTES, LAST_OFFSET, POSITION
from topicfs.engine.record import now_ms
from topicfs.engine.segment.descriptors import Descriptors, PinnedFile
from topicfs.engine.segment.stored import SegmentSettings, StoredSegment

log = logging.getLogger(__name__)

METADATA_LOG: Final = "__cluster_metadata-0"
_SNAPSHOT: Final = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")


def read_cluster(logs: Path, node_id: int | None) -> Cluster:
    """What the metadata log in a log directory says; an empty cluster where there is none, or it cannot be believed."""
    directory = logs / METADATA_LOG
    if not directory.is_dir():
        return Cluster()
    try:
        cluster = _read(directory).cluster(node_id)
    except (EngineError, OSError) as error:
        log.warning(
            f"{directory}: cannot be read, so what it says of topics and their settings is not known: {error}"
        )
        return Cluster()
    log.info(f"{directory}: {len(cluster.topics)} topics of a cluster")
    return cluster


def _read(directory: Path) -> Image:
    names = sorted(path.name for path in directory.iterdir())
    snapshots = sorted(
        (int(found[1]), int(found[2]), name)
        for name in names
        if (found := _SNAPSHOT.fullmatch(name)) is not None
    )
    while True:
        image, start = Image(), 0
        if not snapshots:
            break
        start, _, name = snapshots.pop()
        try:
            image.apply_all(_records(directory / name, 0, start=0))
        except CorruptError as error:
            # An older one does as well, if the log still has what is behind it.
            log.warning(f"{directory / name}: a snapshot that is passed over: {error}")
        else:
            break
    bases = sorted(offset_of_file(name) for name in names if name.endswith(LOG_SUFFIX))
    first = max((base for base in bases if base <= start), default=None)
    if first is None and (bases or start == 0):
        raise CorruptError(f"{directory}: expected a log from offset {start} on, found segments {bases}")
    for base in bases:
        if first is not None and base >= first:
            path = directory / f"{base:020d}{LOG_SUFFIX}"
            image.apply_all(_records(path, base, start, is_last=base == bases[-1]))
    return image


def _records(path: Path, base: int, start: int, is_last: bool = False) -> Iterator[MetadataRecord]:
    """The records of a file from an offset on. The end of the last file may be a batch that a crash has cut off."""
    descriptors = Descriptors(1)
    segment = StoredSegment.load(path.parent, base, SegmentSettings(read_only=True), now_ms, descriptors)
    segment.log = PinnedFile(str(path), descriptors)
    segment.freeze()
    # What is below is not needed: only its headers are looked at, to find the place.
    segment.offset_index.begin_in_memory()
    try:
        found_at = segment.position_of(start) if start > base else (0, 0, 0, 0)
        if found_at is None:
            return
        for buffer, table in segment.batches(found_at[0], partial_ok=is_last):
            kept = table[(table[:, LAST_OFFSET] >= start) & (table[:, ATTRIBUTES] & CONTROL == 0)]
            if not len(kept):
                continue
            for part in batches.columns(buffer, kept, int(table[0, POSITION])):
                for record in part.records():
                    if record.offset is None or record.offset < start or record.value is None:
                        continue
                    found = read(record.value)
                    if found is not None:
                        yield found
    finally:
        segment.abandon()
