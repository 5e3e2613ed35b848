"""A cluster's topics and settings, after all records of its metadata log are applied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from topicfs.engine.cluster.records import (
    ABORT,
    BEGIN,
    OF_BROKER,
    OF_TOPIC,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemovedRecord,
    SettingRecord,
    TopicRecord,
    Transaction,
)


@dataclass(frozen=True, slots=True)
class ClusterTopic:
    """One topic of a cluster.

    topic_id    its id, as in the `partition.metadata` of its partitions
    partitions  the number of its partitions in the whole cluster
    settings    its own settings, by Kafka's names
    replicas    by the number of a partition: how many replicas it has
    """

    topic_id: str
    partitions: int
    settings: Mapping[str, str]
    replicas: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cluster:
    """The topics and settings of a cluster.

    topics       the topics by name
    settings     the settings that were changed while the broker of this log directory ran: they take precedence over
                 its server.properties
    is_believed  False where there is metadata that cannot be read completely
    """

    topics: Mapping[str, ClusterTopic] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    is_believed: bool = True


@dataclass(slots=True)
class _Topic:
    name: str
    replicas: dict[int, int] = field(default_factory=dict)


class Image:
    """The state of the cluster after the records that were applied so far.

    _topics    the topics by id
    _settings  the settings by resource type and resource
    _waiting   the records of a transaction that has not ended; None while there is none
    """

    def __init__(self) -> None:
        self._topics: dict[str, _Topic] = {}
        self._settings: dict[tuple[int, str], dict[str, str]] = {}
        self._waiting: list[MetadataRecord] | None = None

    def apply_all(self, records: Iterable[MetadataRecord]) -> None:
        """Apply records, in their order."""
        for record in records:
            if isinstance(record, Transaction):
                waiting, self._waiting = self._waiting, [] if record.kind == BEGIN else None
                for each in waiting or () if record.kind != ABORT else ():
                    self._apply(each)
            elif self._waiting is not None:
                self._waiting.append(record)
            else:
                self._apply(record)

    def _apply(self, record: MetadataRecord) -> None:
        match record:
            case TopicRecord(name, topic_id):
                self._topics[topic_id] = _Topic(name)
            case PartitionRecord(number, topic_id, replicas) | PartitionChangeRecord(
                number, topic_id, int(replicas)
            ):
                # If the topic is not known, it is deleted.
                if topic_id in self._topics:
                    self._topics[topic_id].replicas[number] = replicas
            case SettingRecord(kind, resource, name, value):
                settings = self._settings.setdefault((kind, resource), {})
                if value is None:
                    settings.pop(name, None)
                else:
                    settings[name] = value
            case RemovedRecord(topic_id):
                topic = self._topics.pop(topic_id, None)
                if topic is not None:
                    self._settings.pop((OF_TOPIC, topic.name), None)

    def cluster(self, node_id: int | None) -> Cluster:
        """Return the cluster as it is known now, with the settings of the broker with this number."""
        return Cluster(
            {
                topic.name: ClusterTopic(
                    topic_id,
                    len(topic.replicas),
                    dict(self._settings.get((OF_TOPIC, topic.name), {})),
                    dict(topic.replicas),
                )
                for topic_id, topic in self._topics.items()
            },
            {
                **self._settings.get((OF_BROKER, ""), {}),
                **self._settings.get((OF_BROKER, str(node_id)), {}),
            },
        )
