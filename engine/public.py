"""What `engine` offers, all of it loaded."""

from engine.batch.columns import Columns
from engine.partition.offsets import Appended, Isolation, Offsets
from engine.partition.partition import Partition, Producer
from engine.record import Clock, Codec, Record, TimestampType, now_ms
from engine.settings.daemon import DaemonSettings
from engine.settings.topic import TopicSettings
from engine.store.store import Store

__all__ = [
    "Appended",
    "Clock",
    "Codec",
    "Columns",
    "DaemonSettings",
    "Isolation",
    "Offsets",
    "Partition",
    "Producer",
    "Record",
    "Store",
    "TimestampType",
    "TopicSettings",
    "now_ms",
]
