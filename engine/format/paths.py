"""The names of directories and files under BACKING.

    BACKING/
    ├── server.properties                 settings of the daemon, and defaults for topics
    ├── topics/<topic>.properties         overrides of a topic
    ├── created-topics                    ids of the topics that were made here
    ├── linked-topics                     the topics that are mirrored from a Kafka cluster
    ├── layout.properties                 the version of what lies beside logs/
    ├── topicfs.log                       the log file of the daemon
    ├── logs/                             a Kafka log.dir
    │   ├── .lock  meta.properties  .kafka_cleanshutdown  *-offset-checkpoint
    │   ├── __cluster_metadata-0/         a controller's log
    │   └── <topic>-<partition>/          a live partition; split at the last '-'
    │       ├── partition.metadata  leader-epoch-checkpoint
    │       └── <offset>.<log|index|timeindex|txnindex|snapshot>[.cleaned|.swap|.deleted]
    ├── staging/<topic>/
    │   ├── journal  committed            the batch that is being committed, and the names of earlier ones
    │   ├── inbox/                        files that are to be committed
    │   └── compact/  import/  publishing/   segments that a job makes
    ├── transactions/open/<id>/           files of a transaction that is not decided
    ├── transactions/inboxes/             the batch of several topics that is being committed
    ├── producers/open/<name>/<partition>/   files of named producers that are not appended
    ├── deleted/<id>/
    │   ├── deletion.json                 what was deleted
    │   ├── ended                         how transactions have ended that were open in it
    │   ├── topic.properties  staging/    the settings of a deleted topic, and its inbox
    └── views/<partition>/                files that are made from segments, and may be deleted at any time
        ├── <base>.<inode>-<size>-<mtime>.<earliest|parquet>
        ├── parquet.list
        ├── keys.checkpoint
        └── <base>.<format>.map

An offset has 20 digits. Beside live partitions there are these directories, each with a UUID of 32 digits:

    <topic>-<partition>.<uuid>-delete     waits for its removal; the topic may be cut short
    <topic>-<partition>.<uuid>-stray      belongs to no topic known by that id; may be cut short
    <topic>-<partition>.<uuid>-future     the copy of a partition that moves to this directory

Kafka also parses other spellings of a number, such as `t-01` or `+5.log`. They are refused here, so that two
names never mean one partition or one segment. For the same reason, and because such directories are removed,
a directory with a suffix must have a UUID in the form that a rename writes.
"""

from __future__ import annotations

import os
import re
import uuid
from typing import Final, NamedTuple

from topicfs.engine.errors import InvalidNameError, shown
from topicfs.engine.record import MAX_INT32, MAX_INT64

MAX_TOPIC_LENGTH: Final = 249
MAX_NAME_LENGTH: Final = 255

SERVER_PROPERTIES: Final = "server.properties"
TOPICS: Final = "topics"
PROPERTIES_SUFFIX: Final = ".properties"
CREATED_TOPICS: Final = "created-topics"
LINKED_TOPICS: Final = "linked-topics"
LAYOUT: Final = "layout.properties"
DAEMON_LOG: Final = "topicfs.log"

LOGS: Final = "logs"
LOCK: Final = ".lock"
META_PROPERTIES: Final = "meta.properties"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"
METADATA_LOG: Final = "__cluster_metadata-0"

# A broker has these directories beside the partitions, and does not load them as partitions.
NOT_PARTITIONS: Final = frozenset({METADATA_LOG, "remote-log-index-cache"})

PARTITION_METADATA: Final = "partition.metadata"
LEADER_EPOCHS: Final = "leader-epoch-checkpoint"

DELETE_SUFFIX: Final = "-delete"
STRAY_SUFFIX: Final = "-stray"
FUTURE_SUFFIX: Final = "-future"

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TRANSACTION_INDEX_SUFFIX: Final = ".txnindex"
SNAPSHOT_SUFFIX: Final = ".snapshot"
CONTROLLER_SNAPSHOT_SUFFIX: Final = ".checkpoint"
"""The suffix of a snapshot of the cluster's metadata, which has the batches of a log."""

BOOTSTRAP_SNAPSHOT: Final = "bootstrap.checkpoint"

CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
DELETED_SUFFIX: Final = ".deleted"

TEMPORARY_SUFFIX: Final = ".tmp"
"""The suffix of a file that is being written, before it is renamed to replace another one."""

STAGING: Final = "staging"
JOURNAL: Final = "journal"
COMMITTED: Final = "committed"
INBOX: Final = "inbox"
COMPACTING: Final = "compact"
"""The directory for segments that a compaction writes. The owner of the log may remove it."""

IMPORT_SCRATCH: Final = ".import-"
"""What the names begin with that `topicfs import` gives its scratch in an inbox."""

IMPORTING: Final = "import"
PUBLISHING: Final = "publishing"

TRANSACTIONS: Final = "transactions"
PRODUCERS: Final = "producers"
UNDECIDED: Final = "open"
"""In these two, the directory of files that are not appended."""

LINKED: Final = "linked"
"""In the first one, the journals of transactions in a Kafka cluster."""

INBOXES: Final = "inboxes"
"""In the first one, what is known of a batch of several topics while it is committed."""

DELETED: Final = "deleted"
DELETION_RECORD: Final = "deletion.json"
DELETED_ENDED: Final = "ended"
DELETED_SETTINGS: Final = "topic.properties"
DELETED_STAGING: Final = "staging"

VIEWS: Final = "views"
MIN_TIMESTAMPS_SUFFIX: Final = ".earliest"
PARQUET_SUFFIX: Final = ".parquet"
PARQUET_LIST: Final = "parquet.list"
KEYS_CHECKPOINT: Final = "keys.checkpoint"
"""The keys of a compacted partition, among the files that are made from segments."""

MAP_SUFFIX: Final = ".map"

_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]+")
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,9}")
_RENAMED: Final = re.compile(r"(.*)\.[0-9a-f]{32}(-delete|-stray|-future)", re.DOTALL)
_OFFSET: Final = re.compile(r"[0-9]{20}")
_CONTROLLER_SNAPSHOT: Final = re.compile(r"([0-9]{20})-([0-9]{10})" + re.escape(CONTROLLER_SNAPSHOT_SUFFIX))


class PartitionName(NamedTuple):
    """The parts of a partition directory's name.

    topic      the topic; in a renamed directory possibly only the beginning of its name
    partition  the partition's number, 0..2^31-1
    suffix     "" for a live partition, else one of "-delete", "-stray", "-future"
    """

    topic: str
    partition: int
    suffix: str


def validate_topic(topic: str) -> str:
    """Return the topic if Kafka accepts its name; InvalidNameError otherwise."""
    if topic in ("", ".", ".."):
        raise InvalidNameError(f"topic: expected a name other than '', '.' and '..', found {topic!r}")
    if len(topic) > MAX_TOPIC_LENGTH:
        raise InvalidNameError(
            f"topic {shown(topic)}: expected at most {MAX_TOPIC_LENGTH} characters, found {len(topic)}"
        )
    if _TOPIC.fullmatch(topic) is None:
        bad = next(letter for letter in topic if _TOPIC.fullmatch(letter) is None)
        raise InvalidNameError(
            f"topic {topic!r}: expected ASCII letters, digits, '.', '_' and '-' only, found {bad!r}"
        )
    return topic


def partition_directory(topic: str, partition: int) -> str:
    """Return the name of a live partition's directory."""
    _validate(topic, partition)
    name = f"{topic}-{partition}"
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidNameError(
            f"partition directory {shown(name)}: expected at most {MAX_NAME_LENGTH} characters, "
            f"found {len(name)}"
        )
    return name


def deletion_directory(topic: str, partition: int) -> str:
    """Return a name for the directory of a partition that is being deleted. It is a new one at each call."""
    _validate(topic, partition)
    rest = f"-{partition}.{uuid.uuid4().hex}{DELETE_SUFFIX}"
    return topic[: MAX_NAME_LENGTH - len(rest)] + rest


def parse_partition_directory(name: str) -> PartitionName:
    """Return the parts of a partition directory's name; InvalidNameError where it is no such name."""
    stem, suffix = name, ""
    if name.endswith((DELETE_SUFFIX, STRAY_SUFFIX, FUTURE_SUFFIX)):
        renamed = _RENAMED.fullmatch(name)
        if renamed is None:
            expected = f"<topic>-<partition>.<32 hexadecimal digits>{name[name.rindex('-') :]}"
            raise InvalidNameError(f"partition directory: expected {expected}, found {shown(name)}")
        stem, suffix = renamed[1], renamed[2]
    topic, dash, digits = stem.rpartition("-")
    if not dash:
        raise InvalidNameError(f"partition directory: expected <topic>-<partition>, found {shown(name)}")
    partition = int(digits) if _NUMBER.fullmatch(digits) else None
    if partition is None or partition > MAX_INT32:
        raise InvalidNameError(
            f"partition directory {shown(name)}: expected a number in 0..{MAX_INT32} without "
            f"leading zeros after the last '-', found {shown(digits)}"
        )
    try:
        validate_topic(topic)
    except InvalidNameError as error:
        raise InvalidNameError(f"partition directory {shown(name)}: {error}") from None
    return PartitionName(topic, partition, suffix)


def file_of(offset: int, suffix: str) -> str:
    """Return the name of a file with an offset, which is not checked. The suffix begins with a dot."""
    return f"{offset:020d}{suffix}"


def log_file(base_offset: int) -> str:
    """Return the name of the file with a segment's records."""
    return _file(base_offset, LOG_SUFFIX)


def index_file(base_offset: int) -> str:
    """Return the name of a segment's offset index."""
    return _file(base_offset, INDEX_SUFFIX)


def time_index_file(base_offset: int) -> str:
    """Return the name of a segment's time index."""
    return _file(base_offset, TIME_INDEX_SUFFIX)


def transaction_index_file(base_offset: int) -> str:
    """Return the name of a segment's transaction index."""
    return _file(base_offset, TRANSACTION_INDEX_SUFFIX)


def snapshot_file(offset: int) -> str:
    """Return the name of the producer snapshot with the state below an offset."""
    return _file(offset, SNAPSHOT_SUFFIX)


def offset_of_file(name: str) -> int:
    """Return the offset in the file name of a segment or snapshot, whatever follows the first '.'."""
    digits, dot, _ = name.partition(".")
    offset = int(digits) if dot and _OFFSET.fullmatch(digits) else None
    if offset is None or offset > MAX_INT64:
        raise InvalidNameError(
            f"file name: expected an offset of 20 digits, at most {MAX_INT64}, and a suffix, "
            f"found {shown(name)}"
        )
    return offset


def offset_before(suffix: str, name: str) -> int | None:
    """Return the offset in a file name with this suffix; None where it has another suffix or no offset."""
    try:
        return offset_of_file(name) if name.endswith(suffix) else None
    except InvalidNameError:
        return None


def controller_snapshot(name: str) -> tuple[int, int] | None:
    """Return the end offset and the epoch in the name of a snapshot of the cluster's metadata; None for other names.
    InvalidNameError for an offset that cannot be."""
    found = _CONTROLLER_SNAPSHOT.fullmatch(name)
    return (
        None if found is None else (offset_of_file(f"{found[1]}{CONTROLLER_SNAPSHOT_SUFFIX}"), int(found[2]))
    )


def made_of(base_offset: int, log: os.stat_result, suffix: str) -> str:
    """Return the name of a file that is made from a segment's `.log`. It contains the identity of the `.log`, in
    hexadecimal: a segment that compaction rewrote is another file, and does not use what was made from the old one."""
    return file_of(base_offset, f".{log.st_ino:x}-{log.st_size:x}-{log.st_mtime_ns:x}{suffix}")


def _validate(topic: str, partition: int) -> None:
    validate_topic(topic)
    if not 0 <= partition <= MAX_INT32:
        raise InvalidNameError(
            f"partition of {topic!r}: expected a number in 0..{MAX_INT32}, found {partition}"
        )


def _file(offset: int, suffix: str) -> str:
    if not 0 <= offset <= MAX_INT64:
        raise InvalidNameError(
            f"name of a {suffix} file: expected an offset in 0..{MAX_INT64}, found {offset}"
        )
    return file_of(offset, suffix)
