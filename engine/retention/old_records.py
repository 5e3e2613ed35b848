"""Records that are older than their topic's retention.ms when they are appended.

They are taken, and retention removes them soon. Kafka does the same. Who appends an archive is surprised all the same
when its records are gone at retention's next look, so it is said.
"""

from __future__ import annotations

from topicfs.engine.batch.table import Longs
from topicfs.engine.record import NO_TIMESTAMP, TimestampType
from topicfs.engine.settings.topic import TopicSettings


class OldRecords:
    """The count of such records among some that are appended together.

    count  how many of them are too old
    _of    how many were looked at
    """

    def __init__(self) -> None:
        self.count = 0
        self._of = 0

    def add(self, timestamps: Longs, settings: TopicSettings, now: int) -> None:
        """Look at records of a topic."""
        self._of += len(timestamps)
        if not len(timestamps) or not _removes_by_time(settings):
            return
        oldest = now - settings.retention_ms
        if timestamps.min() < oldest:
            self.count += int(((timestamps < oldest) & (timestamps != NO_TIMESTAMP)).sum())

    def words(self, topic: str, settings: TopicSettings) -> str:
        """Return what becomes of them, and what would keep them; empty where there are none."""
        if not self.count:
            return ""
        return (
            f"{self.count} of {self._of} records are older than retention.ms={settings.retention_ms} of {topic}: "
            "retention removes them at its next look, or as soon as their segment has no newer record; "
            f"retention.ms=-1, written to topics/{topic}/config, keeps them"
        )


def _removes_by_time(settings: TopicSettings) -> bool:
    """Tell whether the age of records decides how long they stay. A time that the append gives them is never old."""
    return (
        settings.delete
        and settings.retention_ms >= 0
        and settings.message_timestamp_type == TimestampType.CREATE_TIME
    )
