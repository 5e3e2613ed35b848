"""The offsets that a log directory remembers of all its partitions, in one file for each kind.

A partition that is loaded speaks for itself; of another one, what was read when the store was opened is
written again. A file whose entries have not changed is not written. Compaction keeps a file of its own,
`engine/cleaner/checkpoint.py`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from topicfs.engine.errors import CorruptCheckpointError
from topicfs.engine.files.checkpoint import OffsetCheckpoint
from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.format.paths import HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS
from topicfs.engine.partition.loading import Known
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.slot import Slot

log = logging.getLogger(__name__)

_LOST: Final = {
    RECOVERY_POINTS: "every recovery point counts as 0",
    LOG_STARTS: "each partition starts at its first segment",
    HIGH_WATERMARKS: "each high watermark begins at the start offset",
}

Slots = Callable[[], Iterable[Slot]]


class Checkpoints:
    """The offset checkpoints of one log directory.

    _directory  the log directory
    _slots      gives the partitions that there are
    _known      offsets of each file, of partitions that are not loaded; as read at the opening
    _written    what each file holds; None where that is not known
    _ceilings   recovery points are not written above these, while a truncation is under way
    _floors     start offsets are not written below these, while records are being deleted
    _lock       one writer at a time, who also gathers: no older offsets follow newer ones
    _read_only  the files are not written
    """

    def __init__(self, directory: Path, slots: Slots, read_only: bool = False) -> None:
        self._directory = directory
        self._slots = slots
        self._read_only = read_only
        self._known: dict[str, dict[PartitionKey, int]] = {}
        self._written: dict[str, Mapping[PartitionKey, int] | None] = {}
        self._ceilings: dict[PartitionKey, int] = {}
        self._floors: dict[PartitionKey, int] = {}
        self._lock = threading.Lock()

    def read(self, present: Collection[PartitionKey]) -> None:
        """Read the files. Entries of partitions that are not there are dropped, also from the files:
        a later partition of that name has nothing to do with them."""
        for name in _LOST:
            self._read(name, present)

    def _read(self, name: str, present: Collection[PartitionKey]) -> None:
        try:
            found = OffsetCheckpoint(self._directory / name).read()
        except CorruptCheckpointError as error:
            log.warning(f"{_LOST[name]}: {error}")
            self._known[name], self._written[name] = {}, None
            return
        self._known[name] = {key: offset for key, offset in found.items() if key in present}
        self._written[name] = found if (self._directory / name).exists() else None
        if len(self._known[name]) < len(found):
            log.info(
                f"{self._directory / name}: {len(found) - len(self._known[name])} entries without a partition"
            )
            self._rewrite(name)

    def known(self, key: PartitionKey, clean: bool) -> Known:
        """What loading the partition has to know."""
        return Known(
            clean,
            self._known[RECOVERY_POINTS].get(key, 0),
            self._known[LOG_STARTS].get(key, 0),
            self._known[HIGH_WATERMARKS].get(key),
        )

    def adopt(self, key: PartitionKey, known: Known) -> None:
        """A partition comes back with what was known of it: that holds until it is loaded, and is written next. Where
        a larger start offset is known, it was set when the partition was back already."""
        with self._lock:
            self._known[RECOVERY_POINTS][key] = known.recovery_point
            self._known[LOG_STARTS][key] = max(known.start, self._known[LOG_STARTS].get(key, 0))
            if known.high_watermark is not None:
                self._known[HIGH_WATERMARKS][key] = known.high_watermark

    # -- writing --------------------------------------------------------------------------------------

    def write_recovery_points(self) -> None:
        """Below each, everything is on disk."""
        with self._lock:
            self._rewrite(RECOVERY_POINTS)

    def write_start_offsets(self) -> None:
        """Of the partitions that start above their first segment's base."""
        with self._lock:
            self._rewrite(LOG_STARTS)

    def write_high_watermarks(self) -> None:
        """Below each, every replica has the records."""
        with self._lock:
            self._rewrite(HIGH_WATERMARKS)

    def write_all(self) -> None:
        """In the order of a stop."""
        self.write_recovery_points()
        self.write_start_offsets()
        self.write_high_watermarks()

    def forget(self, key: PartitionKey) -> None:
        """Drop what is left of a partition that was deleted, from the files that have an entry of it.

        A later partition of that name must never find it: a start offset would empty that one."""
        with self._lock:
            for name, known in self._known.items():
                known.pop(key, None)
                written = self._written[name]
                if written is None or key in written:
                    self._rewrite(name)

    @contextlib.contextmanager
    def held_down(self, key: PartitionKey, offset: int) -> Iterator[None]:
        """While a log is cut at an offset, its recovery point on disk is no higher, from before the cut on.

        Were it lowered after the cut only, a crash in between would leave one that vouches for records
        which were appended since."""
        self._ceilings[key] = offset
        try:
            self.write_recovery_points()
            yield
        finally:
            del self._ceilings[key]
        self.write_all()

    @contextlib.contextmanager
    def raised(self, key: PartitionKey, offset: int) -> Iterator[None]:
        """While the records below an offset are deleted, the start offset on disk is no lower, from before they are
        gone on: what cannot be written down is not done. After an error it is what it was."""
        self._floors[key] = offset
        try:
            self.write_start_offsets()
            yield
        except BaseException:
            del self._floors[key]
            # The error may have come after the file was replaced.
            with contextlib.suppress(OSError):
                self.write_start_offsets()
            raise
        del self._floors[key]

    def _rewrite(self, name: str) -> None:
        """Gather and write. The caller holds the lock."""
        if self._read_only:
            return
        known = self._known[name]
        offsets = {}
        for slot in self._slots():
            partition = slot.partition
            offset = known.get(slot.key) if partition is None else self._offset(name, partition)
            if offset is not None:
                offsets[slot.key] = offset
        if offsets == self._written[name]:
            return
        # Until it has been written whole, nobody knows what a failed write left.
        self._written[name] = None
        OffsetCheckpoint(self._directory / name).write(offsets)
        self._written[name] = offsets

    def _offset(self, name: str, partition: Partition) -> int | None:
        if name == HIGH_WATERMARKS:
            return partition.high_watermark
        if name == LOG_STARTS:
            floor = self._floors.get((partition.topic, partition.number), 0)
            return _raised_start(partition, floor)
        ceiling = self._ceilings.get((partition.topic, partition.number))
        point = partition.recovery_point
        return point if ceiling is None else min(point, ceiling)


def _raised_start(partition: Partition, floor: int) -> int | None:
    segments = partition.log.chain.segments
    # No segments: for a moment, while the partition is emptied.
    base = segments.first.base_offset if len(segments) else 0
    start = max(partition.start_offset, floor)
    return start if start > base else None
