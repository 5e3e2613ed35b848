"""How far each partition is compacted: the file `cleaner-offset-checkpoint` of a log directory."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from pathlib import Path

from topicfs.engine.errors import CorruptCheckpointError
from topicfs.engine.files.checkpoint import OffsetCheckpoint
from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.format.paths import CLEANER_OFFSETS

log = logging.getLogger(__name__)


class CleanerOffsets:
    """The offsets, in memory and on disk. A change is on disk when its method returns. After an OSError it is in
    memory only, and the next change writes both.

    _file       the checkpoint
    _offsets    offset where the next compaction begins, for each partition that was compacted before
    _is_behind  whether the file lacks changes that memory has
    _lock       held during a change
    """

    def __init__(self, logs: Path) -> None:
        self._file = OffsetCheckpoint(logs / CLEANER_OFFSETS)
        self._offsets: dict[PartitionKey, int] = {}
        self._is_behind = False
        self._lock = threading.Lock()

    def read(self, present: Collection[PartitionKey], read_only: bool = False) -> None:
        """Read the file, and drop the entries of partitions that do not exist. Drop them from the file too, unless
        `read_only`: they must not apply to a later partition of that name."""
        try:
            found = self._file.read()
        except CorruptCheckpointError as error:
            log.warning(f"compaction will begin at the start offsets: {error}")
            self._offsets, self._is_behind = {}, True
            return
        self._offsets = {key: offset for key, offset in found.items() if key in present}
        if len(self._offsets) < len(found) and not read_only:
            self._write()

    def get(self, key: PartitionKey) -> int | None:
        """Return the offset where compaction last ended, or None before the first one."""
        return self._offsets.get(key)

    def put(self, key: PartitionKey, offset: int) -> None:
        """Save the offset where compaction ended."""
        with self._lock:
            if self._offsets.get(key) != offset or self._is_behind:
                self._offsets = {**self._offsets, key: offset}
                self._write()

    def lower(self, key: PartitionKey, offset: int) -> None:
        """Lower the saved offset to `offset`, because the log was cut there."""
        with self._lock:
            if self._offsets.get(key, -1) > offset:
                self._offsets = {**self._offsets, key: offset}
                self._write()

    def forget(self, key: PartitionKey) -> None:
        """Remove the offset of a partition that was deleted or starts again."""
        with self._lock:
            if key in self._offsets or self._is_behind:
                self._offsets = {each: offset for each, offset in self._offsets.items() if each != key}
                self._write()

    def _write(self) -> None:
        # Until the write is complete, nobody knows what a failed write left.
        self._is_behind = True
        self._file.write(self._offsets)
        self._is_behind = False
