"""The topics that a coordinator keeps for itself: `__consumer_offsets` and `__transaction_state`.

They are made when they are first needed, with the settings that a broker gives them, and with fewer partitions: a
broker spreads its 50 over many machines, and here each would be one more directory to list and one more file to flush.
`offsets.topic.num.partitions` and `transaction.state.log.num.partitions` say how many, as long as they do not exist. A
broker that takes over the directory finds its partition for a group or a transactional id by the count that it finds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from topicfs.engine.errors import LinkedTopicError
from topicfs.engine.messages.topics import OFFSETS, TRANSACTIONS
from topicfs.engine.settings.daemon import DaemonSettings

if TYPE_CHECKING:
    from topicfs.engine.store.store import Store

_SEGMENT_BYTES: Final = 100 << 20
"""Bytes of a segment of these topics, as `offsets.topic.segment.bytes` and `transaction.state.log.segment.bytes` are by
default: a coordinator reads a partition from its start, so it is compacted often."""

_OVERRIDES: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    "compression.type": "uncompressed",
    "segment.bytes": str(_SEGMENT_BYTES),
}
_PARTITIONS: Final[Mapping[str, Callable[[DaemonSettings], int]]] = {
    OFFSETS: lambda settings: settings.offsets_topic_num_partitions,
    TRANSACTIONS: lambda settings: settings.transaction_state_log_num_partitions,
}


def numbers(store: Store, topic: str, create: bool) -> list[int]:
    """Return the numbers of an internal topic's partitions, in order. Where there are none, it is made with `create`;
    else none is returned. LinkedTopicError where it mirrors the one of a Kafka cluster, whose coordinators write it."""
    linked = store.links.topic(topic)
    if linked is not None:
        raise LinkedTopicError(
            f"{topic}: mirrors the one of a Kafka cluster, whose own coordinators write it"
        )
    found = list(store.topics().get(topic, ()))
    if not found and create:
        found = [
            partition.number
            for partition in store.create_topic(topic, _PARTITIONS[topic](store.daemon), _OVERRIDES)
        ]
    return found
