"""Tables of the settings by name, and hints for names that are used in the wrong place."""

from __future__ import annotations

from typing import Final

from topicfs.engine.record import MAX_INT64
from topicfs.engine.settings.definitions import DAEMON, TOPIC, at_least
from topicfs.engine.settings.setting import Range, Setting, Synonym, ValueKind

# For the daemon-wide retention times, any negative number means no limit, and 0 is refused.
_UNLIMITED_OR_POSITIVE: Final[tuple[Range, ...]] = ((-MAX_INT64 - 1, -1), (1, MAX_INT64))

# The kinds and ranges of daemon-wide settings that differ from the topic setting's: other units, or rules of their own.
_SYNONYM_RANGES: Final = {
    "log.retention.ms": (ValueKind.LONG, _UNLIMITED_OR_POSITIVE),
    "log.retention.minutes": (ValueKind.INT, _UNLIMITED_OR_POSITIVE),
    "log.retention.hours": (ValueKind.INT, _UNLIMITED_OR_POSITIVE),
    "log.roll.hours": (ValueKind.INT, at_least(1)),
    "log.roll.jitter.hours": (ValueKind.INT, at_least(0)),
}


def _synonym_setting(topic: Setting, synonym: Synonym) -> Setting:
    kind, ranges = _SYNONYM_RANGES.get(synonym.name, (topic.kind, topic.ranges))
    return Setting(
        synonym.name,
        kind,
        None,
        f"default of the topic setting {topic.name}: {topic.doc}",
        ranges=ranges,
        choices=topic.choices,
        effect=topic.effect,
    )


SYNONYMS: Final = {
    synonym.name: _synonym_setting(setting, synonym) for setting in TOPIC for synonym in setting.synonyms
}
TOPIC_BY_NAME: Final = {setting.name: setting for setting in TOPIC}
DAEMON_BY_NAME: Final = {
    # A name that is also a daemon setting keeps that definition.
    **SYNONYMS,
    **{setting.name: setting for setting in DAEMON},
}

_REMOVED: Final = {
    "message.format.version": "Kafka 4.0 removed it; records have format v2",
    "message.downconversion.enable": "Kafka 4.0 removed it; records have format v2",
    "message.timestamp.difference.max.ms": "Kafka 4.0 replaced it by message.timestamp.before.max.ms and "
    "message.timestamp.after.max.ms",
}

TOPIC_HINTS: Final = {
    **{
        synonym.name: f"in a topic's settings it is {setting.name}, in its own unit"
        for setting in TOPIC
        for synonym in setting.synonyms
        if synonym.name != setting.name
    },
    **{
        setting.name: "it holds for the whole daemon, and belongs into server.properties"
        for setting in DAEMON
    },
    **_REMOVED,
}

DAEMON_HINTS: Final = {
    **{
        setting.name: f"in server.properties it is {setting.synonyms[0].name}"
        if setting.synonyms
        else "it is set for each topic"
        for setting in TOPIC
    },
    **{
        f"log.{name}": reason.replace("message.timestamp.", "log.message.timestamp.")
        for name, reason in _REMOVED.items()
    },
    "log.dir": "the log directory is always logs/ beside server.properties",
    "log.dirs": "the log directory is always logs/ beside server.properties",
    "metadata.log.dir": "the log directory is always logs/ beside server.properties",
}
