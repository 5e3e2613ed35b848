"""The topics of a store that mirror topics of a Kafka cluster. File `linked-topics`, JSON, replaced as a whole:

    {"version": 1, "topics": {"<topic id>": {
        "name": …, "cluster": …,              of the topic, and the id of the cluster that has it
        "settings": {…}, "broker": {…},       settings of the topic there, and of its brokers that are their defaults
        "begins": {"<partition>": <offset>},  where the mirror of a partition began
        "ended": null | "<why>"}}}            why nothing more is mirrored: the topic was deleted, or made anew

A partition is linked if its topic id is in the file. So the partitions stay linked when the store is mounted without
its cluster, and a deletion that is taken back brings the link back too. Entries are never removed: each has some
hundred bytes, and topic ids never come back.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from topicfs.engine.errors import CorruptCheckpointError, LinkError
from topicfs.engine.files.atomic import read_bounded, write_atomically
from topicfs.engine.files.metadata import parse_uuid
from topicfs.engine.format.paths import LINKED_TOPICS
from topicfs.engine.record import MAX_INT32, MAX_INT64

_VERSION: Final = 1
_MOST_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class LinkedTopic:
    """A topic of a Kafka cluster that is mirrored here.

    topic_id   its id in the cluster, which the partitions here have too
    name       its name, there and here
    cluster    the id of the cluster
    settings   the topic's own settings in the cluster; None while they are not known
    broker     the settings of the cluster's brokers that are defaults of topic settings
    begins     by partition: the offset at which its mirror began
    ended      why nothing more is mirrored; None while the cluster has the topic
    """

    topic_id: str
    name: str
    cluster: str
    settings: Mapping[str, str] | None = None
    broker: Mapping[str, str] = field(default_factory=dict)
    begins: Mapping[int, int] = field(default_factory=dict)
    ended: str | None = None


class LinkedTopics:
    """The linked topics of one store. Reading needs no lock.

    path     the file
    by_id    the topics by their ids; replaced as a whole
    names    the names of all of them
    _lock    held while the file is written
    """

    def __init__(self, path: Path, by_id: Mapping[str, LinkedTopic]) -> None:
        self.path = path
        self.by_id = by_id
        self.names = frozenset(topic.name for topic in by_id.values())
        self._lock = threading.Lock()

    @classmethod
    def load(cls, backing: Path) -> LinkedTopics:
        """Read the file of a store; CorruptCheckpointError if it breaks the format. Without it nothing is linked."""
        path = backing / LINKED_TOPICS
        try:
            data = read_bounded(path, _MOST_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return cls(path, {})
        try:
            told = json.loads(data)
            if told["version"] != _VERSION:
                raise CorruptCheckpointError(
                    f"{path}: expected version {_VERSION}, found {str(told['version'])[:80]}"
                )
            topics = [_topic(topic_id, fields) for topic_id, fields in told["topics"].items()]
        # RecursionError is raised for brackets that are nested thousands deep.
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptCheckpointError(
                f"{path}: expected the linked topics as JSON, found none: {error!r}. Without the file the topics stay, "
                f"as ordinary ones"
            ) from error
        return cls(path, {topic.topic_id: topic for topic in topics})

    def of(self, ids: Iterable[str | None]) -> LinkedTopic | None:
        """Return the linked topic that has one of these ids; None if there is none."""
        found = self.by_id
        return next((found[each] for each in ids if each is not None and each in found), None)

    def put(self, topics: Iterable[LinkedTopic]) -> None:
        """Add topics or replace their entries, durably and in one step: the file is written whole each time."""
        with self._lock:
            self._put(topics)

    def begin(self, begins: Mapping[str, Mapping[int, int]]) -> None:
        """Note, durably, at which offsets the mirrors of partitions begin, by topic id."""
        with self._lock:
            known = self.by_id
            self._put(
                replace(known[topic_id], begins={**known[topic_id].begins, **offsets})
                for topic_id, offsets in begins.items()
            )

    def _put(self, topics: Iterable[LinkedTopic]) -> None:
        by_id = {**self.by_id, **{topic.topic_id: topic for topic in topics}}
        if by_id == self.by_id:
            return
        # A line for each topic. json.dumps with an indent takes ten times as long: it is not the one written in C.
        lines = ",\n".join(
            f"{json.dumps(topic_id)}: {json.dumps(_told(topic))}" for topic_id, topic in by_id.items()
        )
        data = f'{{"version": {_VERSION}, "topics": {{\n{lines}\n}}}}\n'.encode()
        if len(data) > _MOST_BYTES:
            raise LinkError(
                f"{self.path}: expected at most {_MOST_BYTES} bytes, found {len(data)} for {len(by_id)} topics: mirror "
                f"fewer of them, by patterns in link.topics, or in several stores"
            )
        write_atomically(self.path, data)
        self.by_id, self.names = by_id, frozenset(topic.name for topic in by_id.values())


def _told(topic: LinkedTopic) -> dict[str, Any]:
    told = asdict(topic)
    del told["topic_id"]
    return told


def _topic(topic_id: str, fields: Mapping[str, Any]) -> LinkedTopic:
    if parse_uuid(topic_id) is None:
        raise ValueError(f"{topic_id[:80]!r} is no topic id")
    settings, ended = fields["settings"], fields["ended"]
    begins = {int(number): _within(offset, MAX_INT64) for number, offset in fields["begins"].items()}
    return LinkedTopic(
        topic_id,
        str(fields["name"]),
        str(fields["cluster"]),
        None if settings is None else _texts(settings),
        _texts(fields["broker"]),
        {_within(number, MAX_INT32): offset for number, offset in begins.items()},
        None if ended is None else str(ended),
    )


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items()}


def _within(number: Any, most: int) -> int:
    if not isinstance(number, int) or not 0 <= number <= most:
        raise ValueError(f"expected a number from 0 to {most}, found {str(number)[:80]}")
    return number
