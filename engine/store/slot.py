"""The place of one partition in the store: empty until the partition is first used."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from topicfs.engine.errors import ClosedError, EngineError, UnknownPartitionError
from topicfs.engine.partition.partition import Partition
from topicfs.engine.store.listing import PartitionKey

log = logging.getLogger(__name__)


class Slot:
    """One partition, loaded or not.

    topic, number  its name is `<topic>-<number>`
    directory      where its files are
    partition      None until it is loaded; assigned once, so that a look needs no lock
    error          why it could not be loaded, or went offline while it was being deleted
    gone           deleted, or the store was closed: it is not loaded any more
    lock           held while it is loaded, reconfigured, deleted or closed
    """

    __slots__ = ("directory", "error", "gone", "lock", "number", "partition", "topic")

    def __init__(self, topic: str, number: int, directory: Path) -> None:
        self.topic = topic
        self.number = number
        self.directory = directory
        self.partition: Partition | None = None
        self.error: Exception | None = None
        self.gone = False
        self.lock = threading.Lock()

    @property
    def key(self) -> PartitionKey:
        return self.topic, self.number

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.number}"

    def use(self, load: Callable[[Slot], Partition]) -> Partition:
        """The partition, loaded now if it was not. Two callers get the same object.

        What could not be loaded stays offline until the store is opened anew: a load that failed half way
        has left files that only a recovery can vouch for."""
        partition = self.partition
        if partition is not None:
            return partition
        with self.lock:
            if self.partition is not None:
                return self.partition
            if self.gone:
                raise UnknownPartitionError(f"{self.name}: deleted meanwhile, or the store was closed")
            if self.error is None:
                try:
                    self.partition = load(self)
                except (EngineError, OSError) as error:
                    log.error(f"{self.name}: offline, {self.directory} cannot be loaded: {error!r}")
                    self.error = error
                else:
                    return self.partition
            raise ClosedError(f"{self.name} is offline: {self.error}") from self.error
