"""The partitions of a log at one moment, as a reader without a lock finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.files.metadata import PartitionMetadata
from topicfs.engine.unlocked.bounds import Bounds, Tails, seen, told
from topicfs.engine.unlocked.files import Files, listed
from topicfs.engine.unlocked.place import Place

_TRIES: Final = 20

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TopicPartition:
    """A partition at the time when a read is planned.

    files     its segments
    bounds    the offsets in them that may be read
    topic_id  id of its topic; None if it has none
    """

    topic: str
    number: int
    files: Files
    bounds: Bounds
    topic_id: str | None

    @property
    def name(self) -> str:
        """Return `<topic>-<number>`."""
        return f"{self.topic}-{self.number}"


def found(
    place: Place, keys: Iterable[PartitionKey], tails: Tails | None = None
) -> dict[PartitionKey, TopicPartition]:
    """Return these partitions, without deleted ones. `tails` keeps what is known of the ends of logs from one call to
    the next."""
    partitions = {}
    for key in keys:
        partition = while_files_change(partial(_found, place, key, tails))
        if partition is not None:
            partitions[key] = partition
    return partitions


def _found(place: Place, key: PartitionKey, tails: Tails | None) -> TopicPartition | None:
    topic, number = key
    directory = place.logs / f"{topic}-{number}"
    # If the topic is made again in the meantime, its new offsets come with the old id, and the next look shows that.
    topic_id = PartitionMetadata.load(directory).topic_id
    bounds = told(place, topic, number)
    try:
        files = listed(directory)
    except FileNotFoundError:
        return None  # deleted in the meantime
    if bounds is None:
        known = None if tails is None else tails.get((key, topic_id))
        bounds, tail = seen(place, files, topic, number, known)
        if tails is not None and tail is not None:
            tails[key, topic_id] = tail
    return TopicPartition(topic, number, files, bounds, topic_id)


def while_files_change(look: Callable[[], T]) -> T:
    """Call `look`, and call it again if a file was removed during the call."""
    for _ in range(_TRIES):
        try:
            return look()
        except FileNotFoundError:
            continue
    return look()
