"""The names under a log directory: topics, partition directories and the files in them.

    <topic>-<partition>                       a live partition; split at the last '-'
    <topic>-<partition>.<uuid32>-delete       renamed, waits for its removal; the topic may be cut short
    <topic>-<partition>.<uuid32>-stray        belongs to no topic known by that id; may be cut short
    <topic>-<partition>.<uuid32>-future       the copy of a partition that moves to this directory
    <offset, 20 digits>.<log|index|timeindex|txnindex|snapshot>[.cleaned|.swap|.deleted]

Kafka also parses other spellings of a number, such as `t-01` or `+5.log`. They are refused here, so that two
names never mean one partition or one segment. For the same reason, and because what it names will be removed,
a suffixed directory must carry a UUID as a rename writes it.
"""

from __future__ import annotations

import re
import uuid
from typing import Final, NamedTuple

from topicfs.engine.errors import InvalidNameError
from topicfs.engine.files.atomic import shown
from topicfs.engine.record import MAX_INT32, MAX_INT64

MAX_TOPIC_LENGTH: Final = 249
MAX_NAME_LENGTH: Final = 255

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

# A broker keeps them beside the partitions, and does not load them as such.
NOT_PARTITIONS: Final = frozenset({"__cluster_metadata-0", "remote-log-index-cache"})

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
    return f"{offset:020d}{suffix}"
