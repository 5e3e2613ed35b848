"""The names of directories and files under BACKING.

    BACKING/
    ├── server.properties                 of the daemon, and defaults of topics
    ├── topics/<topic>.properties         overrides of a topic
    ├── created-topics                    ids of the topics that were made here
    ├── topicfs.log                       what the daemon logs
    ├── logs/                             a Kafka log.dir
    │   ├── .lock  meta.properties  .kafka_cleanshutdown  *-offset-checkpoint
    │   ├── __cluster_metadata-0/         a controller's log
    │   └── <topic>-<partition>/          a live partition; split at the last '-'
    │       ├── partition.metadata  leader-epoch-checkpoint
    │       └── <offset>.<log|index|timeindex|txnindex|snapshot>[.cleaned|.swap|.deleted]
    ├── staging/<topic>/
    │   ├── journal  committed            the commit that is under way, and the names of those before
    │   ├── inbox/                        files on their way in
    │   └── compact/  import/  publishing/   segments that a job makes
    ├── deleted/<id>/
    │   ├── deletion.json                 what was deleted
    │   ├── topic.properties  staging/    of the topic, where it was deleted as a whole
    └── views/<partition>/                what is made of segments, and may be deleted at any time
        ├── <base>.<inode>-<size>-<mtime>.<earliest|parquet>
        ├── parquet.list
        └── <base>.<format>.map

An offset has 20 digits. Beside live partitions there are, each with a UUID of 32 digits:

    <topic>-<partition>.<uuid>-delete     waits for its removal; the topic may be cut short
    <topic>-<partition>.<uuid>-stray      belongs to no topic known by that id; may be cut short
    <topic>-<partition>.<uuid>-future     the copy of a partition that moves to this directory

Kafka also parses other spellings of a number, such as `t-01` or `+5.log`. They are refused here, so that two
names never mean one partition or one segment. For the same reason, and because what it names will be removed,
a suffixed directory must carry a UUID as a rename writes it.
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

# A broker keeps them beside the partitions, and does not load them as such.
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

CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
DELETED_SUFFIX: Final = ".deleted"

TEMPORARY_SUFFIX: Final = ".tmp"
"""Of a file that is written, before it is renamed to take another's place."""

STAGING: Final = "staging"
JOURNAL: Final = "journal"
COMMITTED: Final = "committed"
INBOX: Final = "inbox"
COMPACTING: Final = "compact"
"""Segments that a job is writing anew. Who holds the log may remove it."""

IMPORTING: Final = "import"
PUBLISHING: Final = "publishing"

DELETED: Final = "deleted"
DELETION_RECORD: Final = "deletion.json"
DELETED_SETTINGS: Final = "topic.properties"
DELETED_STAGING: Final = "staging"

VIEWS: Final = "views"
MIN_TIMESTAMPS_SUFFIX: Final = ".earliest"
PARQUET_SUFFIX: Final = ".parquet"
PARQUET_LIST: Final = "parquet.list"
MAP_SUFFIX: Final = ".map"

_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]+")
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,9}")
_RENAMED: Final = re.compile(r"(.*)\.[0-9a-f]{32}(-delete|-stray|-future)", re.DOTALL)
_OFFSET: Final = re.compile(r"[0-9]{20}")


class PartitionName(NamedTuple):
    """What a partition directory's name says.

    topic      of a renamed directory possibly only the name's beginning
    partition  0..2^31-1
    suffix     "" for a live one, else one of "-delete", "-stray", "-future"
    """

    topic: str
    partition: int
    suffix: str


def validate_topic(topic: str) -> str:
    """The topic, when it is a name that Kafka accepts; InvalidNameError otherwise."""
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
    """The name of a live partition's directory."""
    _validate(topic, partition)
    name = f"{topic}-{partition}"
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidNameError(
            f"partition directory {shown(name)}: expected at most {MAX_NAME_LENGTH} characters, "
            f"found {len(name)}"
        )
    return name


def deletion_directory(topic: str, partition: int) -> str:
    """A name, new at each call, for the directory of a partition that is being deleted."""
    _validate(topic, partition)
    rest = f"-{partition}.{uuid.uuid4().hex}{DELETE_SUFFIX}"
    return topic[: MAX_NAME_LENGTH - len(rest)] + rest


def parse_partition_directory(name: str) -> PartitionName:
    """The parts of a partition directory's name; InvalidNameError where it is none."""
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
    """The name of a file of an offset, which is not looked at; the suffix begins with a dot."""
    return f"{offset:020d}{suffix}"


def log_file(base_offset: int) -> str:
    """The name of the segment's records."""
    return _file(base_offset, LOG_SUFFIX)


def index_file(base_offset: int) -> str:
    """The name of the segment's offset index."""
    return _file(base_offset, INDEX_SUFFIX)


def time_index_file(base_offset: int) -> str:
    """The name of the segment's time index."""
    return _file(base_offset, TIME_INDEX_SUFFIX)


def transaction_index_file(base_offset: int) -> str:
    """The name of the segment's index of aborted transactions."""
    return _file(base_offset, TRANSACTION_INDEX_SUFFIX)


def snapshot_file(offset: int) -> str:
    """The name of the producer snapshot whose state ends before the offset."""
    return _file(offset, SNAPSHOT_SUFFIX)


def offset_of_file(name: str) -> int:
    """The offset in a segment's or snapshot's file name, whatever follows its first '.'."""
    digits, dot, _ = name.partition(".")
    offset = int(digits) if dot and _OFFSET.fullmatch(digits) else None
    if offset is None or offset > MAX_INT64:
        raise InvalidNameError(
            f"file name: expected an offset of 20 digits, at most {MAX_INT64}, and a suffix, "
            f"found {shown(name)}"
        )
    return offset


def offset_before(suffix: str, name: str) -> int | None:
    """The offset in a file name that ends so; None where it ends otherwise, or has none."""
    try:
        return offset_of_file(name) if name.endswith(suffix) else None
    except InvalidNameError:
        return None


def made_of(base_offset: int, log: os.stat_result, suffix: str) -> str:
    """The name of what is made of a segment's `.log`. It has that very file's identity, in hexadecimal: a segment that
    compaction rewrote is another file, and what was made of the one before is not taken for its own."""
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
