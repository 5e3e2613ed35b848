"""The settings of a topic. Each comes from the first of these sources that has it:

topic            topics/<topic>.properties
cluster          the topic's own settings in the Kafka cluster that a broker's directory comes from
cluster:<name>   the settings of that cluster's broker that were changed while it ran
daemon:<name>    server.properties and the command line
kept             values that keep the records of a topic that was not made here, as we do not decide about them
default          the default in the table of settings
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, cast

from topicfs.engine.errors import InvalidSettingError
from topicfs.engine.record import Codec, TimestampType
from topicfs.engine.settings.definitions import COMPACT, DELETE, TOPIC
from topicfs.engine.settings.lookup import DAEMON_BY_NAME, TOPIC_BY_NAME, TOPIC_HINTS
from topicfs.engine.settings.setting import Setting, Value, refuse_unknown, text_of

_CODECS: Final = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
_TIMESTAMP_TYPES: Final = {
    "CreateTime": TimestampType.CREATE_TIME,
    "LogAppendTime": TimestampType.LOG_APPEND_TIME,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """The settings of one topic. Each field has the name of its setting, with underscores in place of dots.

    *_ms            milliseconds
    *_bytes         bytes; segment_bytes is internal.segment.bytes where that is set
    cleanup_policy  a subset of {"compact", "delete"}; the empty set keeps everything
    retention_*     negative means no limit; -1 is the only negative retention_ms
    flush_*         2^63-1 means never
    parquet_enable  whether to keep the files of engine.parquet; not a setting of Kafka

    The settings of a cluster and of tiered storage (min_insync_replicas, unclean_leader_election_enable,
    remote_*, local_*) have no effect.
    """

    cleanup_policy: frozenset[str]
    compression_type: str
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    delete_retention_ms: int
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    index_interval_bytes: int
    max_message_bytes: int
    max_compaction_lag_ms: int
    min_compaction_lag_ms: int
    min_cleanable_dirty_ratio: float
    message_timestamp_type: TimestampType
    message_timestamp_before_max_ms: int
    message_timestamp_after_max_ms: int
    min_insync_replicas: int
    preallocate: bool
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    segment_jitter_ms: int
    segment_ms: int
    parquet_enable: bool
    unclean_leader_election_enable: bool
    remote_storage_enable: bool
    local_retention_ms: int
    local_retention_bytes: int
    remote_log_copy_disable: bool
    remote_log_delete_on_disable: bool

    @property
    def compact(self) -> bool:
        """Whether old values of a key are removed."""
        return COMPACT in self.cleanup_policy

    @property
    def delete(self) -> bool:
        """Whether old segments are removed by age and size."""
        return DELETE in self.cleanup_policy

    @property
    def cleanup_policy_text(self) -> str:
        """The policy as text, in alphabetical order; empty where everything is kept."""
        return ",".join(sorted(self.cleanup_policy))

    @property
    def codec(self) -> Codec | None:
        """The codec with which batches are stored; None: as the writer compressed them."""
        return _CODECS.get(self.compression_type)

    def level(self, codec: Codec) -> int | None:
        """Return the compression level of a codec; None for a codec without levels."""
        return {
            Codec.GZIP: self.compression_gzip_level,
            Codec.LZ4: self.compression_lz4_level,
            Codec.ZSTD: self.compression_zstd_level,
        }.get(codec)


class Explained(NamedTuple):
    """One setting of a topic, with its source.

    name    the name of the topic setting
    value   the value as text, in the topic setting's unit
    source  "topic", "cluster", "cluster:<name>", "daemon:<name in server.properties>", "kept" or "default"
    """

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class TopicOrigin:
    """The origin of a topic. It decides the settings that nobody has set here.

    settings  the topic's own settings in the cluster that it comes from
    broker    the settings of the cluster's broker that are defaults of topic settings
    adopted   whether the topic was not made here: our defaults would delete its records at an age that nobody chose
    known     whether a cluster's metadata has the topic: what that does not set was left at Kafka's default
    exempt    whether defaults for all topics do not decide about its records: it is one of Kafka's own topics, or the
              metadata about it cannot be trusted
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    broker: Mapping[str, str] = field(default_factory=dict)
    adopted: bool = False
    known: bool = False
    exempt: bool = False


OURS: Final = TopicOrigin()
"""The origin of a topic that was made here."""

KEPT: Final = "kept"
"""The source of a value that keeps records until somebody sets the setting."""

_KEPT_OF_KNOWN: Final[Mapping[str, Value]] = {"retention.ms": -1}
_KEPT_OF_UNKNOWN: Final[Mapping[str, Value]] = {"cleanup.policy": (), **_KEPT_OF_KNOWN}
"""The topic may be a compacted one, whose records no retention may remove."""
KEPT_OF_EXEMPT: Final[Mapping[str, Value]] = {"retention.bytes": -1, **_KEPT_OF_UNKNOWN}


def resolve_topic(
    overrides: Mapping[str, str], daemon: Mapping[str, str], origin: TopicOrigin = OURS
) -> TopicSettings:
    """Return the settings of a topic with these overrides and these lines of server.properties.

    InvalidSettingError for an unknown override, a value that is not allowed, or two that exclude each other.
    It is also the check of a change while the daemon runs: every setting of a topic may change then.
    """
    found = {
        setting.name: _resolve(setting, overrides, daemon, origin)[0] for setting in _settings(overrides)
    }
    _check_together(found)
    segment_bytes = found.pop("internal.segment.bytes")
    if segment_bytes is not None:
        found["segment.bytes"] = segment_bytes
    # The kinds in the table match the types of the fields; a test compares the two.
    fields = cast(dict[str, object], {name.replace(".", "_"): value for name, value in found.items()})
    fields["cleanup_policy"] = frozenset(cast(tuple[str, ...], found["cleanup.policy"]))
    fields["message_timestamp_type"] = _TIMESTAMP_TYPES[cast(str, found["message.timestamp.type"])]
    return TopicSettings(**fields)  # type: ignore[arg-type]


def explain(
    overrides: Mapping[str, str], daemon: Mapping[str, str], origin: TopicOrigin = OURS
) -> list[Explained]:
    """Return every setting that has a value, with its source, in the order of the table."""
    explained = []
    for setting in _settings(overrides):
        value, source = _resolve(setting, overrides, daemon, origin)
        if value is not None:
            explained.append(Explained(setting.name, text_of(value), source))
    return explained


def _settings(overrides: Mapping[str, str]) -> tuple[Setting, ...]:
    refuse_unknown("topic", overrides, TOPIC_BY_NAME, TOPIC_HINTS)
    return TOPIC


def _resolve(
    setting: Setting, overrides: Mapping[str, str], daemon: Mapping[str, str], origin: TopicOrigin
) -> tuple[Value | None, str]:
    if setting.name in overrides:
        return setting.parse(overrides[setting.name]), "topic"
    if setting.name in origin.settings:
        return setting.parse(origin.settings[setting.name]), "cluster"
    if origin.exempt and setting.name in KEPT_OF_EXEMPT:
        return KEPT_OF_EXEMPT[setting.name], KEPT
    for source, lines in (("cluster", origin.broker), ("daemon", daemon)):
        for synonym in setting.synonyms:
            if synonym.name in lines:
                value = DAEMON_BY_NAME[synonym.name].parse(lines[synonym.name])
                return _converted(setting, value, synonym.factor), f"{source}:{synonym.name}"
    if origin.adopted:
        kept = _KEPT_OF_KNOWN if origin.known else _KEPT_OF_UNKNOWN
        if setting.name in kept:
            return kept[setting.name], KEPT
    return setting.default, "default"


def _converted(setting: Setting, value: Value, factor: int) -> Value:
    if setting.name == "retention.ms" and isinstance(value, int):
        # Any negative time means no limit, in every unit; the topic setting has -1 for it.
        return max(value * factor, -1)
    return value * factor if factor != 1 and isinstance(value, int) else value


def _check_together(found: Mapping[str, Value | None]) -> None:
    least, most = found["min.compaction.lag.ms"], found["max.compaction.lag.ms"]
    if cast(int, least) > cast(int, most):
        raise InvalidSettingError(
            f"min.compaction.lag.ms: expected at most max.compaction.lag.ms, which is {most}, found {least}"
        )
    policy = cast(tuple[str, ...], found["cleanup.policy"])
    if found["remote.storage.enable"] and COMPACT in policy:
        raise InvalidSettingError(
            f"remote.storage.enable: expected false where cleanup.policy is {text_of(policy)}, found true"
        )
