"""The public names of topicfs that need the kernels, all of them loaded."""

from topicfs.engine.batch.columns import Columns
from topicfs.engine.clients.producer import IdempotentProducer
from topicfs.engine.clients.transaction import Transaction
from topicfs.engine.groups.consumer import Consumer, ConsumerRecord
from topicfs.engine.partition.offsets import Appended, Isolation, LogOffsets
from topicfs.engine.partition.partition import Partition, Producer
from topicfs.engine.record import Clock, Codec, Record, TimestampType, now_ms
from topicfs.engine.settings.daemon import DaemonSettings
from topicfs.engine.settings.topic import TopicSettings
from topicfs.engine.store.store import Store

__all__ = [
    "Appended",
    "Clock",
    "Codec",
    "Columns",
    "Consumer",
    "ConsumerRecord",
    "DaemonSettings",
    "IdempotentProducer",
    "Isolation",
    "LogOffsets",
    "Partition",
    "Producer",
    "Record",
    "Store",
    "TimestampType",
    "TopicSettings",
    "Transaction",
    "now_ms",
]
