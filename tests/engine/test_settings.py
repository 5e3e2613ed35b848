"""Settings: the tables of KAFKA_FORMAT 11, as files give them and as the engine gets them.

The lines of KAFKA_CASES H and M name settings whose effect is checked where it happens: in appends, retention
and compaction. Here: that each name is taken, with Kafka's default, range, unit and precedence.
"""

from __future__ import annotations

import dataclasses
from typing import get_origin, get_type_hints

import pytest

from topicfs.engine.errors import InvalidSettingError
from topicfs.engine.record import MAX_INT32, MAX_INT64, Codec, TimestampType
from topicfs.engine.settings.daemon import DaemonSettings, resolve_daemon
from topicfs.engine.settings.definitions import DAEMON, TOPIC
from topicfs.engine.settings.lookup import DAEMON_BY_NAME, TOPIC_BY_NAME
from topicfs.engine.settings.setting import Setting, ValueKind, text_of
from topicfs.engine.settings.topic import TopicSettings, explain, resolve_topic

INTEGERS = {ValueKind.INT: MAX_INT32, ValueKind.LONG: MAX_INT64}


def topic(**overrides: str) -> TopicSettings:
    return resolve_topic({name.replace("_", "."): value for name, value in overrides.items()}, {})


# -- the tables -------------------------------------------------------------------------------------

# Name, broker synonyms in order, default, lowest and highest number that is taken.
TOPIC_TABLE = [
    ("cleanup.policy", ["log.cleanup.policy"], "delete", None, None),
    ("compression.type", ["compression.type"], "producer", None, None),
    ("compression.gzip.level", ["compression.gzip.level"], "-1", -1, 9),
    ("compression.lz4.level", ["compression.lz4.level"], "9", 1, 17),
    ("compression.zstd.level", ["compression.zstd.level"], "3", -131072, 22),
    ("delete.retention.ms", ["log.cleaner.delete.retention.ms"], "86400000", 0, MAX_INT64),
    ("file.delete.delay.ms", ["log.segment.delete.delay.ms"], "60000", 0, MAX_INT64),
    ("flush.messages", ["log.flush.interval.messages"], str(MAX_INT64), 1, MAX_INT64),
    (
        "flush.ms",
        ["log.flush.interval.ms", "log.flush.scheduler.interval.ms"],
        str(MAX_INT64),
        0,
        MAX_INT64,
    ),
    ("index.interval.bytes", ["log.index.interval.bytes"], "4096", 0, MAX_INT32),
    ("max.message.bytes", ["message.max.bytes"], "1048588", 0, MAX_INT32),
    ("max.compaction.lag.ms", ["log.cleaner.max.compaction.lag.ms"], str(MAX_INT64), 1, MAX_INT64),
    ("min.compaction.lag.ms", ["log.cleaner.min.compaction.lag.ms"], "0", 0, MAX_INT64),
    ("min.cleanable.dirty.ratio", ["log.cleaner.min.cleanable.ratio"], "0.5", None, None),
    ("message.timestamp.type", ["log.message.timestamp.type"], "CreateTime", None, None),
    (
        "message.timestamp.before.max.ms",
        ["log.message.timestamp.before.max.ms"],
        str(MAX_INT64),
        0,
        MAX_INT64,
    ),
    ("message.timestamp.after.max.ms", ["log.message.timestamp.after.max.ms"], "3600000", 0, MAX_INT64),
    ("min.insync.replicas", ["min.insync.replicas"], "1", 1, MAX_INT32),
    ("preallocate", ["log.preallocate"], "false", None, None),
    ("retention.bytes", ["log.retention.bytes"], "-1", -MAX_INT64 - 1, MAX_INT64),
    (
        "retention.ms",
        ["log.retention.ms", "log.retention.minutes", "log.retention.hours"],
        "604800000",
        -1,
        MAX_INT64,
    ),
    ("segment.bytes", ["log.segment.bytes"], "1073741824", 1048576, MAX_INT32),
    ("internal.segment.bytes", [], None, 14, MAX_INT32),
    ("segment.index.bytes", ["log.index.size.max.bytes"], "10485760", 12, MAX_INT32),
    ("segment.jitter.ms", ["log.roll.jitter.ms", "log.roll.jitter.hours"], "0", 0, MAX_INT64),
    ("segment.ms", ["log.roll.ms", "log.roll.hours"], "604800000", 1, MAX_INT64),
    ("parquet.enable", ["log.parquet.enable"], "false", None, None),
    ("unclean.leader.election.enable", ["unclean.leader.election.enable"], "false", None, None),
    ("remote.storage.enable", [], "false", None, None),
    ("local.retention.ms", ["log.local.retention.ms"], "-2", -2, MAX_INT64),
    ("local.retention.bytes", ["log.local.retention.bytes"], "-2", -2, MAX_INT64),
    ("remote.log.copy.disable", [], "false", None, None),
    ("remote.log.delete.on.disable", [], "false", None, None),
]

DAEMON_TABLE = [
    ("num.partitions", "1", 1, MAX_INT32),
    ("delete.topic.enable", "true", None, None),
    ("log.cleaner.enable", "true", None, None),
    ("log.cleaner.threads", "1", 0, MAX_INT32),
    ("log.cleaner.dedupe.buffer.size", "134217728", 0, MAX_INT64),
    ("log.cleaner.io.buffer.size", "524288", 0, MAX_INT32),
    ("log.cleaner.io.buffer.load.factor", "0.9", None, None),
    ("log.cleaner.io.max.bytes.per.second", "1.7976931348623157e+308", None, None),
    ("log.cleaner.backoff.ms", "15000", 0, MAX_INT64),
    ("log.retention.check.interval.ms", "300000", 1, MAX_INT64),
    ("log.flush.scheduler.interval.ms", str(MAX_INT64), 1, MAX_INT64),
    ("log.flush.offset.checkpoint.interval.ms", "60000", 0, MAX_INT32),
    ("log.flush.start.offset.checkpoint.interval.ms", "60000", 0, MAX_INT32),
    ("log.initial.task.delay.ms", "30000", 0, MAX_INT64),
    ("num.recovery.threads.per.data.dir", "2", 1, MAX_INT32),
    ("replica.high.watermark.checkpoint.interval.ms", "5000", 1, MAX_INT64),
    ("producer.id.expiration.ms", "86400000", 1, MAX_INT32),
    ("producer.id.expiration.check.interval.ms", "600000", 1, MAX_INT32),
    ("transaction.max.timeout.ms", "900000", 1, MAX_INT32),
    ("transactional.id.expiration.ms", "604800000", 1, MAX_INT32),
    ("transaction.state.log.num.partitions", "1", 1, MAX_INT32),
    ("offsets.topic.num.partitions", "1", 1, MAX_INT32),
    ("offsets.retention.minutes", "10080", 1, MAX_INT32),
    ("offsets.retention.check.interval.ms", "600000", 1, MAX_INT64),
    ("group.min.session.timeout.ms", "6000", 0, MAX_INT32),
    ("group.max.session.timeout.ms", "1800000", 0, MAX_INT32),
    ("log.dir.failure.timeout.ms", "30000", 1, MAX_INT64),
    ("batch.size", "131072", 0, MAX_INT32),
    ("linger.ms", "5", 0, MAX_INT64),
    ("transaction.timeout.ms", "900000", 1, MAX_INT32),
    ("list.all.views", "false", None, None),
    ("max.open.files", "100000", 1, MAX_INT32),
    ("max.followers", "1000", 0, MAX_INT32),
    ("max.unfinished.bytes", "268435456", 1, MAX_INT64),
    ("metrics.port", "0", 0, 65535),
    ("link.bootstrap.servers", "", None, None),
    ("link.topics", "*", None, None),
    ("link.from", "earliest", None, None),
    ("link.config", "", None, None),
    ("link.create", "false", None, None),
    ("link.create.partitions", "-1", -1, MAX_INT32),
    ("link.create.replication.factor", "-1", -1, 2**15 - 1),
    ("link.delete", "false", None, None),
    ("link.group", "", None, None),
    ("link.group.directory", "", None, None),
]


@pytest.mark.parametrize(
    ("name", "synonyms", "default", "lowest", "highest"), TOPIC_TABLE, ids=lambda x: str(x)[:40]
)
def test_topic_setting_has_kafkas_default_range_and_synonyms(
    name: str, synonyms: list[str], default: str | None, lowest: int | None, highest: int | None
) -> None:
    setting = TOPIC_BY_NAME[name]
    assert [synonym.name for synonym in setting.synonyms] == synonyms
    assert default == (None if setting.default is None else text_of(setting.default))
    assert default is None or setting.parse(default) == setting.default
    check_range(setting, lowest, highest)


@pytest.mark.parametrize(("name", "default", "lowest", "highest"), DAEMON_TABLE, ids=lambda x: str(x)[:40])
def test_daemon_setting_has_kafkas_default_and_range(
    name: str, default: str, lowest: int | None, highest: int | None
) -> None:
    setting = DAEMON_BY_NAME[name]
    assert setting.default is not None
    assert text_of(setting.default) == default
    assert setting.parse(default) == setting.default
    check_range(setting, lowest, highest)


def check_range(setting: Setting, lowest: int | None, highest: int | None) -> None:
    assert (setting.kind in INTEGERS) == (lowest is not None)
    if lowest is None or highest is None:
        return
    for value in (lowest, highest):
        assert setting.parse(str(value)) == value
    for value in (lowest - 1, highest + 1):
        with pytest.raises(InvalidSettingError, match=rf"^{setting.name}: expected .*, found '{value}'$"):
            setting.parse(str(value))


def test_tables_of_this_test_are_complete() -> None:
    assert [row[0] for row in TOPIC_TABLE] == [setting.name for setting in TOPIC]
    assert [row[0] for row in DAEMON_TABLE] == [setting.name for setting in DAEMON]


def test_every_setting_is_explained_in_one_line() -> None:
    for setting in (*TOPIC, *DAEMON_BY_NAME.values()):
        assert setting.doc
        assert "\n" not in setting.doc


@pytest.mark.parametrize(
    ("settings", "table", "merged"),
    [
        (resolve_topic({}, {}), TOPIC, {"internal_segment_bytes"}),
        (resolve_daemon({}), DAEMON, set()),
    ],
    ids=["topic", "daemon"],
)
def test_settings_have_one_field_of_the_right_type_for_each_definition(
    settings: TopicSettings | DaemonSettings, table: tuple[Setting, ...], merged: set[str]
) -> None:
    fields = [field.name for field in dataclasses.fields(settings)]
    assert fields == [name for each in table if (name := each.name.replace(".", "_")) not in merged]
    for name, kind in get_type_hints(type(settings)).items():
        expected = frozenset if name == "cleanup_policy" else get_origin(kind) or kind
        assert type(getattr(settings, name)) is expected


def test_settings_without_effect_are_those_of_clusters_and_tiers() -> None:
    assert {setting.name for setting in (*TOPIC, *DAEMON) if not setting.effect} == {
        "min.insync.replicas",
        "unclean.leader.election.enable",
        "remote.storage.enable",
        "local.retention.ms",
        "local.retention.bytes",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "log.dir.failure.timeout.ms",
    }
    assert resolve_topic({"min.insync.replicas": "2"}, {}).min_insync_replicas == 2


# -- values -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "value"), [("true", True), (" FALSE\t", False), ("True", True)])
def test_boolean_is_true_or_false_in_any_case(text: str, value: bool) -> None:
    assert topic(preallocate=text).preallocate is value


@pytest.mark.parametrize("text", ["", "yes", "1", "tru", "true,"])
def test_other_boolean_is_refused(text: str) -> None:
    with pytest.raises(InvalidSettingError, match=f"^preallocate: expected true or false, found '{text}'$"):
        topic(preallocate=text)


@pytest.mark.parametrize(("text", "value"), [("0", 0), (" +7 ", 7), ("-0", 0), ("007", 7)])
def test_number_is_digits_with_a_sign(text: str, value: int) -> None:
    assert topic(delete_retention_ms=text).delete_retention_ms == value


@pytest.mark.parametrize(
    "text", ["", "7d", "1h", "10 000", "1_000", "1e3", "1.0", "0x10", "٣", "9" * 5000, "--1", "1k"]
)
def test_number_with_a_unit_or_anything_else_is_refused(text: str) -> None:
    with pytest.raises(
        InvalidSettingError, match="expected a whole number of 64 bits, at least 0, found "
    ) as caught:
        topic(delete_retention_ms=text)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("text", "value"), [("0", 0.0), ("1", 1.0), (" .25 ", 0.25), ("5e-1", 0.5), ("1.", 1.0)]
)
def test_ratio_is_a_decimal_number(text: str, value: float) -> None:
    assert topic(min_cleanable_dirty_ratio=text).min_cleanable_dirty_ratio == value


@pytest.mark.parametrize("text", ["", "-0.1", "1.01", "NaN", "Infinity", "inf", "1e999", "1_0", "half", "."])
def test_other_ratio_is_refused(text: str) -> None:
    with pytest.raises(InvalidSettingError, match="expected a number, 0 to 1, found"):
        topic(min_cleanable_dirty_ratio=text)


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("delete", {"delete"}),
        ("compact", {"compact"}),
        ("compact,delete", {"compact", "delete"}),
        (" delete , compact ", {"compact", "delete"}),
        ("delete,delete", {"delete"}),
        ("", set()),
        ("  ", set()),
    ],
)
def test_cleanup_policy_is_a_subset_of_compact_and_delete(text: str, policy: set[str]) -> None:
    settings = topic(cleanup_policy=text)
    assert settings.cleanup_policy == policy
    assert settings.compact == ("compact" in policy)
    assert settings.delete == ("delete" in policy)
    assert settings.cleanup_policy_text == ",".join(sorted(policy))


@pytest.mark.parametrize("text", ["Compact", "compact;delete", "compact,", ",", "keep", "compact delete"])
def test_other_cleanup_policy_is_refused(text: str) -> None:
    with pytest.raises(InvalidSettingError, match=f"of compact, delete, found '{text}'"):
        topic(cleanup_policy=text)


@pytest.mark.parametrize(
    ("text", "codec"),
    [("producer", None), ("uncompressed", Codec.NONE), ("gzip", Codec.GZIP), ("snappy", Codec.SNAPPY),
     ("lz4", Codec.LZ4), (" zstd ", Codec.ZSTD)],
)  # fmt: skip
def test_compression_type_gives_the_codec(text: str, codec: Codec | None) -> None:
    assert topic(compression_type=text).codec == codec


@pytest.mark.parametrize("text", ["", "none", "GZIP", "brotli"])
def test_other_compression_type_is_refused_with_the_choices(text: str) -> None:
    with pytest.raises(InvalidSettingError, match=f"one of uncompressed, zstd, .*, producer, found '{text}'"):
        topic(compression_type=text)


def test_each_codec_with_levels_has_its_own() -> None:
    settings = topic(compression_gzip_level="1", compression_lz4_level="2", compression_zstd_level="-5")
    assert [settings.level(codec) for codec in Codec] == [None, 1, None, 2, -5]


def test_gzip_level_0_between_its_two_ranges_is_refused() -> None:
    with pytest.raises(InvalidSettingError, match="32 bits, -1 or 1 to 9, found '0'"):
        topic(compression_gzip_level="0")


def test_timestamp_type_is_one_of_two() -> None:
    assert topic().message_timestamp_type is TimestampType.CREATE_TIME
    assert (
        topic(message_timestamp_type="LogAppendTime").message_timestamp_type is TimestampType.LOG_APPEND_TIME
    )
    with pytest.raises(InvalidSettingError, match="one of CreateTime, LogAppendTime, found 'createtime'"):
        topic(message_timestamp_type="createtime")


def test_internal_segment_bytes_takes_the_place_of_segment_bytes() -> None:
    assert topic(internal_segment_bytes="100").segment_bytes == 100
    assert topic(internal_segment_bytes="100", segment_bytes="2097152").segment_bytes == 100
    with pytest.raises(InvalidSettingError, match=r"^segment\.bytes: .* at least 1048576, found '100'"):
        topic(segment_bytes="100")


@pytest.mark.parametrize(("text", "value"), [("-1", -1), ("0", 0)])
def test_retention_of_a_topic_may_be_unlimited_or_nothing(text: str, value: int) -> None:
    assert topic(retention_ms=text).retention_ms == value


# -- settings that exclude each other ---------------------------------------------------------------


def test_least_compaction_lag_is_at_most_the_largest() -> None:
    assert topic(min_compaction_lag_ms="5", max_compaction_lag_ms="5").min_compaction_lag_ms == 5
    with pytest.raises(InvalidSettingError, match=r"at most max\.compaction\.lag\.ms, which is 5, found 6"):
        topic(min_compaction_lag_ms="6", max_compaction_lag_ms="5")
    with pytest.raises(InvalidSettingError, match="which is 5, found 6"):
        resolve_topic({"min.compaction.lag.ms": "6"}, {"log.cleaner.max.compaction.lag.ms": "5"})


def test_remote_storage_is_not_for_compacted_topics() -> None:
    assert topic(remote_storage_enable="true").remote_storage_enable
    for policy in ("compact", "compact,delete"):
        with pytest.raises(InvalidSettingError, match=rf"remote\.storage\.enable.*{policy}, found true"):
            topic(remote_storage_enable="true", cleanup_policy=policy)


# -- unknown names ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("retention.mss", r"unknown topic setting 'retention\.mss': did you mean retention\.ms\?"),
        ("Cleanup.Policy", r"did you mean cleanup\.policy\?"),
        ("log.retention.hours", r"in a topic's settings it is retention\.ms"),
        ("message.max.bytes", r"in a topic's settings it is max\.message\.bytes"),
        ("log.cleaner.threads", r"belongs into server\.properties"),
        ("message.format.version", r"Kafka 4\.0 removed it"),
        ("message.timestamp.difference.max.ms", r"message\.timestamp\.before\.max\.ms"),
        ("qqqq", "unknown topic setting 'qqqq'$"),
        ("", "unknown topic setting ''$"),
        ("x" * 100_000, r"\(100000 characters\)"),
    ],
    ids=lambda text: text[:30],
)
def test_unknown_topic_setting_is_refused_with_the_likely_right_name(name: str, message: str) -> None:
    with pytest.raises(InvalidSettingError, match=message):
        resolve_topic({"cleanup.policy": "delete", name: "1"}, {})
    with pytest.raises(InvalidSettingError, match=message):
        explain({name: "1"}, {})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "log.retention.hour",
            r"unknown daemon setting 'log\.retention\.hour': did you mean log\.retention\.hours\?",
        ),
        ("retention.ms", r"in server\.properties it is log\.retention\.ms"),
        ("internal.segment.bytes", "set for each topic"),
        ("log.dirs", "always logs/"),
        ("log.message.format.version", r"Kafka 4\.0 removed it"),
        ("log.message.timestamp.difference.max.ms", r"log\.message\.timestamp\.before\.max\.ms"),
        ("listeners", "unknown daemon setting 'listeners'"),
        ("process.roles", r"unknown daemon setting 'process\.roles'"),
        ("zookeeper.connect", r"unknown daemon setting 'zookeeper\.connect'"),
    ],
)
def test_unknown_daemon_setting_is_refused_with_the_likely_right_name(name: str, message: str) -> None:
    with pytest.raises(InvalidSettingError, match=message):
        resolve_daemon({name: "1"})


# -- where a value comes from -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("daemon", "expected", "source"),
    [
        ({}, 604800000, "default"),
        ({"log.retention.hours": "2"}, 7200000, "daemon:log.retention.hours"),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180000, "daemon:log.retention.minutes"),
        (
            {"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"},
            4,
            "daemon:log.retention.ms",
        ),
        ({"log.retention.hours": "-1"}, -1, "daemon:log.retention.hours"),
        ({"log.retention.minutes": "-20"}, -1, "daemon:log.retention.minutes"),
        ({"log.retention.ms": "-5", "log.retention.hours": "2"}, -1, "daemon:log.retention.ms"),
        ({"log.retention.hours": str(MAX_INT32)}, MAX_INT32 * 3600000, "daemon:log.retention.hours"),
    ],
)
def test_retention_of_the_daemon_comes_from_the_finest_unit(
    daemon: dict[str, str], expected: int, source: str
) -> None:
    assert resolve_daemon(daemon)
    assert resolve_topic({}, daemon).retention_ms == expected
    assert ("retention.ms", str(expected), source) in explain({}, daemon)
    assert resolve_topic({"retention.ms": "9"}, daemon).retention_ms == 9
    assert ("retention.ms", "9", "topic") in explain({"retention.ms": "9"}, daemon)


@pytest.mark.parametrize("name", ["log.retention.ms", "log.retention.minutes", "log.retention.hours"])
def test_retention_of_0_is_refused_for_the_daemon(name: str) -> None:
    with pytest.raises(
        InvalidSettingError, match=f"{name}: expected .*, at most -1 or at least 1, found '0'"
    ):
        resolve_daemon({name: "0"})


@pytest.mark.parametrize(
    ("daemon", "field", "expected"),
    [
        ({"log.roll.hours": "2"}, "segment_ms", 7200000),
        ({"log.roll.hours": "2", "log.roll.ms": "5"}, "segment_ms", 5),
        ({"log.roll.jitter.hours": "1"}, "segment_jitter_ms", 3600000),
        ({"log.roll.jitter.hours": "1", "log.roll.jitter.ms": "5"}, "segment_jitter_ms", 5),
        ({"log.flush.scheduler.interval.ms": "7"}, "flush_ms", 7),
        ({"log.flush.scheduler.interval.ms": "7", "log.flush.interval.ms": "8"}, "flush_ms", 8),
        ({"message.max.bytes": "1000"}, "max_message_bytes", 1000),
        ({"log.cleanup.policy": "compact"}, "cleanup_policy", {"compact"}),
        ({"compression.type": "lz4"}, "compression_type", "lz4"),
        ({"log.preallocate": "TRUE"}, "preallocate", True),
        ({"log.index.size.max.bytes": "24"}, "segment_index_bytes", 24),
    ],
)
def test_setting_of_the_daemon_is_the_topics_default_in_the_topics_unit(
    daemon: dict[str, str], field: str, expected: object
) -> None:
    assert resolve_daemon(daemon)
    assert getattr(resolve_topic({}, daemon), field) == expected


@pytest.mark.parametrize(
    "daemon",
    [
        {"log.roll.hours": "0"},
        {"log.roll.jitter.hours": "-1"},
        {"log.segment.bytes": "1000"},
        {"log.cleanup.policy": "keep"},
        {"log.retention.hours": "x", "log.retention.ms": "1"},
        {"log.retention.hours": str(MAX_INT32 + 1)},
        {"log.cleaner.min.compaction.lag.ms": "6", "log.cleaner.max.compaction.lag.ms": "5"},
    ],
)
def test_defaults_of_topics_are_checked_when_the_daemon_starts(daemon: dict[str, str]) -> None:
    with pytest.raises(InvalidSettingError):
        resolve_daemon(daemon)


def test_explanation_lists_every_setting_once_with_the_value_that_holds() -> None:
    overrides = {"cleanup.policy": " delete , compact", "preallocate": "TRUE", "segment.bytes": "+2097152"}
    explained = explain(overrides, {"log.cleaner.min.cleanable.ratio": ".25"})
    assert [line.name for line in explained] == [
        setting.name for setting in TOPIC if setting.name != "internal.segment.bytes"
    ]
    by_name = {line.name: (line.value, line.source) for line in explained}
    assert by_name["cleanup.policy"] == ("delete,compact", "topic")
    assert by_name["preallocate"] == ("true", "topic")
    assert by_name["segment.bytes"] == ("2097152", "topic")
    assert by_name["min.cleanable.dirty.ratio"] == ("0.25", "daemon:log.cleaner.min.cleanable.ratio")
    assert by_name["flush.ms"] == (str(MAX_INT64), "default")
    assert ("internal.segment.bytes", "99", "topic") in explain({"internal.segment.bytes": "99"}, {})


def test_explanation_can_be_written_back_as_overrides() -> None:
    overrides = {"cleanup.policy": "", "min.cleanable.dirty.ratio": "1e-5", "retention.ms": "-1"}
    written = {line.name: line.value for line in explain(overrides, {})}
    assert resolve_topic(written, {}) == resolve_topic(overrides, {})


# -- the daemon's own -------------------------------------------------------------------------------


def test_daemon_settings_are_those_of_the_file_over_the_defaults() -> None:
    settings = resolve_daemon({"num.partitions": " 4 ", "delete.topic.enable": "False"})
    assert (settings.num_partitions, settings.delete_topic_enable) == (4, False)
    assert settings.log_cleaner_threads == 1


@pytest.mark.parametrize(
    ("size", "threads", "load", "enough"),
    [
        ("48", "1", "0.51", True),
        ("48", "1", "0.5", False),
        ("47", "1", "0.9", False),
        ("96", "2", "0.9", True),
        ("95", "2", "0.9", False),
        ("0", "0", "0.9", True),
        ("0", "1", "0.9", False),
        (str(MAX_INT64), "1", "0.9", True),
        ("134217728", "1", "0", False),
    ],
)
def test_each_cleaner_thread_needs_room_for_more_than_one_key(
    size: str, threads: str, load: str, enough: bool
) -> None:
    values = {
        "log.cleaner.dedupe.buffer.size": size,
        "log.cleaner.threads": threads,
        "log.cleaner.io.buffer.load.factor": load,
    }
    if enough:
        assert resolve_daemon(values)
    else:
        with pytest.raises(
            InvalidSettingError, match=rf"dedupe\.buffer\.size: expected room .* found {size} bytes"
        ):
            resolve_daemon(values)


@pytest.mark.parametrize("text", ["0", "-1", "0.5", "1e309"])
def test_cleaners_speed_limit_is_at_least_one_byte_a_second(text: str) -> None:
    with pytest.raises(InvalidSettingError, match=r"a number, at least 1, found"):
        resolve_daemon({"log.cleaner.io.max.bytes.per.second": text})
