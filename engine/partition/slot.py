"""The entry of one partition in the store. It is empty until the partition is first used."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Final

from topicfs.engine.errors import ClosedError, EngineError, UnknownPartitionError, passes
from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.partition.partition import Partition

log = logging.getLogger(__name__)

RETRY_S: Final = 1.0
"""Time between two attempts to load a partition that had no room: each attempt reads again what a crash left."""


class Slot:
    """One partition, loaded or not.

    topic, number  its name is `<topic>-<number>`
    directory      directory of its files
    partition      None until it is loaded; assigned once, so that a look needs no lock
    error          why it could not be loaded, or went offline while it was being deleted
    tried_at       time of the last failed load, in seconds of a clock that nobody can set
    gone           whether it was deleted, or the store was closed: it is not loaded any more
    lock           held while it is loaded, reconfigured, deleted or closed
    """

    __slots__ = ("directory", "error", "gone", "lock", "number", "partition", "topic", "tried_at")

    def __init__(self, topic: str, number: int, directory: Path) -> None:
        self.topic = topic
        self.number = number
        self.directory = directory
        self.partition: Partition | None = None
        self.error: Exception | None = None
        self.tried_at = 0.0
        self.gone = False
        self.lock = threading.Lock()

    @property
    def key(self) -> PartitionKey:
        return self.topic, self.number

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.number}"

    def use(self, load: Callable[[Slot], Partition]) -> Partition:
        """Return the partition, and load it first if needed. Two callers get the same object.

        A partition that could not be loaded stays offline until the store is opened again. Only after a temporary
        error, as on a full disk, is it tried again. A load that failed halfway has left files that need a recovery: if
        `error` is set, `load` begins with one."""
        partition = self.partition
        if partition is not None:
            return partition
        with self.lock:
            if self.partition is not None:
                return self.partition
            if self.gone:
                raise UnknownPartitionError(f"{self.name}: deleted meanwhile, or the store was closed")
            if self.error is None or self._may_try_again():
                try:
                    self.partition = load(self)
                except UnknownPartitionError:
                    # It is gone, and nothing is wrong.
                    raise
                except (EngineError, OSError) as error:
                    log.error(f"{self.name}: offline, {self.directory} cannot be loaded: {error!r}")
                    self.error = error
                    self.tried_at = monotonic()
                else:
                    self._note_loaded()
                    return self.partition
            raise ClosedError(f"{self.name} is offline: {self.error}") from self.error

    def _may_try_again(self) -> bool:
        return passes(self.error) and monotonic() - self.tried_at >= RETRY_S

    def _note_loaded(self) -> None:
        if self.error is not None:
            log.warning(f"{self.name}: is there again")
            self.error = None
