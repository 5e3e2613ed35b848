"""The partitions of a log at one moment, as a reader without a lock finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from topicfs.engine.files.checkpoint import OffsetCheckpoint
from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.files.metadata import PartitionMetadata
from topicfs.engine.format.paths import LOG_STARTS
from topicfs.engine.unlocked.bounds import Bounds, told
from topicfs.engine.unlocked.files import Files, listed
from topicfs.engine.unlocked.place import Place

if TYPE_CHECKING:
    from topicfs.engine.unlocked.tail import Tail

_TRIES: Final = 20

T = TypeVar("T")


Tails = dict[tuple[PartitionKey, str | None], "Tail"]
"""The known ends of logs, by partition and topic id: a topic that is made again has another log."""


@dataclass(slots=True)
class TopicPartition:
    """A partition at the time when a read is planned.

    bounds    the offsets that may be read
    topic_id  id of its topic; None if it has none
    _files    its segments, None until they are needed
    """

    topic: str
    number: int
    directory: Path
    bounds: Bounds
    topic_id: str | None
    _files: Files | None

    @property
    def name(self) -> str:
        """Return `<topic>-<number>`."""
        return f"{self.topic}-{self.number}"

    @property
    def files(self) -> Files:
        """Return the segments. FileNotFoundError if the partition was deleted before it was first listed."""
        if self._files is None:
            self._files = listed(self.directory)
        return self._files


def found(
    place: Place, keys: Iterable[PartitionKey], tails: Tails | None = None, list_files: bool = True
) -> dict[PartitionKey, TopicPartition]:
    """Return these partitions, without deleted ones. `tails` keeps what is known of the ends of logs from one call to
    the next. Without `list_files` only the bounds are needed, and where a daemon tells them, no file is looked at."""
    partitions = {}
    starts = cache(_starts_in)
    for key in keys:
        partition = while_files_change(partial(_found, place, key, starts, tails, list_files))
        if partition is not None:
            partitions[key] = partition
    return partitions


def _starts_in(logs: Path) -> dict[PartitionKey, int]:
    return OffsetCheckpoint(logs / LOG_STARTS).read()


def _found(
    place: Place,
    key: PartitionKey,
    starts: Callable[[Path], dict[PartitionKey, int]],
    tails: Tails | None,
    list_files: bool,
) -> TopicPartition | None:
    topic, number = key
    logs = place.logs_of(f"{topic}-{number}")
    directory = logs / f"{topic}-{number}"
    # If the topic is made again in the meantime, its new offsets come with the old id, and the next look shows that.
    topic_id = PartitionMetadata.load(directory).topic_id
    bounds, files = told(place, topic, number), None
    if bounds is None or list_files:
        try:
            files = listed(directory)
        except FileNotFoundError:
            return None  # deleted in the meantime
        if bounds is None:
            from topicfs.engine.unlocked.tail import seen  # noqa: PLC0415 - loads the kernels

            known = None if tails is None else tails.get((key, topic_id))
            bounds, tail = seen(files, starts(logs).get(key, 0), known)
            if tails is not None and tail is not None:
                tails[key, topic_id] = tail
    return TopicPartition(topic, number, directory, bounds, topic_id, files)


def while_files_change(look: Callable[[], T]) -> T:
    """Call `look`, and call it again if a file was removed during the call."""
    for _ in range(_TRIES):
        try:
            return look()
        except FileNotFoundError:
            continue
    return look()
