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
    """The offsets, in memory and on disk. A change is on disk when its method returns; an OSError leaves it in
    memory, and the next change writes it with its own.

    _file       the checkpoint
    _offsets    where the next compaction of each partition begins; of those that were compacted before
    _is_behind  the file does not say what memory says
    _lock       one change at a time
    """

    def __init__(self, logs: Path) -> None:
        self._file = OffsetCheckpoint(logs / CLEANER_OFFSETS)
        self._offsets: dict[PartitionKey, int] = {}
        self._is_behind = False
        self._lock = threading.Lock()

    def read(self, present: Collection[PartitionKey], read_only: bool = False) -> None:
        """Read the file, and drop the entries of partitions that are not there, from the file too unless it is
        read-only: a later partition of that name has nothing to do with them."""
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
        """Where compaction last ended; None before the first one."""
        return self._offsets.get(key)

    def put(self, key: PartitionKey, offset: int) -> None:
        """Compaction ended here."""
        with self._lock:
            if self._offsets.get(key) != offset or self._is_behind:
                self._offsets = {**self._offsets, key: offset}
                self._write()

    def lower(self, key: PartitionKey, offset: int) -> None:
        """The log is cut: what compaction has done is not above this."""
        with self._lock:
            if self._offsets.get(key, -1) > offset:
                self._offsets = {**self._offsets, key: offset}
                self._write()

    def forget(self, key: PartitionKey) -> None:
        """The partition is gone, or begins anew."""
        with self._lock:
            if key in self._offsets or self._is_behind:
                self._offsets = {each: offset for each, offset in self._offsets.items() if each != key}
                self._write()

    def _write(self) -> None:
        # Until it has been written whole, nobody knows what a failed write left.
        self._is_behind = True
        self._file.write(self._offsets)
        self._is_behind = False
