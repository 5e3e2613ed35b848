"""The offset checkpoints of a log directory: one file for each kind of offset, with an entry for each partition.

The offset of a loaded partition comes from the partition. The offset of another one is written again as it was read
when the store was opened. A file whose entries have not changed is not written. Compaction has a file of its own, see
`engine/cleaner/checkpoint.py`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from topicfs.engine.errors import CorruptCheckpointError
from topicfs.engine.files.checkpoint import OffsetCheckpoint
from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.files.look import Look
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

_LOOK_S: Final = 0.5
"""Time between two looks at the files of another process: a broker writes them each 5 s, and each minute."""

Slots = Callable[[], Iterable[Slot]]


class Checkpoints:
    """The offset checkpoints of one log directory.

    _directory  the log directory
    _slots      returns the slots of all partitions
    _known      by file name: the offsets of partitions that are not loaded, as they were read at the opening
    _written    by file name: the content of the file; None where it is not known
    _ceilings   by partition: the highest recovery point that may be written, while a truncation is under way
    _floors     by partition: the lowest start offset that may be written, while records are being deleted
    _lock       held while offsets are gathered and written: older offsets never replace newer ones
    _read_only  whether the files must not be written
    _looked_at  when the files were last looked at, by a clock that nobody can set
    _files      by file name: when the file was read; None where there was none
    """

    def __init__(self, directory: Path, slots: Slots, read_only: bool = False) -> None:
        self._directory = directory
        self._slots = slots
        self._read_only = read_only
        self._looked_at = 0.0
        self._files: dict[str, Look | None] = {}
        self._known: dict[str, dict[PartitionKey, int]] = {}
        self._written: dict[str, Mapping[PartitionKey, int] | None] = {}
        self._ceilings: dict[PartitionKey, int] = {}
        self._floors: dict[PartitionKey, int] = {}
        self._lock = threading.Lock()

    def read(self, present: Collection[PartitionKey]) -> None:
        """Read the files. Entries of partitions that do not exist are dropped, also from the files:
        they must not apply to a later partition of that name."""
        for name in _LOST:
            self._read(name, present)

    def _read(self, name: str, present: Collection[PartitionKey]) -> None:
        status = _status_of(self._directory / name)
        self._files[name] = None if status is None else Look.begin(status)
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

    def catch_up(self) -> None:
        """Read the files that another process has replaced. Shortly after the last time this does nothing. What a file
        says of partitions that are not there yet is kept: they may come."""
        if time.monotonic() - self._looked_at < _LOOK_S:
            return
        with self._lock:
            self._looked_at = time.monotonic()
            for name in _LOST:
                path = self._directory / name
                status = _status_of(path)
                read = self._files.get(name)
                self._known.setdefault(name, {})
                if status is not None and not (read is not None and read.holds(status)):
                    self._files[name] = Look.begin(status)
                    try:
                        offsets = OffsetCheckpoint(path).read()
                    except CorruptCheckpointError as error:
                        log.warning(f"what was read of it before counts: {error}")
                        continue
                    if offsets != self._written.get(name):
                        # Equal ones must not replace offsets that were adopted since.
                        self._known[name], self._written[name] = offsets, offsets

    def known(self, key: PartitionKey, clean: bool) -> Known:
        """Return what is known of a partition before it is loaded."""
        return Known(
            clean,
            self._known[RECOVERY_POINTS].get(key, 0),
            self._known[LOG_STARTS].get(key, 0),
            self._known[HIGH_WATERMARKS].get(key),
        )

    def adopt(self, key: PartitionKey, known: Known) -> None:
        """Take over the offsets of a restored partition. They hold until it is loaded, and are written next. A larger
        start offset that is known already is kept: it was set after the partition was restored."""
        with self._lock:
            self._known[RECOVERY_POINTS][key] = known.recovery_point
            self._known[LOG_STARTS][key] = max(known.start, self._known[LOG_STARTS].get(key, 0))
            if known.high_watermark is not None:
                self._known[HIGH_WATERMARKS][key] = known.high_watermark

    # -- writing --------------------------------------------------------------------------------------

    def write_recovery_points(self) -> None:
        """Write the recovery points. All records below a recovery point are on disk."""
        with self._lock:
            self._rewrite(RECOVERY_POINTS)

    def write_start_offsets(self) -> None:
        """Write the start offsets of the partitions that start above the base offset of their first segment."""
        with self._lock:
            self._rewrite(LOG_STARTS)

    def write_high_watermarks(self) -> None:
        """Write the high watermarks. Every replica has the records below a high watermark."""
        with self._lock:
            self._rewrite(HIGH_WATERMARKS)

    def write_all(self) -> None:
        """Write all files, in the order that is used when the store is closed."""
        self.write_recovery_points()
        self.write_start_offsets()
        self.write_high_watermarks()

    def forget(self, key: PartitionKey) -> None:
        """Drop the entries of a deleted partition from the files that have one.

        A later partition of that name must never find them: an old start offset would empty it."""
        with self._lock:
            for name, known in self._known.items():
                known.pop(key, None)
                written = self._written[name]
                if written is None or key in written:
                    self._rewrite(name)

    @contextlib.contextmanager
    def held_down(self, key: PartitionKey, offset: int) -> Iterator[None]:
        """Keep the recovery point on disk at or below an offset while the log is truncated there.

        It is lowered before the cut. If it were lowered only after it, a crash in between would leave a recovery
        point above records that were appended since and are not checked."""
        self._ceilings[key] = offset
        try:
            self.write_recovery_points()
            yield
        finally:
            del self._ceilings[key]
        self.write_all()

    @contextlib.contextmanager
    def raised(self, key: PartitionKey, offset: int) -> Iterator[None]:
        """Keep the start offset on disk at or above an offset while the records below it are deleted. It is written
        before the deletion: where the write fails, nothing is deleted. After an error the old one is written again."""
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
        """Gather the offsets of one file, and write it if they have changed. The caller holds the lock."""
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
        # After a failed write the content is not known.
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


def _status_of(path: Path) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _raised_start(partition: Partition, floor: int) -> int | None:
    taken = partition.log.snapshot
    base = taken.segments.first.base_offset
    start = max(taken.start, floor)
    return start if start > base else None
