"""The daemon's settings: the lines of server.properties that are not defaults of topic settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from topicfs.engine.errors import InvalidSettingError
from topicfs.engine.record import MAX_INT32
from topicfs.engine.settings.definitions import DAEMON
from topicfs.engine.settings.lookup import DAEMON_BY_NAME, DAEMON_HINTS
from topicfs.engine.settings.setting import refuse_unknown
from topicfs.engine.settings.topic import resolve_topic

# The bytes of one slot in the cleaner's table of keys: a hash of 16 bytes and an offset.
_SLOT_BYTES: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSettings:
    """The settings of the daemon. Each field has the name of its setting, with underscores in place of dots.

    *_ms                                 milliseconds
    log_cleaner_dedupe_buffer_size       bytes for all threads together, like log_cleaner_io_buffer_size
    log_cleaner_io_buffer_load_factor    0..1, how full the table of keys may be, despite its name
    log_cleaner_io_max_bytes_per_second  the limit for all threads together; the largest float means no limit
    log_flush_scheduler_interval_ms      2^63-1 means never
    log_dir_failure_timeout_ms           has no effect: there is no controller to inform
    batch_size                           bytes of lines that gather in a partition; 0: each write is appended alone
    link_*                               what is mirrored of a Kafka cluster: engine.link.options reads them
    """

    num_partitions: int
    delete_topic_enable: bool
    log_cleaner_enable: bool
    log_cleaner_threads: int
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_io_buffer_size: int
    log_cleaner_io_buffer_load_factor: float
    log_cleaner_io_max_bytes_per_second: float
    log_cleaner_backoff_ms: int
    log_retention_check_interval_ms: int
    log_flush_scheduler_interval_ms: int
    log_flush_offset_checkpoint_interval_ms: int
    log_flush_start_offset_checkpoint_interval_ms: int
    log_initial_task_delay_ms: int
    num_recovery_threads_per_data_dir: int
    replica_high_watermark_checkpoint_interval_ms: int
    producer_id_expiration_ms: int
    producer_id_expiration_check_interval_ms: int
    transaction_max_timeout_ms: int
    transactional_id_expiration_ms: int
    transaction_state_log_num_partitions: int
    offsets_topic_num_partitions: int
    offsets_retention_minutes: int
    offsets_retention_check_interval_ms: int
    group_min_session_timeout_ms: int
    group_max_session_timeout_ms: int
    log_dir_failure_timeout_ms: int
    batch_size: int
    linger_ms: int
    transaction_timeout_ms: int
    list_all_views: bool
    max_open_files: int
    max_followers: int
    max_unfinished_bytes: int
    metrics_port: int
    link_bootstrap_servers: tuple[str, ...]
    link_topics: tuple[str, ...]
    link_from: str
    link_config: str
    link_create: bool
    link_create_partitions: int
    link_create_replication_factor: int
    link_delete: bool
    link_group: str
    link_group_directory: str


def resolve_daemon(values: Mapping[str, str]) -> DaemonSettings:
    """Return the settings of a daemon with these lines of server.properties.

    InvalidSettingError for an unknown name, a value that is not allowed, or two that exclude each other. The
    lines that are defaults of topic settings are checked too, also those that another line takes precedence over.
    """
    refuse_unknown("daemon", values, DAEMON_BY_NAME, DAEMON_HINTS)
    given = {name: DAEMON_BY_NAME[name].parse(text) for name, text in values.items()}
    resolve_topic({}, values)
    # The kinds in the table match the types of the fields; a test compares the two.
    fields = {setting.name.replace(".", "_"): given.get(setting.name, setting.default) for setting in DAEMON}
    settings = DaemonSettings(**fields)  # type: ignore[arg-type]
    _check_dedupe_buffer(settings)
    return settings


def _check_dedupe_buffer(settings: DaemonSettings) -> None:
    if settings.log_cleaner_threads == 0:
        return
    share = min(settings.log_cleaner_dedupe_buffer_size // settings.log_cleaner_threads, MAX_INT32)
    if share // _SLOT_BYTES * settings.log_cleaner_io_buffer_load_factor <= 1:
        raise InvalidSettingError(
            f"log.cleaner.dedupe.buffer.size: expected room for more than one key ({_SLOT_BYTES} bytes) in "
            f"the table of each of {settings.log_cleaner_threads} threads, filled to "
            f"{settings.log_cleaner_io_buffer_load_factor}, "
            f"found {settings.log_cleaner_dedupe_buffer_size} bytes"
        )
